"""What is training data and what is not, each refusal by its own fault."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import FileRef, Record, Refusal, encode
from fleetcraft.rollouts.transaction.judging import Judge, Verdict, judge_shapes, read_record
from tests.rollouts.filling import QuickFS, fill, finish, new_queue, record, reopened, taken


def judged(
    queue: RolloutQueue, made: Record, *, data: bytes | None = None, name: str = ""
) -> Verdict:
    judge = Judge(queue, Ledger.load(queue))
    return judge.judge(name or str(made.name), encode(made) if data is None else data)


def test_a_good_record_is_training_data(tmp_path: Path) -> None:
    made = record(3)
    verdict = judged(new_queue(tmp_path), made)
    assert (verdict.refusal, verdict.record) == (None, made)


@pytest.mark.parametrize(
    ("refusal", "why", "fields"),
    [
        (Refusal.WRONG_RUN, "run 'other'", {"run": "other"}),
        (Refusal.FUTURE_VERSION, "under version 1", {"version": 1}),
        (Refusal.MISSING_VALUES, "without log_probs", {"values": {"x": [1.0]}}),
        (Refusal.MISSING_VALUES, "without log_probs", {"values": {"log_probs": []}}),
    ],
)
def test_a_record_with_a_fault_is_refused_for_it(
    tmp_path: Path, refusal: Refusal, why: str, fields: dict[str, Any]
) -> None:
    queue = new_queue(tmp_path, required_values=("log_probs",))
    verdict = judged(queue, record(0, **fields))
    assert verdict.refusal is refusal
    assert why in verdict.why


@pytest.mark.parametrize(
    ("refusal", "spoil"),
    [
        (Refusal.UNREADABLE, lambda data: data[:-40]),
        (Refusal.UNREADABLE, lambda data: b""),
        (Refusal.UNREADABLE, lambda data: b'{"schema":"something else"}'),
        (Refusal.WRONG_DIGEST, lambda data: data.replace(b"-2.0", b"-2.5")),
        (Refusal.FUTURE_SCHEMA, lambda data: data.replace(b"rollout/1", b"rollout/2")),
        (Refusal.NOT_FINITE, lambda data: data.replace(b"-2.0", b"null")),
        (Refusal.NOT_FINITE, lambda data: data.replace(b'"reward":0.5', b'"reward":null')),
    ],
)
def test_a_record_whose_bytes_were_spoiled_is_refused(
    tmp_path: Path, refusal: Refusal, spoil: Any
) -> None:
    made = record(0)
    verdict = judged(new_queue(tmp_path), made, data=spoil(encode(made)))
    assert verdict.refusal is refusal, verdict.why


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_never_makes_other_training_data(place: int, bit: int) -> None:
    made = record(0)
    data = bytearray(encode(made))
    data[place % len(data)] ^= 1 << bit
    verdict = read_record(str(made.name), bytes(data))
    if verdict.record is not None and verdict.record != made:
        queue = RolloutQueue.__new__(RolloutQueue)
        queue.settings = new_settings()
        judge = Judge.__new__(Judge)
        judge._queue = queue
        assert judge._broken(verdict.record, made.digest) is not None


def new_settings() -> Any:
    from tests.rollouts.filling import SMALL

    return SMALL


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_refusal(data: bytes) -> None:
    verdict = read_record("x.json", data)
    assert (verdict.record is None) is (verdict.refusal is not None)


def test_a_digest_that_is_not_the_intents_is_refused(tmp_path: Path) -> None:
    queue, made = new_queue(tmp_path), record(0)
    judge = Judge(queue, Ledger.load(queue))
    verdict = judge.judge(str(made.name), encode(made), expected_digest="0" * 64)
    assert verdict.refusal is Refusal.WRONG_DIGEST


def test_of_two_records_with_one_identity_the_first_stays(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    judge = Judge(queue, Ledger.load(queue))
    first = record(0)
    again = record(0, scalars={"reward": 0.9})
    copy = "v000000.s-b.00000000.000.json"
    assert judge.judge(str(first.name), encode(first)).refusal is None
    assert judge.judge(copy, encode(again)).refusal is Refusal.DUPLICATE_IN_BATCH
    assert judge.judge(str(first.name), encode(first)).refusal is None, "the very same file"


def test_a_record_under_anothers_name_is_refused(tmp_path: Path) -> None:
    verdict = judged(new_queue(tmp_path), record(0), name="v000000.s.00000007.000.json")
    assert verdict.refusal is Refusal.WRONG_NAME


def test_what_was_trained_on_is_refused_and_so_is_what_is_too_far_behind(tmp_path: Path) -> None:
    queue = new_queue(tmp_path, max_lag=0)
    fill(queue, 4)
    finish(taken(queue))
    assert judged(queue, record(0)).refusal is Refusal.DUPLICATE_OF_CONSUMED
    late = judged(queue, record(9))
    assert (late.refusal, "1 versions behind" in late.why) == (Refusal.LAG, True)


def test_a_file_of_a_record_must_be_there_with_its_size(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    ref = FileRef(path=str(tmp_path / "video.mp4"), size_bytes=3, sha256="")
    made = record(0, files=(ref,))
    assert judged(queue, made).refusal is Refusal.FILE_MISSING
    (tmp_path / "video.mp4").write_bytes(b"12")
    assert judged(queue, made).refusal is Refusal.FILE_CHANGED
    (tmp_path / "video.mp4").write_bytes(b"123")
    assert judged(queue, made).refusal is None


def test_a_file_that_cannot_be_looked_at_refuses_nobody(tmp_path: Path) -> None:
    class Failing(QuickFS):
        def lstat(self, path: str) -> Any:
            raise OSError(errno.EIO, "Input/output error", path)

    queue = reopened(new_queue(tmp_path), Failing())
    made = record(0, files=(FileRef(path="/x", size_bytes=3, sha256=""),))
    with pytest.raises(OSError, match="Input/output"):
        judged(queue, made)


def test_a_group_has_one_shape() -> None:
    verdicts = [
        Verdict("a", record(0, group="g", shape="81x480")),
        Verdict("b", record(1, group="g", shape="49x480")),
        Verdict("c", record(2, group="h", shape="49x480")),
        Verdict("d", None, Refusal.UNREADABLE, "torn"),
    ]
    found = [verdict.refusal for verdict in judge_shapes(verdicts)]
    assert found == [None, Refusal.SHAPE, None, Refusal.UNREADABLE]


def test_a_number_too_large_for_a_float_is_refused(tmp_path: Path) -> None:
    made = record(0)
    data = encode(made).replace(b"-2.0", b"-1e999")
    assert judged(new_queue(tmp_path), made, data=data).refusal is not None
    raw = msgspec.json.decode(encode(made))
    assert raw["digest"] == made.digest
