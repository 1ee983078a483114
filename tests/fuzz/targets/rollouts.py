"""What trainers and producers read of one another: records, beats, commits, papers, settings."""

from __future__ import annotations

import os

import msgspec
from hypothesis import strategies as st

from fleetcraft.errors import FleetError
from fleetcraft.layout.rollouts import TransactionName, parse_refused_name
from fleetcraft.locks.holder import Holder, lives_here, read_holder, write_holder
from fleetcraft.rollouts import ledger, quarantine
from fleetcraft.rollouts.abort import AbortRequest, read_abort
from fleetcraft.rollouts.beats import BeatReader
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Beat, Commit, Record, Settings, digest_of, encode, seal
from fleetcraft.rollouts.transaction.judging import read_record
from fleetcraft.rollouts.transaction.records import Places, Prepared
from fleetcraft.rollouts.transaction.settling import read_prepared
from tests.fuzz import folders
from tests.fuzz.strategies import json_of, mixed, same_json, texts, values_of
from tests.fuzz.target import Target
from tests.quick_fs import QuickFS

_DEEP = b"[" * 100_000


def _queue() -> RolloutQueue:
    root = folders.fresh("queue")
    made = Settings(run="q", batch=2, high_water=8, low_water=4)
    return RolloutQueue.create(f"{root}/q", made, fs=QuickFS())


def _put(path: str, data: bytes) -> None:
    folders.write(os.path.relpath(path, folders.folder()), data)


def record(data: bytes) -> None:
    verdict = read_record("a.json", data)
    assert (verdict.record is None) == (verdict.refusal is not None)
    assert verdict.record is not None or verdict.why


def record_round_trip(value: Record) -> None:
    made = seal(value)
    data = encode(made)
    read = read_record("a.json", data).record
    if read is None:
        assert value.schema != _SCHEMA, "what was written cannot be read"
        return
    assert same_json(read, made)
    assert digest_of(read) == made.digest, "its digest is another one when it is read"


def record_changed(value: tuple[Record, int, int]) -> None:
    """One bit of a record changed: it cannot be read, or its digest tells."""
    made, place, bit = value
    data = encode(seal(msgspec.structs.replace(made, schema=_SCHEMA)))
    at = place * (len(data) - 1) >> 16
    changed = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    read = read_record("a.json", changed).record
    if read is not None:
        same = same_json(read, read_record("a.json", data).record)
        assert same or digest_of(read) != read.digest, f"a changed byte at {at} is not seen"


def beat(data: bytes) -> None:
    queue = _queue()
    _put(queue.paths.beat("s1"), data)
    sights = BeatReader(queue, clock=lambda: 1.0).look()
    assert list(sights) == ["s1"]
    assert sights["s1"].fresh is not True


def commit(data: bytes) -> None:
    queue = _queue()
    _put(queue.paths.commit(1), data)
    assert ledger.read_commit(queue, 1).version == 1


def whole_ledger(data: bytes) -> None:
    queue = _queue()
    _put(queue.paths.commit(1), data)
    ledger.Ledger.load(queue)


def paper(data: bytes) -> None:
    queue = _queue()
    places = Places(queue.paths, TransactionName(1, 1, "abcdefgh"))
    _put(places.prepared, data)
    read_prepared(queue, places)


def abort(data: bytes) -> None:
    queue = _queue()
    _put(queue.paths.abort_marker, data)
    assert read_abort(queue) is not None, "a request that cannot be understood does not stand"


def settings(data: bytes) -> None:
    queue = _queue()
    _put(queue.paths.settings, data)
    opened = RolloutQueue.open(queue.paths.folder, fs=QuickFS())
    assert opened.settings.batch >= 1
    assert opened.settings.high_water >= 1


def refused(text: str) -> None:
    found = quarantine.parse_refused(text)
    name = parse_refused_name(text)
    assert found is None or name is not None


def reason(data: bytes) -> None:
    queue = _queue()
    one = quarantine.parse_refused(_REFUSED)
    assert one is not None
    _put(queue.paths.refused(one.reason_name), data)
    quarantine.read_reason(queue, one)


def holder(data: bytes) -> None:
    found = read_holder(data)
    if found is not None:
        lives_here(found)
        assert str(found)


def holder_round_trip(value: Holder) -> None:
    assert read_holder(write_holder(value)) == value


_REFUSED = "v000001.s1.00000001.000.duplicate_identity.abcdefgh.json"
_SCHEMA = "fleetcraft.rollout/1"
_RECORDS = values_of(Record).map(lambda one: msgspec.structs.replace(one, schema=_SCHEMA))
TARGETS = (
    Target(
        name="rollouts: record",
        values=st.one_of(
            json_of(Record, _DEEP), mixed(_RECORDS.map(lambda one: encode(seal(one))))
        ),
        act=record,
    ),
    Target(name="rollouts: record, written and read", values=_RECORDS, act=record_round_trip),
    Target(
        name="rollouts: record with one bit changed",
        values=st.tuples(_RECORDS, st.integers(0, (1 << 16) - 1), st.integers(0, 7)),
        act=record_changed,
    ),
    Target(name="rollouts: beat", values=json_of(Beat, _DEEP), act=beat),
    Target(
        name="rollouts: commit", values=json_of(Commit, _DEEP), act=commit, raises=(FleetError,)
    ),
    Target(
        name="rollouts: ledger",
        values=json_of(Commit, _DEEP),
        act=whole_ledger,
        raises=(FleetError,),
    ),
    Target(name="rollouts: prepared checkpoint", values=json_of(Prepared, _DEEP), act=paper),
    Target(name="rollouts: abort", values=json_of(AbortRequest, _DEEP), act=abort),
    Target(
        name="rollouts: settings",
        values=json_of(Settings, _DEEP),
        act=settings,
        raises=(FleetError,),
    ),
    Target(name="rollouts: name of a refused record", values=texts(_REFUSED), act=refused),
    Target(
        name="rollouts: reason of a refusal", values=json_of(quarantine.Reason, _DEEP), act=reason
    ),
    Target(name="locks: holder", values=json_of(Holder, _DEEP), act=holder),
    Target(name="locks: holder, written and read", values=values_of(Holder), act=holder_round_trip),
)
