"""Forked members: they have names and pipes of their own, and do not outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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
