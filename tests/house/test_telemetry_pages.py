"""The telemetry format page has every column, status and key of the code, and skills are in form.

Not here: what the pages' commands do (test_documents.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from fleetcraft.gpu.states import GpuState
from fleetcraft.gpu.status import Status
from fleetcraft.telemetry import forwards
from fleetcraft.telemetry.columns import COLUMNS, RowKind
from fleetcraft.telemetry.logger.sidecar_record import SidecarRecord
from fleetcraft.telemetry.reading.counts import Rejection
from fleetcraft.telemetry.reading.sources import find_sources
from fleetcraft.telemetry.windows.freeze import freeze
from fleetcraft.telemetry.windows.span import window_at
from fleetcraft.telemetry.windows.summary import summarize

REPO = Path(__file__).resolve().parents[2]
FORMAT = (REPO / "docs/telemetry-format.md").read_text()


def documented(heading: str, page: str = FORMAT) -> list[str]:
    """The words in code font in the first cells of the table below a header's first cell."""
    table = re.search(rf"^\| {heading} \|.*\n\|---.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert table is not None, heading
    first_cells = (row.split("|")[1] for row in table[1].splitlines())
    return [word for cell in first_cells for word in re.findall(r"`([^`]+)`", cell)]


def test_every_column_is_documented_in_its_order_and_no_other() -> None:
    assert documented("column") == list(COLUMNS)


def test_every_kind_and_status_is_documented_and_no_other() -> None:
    assert documented("kind") == list(RowKind)
    assert set(documented("status")) == set(Status)


def test_every_reason_to_reject_a_line_is_documented_and_no_other() -> None:
    assert set(documented("rejected")) == set(Rejection)


def test_every_key_of_a_sidecar_is_documented_and_no_other() -> None:
    page = FORMAT[FORMAT.index("## Sidecar") :]
    keys = {field.encode_name for field in msgspec.structs.fields(SidecarRecord)}
    assert set(documented("key", page)) == keys


def test_every_key_of_a_forward_call_is_documented_and_no_other() -> None:
    page = FORMAT[FORMAT.index("## Forward calls") :]
    keys = {field.encode_name for field in msgspec.structs.fields(forwards._Line)}
    assert set(documented("key", page)) == keys


def test_every_key_of_a_frozen_window_is_documented_and_no_other(tmp_path: Path) -> None:
    trace = tmp_path / "n1.csv"
    head = "timestamp,mem_used_mib,mem_total_mib,util_pct,power_w"
    trace.write_text(f"{head}\n2026/07/17 11:59:00.000,1,2,3,4\n")
    assert find_sources(str(tmp_path)).sources
    read = summarize(str(tmp_path), window_at(300.0, "2026-07-17T12:00:00", 0.0), keep=True)
    assert read.evidence is not None
    freeze(str(tmp_path / "window.json"), read.summary, read.evidence, read.folder)
    page = FORMAT[FORMAT.index("## Frozen windows") :]
    keys = json.loads((tmp_path / "window.json").read_text()).keys()
    assert set(documented("key", page)) == set(keys)


def test_the_page_on_top_names_every_state_of_a_gpu() -> None:
    page = (REPO / "docs/telemetry.md").read_text()
    states = re.findall(r"^\| `.` \| ([a-z ]+) \|", page, re.MULTILINE)
    assert {state.replace(" ", "_") for state in states} == set(GpuState)
