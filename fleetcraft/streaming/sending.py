"""The other end of the sender's pipe: gives it orders, and waits for answers for so long only.

Invariant: no call takes longer than its limit; a sender that is late is killed with what it has
started, and what it was given is not known to have arrived.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import psutil

from fleetcraft.errors import ConfigError, TryAgainLaterError

MODULE = "fleetcraft.streaming.sender"
_KEPT = frozenset(
    {
        "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR",
        "WANDB_IDENTITY_TOKEN_FILE", "WANDB_CREDENTIALS_FILE", "WANDB_HTTP_TIMEOUT",
        "WANDB_CA_CERTS", "WANDB_INSECURE_DISABLE_SSL", "WANDB_ERROR_REPORTING",
    }
)  # fmt: skip
"""Variables of W&B that say how it is reached. Others, such as ``WANDB_RUN_ID`` of a script that
runs beside us, would make our runs somebody else's."""
_NO_ACCESS = ("api key", "api_key", "not logged in", "authentication", "permission denied")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long is waited for an answer, in seconds."""

    open_s: float = 120.0
    rows_s: float = 60.0
    close_s: float = 300.0


class SenderGoneError(TryAgainLaterError):
    """The service or its library did not do what it was asked; all of it is kept and sent again."""


def require_wandb() -> None:
    """Looks whether W&B's library is installed, without loading it.

    Raises:
        ConfigError: It is not.
    """
    found = importlib.util.find_spec("wandb")
    # A folder `wandb`, which the library itself leaves behind, is found too, and has no origin.
    if found is None or found.origin is None:
        raise ConfigError(
            f"wandb is not installed for {sys.executable}; nothing was sent",
            hint="pip install 'fleetcraft[wandb]'",
            python=sys.executable,
        )


class SenderProcess:
    """The sender, started with the first order and again after it was killed.

    Args:
        limits: How long is waited.
        offline: Whether it may do without a way to the service; it is then given none.
        files: A folder for what W&B's library keeps beside its runs.
        environ: This process's environment.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        offline: bool,
        files: str,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.limits = limits
        self._environ = environment_of(
            os.environ if environ is None else environ, offline=offline, files=files
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._said: Any = None
        self._answer = b""

    def ask(self, order: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Gives one order and waits for its answer.

        Raises:
            ConfigError: The service does not know who we are.
            SenderGoneError: It failed, or there was no answer in time; the sender is dead then.
        """
        deadline = time.monotonic() + limit_s
        try:
            process = self._running()
            self._write(process, json.dumps(order).encode() + b"\n", deadline)
            answer = self._read(process, deadline)
        except OSError as error:
            raise self._gone(f"it ended: {self._last_words() or error.strerror}") from error
        if answer is None:
            raise self._gone(f"there was no answer within {limit_s:g} s")
        if answer.get("ok"):
            return answer
        said = str(answer.get("error"))
        self.kill()
        if any(words in said.lower() for words in _NO_ACCESS):
            raise ConfigError(
                f"W&B refuses: {said}; nothing was lost",
                hint="wandb login, or stream with --offline and upload later",
            )
        raise self._gone(said)

    def end(self, limit_s: float) -> None:
        """Ends it in order: it finishes what is open."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
        self.kill()

    def kill(self) -> None:
        """Kills it and what it has started, and waits until none of it is left."""
        process, self._process = self._process, None
        if process is None:
            return
        theirs: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            theirs = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for one in theirs:  # psutil looks at its start, so a number used again is not signalled
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(theirs, timeout=10)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._said.close()

    # -- the pipe

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            flags = ["-P"] if sys.flags.safe_path else []
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 - read when it has died
            self._answer = b""
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=self._environ,
                start_new_session=True,  # Ctrl-C is for us; we end it in order
            )
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
        return self._process

    def _write(self, process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
        assert process.stdin is not None
        fd = process.stdin.fileno()
        left = memoryview(data)
        while left:
            if not select.select([], [fd], [], max(0.0, deadline - time.monotonic()))[1]:
                return  # no answer will come in time either, and that is told
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(fd, left) :]

    def _read(self, process: subprocess.Popen[bytes], deadline: float) -> dict[str, Any] | None:
        assert process.stdout is not None
        fd = process.stdout.fileno()
        while b"\n" not in self._answer:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            if not (data := os.read(fd, 1 << 16)):
                raise BrokenPipeError("it closed its end")
            self._answer += data
        line, _, self._answer = self._answer.partition(b"\n")
        value = json.loads(line)
        return value if isinstance(value, dict) else {}

    def _gone(self, why: str) -> SenderGoneError:
        self.kill()
        return SenderGoneError(
            f"W&B did not take it: {why}; nothing was lost",
            hint="it is sent again later; --offline needs no service",
            why=why,
        )

    def _last_words(self) -> str:
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - 2000))
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


def environment_of(environ: Mapping[str, str], *, offline: bool, files: str) -> dict[str, str]:
    """The sender's environment.

    Args:
        environ: That of this process.
        offline: Then keys of the service are left out.
        files: Where W&B's library may keep files, unless the user has said where.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("WANDB_") or name in _KEPT
    }
    if offline:
        kept.pop("WANDB_API_KEY", None)
    defaults = {
        # Its own are in the home folder, whose quota is small.
        "WANDB_CACHE_DIR": f"{files}/cache",
        "WANDB_DATA_DIR": f"{files}/data",
        "WANDB_ERROR_REPORTING": "false",  # its crashes are nobody's business without consent
    }
    return {**defaults, **kept, "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
