"""Whose tensors are whose: a breadth-first walk from named roots, which are held weakly.

Names only; bytes are `ledger`'s. Invariant: the nearest root owns a tensor, a module's own tree
being no distance at all, however deep it is nested; a gradient is ``NAME.grad`` wherever its
parameter was found; an optimizer owns its state, never the parameters that it points to while
anybody else has them.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor

Root = tuple[str, object]
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, FakeTensor})
"""Types whose storage is their memory."""

_LEAVES = (
    str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CodeType,
    types.FrameType, types.TracebackType, torch.dtype, torch.device, torch.Generator,
    weakref.ReferenceType,
)  # fmt: skip
"""What no walk enters. Functions would lead to everything their module has as a global."""

_CONTAINERS = frozenset({dict, OrderedDict, list, tuple, set})
_MODULES_OWN = frozenset({"_modules", "_parameters", "_buffers"})
_is_leaf: dict[type, bool] = {}


class Roots:
    """Registered roots. None of them is kept alive by being registered."""

    def __init__(self) -> None:
        self._held: list[tuple[str, weakref.ReferenceType[object]]] = []
        self._names: dict[str, None] = {}

    def add(self, name: str, root: object) -> None:
        """Registers one more object under a name.

        A list, tuple or dict allows no weak reference: what it holds now is registered in its
        place, so one that grows later has to be registered again.
        """
        self._names[name] = None
        self._held = [pair for pair in self._held if pair[1]() is not None]
        self._held.extend((name, ref) for ref in _weak(root))

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that was ever registered, in order."""
        return tuple(self._names)

    def living(self) -> list[Root]:
        """Those that are still there. The list holds them strongly: let it go soon."""
        found = ((name, ref()) for name, ref in self._held)
        return [(name, root) for name, root in found if root is not None]


def reach(roots: Mapping[str, object] | Iterable[Root]) -> dict[int, str]:
    """Who owns which storage.

    Args:
        roots: Objects by name, nearest to their tensors where several reach one; of two that are
            equally near, the first.

    Returns:
        `storage_key` of every storage that was reached, to the name of its owner.
    """
    owners: dict[int, str] = {}
    for tensor, name in walk(roots.items() if isinstance(roots, Mapping) else roots):
        key = storage_key(tensor)
        if key is not None:
            owners.setdefault(key, name)
    return owners


def storage_key(tensor: torch.Tensor) -> int | None:
    """What tells a storage from others while it lives; None where a tensor has none of its own.

    Views and aliases have the same. Sparse tensors and wrappers of other tensors have none.
    """
    storage = storage_of(tensor)
    return None if storage is None else id(storage)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """A tensor's own storage; None where it has none, or one that stands for no memory."""
    kind = type(tensor)
    if kind not in PLAIN and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None  # a wrapper: its parts have the memory
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None  # sparse


def walk(
    roots: Iterable[Root], *, others: Iterable[Root] = ()
) -> Iterator[tuple[torch.Tensor, str]]:
    """Every tensor that can be reached, once, each with its owner's name.

    Args:
        roots: Where it begins.
        others: Roots that it stops at.

    Nothing is called that the walked objects define, except where a module lists its own parts
    and a tensor subclass its inner tensors.
    """
    given = list(roots)
    seen = {id(root) for _, root in [*given, *others]}
    near = deque((root, name) for name, root in given)
    far: deque[tuple[object, str]] = deque()  # what optimizers merely point to
    while near or far:
        thing, name = near.popleft() if near else far.popleft()
        if isinstance(thing, torch.Tensor):
            yield thing, name
            gradient = _gradient(thing)
            if gradient is not None and id(gradient) not in seen:
                seen.add(id(gradient))
                yield gradient, f"{name}.grad"
        if isinstance(thing, torch.nn.Module):
            near.extendleft((part, name) for part in _unseen(_parts(thing), seen))
        if isinstance(thing, torch.optim.Optimizer):
            far.append((_Pointed(thing.param_groups), f"{name}.params"))
            seen.add(id(thing.param_groups))
        near.extend((child, name) for child in _unseen(_children(thing), seen))


class _Pointed:
    """Parameter groups, as one thing whose children are the parameters."""

    def __init__(self, groups: list[dict[str, object]]) -> None:
        self.parameters = [group.get("params") for group in groups]


def _unseen(things: Iterable[object], seen: set[int]) -> Iterator[object]:
    for thing in things:
        kind = type(thing)
        leaf = _is_leaf.get(kind)
        if leaf is None:
            leaf = _is_leaf[kind] = issubclass(kind, _LEAVES)
        if leaf or id(thing) in seen or (kind in _CONTAINERS and not thing):
            continue
        seen.add(id(thing))
        yield thing


def _parts(module: torch.nn.Module) -> Iterator[object]:
    """What a module's tree holds; the last comes out first, so children come before tensors."""
    yield from torch.nn.Module.children(module)  # not an override's idea of them
    yield from torch.nn.Module.parameters(module, recurse=False)
    yield from torch.nn.Module.buffers(module, recurse=False)


def _children(thing: object) -> Iterable[object]:
    if isinstance(thing, torch.Tensor):
        return _beside(thing)
    if isinstance(thing, torch.nn.Module):
        return [value for name, value in vars(thing).items() if name not in _MODULES_OWN]
    if isinstance(thing, dict):
        return list(thing.values())  # keys are names, or the parameters of an optimizer's state
    if type(thing).__name__ == "ndarray":
        return (getattr(thing, "base", None),)  # the tensor whose memory it shows, if it is one
    return gc.get_referents(thing)


def _beside(tensor: torch.Tensor) -> Iterable[object]:
    """What hangs on a tensor: the parts of a wrapper or sparse one, and attributes set on it."""
    if isinstance(tensor, FakeTensor):
        return ()  # its attributes are the machinery of fake tensors
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        return [getattr(tensor, name) for name in flatten()[0]]
    return list(vars(tensor).values())


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    # Asking any other tensor for its gradient is a warning.
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None


def _weak(root: object) -> list[weakref.ReferenceType[object]]:
    """Weak references to an object, or to the nearest parts of it that allow them."""
    seen: set[int] = set()
    refs: list[weakref.ReferenceType[object]] = []
    left = deque([root])
    while left:
        thing = left.popleft()
        try:
            refs.append(weakref.ref(thing))
        except TypeError:
            left.extend(_unseen(_children(thing), seen))
    return refs
