"""A calibration from its first trial to its record, its processes played by the test."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fleetcraft.calibration.family import Family
from fleetcraft.calibration.records import (
    MIB,
    Calibration,
    Environment,
    Failure,
    OwnerBytes,
    PhaseRecord,
    Trial,
    Verdict,
)
from fleetcraft.calibration.sweep import timing
from fleetcraft.calibration.sweep.run import Runners, calibrate
from fleetcraft.calibration.sweep.store import newest, read_calibration, read_trial, trial_record
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.calibration.trial.reading import Journal, Predicted
from fleetcraft.errors import ConfigError, FleetError, UsageError
from fleetcraft.layout import Scratch
from tests.calibration.sweep.families import PROVEN

FAMILIES = Path(__file__).with_name("simfam.py")
PLAIN = f"{FAMILIES}:plain"


class Player:
    """Plays the processes of a family that scales, with a peak of 100 MiB a sample."""

    def __init__(self, **change: Any) -> None:
        self.orders: list[Order] = []
        self.families: list[Family] = []
        self.expected_s: list[float | None] = []
        self.change = change
        self.predicted = True

    def trial(self, order: Order, family: Family, *, expected_s, on_event) -> Trial:
        self.orders.append(order)
        self.families.append(family)
        self.expected_s.append(expected_s)
        on_event({"event": "phase_begin", "phase": "decode"})
        if Pass.SOAK in order.passes:
            return self._soak(order, family)
        wall = 1.0
        walls = (wall,) * (order.timed_cycles if Pass.TIME in order.passes else 0)
        return self._changed(
            order,
            Trial(
                family=family.key, identity=family.identity_hash, batch=order.batch,
                verdict=Verdict.OK, phase="decode", checks=PROVEN,
                phases=(PhaseRecord(
                    name="decode", walls_s=walls, peak_bytes=int(100 * MIB) * order.batch,
                    rss_peak_bytes=int(100 * MIB),
                ),),
                cycle_walls_s=walls, samples_per_s=order.batch / wall if walls else None,
                tracking_overhead_fraction=0.08 if Pass.OVERHEAD in order.passes else None,
                environment=Environment(device="cpu"),
            ),
        )  # fmt: skip

    def _soak(self, order: Order, family: Family) -> Trial:
        return self._changed(
            order,
            Trial(
                family=family.key, identity=family.identity_hash, batch=order.batch,
                verdict=Verdict.OK, soak_live_bytes=(7,) * order.soak_cycles,
            ),
        )  # fmt: skip

    def _changed(self, order: Order, trial: Trial) -> Trial:
        key = f"{'soak' if Pass.SOAK in order.passes else 'batch'}{order.batch}"
        return msgspec.structs.replace(trial, **self.change.get(key, {}))

    def order(self, order: Order, family: Family, *, on_event) -> Journal:
        self.orders.append(order)
        if not self.predicted:
            return Journal(path="", last_pass="preflight")
        return Journal(
            path="",
            predictions=tuple(
                Predicted(
                    batch=batch, peak_bytes=batch * (100 << 20), phase="backward2",
                    phases={"backward1": batch * (60 << 20), "backward2": batch * (100 << 20)},
                )
                for batch in order.preflight_batches
            ),
        )  # fmt: skip

    @property
    def tried(self) -> list[tuple[str, int]]:
        return [(Path(order.folder).name, order.batch) for order in self.orders]


@pytest.fixture(autouse=True)
def own_turn(tmp_path, monkeypatch):
    turns = tmp_path / "turns"
    turns.mkdir()
    monkeypatch.setattr(timing, "node_local_folder", lambda: str(turns))


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    root = tmp_path / "scratch"
    root.mkdir()
    return Scratch(str(root))


def run(scratch: Scratch, player: Player, name: str = PLAIN, **asked: Any) -> Calibration:
    asked = {"batches": [1, 2, 4], "device": "cpu", **asked}
    runners = Runners(trial=player.trial, order=player.order)
    return calibrate(name, scratch=scratch, runners=runners, **asked)


FAILED = {"verdict": Verdict.FAILED, "failure": Failure.CAPACITY, "phase": "backward2"}


def test_every_batch_is_tried_in_order_and_the_chosen_one_is_soaked(scratch):
    player = Player()

    found = run(scratch, player)

    assert player.tried == [
        ("preflight", 1), ("batch-001", 1), ("batch-002", 2), ("batch-004", 4), ("soak-004", 4),
    ]  # fmt: skip
    assert (found.choice.batch, found.choice.reason) == (4, "largest_tried")
    assert [one.soak_live_bytes for one in found.trials] == [(), (), (7, 7, 7, 7)]
    assert found.ok
    assert found.warnings == ()


def test_the_first_trial_counts_flops_and_the_soak_measures_overhead(scratch):
    player = Player()

    run(scratch, player)

    _, first, second, _, soak = player.orders
    assert first.passes == (Pass.CHECKS, Pass.MEMORY, Pass.TIME, Pass.FLOPS)
    assert second.passes == (Pass.CHECKS, Pass.MEMORY, Pass.TIME)
    assert soak.passes == (Pass.SOAK, Pass.OVERHEAD)


def test_the_longest_silence_grows_with_the_batch(scratch):
    player = Player()

    run(scratch, player)

    assert player.expected_s == [None, 2.0, 2.0, 1.0]


def test_a_trial_that_failed_early_shortens_no_other_ones_silence(scratch):
    early = PhaseRecord(name="load", walls_s=(0.01,))
    player = Player(batch2={**FAILED, "phases": (early,)})

    run(scratch, player)

    assert player.tried[-1] == ("soak-001", 1)
    assert player.expected_s == [None, 2.0, 1.0]


def test_what_is_asked_reaches_the_trials_and_the_preflight_has_no_limits(scratch):
    player = Player()

    run(scratch, player, fault="tight", seed=5, threads=2, sdpa="math", timed_cycles=4,
        soak_cycles=6, device_budget_bytes=int(900 * MIB), batches=[1])  # fmt: skip

    preflight, first, soak = player.orders
    assert (first.fault, first.seed, first.threads, first.sdpa) == ("tight", 5, 2, "math")
    assert (first.timed_cycles, first.soak_cycles) == (4, 6)
    assert (first.device_budget_bytes, first.host_budget_bytes) == (900 << 20, 64 << 20)
    assert (first.pids_limit, soak.pids_limit) == (12, 12)
    assert player.families[0].patience_s == 3.0
    assert os.path.isabs(first.family.rpartition(":")[0])
    assert (preflight.fault, preflight.device_budget_bytes, preflight.host_budget_bytes) == (
        "", None, None,
    )  # fmt: skip
    assert (preflight.pids_limit, preflight.seed) == (None, 5)


def test_patience_that_was_given_outweighs_that_of_a_fault(scratch):
    player = Player()

    run(scratch, player, fault="tight", patience_s=60.0, batches=[1])

    family = player.families[0]
    assert family.patience_s == 60.0
    assert family.faults["tight"].patience_s is None


def test_what_was_given_outweighs_what_a_fault_would_set(scratch):
    player = Player()

    run(scratch, player, fault="tight", host_budget_bytes=1 << 30, patience_s=9.0, batches=[1])

    assert player.orders[1].host_budget_bytes == 1 << 30
    assert player.families[0].patience_s == 9.0


def test_a_fault_between_two_peaks_sets_the_budget_half_way(scratch):
    player = Player(batch1=FAILED)

    found = run(scratch, player, fault="step2_only")

    assert player.orders[1].device_budget_bytes == found.device_budget_bytes == 80 << 20
    assert [one.verdict for one in found.trials] == ["failed", "skipped", "skipped"]
    assert {one.failure for one in found.trials[1:]} == {Failure.SMALLER_FAILED}
    assert not found.ok
    assert found.choice.batch is None


def test_a_fault_between_two_peaks_without_a_preflight_is_an_error_not_a_quiet_run(scratch):
    player = Player()
    player.predicted = False

    with pytest.raises(FleetError, match="nothing was tried"):
        run(scratch, player, fault="step2_only")

    assert player.tried == [("preflight", 1)]


def test_batches_above_the_budget_are_skipped_by_prediction_and_that_is_no_failure(scratch):
    player = Player()

    found = run(scratch, player, device_budget_bytes=int(250 * MIB))

    assert [(one.batch, one.verdict, one.failure) for one in found.trials] == [
        (1, Verdict.OK, None), (2, Verdict.OK, None), (4, Verdict.SKIPPED, Failure.PREDICTED),
    ]  # fmt: skip
    assert found.trials[2].predicted_peak_bytes == 400 << 20
    assert found.ok
    assert (found.choice.batch, found.choice.reason) == (2, "headroom")


def test_a_failed_preflight_costs_a_warning_and_nothing_else(scratch):
    player = Player()
    player.predicted = False

    found = run(scratch, player)

    assert found.choice.batch == 4
    assert found.predictions == ()
    (warning,) = found.warnings
    assert "no whole preflight" in warning


def test_a_family_that_cannot_be_faked_is_not_faked(scratch):
    player = Player()

    found = run(scratch, player, f"{FAMILIES}:unfakeable", batches=[1])

    assert player.tried == [("batch-001", 1), ("soak-001", 1)]
    assert "cannot run on fake tensors" in found.warnings[0]


# ------------------------------------------------------------------------------------- soak


RISING = {
    "verdict": Verdict.FAILED, "failure": Failure.SOAK_RISING, "phase": "save",
    "soak_live_bytes": (1, 2, 3, 4), "detail": "bytes rise", "evidence": {"rise": 3},
}  # fmt: skip


def test_a_rising_soak_fails_its_trial_and_the_next_smaller_is_soaked_too(scratch):
    player = Player(soak4=RISING)

    found = run(scratch, player)

    assert player.tried[-2:] == [("soak-004", 4), ("soak-002", 2)]
    assert (found.choice.batch, found.choice.reason) == (2, "soak_rising")
    risen = found.trials[2]
    assert (risen.verdict, risen.failure, risen.phase) == ("failed", "soak_rising", "save")
    assert risen.soak_live_bytes == (1, 2, 3, 4)
    assert risen.evidence["soak"] == {"rise": 3}
    assert risen.peak_bytes == 400 << 20
    assert not found.ok
    assert read_trial(trial_record(found.folder, 4)) == risen


def test_a_peak_of_a_later_cycle_counts_against_the_headroom(scratch):
    later = PhaseRecord(name="decode", peak_bytes=int(450 * MIB), rss_peak_bytes=1)

    found = run(scratch, Player(soak4={"phases": (later,)}), device_budget_bytes=int(500 * MIB))

    assert (found.choice.batch, found.choice.reason) == (2, "headroom")
    (decode,) = found.trials[2].phases
    assert (decode.peak_bytes, decode.rss_peak_bytes) == (450 << 20, 100 << 20)
    assert decode.walls_s == (1.0, 1.0, 1.0)
    assert found.ok


def test_the_phase_and_owner_of_a_peak_are_those_of_the_cycle_that_reached_it(scratch):
    def phases(denoise_mib: int) -> tuple[PhaseRecord, ...]:
        return tuple(
            PhaseRecord(
                name=name, peak_bytes=mib << 20, rss_peak_bytes=1,
                owners=(OwnerBytes(name=owner, bytes=mib << 20),),
            )
            for name, owner, mib in (("denoise", "cache", denoise_mib), ("decode", "pixels", 60))
        )  # fmt: skip

    of_one = {"phases": phases(50), "phase": "decode", "owner": "pixels"}
    of_many = {"phases": phases(70), "phase": "denoise", "owner": "cache"}
    player = Player(batch1=of_one, soak1={**of_many, "journal": "j", "journal_sha256": "sha256:x"})

    (found,) = run(scratch, player, batches=[1]).trials

    assert (found.verdict, found.peak_bytes) == ("ok", 70 << 20)
    assert (found.phase, found.owner) == ("denoise", "cache")
    soaked = (found.evidence["soak_journal"], found.evidence["soak_journal_sha256"])
    assert soaked == ("j", "sha256:x")


def test_when_every_soak_rises_there_is_no_choice(scratch):
    player = Player(soak1=RISING, soak2=RISING, soak4=RISING)

    found = run(scratch, player)

    assert [one.verdict for one in found.trials] == ["failed"] * 3
    assert found.choice.batch is None


def test_no_soak_is_run_when_none_is_asked_for(scratch):
    player = Player()

    found = run(scratch, player, soak_cycles=0)

    assert player.tried[-1] == ("batch-004", 4)
    assert found.choice.batch == 4


# ----------------------------------------------------------------------------------- timing


def test_times_taken_beside_a_neighbour_are_refused_with_a_warning(scratch, monkeypatch):
    looks = iter(["", "", "", "1 other processes are on the GPU", "", ""])
    monkeypatch.setattr(timing, "why_shared", lambda device: next(looks))
    player = Player()

    found = run(scratch, player)

    one, two, four = found.trials
    assert (len(one.cycle_walls_s), two.cycle_walls_s, len(four.cycle_walls_s)) == (3, (), 3)
    assert two.samples_per_s is None
    assert two.evidence["not_timed"] == "1 other processes are on the GPU"
    assert (found.choice.batch, found.choice.reason) == (1, "not_timed")
    assert found.warnings == ("batch 2 is not timed: 1 other processes are on the GPU",)
    assert player.expected_s[2] == 2.0  # how long it took is still known


def test_without_timed_cycles_nothing_is_timed_and_no_turn_is_taken(scratch, monkeypatch):
    def refuse(*args: object, **more: object):
        raise AssertionError("the turn was taken")

    monkeypatch.setattr(timing, "_wait_for", refuse)
    player = Player()

    found = run(scratch, player, timed_cycles=0)

    assert player.orders[1].passes == (Pass.CHECKS, Pass.MEMORY, Pass.FLOPS)
    assert (found.choice.batch, found.choice.reason) == (1, "not_timed")


def test_tracking_that_costs_too_much_is_warned_of(scratch):
    player = Player(batch1={"tracking_overhead_fraction": 0.31})

    (warning,) = run(scratch, player).warnings

    assert "31% more CPU time at batch 1, more than 15%" in warning


# ------------------------------------------------------------------------- choice, semantics


def test_shared_decisions_keep_batch_one(scratch):
    found = run(scratch, Player(), f"{FAMILIES}:shared")

    assert (found.choice.batch, found.choice.reason, found.semantics) == (
        1, "semantics_shared", "shared",
    )  # fmt: skip


def test_a_host_budget_above_the_machines_memory_gives_no_room(scratch, monkeypatch):
    monkeypatch.setattr(
        "fleetcraft.calibration.sweep.run.psutil.virtual_memory",
        lambda: SimpleNamespace(available=int(1000 * MIB)),
    )
    large = PhaseRecord(name="decode", peak_bytes=1, rss_peak_bytes=int(950 * MIB))

    found = run(scratch, Player(batch2={"phases": (large,)}), batches=[1, 2],
                host_budget_bytes=int(1e6 * MIB))  # fmt: skip

    assert (found.choice.batch, found.choice.reason) == (1, "host_bound")
    assert "950.0 of 1000.0 MiB of host memory" in found.choice.detail


def test_without_a_list_it_doubles_within_the_budget(scratch):
    player = Player()

    found = run(scratch, player, batches=None, device_budget_bytes=int(1000 * MIB))

    assert [one.batch for one in found.trials] == [1, 2, 4, 8]
    assert found.choice.batch == 8
    assert player.orders[0].preflight_batches == (1, 2)


# ------------------------------------------------------------------------ records and events


def test_the_record_on_disk_is_what_was_returned_and_private(scratch):
    found = run(scratch, Player())

    assert read_calibration(found.folder) == found == newest(scratch, "sim/plain")
    assert sorted(os.listdir(found.folder)) == [
        "calibration.json", "trial-001.json", "trial-002.json", "trial-004.json",
    ]  # fmt: skip
    assert stat.S_IMODE(os.stat(found.folder).st_mode) == 0o700
    assert found.started_at <= found.ended_at
    assert found.identity_fields["key"] == "sim/plain"


def test_an_interrupted_run_is_not_whole_and_what_ran_can_be_read(scratch):
    class Interrupted(Player):
        def trial(self, order: Order, *args: Any, **more: Any) -> Trial:
            if order.batch == 4:
                raise KeyboardInterrupt
            return super().trial(order, *args, **more)

    with pytest.raises(KeyboardInterrupt):
        run(scratch, Interrupted())

    (folder,) = os.listdir(scratch.family_folder("sim/plain"))
    place = scratch.calibration_run("sim/plain", folder)
    assert sorted(os.listdir(place)) == ["trial-001.json", "trial-002.json"]
    assert read_trial(trial_record(place, 2)).verdict is Verdict.OK
    with pytest.raises(FleetError, match="no whole calibration"):
        newest(scratch, "sim/plain")


def test_a_record_is_there_as_soon_as_its_trial_has_ended(scratch):
    seen = []

    def watch(event: dict[str, Any]) -> None:
        if event["event"] == "trial_end":
            (folder,) = os.listdir(scratch.family_folder("sim/plain"))
            place = scratch.calibration_run("sim/plain", folder)
            seen.append(os.path.exists(trial_record(place, event["batch"])))

    run(scratch, Player(), on_event=watch)

    assert seen == [True] * 4


def test_events_tell_the_whole_course_and_are_json(scratch):
    events: list[dict[str, Any]] = []

    run(scratch, Player(soak4=RISING), on_event=events.append)

    names = [event["event"] for event in events]
    assert names[:4] == ["run_begin", "preflight_begin", "preflight_end", "trial_begin"]
    assert names[-1] == "run_end"
    phases = [event for event in events if event["event"] == "phase_begin"]
    assert [(event["part"], event["batch"]) for event in phases] == [
        ("trial", 1), ("trial", 2), ("trial", 4), ("soak", 4), ("soak", 2),
    ]  # fmt: skip
    ends = [event for event in events if event["event"] == "trial_end" and event["batch"] == 4]
    assert [event["class"] for event in ends] == [None, "soak_rising"]
    json.dumps(events)


# ---------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("asked", [
    {"batches": [0]}, {"batches": []}, {"device": "tpu"}, {"fault": "step2_onl"},
    {"timed_cycles": -1}, {"soak_cycles": -1}, {"threads": 0}, {"name": "nowhere"},
    {"name": f"{FAMILIES}:gone"},
])  # fmt: skip
def test_words_that_are_off_are_refused_before_anything_is_made(scratch, asked):
    with pytest.raises(UsageError):
        run(scratch, Player(), **asked)

    assert os.listdir(scratch.root) == []


def test_a_near_fault_is_suggested(scratch):
    with pytest.raises(UsageError) as refusal:
        run(scratch, Player(), fault="step2_onl")

    assert refusal.value.hint == "did you mean 'step2_only'?"


def test_without_a_scratch_tree_nothing_is_tried(tmp_path):
    player = Player()

    with pytest.raises(ConfigError):
        run(Scratch(str(tmp_path / "gone")), player)

    assert player.orders == []
