"""The batch that a task asks for in itself: the frozen one, or an error that names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleetcraft.batch_table import make_table, write_table
from fleetcraft.calibration import family as declare
from fleetcraft.calibration import frozen_batch
from fleetcraft.calibration.family import Family
from fleetcraft.errors import BatchRefusedError, DataError
from tests.batch_table.rows import HASH_B, ROW, changed

pytest.importorskip("torch")
KEY = "mine/1"


def cycle(ctx: Any, batch: int) -> None:
    """A family's cycle that is never run here."""


MINE: Family = declare(KEY, identity={"model": "m", "dtype": "bf16"})(cycle)
OTHER: Family = declare(KEY, identity={"model": "m", "dtype": "fp32"})(cycle)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a table that fits this process, which the environment names."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    path = str(tmp_path / "batch-table.yaml")
    write(path)
    monkeypatch.setenv("FLEET_BATCH_TABLE", path)
    monkeypatch.chdir(tmp_path)
    return path


def write(path: str, **changes: Any) -> str:
    from fleetcraft.calibration.stack import describe_stack

    here = describe_stack("cpu")
    row = changed(
        ROW,
        identity=MINE.identity_hash,
        device__name=here.device,
        device__mem_mib=None,
        stack__torch=here.torch,
        stack__sdpa=here.sdpa,
        stack__alloc="",
    )
    made = make_table({KEY: changed(row, **changes)})
    write_table(path, made)
    return made.hash


def ask(family: Any = MINE, **options: Any) -> int:
    return frozen_batch(family, device="cpu", **options)


def refused(family: Any = MINE, **options: Any) -> BatchRefusedError:
    with pytest.raises(BatchRefusedError) as caught:
        ask(family, **options)
    return caught.value


def as_task(monkeypatch: pytest.MonkeyPatch, table_hash: str, batch: object) -> None:
    monkeypatch.setenv("FLEET_FAMILY", KEY)
    monkeypatch.setenv("FLEET_BATCH_HASH", table_hash)
    monkeypatch.setenv("FLEET_BATCH", str(batch))


def test_outside_of_a_task_the_rows_batch_is_given(table: str) -> None:
    assert ask() == 4
    assert ask(table=table) == 4
    assert ask(KEY, identity=MINE) == 4
    assert ask(KEY, identity=MINE.identity_fields) == 4
    assert ask(KEY, identity=MINE.identity_hash) == 4
    assert ask(batch=4) == 4


@pytest.mark.parametrize("batch", [4, 1])
def test_in_a_task_the_workers_word_is_given(
    table: str, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    as_task(monkeypatch, write(table), batch)
    assert ask() == batch
    assert ask(batch=batch) == batch
    assert refused(batch=5 - batch).facts["field"] == "batch"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("identity", {"identity": HASH_B}),
        ("device.name", {"device__name": "NVIDIA H200"}),
        ("device.mem_mib", {"device__mem_mib": 143771}),
        ("stack.torch", {"stack__torch": "1.0"}),
        ("stack.sdpa", {"stack__sdpa": "cudnn"}),
        ("stack.alloc", {"stack__alloc": "backend:native"}),
    ],
)
def test_what_differs_is_named(table: str, field: str, changes: dict[str, Any]) -> None:
    write(table, **changes)
    error = refused()
    assert error.facts["field"] == field
    assert field in error.message


def test_another_attention_backend_than_the_frozen_one_is_refused(table: str) -> None:
    from fleetcraft.calibration.checks.sdpa import pinned

    with pinned("math", "cpu"):
        assert refused().facts["field"] == "stack.sdpa"


def test_a_family_that_is_not_the_calibrated_one_is_refused(table: str) -> None:
    assert refused(OTHER).facts["field"] == "identity"
    assert refused(KEY).facts["field"] == "identity"  # nobody says which one it is
    assert "cannot be checked" in refused(KEY).message
    assert refused("mine/2", identity=MINE).facts["field"] == "family"


def test_an_edited_table_is_refused(table: str) -> None:
    text = Path(table).read_text()
    Path(table).write_text(text.replace("batch: 4", "batch: 8"))
    assert refused().facts["field"] == "hash"


def test_another_table_than_the_workers_is_refused(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_task(monkeypatch, HASH_B, 4)
    assert refused().facts["field"] == "hash"


@pytest.mark.parametrize("text", ["8", "2", "", "four", "4.0"])
def test_a_batch_by_hand_in_a_task_is_refused(
    table: str, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    as_task(monkeypatch, write(table), text)
    assert refused().facts["field"] == "batch"


def test_a_batch_that_no_worker_set_is_refused(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_BATCH", "4")
    assert refused().facts["field"] == "batch"


def test_a_task_that_was_claimed_without_a_row_has_no_batch(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_FAMILY", KEY)
    assert refused().facts["field"] == "batch"


def test_a_task_of_another_family_has_no_batch_of_this_one(
    table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_task(monkeypatch, write(table), 4)
    monkeypatch.setenv("FLEET_FAMILY", "other")
    assert refused().facts["field"] == "family"


def test_without_a_table_there_is_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused().facts["field"] == "hash"
    with pytest.raises(DataError, match="No such file"):
        ask(table=str(tmp_path / "none.yaml"))
