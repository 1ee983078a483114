"""The parent of a telemetry logger, with real processes in the logger's place."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.worker.logger_keeper import Keeper
from tests.worker.harness import REPO, children, lives, wait_until

WAITS_FOR_THE_END = (
    "import os, select, sys; "
    "open(sys.argv[2], 'a').write(f'{os.getpid()}\\n'); "
    "select.select([int(sys.argv[1])], [], [])"
)
# One of them is that of the listing itself, and closed by the time it is looked at.
LISTS_DESCRIPTORS = (
    "import os, sys; found = [fd for fd in os.listdir('/proc/self/fd') "
    "if os.path.exists(f'/proc/self/fd/{fd}')]; open(sys.argv[1], 'w').write(' '.join(found))"
)


class Kept:
    """A keeper, and this process in its worker's place."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.watch_fd, self.hold_fd = os.pipe()
        self.words_fd, self.said_fd = os.pipe()
        self.process: subprocess.Popen[bytes] | None = None
        self._text = b""

    def start(self, *argv: str, pauses: str = "", also: tuple[int, ...] = ()) -> int:
        keeper = [sys.executable, "-m", "fleetcraft.worker.logger_keeper"]
        self.process = subprocess.Popen(
            [*keeper, str(self.watch_fd), str(self.said_fd), pauses, *argv],
            pass_fds=(self.watch_fd, self.said_fd, *also),
            cwd=REPO,
        )
        os.close(self.watch_fd)
        os.close(self.said_fd)
        return self.process.pid

    def start_waiting(self, pauses: str = "") -> int:
        """Keeps a logger that waits for its worker's end; gives the logger's pid."""
        pids = self.base / "pids"
        keeper = self.start(
            sys.executable, "-c", WAITS_FOR_THE_END, str(self.watch_fd), str(pids), pauses=pauses
        )
        pid = int(wait_until(lambda: pids.exists() and pids.read_text(), "the logger runs"))
        assert children(keeper) == [pid]
        return pid

    def words(self, count: int) -> list[str]:
        """The first ``count`` lines that it says."""
        return wait_until(lambda: self._lines(count), f"{count} lines from the keeper")[:count]

    def all_words(self) -> list[str]:
        """Everything, once it and its logger have ended."""
        while chunk := os.read(self.words_fd, 4096):
            self._text += chunk
        return self._text.decode().splitlines()

    def leave(self) -> None:
        """What a worker's end looks like."""
        os.close(self.hold_fd)
        self.hold_fd = -1

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(30)

    def close(self) -> None:
        if self.hold_fd >= 0:
            os.close(self.hold_fd)
        os.close(self.words_fd)
        if self.process is not None:
            self.process.wait(30)

    def _lines(self, count: int) -> list[str]:
        if select.select([self.words_fd], [], [], 0)[0]:
            self._text += os.read(self.words_fd, 4096)
        lines = self._text.decode().split("\n")[:-1]
        return lines if len(lines) >= count else []


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.close()


def test_a_logger_that_dies_is_started_again_a_few_times_and_each_time_that_is_said(
    kept: Kept,
) -> None:
    kept.start("/bin/sh", "-c", "echo x >> $0; echo no disk >&2; exit 5",
               str(kept.base / "starts"), pauses="0.05,0.1")  # fmt: skip

    assert kept.wait() == 0
    how = "the telemetry logger ended with exit code 5 (no disk)"
    assert kept.all_words() == [
        f"again {how}; it is started again in 0.05 s",
        f"again {how}; it is started again in 0.1 s",
        f"last {how}, time and again; nothing more is logged here",
    ]
    assert (kept.base / "starts").read_text() == "x\n" * 3


def test_a_logger_that_cannot_be_started_is_told_like_one_that_died(kept: Kept) -> None:
    kept.start(str(kept.base / "no such program"), pauses="")

    assert kept.wait() == 0
    [said] = kept.all_words()
    assert "exit code 127 (No such file or directory)" in said


def test_one_that_was_started_wrongly_is_not_started_again(kept: Kept) -> None:
    kept.start("/bin/sh", "-c", "echo bad interval >&2; exit 2", pauses="0,0")

    assert kept.wait() == 0
    how = "the telemetry logger ended with exit code 2 (bad interval)"
    assert kept.all_words() == [f"last {how}; nothing more is logged here"]


def test_both_end_with_the_worker_and_then_nothing_is_said(kept: Kept) -> None:
    logger = kept.start_waiting(pauses="600")

    kept.leave()

    assert kept.all_words() == []
    assert kept.wait() == 0
    assert not lives(logger)


def test_a_worker_that_leaves_during_a_pause_does_not_wait_for_it(kept: Kept) -> None:
    kept.start("/bin/sh", "-c", "exit 1", pauses="600")
    kept.words(1)

    kept.leave()

    assert kept.wait() == 0


def test_a_logger_that_was_told_to_end_is_not_started_again(kept: Kept) -> None:
    kept.start("/bin/sh", "-c", "exit 0", pauses="0,0")

    assert kept.wait() == 0
    assert kept.all_words() == [
        "last the telemetry logger was told to end; nothing more is logged here"
    ]


def test_one_that_stands_back_for_another_logger_is_told_of_once(kept: Kept) -> None:
    kept.start("/bin/sh", "-c", "echo n1 is logged by pid 7 >&2; exit 75", pauses="")

    assert kept.words(1) == ["again the telemetry logger stands back: n1 is logged by pid 7"]

    assert kept.process is not None
    assert kept.process.poll() is None  # it looks again later, since the other may end
    kept.leave()
    assert kept.wait() == 0
    assert len(kept.all_words()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_keeper_ends_the_logger(kept: Kept, number: int) -> None:
    logger = kept.start_waiting(pauses="0,0")

    assert kept.process is not None
    kept.process.send_signal(number)

    assert kept.wait() == 0
    wait_until(lambda: not lives(logger), "the logger has ended")
    assert kept.all_words() == []


def test_the_worker_hears_the_end_only_when_the_logger_has_ended_too(kept: Kept) -> None:
    logger = kept.start_waiting()

    assert kept.process is not None
    kept.process.kill()
    kept.process.wait()
    time.sleep(0.05)

    assert lives(logger)
    assert select.select([kept.words_fd], [], [], 0)[0] == []
    kept.leave()
    assert kept.all_words() == []
    wait_until(lambda: not lives(logger), "the logger has ended")


def test_what_the_worker_had_open_is_closed(kept: Kept) -> None:
    found = kept.base / "descriptors"
    with found.with_name("lock").open("wb") as lock:
        kept.start(
            sys.executable, "-c", LISTS_DESCRIPTORS, str(found), also=(lock.fileno(),),
        )  # fmt: skip
        assert kept.wait() == 0

    assert set(found.read_text().split()) == {
        *("0", "1", "2"), str(kept.watch_fd), str(kept.said_fd)
    }  # fmt: skip


def test_an_order_that_comes_while_a_logger_is_being_started_reaches_it(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    spawn = os.posix_spawn

    def start_and_be_told(*args: object, **options: object) -> int:
        started.append(spawn(*args, **options))  # type: ignore[arg-type]
        # To this thread, which holds orders back: a keeper has no other, a test's process may.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        return started[-1]

    monkeypatch.setattr(os, "posix_spawn", start_and_be_told)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        Keeper(kept.watch_fd, kept.said_fd, (), ["/bin/sleep", "600"]).serve()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        os.close(kept.watch_fd)
        os.close(kept.said_fd)

    assert [lives(pid) for pid in started] == [False]
    assert kept.all_words() == []
