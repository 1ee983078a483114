"""Comparing: each field that differs is named, and what is unknown never passes."""

from __future__ import annotations

from typing import Any

import pytest

from fleetcraft.batch_table import Change, Found, diff, make_table, require
from fleetcraft.batch_table.judging import STACK_FIELDS
from fleetcraft.errors import BatchRefusedError, DataError
from tests.batch_table.rows import FAMILY, FOUND, HASH_B, ROW, changed, table

FIELDS = {
    "identity": ("identity", HASH_B),
    "device.name": ("device_name", "NVIDIA H200"),
    "device.mem_mib": ("device_mem_mib", 97870),
    "stack.torch": ("torch", "2.13.1"),
    "stack.sdpa": ("sdpa", "math"),
    "stack.alloc": ("alloc", ""),
}


def refused(found: Found, family: str = FAMILY, **options: Any) -> BatchRefusedError:
    with pytest.raises(BatchRefusedError) as caught:
        require(options.pop("table", table()), family, found, **options)
    assert str(caught.value.facts["field"]) in caught.value.message
    assert isinstance(caught.value, DataError)
    return caught.value


def test_what_is_as_it_was_frozen_gives_the_row() -> None:
    assert require(table(), FAMILY, FOUND) == ROW
    assert require(table(), FAMILY, FOUND, batch=4) == ROW
    assert require(table(), FAMILY, FOUND, batch=1).timed_batch == 1


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_differs_is_named(field: str) -> None:
    name, other = FIELDS[field]
    error = refused(changed(FOUND, **{name: other}))
    assert error.facts["field"] == field
    assert error.facts["found"] == other
    assert repr(other) in error.message


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_is_unknown_is_refused_unless_somebody_else_compares_it(field: str) -> None:
    found = changed(FOUND, **{FIELDS[field][0]: None})
    error = refused(found)
    assert error.facts["field"] == field
    assert "cannot be checked" in error.message
    assert require(table(), FAMILY, found, left_out={field}) == ROW


def test_the_first_of_several_differences_is_named_in_a_fixed_order() -> None:
    order = list(FIELDS)
    for index, field in enumerate(order):
        changes = {FIELDS[later][0]: FIELDS[later][1] for later in order[index:]}
        assert refused(changed(FOUND, **changes), batch=3).facts["field"] == field


def test_a_device_without_memory_of_its_own_is_compared_as_that() -> None:
    frozen = table(device__mem_mib=None)
    assert require(frozen, FAMILY, changed(FOUND, device_mem_mib=None))
    assert refused(FOUND, table=frozen).facts["field"] == "device.mem_mib"


def test_nothing_is_known_of_nothing() -> None:
    assert refused(Found()).facts["field"] == "identity"
    left_out = {"identity", "device.name", "device.mem_mib", *STACK_FIELDS}
    assert require(table(), FAMILY, Found(), left_out=left_out)


def test_a_batch_by_hand_is_refused() -> None:
    error = refused(FOUND, batch=2)
    assert (error.facts["field"], error.facts["found"], error.facts["frozen"]) == ("batch", 2, 4)


def test_a_family_without_a_row_is_refused_with_near_names() -> None:
    error = refused(FOUND, "wan21-1.3b/480p/81g")
    assert error.facts["field"] == "family"
    assert FAMILY in error.hint
    assert FAMILY in refused(FOUND, "wan21-1.3b").hint
    assert "calibrate run other" in refused(FOUND, "other").hint


def test_a_table_in_memory_with_another_hash_is_refused() -> None:
    assert refused(FOUND, table=changed(table(), hash=HASH_B)).facts["field"] == "hash"


def test_a_difference_is_told_by_family_and_field() -> None:
    before = make_table({"gone": ROW, "same": ROW, "other": ROW})
    row = changed(ROW, batch=8, stack__torch="2.14.0", next=None)
    after = make_table({"same": ROW, "other": row, "new": ROW})
    changes = diff(before, after)
    assert [(c.family, c.field) for c in changes] == [
        ("gone", ""), ("new", ""), ("other", "stack.torch"), ("other", "batch"),
        ("other", "next.batch"), ("other", "next.verdict"), ("other", "next.throughput_gain"),
    ]  # fmt: skip
    assert Change(family="other", field="batch", before=4, after=8) in changes
    assert changes[0].after is None
    assert changes[1].before is None
    assert diff(before, before) == []
