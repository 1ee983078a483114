"""The chain of commits as a trainer reads it: whole, or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.rollouts.ledger import (
    IdentitySet,
    Ledger,
    LedgerBrokenError,
    LedgerUnknownError,
    committed_versions,
    find_commit,
)
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Commit, Identity, Member, encode
from tests.rollouts.filling import QuickFS, new_queue, reopened


def commit(version: int, *sequences: int, **fields: object) -> Commit:
    members = tuple(
        Member(identity=Identity("r", "s", n, 0), digest="d", name=f"n{n}", group="g")
        for n in sequences
    )
    made = Commit(
        version=version, parent=version - 1, transaction=f"v{version:06d}-1-n", generation=1,
        nonce="n", members=members, checkpoint=f"step-{version}",
        checkpoint_sha256=f"{version:064x}", gpu_s=10.0, at="now",
    )  # fmt: skip
    return msgspec.structs.replace(made, **fields)


def write(queue: RolloutQueue, *made: Commit) -> None:
    for each in made:
        Path(queue.paths.commit(each.version)).write_bytes(encode(each))


def test_a_queue_without_commits_is_at_version_zero(tmp_path: Path) -> None:
    ledger = Ledger.load(new_queue(tmp_path))
    assert (ledger.version, ledger.newest, len(ledger.consumed)) == (0, None, 0)


def test_the_ledger_knows_what_was_consumed_and_by_which_checkpoint(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    write(queue, commit(1, 0, 1, 2), commit(2, 4, 3))

    ledger = Ledger.load(queue)

    assert ledger.version == 2
    assert ledger.newest == commit(2, 4, 3)
    assert ledger.contains(Identity("r", "s", 4, 0))
    assert not ledger.contains(Identity("r", "s", 5, 0))
    assert not ledger.contains(Identity("other run", "s", 4, 0))
    assert not ledger.contains(Identity("r", "s", 4, 1))
    assert ledger.names_checkpoint(f"{1:064x}")
    assert not ledger.names_checkpoint(f"{3:064x}")
    assert ledger.gpu_s == 20.0
    found = ledger.find(Identity("r", "s", 1, 0))
    assert found is not None
    assert found.version == 1


def test_the_frontier_of_a_stream_is_not_held_back_by_one_record_that_was_dropped(
    tmp_path: Path,
) -> None:
    queue = new_queue(tmp_path)
    write(queue, commit(1, 0, 1, 3, 4))

    (frontier,) = Ledger.load(queue).frontiers

    assert (frontier.consumed, frontier.first_open, frontier.next_sequence) == (4, 2, 5)


def test_a_refresh_reads_only_what_is_new(tmp_path: Path) -> None:
    reads: list[str] = []

    class Counting(QuickFS):
        def read(self, path: str) -> bytes:
            reads.append(os.path.basename(path))
            return super().read(path)

    queue = new_queue(tmp_path, fs=Counting())
    write(queue, commit(1, 0))
    ledger = Ledger.load(queue)
    write(queue, commit(2, 1), commit(3, 2))
    reads.clear()

    assert ledger.refresh() == 2
    assert reads == ["v000002.json", "v000003.json"]
    assert ledger.refresh() == 0


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda q: os.unlink(q.paths.commit(1)), "v1 is missing"),
        (lambda q: write(q, commit(2, 5, parent=0)), "says version 2 after 0"),
        (lambda q: write(q, commit(2, 0)), "has s.0.0 once more"),
        (lambda q: Path(q.paths.commit(2)).write_bytes(b'{"schema"'), "v2 cannot be read"),
        (lambda q: write(q, commit(2, 5, schema="fleetcraft.rollout-commit/9")), "schema"),
    ],
)
def test_a_chain_that_is_not_whole_is_no_ledger(tmp_path: Path, spoil: object, why: str) -> None:
    queue = new_queue(tmp_path)
    write(queue, commit(1, 0), commit(2, 1))
    spoil(queue)  # type: ignore[operator]

    with pytest.raises(LedgerBrokenError, match=why) as caught:
        Ledger.load(queue)
    assert caught.value.exit_code == 7


def test_a_commit_that_cannot_be_read_is_unknown_and_not_absent(tmp_path: Path) -> None:
    class Failing(QuickFS):
        def read(self, path: str) -> bytes:
            if path.endswith("v000002.json"):
                raise OSError(errno.EIO, "Input/output error", path)
            return super().read(path)

    queue = new_queue(tmp_path)
    write(queue, commit(1, 0), commit(2, 1))

    with pytest.raises(LedgerUnknownError) as caught:
        Ledger.load(reopened(queue, Failing()))
    assert caught.value.exit_code == 75


def test_a_folder_of_commits_that_is_gone_says_nothing(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    write(queue, commit(1, 0))
    ledger = Ledger.load(queue)
    os.rename(queue.paths.commits, f"{queue.paths.commits}.away")

    for look in (ledger.refresh, lambda: Ledger.load(queue), lambda: committed_versions(queue)):
        with pytest.raises(LedgerUnknownError):
            look()
    with pytest.raises(LedgerUnknownError):
        find_commit(queue, 2)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.one_of(st.integers(0, 3000), st.integers(0, 10**12)),
            st.integers(0, 3),
        )
    )
)
def test_a_set_of_identities_is_a_set(drawn: list[tuple[str, int, int]]) -> None:
    bits, plain = IdentitySet("r"), set()
    for stream, sequence, sample in drawn:
        identity = Identity("r", stream, sequence, sample)
        assert bits.add(identity) is (identity not in plain)
        plain.add(identity)
    assert len(bits) == len(plain)
    assert all(identity in bits for identity in plain)
    for stream in bits.streams:
        sequences = {identity.sequence for identity in plain if identity.stream == stream}
        frontier = bits.frontier(stream)
        assert frontier.next_sequence == max(sequences) + 1
        assert frontier.first_open == next(n for n in range(10**6) if n not in sequences)


def test_the_first_open_sequence_is_found_beyond_a_full_chunk() -> None:
    bits = IdentitySet("r")
    for sequence in range(2500):
        bits.add(Identity("r", "s", sequence, 0))
    assert bits.frontier("s").first_open == 2500
