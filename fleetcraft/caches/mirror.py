"""Copying one model from a hub cache to another, completely or not at all.

No network: what is copied is what the source has. Invariant: the destination shows a snapshot only
when every file of it was read back from there and proved.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from fleetcraft.caches.blobs import Verdict
from fleetcraft.caches.hub import HubFiles, Repo, parse_repo
from fleetcraft.caches.publishing import Publisher
from fleetcraft.caches.snapshots import Snapshot, named, prove, read_snapshot
from fleetcraft.caches.staging import Progress, Published
from fleetcraft.caches.writing import take_turn
from fleetcraft.errors import DataError, UsageError
from fleetcraft.layout.caches import HubPaths


class MirrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a mirror has come to.

    Attributes:
        repo: The repository.
        commit: The commit.
        refs: Branches and tags that stand for it.
        hub_from: Where it was read.
        hub_to: Where it is now.
        folder: The snapshot's folder there.
        files: Files of the snapshot.
        bytes: Of its distinct blobs.
        absent: Files that the commit has and the source never fetched.
        published: What was copied and proved; None for a dry run.
        to_copy: Blobs that were not in the destination before.
        to_copy_bytes: Of these.
    """

    repo: Repo
    commit: str
    refs: tuple[str, ...]
    hub_from: str
    hub_to: str
    folder: str
    files: int
    bytes: int
    absent: tuple[str, ...] = ()
    published: Published | None = None
    to_copy: int = 0
    to_copy_bytes: int = 0


def mirror(
    hub_from: str,
    hub_to: str,
    repo: Repo | str,
    revision: str | None = None,
    *,
    allow_partial: bool = False,
    dry_run: bool = False,
    wait_s: float = 0.0,
    take_over: bool = False,
    fs: HubFiles | None = None,
    progress: Progress = lambda done, total: None,
    tell: Callable[[str], None] = lambda text: None,
) -> MirrorReport:
    """Copies a snapshot, proves it from bytes that are read back, and only then names it.

    Blobs that the destination has are proved and not copied. A call that was cut short is completed
    by the next one.

    Args:
        hub_from: The hub cache that has it.
        hub_to: The hub cache that is to have it; made if it is not there.
        repo: The repository.
        revision: A branch, tag or commit; ``main`` if None.
        allow_partial: Accept a source that never fetched some files of the commit.
        dry_run: Say what would be copied, and write nothing.
        wait_s: How long another writer of this repository is waited for, in seconds.
        take_over: Consent to follow a silent writer of another node.
        fs: The seam.
        progress: Is told of bytes that are done, and of all.
        tell: Is told whom is waited for.

    Raises:
        UsageError: Source and destination are one.
        DataError: The source is incomplete or corrupt, or the destination is corrupt.
        StorageError: The destination cannot be written.
        LockHeldError: Another writes it.
    """
    fs = fs or HubFiles()
    repo = parse_repo(repo) if isinstance(repo, str) else repo
    if os.path.realpath(hub_from) == os.path.realpath(hub_to):
        raise UsageError(
            f"source and destination are one hub cache: {hub_to}; nothing was copied",
            hint="name the other one with --from or --to", hub=hub_to,
        )  # fmt: skip
    source = read_snapshot(hub_from, repo, revision)
    require_complete(source, allow_partial=allow_partial)
    report = _planned(source, hub_to)
    if dry_run:
        return report
    if (proved := _there_already(source, hub_to, fs, progress)) is not None:
        return msgspec.structs.replace(report, published=proved)
    held = take_turn(
        hub_to, repo, purpose=f"writing {repo} in {hub_to}", wait_s=wait_s, take_over=take_over,
        tell=tell, fs=fs,
    )  # fmt: skip
    assert held is not None
    with held:
        done = Publisher(source, hub_to, held=held, fs=fs, progress=progress).run()
    return msgspec.structs.replace(report, published=done)


def _there_already(
    source: Snapshot, hub_to: str, fs: HubFiles, progress: Progress
) -> Published | None:
    """The proof of a destination that has everything; None where something is to be written.

    So a hub that was mounted read-only after it was filled can be mirrored to again.
    """
    try:
        there = read_snapshot(hub_to, source.repo, source.commit)
    except DataError:
        return None
    wanted = {(file.path, file.blob) for file in source.files}
    same = wanted == {(file.path, file.blob) for file in there.files}
    told = set(source.refs) <= set(there.refs) and there.listed >= source.listed
    if not (same and there.complete and told):
        return None
    proofs = prove(there, fresh=True, fs=fs, progress=progress)
    if any(proof.verdict is not Verdict.PROVED for proof in proofs.values()):
        return None
    blobs = len({file.blob for file in there.files})
    return Published(already=blobs, proved=blobs)


def require_complete(snapshot: Snapshot, *, allow_partial: bool = False) -> None:
    """Refuses a snapshot that lacks something.

    Args:
        snapshot: What was read.
        allow_partial: Accept that files of the commit's listing were never fetched.

    Raises:
        DataError: It lacks something; the hint is the command that fetches it.
    """
    troubles = snapshot.troubles
    if not troubles and snapshot.absent and not allow_partial:
        troubles = (f"{len(snapshot.absent)} files of the commit are not here: "
                    f"{named(snapshot.absent)}",)  # fmt: skip
    if not troubles:
        return
    hint = f"fetch it completely: {fetch_command(snapshot)}"
    if snapshot.complete:
        hint += "; or accept that with --allow-partial"
    raise DataError(
        f"{snapshot.repo} (commit {snapshot.commit[:12]}) is incomplete in {snapshot.hub}: "
        f"{'; '.join(troubles)}; nothing was copied",
        hint=hint, repo=snapshot.repo.name, commit=snapshot.commit, hub=snapshot.hub,
        troubles=troubles, missing=snapshot.missing_shards, absent=snapshot.absent,
    )  # fmt: skip


def fetch_command(snapshot: Snapshot, *files: str) -> str:
    """The command that fetches a snapshot, or files of it, into its hub."""
    import shlex

    kind = snapshot.repo.type
    words = ["hf", "download", snapshot.repo.name, *files, "--revision", snapshot.commit]
    if kind.value != "model":
        words += ["--repo-type", kind.value]
    return f"HF_HUB_CACHE={shlex.quote(snapshot.hub)} {shlex.join(words)}"


def _planned(source: Snapshot, hub_to: str) -> MirrorReport:
    to = HubPaths(hub_to).repo(source.repo.folder)
    sizes = {file.blob or file.real: file for file in source.files}
    missing = [f for f in sizes.values() if not f.blob or not os.path.exists(to.blob(f.blob))]
    return MirrorReport(
        repo=source.repo,
        commit=source.commit,
        refs=source.refs,
        hub_from=source.hub,
        hub_to=os.path.abspath(hub_to),
        folder=to.snapshot(source.commit),
        files=len(source.files),
        bytes=source.bytes,
        absent=source.absent,
        to_copy=len(missing),
        to_copy_bytes=sum(file.size_bytes or 0 for file in missing),
    )
