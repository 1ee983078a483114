"""Processes that take part in a trial: started together, watched one by one, none left behind.

What they do is the family's own. A participant tells its progress by printing lines. Invariant:
when the block is left, whatever the reason, nothing that was started in it is alive.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Any

import msgspec

from fleetcraft.calibration.records import Failure
from fleetcraft.calibration.trial import leash
from fleetcraft.calibration.trial.findings import Finding, TrialFailedError
from fleetcraft.trust import make_folders

PARTICIPANTS_FOLDER = "participants"
_POLL_S = 0.02
_TELL_S = 1.0
# How long the others may take to die of the same cause before the death counts as partial.
_SETTLE_S = 1.0
_GRACE_S = 2.0
_TAIL_BYTES = 4096
Tell = Callable[..., None]


class State(StrEnum):
    """What is known of a participant."""

    ALIVE = "alive"
    DONE = "done"
    DEAD = "dead"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """One participant.

    Attributes:
        name: Its name.
        state: Alive, done (exit code 0) or dead.
        how: How it died, such as ``exit 1`` or ``SIGKILL``; empty otherwise.
        progress: The last line that it printed.
        complaint: The last line that it printed to its standard error.
    """

    name: str
    state: State
    how: str = ""
    progress: str = ""
    complaint: str = ""

    def __str__(self) -> str:
        return f"{self.state} ({self.how})" if self.how else self.state.value


class Participants:
    """A block of processes: ``with ctx.participants({"drafter0": argv}) as group: ...``.

    Leaving the block waits for all of them. As soon as one is dead, the others are stopped and
    the trial fails: ``partial`` while others live or are done, else with an error. A cycle that
    does work of its own meanwhile calls `check` now and then.

    Args:
        commands: Name to argument list. Each is a process group of its own, killed when this
            process dies; standard output and error go to files in ``folder``.
        folder: Where those files are; it is made.
        phase: The phase that runs them, for the finding.
        patience_s: Silence of one that is alive, that ends the trial as stalled.
        tell: ``tell(**fields)`` writes a status into the journal.
        env: Environment of all; this process's own when None.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        *,
        folder: str,
        phase: str,
        patience_s: float,
        tell: Tell,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._commands = {name: list(argv) for name, argv in commands.items()}
        self._folder = folder
        self._phase = phase
        self._patience_s = patience_s
        self._tell = tell
        self._env = env
        self._members: dict[str, _Member] = {}

    def __enter__(self) -> Participants:
        if self._commands:
            make_folders(self._folder)
        try:
            for place, (name, argv) in enumerate(self._commands.items()):
                stem = f"{self._folder}/{place}-{_safe(name)}"
                self._members[name] = _Member(name, argv, stem, self._env)
                self._tell(**self._members[name].fields())
        except BaseException:
            self._stop_all()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._stop_all()

    def statuses(self) -> dict[str, Status]:
        """Each participant as it is now; news is told to the journal."""
        return {name: self._look(member) for name, member in self._members.items()}

    def check(self) -> bool:
        """Looks once.

        Returns:
            Whether all are done.

        Raises:
            TrialFailedError: Some are dead while others are not, or one that lives is silent.
            RuntimeError: All are dead.
        """
        statuses = self.statuses()
        if any(status.state is State.DEAD for status in statuses.values()):
            self._judge(self._settled())
        if all(status.state is State.DONE for status in statuses.values()):
            return True
        self._require_progress()
        return False

    def wait(self) -> None:
        """Waits until all are done; raises as `check`."""
        while not self.check():
            time.sleep(_POLL_S)

    def _look(self, member: _Member) -> Status:
        if member.look():
            self._tell(**member.fields())
        return member.status

    def _settled(self) -> dict[str, Status]:
        """How they are once the others have had a moment to die too."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            statuses = self.statuses()
            alive = any(status.state is State.ALIVE for status in statuses.values())
            if not alive or time.monotonic() >= deadline:
                return statuses
            time.sleep(_POLL_S)

    def _judge(self, statuses: dict[str, Status]) -> None:
        dead = [status for status in statuses.values() if status.state is State.DEAD]
        told = "; ".join(_obituary(status) for status in dead)
        if len(dead) == len(statuses):
            raise RuntimeError(f"all {len(dead)} participants are dead: {told}")
        others = ", ".join(
            f"{status.name} {status}"
            for status in statuses.values()
            if status.state is not State.DEAD
        )
        raise TrialFailedError(
            Finding(
                failure=Failure.PARTIAL,
                phase=self._phase,
                owner=dead[0].name,
                message=f"{len(dead)} of {len(statuses)} participants died: {told}; "
                f"the others: {others}",
            )
        )

    def _require_progress(self) -> None:
        now = time.monotonic()
        for member in self._members.values():
            silent_s = now - member.heard
            if member.status.state is not State.ALIVE or silent_s <= self._patience_s:
                continue
            raise TrialFailedError(
                Finding(
                    failure=Failure.STALLED,
                    phase=self._phase,
                    owner=member.name,
                    message=f"participant {member.name} printed no line for {silent_s:.1f} s, "
                    f"expected one within {self._patience_s:g} s; its last was "
                    f"{member.status.progress or 'none'!r}",
                )
            )

    def _stop_all(self) -> None:
        """TERM, a bounded grace, KILL; also what a finished participant has left in its group."""
        members = list(self._members.values())
        for member in members:
            member.signal(signal.SIGTERM if member.status.state is State.ALIVE else signal.SIGKILL)
        deadline = time.monotonic() + _GRACE_S
        while any(not member.exited() for member in members) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        for member in members:
            member.signal(signal.SIGKILL)
            member.reap()


class _Member:
    """One process, the leader of its own group, which keeps its pid until `reap`."""

    def __init__(
        self, name: str, argv: Sequence[str], stem: str, env: Mapping[str, str] | None
    ) -> None:
        self._out, self._err = f"{stem}.out", f"{stem}.err"
        command = [sys.executable, "-S", leash.__file__, str(os.getpid()), *argv]
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=None if env is None else dict(env),
                process_group=0,
            )
        self.status = Status(name=name, state=State.ALIVE)
        self.name = name
        self.heard = time.monotonic()
        self._told = time.monotonic()
        self._size = 0

    def fields(self) -> dict[str, Any]:
        """Its status for the journal."""
        status = self.status
        return {
            "name": status.name, "state": status.state, "how": status.how,
            "progress": status.progress, "complaint": status.complaint, "pid": self._process.pid,
        }  # fmt: skip

    def look(self) -> bool:
        """Takes news; says whether to tell it: each change of state, progress now and then."""
        before = self.status
        if before.state is not State.ALIVE:
            return False
        state, how = self._state()
        progress = self._listen()
        complaint = _last_line(self._err) if state is State.DEAD else ""
        self.status = Status(
            name=self.name, state=state, how=how, progress=progress, complaint=complaint
        )
        now = time.monotonic()
        due = self.status.progress != before.progress and now - self._told >= _TELL_S
        if state is before.state and not due:
            return False
        self._told = now
        return True

    def _state(self) -> tuple[State, str]:
        found = self._peek()
        if found is None:
            return State.ALIVE, ""
        if found.si_code == os.CLD_EXITED:
            code = found.si_status
            return (State.DEAD, f"exit {code}") if code else (State.DONE, "")
        with contextlib.suppress(ValueError):
            return State.DEAD, signal.Signals(found.si_status).name
        return State.DEAD, f"signal {found.si_status}"

    def _listen(self) -> str:
        size = os.stat(self._out).st_size
        if size == self._size:
            return self.status.progress
        self._size = size
        self.heard = time.monotonic()
        return _last_line(self._out)

    def _peek(self) -> Any:
        # WNOWAIT leaves the zombie, so that its pid and its group's cannot be used again.
        if self._process.returncode is not None:
            return None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def exited(self) -> bool:
        """Whether its first process has ended."""
        return self._process.returncode is not None or self._peek() is not None

    def signal(self, number: signal.Signals) -> None:
        """Signals its whole group; nothing once it was reaped."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def reap(self) -> None:
        """Takes the dead; it was sent KILL before."""
        self._process.wait()


def _obituary(status: Status) -> str:
    told = f"{status.name} ({status.how}) after {status.progress or 'no line'!r}"
    return f"{told}, saying {status.complaint!r}" if status.complaint else told


def _last_line(path: str) -> str:
    """The last whole line of a file, at most 200 characters; empty when there is none."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").split("\n")[:-1]
    return next((line.strip()[-200:] for line in reversed(lines) if line.strip()), "")


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)[:60]
