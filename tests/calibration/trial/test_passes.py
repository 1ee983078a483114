from __future__ import annotations

import gc
import importlib
import json
import time
from typing import Any

import pytest
import torch

from fleetcraft.calibration.family import Family
from fleetcraft.calibration.records import Failure
from fleetcraft.calibration.trial import passes
from fleetcraft.calibration.trial.fake import predict
from fleetcraft.calibration.trial.journal import JournalWriter
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.calibration.trial.passes import Session, live_tensor_bytes, rises
from tests.calibration.trial import tiny_family
from tests.calibration.trial.tiny_family import KV_BYTES, PHASES


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    """Collecting garbage, which each phase does, then costs what a trial pays and not pytest's."""
    importlib.import_module("torch._dynamo")  # the first optimizer would
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Run:
    """One session in this process."""

    def __init__(self, folder: str, family: Family, **fields: Any) -> None:
        order = Order(family="tiny", passes=(), folder=folder, **{"batch": 2, **fields})
        self.session = Session(order, family, JournalWriter(order.journal))

    def lines(self, event: str) -> list[dict[str, Any]]:
        with open(self.session.journal.path, encoding="utf-8") as file:
            found = [json.loads(line) for line in file]
        return [line for line in found if line["event"] == event]


@pytest.fixture
def run(tmp_path):
    def run(pass_name: Pass | None = None, family: Family = tiny_family.cycle, **fields: Any):
        made = Run(str(tmp_path), family, **fields)
        made.found = made.session.run(pass_name) if pass_name else None
        return made

    return run


# ------------------------------------------------------------------------------ memory


def test_the_memory_pass_gives_each_phase_owners_that_add_up_to_its_peak(run):
    ran = run(Pass.MEMORY)

    ends = ran.lines("phase_end")
    assert [end["phase"] for end in ends] == list(PHASES)
    for end in ends:
        assert sum(owner["bytes"] for owner in end["owners"]) == end["peak_bytes"] > 0
        assert "wall_s" not in end
    assert ran.lines("cycle_end")[0]["live_end_bytes"] == 0
    assert ran.found == []


def test_a_finding_lets_the_cycle_go_on_so_that_the_record_is_complete(run):
    ran = run(Pass.MEMORY, fault="leak_kv")

    (finding,) = ran.found
    assert (finding.failure, finding.phase) == (Failure.OWNER_OUTLIVED, "probe")
    assert (finding.owner, finding.bytes) == ("probe.kv", 2 * KV_BYTES)
    assert [end["phase"] for end in ran.lines("phase_end")] == list(PHASES)


def test_retained_tensors_are_found_in_the_phase_that_should_not_keep_them(run):
    (finding, *_) = run(Pass.MEMORY, fault="no_no_grad").found

    assert (finding.failure, finding.phase) == (Failure.AUTOGRAD_RETAINED, "denoise")


def test_a_budget_stops_the_cycle_in_torchs_own_words(run):
    ran = run(device_budget_bytes=60_000)

    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        ran.session.run(Pass.MEMORY)

    last = ran.lines("phase_end")[-1]
    assert last["interrupted"] is True
    assert last["peak_bytes"] <= 60_000


def test_the_first_cycle_says_what_lived_before_it(run):
    left = torch.ones(100_000)

    start = run(Pass.MEMORY).lines("cycle_begin")[0]["start_live_bytes"]

    assert start >= left.nbytes
    del left


def test_what_checks_left_reserved_is_given_back_before_a_cycle_is_measured(run, monkeypatch):
    emptied = []
    monkeypatch.setattr(passes.devices, "empty_cache", emptied.append)

    ran = run(Pass.CHECKS)

    assert emptied == ["cpu"]
    assert ran.lines("check")


# ------------------------------------------------------------------------------ time


def test_the_time_pass_takes_walls_and_tracks_nothing(run):
    ran = run(Pass.TIME, timed_cycles=2)

    ends = ran.lines("phase_end")
    assert [end["phase"] for end in ends] == list(PHASES) * 2
    assert all(end["wall_s"] > 0 and "peak_bytes" not in end for end in ends)
    cycles = ran.lines("cycle_end")
    for number, cycle in enumerate(cycles):
        phases = [e["wall_s"] for e in ends if e["cycle"] == number and e["phase"] != "load"]
        assert cycle["wall_s"] >= sum(phases)
    assert len(cycles) == 2


def test_the_harness_own_work_is_no_part_of_a_timed_cycle(run, monkeypatch):
    slow_s = 0.1
    write = JournalWriter.write

    def slowly(self, event, **fields):
        time.sleep(slow_s if event.startswith("phase") else 0)
        write(self, event, **fields)

    monkeypatch.setattr(JournalWriter, "write", slowly)

    ran = run(Pass.TIME, timed_cycles=1)

    # The journal's writes alone take longer than what is counted of the cycle.
    at = {line["event"]: line["mono_s"] for line in ran.lines("cycle_begin")}
    (end,) = ran.lines("cycle_end")
    told_s = 2 * len(PHASES) * slow_s
    assert end["mono_s"] - at["cycle_begin"] >= told_s + end["wall_s"]


@pytest.mark.parametrize("done", [Pass.TIME, Pass.MEMORY])
def test_what_a_sound_cycle_writes_is_removed(run, tmp_path, done):
    run(done, timed_cycles=2)

    assert list((tmp_path / "outputs").iterdir()) == []


def test_an_empty_output_is_found_in_any_pass(run):
    for pass_name in (Pass.MEMORY, Pass.TIME):
        (finding,) = run(pass_name, fault="empty_file").found
        assert (finding.failure, finding.phase) == (Failure.OUTPUT_EMPTY, "write")
        assert finding.owner == "own.bin"


# ------------------------------------------------------------------------------ soak


def test_equal_cycles_leave_nothing_behind(run):
    ran = run(Pass.SOAK)

    assert ran.found == []
    assert [end["live_end_bytes"] for end in ran.lines("cycle_end")] == [0, 0, 0, 0]


def test_a_cycle_that_hoards_is_found_with_what_it_adds(run):
    try:
        ran = run(Pass.SOAK, fault="hoard")
    finally:
        tiny_family._HOARD.clear()

    (finding,) = ran.found
    assert finding.failure is Failure.SOAK_RISING
    assert finding.bytes == 2 * (256 << 10)
    assert "0.2, 0.5, 0.8, 1.0 MiB" in finding.message


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 10, 20, 30], True),
        ([0, 10, 20, 20], False),  # comes to rest
        ([0, 50, 50, 50], False),  # the first cycle warms up
        ([9, 10, 11, 12], False),  # within the slack
        ([0, 10, 30, 20], False),  # falls again
        ([0, 10, 20], False),  # too few to show anything
        ([0, 10, 10, 20, 20, 30], True),  # every second cycle
        ([0, 10, 20, 30, 30, 30, 30], False),  # a late warm-up
    ],
)
def test_rising_means_growing_and_not_coming_to_rest(values, expected):
    assert rises(values, slack=5) is expected


# ------------------------------------------------------------------------------ the others


def test_a_check_that_fails_is_a_finding_with_its_class_and_phase(run):
    ran = run(Pass.CHECKS, fault="shared_noise")

    (finding,) = ran.found
    assert (finding.failure, finding.phase) == (Failure.NOISE_SHARED, "denoise")
    assert ran.lines("check")[0]["ok"] is False


def test_flops_are_told_whatever_could_be_had(run):
    assert run(Pass.FLOPS).lines("flops")[0]["counted_flop"] is None


def test_overhead_is_cpu_time_of_equal_cycles_in_turns(run):
    ran = run(Pass.OVERHEAD)

    (overhead,) = ran.lines("overhead")
    tracked, untracked = overhead["tracked_cpu_s"], overhead["untracked_cpu_s"]
    assert len(tracked) == len(untracked) == 3
    assert overhead["fraction"] == pytest.approx(min(tracked) / min(untracked) - 1)
    kinds = ["peak_bytes" in end for end in ran.lines("phase_end") if end["phase"] == "load"]
    assert kinds == [False, True, False, True, False, True]


# ------------------------------------------------------------------------------ preflight


def test_fake_tensors_predict_the_measured_peak_and_its_phase(run):
    ran = run(Pass.PREFLIGHT, preflight_batches=(1, 2, 4))
    measured = {end["phase"]: end["peak_bytes"] for end in run(Pass.MEMORY).lines("phase_end")}

    predictions = {line["batch"]: line for line in ran.lines("prediction")}

    assert set(predictions) == {1, 2, 4}
    assert predictions[2]["phases"] == pytest.approx(measured, rel=0.01)
    assert predictions[2]["peak_bytes"] == max(predictions[2]["phases"].values())
    assert predictions[4]["peak_bytes"] > predictions[2]["peak_bytes"]
    assert {line["pass"] for line in ran.lines("phase_begin")} == {"memory"}


@pytest.mark.parametrize(
    ("family", "fault", "why"),
    [
        (tiny_family.cycle, "values", "phase 'denoise' cannot run on fake tensors"),
        (tiny_family.cycle, "raise", "ValueError: the family's own mistake"),
        (tiny_family.never_ends, "", "the cycle ended inside phase 'load'"),
        (Family(key="no", cycle=lambda ctx, batch: None), "", "the cycle has no phases"),
        (Family(key="no", cycle=print, preflight=False), "", "the family says"),
    ],
)
def test_a_cycle_that_needs_values_gives_no_peak_and_one_sentence(tmp_path, family, fault, why):
    order = Order(family="x", batch=1, passes=(), folder=str(tmp_path), fault=fault)

    predicted, _ = predict(family, order, 1)

    assert predicted.peak_bytes is None
    assert why in predicted.detail
    assert "\n" not in predicted.detail
    assert list(tmp_path.iterdir()) == []


def test_bytes_of_live_tensors_count_each_storage_once():
    before = live_tensor_bytes("cpu")
    kept = torch.ones(1000)
    view = kept[10:]

    assert live_tensor_bytes("cpu") - before == kept.nbytes
    del view
