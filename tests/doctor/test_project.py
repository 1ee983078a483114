"""The project: settings, the frozen table, spools, and what was forgotten in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Finding, Verdict
from fleetcraft.doctor.project import (
    check_batch_table,
    check_project_folder,
    check_settings,
    check_spool_records,
    check_spools,
)
from fleetcraft.identity import Owner
from fleetcraft.layout import Scratch
from fleetcraft.spool import leases
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import enqueue
from fleetcraft.spool.leases import Lease, new_lease
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.tree import SpoolTree


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    made = Scratch(str(tmp_path / "root"))
    for spool in (made.outer, made.inner):
        set_up(SpoolTree(spool))
    return made


@pytest.fixture
def outer(scratch: Scratch) -> SpoolTree:
    return SpoolTree(scratch.outer)


def case_of(tmp_path: Path, **environ: str) -> Case:
    return Case({"root": str(tmp_path / "root"), "project_dir": str(tmp_path)}, environ)


def by_name(findings: object) -> dict[str, Finding]:
    return {one.name: one for one in findings}  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------- settings


def test_an_unknown_key_is_wrong_with_its_line_and_the_near_one(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("worker:\n  slot: 2\n")
    found = by_name(check_settings(case_of(tmp_path)))["settings"]
    assert found.verdict is Verdict.WRONG
    assert "line 2" in found.found
    assert "worker.slots" in found.hint


def test_a_variable_that_is_nearly_a_setting_is_advice(tmp_path: Path) -> None:
    case = case_of(tmp_path, FLEET_GUARD_PROCESES_STOP="60", FLEET_RANK="0", FLEET_OWNER="x")
    found = by_name(check_settings(case))
    assert found["variables"].verdict is Verdict.ADVICE
    assert "FLEET_GUARD_PROCESSES_STOP is one" in found["variables"].found
    assert list(by_name(check_settings(case_of(tmp_path, FLEET_RANK="0")))) == ["settings"]


def test_a_project_folder_that_everybody_can_write_is_wrong(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert by_name(check_project_folder(case_of(tmp_path)))["folder"].verdict is Verdict.WRONG
    tmp_path.chmod(0o755)
    assert by_name(check_project_folder(case_of(tmp_path)))["folder"].verdict is Verdict.OK


def test_a_setup_file_that_others_can_write_is_wrong(tmp_path: Path) -> None:
    setup = tmp_path / "setup.sh"
    setup.touch()
    setup.chmod(0o666)
    found = by_name(check_project_folder(case_of(tmp_path, FLEET_SLURM_SETUP=str(setup))))
    assert found["setup"].verdict is Verdict.WRONG


# -------------------------------------------------------------------------- the batch table


def test_no_table_is_well_unless_one_is_required(tmp_path: Path, scratch: Scratch) -> None:
    assert by_name(check_batch_table(case_of(tmp_path)))["batch table"].verdict is Verdict.OK
    required = case_of(tmp_path, FLEET_BATCH_REQUIRE="true")
    assert by_name(check_batch_table(required))["batch table"].verdict is Verdict.WRONG


def test_an_edited_table_is_wrong(tmp_path: Path, scratch: Scratch) -> None:
    os.mkdir(scratch.calibration, 0o700)
    Path(scratch.batch_table).write_text(
        f"schema: fleetcraft.batch-table/1\nhash: sha256:{'0' * 64}\nfamilies: {{}}\n"
    )
    found = by_name(check_batch_table(case_of(tmp_path)))["batch table"]
    assert found.verdict is Verdict.WRONG
    assert found.hint


# ------------------------------------------------------------------------------- the spools


def put(tree: SpoolTree, name: str) -> None:
    enqueue(tree, TaskSpec(name=name, command="true"))


def test_two_safe_spools_are_well(tmp_path: Path, scratch: Scratch) -> None:
    found = by_name(check_spools(case_of(tmp_path)))
    assert {one.verdict for one in found.values()} == {Verdict.OK}
    assert set(found) == {"outer spool", "gpu spool"}


def test_a_spool_that_others_can_write_is_wrong(tmp_path: Path, outer: SpoolTree) -> None:
    os.chmod(outer.paths.pending, 0o770)
    found = by_name(check_spools(case_of(tmp_path)))["outer spool"]
    assert found.verdict is Verdict.WRONG
    assert "chmod go-w" in found.hint


def test_a_spool_that_is_not_there_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    found = by_name(check_spools(case_of(tmp_path)))["gpu spool"]
    assert found.verdict is Verdict.WRONG
    assert found.hint == f"fleetcraft --root {tmp_path}/root init"


def test_a_forgotten_marker_is_advice_and_wrong_while_tasks_wait(
    tmp_path: Path, outer: SpoolTree
) -> None:
    said = {"by": "me@login1", "at": "2026-01-01T00:00:00Z"}
    Path(outer.paths.drain_marker).write_text(json.dumps(said))
    found = by_name(check_spools(case_of(tmp_path)))["outer spool: DRAIN"]
    assert found.verdict is Verdict.ADVICE
    assert "me@login1" in found.found
    put(outer, "waits")
    found = by_name(check_spools(case_of(tmp_path)))["outer spool: DRAIN"]
    assert found.verdict is Verdict.WRONG
    assert found.hint.endswith("resume")


def lease(tree: SpoolTree, **changed: object) -> Lease:
    made = msgspec.structs.replace(new_lease(rank="0", interval_s=30.0), **changed)
    leases.publish(tree, made)
    return made


def dead_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def hold(tree: SpoolTree, name: str, by: Lease) -> None:
    put(tree, name)
    owner = Owner(by.job, by.rank, "0", f"{by.launch}-1")
    os.rename(f"{tree.paths.pending}/{name}.sh", tree.paths.claim(name, owner))


def test_a_worker_that_is_gone_and_holds_a_task_is_wrong(tmp_path: Path, outer: SpoolTree) -> None:
    hold(outer, "held", lease(outer, pid=dead_pid()))
    found = by_name(check_spools(case_of(tmp_path)))["outer spool: workers"]
    assert found.verdict is Verdict.WRONG
    assert "1 task" in found.found
    assert found.hint.endswith("recover")


def test_a_worker_that_lives_is_well(tmp_path: Path, outer: SpoolTree) -> None:
    hold(outer, "held", lease(outer))
    found = by_name(check_spools(case_of(tmp_path)))["outer spool: workers"]
    assert found.verdict is Verdict.OK


def test_a_silent_worker_elsewhere_is_unknown_never_gone(tmp_path: Path, outer: SpoolTree) -> None:
    silent = lease(outer, host="elsewhere", boot_id="another")
    hold(outer, "held", silent)
    os.utime(outer.paths.lease(silent.name), (0, 0))
    found = by_name(check_spools(case_of(tmp_path)))["outer spool: workers"]
    assert found.verdict is Verdict.UNKNOWN
    assert "snapshot" in found.hint


def test_a_claim_whose_lease_is_missing_is_unknown(tmp_path: Path, outer: SpoolTree) -> None:
    hold(outer, "held", new_lease(rank="0", interval_s=30.0))
    found = by_name(check_spools(case_of(tmp_path)))["outer spool: workers"]
    assert found.verdict is Verdict.UNKNOWN


def test_a_worker_that_left_is_no_news(tmp_path: Path, outer: SpoolTree) -> None:
    lease(outer, pid=dead_pid(), left_at="2026-01-01T00:00:00Z")
    assert set(by_name(check_spools(case_of(tmp_path)))) == {"outer spool", "gpu spool"}


def test_a_record_in_two_states_is_wrong(tmp_path: Path, outer: SpoolTree) -> None:
    put(outer, "twice")
    assert by_name(check_spool_records(case_of(tmp_path)))["outer spool: records"].found.startswith(
        "1 task,"
    )
    os.link(f"{outer.paths.pending}/twice.sh", f"{outer.paths.done}/twice.sh")
    found = by_name(check_spool_records(case_of(tmp_path)))["outer spool: records"]
    assert found.verdict is Verdict.WRONG
    assert "twice" in found.found
    assert "fleetcraft" in found.hint
