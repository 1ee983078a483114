"""Calibrations with real processes: a tiny family under budgets, and one whose memory rises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft.calibration.records import MIB, Failure, Verdict
from fleetcraft.calibration.sweep import timing
from fleetcraft.calibration.sweep.run import calibrate
from fleetcraft.calibration.sweep.store import newest
from fleetcraft.layout import Scratch

pytest.importorskip("torch", reason="torch is not installed")
TINY = Path(__file__).with_name("tinyfam.py")


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


def run(scratch: Scratch, name: str, **asked):
    return calibrate(
        f"{TINY}:{name}",
        scratch=scratch,
        device="cpu",
        threads=1,
        **{"batches": [1, 2, 4], **asked},
    )


def test_a_real_sweep_measures_predicts_skips_chooses_and_soaks(scratch):
    found = run(scratch, "plain", device_budget_bytes=int(8 * MIB))

    one, two, four = found.trials
    assert [t.verdict for t in found.trials] == [Verdict.OK, Verdict.OK, Verdict.SKIPPED]
    assert four.failure is Failure.PREDICTED
    # A weight, latents, and the product while both live: 1 + 2 MiB a sample.
    assert one.peak_bytes == pytest.approx(3 * MIB, rel=0.01)
    assert two.peak_bytes == pytest.approx(5 * MIB, rel=0.01)
    assert [p.peak_bytes for p in found.predictions] == pytest.approx(
        [3 * MIB, 5 * MIB, 9 * MIB], rel=0.01
    )
    assert [len(t.cycle_walls_s) for t in (one, two)] == [3, 3]
    assert {check.name for check in two.checks} >= {"noise", "parity"}
    chosen = next(t for t in found.trials if t.batch == found.choice.batch)
    assert len(chosen.soak_live_bytes) == 4
    # Measured at what was chosen, which two batches of a millisecond each leave to the machine.
    (other,) = (t for t in (one, two) if t.batch != chosen.batch)
    assert chosen.tracking_overhead_fraction is not None
    assert other.tracking_overhead_fraction is None
    assert newest(scratch, "tiny/plain") == found


def test_memory_that_rises_from_cycle_to_cycle_fails_the_chosen_batch(scratch):
    found = run(scratch, "keeps", batches=[1])

    (one,) = found.trials
    assert (one.verdict, one.failure) == (Verdict.FAILED, Failure.SOAK_RISING)
    assert list(one.soak_live_bytes) == sorted(one.soak_live_bytes)
    assert one.soak_live_bytes[-1] - one.soak_live_bytes[0] == pytest.approx(3 * MIB, rel=0.01)
    assert found.choice.batch is None


def test_a_budget_below_the_first_batch_fails_it_and_tries_no_other(scratch):
    found = run(scratch, "plain", device_budget_bytes=int(2.5 * MIB))

    one, two, four = found.trials
    assert (one.verdict, one.failure, one.phase) == ("failed", Failure.CAPACITY, "denoise")
    assert {t.failure for t in (two, four)} == {Failure.SMALLER_FAILED}
    assert found.choice.batch is None


def test_the_process_that_judges_never_loads_torch():
    code = (
        "import sys; import fleetcraft.calibration.sweep.run; "
        "import fleetcraft.calibration.sweep.store; sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
