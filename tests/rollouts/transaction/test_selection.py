"""Which records make a batch: oldest first, whole groups, exactly so many."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.records import Identity, Member, Refusal
from fleetcraft.rollouts.transaction.selection import NotEnough, Selection, select, whole_groups
from tests.rollouts.filling import fill, finish, new_queue, put, record, taken, where


def chosen(queue: object) -> Selection:
    found = select(queue, Ledger.load(queue), token="t")  # type: ignore[arg-type]
    assert isinstance(found, Selection), found
    return found


def test_the_oldest_version_comes_first_and_streams_take_turns(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)
    finish(taken(queue))
    for sequence in range(3):
        for stream in ("b", "a"):
            put(queue, record(sequence, stream=stream, version=1))
    put(queue, record(50, stream="z", version=0))

    names = [member.name for member in chosen(queue).members]

    assert names == [
        "v000000.z.00000050.000.json",
        "v000001.a.00000000.000.json",
        "v000001.b.00000000.000.json",
        "v000001.a.00000001.000.json",
    ]


def test_too_few_records_are_no_batch_and_are_not_read(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    put(queue, record(0), data=b"torn")
    found = select(queue, Ledger.load(queue), token="t")
    assert isinstance(found, NotEnough)
    assert found.valid == 1
    assert "1 records wait, a batch has 4" in found.why
    assert len(os.listdir(queue.paths.pending)) == 1


def test_only_whole_groups_are_chosen(tmp_path: Path) -> None:
    queue = new_queue(tmp_path, group=2)
    put(queue, record(0, sample=0, group="half"))
    for sequence in (1, 2):
        for sample in (1, 0):
            put(queue, record(sequence, sample=sample, group=f"g{sequence}"))

    members = chosen(queue).members

    assert [member.group for member in members] == ["g1", "g1", "g2", "g2"]
    assert [member.identity.sample for member in members] == [0, 1, 0, 1]


def test_halves_of_groups_wait_for_their_others(tmp_path: Path) -> None:
    queue = new_queue(tmp_path, group=2)
    for sequence in range(4):
        put(queue, record(sequence, group=f"g{sequence}"))
    found = select(queue, Ledger.load(queue), token="t")
    assert isinstance(found, NotEnough)
    assert (found.valid, found.incomplete) == (0, 4)
    assert len(os.listdir(queue.paths.pending)) == 4


def test_what_is_unreadable_or_too_old_never_enters_an_intent(tmp_path: Path) -> None:
    queue = new_queue(tmp_path, max_lag=0)
    fill(queue, 4)
    finish(taken(queue))
    put(queue, record(10, version=0))
    put(queue, record(11, version=1), data=b"torn")
    fill(queue, 4, first=20, version=1)

    found = chosen(queue)

    assert len(found.members) == 4
    assert {each.refusal for each in found.refused} == {Refusal.LAG, Refusal.UNREADABLE}
    assert len(where(queue)["quarantine"]) == 2


def test_a_committed_record_that_lies_in_pending_is_filed_and_a_copy_of_it_is_refused(
    tmp_path: Path,
) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)
    commit = finish(taken(queue))
    name = commit.members[0].name
    filed = Path(queue.paths.consumed_folder(1), name)
    os.rename(filed, f"{queue.paths.pending}/{name}")  # as a power loss may leave it
    fill(queue, 4, first=10, version=1)

    assert chosen(queue).refused == ()
    assert filed.exists()

    (Path(queue.paths.pending) / name).write_bytes(filed.read_bytes())
    (refused,) = chosen(queue).refused
    assert refused.refusal is Refusal.DUPLICATE_OF_CONSUMED


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), unique=True))
def test_whole_groups_are_whole(drawn: list[tuple[str, int]]) -> None:
    members = [
        Member(identity=Identity("r", "s", n, 0), digest="", name=f"{group}{n}", group=group)
        for group, n in drawn
    ]
    whole = whole_groups(members, 3)
    assert len(whole) % 3 == 0
    assert len({member.name for member in whole}) == len(whole)
    for start in range(0, len(whole), 3):
        assert len({member.group for member in whole[start : start + 3]}) == 1
    left = [member for member in members if member not in whole]
    assert all(sum(m.group == group for m in left) < 3 for group in "abc")
