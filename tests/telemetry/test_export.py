"""What leaves the house in an export, and what must not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetcraft.errors import DataError, UsageError
from fleetcraft.telemetry.columns import ARCHIVE_COLUMNS, COLUMNS
from fleetcraft.telemetry.export import export
from fleetcraft.telemetry.reading.reader import FileReader
from fleetcraft.telemetry.reading.sources import find_sources

REPO = Path(__file__).resolve().parents[2]
ARCHIVE = REPO.parent / "shared/telemetry/hosts"
SECRET = "secret-c303-042"
HOST = "c303n042"


def row(**cells: object) -> str:
    values = {
        "timestamp": "2026-11-30T02:00:00.000Z",
        "mem_used_mib": 100.5,
        "mem_total_mib": 40960,
        "util_pct": 97,
        "gpu_index": 0,
        "gpu_uuid": f"GPU-{SECRET}",
        "pci_bus_id": "00000000:07:00.0",
        "throttle": "0x4",
        "status": "ok",
        "job_id": "987654",
        "kind": "gpu",
        "missing": "ecc=unsupported",
        "detail": f"/home/{SECRET}/run",
        **cells,
    }
    return ",".join(str(values.get(column, "")) for column in COLUMNS)


def source(folder: Path, *rows: str, node: str = SECRET, job: str = "987654") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{node}_job{job}_20261130T020000Z.csv"
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    sidecar = {
        "schema": "fleetcraft.telemetry_file/1",
        "node": node,
        "job_id": job,
        "boot_id": SECRET,
        "cluster": SECRET,
        "interval_s": 30.0,
        "started_at": "2026-11-30T02:00:00Z",
        "ended_at": "2026-11-30T03:00:00Z",
        "end_reason": f"stopped by {SECRET}",
        "gpus": [
            {"index": 0, "uuid": f"GPU-{SECRET}", "name": "NVIDIA H200", "pci_bus_id": "0"},
            {"index": 1, "uuid": "GPU-x", "name": SECRET},
        ],
    }
    path.with_suffix(".json").write_text(json.dumps(sidecar))
    return path


def all_text(folder: Path) -> str:
    return "\n".join(
        [*(p.name for p in folder.iterdir()), *(p.read_text() for p in folder.iterdir())]
    )


def test_hosts_jobs_and_gpus_are_renamed_and_the_numbers_stay(tmp_path: Path) -> None:
    source(tmp_path / "in", row(), row(util_pct=3, gpu_uuid="GPU-b"))
    done = export(str(tmp_path / "in"), str(tmp_path / "out"), anonymize=True)
    (file,) = done.files
    assert file.name == "host01_job01_20261130T020000Z.csv"
    assert (done.hosts, file.rows, file.left_out) == (1, 2, {})
    text = all_text(tmp_path / "out")
    assert SECRET not in text
    assert "987654" not in text
    assert "00000000:07:00.0" not in text
    (copy,) = find_sources(str(tmp_path / "out")).sources
    reader = FileReader(copy)
    values = [list(chunk.values["util_pct"]) for chunk in reader.chunks()]
    assert values == [[97.0, 3.0]]
    assert {series.gpu_uuid for series in reader.series} == {"GPU-0001", "GPU-0002"}
    assert ",97,,0,GPU-0001," in text
    assert ",3,,0,GPU-0002," in text
    assert copy.sidecar is not None
    assert [gpu.name for gpu in copy.sidecar.gpus] == ["NVIDIA H200", ""]
    assert copy.sidecar.interval_s == 30.0
    assert copy.sidecar.end_reason == ""


def test_one_gpu_in_two_files_keeps_one_new_name(tmp_path: Path) -> None:
    source(tmp_path / "in", row(job_id="1"), job="1")
    source(tmp_path / "in", row(job_id="2"), job="2")
    export(str(tmp_path / "in"), str(tmp_path / "out"), anonymize=True)
    copies = sorted((tmp_path / "out").glob("*.csv"))
    assert [copy.name.split("_")[:2] for copy in copies] == [
        ["host01", "job01"],
        ["host01", "job02"],
    ]
    assert all("GPU-0001" in copy.read_text() for copy in copies)


def test_without_pseudonyms_names_stay_and_damage_still_goes(tmp_path: Path) -> None:
    source(tmp_path / "in", row(), "Unable to determine the device handle: GPU is lost")
    done = export(str(tmp_path / "in"), str(tmp_path / "out"), anonymize=False)
    assert done.hosts is None
    assert done.files[0].left_out == {"wrong_columns": 1}
    assert SECRET in all_text(tmp_path / "out")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"error in /home/{SECRET}", "wrong_columns"),
        (",".join(COLUMNS), "header_again"),
        (row(timestamp=SECRET), "bad_time"),
        (row(status=SECRET), "cell_of_status"),
        (row(util_pct=SECRET), "cell_of_util_pct"),
        (row(throttle=SECRET), "cell_of_throttle"),
        (row(kind=SECRET), "cell_of_kind"),
        (row(power_source=HOST), "cell_of_power_source"),
        (row(missing=f"ecc=unsupported power_w={SECRET}"), "word_of_missing"),
    ],
)
def test_what_is_not_of_its_columns_form_is_left_out_and_counted(
    tmp_path: Path, line: str, reason: str
) -> None:
    source(tmp_path / "in", row(), line, row())
    done = export(str(tmp_path / "in"), str(tmp_path / "out"), anonymize=True)
    assert done.files[0].left_out == {reason: 1}
    text = all_text(tmp_path / "out")
    assert SECRET not in text
    assert HOST not in text


@pytest.mark.parametrize("column", ["detail", "gpu_uuid", "job_id", "pci_bus_id", "step_id"])
@pytest.mark.parametrize("formula", ["=cmd|' /C calc'!A0", "+1+1|x", "-2+3", "@SUM(1)"])
def test_no_cell_of_a_copy_is_a_formula_to_a_spreadsheet(
    tmp_path: Path, column: str, formula: str
) -> None:
    source(tmp_path / "in", row(**{column: formula}))
    done = export(str(tmp_path / "in"), str(tmp_path / "out"), anonymize=False)
    assert done.files[0].left_out == {f"cell_of_{column}": 1}
    assert formula not in all_text(tmp_path / "out")


def test_a_column_that_nobody_knows_and_a_torn_tail_stay_behind(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    head = ",".join([*ARCHIVE_COLUMNS, "note"])
    good = "2026/07/19 21:59:17.693, 8, 97871, 0, [N/A]"
    (folder / "n1.csv").write_text(f"{head}\n{good}, {SECRET}\n{good}, {SECRET}")
    done = export(str(folder), str(tmp_path / "out"), anonymize=True)
    assert done.files[0].left_out == {"torn_tail": 1, "unknown_column": 1}
    lines = (tmp_path / "out/host01.csv").read_text().splitlines()
    assert lines == [",".join(ARCHIVE_COLUMNS), "2026/07/19 21:59:17.693,8,97871,0,[N/A]"]


def test_rows_below_another_header_go_by_that_one(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [
        "\ufefftimestamp,util_pct,power_w",
        "2026/07/19 21:59:17.693,97,250.5",
        "timestamp,power_w,util_pct",
        "2026/07/19 21:59:47.693,250.5,97",
        "timestamp,power_w,temp_c,util_pct",
        "2026/07/19 22:00:17.693,250.5,40,97",
    ]
    (folder / "n1.csv").write_text("\n".join(rows) + "\n")
    done = export(str(folder), str(tmp_path / "out"), anonymize=True)
    _, *copied = (tmp_path / "out/host01.csv").read_text().splitlines()
    assert [line.partition(",")[2] for line in copied] == ["97,250.5"] * 3
    assert done.files[0].left_out == {"header_again": 2, "unknown_column": 1}


def test_the_manifest_has_the_hash_of_every_copy(tmp_path: Path) -> None:
    source(tmp_path / "in", row())
    export(str(tmp_path / "in"), str(tmp_path / "out"), anonymize=True)
    manifest = json.loads((tmp_path / "out/MANIFEST.json").read_text())
    for file in manifest["files"]:
        data = (tmp_path / "out" / file["name"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == file["sha256"]


def test_copies_are_private_until_their_owner_decides(tmp_path: Path) -> None:
    source(tmp_path / "in", row())
    export(str(tmp_path / "in"), str(tmp_path / "out"), anonymize=True)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert modes == {0o600}
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_holds_something_is_not_written_into(tmp_path: Path) -> None:
    source(tmp_path / "in", row())
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("")
    with pytest.raises(UsageError, match="not empty"):
        export(str(tmp_path / "in"), str(tmp_path / "out"), anonymize=True)


def test_where_there_is_nothing_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match="no telemetry file"):
        export(str(tmp_path / "in"), str(tmp_path / "out"), anonymize=True)
    assert not (tmp_path / "out").exists()


def test_the_archives_come_through_row_by_row(tmp_path: Path) -> None:
    if not ARCHIVE.is_dir():
        pytest.skip("the archived traces are not beside this checkout")
    done = export(str(ARCHIVE), str(tmp_path / "out"), anonymize=True)
    assert sum(file.rows for file in done.files) == 68244
    assert all(file.left_out == {} for file in done.files)
    for file, path in zip(done.files, sorted(ARCHIVE.glob("*.csv")), strict=True):
        assert (tmp_path / "out" / file.name).read_text() == path.read_text()


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(lines=st.lists(st.lists(st.text(max_size=8), max_size=12).map(",".join), max_size=6))
def test_no_text_of_a_source_but_its_numbers_reaches_the_copy(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    base = tmp_path_factory.mktemp("export")
    marked = [line.replace("a", SECRET) for line in lines]
    source(base / "in", row(), *marked)
    export(str(base / "in"), str(base / "out"), anonymize=True)
    assert SECRET not in all_text(base / "out")
