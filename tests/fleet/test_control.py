"""The control pass: what it decides, and what it does when the outside lies, fails or dies.

A site in memory, intents and lock on a real disk. Not here: the real Slurm; tests/slurm has that.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fleetcraft.errors import (
    NoAnswerError,
    SlurmFailedError,
    SlurmTimeoutError,
    SubmissionUnknownError,
)
from fleetcraft.files import FileSystem
from fleetcraft.fleet.renewal.decision import Trouble
from fleetcraft.fleet.shapes import Mark, parse_shape, read_mark
from fleetcraft.locks import LockHeldError, LockLostError
from fleetcraft.slurm.accounting import Balance, Status
from tests.fleet.renewals import EIGHT, FOUR, ONE, ROOT, Killed, Site, a_job, no_answer, pending

KNOWN = Balance(
    status=Status.KNOWN, reason="limit of account proj", tres="node",
    limit_h=200.0, used_h=0.0, left_h=200.0, running_h=0.0,
)  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, tasks=pending(plain=100))


# ------------------------------------------------------------------------------------- the rule


def test_a_fleet_is_submitted_when_the_need_was_seen_twice_in_a_row(site: Site) -> None:
    renewer = site.controller(EIGHT)
    assert renewer.decides() == ["seen"]
    assert site.submitted == []
    report = renewer.look()
    assert [lane.decision.value for lane in report.lanes] == ["submitted"]
    assert report.lanes[0].job_id == site.submitted[0]
    assert "100 tasks fit it" in report.lanes[0].reason


def test_the_job_carries_the_nonce_and_the_mark_of_its_tree(site: Site) -> None:
    site.controller(EIGHT).decides(2)
    (job,) = site.queue.values()
    mark = read_mark(job.comment or "")
    assert mark is not None
    assert (mark.root, mark.lane) == (ROOT, "8x12:00:00")
    assert job.name == f"fleet-{ROOT}-{mark.nonce}"
    intent = json.loads((site.folder / "intents/8x43200s.1.json").read_bytes())
    ending = json.loads((site.folder / "intents/8x43200s.1.end.json").read_bytes())
    assert intent["nonce"] == ending["nonce"] == mark.nonce
    assert (intent["generation"], intent["cost_h"], intent["cluster"]) == (1, 96.0, "test")
    assert intent["observed"]["tasks"] == 100
    assert intent["sbatch"][0] == "sbatch"
    assert (ending["how"], ending["job"]) == ("submitted", job.job_id)


def test_a_need_that_vanishes_between_passes_submits_nothing_and_begins_anew(site: Site) -> None:
    renewer = site.controller(EIGHT)
    assert renewer.decides() == ["seen"]
    site.tasks = pending(plain=3)
    assert renewer.decides() == ["not needed"]
    site.tasks = pending(plain=100)
    assert renewer.decides() == ["seen"]
    assert site.submitted == []


def test_a_pass_without_an_answer_breaks_the_row(site: Site) -> None:
    renewer = site.controller(EIGHT)
    renewer.look()
    site.fails["jobs"] = no_answer()
    assert renewer.decides() == ["unknown"]
    del site.fails["jobs"]
    assert renewer.decides() == ["seen"]


def test_a_process_that_restarts_counts_anew(site: Site) -> None:
    site.controller(EIGHT).look()
    assert site.controller(EIGHT).decides() == ["seen"]


def test_fewer_tasks_than_the_shape_has_nodes_do_not_justify_it(site: Site) -> None:
    site.tasks = pending(plain=7)
    renewer = site.controller(EIGHT, FOUR)
    assert "justifies 7 of 8 nodes" in renewer.reasons()
    assert renewer.decides() == ["not needed", "submitted"]
    assert "present fleets will take 4, the rest justifies 3 of 8 nodes" in renewer.reasons()


def test_lanes_do_not_count_the_same_work_twice(site: Site) -> None:
    site.tasks = pending(plain=10)
    assert site.controller(EIGHT, FOUR).decides(2) == ["submitted", "not needed"]
    site.tasks = pending(plain=12)
    site.queue.clear()
    site.worked = set(site.submitted)
    assert site.controller(EIGHT, FOUR).decides(2) == ["submitted", "submitted"]


def test_a_larger_shape_in_the_queue_does_not_stand_for_a_smaller_one(site: Site) -> None:
    renewer = site.controller(EIGHT, FOUR)
    assert renewer.decides(2) == ["submitted", "submitted"]
    eight, four = site.submitted
    site.run(four, left_s=60)
    # Under a cap on nodes the eight can only wait when the four ends; its own lane follows it.
    del site.queue[four]
    assert renewer.decides(2) == ["queued", "submitted"]
    assert f"job {eight} of this shape waits" in renewer.reasons()


def test_one_fleet_of_a_shape_waits_at_a_time(site: Site) -> None:
    renewer = site.controller(EIGHT, max_jobs=9)
    assert renewer.decides(4) == ["queued"]
    site.run(site.submitted[0])
    assert renewer.decides(2) == ["submitted"]
    assert renewer.decides(3) == ["queued"]


def test_no_more_fleets_than_allowed_run_or_wait(site: Site) -> None:
    site.queue["7"] = a_job("7", comment=str(Mark(ROOT)), state="RUNNING", nodes=2)
    site.queue["8"] = a_job("8", comment="another user's words", state="RUNNING")
    site.queue["9"] = a_job("9", comment=str(Mark("ba9876543210")), state="RUNNING")
    renewer = site.controller(EIGHT, FOUR, max_jobs=2)
    assert renewer.decides(2) == ["submitted", "limit"]
    assert "renew.max_jobs is 2" in renewer.reasons()


def test_running_fleets_take_what_their_walltime_allows(site: Site) -> None:
    # Sixteen tasks of ten minutes: two nodes with two hours left take them all.
    site.tasks = pending(s600=16)
    site.queue["7"] = a_job(
        "7", comment=str(Mark(ROOT)), state="RUNNING", nodes=2,
        time_limit_s=43200, time_left_s=7200,
    )  # fmt: skip
    assert site.controller(FOUR).decides(2) == ["not needed"]
    # With ten minutes left they take none: workers claim nothing that does not fit.
    site.queue["7"] = replace(site.queue["7"], time_left_s=600)
    assert site.controller(FOUR).decides(2) == ["submitted"]


def test_a_fleet_whose_end_is_not_known_may_take_everything(site: Site) -> None:
    site.queue["7"] = a_job(
        "7", comment=str(Mark(ROOT)), state="RUNNING", time_limit_s=None, time_left_s=None
    )
    assert site.controller(EIGHT).decides(2) == ["not needed"]


def test_tasks_that_no_fleet_of_the_lane_could_claim_are_no_need(site: Site) -> None:
    # A worker that has just started has a little less than the whole walltime left.
    site.tasks = pending(s43200=50)
    renewer = site.controller(EIGHT)
    assert renewer.decides(2) == ["not needed"]
    assert "no pending task fits it" in renewer.reasons()


def test_single_gpu_tasks_justify_a_node_by_its_gpus(site: Site) -> None:
    site.tasks = pending(gpu=15)
    assert site.controller(FOUR, gpus_per_node=4).decides(2) == ["not needed"]
    site.tasks = pending(gpu=16)
    assert site.controller(FOUR, gpus_per_node=4).decides(2) == ["submitted"]


def test_more_tasks_can_be_asked_for_a_node(site: Site) -> None:
    site.tasks = pending(plain=79)
    assert site.controller(EIGHT, tasks_per_node=10).decides(2) == ["not needed"]
    site.tasks = pending(plain=80)
    assert site.controller(EIGHT, tasks_per_node=10).decides(2) == ["submitted"]


def test_a_marker_stops_renewal(site: Site) -> None:
    site.marks = {"DRAIN": "written by hand"}
    renewer = site.controller(EIGHT)
    assert renewer.decides(3) == ["marker"]
    assert site.submitted == []


def test_a_person_who_looked_needs_one_pass(site: Site) -> None:
    assert site.controller(EIGHT, by_hand=True).decides() == ["submitted"]


def test_a_lane_whose_last_fleet_started_nothing_is_not_renewed_by_itself(site: Site) -> None:
    renewer = site.controller(EIGHT)
    renewer.decides(2)
    (job,) = site.submitted
    del site.queue[job]
    assert renewer.decides(3) == ["no progress"]
    assert f"job {job}, is gone and started no task" in renewer.reasons()
    assert site.controller(EIGHT, by_hand=True).decides() == ["submitted"]


def test_a_dry_pass_writes_nothing_and_needs_no_lock(site: Site) -> None:
    from fleetcraft.fleet.renewal.decision import Rules
    from tests.fleet.renewals import Renewer

    dry = Renewer(site, [EIGHT, FOUR], None, Rules(root=ROOT))
    report = dry.look()
    assert [lane.decision.value for lane in report.lanes] == ["would submit", "would submit"]
    assert report.lanes[0].sbatch[0] == "sbatch"
    assert (site.submitted, site.files(), os.listdir(site.folder / "lock")) == ([], [], [])


# ----------------------------------------------------------------------- what does not answer


@pytest.mark.parametrize(
    "failure",
    [
        NoAnswerError("squeue", "it printed nothing, not even a header"),
        SlurmTimeoutError("squeue", 15.0),
        SlurmFailedError("squeue", 1, "slurm_load_jobs error: Unable to contact slurm controller"),
    ],
    ids=["empty", "slow", "error"],
)
def test_a_queue_that_does_not_answer_submits_nothing(site: Site, failure: Exception) -> None:
    site.fails["jobs"] = failure
    renewer = site.controller(EIGHT, FOUR)
    report = [renewer.look() for _ in range(3)][-1]
    assert [lane.decision.value for lane in report.lanes] == ["unknown", "unknown"]
    assert report.trouble is Trouble.SLURM
    assert report.lanes[0].need is None
    assert (site.submitted, site.files()) == ([], [])


def test_a_stale_answer_is_no_answer(site: Site) -> None:
    renewer = site.controller(EIGHT)
    renewer.look()
    site.age_s = 300
    report = renewer.look()
    assert report.trouble is Trouble.SLURM
    assert "300 s old" in report.lanes[0].reason
    assert site.submitted == []


def test_a_spool_that_cannot_be_seen_submits_nothing(site: Site) -> None:
    site.fails["demand"] = OSError(116, "Stale file handle", "/r/taskq/pending")
    renewer = site.controller(EIGHT)
    report = [renewer.look() for _ in range(3)][-1]
    assert report.trouble is Trouble.FILES
    assert report.lanes[0].reason == "Stale file handle (/r/taskq/pending)"
    assert site.submitted == []


@pytest.mark.parametrize(
    ("left", "decision", "words"),
    [
        (KNOWN, "submitted", ""),
        (replace(KNOWN, left_h=105.9), "balance", "9.9 h is below the headroom of 10 h"),
        (replace(KNOWN, left_h=106.0), "submitted", ""),
        (replace(KNOWN, running_h=150.0), "balance", "150.0 h promised"),
        (replace(KNOWN, status=Status.UNKNOWN, left_h=None), "unknown", "is not known"),
        (replace(KNOWN, status=Status.NOT_CHECKED), "balance", "cannot be checked"),
    ],
    ids=["enough", "too little", "just enough", "promised", "unknown", "not checked"],
)
def test_the_balance_must_be_known_and_stay_above_the_headroom(
    site: Site, left: Balance, decision: str, words: str
) -> None:
    site.left = left
    renewer = site.controller(EIGHT, headroom_h=10.0)
    assert renewer.decides() == ["seen"]
    report = renewer.look()
    assert [lane.decision.value for lane in report.lanes] == [decision]
    assert words in report.lanes[0].reason
    assert bool(site.submitted) is (decision == "submitted")


def test_without_a_headroom_the_balance_is_not_asked(site: Site) -> None:
    site.fails["balance"] = no_answer()
    assert site.controller(EIGHT).decides(2) == ["submitted"]
    assert site.asked["balance"] == 0


def test_a_balance_that_does_not_answer_submits_nothing(site: Site) -> None:
    site.fails["balance"] = no_answer("sshare is away")
    renewer = site.controller(EIGHT, headroom_h=10.0)
    report = [renewer.look() for _ in range(3)][-1]
    assert [lane.decision.value for lane in report.lanes] == ["unknown"]
    assert report.trouble is Trouble.SLURM
    assert site.submitted == []


def test_a_second_user_who_spends_the_balance_between_two_passes_stops_it(site: Site) -> None:
    site.left = KNOWN
    renewer = site.controller(EIGHT, headroom_h=10.0)
    assert renewer.decides() == ["seen"]
    site.left = replace(KNOWN, used_h=120.0, left_h=80.0)
    assert renewer.decides() == ["balance"]
    assert site.submitted == []


def test_what_waiting_jobs_and_earlier_lanes_will_cost_is_promised_already(site: Site) -> None:
    site.left = replace(KNOWN, left_h=160.0)
    site.queue["7"] = a_job("7", nodes=4, time_limit_s=7200)
    renewer = site.controller(EIGHT, FOUR, headroom_h=10.0)
    # 160 h less 8 h of job 7 less 96 h leave 56 h; the four nodes would leave 8 h.
    assert renewer.decides(2) == ["submitted", "balance"]
    site.queue["8"] = a_job("8", nodes=None)
    assert "is not known" in site.controller(ONE, headroom_h=10.0, by_hand=True).reasons()


def test_a_job_of_another_account_is_promised_nothing_here(site: Site) -> None:
    site.left = replace(KNOWN, left_h=107.0)
    site.queue["7"] = a_job("7", account="other", nodes=400)
    assert site.controller(EIGHT, headroom_h=10.0, account="proj").decides(2) == ["submitted"]


def test_gpu_hours_are_counted_by_what_jobs_ask_for(site: Site) -> None:
    site.left = replace(KNOWN, tres="gres/gpu", left_h=16.0)
    site.queue["7"] = a_job("7", nodes=2, tres_per_node="gres:gpu:a100:3")
    lane = parse_shape("2x01:00:00")
    rules = {"headroom_h": 7.0, "tres": "gres/gpu", "by_hand": True}
    # 16 less 6 of job 7 less 2 for one GPU a node leave 8; less 4 for two they leave 6.
    assert site.controller(lane, gpus_per_node=2, **rules).decides() == ["balance"]
    assert site.controller(lane, gpus_per_node=1, **rules).decides() == ["submitted"]


@pytest.mark.parametrize(
    ("asked", "counted", "hours"),
    [
        ("gres:gpu", 0, 2),
        ("gres:gpu:a100:1,gres:gpu:v100:2", 0, 6),
        (None, 3, 3),  # --gpus=3
        (None, 0, 0),
    ],
)
def test_every_gpu_that_a_waiting_job_asks_for_is_promised(
    site: Site, asked: str | None, counted: int, hours: int
) -> None:
    site.left = replace(KNOWN, tres="gres/gpu", left_h=9.0 + hours)
    site.queue["7"] = a_job("7", nodes=2, tres_per_node=asked, tres={"gres/gpu": counted})
    rules = {"tres": "gres/gpu", "by_hand": True, "gpus_per_node": 1}
    lane = parse_shape("2x01:00:00")
    assert site.controller(lane, headroom_h=7.1, **rules).decides() == ["balance"]
    assert site.controller(lane, headroom_h=7.0, **rules).decides() == ["submitted"]


def test_a_fleet_of_which_nobody_knows_how_many_nodes_it_has_may_take_everything(
    site: Site,
) -> None:
    site.tasks = pending(plain=1000)
    site.queue["7"] = a_job("7", nodes=None, comment=f"fleetcraft root={ROOT}", state="RUNNING")
    assert site.controller(EIGHT).decides(2) == ["not needed"]


def test_a_refusal_of_slurm_is_said_and_leaves_nothing_open(site: Site) -> None:
    site.fails["submit"] = SlurmFailedError("sbatch", 1, "error: Invalid account")
    renewer = site.controller(EIGHT)
    report = [renewer.look() for _ in range(2)][-1]
    assert [lane.decision.value for lane in report.lanes] == ["refused"]
    assert report.trouble is Trouble.SLURM
    assert "Invalid account" in report.lanes[0].reason
    del site.fails["submit"]
    assert renewer.decides(2) == ["submitted"]
    assert site.files() == [f"8x43200s.{n}{end}.json" for n in (1, 2) for end in (".end", "")]


# --------------------------------------------------------------------------- crashes and doubt


def lost_answer(site: Site, *, job_exists: bool) -> None:
    name = "after submit" if job_exists else "submit"
    site.fails[name] = SubmissionUnknownError("sbatch did not answer within 60 s", "fleet-x")


@pytest.mark.parametrize("how", ["killed", "answer lost"])
def test_a_job_whose_submission_was_not_written_down_is_found_by_its_nonce(
    site: Site, how: str
) -> None:
    renewer = site.controller(EIGHT)
    renewer.look()
    if how == "killed":
        site.fails["after submit"] = Killed()
        with pytest.raises(Killed):
            renewer.look()
        renewer = site.controller(EIGHT)
    else:
        lost_answer(site, job_exists=True)
        assert renewer.decides() == ["intent open"]
    assert site.files() == ["8x43200s.1.json"]
    site.fails.clear()
    report = renewer.look()
    (job,) = site.submitted
    assert [(found.how, found.job_id) for found in report.settled] == [("submitted", job)]
    assert [lane.decision.value for lane in report.lanes] == ["queued"]
    assert renewer.decides(5) == ["queued"]
    assert site.submitted == [job]


@pytest.mark.parametrize("how", ["killed", "answer lost"])
def test_a_submission_without_a_job_is_given_up_only_when_sbatch_must_be_over(
    site: Site, how: str
) -> None:
    renewer = site.controller(EIGHT)
    renewer.look()
    if how == "killed":
        site.fails["submit"] = Killed()
        with pytest.raises(Killed):
            renewer.look()
        renewer = site.controller(EIGHT)
    else:
        lost_answer(site, job_exists=False)
        report = renewer.look()
        assert report.trouble is Trouble.SLURM
    site.fails.clear()
    began_s = site.now_s
    while renewer.decides() == ["intent open"]:
        assert site.submitted == []
        assert site.now_s < began_s + 300
    assert site.now_s - began_s >= 180
    assert renewer.decides() == ["submitted"]
    assert json.loads((site.folder / "intents/8x43200s.1.end.json").read_bytes())["how"] == (
        "abandoned"
    )


def test_a_failed_query_never_ends_the_doubt(site: Site) -> None:
    renewer = site.controller(EIGHT)
    renewer.look()
    lost_answer(site, job_exists=True)
    renewer.look()
    site.fails = {"jobs": no_answer()}
    assert renewer.decides(60) == ["unknown"]
    # Nor does an answer that was asked for before the time was up.
    site.fails.clear()
    site.queue.clear()
    site.age_s = 59
    site.fails["sacct"] = no_answer("slurmdbd is away")
    report = renewer.look()
    assert [lane.decision.value for lane in report.lanes] == ["intent open"]
    assert report.trouble is Trouble.SLURM
    assert len(site.submitted) == 1


def test_a_job_that_the_queue_has_forgotten_is_found_in_the_accounting(site: Site) -> None:
    renewer = site.controller(EIGHT)
    renewer.look()
    lost_answer(site, job_exists=True)
    renewer.look()
    site.fails.clear()
    (job,) = site.submitted
    site.recorded = {site.queue.pop(job).name: job}
    site.worked = {job}
    site.wait(200)
    report = renewer.look()
    assert [(found.how, found.found_by) for found in report.settled] == [("submitted", "sacct")]
    assert renewer.decides() == ["submitted"]
    assert len(site.submitted) == 2


def test_an_ended_job_of_an_open_intent_is_found_in_the_queue_too(site: Site) -> None:
    renewer = site.controller(EIGHT)
    renewer.look()
    lost_answer(site, job_exists=True)
    renewer.look()
    site.fails.clear()
    (job,) = site.submitted
    site.queue[job] = replace(site.queue[job], state="FAILED")
    assert renewer.decides() == ["no progress"]


def test_a_job_id_that_was_used_again_is_not_our_fleet(site: Site) -> None:
    renewer = site.controller(EIGHT)
    renewer.decides(2)
    (job,) = site.submitted
    site.worked = {job}
    site.queue[job] = a_job(job, name="somebody's", comment="else", state="RUNNING", nodes=8)
    assert renewer.decides(2) == ["submitted"]
    assert len(site.submitted) == 2


def test_a_comment_that_the_site_has_rewritten_does_not_hide_the_job(site: Site) -> None:
    renewer = site.controller(EIGHT)
    renewer.look()
    lost_answer(site, job_exists=True)
    renewer.look()
    site.fails.clear()
    (job,) = site.submitted
    site.queue[job] = replace(site.queue[job], comment="approved by plugin")
    report = renewer.look()
    assert [found.job_id for found in report.settled] == [job]
    # Nor that it is one of this tree's fleets.
    assert renewer.decides(3) == ["queued"]
    assert site.submitted == [job]


def test_a_job_of_another_shape_than_meant_is_said_and_still_counted(site: Site) -> None:
    site.tasks = pending(plain=8)
    renewer = site.controller(EIGHT)
    renewer.look()
    lost_answer(site, job_exists=True)
    renewer.look()
    site.fails.clear()
    (job,) = site.submitted
    site.queue[job] = replace(site.queue[job], nodes=5)
    report = renewer.look()
    assert "meant were 8 nodes for 43200 s, it has 5" in report.settled[0].reason
    assert renewer.decides(3) == ["not needed"]
    site.tasks = pending(plain=100)
    assert renewer.decides(3) == ["queued"]
    assert site.submitted == [job]


def test_an_intent_of_another_cluster_is_not_judged_by_this_one(site: Site) -> None:
    renewer = site.controller(EIGHT)
    renewer.look()
    lost_answer(site, job_exists=True)
    renewer.look()
    site.fails.clear()
    site.queue.clear()
    site.cluster = "elsewhere"
    assert renewer.decides(50) == ["intent open"]
    assert "meant for cluster test, and elsewhere answers here" in renewer.reasons()


def test_an_intent_that_cannot_be_read_stops_its_lane_and_no_other(site: Site) -> None:
    (site.folder / "intents/8x43200s.1.json").write_bytes(b'{"schema":')
    renewer = site.controller(EIGHT, FOUR)
    report = [renewer.look() for _ in range(2)][-1]
    assert [lane.decision.value for lane in report.lanes] == ["unknown", "submitted"]
    assert report.trouble is Trouble.FILES
    assert "cannot read the intent" in report.lanes[0].reason


def test_open_intents_of_lanes_that_are_no_longer_renewed_are_settled_too(site: Site) -> None:
    renewer = site.controller(EIGHT)
    renewer.look()
    lost_answer(site, job_exists=True)
    renewer.look()
    site.fails.clear()
    report = site.controller(FOUR).look()
    assert [found.how for found in report.settled] == ["submitted"]


def test_an_open_intent_counts_as_a_fleet_that_may_be_there(site: Site) -> None:
    site.tasks = pending(plain=10)
    renewer = site.controller(EIGHT, FOUR)
    renewer.look()
    lost_answer(site, job_exists=False)
    assert renewer.decides() == ["intent open", "not needed"]
    site.tasks = pending(plain=100)
    site.fails.clear()
    assert renewer.decides(2) == ["intent open", "submitted"]
    assert site.controller(ONE).decides(2) == ["limit"]


# ------------------------------------------------------------------------- several controllers


def test_a_second_controller_is_told_who_has_the_lock(site: Site) -> None:
    site.lock().acquire()
    with pytest.raises(LockHeldError) as raised:
        site.lock().acquire()
    assert raised.value.exit_code == 75


def test_a_controller_that_was_followed_decides_nothing_more(site: Site) -> None:
    first = site.controller(EIGHT)
    first.look()
    second = site.controller(EIGHT)
    with pytest.raises(LockLostError):
        first.look()
    assert second.decides(2) == ["submitted"]
    assert len(site.submitted) == 1


def test_a_lock_that_cannot_be_seen_for_a_while_submits_nothing_and_goes_on_after(
    site: Site,
) -> None:
    fs = FileSystem()
    renewer = site.controller(EIGHT, fs=fs)
    renewer.look()

    def stale(path: str) -> list[str]:
        raise OSError(116, os.strerror(116), path)

    def hide_the_lock() -> None:
        del site.on["demand"]
        hidden.start()

    hidden = mock.patch.object(fs, "listdir", stale)
    with hidden:
        report = renewer.look()
    assert [lane.decision.value for lane in report.lanes] == ["unknown"]
    assert report.trouble is Trouble.FILES
    renewer.look()
    site.on["demand"] = hide_the_lock
    report = renewer.look()
    hidden.stop()
    assert [lane.decision.value for lane in report.lanes] == ["unknown"]
    assert "cannot tell who owns renewal" in report.lanes[0].reason
    assert site.submitted == []
    assert renewer.decides(2) == ["submitted"]


@pytest.mark.parametrize("moment", ["demand", "jobs"])
def test_a_controller_that_is_followed_during_its_pass_submits_nothing(
    site: Site, moment: str
) -> None:
    first = site.controller(EIGHT)
    first.look()

    def follow() -> None:
        del site.on[moment]
        site.controller(EIGHT)

    site.on[moment] = follow
    with pytest.raises(LockLostError):
        first.look()
    assert (site.submitted, site.files()) == ([], [])


def test_two_that_both_believe_to_hold_the_lock_submit_one_fleet_for_one_window(
    site: Site,
) -> None:
    # Arrange: both decide from the same sight, and neither is told that it lost the lock.
    held: Any = mock.Mock(generation=9, holder=site.lock().acquire().holder)
    first, second = site.controller(EIGHT, held=held), site.controller(EIGHT, held=held)
    first.look()

    def the_other_goes_on() -> None:
        del site.on["demand"]
        assert second.decides(2) == ["submitted"]
        site.queue = {}  # what it made is not seen by the first one, which looked before

    site.on["demand"] = the_other_goes_on
    # Act
    report = first.look()
    # Assert
    assert [lane.decision.value for lane in report.lanes] == ["intent open"]
    assert "another controller has recorded window 1" in report.lanes[0].reason
    assert len(site.submitted) == 1


def test_a_controller_paused_after_its_record_does_not_submit_late(site: Site) -> None:
    fs = FileSystem()
    renewer = site.controller(EIGHT, fs=fs)
    renewer.look()
    listdir = fs.listdir

    def slow(path: str) -> list[str]:
        # Its last look at the lock, after the record: it stops there for a minute.
        if "8x43200s.1.json" in os.listdir(site.folder / "intents"):
            site.wait(60)
        return listdir(path)

    with mock.patch.object(fs, "listdir", slow):
        report = renewer.look()
    assert [lane.decision.value for lane in report.lanes] == ["unknown"]
    assert "paused for 60 s" in report.lanes[0].reason
    assert site.submitted == []
    assert renewer.decides(2) == ["submitted"]


def test_a_job_that_comes_after_everybody_gave_it_up_is_cancelled(site: Site) -> None:
    first = site.controller(EIGHT)
    first.look()
    made: list[str] = []

    def others_go_on() -> None:
        # sbatch of the first one stands still; meanwhile another takes over and gives up on it.
        del site.on["submit"]
        second = site.controller(EIGHT)
        while second.decides() != ["submitted"]:
            assert site.now_s < 3000
        made.extend(site.submitted)

    site.on["submit"] = others_go_on
    report = first.look()
    assert [lane.decision.value for lane in report.lanes] == ["unknown"]
    assert "came after another controller had given up on it; it was cancelled" in (
        report.lanes[0].reason
    )
    assert len(site.submitted) == 2
    assert list(site.queue) == made
    assert set(site.cancelled) == set(site.submitted) - set(made)


def test_a_late_job_that_cannot_be_cancelled_is_supply(site: Site) -> None:
    first = site.controller(EIGHT)
    first.look()

    def others_give_up() -> None:
        del site.on["submit"]
        site.tasks = pending(plain=0)
        second = site.controller(EIGHT)
        while "8x43200s.1.end.json" not in site.files():
            second.look()
        site.tasks = pending(plain=100)

    site.on["submit"] = others_give_up
    site.fails["cancel"] = no_answer()
    report = first.look()
    assert [lane.decision.value for lane in report.lanes] == ["submitted"]
    assert "could not be cancelled" in report.lanes[0].reason
    site.fails.clear()
    assert site.controller(EIGHT).decides(3) == ["queued"]


@pytest.mark.parametrize("step_s", [3600.0, -3600.0], ids=["ahead", "back"])
def test_a_clock_that_steps_across_a_renewal_changes_nothing(site: Site, step_s: float) -> None:
    renewer = site.controller(EIGHT)
    renewer.look()
    real = time.time
    with mock.patch("time.time", side_effect=lambda: real() + step_s):
        assert renewer.decides() == ["submitted"]
        lost_answer(site, job_exists=False)
        site.run(site.submitted[0], left_s=60)
        renewer.decides(2)
        site.fails.clear()
        assert renewer.decides(15) == ["intent open"]
    assert len(site.submitted) == 1


# ------------------------------------------------------------------- killed at any file operation


class DyingFS(FileSystem):
    """Dies at its k-th operation, before or after it is done, and does nothing more."""

    def __init__(self, at: int, *, after: bool) -> None:
        super().__init__()
        self.at = at
        self.after = after
        self.count = 0
        self.names: list[str] = []

    def step(self, name: str, perform: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        self.count += 1
        self.names.append(name)
        if self.count > self.at or (self.count == self.at and not self.after):
            raise Killed
        result = perform(*arguments, **more)
        if self.count == self.at:
            raise Killed
        return result


def _dying(name: str) -> Callable[..., Any]:
    perform = getattr(FileSystem, name)

    def method(self: DyingFS, *arguments: Any, **more: Any) -> Any:
        return self.step(name, perform, self, *arguments, **more)

    return method


for _name in ("listdir", "read", "create", "link", "unlink", "replace", "sync_folder"):
    setattr(DyingFS, _name, _dying(_name))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_controller_that_dies_at_any_file_operation_leaves_one_fleet_in_the_end(
    tmp_path: Path, after: bool
) -> None:
    met: set[str] = set()
    submitted_before: set[int] = set()
    for at in range(1, 200):
        site = Site(tmp_path, tasks=pending(plain=8))
        fs = DyingFS(at, after=after)
        try:
            renewer = site.controller(EIGHT, fs=fs)
            renewer.decides(2)
            died = False
        except Killed:
            died = True
        met.update(fs.names)
        submitted_before.add(len(site.submitted))
        successor = site.controller(EIGHT)
        for _ in range(25):
            successor.look()
            if site.submitted:
                break
        for _ in range(22):
            successor.look()
        assert len(site.submitted) == 1, f"died at operation {at}, {fs.names[-1]}"
        assert all(entry.ending for entry in site.intents().latest().values()), at
        for folder in ("intents", "lock"):
            for file in (tmp_path / folder).iterdir():
                file.unlink()
        if not died:
            break
    assert at > 25
    assert submitted_before == {0, 1}
    assert {"listdir", "read", "create", "link", "unlink", "replace", "sync_folder"} <= met
