"""Refused records are kept under a name that says why, with the reason beside them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.rollouts.quarantine import (
    Refused,
    complete_reasons,
    count_refused,
    list_refused,
    parse_refused,
    read_reason,
    refuse,
)
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Refusal
from tests.rollouts.filling import QuickFS, new_queue, put, record, reopened


def refused_one(queue: RolloutQueue, sequence: int = 0, token: str = "t1") -> Refused | None:
    made = record(sequence)
    name = put(queue, made)
    path = f"{queue.paths.pending}/{name}"
    return refuse(
        queue, path, name, Refusal.LAG, "9 versions behind", token=token, by="v000010-1-n",
        record=made, at_version=9,
    )  # fmt: skip


def test_a_refused_record_is_kept_whole_with_its_reason_beside_it(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    before = record(0)

    refused = refused_one(queue)

    assert refused is not None
    assert refused.name == "v000000.s.00000000.000.lag.t1.json"
    assert os.listdir(queue.paths.pending) == []
    kept = Path(queue.paths.quarantine, refused.name).read_bytes()
    assert before.digest.encode() in kept
    reason = read_reason(queue, refused)
    assert reason is not None
    assert (reason.refusal, reason.why, reason.lag) == (Refusal.LAG, "9 versions behind", 9)
    assert (reason.identity, reason.gpu_s, reason.bucket) == (before.identity, 10.0, "65 to 128")
    assert count_refused(queue) == {Refusal.LAG: 1}
    assert queue.counts().quarantined == 1


def test_a_full_disk_leaves_the_refusal_in_the_name_and_the_reason_for_later(
    tmp_path: Path,
) -> None:
    class Full(QuickFS):
        def create(self, path: str, data: bytes, **keywords: bool | int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    queue = new_queue(tmp_path)
    refused = refused_one(reopened(queue, Full()))

    assert refused is not None
    assert list_refused(queue) == [refused]
    assert read_reason(queue, refused) is None
    assert complete_reasons(queue) == 1
    completed = read_reason(queue, refused)
    assert completed is not None
    assert (completed.refusal, completed.gpu_s, completed.lag) == (Refusal.LAG, 10.0, None)
    assert complete_reasons(queue) == 0


def test_a_record_that_is_gone_is_not_refused(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    path = f"{queue.paths.pending}/v000000.s.00000000.000.json"
    assert refuse(queue, path, "x.json", Refusal.LAG, "old", token="t") is None
    assert list_refused(queue) == []


def test_a_refused_record_is_never_replaced_by_another(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    first = refused_one(queue)
    assert first is not None
    kept = Path(queue.paths.quarantine, first.name).read_bytes()

    with pytest.raises(FileExistsError):
        refused_one(queue)

    assert Path(queue.paths.quarantine, first.name).read_bytes() == kept
    assert len(os.listdir(queue.paths.pending)) == 1


@given(st.text(), st.sampled_from(Refusal), st.text("abc123", min_size=1))
def test_the_name_of_a_refused_record_is_read_back(stem: str, refusal: Refusal, token: str) -> None:
    refused = Refused(f"{stem}.json", refusal, token)
    assert parse_refused(refused.name) == refused
    assert parse_refused(refused.reason_name) is None


@given(st.text())
def test_any_other_name_is_no_refused_record(name: str) -> None:
    found = parse_refused(name)
    assert found is None or found.name == name
