"""Whole trials: a real process in real groups, killed and starved for real, and judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.calibration.family import Family, Fault
from fleetcraft.calibration.records import Failure, Trial, Verdict
from fleetcraft.calibration.trial import cgroup, starting
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.calibration.trial.run import run_trial
from fleetcraft.errors import ConfigError, UsageError
from tests.calibration.trial.standin import PROGRAM

MIB = 1 << 20
FAMILY = Family(
    key="standin",
    cycle=lambda ctx, batch: None,
    requires=("load", "decode"),
    patience_s=60.0,
    faults={
        name: Fault(doc="", patience_s=patience_s)
        for name, patience_s in (("stall", 0.6), ("partial", 0.6), ("progress", 1.5))
    },
)


@pytest.fixture(scope="module", autouse=True)
def keepers() -> Iterator[None]:
    yield
    starting.close_keepers((PROGRAM,))


def try_it(folder: Path, fault: str = "", **fields: Any) -> Trial:
    order = Order(
        family="x", batch=2, passes=(Pass.MEMORY,), folder=str(folder), fault=fault,
        **{name: value for name, value in fields.items() if name != "expected_s"},
    )  # fmt: skip
    return run_trial(order, FAMILY, expected_s=fields.get("expected_s"), program=PROGRAM)


def require_group(controller: str) -> None:
    group = cgroup.make_group(memory_bytes=64 * MIB, pids=4)
    group.remove()
    if controller not in group.places:
        pytest.skip(f"no {controller} cgroup can be written: {group.refused[controller]}")


@pytest.mark.parametrize("device", ["cpu", "cuda"], ids=["forked", "fresh"])
def test_a_trial_that_ends_well_has_its_phases_throughput_and_peak(
    tmp_path: Path, device: str
) -> None:
    trial = try_it(tmp_path, device=device)
    assert (trial.verdict, trial.failure, trial.detail) == (Verdict.OK, None, "")
    assert [phase.name for phase in trial.phases] == ["load", "decode"]
    assert (trial.phase, trial.owner) == ("decode", "pixels")
    assert trial.cycle_walls_s == (0.5, 0.25, 0.25)
    assert trial.samples_per_s == 2 / 0.25
    assert trial.missing_phases == ()
    assert trial.environment.device == "stand-in"
    assert trial.identity == FAMILY.identity_hash
    assert trial.journal == f"{tmp_path}/journal.jsonl"
    assert trial.journal_sha256.startswith("sha256:")
    assert trial.wall_s
    assert trial.evidence["exit_code"] == 0


def test_events_are_told_as_they_come_each_once(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    order = Order(family="x", batch=1, passes=(Pass.MEMORY,), folder=str(tmp_path))
    run_trial(order, FAMILY, on_event=told.append, program=PROGRAM)
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert told == [json.loads(line) for line in lines]


def test_a_kill_by_its_cgroups_limit_is_host_oom_in_the_phase_that_the_journal_names(
    tmp_path: Path,
) -> None:
    require_group(cgroup.MEMORY)
    trial = try_it(tmp_path, "grow", host_budget_bytes=128 * MIB)
    assert trial.failure is Failure.HOST_OOM
    assert trial.phase == "decode"
    assert trial.evidence["oom_kills"] >= 1
    assert trial.evidence["memory_limit_bytes"] == 128 * MIB
    assert "limit 128.0 MiB" in trial.detail
    assert trial.missing_phases == ("decode",)


def test_a_plain_kill_is_not_called_out_of_memory(tmp_path: Path) -> None:
    trial = try_it(tmp_path, "kill")
    assert trial.failure is Failure.KILLED_UNKNOWN
    assert (trial.phase, trial.evidence["signal"]) == ("decode", "SIGKILL")


def test_without_any_counter_a_kill_stays_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "own_places", dict)
    trial = try_it(tmp_path, "kill")
    assert trial.failure is Failure.KILLED_UNKNOWN
    assert "no counter" in trial.detail


def test_without_a_group_the_budget_shows_as_a_refused_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "own_places", dict)
    trial = try_it(tmp_path, "alloc", host_budget_bytes=256 * MIB)
    assert trial.failure is Failure.HOST_ALLOC
    assert trial.evidence["weaker_limits"]


@pytest.mark.parametrize("fault", ["threads", "quietly_refused"])
def test_a_full_pids_cgroup_is_process_exhaustion_also_when_nothing_complains(
    tmp_path: Path, fault: str
) -> None:
    require_group(cgroup.PIDS)
    trial = try_it(tmp_path, fault, pids_limit=8)
    assert trial.failure is Failure.PROCESS_EXHAUSTION
    assert trial.evidence["pids_refused"] >= 1
    assert trial.evidence["pids_limit"] == 8


def test_silence_of_the_first_batch_beyond_its_patience_is_a_stall(tmp_path: Path) -> None:
    trial = try_it(tmp_path, "stall")
    assert trial.failure is Failure.STALLED
    assert trial.phase == "decode"
    assert trial.evidence["silent_s"] > trial.evidence["limit_s"] == 0.6
    assert "silent for" in trial.detail
    last = json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], "stalled" in last["message"]) == ("Stopped", True)


def test_a_later_batch_is_judged_by_the_one_before_and_shows_the_arithmetic(
    tmp_path: Path,
) -> None:
    trial = try_it(tmp_path, "stall", expected_s=0.3)
    assert trial.failure is Failure.STALLED
    assert trial.evidence["limit_s"] == pytest.approx(1.2)
    silent_s = trial.evidence["silent_s"]
    assert silent_s > 1.2
    assert trial.detail.startswith(f"stopped: expected 0.3 s, silent for {silent_s:.1f} s")


def test_progress_is_no_silence(tmp_path: Path) -> None:
    assert try_it(tmp_path, "progress").verdict is Verdict.OK


def test_a_trial_some_of_whose_participants_died_is_partial_though_it_also_stalled(
    tmp_path: Path,
) -> None:
    trial = try_it(tmp_path, "partial")
    assert trial.failure is Failure.PARTIAL
    assert trial.owner == "drafter0"
    assert trial.participants["drafter1"] == "alive"
    assert trial.participants["drafter2"] == "dead (SIGKILL)"


def test_a_segmentation_fault_is_an_error_with_its_stack(tmp_path: Path) -> None:
    trial = try_it(tmp_path, "segfault")
    assert trial.failure is Failure.ERROR
    assert trial.evidence["signal"] == "SIGSEGV"
    assert "Segmentation fault" in trial.detail
    assert "standin.py" in trial.evidence["log_tail"]


@pytest.mark.parametrize(("fault", "code"), [("torn", 3), ("exit", 0)])
def test_a_journal_without_an_end_is_an_error_whatever_the_exit_code(
    tmp_path: Path, fault: str, code: int
) -> None:
    trial = try_it(tmp_path, fault)
    assert trial.failure is Failure.ERROR
    assert trial.evidence["exit_code"] == code
    assert trial.evidence["journal_finished"] is False


def test_a_device_out_of_memory_has_its_numbers_and_the_largest_owner(tmp_path: Path) -> None:
    trial = try_it(tmp_path, "device_oom")
    assert trial.failure is Failure.CAPACITY
    assert trial.evidence["device_oom"]["request_bytes"] == 64 * MIB
    assert "free 10.0 MiB + cached 10.0 MiB < request 64.0 MiB" in trial.detail
    assert trial.phase == "decode"


def test_a_listener_that_fails_ends_the_trial(tmp_path: Path) -> None:
    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "phase_begin":
            raise ZeroDivisionError

    order = Order(family="x", batch=1, passes=(Pass.MEMORY,), folder=str(tmp_path), fault="stall")
    with pytest.raises(ZeroDivisionError):
        run_trial(order, FAMILY, on_event=listen, program=PROGRAM)
    last = json.loads((tmp_path / "journal.jsonl").read_text().splitlines()[-1])
    assert last["message"] == "its watcher was interrupted: ZeroDivisionError"


def test_a_folder_is_used_once(tmp_path: Path) -> None:
    try_it(tmp_path)
    with pytest.raises(UsageError, match="holds another trial; nothing was tried"):
        try_it(tmp_path)


def test_a_trial_that_cannot_be_put_into_its_group_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup.TrialGroup, "entrances", (f"{tmp_path}/nowhere/cgroup.procs",))
    with pytest.raises(ConfigError, match="could not be limited.*nothing was tried"):
        try_it(tmp_path / "trial")
    assert not (tmp_path / "trial" / "journal.jsonl").exists()


def test_no_groups_are_left() -> None:
    for place in cgroup.own_places().values():
        names = [path.name for path in Path(place.folder).iterdir()]
        assert not [name for name in names if name.startswith(f"fleetcraft-trial-{os.getpid()}-")]


OWN_FAMILY = """
from fleetcraft.calibration import family

@family(key="own", kind="infer", requires=("make",), preflight=False)
def cycle(ctx, batch):
    import torch
    with ctx.phase("make", grad=False):
        ctx.own("made", made := torch.zeros(batch, 1 << 18))
    del made
"""
PARENT = """
import sys, msgspec
from fleetcraft.calibration.family import absolute_name, find_family
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.calibration.trial.run import run_trial
name = absolute_name(sys.argv[1])
order = Order(family=name, batch=3, passes=(Pass.MEMORY,), folder=sys.argv[2])
trial = run_trial(order, find_family(name))
assert not {"torch", "numpy"} & set(sys.modules), "the parent of a trial loaded torch"
print(msgspec.json.encode(trial).decode())
"""


def test_the_real_program_runs_a_users_family_and_the_parent_never_loads_torch(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "my_family.py").write_text(OWN_FAMILY)
    done = subprocess.run(
        [sys.executable, "-c", PARENT, "my_family.py:cycle", "trial"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trial = json.loads(done.stdout)
    assert (trial["verdict"], trial["class"], trial["missing_phases"]) == ("ok", None, [])
    (phase,) = trial["phases"]
    assert (phase["name"], phase["peak_bytes"]) == ("make", 3 << 20)
    assert phase["owners"][0]["name"] == "made"
