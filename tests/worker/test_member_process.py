"""Forked members: they have names and pipes of their own, and do not outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft.worker import local_fleet, member_process
from fleetcraft.worker.member_process import MEMBER_NAME
from tests.worker.harness import children, lives, wait_until

REPO = Path(__file__).resolve().parents[2]

# Two members that live until their input ends; says their pids, then waits for its own input.
PARENT = """
import os, sys
from fleetcraft.worker import member_process
from fleetcraft.worker.settings import WorkerSettings

def live(settings, parent):
    os.write(1, b"%d" % parent)
    while os.read(0, 100):
        pass
    return 7

settings = WorkerSettings(spool_dir="/nowhere", root="/nowhere")
assert member_process.may_fork()
members = [member_process.fork(settings, live) for _ in range(2)]
assert [os.read(one.stdout.fileno(), 100) for one in members] == [b"%d" % os.getpid()] * 2
print(*(one.pid for one in members), flush=True)
for line in sys.stdin:
    if line == "first\\n":
        members[0].stdin.close()
        print(members[0].wait(), members[0].poll(), members[1].poll(), flush=True)
    else:
        members[1].send_signal(15)
        print(members[1].wait(), flush=True)
"""


def start() -> tuple[subprocess.Popen[str], list[int]]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=REPO, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout is not None
    return parent, [int(word) for word in parent.stdout.readline().split()]


def ask(parent: subprocess.Popen[str], word: str) -> str:
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(f"{word}\n")
    parent.stdin.flush()
    return parent.stdout.readline().strip()


def test_a_member_ends_when_its_own_pipe_does_and_its_code_is_kept() -> None:
    parent, _ = start()
    with parent:
        assert ask(parent, "first") == "7 7 None"
        assert ask(parent, "second") == str(-signal.SIGTERM)


def test_members_have_a_name_and_a_session_of_their_own() -> None:
    parent, members = start()
    with parent:
        assert sorted(children(parent.pid)) == sorted(members)
        for pid in members:
            assert Path(f"/proc/{pid}/comm").read_bytes().strip() == MEMBER_NAME
            assert os.getsid(pid) == pid
        ask(parent, "first")
        ask(parent, "second")


def test_a_killed_parent_leaves_no_pipe_open_in_a_fellow() -> None:
    parent, members = start()
    with parent:
        parent.kill()
        wait_until(lambda: not any(map(lives, members)), "the members to end")


class Gone:
    """Pipes of a child that died before it heard a word."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        self.stdin = os.fdopen(writer, "wb")
        self.stdout = None
        os.close(reader)


def test_the_pipe_of_a_dead_member_is_closed_in_peace() -> None:
    gone = Gone()
    gone.stdin.write(b"leave\n")
    local_fleet._close_pipes(local_fleet._Member(index=0, process=gone))  # type: ignore[arg-type]
    assert gone.stdin.closed


def test_a_signal_that_comes_while_a_member_is_waited_for_asks_in_peace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    ends = [os.fdopen(fd, mode) for fd, mode in zip(os.pipe(), ("rb", "wb"), strict=True)]
    forked = member_process._Forked(child.pid, ends[1], ends[0])  # type: ignore[arg-type]
    wait = os.waitpid

    def waits_and_is_interrupted(pid: int, flags: int) -> tuple[int, int]:
        done = wait(pid, flags)
        monkeypatch.setattr(os, "waitpid", wait)
        forked.poll()  # as the handler of a signal does
        return done

    monkeypatch.setattr(os, "waitpid", waits_and_is_interrupted)
    assert forked.wait() == 3
    assert forked.poll() == 3
    child.returncode = 3  # it was waited for behind its back
    for end in ends:
        end.close()
