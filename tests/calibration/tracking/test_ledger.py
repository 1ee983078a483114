"""What is counted, when, and that owners always add up."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

from fleetcraft.calibration.tracking.ledger import Ledger, PhaseBytes
from tests.calibration.tracking.toys import KIB, floats, tracking, train_step, transformer


def shares(found: PhaseBytes) -> dict[str, int]:
    return {owner.name: owner.bytes for owner in found.owners}


def living(found: PhaseBytes) -> dict[str, int]:
    return {owner.name: owner.live_end_bytes for owner in found.owners if owner.live_end_bytes}


def check_sums(found: PhaseBytes) -> None:
    assert sum(owner.bytes for owner in found.owners) == found.peak_bytes
    assert sum(owner.live_end_bytes for owner in found.owners) == found.live_end_bytes


def test_a_storage_counts_from_its_birth_to_its_death() -> None:
    with tracking() as ledger:
        kept = floats(8)
        assert ledger.live_bytes == 8 * KIB
        del kept
        assert ledger.live_bytes == 0


def test_the_peak_is_what_lived_at_once_and_not_what_was_made() -> None:
    with tracking() as ledger:
        ledger.begin_phase("denoise")
        for _ in range(5):
            floats(8)
        both = floats(4), floats(4)
        found = ledger.end_phase()
    assert found.peak_bytes == 8 * KIB
    del both


@pytest.mark.parametrize(
    "alias",
    [
        lambda t: t[1:],
        lambda t: t.view(2, -1),
        lambda t: t.detach(),
        lambda t: t.data,
        lambda t: t.add_(1),
        lambda t: t.t(),
        lambda t: t.split(16),
        lambda t: t.unbind(),
        lambda t: t.numpy(),
        lambda t: torch.from_numpy(t.numpy()),
        lambda t: torch.from_numpy(t.numpy()[10:]),
        torch.from_dlpack,
        torch.nn.Parameter,
        lambda t: torch.add(t, 1, out=t),
        lambda t: torch.tensor([]).set_(t),
    ],
)
def test_what_shares_a_storage_is_counted_once(alias) -> None:  # type: ignore[no-untyped-def]
    with tracking() as ledger:
        tensor = floats(8)
        shared = alias(tensor)
        assert ledger.live_bytes == 8 * KIB
        del tensor, shared
        assert ledger.live_bytes == 0


def test_memory_of_an_array_is_counted_as_soon_as_it_is_a_tensor() -> None:
    with tracking() as ledger:
        tensor = torch.from_numpy(np.zeros(2 * KIB, np.float32))
        assert ledger.live_bytes == 8 * KIB
        del tensor
        assert ledger.live_bytes == 0


def test_a_tensor_made_before_is_adopted_by_the_first_op_that_uses_it() -> None:
    early = floats(8)
    with tracking() as ledger:
        assert ledger.live_bytes == 0
        ledger.begin_phase("score")
        total = early.sum()
        found = ledger.end_phase()
    assert ledger.live_bytes == 8 * KIB + 4
    check_sums(found)
    del total, early
    assert ledger.live_bytes == 0


def test_a_tensor_made_before_is_adopted_inside_a_list() -> None:
    early = [floats(4), floats(4)]
    with tracking() as ledger:
        torch._foreach_add_(early, 1)
        assert ledger.live_bytes == 8 * KIB


def test_adopting_counts_once_and_names_nobody() -> None:
    model = transformer()
    with tracking() as ledger:
        added = ledger.adopt({"model": model})
        assert added == sum(p.nbytes for p in model.parameters())
        assert ledger.adopt(model) == 0
        ledger.begin_phase("load")
        assert set(shares(ledger.end_phase())) == {"unowned:outside"}


def test_a_tensor_of_another_thread_is_counted_when_an_op_here_uses_it() -> None:
    made: list[torch.Tensor] = []
    with tracking() as ledger:
        other = threading.Thread(target=lambda: made.append(floats(8)))
        other.start()
        other.join(10)
        assert ledger.live_bytes == 0  # nobody tells: a dispatch mode belongs to its thread
        made[0].add_(1)
        assert ledger.live_bytes == 8 * KIB


def test_an_op_that_returns_no_tensor_counts_nothing() -> None:
    with tracking() as ledger:
        tensor = floats(8)
        assert tensor.sum().item() == 0
        assert torch.equal(tensor, tensor)
        assert ledger.live_bytes == 8 * KIB


def test_a_resized_storage_is_counted_at_its_new_size_and_keeps_its_place() -> None:
    with tracking() as ledger:
        ledger.begin_phase("load")
        tensor = floats(8)
        ledger.own("weights", tensor)
        tensor.resize_(16 * KIB // 4)
        assert ledger.live_bytes == 16 * KIB
        tensor.untyped_storage().resize_(0)
        assert ledger.live_bytes == 0
        tensor.untyped_storage().resize_(4 * KIB)
        assert ledger.live_bytes == 4 * KIB
        found = ledger.end_phase()
    check_sums(found)
    assert shares(found) == {"weights": 16 * KIB}
    assert living(found) == {"weights": 4 * KIB}
    assert found.owners[0].born_in == "load"
    assert "resize_" not in vars(torch.UntypedStorage)


def test_a_storage_that_is_set_in_place_of_another_lets_the_other_die() -> None:
    with tracking() as ledger:
        tensor = floats(8)
        tensor.set_(torch.UntypedStorage(4 * KIB), 0, (KIB,))
        assert ledger.live_bytes == 4 * KIB
        tensor.data = floats(16)
        assert ledger.live_bytes == 16 * KIB


def test_what_a_wrapper_of_tensors_holds_is_counted_and_owned() -> None:
    with tracking() as ledger:
        ledger.begin_phase("load")
        pair = TwoTensor(floats(8), floats(8))
        doubled = pair * 2
        ledger.own("pair", pair)
        ledger.own("doubled", doubled)
        found = ledger.end_phase()
    assert shares(found) == {"pair": 16 * KIB, "doubled": 16 * KIB}


def test_a_sparse_tensor_is_no_error() -> None:
    with tracking() as ledger:
        sparse = torch.eye(8).to_sparse()
        assert ledger.own("sparse", sparse) == 0
        assert (sparse @ torch.ones(8, 1)).sum() == 8


def test_a_composite_op_that_inference_mode_leaves_whole_is_seen_by_its_parts() -> None:
    with tracking() as ledger, torch.inference_mode():
        ledger.begin_phase("denoise")
        query = torch.zeros(1, 1, 32, 4)
        weights = torch.softmax(query @ query.transpose(-2, -1), dim=-1)
        alone = (query.nbytes, weights.nbytes)
        del weights
        ledger.end_phase()
        ledger.begin_phase("denoise")
        torch.einsum("bhqd,bhkd->bhqk", query, query).add(1).sum()
        found = ledger.end_phase()
    assert found.peak_bytes >= alone[0] + 2 * alone[1]


def test_a_compiled_function_is_seen_by_what_it_returns() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        torch._dynamo.graph_break()
        return (doubled + 1).relu()

    compiled = torch.compile(function, backend="eager")
    with tracking() as ledger:
        made = compiled(floats(8).requires_grad_())
        assert ledger.live_bytes >= made.nbytes
        made.sum().backward()


def test_another_device_is_not_counted() -> None:
    with tracking() as ledger:
        elsewhere = torch.zeros(KIB, device="meta")
        elsewhere = elsewhere * 2
        assert ledger.live_bytes == 0
    with Ledger("cuda") as ledger:
        floats(8)
        assert ledger.live_bytes == 0


def test_what_nobody_claims_is_called_by_its_scope_else_by_its_phase() -> None:
    with tracking() as ledger:
        ledger.begin_phase("decode")
        with ledger.scope("vae"):
            tiles = floats(8)
        rest = floats(4)
        found = ledger.end_phase()
    assert shares(found) == {"unowned:vae": 8 * KIB, "unowned:decode": 4 * KIB}
    assert {owner.born_in for owner in found.owners} == {"decode"}
    del tiles, rest


def test_what_died_before_the_end_keeps_the_owner_that_it_had_at_the_peak() -> None:
    with tracking() as ledger:
        ledger.begin_phase("decode")
        pixels = floats(8)
        ledger.own("pixels", pixels)
        del pixels
        found = ledger.end_phase()
    assert shares(found) == {"pixels": 8 * KIB}
    assert living(found) == {}
    assert not found.owners[0].alive_after


def test_an_owner_that_came_after_the_peak_is_listed_with_what_lives_of_it() -> None:
    with tracking() as ledger:
        ledger.begin_phase("decode")
        floats(64)
        late = floats(8)
        ledger.own("late", late)
        found = ledger.end_phase()
    check_sums(found)
    assert shares(found) == {"unowned:decode": 64 * KIB, "late": 0}
    assert living(found) == {"late": 8 * KIB}


def test_a_phase_begins_at_what_lives_and_tells_what_came_from_before() -> None:
    with tracking() as ledger:
        ledger.begin_phase("load")
        weights = floats(32)
        ledger.own("model", weights)
        ledger.end_phase()
        ledger.begin_phase("score")
        found = ledger.end_phase()
    assert (found.live_start_bytes, found.peak_bytes) == (32 * KIB, 32 * KIB)
    (model,) = found.owners
    assert (model.name, model.born_in, model.alive_after) == ("model", "load", True)


def test_garbage_in_a_cycle_is_collected_at_the_borders() -> None:
    with tracking() as ledger:
        ledger.begin_phase("probe")
        ring: list[object] = [floats(8)]
        ring.append(ring)
        del ring
        assert ledger.end_phase().live_end_bytes == 0


def test_an_owner_that_had_to_go_and_did_not_is_held_even_when_its_root_was_dropped() -> None:
    class Cache:
        def __init__(self) -> None:
            self.layers = [floats(8), floats(8)]

    with tracking() as ledger:
        ledger.begin_phase("probe")
        cache = Cache()
        assert ledger.own("probe.kv", cache) == 16 * KIB
        gone = weakref.ref(cache)
        leaked = cache.layers[0]
        del cache
        assert gone() is None  # to be registered keeps nothing alive
        found = ledger.end_phase(releases=("probe.kv", "nobody"))
    check_sums(found)
    assert found.held_bytes == {"probe.kv": 8 * KIB}
    assert found.never_owned == ("nobody",)
    assert living(found) == {"probe.kv": 8 * KIB}
    del leaked


def test_an_owner_that_went_is_not_held() -> None:
    with tracking() as ledger:
        ledger.begin_phase("probe")
        ledger.own("probe.kv", floats(8))
        found = ledger.end_phase(releases=("probe.kv",))
    assert (found.held_bytes, found.never_owned) == ({}, ())


def test_roots_may_be_given_for_one_call() -> None:
    with tracking() as ledger:
        ledger.begin_phase("save")
        state = floats(8)
        assert living(ledger.end_phase({"state": state})) == {"state": 8 * KIB}


def test_phases_do_not_nest_and_none_ends_twice() -> None:
    ledger = Ledger()
    ledger.begin_phase("load")
    with pytest.raises(RuntimeError, match="phases do not nest"):
        ledger.begin_phase("denoise")
    ledger.end_phase()
    with pytest.raises(RuntimeError, match="no phase is open"):
        ledger.end_phase()


def test_a_training_cycle_adds_up_in_every_phase() -> None:
    tokens = torch.randn(2, 32, 64)
    with tracking() as ledger:
        ledger.begin_phase("load")
        model = transformer()
        optimizer = torch.optim.AdamW(model.parameters())
        ledger.own("model", model)
        ledger.own("optimizer", optimizer)
        check_sums(ledger.end_phase())
        for number in (1, 2):
            ledger.begin_phase(f"step{number}")
            train_step(model, optimizer, tokens)
            check_sums(found := ledger.end_phase())
    weights = sum(p.nbytes for p in model.parameters())
    steps = 4 * len(list(model.parameters()))
    assert living(found) == {
        "model": weights,
        "model.grad": weights,
        "optimizer": 2 * weights + steps,
        "unowned:step1": tokens.nbytes,
    }
    assert shares(found)["autograd"] > weights


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    names = st.sampled_from(["make", "drop", "resize", "own", "save", "free", "phase", "view"])
    return draw(st.lists(st.tuples(names, st.integers(0, 5), st.integers(1, 9)), max_size=30))


@settings(max_examples=40, deadline=None)
@given(programs())
def test_owners_add_up_to_a_peak_that_is_counted_independently(
    program: list[tuple[str, int, int]],
) -> None:
    with tracking() as ledger:
        places: dict[int, torch.Tensor] = {}
        graphs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # its leaf lives as long
        ledger.begin_phase("0")
        highest = 0
        for number, (what, place, size) in enumerate(program):
            tensor = places.get(place)
            match what:
                case "make":
                    places.pop(place, None)
                    places[place] = torch.empty(size, requires_grad=True)
                case "drop":
                    places.pop(place, None)
                case "view" if tensor is not None:
                    places[place] = tensor.detach()[:1].requires_grad_()
                case "resize" if tensor is not None:
                    tensor.untyped_storage().resize_(size * 4)
                case "own" if tensor is not None:
                    ledger.own(f"root{size}", tensor)
                case "save" if tensor is not None and tensor.untyped_storage().nbytes() >= 4:
                    leaf = tensor.detach()[:1].requires_grad_()
                    graphs[place] = (leaf, leaf.exp())
                    del leaf
                case "free":
                    graphs.pop(place, None)
                case "phase":
                    found = ledger.end_phase(releases=("root1",))
                    check_sums(found)
                    assert found.peak_bytes >= highest
                    ledger.begin_phase(str(number))
                    highest = 0
            del tensor
            lives = _distinct_bytes(places, graphs)
            assert ledger.live_bytes == lives
            highest = max(highest, lives)
        found = ledger.end_phase()
        check_sums(found)
        assert found.peak_bytes >= highest
        assert found.live_end_bytes == _distinct_bytes(places, graphs)


def _distinct_bytes(
    places: dict[int, torch.Tensor], graphs: dict[int, tuple[torch.Tensor, torch.Tensor]]
) -> int:
    tensors = [*places.values(), *(tensor for pair in graphs.values() for tensor in pair)]
    storages = {id(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
