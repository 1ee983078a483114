"""A file is of one kind, whoever asks: a manifest, a stamp or a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetcraft.evidence.files.manifest import make_manifest
from fleetcraft.evidence.kinds import kind_by_looks
from fleetcraft.evidence.records import Kind
from fleetcraft.evidence.tracing.origins import kind_of


@pytest.mark.parametrize(
    ("path", "head", "kind"),
    [
        ("a.PNG", b"", Kind.FIGURE),
        ("a.mp4", b"", Kind.VIDEO),
        ("a.csv", b"x,y\n", Kind.TABLE),
        ("a.csv", b"timestamp,mem_used_mib,mem_total_mib,util_pct,power_w\n", Kind.TELEMETRY),
        ("a.sh", b"#!/bin/bash\necho\n", Kind.CODE),
        ("a.sh", b"#!/bin/bash\n#FLEET name: t\n", Kind.TASK),
        ("w.json", b'{"kind": "gpu_telemetry_window"', Kind.SUMMARY),
        ("m.json", b'{\n"schema":"fleetcraft.manifest/1"', Kind.MANIFEST),
        ("r.jsonl", b'{"sha256":"0","record":{"schema":"fleetcraft.result/1"', Kind.RESULTS),
        ("t.yaml", b"schema: fleetcraft.batch-table/1\n", Kind.TABLE),
        ("t.yaml", b"schema: fleetcraft.never-heard-of/1\n", Kind.CONFIG),
        ("t.yaml", b"a: 1\n", Kind.CONFIG),
        ("x.json", b"{}", Kind.OTHER),
        ("j.jsonl", b'{"event": "end", "batch": 1}\n', Kind.JOURNAL),
        ("FROZEN.json", b'{"record":{"schema":"fleetcraft.evidence-grid-state/1"', Kind.MANIFEST),
        ("README", b"", Kind.OTHER),
        ("model.safetensors", b"", Kind.CHECKPOINT),
    ],
)
def test_a_file_says_what_it_is(path: str, head: bytes, kind: Kind) -> None:
    assert kind_by_looks(path, head) is kind


def test_a_manifest_and_a_stamp_say_the_same_of_a_file(tmp_path: Path) -> None:
    late = b'{"trials": [' + b"0," * 700_000 + b'0], "schema": "fleetcraft.calibration/1"}\n'
    files = {
        "calibration.json": late,
        "table.csv": b"a,b\n1,2\n",
        "journal.jsonl": b'{"event": "end"}\n',
        "slurm.out": b"x\n",
        "run": b"#!/bin/bash\n#FLEET name: run\n",
        "figure.webp": b"x",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    entries = make_manifest(str(tmp_path), name="m").files

    assert {entry.path: entry.kind for entry in entries} == {
        "calibration.json": Kind.SUMMARY,
        "table.csv": Kind.TABLE,
        "journal.jsonl": Kind.JOURNAL,
        "slurm.out": Kind.LOG,
        "run": Kind.TASK,
        "figure.webp": Kind.FIGURE,
    }
    for entry in entries:
        assert kind_of(str(tmp_path / entry.path)) is entry.kind
