"""Which calibrations give a row, and that its evidence is what lies on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleetcraft.batch_table import read_table, write_table
from fleetcraft.calibration.freezing import freeze, row_of
from fleetcraft.calibration.records import (
    Calibration,
    Choice,
    Environment,
    Failure,
    PhaseRecord,
    Trial,
    Verdict,
)
from fleetcraft.calibration.sweep.store import read_calibration, write_calibration
from fleetcraft.errors import BatchRefusedError, DataError
from fleetcraft.identity import sha256_hex
from tests.batch_table.rows import HASH_A, changed, table

MIB = 1 << 20
PLACE = Environment(
    device="NVIDIA GH200 480GB", device_mem_mib=97871.9, torch="2.13.0", sdpa="flash", alloc="a:b"
)
PHASES = (
    PhaseRecord(name="denoise", peak_bytes=10 * MIB, rss_peak_bytes=90 * MIB),
    PhaseRecord(name="decode", peak_bytes=30 * MIB + 1, rss_peak_bytes=80 * MIB),
)


def trial(folder: Path, batch: int, **changes: Any) -> Trial:
    journal = folder / f"batch-{batch:03d}" / "journal.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text(f'{{"event": "begin", "batch": {batch}}}\n')
    made = Trial(
        family="mine/1",
        identity=HASH_A,
        batch=batch,
        verdict=Verdict.OK,
        phase="decode",
        owner="pixels",
        phases=PHASES,
        soak_live_bytes=(5, 5, 5, 5),
        environment=PLACE,
        journal=str(journal),
        journal_sha256=f"sha256:{sha256_hex(journal.read_bytes())}",
    )
    return changed(made, **changes)


def calibration(folder: Path, of_two: dict[str, Any] | None = None, **changes: Any) -> Calibration:
    """A run that tried 1, 2 and 4, chose 2, and lies on disk; changed, then written."""
    made = Calibration(
        family="mine/1",
        identity=HASH_A,
        identity_fields={"key": "mine/1"},
        kind="infer",
        device="cuda",
        semantics="independent",
        trials=(
            trial(folder, 1),
            trial(folder, 2, **(of_two or {})),
            Trial(
                family="mine/1", identity=HASH_A, batch=4,
                verdict=Verdict.SKIPPED, failure=Failure.PREDICTED,
            ),
        ),
        choice=Choice(
            batch=2, reason="headroom", next_batch=4, next_verdict=Verdict.SKIPPED,
            next_class=Failure.PREDICTED, throughput_gain=0.123456,
        ),
        folder=str(folder),
    )  # fmt: skip
    record = write_calibration(str(folder), changed(made, **changes))
    return read_calibration(record)


def refused(run: Calibration, **options: Any) -> BatchRefusedError:
    with pytest.raises(BatchRefusedError, match="nothing was written") as caught:
        row_of(run, **options)
    assert caught.value.exit_code == 7
    assert f"{caught.value.facts['field']}: " in caught.value.message
    return caught.value


def test_a_whole_run_gives_its_row(tmp_path: Path) -> None:
    run = calibration(tmp_path)
    row = row_of(run)
    assert (row.identity, row.batch, row.timed_batch, row.reason) == (HASH_A, 2, 1, "headroom")
    assert (row.device.name, row.device.mem_mib) == ("NVIDIA GH200 480GB", 97871)
    assert (row.stack.torch, row.stack.sdpa, row.stack.alloc) == ("2.13.0", "flash", "a:b")
    assert (row.peak.phase, row.peak.owner) == ("decode", "pixels")
    assert (row.peak.device_mib, row.peak.host_mib) == (31, 90)
    assert row.next is not None
    assert (row.next.batch, row.next.verdict, row.next.throughput_gain) == (4, "skipped", 0.1235)
    record = f"sha256:{sha256_hex((tmp_path / 'calibration.json').read_bytes())}"
    assert row.evidence == (record, *(t.journal_sha256 for t in run.trials[:2]))


@pytest.mark.parametrize(
    ("field", "changes", "of_two"),
    [
        ("fault", {"fault": "leak_probe_kv"}, {}),
        ("choice", {"choice": Choice(batch=None, reason="first_failed")}, {}),
        ("smoke", {}, {"missing_phases": ("step2",)}),
        ("verdict", {}, {"verdict": Verdict.FAILED, "failure": Failure.SOAK_RISING}),
        ("soak", {}, {"soak_live_bytes": ()}),
        ("soak", {}, {"soak_live_bytes": (5, 5, 5)}),
        ("budget", {"device_budget_bytes": 1 << 30}, {}),
        ("budget", {"host_budget_bytes": 1 << 30}, {}),
        ("environment", {}, {"environment__torch": ""}),
        ("environment", {}, {"environment__device": ""}),
        ("environment", {}, {"environment__sdpa": ""}),
    ],
)
def test_a_run_that_shows_too_little_is_refused(
    tmp_path: Path, field: str, changes: dict[str, Any], of_two: dict[str, Any]
) -> None:
    assert refused(calibration(tmp_path, of_two, **changes)).facts["field"] == field


def test_an_emulated_budget_is_frozen_only_if_that_is_said(tmp_path: Path) -> None:
    run = calibration(tmp_path, device_budget_bytes=1 << 30)
    assert row_of(run, emulated=True).batch == 2


def test_the_journal_of_the_soak_is_evidence_too(tmp_path: Path) -> None:
    soak = tmp_path / "soak.jsonl"
    soak.write_text('{"event": "begin"}\n')
    right = f"sha256:{sha256_hex(soak.read_bytes())}"
    told = {"soak_journal": str(soak), "soak_journal_sha256": right}
    run = calibration(tmp_path, {"evidence": told})
    assert row_of(run).evidence[-1] == right
    soak.write_text('{"event": "end"}\n')
    assert str(soak) in refused(run).message


def test_evidence_that_changed_or_is_gone_is_refused(tmp_path: Path) -> None:
    run = calibration(tmp_path)
    journal = Path(run.trials[0].journal)
    whole = journal.read_bytes()
    journal.write_bytes(whole + b"{}\n")
    assert str(journal) in refused(run).message
    journal.unlink()
    assert refused(run).facts["field"] == "evidence"
    journal.write_bytes(whole)
    assert row_of(run)
    assert refused(changed(run, identity=f"sha256:{'0' * 64}")).facts["field"] == "evidence"
    (tmp_path / "calibration.json").write_text("{}")
    assert refused(run).facts["field"] == "evidence"


def test_freezing_writes_the_rows_and_leaves_other_families(tmp_path: Path) -> None:
    path = str(tmp_path / "batch-table.yaml")
    write_table(path, table())
    run = calibration(tmp_path / "run")
    after, changes = freeze([run], path)
    assert read_table(path) == after
    assert set(after.families) == {"mine/1", *table().families}
    assert [(change.family, change.field) for change in changes] == [("mine/1", "")]
    assert freeze([run], path) == (after, [])


def test_one_bad_run_of_several_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "batch-table.yaml"
    good = calibration(tmp_path / "a")
    bad = calibration(tmp_path / "b", fault="stall")
    with pytest.raises(BatchRefusedError):
        freeze([good, bad], str(path))
    assert not path.exists()


def test_an_edited_table_is_not_frozen_over(tmp_path: Path) -> None:
    path = tmp_path / "batch-table.yaml"
    write_table(str(path), table())
    path.write_text(path.read_text().replace("batch: 4", "batch: 5"))
    before = path.read_bytes()
    with pytest.raises(DataError, match="hash"):
        freeze([calibration(tmp_path / "run")], str(path))
    assert path.read_bytes() == before
