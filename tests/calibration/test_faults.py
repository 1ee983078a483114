"""The demo end to end: without a fault every promise holds, and each fault is named by its cause.

Real trials in processes of their own, killed, starved and stalled for real. What single parts do
is tested beside them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetcraft.calibration import find_family
from fleetcraft.calibration.families.demo import sizes
from fleetcraft.calibration.families.demo import steps as demo
from fleetcraft.calibration.family import TRAIN_PHASES
from fleetcraft.calibration.records import MIB, Calibration, Failure, Trial, Verdict
from fleetcraft.calibration.sweep.run import calibrate
from fleetcraft.calibration.tracking.ledger import Ledger
from fleetcraft.calibration.trial.cgroup import MEMORY, PIDS, make_group
from fleetcraft.calibration.trial.context import Context
from fleetcraft.errors import ConfigError
from fleetcraft.layout import Scratch

pytestmark = pytest.mark.timeout(300)  # a loaded machine makes ten trials slow, not wrong

DEMO = find_family("demo")
QUICK_DEMO = f"{Path(__file__).with_name('quick_demo.py')}:cycle"
COMMAND = [sys.executable, "-m", "fleetcraft"]
INFERENCE = ("denoise", "decode", "score", "probe")
BUDGET_BYTES = int(64 * MIB)  # between the two backward peaks of batch 4, 59 and 71 MiB

Try = Callable[..., Calibration]


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Try]:
    """Runs a calibration. The trials of all tests here start in one keeper, one after another."""

    def run(family: str = QUICK_DEMO, **more: Any) -> Calibration:
        root = tmp_path_factory.mktemp("scratch")
        root.chmod(0o700)
        settings = {"timed_cycles": 0, "soak_cycles": 0, "batches": [1], "threads": 1, **more}
        found = calibrate(family, scratch=Scratch(str(root)), device="cpu", **settings)
        for trial in found.trials:
            # Whatever the trials before it died of, it starts as clean as the first.
            assert trial.start_live_bytes in (None, 0), (trial.batch, trial.start_live_bytes)
        return found

    return run


@pytest.fixture(scope="module")
def healthy(attempt: Try) -> Calibration:
    return attempt("demo", batches=[1, 2, 4], device_budget_bytes=BUDGET_BYTES, timed_cycles=1)


def only(found: Calibration) -> Trial:
    assert len(found.trials) == 1
    return found.trials[0]


def named(trial: Trial) -> tuple[Verdict, Failure | None, str, str]:
    return trial.verdict, trial.failure, trial.phase, trial.owner


# ------------------------------------------------------------------------------ without a fault


def test_a_healthy_demo_is_ok_at_batch_one_and_two_and_ran_every_phase(
    healthy: Calibration,
) -> None:
    first, second = healthy.trials[:2]

    assert (first.batch, second.batch) == (1, 2)
    assert healthy.ok
    for trial in (first, second):
        assert (trial.verdict, trial.failure) == (Verdict.OK, None), trial.detail
        assert tuple(phase.name for phase in trial.phases) == TRAIN_PHASES
        assert not trial.smoke
        assert {check.name: check.ok for check in trial.checks} == {
            "noise": True, "mask": True, "decisions": True, "parity": True,
        }  # fmt: skip
        assert (trial.phase, trial.owner) == ("backward2", "autograd")
        assert trial.start_live_bytes == 0


def test_the_owners_of_every_phase_add_up_to_its_peak(healthy: Calibration) -> None:
    for trial in healthy.trials[:2]:
        for phase in trial.phases:
            assert phase.peak_bytes
            assert sum(owner.bytes for owner in phase.owners) == phase.peak_bytes, phase.name
            assert phase.held_bytes == {}
            assert phase.walls_s


def test_nothing_is_kept_for_a_backward_pass_where_none_follows(healthy: Calibration) -> None:
    for trial in healthy.trials[:2]:
        kept = {phase.name: phase.autograd_bytes for phase in trial.phases}
        assert {name: kept[name] for name in INFERENCE} == dict.fromkeys(INFERENCE, 0)


def test_the_second_backward_peaks_above_the_first_by_the_optimizer_state(
    healthy: Calibration,
) -> None:
    phases = {phase.name: phase for phase in healthy.trials[0].phases}
    owners = {owner.name: owner.bytes for owner in phases["backward2"].owners}
    first, second = phases["backward1"].peak_bytes, phases["backward2"].peak_bytes

    assert first
    assert second
    assert second - first == pytest.approx(owners["optimizer"], rel=0.001)
    assert owners["optimizer"] == pytest.approx(2 * owners["model"], rel=0.001)


def test_the_cache_of_the_probe_is_named_at_its_peak_and_gone_at_its_end(
    healthy: Calibration,
) -> None:
    for trial in healthy.trials[:2]:
        probe = trial.phase_named("probe")
        assert probe is not None
        owner = next(owner for owner in probe.owners if owner.name == "probe.kv")
        assert owner.bytes == sizes.kv_cache_bytes(trial.batch)
        assert owner.live_end_bytes == 0


def test_the_preflight_is_within_a_hundredth_of_the_measured_peak(healthy: Calibration) -> None:
    for trial in healthy.trials[:2]:
        assert trial.predicted_peak_bytes == pytest.approx(trial.peak_bytes, rel=0.01)


def test_a_batch_beyond_the_device_is_predicted_and_not_tried(healthy: Calibration) -> None:
    third = healthy.trials[2]

    assert (third.batch, third.verdict, third.failure) == (4, Verdict.SKIPPED, Failure.PREDICTED)
    assert third.phases == ()
    assert third.predicted_peak_bytes
    assert third.predicted_peak_bytes > BUDGET_BYTES


def test_the_first_batch_is_tried_whatever_was_predicted(attempt: Try) -> None:
    trial = only(attempt("demo", batches=[4], device_budget_bytes=BUDGET_BYTES))

    assert named(trial)[:3] == (Verdict.FAILED, Failure.CAPACITY, "backward2"), trial.detail
    assert trial.evidence["device_oom"]["capacity_bytes"] == pytest.approx(BUDGET_BYTES, rel=0.001)


def test_a_record_that_lacks_a_phase_is_only_a_smoke_test(attempt: Try, tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text(
        "from fleetcraft.calibration import family\n"
        "@family(key='half', kind='infer', preflight=False)\n"
        "def cycle(ctx, batch):\n"
        "    for name in ('load', 'denoise', 'decode', 'write'):\n"
        "        with ctx.phase(name):\n"
        "            ctx.noise((64,))\n"
    )

    found = attempt(f"{file}:cycle")

    assert only(found).verdict is Verdict.OK
    assert only(found).smoke
    assert only(found).missing_phases == ("score",)
    assert found.choice.reason == "smoke"


# ------------------------------------------------------------------------------ memory


def test_a_cache_that_outlives_the_probe_is_named_with_its_bytes(attempt: Try) -> None:
    trial = only(attempt(fault="leak_probe_kv"))

    assert named(trial) == (Verdict.FAILED, Failure.OWNER_OUTLIVED, "probe", "probe.kv")
    probe = trial.phase_named("probe")
    assert probe is not None
    assert probe.held_bytes["probe.kv"] == pytest.approx(sizes.kv_cache_bytes(1), rel=0.01)
    owner = next(owner for owner in probe.owners if owner.name == "probe.kv")
    assert owner.live_end_bytes == probe.held_bytes["probe.kv"]


def test_a_denoise_without_no_grad_is_named_with_what_autograd_keeps(attempt: Try) -> None:
    trial = only(attempt(fault="no_no_grad"))

    assert named(trial) == (Verdict.FAILED, Failure.AUTOGRAD_RETAINED, "denoise", "autograd")
    denoise = trial.phase_named("denoise")
    assert denoise is not None
    assert denoise.autograd_bytes
    assert denoise.autograd_bytes > 8 * MIB


@pytest.fixture(scope="module")
def step2_only(attempt: Try) -> Calibration:
    return attempt("demo", fault="step2_only")


def test_a_device_that_holds_one_step_and_not_two_fails_in_the_second_backward(
    step2_only: Calibration,
) -> None:
    trial, budget_bytes = only(step2_only), step2_only.device_budget_bytes

    assert budget_bytes is not None
    assert named(trial)[:3] == (Verdict.FAILED, Failure.CAPACITY, "backward2"), trial.detail
    ran = {phase.name: phase.peak_bytes for phase in trial.phases}
    assert ran["backward1"] < budget_bytes
    assert ran["step1"] < budget_bytes
    assert trial.evidence["device_oom"]["capacity_bytes"] == pytest.approx(budget_bytes, rel=0.001)


def test_a_finder_that_looks_at_one_step_accepts_the_batch_that_fails_in_the_second(
    step2_only: Calibration,
) -> None:
    memory = pytest.importorskip("accelerate.utils.memory", reason="accelerate is not installed")
    budget_bytes = step2_only.device_budget_bytes
    assert budget_bytes is not None
    tried: list[int] = []

    @memory.find_executable_batch_size(starting_batch_size=1)  # type: ignore[untyped-decorator]
    def one_step(batch_size: int) -> int:
        tried.append(batch_size)
        return steps_within(budget_bytes, batch_size, updates=1)

    accepted = one_step()

    assert accepted == 1
    assert tried == [1]
    with pytest.raises(RuntimeError, match="out of memory"):
        steps_within(budget_bytes, accepted, updates=2)


def steps_within(budget_bytes: int, batch: int, *, updates: int) -> int:
    """So many updates of the demo's model on a device of this size; returns the batch."""

    ctx = Context(batch=batch)
    with Ledger("cpu", budget_bytes=budget_bytes):
        parts = demo.load(ctx)
        with torch.no_grad():
            text = demo.encode_text(ctx, parts.text_encoder, ctx.samples)
            latents = demo.draw_noise(ctx, ctx.samples)
        for time in demo.TRAINING_TIMES[:updates]:
            demo.backward(ctx, parts.model, text, latents, time)
            demo.update(parts.optimizer)
    return batch


def test_pixels_staged_in_fp32_are_killed_by_the_host_and_not_by_the_device(attempt: Try) -> None:
    trial = only(attempt(fault="fp32_host_staging"))

    assert (trial.verdict, trial.phase) == (Verdict.FAILED, "decode"), trial.detail
    if (why := refused(MEMORY)) is None:
        assert trial.failure is Failure.HOST_OOM
        assert trial.evidence["oom_kills"] >= 1
        assert trial.evidence["signal"] == "SIGKILL"
    else:
        assert trial.failure is Failure.HOST_ALLOC, trial.detail
        pytest.skip(f"no kill by a memory cgroup was seen: {why}")


# ------------------------------------------------------------------------------ meaning


def test_a_dropped_mask_is_named(attempt: Try) -> None:
    trial = only(attempt(fault="drop_text_mask"))

    assert named(trial)[:3] == (Verdict.FAILED, Failure.MASK_DROPPED, "denoise")


def test_a_shared_generator_is_named_at_batch_two_and_nothing_at_batch_one(attempt: Try) -> None:
    first, second = attempt(fault="shared_generator", batches=[1, 2]).trials

    assert first.verdict is Verdict.OK, first.detail
    assert named(second)[:3] == (Verdict.FAILED, Failure.NOISE_SHARED, "denoise")


def test_a_shared_skip_schedule_is_named(attempt: Try) -> None:
    trial = only(attempt(fault="shared_skip", batches=[2]))

    assert named(trial)[:3] == (Verdict.FAILED, Failure.DECISION_SHARED, "denoise")


# ------------------------------------------------------------------------------ processes and files


def test_a_process_limit_is_named_where_it_was_met(attempt: Try) -> None:
    try:
        trial = only(attempt(fault="pids_limit"))
    except ConfigError as error:
        assert refused(PIDS) is not None
        pytest.skip(error.message)

    assert named(trial)[:3] == (Verdict.FAILED, Failure.PROCESS_EXHAUSTION, "load"), trial.detail


def test_a_kill_without_a_witness_is_not_called_a_kill_for_memory(attempt: Try) -> None:
    trial = only(attempt(fault="kill_in_decode"))

    assert named(trial)[:3] == (Verdict.FAILED, Failure.KILLED_UNKNOWN, "decode"), trial.detail
    assert trial.evidence["signal"] == "SIGKILL"


def test_a_phase_that_says_nothing_is_a_stall_with_its_arithmetic(attempt: Try) -> None:
    trial = only(attempt(fault="stall"))

    assert named(trial)[:3] == (Verdict.FAILED, Failure.STALLED, "score"), trial.detail
    patience_s = DEMO.faults["stall"].patience_s
    assert trial.evidence["limit_s"] == patience_s
    assert trial.evidence["silent_s"] >= patience_s


def test_an_encoder_that_leaves_an_empty_file_is_named_with_the_file(attempt: Try) -> None:
    trial = only(attempt(fault="zero_byte_encoder"))

    assert named(trial)[:3] == (Verdict.FAILED, Failure.OUTPUT_EMPTY, "write")
    assert Path(trial.owner).name == "sample-000.mp4"


def test_two_dead_of_three_are_named_and_the_third_is_not(attempt: Try) -> None:
    trial = only(attempt(fault="partial_rank"))

    assert named(trial)[:3] == (Verdict.FAILED, Failure.PARTIAL, "backward1"), trial.detail
    assert trial.participants["drafter0"] == "alive"
    for name in ("drafter1", "drafter2"):
        assert trial.participants[name].startswith("dead")
        assert name in trial.detail
    assert trial.owner == "drafter1"


# ------------------------------------------------------------------------------ the command


def test_the_command_names_the_cause_in_json_and_exits_with_one(tmp_path: Path) -> None:
    root = tmp_path / "scratch"
    subprocess.run([*COMMAND, "--root", str(root), "init"], check=True, capture_output=True)

    done = subprocess.run(
        [
            *COMMAND, "--root", str(root), "calibrate", "run", "demo", "--batches", "1",
            "--fault", "leak_probe_kv", "--threads", "1", "--cycles", "0", "--no-figure", "--json",
        ],
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    trial = json.loads(done.stdout)["trials"][0]
    assert (trial["verdict"], trial["class"]) == ("failed", "owner_outlived")
    assert (trial["phase"], trial["owner"]) == ("probe", "probe.kv")
    assert [phase["name"] for phase in trial["phases"]] == list(TRAIN_PHASES)


def refused(controller: str) -> str | None:
    """Why no group of this controller can be made here; None when one can."""
    group = make_group(memory_bytes=1 << 30, pids=1000)
    group.remove()
    return None if controller in group.places else group.refused.get(controller, "unknown")
