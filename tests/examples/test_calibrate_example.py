"""The example of a family of one's own, calibrated as its head says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "calibrate" / "my_family.py"
FLEETCRAFT = [sys.executable, "-m", "fleetcraft"]


@pytest.mark.timeout(300)
def test_a_family_of_ones_own_is_calibrated_from_its_file(tmp_path: Path) -> None:
    root = str(tmp_path / "scratch")
    subprocess.run([*FLEETCRAFT, "--root", root, "init"], check=True, capture_output=True)

    done = subprocess.run(
        [
            *FLEETCRAFT, "--root", root, "calibrate", "run", f"{EXAMPLE.name}:cycle",
            "--batches", "1,2", "--threads", "1", "--cycles", "0", "--no-figure", "--json",
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=EXAMPLE.parent,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["family"], found["semantics"]) == ("my-clips/16f/6step", "independent")
    assert [(trial["batch"], trial["verdict"]) for trial in found["trials"]] == [
        (1, "ok"),
        (2, "ok"),
    ]
    for trial in found["trials"]:
        assert [phase["name"] for phase in trial["phases"]] == [
            "load", "denoise", "decode", "score", "write",
        ]  # fmt: skip
        assert trial["missing_phases"] == []
        assert all(check["ok"] for check in trial["checks"])
        assert all(phase["autograd_mib"] == 0 for phase in trial["phases"])
        decode = next(phase for phase in trial["phases"] if phase["name"] == "decode")
        assert "pixels" in {owner["name"] for owner in decode["owners"]}
