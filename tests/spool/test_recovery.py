"""Recovery: what is known of an owner, and what becomes of a claim whose owner is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fleetcraft.identity import HostId, JobRun, Owner, ProcessId, process_id, this_host
from fleetcraft.layout import Lane, State
from fleetcraft.spool import claims, leases
from fleetcraft.spool.check import check
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.record import LOST_LIMIT, HistoryLine, Outcome, closing_lines, write_history
from fleetcraft.spool.recovery import (
    AskOwner,
    Liveness,
    RememberedLeases,
    Verdict,
    ask_this_machine,
    recover,
)
from fleetcraft.spool.tree import SpoolTree
from tests.quick_fs import QuickFS
from tests.spool.acts import end, publish, record_of, state_of, take

HERE = HostId(host="c1", boot_id="boot-1", pid_namespace="pid:[1]")


def dead_process() -> ProcessId:
    """A process that was, and is no more."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                             stdin=subprocess.PIPE)  # fmt: skip
    found = process_id(child.pid)
    child.communicate()
    assert found is not None
    return found


def lease_of(process: ProcessId, **changes: object) -> Lease:
    lease = Lease(
        job=HERE.local_job, rank="0", launch="launch", host=HERE.host, boot_id=HERE.boot_id,
        pid_namespace=HERE.pid_namespace, pid=process.pid, start_ticks=process.start_ticks,
        started_at="now", interval_s=30.0,
    )  # fmt: skip
    return msgspec.structs.replace(lease, **changes)


def me() -> ProcessId:
    found = process_id(os.getpid())
    assert found is not None
    return found


def owner_of(lease: Lease, number: int = 1) -> Owner:
    return Owner(lease.job, lease.rank, "0", f"{lease.launch}-{number}")


def gone(owner: Owner, lease: Lease | None) -> Verdict:
    return Verdict(liveness=Liveness.GONE, reason="its job is over")


def says(liveness: Liveness) -> AskOwner:
    return lambda owner, lease: Verdict(liveness=liveness, reason="so it is")


@pytest.fixture(scope="module")
def nobody() -> ProcessId:
    return dead_process()


# -- the judge of this machine


def test_a_machine_that_cannot_look_at_a_process_does_not_call_it_gone() -> None:
    looked = """
import os, resource
from fleetcraft.identity import lives_at, process_id, this_host
me, here = process_id(os.getpid()), this_host()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
print(lives_at(here, me, here))
"""
    done = subprocess.run(
        [sys.executable, "-c", looked], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "None\n"


def test_a_process_that_lives_is_alive() -> None:
    lease = lease_of(me())
    assert ask_this_machine(HERE)(owner_of(lease), lease).liveness is Liveness.ALIVE


def test_a_process_that_is_not_there_is_gone(nobody: ProcessId) -> None:
    lease = lease_of(nobody)
    verdict = ask_this_machine(HERE)(owner_of(lease), lease)
    assert verdict.liveness is Liveness.GONE
    assert verdict.on_this_host


def test_a_pid_that_belongs_to_another_process_now_is_gone() -> None:
    lease = lease_of(ProcessId(pid=me().pid, start_ticks=me().start_ticks + 1))
    assert ask_this_machine(HERE)(owner_of(lease), lease).liveness is Liveness.GONE


def test_after_a_reboot_everything_is_gone() -> None:
    lease = lease_of(me(), boot_id="boot-0")
    verdict = ask_this_machine(HERE)(owner_of(lease), lease)
    assert verdict.liveness is Liveness.GONE
    assert "rebooted" in verdict.reason


def test_a_node_of_the_same_name_in_another_cluster_was_not_rebooted(
    tree: SpoolTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tree, "task")
    lease = lease_of(me(), job="77", boot_id="boot-0", cluster="alpha")
    leases.publish(tree, lease)
    take(tree, "task", owner_of(lease))
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "beta")
    report = recover(tree, ask_this_machine(HERE))
    assert (report.recovered, report.unknown) == (0, 1)
    assert state_of(tree, "task") == State.RUNNING
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "alpha")
    assert recover(tree, ask_this_machine(HERE)).recovered == 1


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"host": "c2"},
        {"pid_namespace": "pid:[2]"},
        {"boot_id": ""},
        {"host": "c2", "boot_id": "boot-0"},
    ],
)
def test_what_this_machine_cannot_see_is_unknown(
    nobody: ProcessId, elsewhere: dict[str, str]
) -> None:
    lease = lease_of(nobody, **elsewhere)
    verdict = ask_this_machine(HERE)(owner_of(lease), lease)
    assert verdict.liveness is Liveness.UNKNOWN
    assert not verdict.unanswered


@pytest.mark.parametrize("unknown", [{"boot_id": ""}, {"pid_namespace": ""}])
def test_a_machine_that_does_not_know_itself_judges_nobody(
    nobody: ProcessId, unknown: dict[str, str]
) -> None:
    lease = lease_of(nobody)
    facts = {"host": HERE.host, "boot_id": HERE.boot_id, "pid_namespace": HERE.pid_namespace}
    verdict = ask_this_machine(HostId(**{**facts, **unknown}))(owner_of(lease), lease)
    assert verdict.liveness is Liveness.UNKNOWN


def test_two_unknown_pid_namespaces_are_not_the_same_one(nobody: ProcessId) -> None:
    nowhere = HostId(host=HERE.host, boot_id=HERE.boot_id, pid_namespace="")
    lease = lease_of(nobody, pid_namespace="")
    assert ask_this_machine(nowhere)(owner_of(lease), lease).liveness is Liveness.UNKNOWN


def test_a_job_of_a_scheduler_elsewhere_is_unanswered(nobody: ProcessId) -> None:
    lease = lease_of(nobody, job="8812", host="c2")
    verdict = ask_this_machine(HERE)(owner_of(lease), lease)
    assert (verdict.liveness, verdict.unanswered) == (Liveness.UNKNOWN, True)


@pytest.mark.parametrize(("job", "unanswered"), [("8812", True), ("L0123456789ab", False)])
def test_an_owner_without_a_lease_is_unknown(job: str, unanswered: bool) -> None:
    verdict = ask_this_machine(HERE)(Owner(job, "0", "0", "x-1"), None)
    assert (verdict.liveness, verdict.unanswered) == (Liveness.UNKNOWN, unanswered)


def test_a_lease_that_cannot_be_read_is_none(tree: SpoolTree) -> None:
    Path(tree.paths.lease("1.0.x")).write_text("{")
    assert leases.read(tree, "1.0.x") is None
    assert leases.read(tree, "1.0.y") is None
    assert leases.read_all(tree) == []


def test_a_lease_reads_back_as_it_was_published(tree: SpoolTree) -> None:
    lease = leases.new_lease(run=JobRun(job="8812"), rank="3", interval_s=30.0, slots=2)
    leases.publish(tree, lease)
    later = msgspec.structs.replace(lease, counter=5)
    Path(f"{tree.paths.lease(lease.name)}.new").write_text("left by a crash")
    leases.publish(tree, later)
    assert leases.read_all(tree) == [later]
    assert leases.lives_here(later, this_host()) is True
    leases.withdraw(tree, later)
    leases.withdraw(tree, later)
    assert leases.read_all(tree) == []


# -- a pass


def test_a_claim_of_a_gone_owner_is_closed_as_lost_and_pending_again(tree: SpoolTree) -> None:
    publish(tree, "t", lane=Lane.LAST)
    held = take(tree, "t")
    tree.fs.close(tree.fs.create_log(tree.paths.log("t", 1)))
    report = recover(tree, gone)
    assert (report.recovered, report.rolled_forward, report.unknown) == (1, 0, 0)
    assert tree.find("t").lane is Lane.LAST
    line = record_of(tree, "t").history[0]
    assert (line.claim, line.outcome, line.attempt) == (held.owner.token, Outcome.LOST, 1)
    assert line.log == "logs/t.1.log"
    assert "its job is over" in line.reason
    assert report.items[0].task == "t"


def test_a_claim_that_never_got_a_log_is_no_attempt(tree: SpoolTree) -> None:
    publish(tree, "t")
    take(tree, "t")
    recover(tree, gone)
    assert record_of(tree, "t").history[0].attempt == 0
    assert record_of(tree, "t").next_attempt == 1


@pytest.mark.parametrize("liveness", [Liveness.ALIVE, Liveness.UNKNOWN])
def test_a_claim_of_an_owner_not_known_to_be_gone_is_left_alone(
    tree: SpoolTree, liveness: Liveness
) -> None:
    publish(tree, "t")
    take(tree, "t")
    report = recover(tree, says(liveness))
    assert report.recovered == 0
    assert (report.alive, report.unknown) == ((1, 0) if liveness is Liveness.ALIVE else (0, 1))
    assert record_of(tree, "t").history == ()
    assert report.reason == ("so it is" if liveness is Liveness.UNKNOWN else "")


@pytest.mark.parametrize(
    ("to", "state"),
    [("done", State.DONE), ("pending", State.PENDING), ("failed", State.FAILED)],
)
def test_a_claim_that_was_closed_is_carried_out_and_not_judged(
    tree: SpoolTree, to: str, state: State
) -> None:
    publish(tree, "t")
    held = take(tree, "t")
    line = HistoryLine(claim=held.owner.token, outcome=Outcome.INTERRUPTED, to=to, attempt=1)  # type: ignore[arg-type]
    with open(held.path, "ab") as file:
        file.write(write_history(line))
    report = recover(tree, gone)
    assert (report.recovered, report.rolled_forward) == (0, 1)
    assert state_of(tree, "t") is state
    assert record_of(tree, "t").history == (line,)
    assert "already closed as interrupted" in report.items[0].reason


def test_an_owner_that_comes_late_renames_nothing(tree: SpoolTree) -> None:
    publish(tree, "t")
    held = take(tree, "t")
    recover(tree, gone)
    assert end(tree, held, Outcome.COMPLETED) is None
    assert state_of(tree, "t") is State.PENDING


def test_an_owner_whose_claim_is_closed_before_its_eyes_renames_nothing(tree: SpoolTree) -> None:
    class Slow(QuickFS):
        def append(self, fd: int, data: bytes) -> None:
            recover(tree, gone)
            super().append(fd, data)

    publish(tree, "t")
    held = take(tree, "t")
    closed = end(SpoolTree(tree.paths.root, Slow()), held, Outcome.COMPLETED)
    assert closed is not None
    assert (closed.mine, closed.moved) == (False, False)
    assert closed.line.outcome is Outcome.LOST
    assert state_of(tree, "t") is State.PENDING
    assert [line.outcome for line in closing_lines(record_of(tree, "t"))] == [Outcome.LOST]


def test_the_fifth_loss_fails_the_task_and_a_retry_gives_one_more(tree: SpoolTree) -> None:
    from fleetcraft.spool.control import retry

    publish(tree, "t")
    for _ in range(LOST_LIMIT):
        take(tree, "t")
        recover(tree, gone)
    assert state_of(tree, "t") is State.FAILED
    retry(tree, "t")
    take(tree, "t")
    recover(tree, gone)
    assert state_of(tree, "t") is State.FAILED


def test_a_dry_run_only_says_what_it_would_do(tree: SpoolTree) -> None:
    publish(tree, "t")
    take(tree, "t")
    report = recover(tree, gone, dry_run=True)
    assert [item.action for item in report.items] == ["would recover"]
    assert record_of(tree, "t").history == ()
    assert state_of(tree, "t") is State.RUNNING


def test_ones_own_claims_are_passed_over(tree: SpoolTree) -> None:
    publish(tree, "t")
    publish(tree, "u")
    take(tree, "t", Owner("1", "0", "0", "mine-1"))
    take(tree, "u", Owner("1", "0", "0", "theirs-1"))
    recover(tree, gone, but_launches={"mine"})
    assert (state_of(tree, "t"), state_of(tree, "u")) == (State.RUNNING, State.PENDING)


def test_survivors_are_stopped_first_and_the_claim_stays_when_they_cannot_be(
    tree: SpoolTree, nobody: ProcessId
) -> None:
    lease = lease_of(nobody)
    leases.publish(tree, lease)
    publish(tree, "t")
    take(tree, "t", owner_of(lease))
    asked: list[tuple[str, str]] = []

    def stop(name: str, owner: Owner, found: Lease) -> str:
        asked.append((name, found.name))
        return "" if len(asked) > 1 else "pid 17 does not die"

    report = recover(tree, ask_this_machine(HERE), stop_survivors=stop)
    assert "pid 17 does not die" in report.reason
    assert state_of(tree, "t") is State.RUNNING
    assert recover(tree, ask_this_machine(HERE), stop_survivors=stop).recovered == 1
    assert asked == [("t", lease.name)] * 2
    assert "no process of the attempt is left" in record_of(tree, "t").history[0].reason


def test_one_claim_that_cannot_be_recovered_keeps_no_other_from_it(tree: SpoolTree) -> None:
    for name in "abc":
        publish(tree, name)
        take(tree, name)
    broken = tree.paths.claim("b", dict(tree.claims())["b"])
    os.unlink(broken)
    os.mkfifo(broken)

    class Refusing(QuickFS):
        def open_append(self, path: str) -> int:
            if path == broken:
                raise PermissionError(13, "Permission denied", path)
            return super().open_append(path)

    report = recover(SpoolTree(tree.paths.root, Refusing()), gone)
    assert (report.recovered, report.unknown) == (2, 1)
    assert "Permission denied" in report.reason


def test_a_record_that_is_garbage_is_recovered_to_its_lane_as_far_as_is_known(
    tree: SpoolTree,
) -> None:
    publish(tree, "t")
    held = take(tree, "t")
    data = Path(held.path).read_bytes()
    Path(held.path).write_bytes(data.replace(b"#FLEET id", b"#FLEET di"))
    assert recover(tree, gone).recovered == 1
    assert os.path.exists(tree.paths.pending_record("t", Lane.PLAIN))


def test_recovering_a_spool_again_finds_nothing_to_do(tree: SpoolTree) -> None:
    publish(tree, "t")
    take(tree, "t")
    recover(tree, gone)
    again = recover(tree, gone)
    assert (again.recovered, again.rolled_forward, again.items) == (0, 0, [])
    assert check(tree).ok


def test_a_line_that_another_process_tore_leaves_the_claim_as_it_is(tree: SpoolTree) -> None:
    class Torn(QuickFS):
        def append(self, fd: int, data: bytes) -> None:
            os.write(fd, b"#FLEET-RUN {torn")
            super().append(fd, data)

    publish(tree, "t")
    take(tree, "t")
    report = recover(SpoolTree(tree.paths.root, Torn()), gone)
    assert (report.recovered, report.unknown) == (0, 1)
    assert "cannot be read back" in report.reason
    assert recover(tree, gone).recovered == 1
    assert claims.first_line_of(Path(tree.find("t").path).read_bytes(), "none") is None


def test_a_watcher_reads_the_lease_of_another_host_once_and_few_of_them_in_a_pass(
    tree: SpoolTree,
) -> None:
    # Arrange: five launches of a job on other hosts, and an earlier start of this very worker.
    launches = []
    for rank in ("1", "2", "3", "4", "5", "0"):
        lease = leases.new_lease(rank=rank, interval_s=30.0)
        lease.job, lease.host = "77", f"n{rank}"
        leases.publish(tree, lease)
        launches.append(lease)
    owners = [Owner("77", lease.rank, "0", f"{lease.launch}-1") for lease in launches]
    remembered = RememberedLeases(("77", "0"), a_pass=2)

    def look() -> list[str]:
        remembered.begin_pass()
        return [found.rank for owner in owners if (found := remembered.read(tree, owner))]

    # Act and assert
    assert look() == ["1", "2", "0"]
    os.unlink(tree.paths.lease(launches[0].name))  # read once, it is not read again
    assert look() == ["1", "2", "3", "4", "0"]
    assert look() == ["1", "2", "3", "4", "5", "0"]
