"""Who a process is, by a stand-in for /proc: reused pids, reboots, other machines, no rights."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fleetcraft.identity import HostId, ProcessId, new_launch_token, process_id, this_host
from fleetcraft.training.launching import nonce_scan, sweeping
from fleetcraft.training.launching.nonce_scan import find_by_nonce, newest_first, scan
from fleetcraft.training.launching.signalling import identify, send
from fleetcraft.training.launching.sweeping import Net
from fleetcraft.training.records import ProcessRecord
from tests.training.launching.harness import wait_until

HERE = HostId("n1", "boot-1", "pid:[1]")
RECORD = ProcessRecord(place=HERE, process=ProcessId(4242, 777), nonce="abcd2345")


class Proc:
    """A stand-in for /proc with the processes that a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self._folder = folder

    def add(
        self, pid: int, *, ticks: int = 777, parent: int = 1, session: int | None = None,
        environ: bytes | None = b"PATH=/bin\0FLEET_LAUNCH_NONCE=abcd2345\0", state: str = "S",
        uid: int | None = None,
    ) -> None:  # fmt: skip
        folder = self._folder / str(pid)
        folder.mkdir()
        fields = [state, str(parent), "0", str(session or pid), *["0"] * 15, str(ticks), "0", "0"]
        (folder / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")
        uid = os.geteuid() if uid is None else uid
        (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        if environ is None:
            (folder / "environ").mkdir()  # reading it is an error that is no "not there"
        else:
            (folder / "environ").write_bytes(environ)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_the_very_process_is_known(proc: Proc) -> None:
    proc.add(4242)
    assert identify(RECORD, here=HERE, proc=proc.path) is True


def test_a_pid_that_is_used_again_is_another_process(proc: Proc) -> None:
    proc.add(4242, ticks=778)
    assert identify(RECORD, here=HERE, proc=proc.path) is False


def test_a_process_without_the_nonce_is_none_of_the_launch(proc: Proc) -> None:
    proc.add(4242, environ=b"FLEET_LAUNCH_NONCE=other234\0")
    assert identify(RECORD, here=HERE, proc=proc.path) is False


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_dead_process_is_gone(proc: Proc, state: str) -> None:
    proc.add(4242, state=state)
    assert identify(RECORD, here=HERE, proc=proc.path) is False


def test_no_process_is_gone(proc: Proc) -> None:
    assert identify(RECORD, here=HERE, proc=proc.path) is False


def test_another_boot_of_the_same_host_means_gone(proc: Proc) -> None:
    proc.add(4242)
    now = msgspec.structs.replace(HERE, boot_id="boot-2")
    assert identify(RECORD, here=now, proc=proc.path) is False


@pytest.mark.parametrize(
    "now",
    [
        msgspec.structs.replace(HERE, host="n2"),
        msgspec.structs.replace(HERE, pid_namespace="pid:[2]"),
        msgspec.structs.replace(HERE, boot_id=""),
        msgspec.structs.replace(HERE, pid_namespace=""),
    ],
)
def test_another_machine_or_namespace_says_nothing(proc: Proc, now: HostId) -> None:
    assert identify(RECORD, here=now, proc=proc.path) is None


@pytest.mark.parametrize("environ", [b"", None], ids=["empty", "unreadable"])
def test_an_environment_that_says_nothing_proves_nothing(proc: Proc, environ: bytes | None) -> None:
    proc.add(4242, environ=environ)
    assert identify(RECORD, here=HERE, proc=proc.path) is None


@pytest.fixture
def nonce() -> str:
    """Of a sleeper; the whole machine is searched for it, and another test may have one too."""
    return new_launch_token()


@pytest.fixture
def sleeper(nonce: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {"FLEET_LAUNCH_NONCE": nonce}
    process = subprocess.Popen(["/bin/sleep", "600"], env=environment)
    yield process
    process.kill()
    process.wait()


def test_a_signal_goes_only_to_the_process_of_the_record(
    sleeper: subprocess.Popen[bytes], nonce: str
) -> None:
    def me() -> ProcessId | None:
        found = find_by_nonce(nonce)
        return found[0].process if found else None

    process = wait_until(me, "it has its own environment")
    record = ProcessRecord(place=this_host(), process=process, nonce=nonce)
    used_again = msgspec.structs.replace(
        record, process=ProcessId(process.pid, process.start_ticks - 1)
    )
    other_nonce = msgspec.structs.replace(record, nonce="another2")
    elsewhere = msgspec.structs.replace(
        record, place=msgspec.structs.replace(record.place, host="elsewhere")
    )

    assert send(used_again, signal.SIGKILL) is False
    assert send(other_nonce, signal.SIGKILL) is False
    assert send(elsewhere, signal.SIGKILL) is None
    assert sleeper.poll() is None
    assert send(record, signal.SIGKILL) is True
    assert sleeper.wait(10) == -signal.SIGKILL
    assert send(record, signal.SIGKILL) is False


def test_a_kernel_without_pidfd_is_served_too(
    sleeper: subprocess.Popen[bytes], nonce: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_call(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    wait_until(lambda: find_by_nonce(nonce), "it has its own environment")
    monkeypatch.setattr(os, "pidfd_open", no_such_call)
    (record,) = find_by_nonce(nonce)
    assert send(record, signal.SIGKILL) is True
    assert sleeper.wait(10) == -signal.SIGKILL


def test_a_scan_finds_the_nonce_its_descendants_and_the_members_of_its_sessions(
    proc: Proc,
) -> None:
    wiped = b"PATH=/bin\0"
    proc.add(100)
    proc.add(101, parent=100, environ=wiped, session=101)  # a child with a session of its own
    proc.add(102, parent=101, environ=wiped, session=101)
    proc.add(103, parent=1, environ=wiped, session=100)  # an orphan in its session
    proc.add(104, parent=1, environ=wiped, session=999)

    found = scan(("abcd2345",), here=HERE, proc=proc.path).found

    assert {record.process.pid for record in found} == {100, 101, 102, 103}
    assert {r.process.pid for r in found if r.nonce == ""} == {101, 102, 103}


def test_a_found_process_that_is_a_guest_in_a_shells_session_gives_no_claim_to_the_shell(
    proc: Proc,
) -> None:
    proc.add(50, environ=b"SHELL=/bin/bash\0", session=50)
    proc.add(51, environ=b"SHELL=/bin/bash\0", session=50, parent=50)
    proc.add(100, parent=50, session=50)
    found = scan(("abcd2345",), here=HERE, proc=proc.path).found
    assert [record.process.pid for record in found] == [100]


def test_unreadable_processes_of_this_user_are_told_and_those_that_are_older_are_not(
    proc: Proc,
) -> None:
    proc.add(10, ticks=5, environ=None)
    proc.add(11, ticks=500, environ=None)
    proc.add(12, ticks=500, environ=None, uid=os.geteuid() + 1)
    found = scan(("abcd2345",), since_ticks=100, here=HERE, proc=proc.path)
    assert (found.found, found.unreadable) == ((), (ProcessId(11, 500),))


def test_a_sweep_that_meets_processes_too_short_lived_to_signal_is_not_quiet(
    monkeypatch: pytest.MonkeyPatch, proc: Proc
) -> None:
    """As of one that forks and exits without end: it is gone before it gets its signal."""
    numbers = itertools.count(1)

    def met(_nonce: str, **_: object) -> Iterator[ProcessRecord]:
        process = ProcessId(4_000_000, next(numbers))
        yield ProcessRecord(place=this_host(), process=process, nonce="abcd2345")

    monkeypatch.setattr(sweeping, "newest_first", met)
    swept = Net("abcd2345", proc=proc.path).sweep(signal.SIGKILL, 0.05)
    assert (swept.quiet, swept.left) == (False, ())


def test_a_sweep_that_meets_nothing_twice_is_quiet(proc: Proc) -> None:
    proc.add(50, environ=b"SHELL=/bin/bash\0")
    assert Net("abcd2345", proc=proc.path).sweep(signal.SIGKILL, 0.0).quiet


def test_processes_that_begin_while_the_list_is_read_are_looked_at_too(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.add(100, environ=b"SHELL=/bin/bash\0")
    proc.add(101)
    Path(proc.path, "101", "status").write_text("Tgid:\t101\n")
    proc.add(102)
    Path(proc.path, "102", "status").write_text("Tgid:\t101\n")  # a thread, which is no process
    given = iter([100, 102, 102])
    monkeypatch.setattr(nonce_scan, "_last_pid", lambda _proc: next(given))
    monkeypatch.setattr(nonce_scan, "_pids", lambda _proc: [100])
    assert [record.process.pid for record in newest_first("abcd2345", proc=proc.path)] == [101]


def test_a_scan_never_finds_the_caller_or_its_ancestors() -> None:
    code = (
        "from fleetcraft.training.launching.nonce_scan import find_by_nonce as find\n"
        "print(len(find('mine2345')))"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -c "{code}"; true', sys.executable],
        env={**os.environ, "FLEET_LAUNCH_NONCE": "mine2345",
             "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "0\n"
    assert process_id(os.getpid()) is not None
