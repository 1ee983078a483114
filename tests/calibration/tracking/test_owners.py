"""Who is found to own what, however it is nested, and that nobody lives because he owns."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from fleetcraft.calibration.tracking.owners import Roots, reach, storage_key, walk
from tests.calibration.tracking.toys import KIB, Nest, floats, tracking, transformer


def owners_of(*tensors: torch.Tensor, roots: dict[str, object]) -> list[str | None]:
    found = reach(roots)
    return [found.get(storage_key(tensor) or 0) for tensor in tensors]


@pytest.mark.parametrize("first", ["model", "optimizer"])
def test_gradients_and_optimizer_state_have_their_owners_thirty_modules_deep(first: str) -> None:
    model = Nest(30)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 32)).sum().backward()
    optimizer.step()
    (weight,) = model.parameters()
    moments = list(optimizer.state[weight].values())
    roots: dict[str, object] = {"model": model, "optimizer": optimizer}
    roots = {first: roots.pop(first), **roots}
    assert weight.grad is not None
    assert owners_of(weight, weight.grad, *moments, roots=roots) == [
        "model",
        "model.grad",
        *["optimizer"] * len(moments),
    ]


def test_parameters_that_only_an_optimizer_points_to_are_called_so() -> None:
    model = Nest(2)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(1, 32)).sum().backward()
    (weight,) = model.parameters()
    assert weight.grad is not None
    assert owners_of(weight, weight.grad, roots={"optimizer": optimizer}) == [
        "optimizer.params",
        "optimizer.params.grad",
    ]


def test_a_module_in_a_module_is_its_own_when_it_is_registered() -> None:
    model = nn.ModuleDict({"transformer": Nest(5), "vae": Nest(5)})
    roots: dict[str, object] = {"pipeline": model, "transformer": model["transformer"]}
    (transformer_weight,) = model["transformer"].parameters()
    (vae_weight,) = model["vae"].parameters()
    assert owners_of(transformer_weight, vae_weight, roots=roots) == ["transformer", "pipeline"]


def test_a_thing_that_refers_to_a_model_does_not_own_it() -> None:
    class Probe:
        def __init__(self, model: nn.Module) -> None:
            self.model = model
            self.parameters = list(model.parameters())
            self.kv = [floats(1)]

    model = Nest(30)
    probe = Probe(model)
    (weight,) = model.parameters()
    assert owners_of(weight, probe.kv[0], roots={"probe": probe, "model": model}) == [
        "model",
        "probe",
    ]


def test_a_chain_of_any_length_is_walked() -> None:
    last: dict[str, object] = {"tensor": (tensor := floats(1))}
    chain = last
    for _ in range(5000):
        chain = {"next": chain}
    last["back"] = chain  # and round in a circle
    assert owners_of(tensor, roots={"chain": chain}) == ["chain"]


@dataclass(slots=True)
class Slotted:
    tensor: torch.Tensor


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "hold",
    [
        lambda t: [t],
        lambda t: (t,),
        lambda t: {"a": {"b": [t]}},
        lambda t: OrderedDict(a=t),
        Slotted,
        lambda t: Pair(1, t),
        lambda t: {"array": t.numpy()},
        lambda t: t[10:],
        lambda t: nn.ParameterList([nn.Parameter(t)]),
        lambda t: {"graph": (t.detach().requires_grad_() * 2, t)},
    ],
)
def test_a_tensor_is_found_wherever_it_is_held(hold) -> None:  # type: ignore[no-untyped-def]
    tensor = floats(1)
    assert owners_of(tensor, roots={"root": hold(tensor)}) == ["root"]


def test_buffers_plain_attributes_and_attributes_of_parameters_belong_to_the_module() -> None:
    model = Nest(3)
    model.register_buffer("mask", floats(1))
    model.cache = floats(1)  # type: ignore[assignment]
    (weight,) = model.parameters()
    weight.master = floats(1)  # type: ignore[attr-defined]
    tensors = (model.mask, model.cache, weight.master)  # type: ignore[attr-defined]
    assert owners_of(*tensors, roots={"model": model}) == ["model"] * 3  # type: ignore[arg-type]


def test_no_walk_enters_functions_and_classes() -> None:
    class Holder:
        shared = floats(1)

        def method(self) -> torch.Tensor:
            return self.shared

    assert owners_of(Holder.shared, roots={"a": Holder(), "b": Holder().method}) == [None]


def test_each_tensor_is_met_once() -> None:
    model = transformer()
    twice = [model, model, list(model.parameters())]
    assert len(list(walk([("all", twice)]))) == len(list(model.parameters()))


def test_a_registered_root_can_die_with_all_that_it_owns() -> None:
    roots = Roots()
    model = Nest(2)
    cache = [floats(1), floats(1)]
    held = {"by": {"a": cache[0]}}
    gone = [weakref.ref(model), weakref.ref(cache[0]), weakref.ref(cache[1])]
    roots.add("model", model)
    roots.add("cache", cache)
    roots.add("held", held)
    assert len(roots.living()) == 4
    del model, cache, held
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
    assert roots.living() == []
    assert roots.names == ("model", "cache", "held")


def test_a_list_that_grows_is_known_as_far_as_it_was_given() -> None:
    with tracking() as ledger:
        cache = [floats(4)]
        assert ledger.own("kv", cache) == 4 * KIB
        cache.append(floats(4))
        assert ledger.own("kv", cache) == 8 * KIB


def test_an_object_that_grows_is_known_as_it_is() -> None:
    class Cache:
        def __init__(self) -> None:
            self.layers: list[torch.Tensor] = []

    with tracking() as ledger:
        ledger.begin_phase("probe")
        cache = Cache()
        assert ledger.own("kv", cache) == 0
        cache.layers.append(floats(4))
        assert [owner.name for owner in ledger.end_phase().owners] == ["kv"]


def test_an_array_of_numpy_alone_is_no_tensor() -> None:
    assert reach({"array": {"a": np.zeros(4)}}) == {}
