"""Who lives: real processes here, and processes elsewhere of which nothing or little is known."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleetcraft.identity import HostId, ProcessId, process_id, this_host
from fleetcraft.training.records import NodeEnd, ProcessRecord, RankProgress
from fleetcraft.training.watching.census import RankSight, take_census

HERE = this_host()
PLACE = HostId("node1", "boot-a", "pid:[1]")
PROCESS = ProcessRecord(place=PLACE, process=ProcessId(70, 4711), nonce="launch")


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def progress_of(pid: int) -> RankProgress:
    process = process_id(pid)
    assert process is not None
    record = ProcessRecord(place=HERE, process=process, nonce="launch")
    return RankProgress(rank=3, name="drafter-1", process=record, step=690, last_line="{}")


def census(
    rank: RankProgress,
    *,
    here: HostId = PLACE,
    ended: tuple[NodeEnd, ...] = (),
    proc: str = "/proc",
    closely: bool = False,
) -> RankSight:
    closer = {rank.rank} if closely else ()
    (state,) = take_census({rank.rank: rank}, here=here, ended=ended, proc=proc, closer=closer)
    return state


class FakeProc:
    """A procfs of one process, as text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(
        self, pid: int = 70, *, ticks: int = 4711, state: str = "S", name: str = "python",
        cpu_ticks: int = 250, children: str = "", io: str | None = None,
    ) -> None:  # fmt: skip
        fields = [state, "1", *["0"] * 9, str(cpu_ticks), "50", *["0"] * 6, str(ticks), "0", "3"]
        stat = f"{pid} ({name}) {' '.join(fields)} {'0 ' * 28}\n"
        task = self.folder / str(pid) / "task" / str(pid)
        task.mkdir(parents=True, exist_ok=True)
        (self.folder / str(pid) / "stat").write_text(stat)
        (task / "stat").write_text(stat)
        (task / "children").write_text(children)
        if io is not None:
            (self.folder / str(pid) / "io").write_text(io)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


RANK = RankProgress(rank=0, process=PROCESS)


def test_a_living_rank_is_alive_with_what_it_uses(child: subprocess.Popen[bytes]) -> None:
    rank = progress_of(child.pid)
    until(lambda: (census(rank, here=HERE).rss_bytes or 0) > 1 << 20)
    state = census(rank, here=HERE)
    assert state.alive is True
    assert (state.rank, state.name, state.step, state.last_line) == (3, "drafter-1", 690, "{}")
    assert state.cpu_s is not None
    assert (state.io_bytes, state.closely) == (None, False)


def test_a_killed_rank_is_gone_also_while_nobody_has_waited_for_it(
    child: subprocess.Popen[bytes],
) -> None:
    rank = progress_of(child.pid)
    child.kill()
    until(lambda: census(rank, here=HERE).alive is False)  # a zombie
    child.wait()
    assert census(rank, here=HERE).alive is False


def test_a_pid_that_was_used_again_is_not_the_rank(proc: FakeProc) -> None:
    proc.put(ticks=4711)
    assert census(RANK, proc=str(proc.folder)).alive is True
    proc.put(ticks=4712)
    assert census(RANK, proc=str(proc.folder)).alive is False


def test_a_command_name_with_parentheses_and_spaces_moves_no_field(proc: FakeProc) -> None:
    proc.put(name="a) S 1 (b", cpu_ticks=250)
    state = census(RANK, proc=str(proc.folder))
    assert state.alive is True
    assert state.cpu_s == pytest.approx(300 / os.sysconf("SC_CLK_TCK"))
    assert state.rss_bytes == 3 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("here", "alive"),
    [
        (HostId("node1", "boot-b", "pid:[1]"), False),
        (HostId("node1", "boot-a", "pid:[2]"), None),
        (HostId("node1", "", "pid:[1]"), None),
        (HostId("node1", "boot-a", ""), None),
        (HostId("node2", "boot-a", "pid:[1]"), None),
    ],
)
def test_another_boot_is_gone_and_another_host_or_namespace_is_not_known(
    here: HostId, alive: bool | None, proc: FakeProc
) -> None:
    proc.put()
    assert census(RANK, here=here, proc=str(proc.folder)).alive is alive


def test_a_rank_that_never_said_who_it_is_is_not_known(proc: FakeProc) -> None:
    assert census(RankProgress(rank=0), proc=str(proc.folder)).alive is None


def test_what_procfs_does_not_tell_is_not_known(proc: FakeProc) -> None:
    (proc.folder / "70" / "stat").mkdir(parents=True)  # reading it is an error
    assert census(RANK, proc=str(proc.folder)).alive is None
    (proc.folder / "70" / "stat").rmdir()
    (proc.folder / "70" / "stat").write_text("70 (python) S 1")
    assert census(RANK, proc=str(proc.folder)).alive is None


@pytest.mark.parametrize(
    ("end", "alive"),
    [
        (NodeEnd(node="node1", nonce="launch"), False),
        (NodeEnd(node="node1", nonce="launch", clean=False), None),
        (NodeEnd(node="node1", nonce="another"), None),
        (NodeEnd(node="node2", nonce="launch"), None),
    ],
)
def test_a_keeper_that_has_nothing_left_of_this_launch_knows_of_its_ranks(
    end: NodeEnd, alive: bool | None
) -> None:
    elsewhere = HostId("login", "boot-z", "pid:[1]")
    assert census(RANK, here=elsewhere, ended=(end,)).alive is alive


def test_idle_time_is_that_of_the_readers_clock() -> None:
    ranks = {0: RankProgress(rank=0, changed_s=100.0), 1: RankProgress(rank=1)}
    first, second = take_census(ranks, here=HERE, now_s=130.0)
    assert (first.idle_s, second.idle_s) == (30.0, None)
    assert take_census(ranks, here=HERE, now_s=99.0)[0].idle_s == 0.0


def test_a_close_look_counts_what_descendants_do(proc: FakeProc) -> None:
    proc.put(70, cpu_ticks=0, children="71 ", io="rchar: 10\nwchar: 5\nsyscr: 9\n")
    proc.put(71, cpu_ticks=100, children="72", io="rchar: 100\nwchar: 0\n")
    proc.put(72, cpu_ticks=100, state="D")
    plain = census(RANK, proc=str(proc.folder))
    close = census(RANK, proc=str(proc.folder), closely=True)
    ticks = os.sysconf("SC_CLK_TCK")
    assert (plain.cpu_s, plain.state, plain.io_bytes) == (50 / ticks, "S", None)
    assert (close.cpu_s, close.state, close.io_bytes) == (350 / ticks, "D", 115)
    assert close.closely


def test_a_close_look_at_a_real_process_sees_its_childs_bytes() -> None:
    script = (
        "import subprocess, sys\n"
        'inner = \'x = open("/dev/zero", "rb"); x.read(1 << 22); print(1, flush=True); input()\'\n'
        "with subprocess.Popen([sys.executable, '-c', inner], stdin=subprocess.PIPE) as child:\n"
        "    input(); child.kill()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        state = census(progress_of(process.pid), here=HERE, closely=True)
        process.communicate(b"\n")
    if state.io_bytes is None:
        pytest.skip("procfs tells no bytes here")
    assert state.io_bytes >= 1 << 22
