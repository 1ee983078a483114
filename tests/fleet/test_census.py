"""The login guard among real processes, real limits and real mounts, as a user that has no others.

What is seen as another user needs root. Not here: judging; that is in test_guard.py.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")

# Looks as another user. Python and its libraries may lie where that user cannot read, so everything
# is loaded by a first look; and a process that changed its user counts as one that hides things, as
# sshd's do, until it says otherwise.
LOOK = """
import ctypes, errno, json, os, resource, sys
from fleetcraft.fleet.guard.verdict import GuardLimits, Threshold, check_login
from fleetcraft.view.guard import guard_shape

LIMITS = GuardLimits(
    processes=Threshold(caution=25, stop=40, source="the site"),
    ssh=Threshold(caution=2, stop=3, source="the site"),
    threads=Threshold(**json.loads(os.environ.get("THREADS", "{}"))),
)
libc = ctypes.CDLL(None)
check_login(LIMITS)
if cgroup := os.environ.get("CGROUP"):
    with open(cgroup, "w") as file:
        file.write(str(os.getpid()))
for name, kind in (("NPROC", resource.RLIMIT_NPROC), ("NOFILE", resource.RLIMIT_NOFILE)):
    if name in os.environ:
        resource.setrlimit(kind, (int(os.environ[name]),) * 2)
if uid := int(os.environ.get("USER_ID", "0")):
    os.setgroups(json.loads(os.environ.get("GROUPS_OF_USER", "[]")))
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    libc.prctl(4, 1, 0, 0, 0)
forked = None
if "NPROC" in os.environ:
    try:
        if os.fork() == 0:
            os._exit(0)
        forked = "yes"
    except OSError as error:
        forked = errno.errorcode[error.errno]
print(json.dumps({**guard_shape(check_login(LIMITS), limit=99), "forked": forked}))
"""


# Another hundred for every test process: several may run at a time.
USERS = itertools.count(20000 + 100 * (os.getpid() % 400))


@pytest.fixture
def user() -> int:
    """A user that has no process: nobody else's, nor that of a test before or beside this one."""
    return next(USERS)


def look(*before: str, **settings: object) -> Any:
    """What the guard says, as JSON; `before` are the words that start it."""
    done = subprocess.run(
        [*before, sys.executable, "-c", LOOK],
        env={**os.environ, "PYTHONPATH": str(REPO), **{k: str(v) for k, v in settings.items()}},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def running(user: int, *programs: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Shells of a user under other names, that wait until they are told to end."""
    started = []
    try:
        for words in programs:
            process = subprocess.Popen(
                words,
                executable="/bin/sh",
                user=user,
                group=user,
                extra_groups=[],
                cwd="/",
                stdin=subprocess.PIPE,
            )
            started.append(process)
        yield started
    finally:
        for process in started:
            process.communicate(timeout=30)  # closes its input, which ends it


@needs_root
def test_real_processes_are_counted_by_what_they_are(user: int) -> None:
    makes_a_zombie = ["sh", "-c", "sleep 0 & exec cat"]
    programs = [["ssh"], ["sshd: tester@pts/0"], ["sshd: tester [priv]"], makes_a_zombie]
    with running(user, *programs) as started:
        wait_for_zombie_of(started[-1].pid)
        seen = look(USER_ID=user)

    assert (seen["processes"], seen["threads"], seen["is_complete"]) == (6, 6, True)
    assert (seen["ssh_sessions"], seen["ssh_clients"]) == (1, 1)
    assert (seen["verdict"], seen["exit_code"]) == ("caution", 1)
    kinds = {cause["kind"]: cause["pids"] for cause in seen["causes"] if cause["kind"] != "program"}
    assert kinds["ssh clients"] == [started[0].pid]
    assert kinds["ssh sessions"] == [started[1].pid]
    assert len(kinds["zombies"]) == 1


def wait_for_zombie_of(parent: int) -> None:
    children = Path(f"/proc/{parent}/task/{parent}/children")
    while not any(
        "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
        for pid in children.read_text().split()
    ):
        assert Path(f"/proc/{parent}").exists()


@needs_root
def test_no_process_can_be_started_and_the_guard_still_answers(user: int) -> None:
    seen = look(USER_ID=user, NPROC=1)
    assert seen["forked"] == "EAGAIN"
    assert seen["verdict"] == "no-go"
    assert seen["reasons"] == ["1 thread, stop at 0 (ulimit -u 1)"]
    assert seen["causes"][0]["processes"] == 1


@needs_root
def test_the_setting_for_threads_goes_before_the_ulimit_that_it_is_below(user: int) -> None:
    def thread_limit(**settings: object) -> tuple[object, ...]:
        row = look(USER_ID=user, NPROC=100, **settings)["limits"]["threads"]
        return row["caution"], row["stop"], row["ceiling"], row["source"]

    assert thread_limit() == (25, 40, 100, "ulimit -u 100")
    own = json.dumps({"stop": 60, "source": "the site"})
    assert thread_limit(THREADS=own) == (25, 60, 100, "the site, ulimit -u 100")
    loose = json.dumps({"caution": 150, "stop": 200, "source": "the site"})
    assert thread_limit(THREADS=loose) == (25, 40, 100, "ulimit -u 100")


@needs_root
@pytest.mark.parametrize("hidden", ["1", "2", "4"])
def test_a_process_list_that_is_hidden_is_unknown(user: int, hidden: str) -> None:
    seen = look(*with_proc(f"hidepid={hidden}"), USER_ID=user)
    assert (seen["verdict"], seen["exit_code"], seen["is_complete"]) == ("unknown", 3, False)
    assert "it hides processes, of this user's too" in seen["reasons"][0]


@needs_root
def test_a_process_list_that_is_shown_to_a_group_is_whole_for_it(user: int) -> None:
    mounted = with_proc("hidepid=2,gid=54444")
    assert look(*mounted, USER_ID=user, GROUPS_OF_USER="[54444]")["verdict"] == "go"
    assert look(*mounted, USER_ID=user, GROUPS_OF_USER="[54445]")["verdict"] == "unknown"


@needs_root
def test_a_container_is_noted(user: int) -> None:
    seen = look(*with_proc(""), USER_ID=user)
    assert seen["verdict"] == "go"
    assert "process namespace of its own" in seen["notes"][0]


def test_no_more_files_can_be_opened_and_the_guard_says_unknown() -> None:
    seen = look(NOFILE=3)
    assert (seen["verdict"], seen["processes"]) == ("unknown", None)
    assert seen["reasons"] == ["cannot list the processes: '/proc': Too many open files"]


@needs_root
def test_a_real_cgroup_limits_whoever_is_in_it(user: int, tmp_path: Path) -> None:
    with cgroup_with_limit(100, f"fleetcraft-{user}") as group:
        seen = look(USER_ID=user, CGROUP=f"{group}/cgroup.procs")
    row = seen["limits"]["cgroup"]
    assert (row["found"], row["stop"], row["ceiling"]) == (1, 40, 100)
    assert row["source"] == f"{group}/pids.max"


def with_proc(options: str) -> list[str]:
    """The words that start a command in process and mount namespaces of its own."""
    start = ["unshare", "--mount", "--pid", "--fork", "sh", "-c"]
    mount = f"mount -t proc {'-o ' + options if options else ''} proc /proc"
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    tried = subprocess.run([*start, mount], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no process file system can be mounted here: {tried.stderr.strip()}")
    return [*start, f'{mount} && "$@"', "sh"]  # no exec: process 1 must be root's


@contextmanager
def cgroup_with_limit(maximum: int, name: str) -> Iterator[Path]:
    """A cgroup below the topmost one, where this machine lets one be made."""
    for top in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = top / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / "pids.max").exists():
                (group / "pids.max").write_text(str(maximum))
                yield group
                return
        finally:
            group.rmdir()
    pytest.skip("no cgroup that limits processes can be made here")
