"""One stream: its follower, its outbox, its lock, and what the sender holds of it.

Invariant: rows are on disk before they are sent, and are given up only when the service has
confirmed the end of the session that they belong to.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from fleetcraft.errors import DataError, SpoolError, UsageError
from fleetcraft.files import FileSystem
from fleetcraft.layout.streams import StreamPaths
from fleetcraft.locks import GenerationLock, Held, LockHeldError
from fleetcraft.streaming.outbox import Batch, Outbox
from fleetcraft.streaming.rows import Follower
from fleetcraft.streaming.sending import SenderGoneError, SenderProcess
from fleetcraft.trust import require_private_folder

SESSION_BYTES = 1 << 26
"""A session is confirmed and the next one begun at this size; more than that is never waiting."""
_ROWS_OF_AN_ORDER = 500
_WRITTEN_WITHIN_S = 30.0  # a busy machine; W&B's own process writes every 2 s
_FAILED_STATES = frozenset({"EXHAUSTED", "ABORTED", "BLOCKED"})


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where streams are sent.

    Attributes:
        project: W&B's project.
        entity: The user or team there; empty for the user's own default.
        offline: Write files that somebody uploads later.
    """

    project: str
    entity: str = ""
    offline: bool = False

    @property
    def name(self) -> str:
        """As a folder is called for it."""
        return f"{self.entity}@{self.project}" if self.entity else self.project


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What one stream has done in this call.

    Attributes:
        stream: What is followed.
        kind: ``run`` or ``fleet``.
        id: The run's id in W&B.
        sent: Rows that were sent in this call.
        rows: Rows that it has made in all.
        waiting: Those that are not confirmed yet.
        skipped: What was read and not sent, by kind.
        folder: Where W&B's files are.
        over: Whether what is followed has ended for good.
        trouble: Why the last attempt to send failed; empty when it did not.
    """

    stream: str
    kind: str
    id: str
    sent: int
    rows: int
    waiting: int
    skipped: dict[str, int]
    folder: str
    over: bool = False
    trouble: str = ""


class Stream:
    """One stream.

    Args:
        paths: Its folder.
        kind: ``run`` or ``fleet``.
        source: What is followed, relative to the scratch tree.
        follower: Reads it.
        target: Where it is sent.
        sender: Shared by all streams of a call.
        step_key: The key that figures have on their axis; empty for W&B's own.
        fs: The seam.
    """

    def __init__(
        self,
        paths: StreamPaths,
        *,
        kind: str,
        source: str,
        follower: Follower,
        target: Target,
        sender: SenderProcess,
        step_key: str,
        fs: FileSystem | None = None,
    ) -> None:
        self.paths = paths
        self.kind = kind
        self.trouble = ""
        self._source = source
        self._follower = follower
        self._target = target
        self._sender = sender
        self._step_key = step_key
        self._fs = fs or FileSystem()
        self._outbox = Outbox(paths, fs=self._fs)
        self._held: Held | None = None
        self._open = False
        self._unsent_from = 0
        self._sent = 0
        self._told: tuple[dict[str, Any], dict[str, Any]] = ({}, {})

    # -- whose it is

    def take_over(self, *, interval_s: float, by_age: bool = False) -> Held:
        """Becomes the one that sends this stream, and reads how far it is.

        Args:
            interval_s: Of the lock.
            by_age: Consent to follow a silent sender of another node, of which nothing is known.

        Returns:
            The lock, to be entered and left by the caller.

        Raises:
            LockHeldError: Somebody else sends it.
            UsageError: It was begun in the other mode.
            DataError: Its records are damaged.
            SpoolError: It cannot be written.
        """
        try:
            for folder in self.paths.folders():
                require_private_folder(folder)
        except OSError as error:
            raise SpoolError(
                f"cannot make {self.paths.folder}: {error.strerror or error}; nothing was sent",
                hint="check space, quota and permissions of the scratch tree",
            ) from error
        what = f"streaming {self.kind} {self.paths.name!r} to {self._target.name}"
        lock = GenerationLock(self.paths.lock, purpose=what, interval_s=interval_s, fs=self._fs)
        try:
            self._held = lock.acquire(by_age=by_age)
        except LockHeldError as error:
            if error.may_be_gone:
                error.hint = "if that process is gone, call again with --take-over"
            raise
        try:
            self._outbox.open(self._source, offline=self._target.offline)
            self._require_mode()
            self._follower.restore(self._outbox.place)
        except BaseException:  # a signal too: another node could not tell that we are gone
            self._held.release()
            raise
        self._unsent_from = self._outbox.first_row
        return self._held

    def _require_mode(self) -> None:
        if self._outbox.identity.offline == self._target.offline:
            return
        before, option = ("offline", "with") if self._outbox.identity.offline else (
            "online", "without"
        )  # fmt: skip
        raise UsageError(
            f"{self.kind} {self.paths.name!r} was streamed to {self._target.name} {before} before, "
            "and a stream cannot change that; nothing was sent",
            hint=f"go on {option} --offline, or send it to another --project",
        )

    # -- one look

    def look(self) -> bool:
        """Reads a batch and sends what is there.

        Returns:
            Whether there is more at once.

        Raises:
            SenderGoneError: It is kept, and not sent.
            FleetError: It cannot be read, written, or sent for good.
        """
        assert self._held is not None
        self._held.check()
        more = False
        fresh: Batch | None = None
        if self._outbox.session_bytes < SESSION_BYTES:
            taken = self._follower.take()
            more = taken.more
            if taken.rows:
                fresh = self._outbox.append(taken.rows, taken.place)
        try:
            self._send(fresh)
            if self._outbox.session_bytes >= SESSION_BYTES:
                self.close()
                more = True
        except SenderGoneError as error:
            self.lose(error.message)
            raise
        self.trouble = ""
        return more

    def _send(self, fresh: Batch | None) -> None:
        if self._unsent_from >= self._outbox.next_row and not (self._open or self.waiting):
            return
        if not self._open:
            self._begin()
        elif fresh is not None:
            self._rows(fresh)
        self._standing()

    def _begin(self) -> None:
        """Opens the run, and sends all of the session that has not arrived."""
        limits = self._sender.limits
        config = self._follower.config()
        answer = self._sender.ask(
            {
                "do": "open",
                "stream": self._key,
                "id": self._outbox.identity.id,
                "name": self.paths.name,
                "kind": self.kind,
                "project": self._target.project,
                "entity": self._target.entity,
                "offline": self._target.offline,
                "folder": self.paths.files,
                "config": config,
                "step_key": self._step_key,
                "init_timeout_s": limits.open_s / 2,
                "finish_timeout_s": limits.close_s * 0.8,
            },
            limits.open_s,
        )
        self._open, self._told = True, (config, {})
        there = int(answer["next_row"])
        if there > self._outbox.next_row:
            raise DataError(
                f"W&B has {there} rows of {self._outbox.identity.id}, and only "
                f"{self._outbox.next_row} were ever made here; nothing was sent",
                hint="the stream's folder is an older copy: send to another --project",
                folder=self.paths.folder,
            )
        self._unsent_from = max(there, self._outbox.first_row)
        try:
            for batch in self._outbox.batches():
                self._rows(batch)
        except OSError as error:
            raise SpoolError(f"cannot read {self.paths.folder}: {error.strerror}") from error

    def _rows(self, batch: Batch) -> None:
        end = batch.first + len(batch.rows)
        while self._unsent_from < end:
            first = self._unsent_from
            rows = batch.rows[first - batch.first :][:_ROWS_OF_AN_ORDER]
            order = {"do": "rows", "stream": self._key, "first": first, "rows": rows}
            self._sender.ask(order, self._sender.limits.rows_s)
            self._unsent_from = first + len(rows)
            self._sent += len(rows)

    def _standing(self) -> None:
        config, standing = self._follower.config(), dict(self._follower.standing())
        if (config, standing) == self._told:
            return
        order = {"do": "standing", "stream": self._key, "values": standing, "config": config}
        self._sender.ask(order, self._sender.limits.rows_s)
        self._told = (config, standing)

    # -- the end of a session

    def close(self, limit_s: float | None = None) -> None:
        """Ends the session: everything has arrived when this returns.

        Raises:
            SenderGoneError: It is not known to have arrived, or W&B's files do not hold all of it;
                the next session asks.
        """
        if not self._open:
            return
        state = str(self._follower.standing().get("run/state", ""))
        limit_s = self._sender.limits.close_s if limit_s is None else limit_s
        order = {
            "do": "close",
            "stream": self._key,
            "next_row": self._outbox.next_row if self.waiting else 0,
            "exit_code": int(self._follower.is_over() and state in _FAILED_STATES),
            "within_s": min(_WRITTEN_WITHIN_S, limit_s / 2),
        }
        try:
            self._require_all(self._sender.ask(order, limit_s))
        except SenderGoneError as error:
            self.lose(error.message)
            raise
        self._open = False
        self._outbox.settle()
        self._unsent_from = self._outbox.first_row

    def _require_all(self, answer: Mapping[str, Any]) -> None:
        there, made = answer.get("next_row"), self._outbox.next_row
        # Files that were uploaded and removed before this session are nobody's loss.
        if there is None or there >= made or not self.waiting:
            return
        missing = min(made - int(there), self.waiting)
        raise SenderGoneError(
            f"W&B's files lack the last {missing} of {made} rows of {self.paths.name!r}; "
            "nothing was lost, they are kept here",
            hint=f"check space and quota of {self.paths.files}, and call again",
            folder=self.paths.files,
        )

    def lose(self, why: str) -> None:
        """The sender is dead: what the session holds will be asked for by number."""
        self._open = False
        self._unsent_from = self._outbox.first_row
        self.trouble = why

    @property
    def is_open(self) -> bool:
        """Whether the sender holds it."""
        return self._open

    @property
    def rows(self) -> int:
        """Rows that it has made in all."""
        return self._outbox.next_row

    @property
    def waiting(self) -> int:
        """Rows that are not confirmed."""
        return self._outbox.unsettled

    def account(self) -> Account:
        """What it has done."""
        return Account(
            stream=self.paths.name,
            kind=self.kind,
            id=self._outbox.identity.id,
            sent=self._sent,
            rows=self._outbox.next_row,
            waiting=self.waiting,
            skipped=self._follower.counts(),
            folder=self.paths.files,
            over=self.is_over(),
            trouble=self.trouble,
        )

    def is_over(self) -> bool:
        """Whether nothing more will come, and all of it was read."""
        with contextlib.suppress(DataError):
            return self._follower.is_over()
        return False

    @property
    def _key(self) -> str:
        return f"{self.kind}/{os.path.basename(self.paths.folder)}"
