"""Polls of one kind keep their distance, are shared, and never pass for what they are not."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fleetcraft import trust
from fleetcraft.errors import (
    NotAskedError,
    SchedulerError,
    SlurmFailedError,
    SlurmMissingError,
    SlurmTimeoutError,
)
from fleetcraft.slurm import commands, polls
from fleetcraft.slurm.polls import INTERVAL_S, JITTER_FRACTION, Polls
from tests.slurm.fakes import FakePrograms

POLLER = Path(__file__).with_name("poller.py")
REPO = Path(__file__).resolve().parents[2]
ASK = ["squeue", "--me"]
LONGEST_S = INTERVAL_S * (1 + JITTER_FRACTION)


class Clock:
    """Time that passes only while somebody sleeps, and a little with every look."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    made = FakePrograms(tmp_path, monkeypatch)
    made.write("squeue", 'echo "answer $$"')
    made.write("sinfo", 'echo "answer $$"')
    return made


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "polls")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def own(folder: str, clock: Clock) -> Polls:
    return Polls(folder, clock=clock, sleep=clock.sleep)


def test_an_answer_is_shared_for_ten_seconds_with_its_age(
    own: Polls, folder: str, clock: Clock, fakes: FakePrograms
) -> None:
    first = own.ask("squeue", ASK)
    clock.now_s += 4
    second = Polls(folder, clock=clock).ask("squeue", ASK)

    assert first.fresh
    assert first.age_s < 1
    assert second.text == first.text
    assert not second.fresh
    assert 4 <= second.age_s < 5
    assert len(fakes.calls("squeue")) == 1


def test_an_older_answer_will_do_where_the_caller_says_so(
    own: Polls, clock: Clock, fakes: FakePrograms
) -> None:
    own.ask("squeue", ASK)
    clock.now_s += 100

    assert 100 <= own.ask("squeue", ASK, max_age_s=120).age_s < 101
    assert own.ask("squeue", ASK).fresh
    assert len(fakes.calls("squeue")) == 2


def test_polls_of_one_kind_are_ten_seconds_apart_whatever_they_ask(
    own: Polls, clock: Clock, fakes: FakePrograms
) -> None:
    own.ask("squeue", ASK)
    before_s = clock.now_s
    own.ask("squeue", ["squeue", "--steps"])

    assert INTERVAL_S == 10
    assert INTERVAL_S <= clock.now_s - before_s <= LONGEST_S + 0.2
    assert [call.words for call in fakes.calls("squeue")] == ["--me", "--steps"]


def test_polls_of_different_kinds_do_not_wait_for_each_other(
    own: Polls, clock: Clock, fakes: FakePrograms
) -> None:
    own.ask("squeue", ASK)
    own.ask("sinfo", ["sinfo"])

    assert clock.slept == []


def test_the_distance_varies_by_chance(own: Polls, clock: Clock, fakes: FakePrograms) -> None:
    waited = []
    for _ in range(6):
        own.ask("squeue", ASK)
        before_s = clock.now_s
        own.ask("squeue", ASK, fresh=True)
        waited.append(clock.now_s - before_s)
        clock.now_s += 100

    assert min(waited) >= INTERVAL_S
    assert len({round(seconds, 3) for seconds in waited}) > 1


def test_a_fresh_answer_is_polled_after_the_call_and_waits_for_its_turn(
    own: Polls, clock: Clock, fakes: FakePrograms
) -> None:
    cached = own.ask("squeue", ASK)
    answer = own.ask("squeue", ASK, fresh=True)

    assert answer.fresh
    assert answer.text != cached.text
    assert sum(clock.slept) >= INTERVAL_S


def test_whoever_cannot_wait_that_long_is_told_so_at_once(
    own: Polls, clock: Clock, fakes: FakePrograms
) -> None:
    own.ask("squeue", ASK)

    with pytest.raises(NotAskedError, match="squeue was not asked: within 20 s its turn"):
        own.ask("squeue", ASK, fresh=True, patience_s=20)
    assert clock.slept == []
    assert own.ask("squeue", ASK, patience_s=20).text
    assert len(fakes.calls("squeue")) == 1


def test_a_failure_counts_as_a_poll_and_is_remembered_as_one(
    own: Polls, folder: str, clock: Clock, fakes: FakePrograms
) -> None:
    own.ask("squeue", ASK)
    fakes.write("squeue", "echo 'squeue: error: no controller' >&2; exit 1")
    with pytest.raises(SlurmFailedError):
        own.ask("squeue", ASK, fresh=True)
    fakes.write("squeue", "echo well")
    clock.now_s += 3

    # The answer that was known before the failure is never given instead.
    with pytest.raises(SchedulerError, match=r"no controller.*\(3 s ago; .*not asked again"):
        Polls(folder, clock=clock).ask("squeue", ASK, max_age_s=3600)
    assert len(fakes.calls("squeue")) == 2

    assert own.ask("squeue", ASK, fresh=True).text == "well\n"
    assert sum(clock.slept[-3:]) >= INTERVAL_S - 3


def test_the_distance_is_kept_from_the_end_of_a_poll_that_hung(
    own: Polls, clock: Clock, fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(argv: object, *, timeout_s: float) -> str:
        clock.now_s += timeout_s
        raise SlurmTimeoutError("squeue", timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(commands, "run", hang)
        with pytest.raises(SlurmTimeoutError):
            own.ask("squeue", ASK)
    ended_s = clock.now_s
    own.ask("squeue", ASK, fresh=True)

    assert clock.now_s - ended_s >= INTERVAL_S


def test_a_failure_is_forgotten_when_a_poll_may_be_made_again(
    own: Polls, clock: Clock, fakes: FakePrograms
) -> None:
    fakes.write("squeue", "exit 1")
    with pytest.raises(SlurmFailedError):
        own.ask("squeue", ASK)
    fakes.write("squeue", "echo well")
    clock.now_s += LONGEST_S

    assert own.ask("squeue", ASK, max_age_s=3600).text == "well\n"


def test_a_program_that_is_not_there_takes_no_turn(own: Polls, fakes: FakePrograms) -> None:
    with pytest.raises(SlurmMissingError):
        own.ask("sacct", ["no-such-sacct"])
    fakes.write("no-such-sacct", "echo well")

    assert own.ask("sacct", ["no-such-sacct"]).text == "well\n"


def test_an_answer_is_never_given_for_another_cluster_or_question(
    own: Polls, clock: Clock, fakes: FakePrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [own.ask("squeue", ASK).text]
    for name, value in [("SLURM_CONF", "/other/slurm.conf"), ("SLURM_CLUSTERS", "gpu")]:
        monkeypatch.setenv(name, value)
        texts.append(own.ask("squeue", ASK).text)
    texts.append(own.ask("squeue", [*ASK, "--all"]).text)
    (tmp_path / "other").mkdir()
    other = FakePrograms(tmp_path / "other", monkeypatch)
    other.write("squeue", 'echo "other $$"')
    texts.append(own.ask("squeue", ASK).text)

    assert len(set(texts)) == 5
    # One user and host: also those of different clusters keep their distance.
    assert sum(clock.slept) >= 4 * INTERVAL_S


@pytest.mark.parametrize("junk", [b"", b"{", b"\x00" * 200, b'{"boot_id": 5}', b"[]"])
def test_damaged_files_stop_nobody(
    junk: bytes, own: Polls, folder: str, fakes: FakePrograms
) -> None:
    own.ask("squeue", ASK)
    for file in Path(folder).iterdir():
        file.write_bytes(junk)

    assert own.ask("squeue", ASK).fresh


def test_what_was_noted_before_a_reboot_means_nothing_after_it(
    own: Polls, folder: str, clock: Clock, fakes: FakePrograms
) -> None:
    own.ask("squeue", ASK)
    for file in Path(folder).iterdir():
        text = file.read_bytes()
        assert own._boot_id.encode() in text
        file.write_bytes(text.replace(own._boot_id.encode(), b"an earlier boot"))

    assert own.ask("squeue", ASK).fresh
    assert clock.slept == []


def test_times_that_cannot_be_true_hold_nobody_up(
    own: Polls, folder: str, clock: Clock, fakes: FakePrograms
) -> None:
    own.ask("squeue", ASK)
    clock.now_s -= 900

    assert own.ask("squeue", ASK).fresh
    assert clock.slept == []


def test_a_poll_that_is_broken_off_is_neither_an_answer_nor_a_failure(
    own: Polls, clock: Clock, fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.ask("squeue", ASK)
    with monkeypatch.context() as patch:
        patch.setattr(commands, "run", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            own.ask("squeue", ASK, fresh=True)

    assert own.ask("squeue", ASK, max_age_s=3600).fresh
    assert sum(clock.slept) >= 2 * INTERVAL_S


def test_a_folder_that_others_can_write_is_refused(fakes: FakePrograms, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)

    with pytest.raises(NotAskedError, match="not a private folder.*Slurm was not asked"):
        Polls(str(shared)).ask("squeue", ASK)
    assert fakes.calls("squeue") == []


def test_without_room_to_note_a_poll_none_is_made(fakes: FakePrograms, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(NotAskedError, match="cannot be kept apart"):
        Polls(str(tmp_path / "file")).ask("squeue", ASK)
    with pytest.raises(NotAskedError, match="cannot be kept apart"):
        Polls(str(tmp_path / "no" / "such")).ask("squeue", ASK)
    assert fakes.calls("squeue") == []


def test_a_folder_that_was_cleared_away_is_made_again(
    own: Polls, folder: str, fakes: FakePrograms
) -> None:
    own.ask("squeue", ASK)
    shutil.rmtree(folder)

    assert own.ask("squeue", ASK).fresh


def test_the_usual_folder_is_in_this_machines_memory_unless_a_variable_names_one(
    fakes: FakePrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_POLLS_DIR", str(tmp_path / "named"))
    text = Polls().ask("squeue", ASK).text

    assert Polls(str(tmp_path / "named")).ask("squeue", ASK).text == text
    monkeypatch.delenv("FLEET_POLLS_DIR")
    assert Polls()._place() == f"{trust.node_local_folder()}/polls"


def test_everything_kept_is_private_and_forgotten_in_the_end(
    own: Polls, folder: str, fakes: FakePrograms
) -> None:
    own.ask("squeue", ASK)
    for old in Path(folder).iterdir():
        os.utime(old, (0, 0))
    own.ask("sinfo", ["sinfo"])

    kept = sorted(Path(folder).iterdir())
    assert [file.suffix for file in kept] == [".answer", ".turn"]
    assert {file.stat().st_mode & 0o777 for file in kept} == {0o600}
    assert Path(folder).stat().st_mode & 0o777 == 0o700


def test_a_turn_that_was_forgotten_just_before_it_was_locked_is_nobodys(
    own: Polls, folder: str, fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.ask("squeue", ASK)
    real, turn = polls._lock, Path(folder, "squeue.turn")

    def lock_late(fd: int) -> bool:
        turn.unlink(missing_ok=True)
        return real(fd)

    monkeypatch.setattr(polls, "_lock", lock_late)
    with own._turn("squeue") as got:
        assert got is None
    monkeypatch.undo()
    with own._turn("squeue") as got:
        assert got is not None


def test_the_clock_is_one_for_all_processes_and_never_steps() -> None:
    assert abs(polls._since_boot_s() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60


# -- real processes, at a smaller distance


def test_twelve_who_ask_the_same_at_once_share_one_poll(fakes: FakePrograms, folder: str) -> None:
    # It ends only when all have asked, so that none of them can come too late for it.
    fakes.write("squeue", f"while [ ! -e {folder}.go ]; do sleep 0.05; done; echo answer")
    askers = [_asker(folder, 2, "squeue", *ASK) for _ in range(12)]
    _wait_for(lambda: len(list(Path(folder).parent.glob("polls.begun-*"))) == len(askers))
    _wait_for(lambda: len(fakes.calls("squeue")) == 1)
    Path(f"{folder}.go").touch()
    said = [_said(asker) for asker in askers]

    polls_at = [call.at_s for call in fakes.calls("squeue")]
    assert {each["text"] for each in said} == {"answer\n"}
    assert all(each["fresh"] for each in said)
    # Who had not begun when it started needs one more, at its distance.
    assert len(polls_at) <= 2
    assert _distances(polls_at) == [] or min(_distances(polls_at)) >= 2 - 0.011


def test_a_poll_that_started_before_the_call_is_not_fresh_however_late_it_ends(
    fakes: FakePrograms, folder: str
) -> None:
    fakes.write("squeue", f"while [ ! -e {folder}.go ]; do sleep 0.05; done; echo $$")
    first = _asker(folder, 0.5, "squeue", *ASK)
    _wait_for(lambda: fakes.calls("squeue"))
    late = threading.Timer(0.5, Path(f"{folder}.go").touch)
    late.start()
    answer = Polls(folder, interval_s=0.5).ask("squeue", ASK, fresh=True)
    late.join()

    pids = [call.pid for call in fakes.calls("squeue")]
    assert int(_said(first)["text"]) == pids[0]
    assert (answer.fresh, int(answer.text)) == (True, pids[1])


def test_twelve_who_ask_differently_at_once_poll_one_by_one(
    fakes: FakePrograms, folder: str
) -> None:
    interval_s = 0.4
    askers = [_asker(folder, interval_s, "squeue", "squeue", str(n)) for n in range(12)]
    said = [_said(asker) for asker in askers]

    calls = fakes.calls("squeue")
    assert sorted(int(call.words) for call in calls) == list(range(12))
    assert len({each["text"] for each in said}) == 12
    # /proc/uptime has two digits behind the point.
    assert min(_distances([call.at_s for call in calls])) >= interval_s - 0.011


def test_whoever_is_killed_while_polling_blocks_nobody_and_counts(
    fakes: FakePrograms, folder: str
) -> None:
    interval_s = 1.5
    fakes.write("squeue", "exec sleep 600")
    began_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    victim = _asker(folder, interval_s, "squeue", *ASK)
    _wait_for(lambda: fakes.calls("squeue"))
    [hanging] = fakes.calls("squeue")
    fakes.write("squeue", "echo answer")
    victim.kill()
    victim.communicate()
    not_before_s = json.loads(Path(folder, "squeue.turn").read_bytes())["not_before_s"]
    said = _said(_asker(folder, interval_s, "squeue", *ASK))
    os.kill(hanging.pid, signal.SIGKILL)

    _, second = fakes.calls("squeue")
    assert said["text"] == "answer\n"
    assert not_before_s >= began_s + interval_s
    assert second.at_s >= not_before_s - 0.011


def test_askers_of_one_poll_that_fails_all_get_its_failure(
    fakes: FakePrograms, folder: str
) -> None:
    fakes.write("squeue", "sleep 2; echo 'squeue: error: no controller' >&2; exit 1")
    askers = [_asker(folder, 600, "squeue", *ASK)]
    _wait_for(lambda: fakes.calls("squeue"))
    polls_here = Polls(folder, interval_s=600)

    # Not fresh: the poll under way will do, and its failure is this one's too.
    with pytest.raises(SchedulerError, match="no controller"):
        polls_here.ask("squeue", ASK)

    assert "no controller" in _said(askers[0])["failure"]
    assert len(fakes.calls("squeue")) == 1


def _asker(folder: str, interval_s: float, kind: str, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, POLLER, folder, str(interval_s), kind, *argv],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )


def _said(asker: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = asker.communicate(timeout=90)
    said: dict[str, Any] = json.loads(out)
    return said


def _distances(times_s: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times_s)]


def _wait_for(is_so: Any) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _interrupted(*_: object, **__: object) -> str:
    raise KeyboardInterrupt


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK], ids=errno.errorcode.get)
def test_where_files_cannot_be_locked_no_poll_is_made(
    code: int, own: Polls, fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)

    with pytest.raises(NotAskedError, match="cannot be kept apart"):
        own.ask("squeue", ASK)
    assert fakes.calls("squeue") == []
