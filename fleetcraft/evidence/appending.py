"""Appending a result: what the caller says, and what this process can find out itself.

The record is in `results`. Invariant: what is filled in was read here, from the environment that a
worker gave, from the task's record or from the files themselves; nothing is guessed, and a result
that its grid does not declare is not written.
"""

from __future__ import annotations

import math
import os
import platform
import stat
import sys
from collections.abc import Mapping, Sequence

import msgspec

from fleetcraft.batch_table.records import BATCH_VARIABLE, HASH_VARIABLE
from fleetcraft.clock import timestamp
from fleetcraft.errors import ConfigError, DataError, FleetError, UsageError
from fleetcraft.evidence.digests import hash_file
from fleetcraft.evidence.records import (
    NAME,
    RERUN_SUFFIX,
    RERUN_VARIABLE,
    Producer,
    producer_here,
)
from fleetcraft.evidence.release.cells import admit, admit_rerun
from fleetcraft.evidence.results.sets import (
    SCHEMA,
    OutputFile,
    Result,
    check_name,
    put,
    stack_digest,
)
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token, sha256_hex
from fleetcraft.layout import Scratch
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.spool.record import Record
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.video.encoder import EncoderRecord, encoder_record_path

_MOST_RECORD_BYTES = 1 << 20
_LIBRARIES = ("torch", "diffusers", "transformers", "accelerate", "numpy", "av")
_TOKEN = new_launch_token()


def append(
    set_name: str,
    *,
    arm: str,
    seed: int,
    metrics: Mapping[str, float] | None = None,
    candidate: str = "",
    outputs: Sequence[str | os.PathLike[str]] = (),
    timed: bool | None = None,
    batch: int | None = None,
    family: str = "",
    stack: Mapping[str, str] | None = None,
    attention_backend: str = "",
    device: str = "",
    encoder: str | os.PathLike[str] = "",
    code_sha256: str = "",
    grid_sha256: str = "",
    root: str | os.PathLike[str] = "",
    fs: FileSystem | None = None,
) -> Result:
    """Appends a result record to a set, durably, and returns it as it was written.

    Inside a task, the task, its attempt, its owner and Slurm's job are filled in, the batch and the
    hash of the batch table as the worker gave them, and whether the task was timed. Where torch is
    loaded in this process, versions and the device are.

    Args:
        set_name: The set; where a frozen grid has this name, the set belongs to it.
        arm: What is compared.
        seed: Of the run.
        metrics: Finite numbers. What was not measured is left out.
        candidate: What it was made for.
        outputs: Files that came of it; each is hashed.
        timed: Whether its timing may be reported; as the task says if None, else False.
        batch: How many were computed together; as the worker said if None.
        family: The workload's shape; as the worker said if empty.
        stack: Versions by library, beside those that are found.
        attention_backend: As torch calls it.
        device: The kind of device.
        encoder: The encoder record of the outputs; those beside the outputs if empty.
        code_sha256: Digest of the code that ran.
        grid_sha256: The grid that this was run for, to be compared with the frozen one;
            ``FLEET_GRID`` if empty.
        root: The scratch tree; as configured if empty.
        fs: The seam.

    Raises:
        UsageError: A name or number is none.
        ConfigError: Nothing says where the scratch tree is, or it is not there.
        DataError: An output or encoder record cannot be read, or the grid refuses it.
        OSError: It is not known to be written.
    """
    place = _room(os.fspath(root))
    asked = check_name(set_name, "set")
    # Beside what it repeats, never among it: `compare SET:ARM SET.rerun:ARM`. A name that leaves no
    # room for that is refused now, and not after all the work of the first rerun.
    of_rerun = check_name(f"{asked}{RERUN_SUFFIX}", "set of its reruns")
    if again := bool(os.environ.get(RERUN_VARIABLE)):
        set_name = of_rerun
    task = _own_record()
    producer = msgspec.structs.replace(producer_here(), code_sha256=code_sha256)
    files = [os.fspath(path) for path in outputs]
    codec, encoder_sha256 = _encoder(os.fspath(encoder), files)
    # Plain text: torch's own version, for one, is a class of its own.
    versions = {name: str(version) for name, version in (stack or {}).items()}
    versions = {**_loaded_versions(), **versions}
    result = Result(
        schema=SCHEMA,
        arm=check_name(arm, "arm"),
        seed=_whole(seed, "seed"),
        timed=task is not None and task.spec.timed if timed is None else timed,
        metrics=check_metrics(metrics or {}),
        candidate=_check_candidate(candidate),
        batch=_batch(batch),
        batch_table_sha256=os.environ.get(HASH_VARIABLE, "").removeprefix("sha256:"),
        family=family or os.environ.get("FLEET_FAMILY", ""),
        stack=versions,
        stack_sha256=stack_digest(versions),
        attention_backend=attention_backend,
        device=device or _loaded_device(),
        encoder=codec,
        encoder_sha256=encoder_sha256,
        outputs=tuple(_output(path, place.result_set(set_name)) for path in files),
        grid_sha256=grid_sha256 or producer.grid_sha256,
        producer=producer,
        command_identity=task.identity if task else "",
        at=timestamp(),
        # Longer than a launch token: of a million records, no two may be taken for one.
        nonce=os.urandom(12).hex(),
    )
    door = admit_rerun if again else admit
    result = door(place, asked, result, fs=fs)
    put(place.folder, set_name, result, writer=_writer(producer), fs=fs)
    return result


def check_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics as they were given.

    Raises:
        UsageError: A name is none, or a value is no finite number.
    """
    for name, value in metrics.items():
        check_name(name, "metric")
        # Scalars of numpy and torch have __float__, text has not.
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            raise UsageError(f"metric {name} is {value!r}, expected a number", metric=name)
        if not math.isfinite(value):
            raise UsageError(
                f"metric {name} is {value}; nothing was appended",
                hint="leave out a metric that was not measured; it is then absent, not zero",
                metric=name,
            )
    return {name: float(value) for name, value in metrics.items()}


def _room(root: str) -> EvidencePaths:
    if not root:
        from fleetcraft.config import load

        root = load().root
    if not os.path.isdir(root):
        raise ConfigError(
            f"there is no scratch tree at {root}; nothing was appended",
            hint="fleetcraft --root DIR init makes one",
            root=root,
        )
    return EvidencePaths(Scratch(root).evidence)


def _writer(producer: Producer) -> str:
    # A task runs on one node, whose kernel keeps appends of several processes apart.
    if producer.owner and NAME.fullmatch(producer.owner):
        return producer.owner
    return f"{producer.host}-{os.getpid()}-{_TOKEN}"


def _whole(value: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"the {what} is {value!r}, expected a whole number", found=value)
    if not -(1 << 63) <= value < 1 << 64:
        raise UsageError(f"the {what} {value} has more than 64 bits", found=value)
    return value


def _check_candidate(text: str) -> str:
    if not text.isprintable() or len(text) > 200:
        raise UsageError(
            f"the candidate is {text[:40]!r}, expected at most 200 printable characters",
            hint="give an id here, and the text that it stands for in a file",
        )
    return text


def _batch(given: int | None) -> int | None:
    said = os.environ.get(BATCH_VARIABLE, "")
    batch = int(said) if given is None and said.isdecimal() else given
    if batch is not None and _whole(batch, "batch") < 1:
        raise UsageError(f"the batch is {batch}, expected 1 or more", batch=batch)
    return batch


def _own_record() -> Record | None:
    """The task that this process is part of; None outside one, or if it cannot be read."""
    spool, task = os.environ.get("FLEET_SPOOL", ""), os.environ.get("FLEET_TASK", "")
    if not spool or not task:
        return None
    tree = SpoolTree(spool)
    try:
        return tree.read(tree.find(task).path)
    except (FleetError, OSError):
        return None


# -- what is loaded here


def _loaded_versions() -> dict[str, str]:
    # Only of what the caller has loaded: another library's presence says nothing about this result.
    if "torch" not in sys.modules:
        return {}
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    cuda = getattr(getattr(sys.modules["torch"], "version", None), "cuda", None)
    return {**found, "cuda": str(cuda)} if cuda else found


def _loaded_device() -> str:
    """The device's name where this process uses CUDA already; asking would start it otherwise."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return str(cuda.get_device_name()) if cuda is not None and cuda.is_initialized() else ""
    except (RuntimeError, AttributeError):
        return ""


# -- files


def _output(path: str, folder: str) -> OutputFile:
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise DataError(
                f"the output {path} is a symbolic link; nothing was appended",
                hint=f"name the file itself: {os.path.realpath(path)}",
                path=path,
            )
        size_bytes, sha256 = hash_file(path)
    except OSError as error:
        raise DataError(
            f"cannot read the output {path}: {error.strerror or error}; nothing was appended",
            path=path,
        ) from error
    if not size_bytes:
        raise DataError(f"the output {path} is empty; nothing was appended", path=path)
    way = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
    return OutputFile(path=way, size_bytes=size_bytes, sha256=sha256)


def _encoder(given: str, outputs: Sequence[str]) -> tuple[str, str]:
    """Codec in short and digest of the encoder record; empty where there is none.

    Raises:
        DataError: It cannot be read, or the outputs were encoded differently.
    """
    if given:
        return _read_encoder(given)
    beside = [path for output in outputs if os.path.exists(path := _record_beside(output))]
    found = {path: _read_encoder(path) for path in beside}
    if len(set(found.values())) > 1:
        raise DataError(
            f"the outputs have different encoder records ({', '.join(found)}); "
            "nothing was appended",
            hint="append one result for each encoder",
        )
    return next(iter(found.values()), ("", ""))


def _record_beside(output: str) -> str:
    from pathlib import Path

    return str(encoder_record_path(Path(output)))


def _read_encoder(path: str) -> tuple[str, str]:
    try:
        data = FileSystem().read(path)
        value = msgspec.json.decode(data) if len(data) <= _MOST_RECORD_BYTES else None
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is no JSON ({error})"
        raise DataError(
            f"cannot read the encoder record {path}: {reason}; nothing was appended",
            hint="fleetcraft.video writes one beside each file, as NAME.encoder.json",
            path=path,
        ) from error
    if not isinstance(value, dict) or not value:
        raise DataError(f"{path} is no encoder record; nothing was appended", path=path)
    return _in_short(data), sha256_hex(data)


def _in_short(data: bytes) -> str:
    # A record of another program counts by its digest alone.
    try:
        settings = msgspec.json.decode(data, type=EncoderRecord).settings
    except (msgspec.MsgspecError, UsageError, RecursionError):
        return ""
    rate = f"qp={settings.qp}" if settings.crf is None else f"crf={settings.crf:g}"
    return f"{settings.codec} {settings.pix_fmt} {settings.preset} {rate}"
