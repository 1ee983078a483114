from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fleetcraft.calibration.trial import child, passes
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.calibration.trial.reading import Journal, read_journal
from tests.calibration.trial.tiny_family import PHASES

REPO = Path(__file__).parents[3]
TINY = f"{Path(__file__).with_name('tiny_family.py')}"


@pytest.fixture(autouse=True, scope="module")
def _thaw():
    yield
    gc.unfreeze()


@pytest.fixture
def order(tmp_path):
    def order(*names: Pass, name: str = "cycle", **fields) -> Order:
        family = fields.pop("family", f"{TINY}:{name}")
        folder = str(tmp_path / "trial")
        return Order(family=family, passes=names, folder=folder, **{"batch": 2, **fields})

    return order


def run(order: Order) -> tuple[int, Journal]:
    code = child.main(order)
    return code, read_journal(order.journal, PHASES)


def in_a_process(order: Order, tmp_path: Path) -> tuple[int, Journal, str]:
    path = tmp_path / "order.json"
    path.write_bytes(msgspec.json.encode(order))
    ended = subprocess.run(
        [sys.executable, "-m", "fleetcraft.calibration.trial.child", str(path)],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return ended.returncode, read_journal(order.journal, PHASES), ended.stdout + ended.stderr


def test_a_whole_trial_tells_everything_and_ends_with_0(order):
    code, journal = run(order(Pass.CHECKS, Pass.MEMORY, Pass.TIME, timed_cycles=3))

    assert code == journal.exit == 0
    assert journal.finished
    assert journal.failed is None
    assert journal.missing_phases == ()
    assert [phase.name for phase in journal.phases] == list(PHASES)
    assert all(len(phase.walls_s) == 3 and phase.peak_bytes for phase in journal.phases)
    assert len(journal.cycle_walls_s) == 3
    assert journal.checks[0].ok
    assert journal.environment.torch
    assert (journal.family, journal.bad_lines) == ("tiny", 0)
    assert journal.identity.startswith("sha256:")
    assert [e["pass"] for e in journal.events if e["event"] == "pass_end"] == [
        "checks", "memory", "time",
    ]  # fmt: skip


def test_a_finding_fails_the_trial_before_the_timed_cycles(order):
    code, journal = run(order(Pass.MEMORY, Pass.TIME, fault="leak_kv"))

    assert code == journal.exit == 1
    assert journal.failed is not None
    assert (journal.failed.failure, journal.failed.phase) == ("owner_outlived", "probe")
    assert journal.failed.owner == "probe.kv"
    assert journal.last_pass == "memory"
    assert journal.missing_phases == ()


def test_a_failed_check_fails_the_trial_before_anything_is_measured(order):
    code, journal = run(order(Pass.CHECKS, Pass.MEMORY, fault="shared_noise"))

    assert code == 1
    assert journal.failed is not None
    assert (journal.failed.failure, journal.failed.phase) == ("noise_shared", "denoise")
    assert journal.last_pass == "checks"
    assert journal.phases == ()


def test_an_exception_is_told_with_its_place_and_traceback(order):
    code, journal = run(order(Pass.MEMORY, fault="raise"))

    failed = journal.failed
    assert code == 1
    assert failed is not None
    assert (failed.kind, failed.message) == ("ValueError", "the family's own mistake")
    assert (failed.phase, failed.pass_name, failed.failure) == ("denoise", "memory", None)
    assert "in strike" in failed.traceback_tail
    assert journal.finished
    assert journal.missing_phases == PHASES[1:]


def test_nothing_of_a_failed_cycle_lives_after_it(order):
    before = passes.live_tensor_bytes("cpu")

    _, journal = run(order(Pass.MEMORY, device_budget_bytes=60_000))

    assert journal.failed is not None
    assert journal.failed.kind == "OutOfMemoryError"
    assert "58.59 KiB" in journal.failed.message
    assert journal.events[-1]["live_bytes"] <= before
    record = next(one for one in journal.phases if one.name == journal.failed.phase)
    assert record.owners


def test_what_was_found_before_an_exception_is_the_cause(order, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of something, later")

    monkeypatch.setattr("torch.save", fail)

    _, journal = run(order(Pass.MEMORY, fault="leak_kv"))

    assert journal.failed is not None
    assert (journal.failed.failure, journal.failed.phase) == ("owner_outlived", "probe")
    assert journal.failed.then == "RuntimeError: out of something, later"
    assert "in fail" in journal.failed.traceback_tail


def test_host_memory_that_cannot_be_had_is_told_in_torchs_words(order):
    _, journal = run(order(Pass.TIME, fault="host_alloc"))

    assert journal.failed is not None
    assert journal.failed.kind == "RuntimeError"
    assert "DefaultCPUAllocator" in journal.failed.message


def test_a_partial_death_has_its_class_and_its_participants(order):
    code, journal = run(order(Pass.MEMORY, fault="one_dies"))

    assert code == 1
    assert journal.failed is not None
    assert (journal.failed.failure, journal.failed.phase) == ("partial", "denoise")
    assert "'step 690'" in journal.failed.message
    assert journal.participants == {"drafter0": "alive", "drafter1": "dead (exit 3)"}


def test_an_exit_of_the_family_is_no_end_of_the_harness(order):
    code, journal = run(order(Pass.TIME, fault="exit"))

    assert code == 1
    assert journal.failed is not None
    assert (journal.failed.kind, journal.failed.message) == ("SystemExit", "enough")


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("never_ends", "UsageError", "ended inside phase 'load'"),
        ("releases_nobody", "UsageError", "never registered"),
        ("no_such_family", "UsageError", "is not there"),
    ],
)
def test_a_mistake_of_the_family_is_told_as_one(order, name, kind, said):
    code, journal = run(order(Pass.MEMORY, name=name))

    assert code == 1
    assert journal.failed is not None
    assert journal.failed.kind == kind
    assert said in journal.failed.message


def test_a_backend_that_cannot_run_here_is_an_error_and_not_another_backend(order):
    code, journal = run(order(Pass.MEMORY, sdpa="cudnn"))

    assert code == 1
    assert journal.failed is not None
    assert journal.failed.kind == "DeviceError"
    assert journal.phases == ()


def test_the_pinned_backend_is_that_of_the_environment(order):
    _, journal = run(order(Pass.TIME, sdpa="math", timed_cycles=1))

    assert journal.environment.sdpa == "math"


def test_a_mistake_of_the_harness_itself_is_told_apart(order, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(child, "_environment", fail)

    code, journal = run(order(Pass.MEMORY))

    assert code == journal.exit == 70
    assert journal.failed is not None
    assert (journal.failed.kind, journal.failed.message) == ("Harness", "ZeroDivisionError: ours")


def test_a_kill_leaves_the_phase_in_the_journal(order, tmp_path):
    code, journal, _ = in_a_process(order(Pass.MEMORY, fault="kill"), tmp_path)

    assert code == -signal.SIGKILL
    assert journal.open_phase == "denoise"
    assert journal.last_pass == "memory"
    assert journal.failed is None
    assert not journal.finished


def test_a_trial_of_its_own_process_says_nothing_but_its_journal(order, tmp_path):
    code, journal, printed = in_a_process(order(Pass.PREFLIGHT, preflight_batches=(1, 2)), tmp_path)

    assert (code, printed) == (0, "")
    assert [one.batch for one in journal.predictions] == [1, 2]
    assert all(one.peak_bytes for one in journal.predictions)
    assert not os.path.exists(f"{tmp_path}/trial/outputs")
