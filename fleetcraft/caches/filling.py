"""First use of a model: one writer runs the download, verifies it, and publishes it read-only.

The command is the user's own and gets a private hub; the shared hub sees only what was proved.
Whoever comes second waits, and downloads nothing. Invariant: a command that fails, is killed or
fetches something incomplete leaves the shared hub as it was.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from fleetcraft.caches.blobs import Verdict
from fleetcraft.caches.commanding import run_command
from fleetcraft.caches.filled import note_filled, read_filled
from fleetcraft.caches.hub import (
    HubFiles,
    Repo,
    cannot_write,
    list_repos,
    parse_repo,
    remove_tree,
    set_aside_command,
)
from fleetcraft.caches.mirror import require_complete
from fleetcraft.caches.publishing import Publisher
from fleetcraft.caches.refs import commits_of
from fleetcraft.caches.snapshots import Snapshot, prove, read_repo, read_snapshot
from fleetcraft.caches.staging import Progress, Published
from fleetcraft.caches.writing import take_turn
from fleetcraft.errors import DataError, UsageError
from fleetcraft.layout.caches import CachePaths, HubPaths
from fleetcraft.locks import Held

_HUB_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


class FillReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of `fill` has come to.

    Attributes:
        repo: The repository.
        hub: The shared hub.
        commit: The commit that is now there.
        folder: Its folder.
        files: Files of the snapshot.
        bytes: Of its distinct blobs.
        absent: Files of the commit that were not asked for.
        ran: Whether the command ran in this call.
        waited: Whether another writer was waited for.
        level: How well the snapshot was verified in this call: ``reread``, ``hashed`` or ``sized``.
        published: What was new; None where nothing was published by this call.
        others: Further snapshots that the command fetched, which were published too.
        left_out: Further snapshots that were not, with the reason.
    """

    repo: Repo
    hub: str
    commit: str
    folder: str
    files: int
    bytes: int
    absent: tuple[str, ...] = ()
    ran: bool = False
    waited: bool = False
    level: str = ""
    published: Published | None = None
    others: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def fill(
    paths: CachePaths,
    hub: str,
    repo: Repo | str,
    command: Sequence[str],
    *,
    revision: str | None = None,
    environ: Mapping[str, str] | None = None,
    wait_s: float = 3600.0,
    take_over: bool = False,
    fresh: bool = False,
    fs: HubFiles | None = None,
    progress: Progress = lambda done, total: None,
    tell: Callable[[str], None] = lambda text: None,
) -> FillReport:
    """Makes a model available in a shared hub, by a command that runs at most once.

    What is there already and complete is proved once, noted down, and taken. What an earlier
    command had fetched before it failed is kept for the next, and proved like everything else.

    Args:
        paths: Where the record of what was verified is kept.
        hub: The shared hub cache.
        repo: The repository that must be there afterwards.
        command: What downloads it; it finds the private hub in HF_HUB_CACHE.
        revision: Of the repository; ``main`` if None.
        environ: What the command starts from; this process's own environment if None.
        wait_s: How long another writer is waited for, in seconds.
        take_over: Consent to follow a silent writer of another node.
        fresh: Begin without what an earlier command has left.
        fs: The seam.
        progress: Is told of bytes that are proved, and of all.
        tell: Is told what is waited for.

    Raises:
        UsageError: There is no command, or it cannot be started.
        CommandFailedError: The command failed.
        DataError: What it fetched is incomplete or corrupt.
        StorageError: The hub cannot be written.
        LockHeldError: Another writer did not end in time.
    """
    filling = Filling(
        paths,
        hub,
        parse_repo(repo) if isinstance(repo, str) else repo,
        tuple(command),
        revision=revision,
        fs=fs or HubFiles(),
        progress=progress,
    )
    if not command:
        raise UsageError(
            "there is no command to download with; nothing was done",
            hint=f"fleetcraft caches fill {filling.repo.name} -- hf download {filling.repo.name}",
        )
    if (done := filling.known()) is not None:
        return done
    waited: list[str] = []

    def told(text: str) -> None:
        waited.append(text)
        tell(text)

    held = take_turn(
        hub,
        filling.repo,
        purpose=f"filling {filling.repo} in {hub}",
        wait_s=wait_s,
        take_over=take_over,
        ready=lambda: bool(waited) and filling.known() is not None,
        tell=told,
        fs=filling.fs,
    )
    if held is None:
        done = filling.known()
        assert done is not None
        return msgspec.structs.replace(done, waited=True)
    with held:
        env = dict(os.environ if environ is None else environ)
        found = filling.run(held, env, fresh=fresh, tell=tell)
    return msgspec.structs.replace(found, waited=bool(waited))


class Filling:
    """One model that is to be in a shared hub.

    Args:
        paths: Where the records are.
        hub: The shared hub.
        repo: The repository.
        command: What downloads it.
        revision: The revision that is asked for.
        fs: The seam.
        progress: Is told of bytes.
    """

    def __init__(
        self,
        paths: CachePaths,
        hub: str,
        repo: Repo,
        command: tuple[str, ...],
        *,
        revision: str | None,
        fs: HubFiles,
        progress: Progress,
    ) -> None:
        self.repo = repo
        self.fs = fs
        self._paths = paths
        self._hub = HubPaths(hub)
        self._command = command
        self._revision = revision
        self._progress = progress
        self._private = self._hub.private_hub(repo.folder)

    # -- what is there

    def known(self) -> FillReport | None:
        """The report for a snapshot that was verified before and has all its files and sizes.

        Where it is not known that the commit has no further files, only a record of this very
        command counts: another one may have asked for less.
        """
        snapshot = self._whole_here()
        if snapshot is None:
            return None
        everything = snapshot.listed and not snapshot.absent
        here = {(file.path, file.blob, file.size_bytes) for file in snapshot.files}
        proved = set()
        for record in read_filled(self._paths, self.repo, snapshot.commit):
            had = {(file.path, file.blob, file.size_bytes) for file in record.files}
            proved |= had
            if had <= here and record.command == self._command:
                return self._report(snapshot, level="sized")
        # What somebody else has put beside it since is in no record, and was never proved.
        return self._report(snapshot, level="sized") if everything and here <= proved else None

    def _whole_here(self) -> Snapshot | None:
        try:
            snapshot = read_snapshot(self._hub.root, self.repo, self._revision)
        except DataError:
            return None
        return snapshot if snapshot.complete else None

    def _adopt(self) -> FillReport | None:
        """Proves what is in the shared hub without a record; None where it is not whole."""
        snapshot = self._whole_here()
        # Files that the commit has and that are not here may be what this call is about.
        if snapshot is None or snapshot.absent or not snapshot.listed:
            return None
        proofs = prove(snapshot, fresh=True, fs=self.fs, progress=self._progress)
        bad = [path for path, proof in proofs.items() if proof.verdict is not Verdict.PROVED]
        corrupt = [path for path in bad if proofs[path].verdict is not Verdict.UNPROVABLE]
        if corrupt:
            raise DataError(
                f"{corrupt[0]} of {self.repo} is {proofs[corrupt[0]].verdict.value} in "
                f"{self._hub.root}: {proofs[corrupt[0]].detail}; the command was not run",
                hint=set_aside_command(self._hub.root, self.repo, corrupt[0]),
                repo=self.repo.name, file=corrupt[0], hub=self._hub.root,
            )  # fmt: skip
        note_filled(self._paths, snapshot, (), self.fs)
        return self._report(snapshot, level="reread")

    # -- the command

    def run(
        self,
        held: Held,
        environ: dict[str, str],
        *,
        fresh: bool,
        tell: Callable[[str], None],
    ) -> FillReport:
        """Runs the command and publishes what it fetched, unless that is there meanwhile."""
        if (done := self.known() or self._adopt()) is not None:
            return done
        self._prepare(fresh=fresh)
        run_command(self._command, self._environment(environ), tell=tell)
        wanted, others = self._fetched()
        published = self._publish(wanted, held)
        whole = [snapshot for snapshot in others if snapshot.complete]
        for snapshot in whole:
            self._publish(snapshot, held)
        with contextlib.suppress(OSError):
            remove_tree(self.fs, self._private.root)
        return msgspec.structs.replace(
            self._report(wanted, level="reread"),
            ran=True,
            published=published,
            others=tuple(f"{item.repo}@{item.commit[:12]}" for item in whole),
            left_out=tuple(
                f"{item.repo}@{item.commit[:12]}: {item.troubles[0]}"
                for item in others
                if not item.complete
            ),
        )

    def _prepare(self, *, fresh: bool) -> None:
        """Makes the private hub, and lends it the blobs that the shared one has.

        So a command fetches only what is missing; all of it is proved afterwards.
        """
        try:
            if fresh:
                remove_tree(self.fs, self._private.root)
            self.fs.make_shared_folder(self._private.root)
            self._lend()
        except OSError as error:
            raise cannot_write(
                error, f"the hub cache {self._hub.root}", done="the command was not run"
            ) from error

    def _lend(self) -> None:
        ours, theirs = self._hub.repo(self.repo.folder), self._private.repo(self.repo.folder)
        try:
            names = self.fs.listdir(ours.blobs)
        except FileNotFoundError:
            return
        self.fs.make_shared_folder(theirs.blobs)
        for name in names:
            if name.endswith(".incomplete") or self.fs.exists(theirs.blob(name)):
                continue
            # A mount without hard links, or a blob that the library keeps elsewhere: it is fetched.
            with contextlib.suppress(OSError):
                self.fs.link(os.path.realpath(ours.blob(name)), theirs.blob(name))

    def _environment(self, environ: dict[str, str]) -> dict[str, str]:
        env = {name: text for name, text in environ.items() if name not in _OFFLINE_VARIABLES}
        return env | dict.fromkeys(_HUB_VARIABLES, self._private.root)

    def _fetched(self) -> tuple[Snapshot, list[Snapshot]]:
        """What the command has left in the private hub: the wanted snapshot, and others.

        Raises:
            DataError: It is not there, or incomplete.
        """
        if not commits_of(self._private.repo(self.repo.folder)):
            names = [str(repo) for repo in list_repos(self._private.root) if repo != self.repo]
            said = f"; it fetched {', '.join(names[:5])}" if names else ""
            raise DataError(
                f"the command ended well, but {self.repo} is not in the hub that it was given"
                f"{said}; nothing was published",
                hint="the command must write to $HF_HUB_CACHE: no --local-dir and no --cache-dir",
                repo=self.repo.name, hub=self._hub.root,
            )  # fmt: skip
        wanted = read_snapshot(self._private.root, self.repo, self._revision)
        require_complete(wanted, allow_partial=True)
        every = [
            s
            for repo in list_repos(self._private.root)
            for s in read_repo(self._private.root, repo)
        ]
        return wanted, [s for s in every if (s.repo, s.commit) != (wanted.repo, wanted.commit)]

    def _publish(self, snapshot: Snapshot, held: Held) -> Published:
        with contextlib.ExitStack() as stack:
            if snapshot.repo != self.repo:
                other = take_turn(
                    self._hub.root, snapshot.repo, purpose=f"filling {snapshot.repo}", fs=self.fs
                )
                assert other is not None
                held = stack.enter_context(other)
            try:
                done = Publisher(
                    snapshot, self._hub.root, held=held, own=True, fs=self.fs,
                    progress=self._progress,
                ).run()  # fmt: skip
            except DataError as error:
                self._forget_corrupt(snapshot, error)
                raise
        now = read_snapshot(self._hub.root, snapshot.repo, snapshot.commit)
        # Only these were proved: the hub can have further files of the commit, from elsewhere.
        ours = {file.path for file in snapshot.files}
        files = tuple(file for file in now.files if file.path in ours)
        now = msgspec.structs.replace(now, files=files, bytes=snapshot.bytes)
        note_filled(self._paths, now, self._command, self.fs)
        return done

    def _forget_corrupt(self, snapshot: Snapshot, error: DataError) -> None:
        """Removes a corrupt blob from the private hub, so that the next call fetches it again."""
        blob = error.facts.get("blob")
        if isinstance(blob, str) and error.facts.get("hub") == snapshot.hub:
            path = HubPaths(snapshot.hub).repo(snapshot.repo.folder).blob(blob)
            error.hint = "call again: that file was removed, and the others are kept"
            with contextlib.suppress(OSError):
                self.fs.unlink(path)

    # -- saying

    def _report(self, snapshot: Snapshot, *, level: str) -> FillReport:
        return FillReport(
            repo=self.repo,
            hub=self._hub.root,
            commit=snapshot.commit,
            folder=self._hub.repo(self.repo.folder).snapshot(snapshot.commit),
            files=len(snapshot.files),
            bytes=snapshot.bytes,
            absent=snapshot.absent,
            level=level,
        )
