"""One stream against a service in memory: every row arrives once, wherever the process is cut."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.errors import DataError, FleetError, SpoolError, UsageError
from fleetcraft.files import FileSystem
from fleetcraft.layout.streams import StreamPaths
from fleetcraft.locks import LockHeldError
from fleetcraft.streaming.runs import RunFollower
from fleetcraft.streaming.sending import Limits, SenderGoneError, SenderProcess
from fleetcraft.streaming.stream import Stream, Target
from fleetcraft.streaming.tailing import Tail
from fleetcraft.training.records import State
from fleetcraft.training.supervision.journal import Event
from tests.streaming.material import SECRET, Run


class Cut(BaseException):
    """The process ends here."""


class CutFS(FileSystem):
    """Ends the process at its n-th file operation that changes something, before or after it."""

    def __init__(self, at: int, *, after: bool) -> None:
        super().__init__()
        self.left = at
        self.after = after

    def _cut(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Cut
        result = getattr(super(), name)(*args, **kwargs)
        if self.left == 0:
            raise Cut
        return result

    def create(self, path: str, data: bytes, **kwargs: Any) -> None:
        self._cut("create", path, data, **kwargs)

    def link(self, source: str, destination: str) -> None:
        self._cut("link", source, destination)

    def replace(self, source: str, destination: str) -> None:
        self._cut("replace", source, destination)

    def unlink(self, path: str) -> None:
        self._cut("unlink", path)

    def append(self, fd: int, data: bytes) -> None:
        self.left -= 1
        if self.left == 0:
            os.write(fd, data if self.after else data[: len(data) // 2])
            raise Cut
        super().append(fd, data)


class Service:
    """What the service has: rows by number; it takes a number once."""

    def __init__(self) -> None:
        self.rows: dict[int, Mapping[str, Any]] = {}
        self.opened: list[Mapping[str, Any]] = []
        self.standing: dict[str, Any] = {}
        self.closed: list[int] = []


class Sender(SenderProcess):
    """Carries orders to the service in memory; at its n-th order the process or the way ends."""

    def __init__(
        self,
        service: Service,
        *,
        at: int = 0,
        done: float = 1.0,
        error: BaseException | None = None,
    ) -> None:
        super().__init__(limits=Limits(), offline=True, files="/nowhere")
        self._service = service
        self._left = at
        self._done = done
        self._error = error or Cut()

    def ask(self, order: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        assert limit_s > 0
        order = json.loads(json.dumps(order))
        self._left -= 1
        part = self._done if self._left == 0 else 1.0
        answer = self._do(order, part)
        if self._left == 0:
            raise self._error
        return answer

    def _do(self, order: Mapping[str, Any], part: float) -> dict[str, Any]:
        service = self._service
        if order["do"] == "open":
            service.opened.append(order)
            return {"next_row": max(service.rows, default=-1) + 1}
        if order["do"] == "rows":
            rows = order["rows"][: round(part * len(order["rows"]))]
            for number, row in enumerate(rows, order["first"]):
                assert number == max(service.rows, default=-1) + 1
                service.rows[number] = row
        if order["do"] == "standing":
            service.standing = order["values"]
        if order["do"] == "close":
            service.closed.append(order["exit_code"])
        return {}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path)
    made.launch()
    return made


def paths_of(run: Run) -> StreamPaths:
    return StreamPaths(str(Path(run.paths.folder).parents[1]), "wandb", "p", "runs", run.paths.name)


def stream_of(
    run: Run, sender: SenderProcess, fs: FileSystem | None = None, *, offline: bool = True
) -> Stream:
    return Stream(
        paths_of(run),
        kind="run",
        source="runs/distill",
        follower=RunFollower(run.paths),
        target=Target(project="p", offline=offline),
        sender=sender,
        step_key="train/step",
        fs=fs,
    )


def send(run: Run, sender: SenderProcess, fs: FileSystem | None = None) -> Stream:
    """One whole call."""
    stream = stream_of(run, sender, fs)
    held = stream.take_over(interval_s=0.05)
    try:
        while stream.look():
            pass
        stream.close()
    finally:
        held.release()
    return stream


def steps(service: Service) -> list[Any]:
    return [
        service.rows[n]["train/step"]
        for n in sorted(service.rows)
        if "train/loss" in service.rows[n]
    ]


def test_what_a_call_sent_the_next_one_does_not_send_again(run: Run) -> None:
    service = Service()
    run.steps(1, 5)
    assert send(run, Sender(service)).account().sent == 5
    assert send(run, Sender(service)).account().sent == 0
    run.steps(6, 3)
    account = send(run, Sender(service)).account()
    assert (account.sent, account.rows, account.waiting) == (3, 8, 0)
    assert steps(service) == list(range(1, 9))
    assert len({order["id"] for order in service.opened}) == 1
    assert len(service.opened) == 2  # nothing new, so W&B was not even opened


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_file_operation_costs_no_row_and_doubles_none(run: Run, after: bool) -> None:
    for at in range(1, 60):
        service = Service()
        shutil.rmtree(paths_of(run).room, ignore_errors=True)
        run.steps(10 * at + 1, 4)
        fs = CutFS(at, after=after)
        cut = False
        try:
            send(run, Sender(service), fs)
        except Cut:
            cut = True
        shutil.rmtree(paths_of(run).lock, ignore_errors=True)  # its owner, this process, lives
        run.steps(10 * at + 5, 2)
        send(run, Sender(service))
        expected = [n for k in range(1, at + 1) for n in range(10 * k + 1, 10 * k + 7)]
        assert steps(service) == expected, f"cut at operation {at}"
        if not cut:
            break
    assert 8 < at < 59


@pytest.mark.parametrize("done", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_kill_at_any_order_costs_no_row_and_doubles_none(run: Run, at: int, done: float) -> None:
    service = Service()
    run.status(State.HEALTHY)
    run.steps(1, 10)
    with pytest.raises(Cut):
        send(run, Sender(service, at=at, done=done))
    run.steps(11, 5)
    send(run, Sender(service))
    assert steps(service) == list(range(1, 16))


def test_a_service_that_is_gone_is_sent_the_same_rows_later_by_the_same_call(run: Run) -> None:
    service = Service()
    run.steps(1, 10)
    sender = Sender(service, at=2, done=0.5, error=SenderGoneError("gone"))
    stream = stream_of(run, sender)
    stream.take_over(interval_s=0.05)
    with pytest.raises(SenderGoneError):
        stream.look()
    account = stream.account()
    assert (account.waiting, account.trouble) == (10, "gone")
    run.steps(11, 2)
    stream.look()
    stream.close()
    assert steps(service) == list(range(1, 13))
    assert stream.account().trouble == ""


def test_files_that_were_uploaded_and_removed_are_not_made_again(run: Run) -> None:
    service = Service()
    run.steps(1, 5)
    send(run, Sender(service))
    service.rows = {}
    run.steps(6, 2)

    class Emptied(Sender):
        def _do(self, order: Mapping[str, Any], part: float) -> dict[str, Any]:
            if order["do"] == "rows":
                assert order["first"] == 5
                return {}
            return super()._do(order, part)

    assert send(run, Emptied(service)).account().sent == 2


def test_a_service_that_has_more_rows_than_were_made_is_refused(run: Run) -> None:
    service = Service()
    service.rows = {99: {}}
    run.steps(1, 5)
    with pytest.raises(DataError, match="only 5 were ever made"):
        send(run, Sender(service))


def test_a_disk_that_is_full_sends_nothing_and_says_where(run: Run) -> None:
    class Full(FileSystem):
        def append(self, fd: int, data: bytes) -> None:
            os.write(fd, data[:20])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    service = Service()
    run.steps(1, 5)
    with pytest.raises(SpoolError, match="No space left"):
        send(run, Sender(service), Full())
    assert service.rows == {}
    send(run, Sender(service))
    assert steps(service) == [1, 2, 3, 4, 5]


def test_two_calls_never_send_one_stream_at_once(run: Run) -> None:
    service = Service()
    held = stream_of(run, Sender(service)).take_over(interval_s=0.05)
    with pytest.raises(LockHeldError, match="streaming run 'distill' to p belongs to"):
        send(run, Sender(service))
    held.release()
    send(run, Sender(service))


def test_a_stream_stays_in_the_mode_in_which_it_was_begun(run: Run) -> None:
    send(run, Sender(Service()))
    with pytest.raises(UsageError, match="offline before") as refused:
        stream_of(run, Sender(Service()), offline=False).take_over(interval_s=0.05)
    assert "--offline" in refused.value.hint
    send(run, Sender(Service()))  # and the lock is free again


@pytest.mark.parametrize("name", ["identity", "cursor"])
def test_a_damaged_record_of_a_stream_is_named_and_sends_nothing(run: Run, name: str) -> None:
    service = Service()
    run.steps(1, 2)
    send(run, Sender(service))
    path = Path(getattr(paths_of(run), name))
    path.write_bytes(path.read_bytes()[:-9])
    before = dict(service.rows)
    with pytest.raises(DataError, match=path.name):
        send(run, Sender(service))
    assert service.rows == before


def test_config_and_standing_hold_no_command_environment_or_path(run: Run) -> None:
    service = Service()
    run.status(State.HEALTHY)
    run.steps(1, 1)
    run.tell(Event.STATE, state="HEALTHY", why=f"{SECRET} in /home/me")
    send(run, Sender(service))
    (order,) = service.opened
    assert order["config"]["command_sha256"] == "c" * 64
    assert order["config"]["knobs"] == {"micro_batch": 8}
    assert service.standing == {"run/state": "HEALTHY", "run/step": 7, "run/restarts": 1}
    everything = json.dumps([order, service.standing, list(service.rows.values())])
    assert SECRET not in everything
    assert "/home" not in everything


def test_a_run_that_gave_up_is_told_as_failed(run: Run) -> None:
    service = Service()
    run.steps(1, 1)
    run.status(State.EXHAUSTED)
    stream = send(run, Sender(service))
    assert stream.is_over()
    assert service.closed == [1]


def test_launches_follow_one_another_and_late_lines_of_the_one_before_are_not_lost(
    run: Run,
) -> None:
    service = Service()
    run.steps(1, 3)
    run.launch(2)
    run.steps(3, 3, attempt=2)
    send(run, Sender(service))
    run.steps(4, 1)  # a rank of the first launch still speaks
    run.steps(6, 1, attempt=2)
    send(run, Sender(service))
    told = sorted((row["train/epoch"], row["train/step"]) for row in service.rows.values())
    assert told == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (2, 5), (2, 6)]


def test_a_long_history_is_sent_in_batches_of_bounded_size(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetcraft.streaming.stream.SESSION_BYTES", 200_000)
    service = Service()
    run.steps(1, 4000)
    send(run, Sender(service))
    assert steps(service) == list(range(1, 4001))
    assert len(service.opened) > 2  # each session was confirmed before the next


def test_what_cannot_be_read_is_counted_and_stops_nothing(run: Run) -> None:
    service = Service()
    run.steps(1, 2)
    run.report(1, {"nothing": "known"})
    os.mkdir(run.paths.attempt(1).rank_progress(2))
    account = send(run, Sender(service)).account()
    assert account.sent == 2
    assert account.skipped == {"file not read": 1, "says nothing known": 1}


def test_a_place_that_is_none_is_refused(run: Run) -> None:
    with pytest.raises(FleetError, match="damaged"):
        RunFollower(run.paths).restore({"launches": 3})


def test_an_older_launch_that_could_not_be_read_is_sent_later(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (2, 3):
        run.launch(number)
    run.steps(1, 3)
    run.steps(4, 2, attempt=2)
    run.steps(6, 2, attempt=3)
    run.status(State.DONE)
    away, lines = run.paths.attempt(1).rank_progress(0), Tail.lines

    def stale(tail: Tail, *limit: int) -> list[bytes]:
        if tail._path == away:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), away)
        return lines(tail, *limit)

    follower = RunFollower(run.paths)
    with monkeypatch.context() as patched:
        patched.setattr(Tail, "lines", stale)
        first = follower.take()
    over_too_soon = follower.is_over()
    again = RunFollower(run.paths)
    again.restore(first.place)

    assert (len(first.rows), over_too_soon) == (4, False)
    assert (len(again.take().rows), again.is_over()) == (3, True)


def test_a_sender_of_another_node_that_is_silent_is_followed_by_consent(run: Run) -> None:
    service = Service()
    stream_of(run, Sender(service)).take_over(interval_s=0.02)
    holder = Path(stream_of(run, Sender(service)).paths.lock, "gen.1")
    elsewhere = json.loads(holder.read_bytes()) | {"host": "node17", "boot_id": "another"}
    holder.write_text(json.dumps(elsewhere) + "\n")

    with pytest.raises(LockHeldError) as refused:
        stream_of(run, Sender(service)).take_over(interval_s=0.02)
    held = stream_of(run, Sender(service)).take_over(interval_s=0.02, by_age=True)

    assert "--take-over" in refused.value.hint
    assert held.generation == 2


def test_a_signal_while_a_stream_is_taken_over_lets_its_lock_go(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_of(run, Sender(Service()))

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("fleetcraft.streaming.outbox.Outbox.open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.take_over(interval_s=5.0)

    assert Path(stream.paths.lock, "released.1").exists()
