"""The end that a run declares, whether it is reached, and the one resume where it is not.

Not here: the spool; `resuming` enqueues. Invariant: a claim stands at a name that holds from where
to where, so whoever asks, and however often, one resume of that stretch is claimed.
"""

from __future__ import annotations

import os
import re
import stat

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError, SpoolError, UsageError
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token
from fleetcraft.layout.runs import RunPaths
from fleetcraft.locks import put_if_absent
from fleetcraft.training.checkpoint.records import (
    CheckpointUnknownError,
    Kind,
    Manifest,
    encode,
)
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.plan.records import End

END_SCHEMA = "fleetcraft.train-end/1"
CLAIM_SCHEMA = "fleetcraft.train-resume/1"
TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_CLAIM = re.compile(r"(\d{1,18})-(\d{1,18})")


class DeclaredEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a run's ``end.json``.

    Attributes:
        schema: `END_SCHEMA`.
        end: What must be there.
        checkpoints: Where the run's checkpoints lie; in the run's own folder if empty.
    """

    schema: str
    end: End
    checkpoints: str = ""


class EndCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a declared end is reached.

    Attributes:
        answer: True, False, or None when it cannot be told.
        reason: Why it is not True; what it rests on when it is.
        have: The newest checkpoint that may be resumed from: an EXACT one if there is any, else
            the newest of weights; None where there is none, or that is not known.
    """

    answer: bool | None
    reason: str
    have: Manifest | None = None


class ResumeClaim(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a claim: what is enqueued under which name. Published once.

    Attributes:
        schema: `CLAIM_SCHEMA`.
        nonce: Tells it from that of another controller.
        task: The task that was done before its end.
        name: The name of the resume in the spool.
        have: The step that it resumes from.
        want: The step that was declared.
        kind: What the checkpoint is; WEIGHTS only where somebody consented.
        manifest_sha256: Of that checkpoint.
        checkpoint: Its folder.
        by: Who claimed.
        at: Wall clock, for people.
    """

    schema: str
    nonce: str
    task: str
    name: str
    have: int
    want: int
    kind: Kind
    manifest_sha256: str
    checkpoint: str
    by: str
    at: str


_ends = msgspec.json.Decoder(DeclaredEnd)
_claims = msgspec.json.Decoder(ResumeClaim)


def declare_end(
    paths: RunPaths, end: End, *, checkpoints: str = "", fs: FileSystem | None = None
) -> None:
    """Publishes what must be there when a run is done; the same once more changes nothing.

    Args:
        paths: The run's; its folder must be there.
        end: What must be there.
        checkpoints: Where the run's checkpoints lie, absolute; in its own folder if empty.
        fs: The seam.

    Raises:
        UsageError: Its task or a payload cannot be a name.
        SpoolError: Another end is declared already; it was kept.
        OSError: Whether it is published is not known.
    """
    fs = fs or FileSystem()
    _check(end)
    declared = DeclaredEnd(schema=END_SCHEMA, end=end, checkpoints=checkpoints)
    if put_if_absent(fs, paths.end, encode(declared)):
        return
    if read_declared(paths, fs=fs) != declared:
        raise SpoolError(
            f"run {paths.name} declares another end already ({paths.end}); it was kept",
            hint="a run's end does not change: give a longer run another name",
            path=paths.end,
        )


def read_declared(paths: RunPaths, *, fs: FileSystem | None = None) -> DeclaredEnd | None:
    """The end that a run declares; None where it declares none.

    Raises:
        DataError: The record cannot be read; nothing was concluded.
    """
    try:
        declared = _ends.decode((fs or FileSystem()).read(paths.end))
        if declared.schema != END_SCHEMA:
            raise ValueError(f"its schema is {declared.schema!r}")
        _check(declared.end)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, UsageError, RecursionError) as error:
        raise DataError(
            f"the end of run {paths.name} cannot be read: {error}; nothing was concluded",
            hint=f"look at {paths.end}",
            path=paths.end,
        ) from error
    return declared


def store_of(
    paths: RunPaths, declared: DeclaredEnd, *, fs: FileSystem | None = None
) -> CheckpointStore:
    """The checkpoints of a run."""
    return CheckpointStore(declared.checkpoints or paths.checkpoints, fs=fs)


def check_end(end: End, store: CheckpointStore, paths: RunPaths) -> EndCheck:
    """Whether the declared end of a run is there, whatever says that the run is done.

    The checkpoint of the declared step, or of a later one, must be committed, of the declared kind
    (EXACT serves for WEIGHTS), with every file of its size; every payload must be a regular
    file, no link, that is not empty. Never raises for what cannot be read: that is None.

    Args:
        end: As declared; one that names neither step nor payload says nothing, and is None.
        store: The run's checkpoints.
        paths: The run's; payloads are relative to its folder.
    """
    if end.step is None and not end.payload:
        return EndCheck(answer=None, reason="the run declares no end")
    try:
        have, reached, why = _checkpoint(end, store)
        if not reached:
            return EndCheck(answer=False, reason=why, have=have)
        for name in end.payload:
            bad = _payload_fault(store.fs, f"{paths.folder}/{name}", name)
            if bad:
                return EndCheck(answer=False, reason=bad, have=have)
    except CheckpointUnknownError as error:
        return EndCheck(answer=None, reason=error.message)
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        return EndCheck(answer=None, reason=f"{error.strerror or error}{place}")
    return EndCheck(answer=True, reason=why, have=have)


def resume_name(task: str, have: int, want: int) -> str:
    """The name of a resume in the spool; the claim's name is in it."""
    return f"{task}.resume-{have}-{want}"


def claim_resume(
    paths: RunPaths,
    task: str,
    have: Manifest,
    want: int,
    *,
    by: str = "",
    fs: FileSystem | None = None,
) -> bool:
    """Claims the one resume of a task from one step to another.

    Args:
        paths: The run's.
        task: The task whose declared end is missing.
        have: The checkpoint to resume from.
        want: The declared step.
        by: Who asks.
        fs: The seam.

    Returns:
        True for exactly one caller, ever. The claim of another is read by `read_claim`.

    Raises:
        OSError: Whether it was claimed is not known; ask again.
    """
    fs = fs or FileSystem()
    path = paths.resume_claim(task, str(have.step), str(want))
    if fs.exists(path):
        return False
    for folder in (paths.resume, os.path.dirname(path)):
        _make(fs, folder)
    claim = ResumeClaim(
        schema=CLAIM_SCHEMA,
        nonce=new_launch_token(),
        task=task,
        name=resume_name(task, have.step, want),
        have=have.step,
        want=want,
        kind=have.kind,
        manifest_sha256=have.sha256,
        checkpoint=have.folder,
        by=by or f"process {os.getpid()}",
        at=timestamp(),
    )
    return put_if_absent(fs, path, encode(claim))


def read_claims(
    paths: RunPaths, task: str, *, fs: FileSystem | None = None
) -> tuple[ResumeClaim, ...]:
    """Every claimed resume of a task, by the step that it resumes from.

    Raises:
        DataError: A claim cannot be read.
        OSError: They cannot be listed.
    """
    fs = fs or FileSystem()
    folder = paths.resume_claims(task)
    try:
        names = [name for name in fs.listdir(folder) if _CLAIM.fullmatch(name)]
    except FileNotFoundError:
        return ()
    found = [_read_claim(fs, f"{folder}/{name}") for name in names]
    return tuple(sorted(found, key=lambda claim: (claim.have, claim.want)))


def _read_claim(fs: FileSystem, path: str) -> ResumeClaim:
    try:
        claim = _claims.decode(fs.read(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"a resume claim cannot be read: {error}; nothing was resumed",
            hint=f"look at {path}",
            path=path,
        ) from error
    if claim.schema != CLAIM_SCHEMA or claim.name != resume_name(
        claim.task, claim.have, claim.want
    ):
        raise DataError(f"{path} is no resume claim; nothing was resumed", path=path)
    return claim


def _checkpoint(end: End, store: CheckpointStore) -> tuple[Manifest | None, bool, str]:
    """What may be resumed from, whether the declared checkpoint is there, and why."""
    newest = store.newest()
    exact = newest if newest and newest.kind is Kind.EXACT else store.newest(Kind.EXACT)
    have = exact or newest
    if end.step is None:
        return have, True, "every payload is there"
    wanted = exact if end.kind == Kind.EXACT else newest
    if wanted is not None and wanted.step >= end.step:
        return have, True, f"step {wanted.step} is committed, {wanted.kind.value}"
    kind = " EXACT" if end.kind == Kind.EXACT else ""
    if newest is None:
        return None, False, f"no checkpoint is there, expected{kind} step {end.step}"
    found = f"the newest{kind} checkpoint is {f'step {wanted.step}' if wanted else 'missing'}"
    weights = f"; step {newest.step} is {newest.kind.value}" if newest is not wanted else ""
    return have, False, f"{found}{weights}, expected step {end.step}"


def _payload_fault(fs: FileSystem, path: str, name: str) -> str:
    try:
        facts = fs.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"its payload {name} is missing"
    if not stat.S_ISREG(facts.st_mode):
        return f"its payload {name} is no file"  # a link could point to nothing
    return "" if facts.st_size else f"its payload {name} is empty"


def _check(end: End) -> None:
    if end.task and not TASK_NAME.fullmatch(end.task):
        raise UsageError(f"{end.task!r} cannot be the name of a task; nothing was declared")
    if end.kind not in tuple(Kind):
        raise UsageError(f"no checkpoint is of kind {end.kind!r}; it is EXACT or WEIGHTS")
    for name in end.payload:
        if not name or "\0" in name:
            raise UsageError(f"{name!r} cannot be a payload; nothing was declared")


def _make(fs: FileSystem, folder: str) -> None:
    if fs.exists(folder):
        return
    try:
        fs.make_folder(folder)
    except FileExistsError:
        return
    fs.sync_folder(os.path.dirname(folder))
