"""What a save amounts to, for the topology that it declares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.training.checkpoint.kinds import OF_EVERY_RANK, PROTOCOL, kind_of
from fleetcraft.training.checkpoint.records import (
    DONE_SCHEMA,
    Kind,
    Part,
    PartEntry,
    RankDone,
    Topology,
)

FILE = PartEntry(files=("x",))
NONE = PartEntry(none="there is none")
NEVER_NONE = (Part.WEIGHTS, Part.OPTIMIZER, Part.RNG_PYTHON, Part.RNG_CPU)


def rank(number: int, parts: dict[Part, PartEntry]) -> RankDone:
    return RankDone(
        schema=DONE_SCHEMA, step=1, generation=0, nonce="abcd", rank=number, world_size=2,
        topology=Topology(), parts=parts, files=(),
    )  # fmt: skip


def whole() -> dict[Part, PartEntry]:
    return dict.fromkeys(Part, FILE)


def test_everything_said_by_both_ranks_is_exact() -> None:
    assert kind_of(Topology(), [rank(0, whole()), rank(1, whole())]) == (Kind.EXACT, ())


def test_what_ranks_share_is_enough_from_one_of_them() -> None:
    own = {part: FILE for part in OF_EVERY_RANK}
    assert kind_of(Topology(), [rank(0, whole()), rank(1, own)]) == (Kind.EXACT, ())


def test_a_sharded_part_is_needed_from_every_rank() -> None:
    topology = Topology(sharded=(Part.WEIGHTS, Part.OPTIMIZER))
    lacks = whole()
    del lacks[Part.OPTIMIZER]
    found = kind_of(topology, [rank(0, whole()), rank(1, lacks)])
    assert found == (Kind.WEIGHTS, ("optimizer of rank 1",))


@pytest.mark.parametrize("part", [part for part in Part if part is not Part.WEIGHTS])
def test_a_part_of_which_nobody_speaks_is_missing(part: Part) -> None:
    lacks = whole()
    del lacks[part]
    assert kind_of(Topology(), [rank(0, lacks)]) == (Kind.WEIGHTS, (part.value,))


@pytest.mark.parametrize("part", [Part.SCHEDULER, Part.RNG_NUMPY, Part.SAMPLER, *PROTOCOL])
def test_a_part_that_the_run_declares_not_to_have_does_not_lack(part: Part) -> None:
    assert kind_of(Topology(), [rank(0, whole() | {part: NONE})]) == (Kind.EXACT, ())


@pytest.mark.parametrize("part", [part for part in NEVER_NONE if part is not Part.WEIGHTS])
def test_a_part_that_every_trainer_has_cannot_be_declared_away(part: Part) -> None:
    found = kind_of(Topology(), [rank(0, whole() | {part: NONE})])
    assert found == (Kind.WEIGHTS, (f"{part.value} (cannot be declared none)",))
    value = kind_of(Topology(), [rank(0, whole() | {part: PartEntry(value="abc")})])
    assert value == (Kind.WEIGHTS, (part.value,))


def test_a_device_and_loader_workers_that_the_topology_has_need_their_random_numbers() -> None:
    parts = whole() | {Part.RNG_DEVICE: NONE, Part.RNG_WORKERS: NONE}
    assert kind_of(Topology(), [rank(0, parts)]) == (Kind.EXACT, ())
    found = kind_of(Topology(device="cuda", loader_workers=4), [rank(0, parts)])
    assert found == (
        Kind.WEIGHTS,
        (
            "rng_device (declared none, with device cuda)",
            "rng_workers (declared none, with 4 loader workers)",
        ),
    )


def test_without_weights_it_is_no_checkpoint() -> None:
    with pytest.raises(ValueError, match="no weights"):
        kind_of(Topology(), [rank(0, whole() | {Part.WEIGHTS: NONE})])


@given(
    lost=st.dictionaries(
        st.tuples(st.integers(0, 2), st.sampled_from([p for p in Part if p is not Part.WEIGHTS])),
        st.sampled_from([None, NONE]),
    )
)
def test_exact_means_that_nothing_is_lost_that_is_needed(
    lost: dict[tuple[int, Part], PartEntry | None],
) -> None:
    topology = Topology(device="cuda", loader_workers=1)
    worlds = []
    for number in range(3):
        parts = whole()
        for (of, part), entry in lost.items():
            if of == number and entry is None:
                del parts[part]
            elif of == number and entry is not None:
                parts[part] = entry
        worlds.append(rank(number, parts))
    kind, missing = kind_of(topology, worlds)
    assert (kind is Kind.EXACT) == (not missing)
    for part in Part:
        said = [world.parts.get(part) for world in worlds]
        there = [entry is not None and bool(entry.files) for entry in said]
        is_missing = any(text.partition(" ")[0] == part.value for text in missing)
        if all(there):
            assert not is_missing
        if not any(entry is not None for entry in said):
            assert is_missing
        if part in (Part.RNG_CPU, Part.RNG_DEVICE, Part.RNG_WORKERS) and not all(there):
            assert is_missing
