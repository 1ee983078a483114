"""What run.sh proves, one function a step: each ends with a sentence, or with an assertion.

Run by the Python that has torch. Invariant: nothing here passes on an empty answer.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

PHASES = (
    "load", "denoise", "decode", "score", "backward1", "step1", "backward2", "step2", "probe",
    "save", "write",
)  # fmt: skip


def read(path: str) -> Any:
    return json.loads(Path(path).read_text())


def work(device: str, seconds: str) -> str:
    """Keeps the device busy for a while."""
    import torch

    size = 8192 if device == "cuda" else 256
    matrix = torch.randn(size, size, device=device)
    ends, rounds = time.monotonic() + float(seconds), 0
    while time.monotonic() < ends:
        matrix = torch.nn.functional.normalize(matrix @ matrix)
        rounds += 1
        if device == "cuda" and rounds % 8 == 0:
            torch.cuda.synchronize()
    assert torch.isfinite(matrix).all()
    return f"{rounds} products"


def inspected(path: str) -> str:
    """The logger's file is whole."""
    found = read(path)
    assert found, found
    return f"inspected: {sorted(found)}"


def logged(folder: str, device: str) -> str:
    """Rows of every sample with memory, power and utilization, and work that can be seen."""
    import csv

    (file,) = Path(folder).glob("*.csv")
    with file.open() as opened:
        rows = [row for row in csv.DictReader(opened) if row["kind"] == "gpu"]
    assert len(rows) >= 10, f"{len(rows)} rows of GPUs"
    for row in rows:
        assert row["status"] == "ok", row
        assert float(row["mem_total_mib"]) > 0, row
        assert row["util_pct"] != "", row
    if device == "cuda":
        busy = [float(row["util_pct"]) for row in rows]
        assert max(busy) > 50, busy
        powers = [float(row["power_w"]) for row in rows if row["power_w"]]
        assert powers, rows[0]
        assert max(powers) > min(powers), powers
        assert {row["util_source"] for row in rows} & {"samples", "instant"}, rows[0]
    return f"{len(rows)} rows"


def calibrated(path: str, device: str) -> str:
    """All phases, owners that add up, and on a GPU the allocator's peaks with a named residual."""
    found = read(path)
    ran = [trial for trial in found["trials"] if trial["verdict"] != "skipped"]
    assert ran, found["trials"]
    for trial in ran:
        assert trial["verdict"] == "ok", (trial["class"], trial["detail"])
        assert [phase["name"] for phase in trial["phases"]] == list(PHASES), trial["phases"]
        for phase in trial["phases"]:
            assert sum(o["bytes"] for o in phase["owners"]) == phase["peak_bytes"], phase
            if device == "cuda":
                assert phase["allocated_peak_bytes"], phase
                residual = phase["allocated_peak_bytes"] - phase["peak_bytes"]
                assert phase["residual_bytes"] == residual, phase
    assert found["choice"]["batch"], found["choice"]
    return f"batch {found['choice']['batch']}: {found['choice']['reason']}"


def leaked(path: str) -> str:
    """The leak of the probe is named."""
    (trial,) = read(path)["trials"]
    assert (trial["class"], trial["owner"], trial["phase"]) == (
        "owner_outlived",
        "probe.kv",
        "probe",
    ), trial
    return trial["detail"]


def refusal(**call: Any) -> Any:
    """What `frozen_batch` answers; None when it gives a batch."""
    from fleetcraft.calibration import find_family, frozen_batch
    from fleetcraft.errors import FleetError

    try:
        frozen_batch(find_family("demo"), **call)
    except FleetError as error:
        return error
    return None


def obeyed(path: str, device: str) -> str:
    """The row holds here, and an edited one or a batch by hand does not."""
    from fleetcraft.batch_table import read_table
    from fleetcraft.calibration import find_family, frozen_batch

    family = find_family("demo")
    batch = frozen_batch(family, table=path, device=device)
    assert batch == read_table(path).families[family.key].batch

    by_hand = refusal(batch=batch + 1, table=path, device=device)
    assert by_hand is not None, "a batch by hand was taken"
    assert by_hand.field == "batch", by_hand.facts

    edited = Path(path).with_name("edited.yaml")
    edited.write_text(Path(path).read_text().replace(f"batch: {batch}", f"batch: {batch + 7}"))
    edited.chmod(0o600)
    changed = refusal(table=str(edited), device=device)
    edited.unlink()
    assert changed is not None, "an edited table was taken"
    assert "hash" in changed.message, changed.message
    return f"batch {batch} on {device}"


if __name__ == "__main__":
    print(globals()[sys.argv[1]](*sys.argv[2:]))
