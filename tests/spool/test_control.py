"""Cancel, retry, drain and stop: what a person asks, and what they are told."""

from __future__ import annotations

import errno
import os

import pytest

from fleetcraft.errors import NoSuchTaskError, SpoolError
from fleetcraft.layout import State
from fleetcraft.spool import claims, control
from fleetcraft.spool.claims import SpoolWriteError
from fleetcraft.spool.control import Canceller
from fleetcraft.spool.record import Outcome
from fleetcraft.spool.recovery import Liveness, Verdict, recover
from fleetcraft.spool.tree import SpoolTree
from tests.quick_fs import QuickFS
from tests.spool.acts import end, publish, record_of, run, state_of, take
from tests.spool.test_enqueue import cut_short


def cancel(tree: SpoolTree, name: str) -> control.CancelResult:
    with Canceller(tree) as canceller:
        return canceller.cancel(name)


@pytest.mark.parametrize("after", [(), ("x",)])
def test_a_task_that_no_worker_holds_is_cancelled_at_once(
    tree: SpoolTree, after: tuple[str, ...]
) -> None:
    publish(tree, "t", after=after)
    assert cancel(tree, "t").cancelled
    assert state_of(tree, "t") is State.FAILED
    line = record_of(tree, "t").history[0]
    assert (line.outcome, line.attempt) == (Outcome.CANCELLED, 0)
    assert os.listdir(tree.paths.workers) == []


def test_a_running_task_is_asked_to_end(tree: SpoolTree) -> None:
    publish(tree, "t")
    held = take(tree, "t")
    result = cancel(tree, "t")
    assert (result.requested, result.cancelled, result.state) == (True, False, State.RUNNING)
    assert os.path.exists(tree.paths.cancel_marker("t"))
    assert os.path.exists(held.path)


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.FAILED])
def test_a_task_that_has_ended_is_seen_to_have(tree: SpoolTree, outcome: Outcome) -> None:
    publish(tree, "t")
    run(tree, "t", outcome)
    result = cancel(tree, "t")
    assert (result.cancelled, result.requested) == (False, False)
    assert result.state is state_of(tree, "t")


def test_a_task_whose_enqueue_was_cut_short_is_cancelled_too(tree: SpoolTree) -> None:
    cut_short(tree, "t")
    assert cancel(tree, "t").cancelled
    assert state_of(tree, "t") is State.FAILED


def test_a_task_that_is_not_there_is_no_request(tree: SpoolTree) -> None:
    publish(tree, "gen-1")
    with pytest.raises(NoSuchTaskError) as refused:
        cancel(tree, "gen-2")
    assert refused.value.near == ["gen-1"]
    assert os.listdir(tree.paths.cancel) == []


def test_many_are_cancelled_under_one_lease(tree: SpoolTree) -> None:
    for name in "abc":
        publish(tree, name)
    with Canceller(tree) as canceller:
        for name in "abc":
            canceller.cancel(name)
            assert len(os.listdir(tree.paths.workers)) == 1
    assert len({record_of(tree, name).history[0].claim for name in "abc"}) == 3
    assert os.listdir(tree.paths.workers) == []


def test_a_canceller_that_cannot_close_its_claim_can_still_be_judged(
    tree: SpoolTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(QuickFS):
        def append(self, fd: int, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(claims, "_APPEND_PAUSE_S", 0)
    publish(tree, "t")
    with pytest.raises(SpoolWriteError):
        cancel(SpoolTree(tree.paths.root, Full()), "t")
    assert state_of(tree, "t") is State.RUNNING

    found = []

    def ask(owner: object, lease: object) -> Verdict:
        found.append(lease)
        return Verdict(liveness=Liveness.GONE, reason="over")

    assert recover(tree, ask).recovered == 1
    assert found[0] is not None
    assert cancel(tree, "t").cancelled


def test_a_failed_task_is_retried_and_granted_one_more_attempt(tree: SpoolTree) -> None:
    publish(tree, "t")
    run(tree, "t", Outcome.FAILED)
    assert control.retry(tree, "t") is State.PENDING
    assert record_of(tree, "t").next_attempt == 2
    run(tree, "t", Outcome.COMPLETED)
    assert state_of(tree, "t") is State.DONE


@pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.DONE, State.WAITING])
def test_only_a_failed_task_can_be_retried(tree: SpoolTree, state: State) -> None:
    publish(tree, "t", after=("x",) if state is State.WAITING else ())
    if state is State.RUNNING:
        take(tree, "t")
    if state is State.DONE:
        run(tree, "t")
    with pytest.raises(SpoolError, match=f"has not failed: it is {state.value}"):
        control.retry(tree, "t")
    assert state_of(tree, "t") is state


def test_a_retry_takes_the_request_to_cancel_away(tree: SpoolTree) -> None:
    publish(tree, "t")
    cancel(tree, "t")
    control.retry(tree, "t")
    assert not os.path.exists(tree.paths.cancel_marker("t"))


def test_a_task_cancelled_before_its_time_waits_again_when_retried(tree: SpoolTree) -> None:
    publish(tree, "t", after=("x",))
    cancel(tree, "t")
    assert control.retry(tree, "t") is State.WAITING


def test_it_waits_again_also_when_its_first_canceller_died(tree: SpoolTree) -> None:
    publish(tree, "t", after=("x",))
    os.close(os.open(tree.paths.cancel_marker("t"), os.O_CREAT, 0o600))
    take(tree, "t")
    recover(tree, lambda owner, lease: Verdict(liveness=Liveness.GONE, reason="over"))
    cancel(tree, "t")
    assert control.retry(tree, "t") is State.WAITING


def test_a_task_that_has_run_does_not_wait_again(tree: SpoolTree) -> None:
    publish(tree, "x")
    publish(tree, "t", after=("x",))
    run(tree, "x")
    control.promote(tree)
    run(tree, "t", Outcome.FAILED)
    assert control.retry(tree, "t") is State.PENDING


def test_a_claim_put_back_is_pending_without_a_line(tree: SpoolTree) -> None:
    publish(tree, "t")
    held = take(tree, "t")
    assert claims.put_back(tree, held) is True
    assert record_of(tree, "t").history == ()
    assert end(tree, held, Outcome.COMPLETED) is None


def test_markers_say_who_wrote_them_and_stand_until_they_are_removed(tree: SpoolTree) -> None:
    control.refuse_markers(tree)
    control.write_marker(tree, tree.paths.drain_marker, "maintenance")
    control.write_marker(tree, tree.paths.drain_marker, "another reason")
    with open(tree.paths.stop_marker, "w", encoding="utf-8") as file:
        file.write("by hand")
    said = control.read_markers(tree)
    assert "maintenance" in said["DRAIN"]
    assert said["STOP"] == "written by hand: by hand"
    with pytest.raises(SpoolError, match="DRAIN marker"):
        control.refuse_markers(tree)
    assert control.resume(tree) == ["DRAIN", "STOP"]
    assert control.resume(tree) == []
    control.refuse_markers(tree)
