"""Questions that need torch, or a user's own file, put to a child process.

The child is `probe`. Invariant: this process imports neither torch nor the file of a family.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import msgspec

from fleetcraft.cli.calibrate.answers import Answers, FamilyAnswer
from fleetcraft.errors import ConfigError, DeviceError, UsageError

_PATIENCE_S = 300.0
_LAST_WORDS = 3


def require_torch() -> None:
    """Says what to install, before anything is made.

    Raises:
        ConfigError: This Python has no torch.
    """
    if find_spec("torch") is None:
        raise ConfigError(
            f"torch is not installed for {sys.executable}; nothing was tried",
            hint="pip install 'fleetcraft[torch]'",
            python=sys.executable,
        )


def describe(family: str) -> FamilyAnswer:
    """Key and identity of a family in a file, from a child that imports the file.

    Raises:
        UsageError: There is no such file or family.
        ConfigError: It cannot be imported.
    """
    (answer,) = ask(families=[family], parts=["identity"]).families
    if answer.error:
        kind = UsageError if answer.is_usage else ConfigError
        raise kind(answer.error, hint=answer.hint, family=family)
    return answer


def ask(
    *,
    families: Sequence[str] = (),
    parts: Sequence[str],
    device: str = "auto",
    python: str = "",
    batch: int = 2,
) -> Answers:
    """Starts the child and waits for its answers.

    Args:
        families: As `fleetcraft.calibration.family.find_family` takes them.
        parts: ``stack``, ``sdpa``, ``noise``, ``identity``, ``family``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        python: Its interpreter; that of this process if empty.
        batch: At which the checks of families run.

    Raises:
        ConfigError: It cannot be started, or torch is not installed there.
        DeviceError: It died, or was silent for five minutes: nothing was learnt.
    """
    question = {
        "families": list(families), "parts": list(parts), "device": device, "batch": batch,
    }  # fmt: skip
    words = [
        python or sys.executable, "-P", "-m", "fleetcraft.cli.calibrate.probe",
        msgspec.json.encode(question).decode(),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            words, capture_output=True, check=False, timeout=_PATIENCE_S,
            stdin=subprocess.DEVNULL, env=_environment(),
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(
            f"cannot start {words[0]}: {error.strerror}; nothing was checked",
            hint="the setting batch.python names another Python",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"the process that was asked did not answer within {_PATIENCE_S:g} s and was stopped",
            hint="nvidia-smi says whether the driver answers",
        ) from error
    return _read(done, words[0])


def _environment() -> dict[str, str]:
    # What this process can import, its child can too, wherever it was started. Threads that wait
    # by spinning cost a busy machine several times what the checks themselves do.
    path = os.pathsep.join(path for path in sys.path if path)
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": path}


def _read(done: subprocess.CompletedProcess[bytes], python: str) -> Answers:
    try:
        answers = msgspec.json.decode(done.stdout, type=Answers)
    except (msgspec.DecodeError, RecursionError) as error:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-_LAST_WORDS:]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"code {done.returncode}"
        raise DeviceError(
            f"the process that was asked ended with {how} and gave no answer"
            + (f": {' / '.join(said)}" if said else ""),
            hint=f"{python} -c 'import torch' shows whether torch itself works",
            returned=done.returncode,
        ) from error
    if answers.no_torch:
        raise ConfigError(
            f"torch is not installed for {python}: {answers.no_torch}; nothing was checked",
            hint="pip install 'fleetcraft[torch]', or set batch.python to a Python that has it",
            python=python,
        )
    return answers
