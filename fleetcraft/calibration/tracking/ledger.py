"""Every storage on one device: when it was made, who owns it, when it died.

A dispatch mode that sees each op's tensors, and the attribution of a phase's peak. The account is
kept in `blocks`, names come from `owners`. Invariant: the owners of a phase's peak add up to
exactly that peak, and those of its end to exactly what lives then.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from fleetcraft.calibration.tracking import resizing
from fleetcraft.calibration.tracking.attribution import PhaseBytes, owners_of
from fleetcraft.calibration.tracking.blocks import Block, Book
from fleetcraft.calibration.tracking.ops import CONSISTS, MAKES, judge
from fleetcraft.calibration.tracking.owners import PLAIN, Root, Roots, storage_of, walk
from fleetcraft.calibration.tracking.refusal import refusal_text

__all__ = ["Ledger", "PhaseBytes"]

OUTSIDE = "outside"
"""Phase of birth of what was made between phases."""

_NUMBERS = frozenset(
    {
        int,
        float,
        bool,
        type(None),
        str,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
_LISTS = (list, tuple)


def _is_skipped_by_dynamo() -> bool:
    """Tells torch's compiler to leave what lies beside this file alone; whether it could be told.

    Else torch guards the dispatch of every mode by two more calls for each op.
    """
    try:
        from torch._dynamo import trace_rules

        trace_rules.add(__package__)
    except (ImportError, AttributeError):
        return False
    return True


_IS_SKIPPED = _is_skipped_by_dynamo()


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages of one device while it is entered.

    Seen are storages that an op makes, takes or returns, in this Python thread and in those of the
    autograd engine that work for it, and those that a root reaches. What existed before is adopted
    and counted when it is first seen. Not seen: tensors of other Python threads until an op here
    uses them, the inside of compiled graphs, workspaces of kernels, storages of sparse tensors.
    Under `FakeTensorMode` the same counts come out without memory; torch keeps that mode below all
    others, so the order of entering does not matter.

    Args:
        device: ``cpu``, ``cuda`` (all of them) or ``cuda:N``.
        budget_bytes: Where `torch.OutOfMemoryError` is raised, as if the device were so large;
            None for no limit. The op's result is dropped and not counted.
    """

    def __init__(self, device: str = "cpu", budget_bytes: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.budget_bytes = budget_bytes
        self._device = torch.device(device)
        self._here: dict[torch.device, bool] = {}
        self._effects: dict[int, int] = {}
        self._judged: list[Any] = []  # none may go, and leave its number to another
        self._book = Book()
        self._roots = Roots()
        self._phase: str | None = None
        self._start_bytes = 0
        self._scopes: list[str] = []
        self._set_place()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return not _IS_SKIPPED

    # ------------------------------------------------------------------------------ what it says

    @property
    def live_bytes(self) -> int:
        """Bytes of all storages that live now."""
        return self._book.live_bytes

    @property
    def saved_bytes(self) -> int:
        """Of those, what autograd holds, parameters included."""
        return sum(block.bytes for block in list(self._book.living.values()) if block.saves)

    # ------------------------------------------------------------------------------ what it is told

    def own(self, name: str, root: object) -> int:
        """Registers a root, weakly, and names what it reaches now.

        The same name may be given again; both objects are its then. A list, tuple or dict cannot
        be held weakly: what it holds now is registered, so one that grows is to be given again.

        Returns:
            Bytes on the device that it owns now; 0 when it reaches nothing, or only what is
            nearer to another root.
        """
        others = [other for other in self._roots.living() if other[0] != name]
        self._roots.add(name, root)
        owned: dict[int, int] = {}
        for tensor, owner in walk([(name, root)], others=others):
            block = self._block_of(tensor)
            if block is None:
                continue
            if not block.name:  # what has an owner keeps it until all roots are walked together
                block.give(owner)
            if block.name == name:
                owned[block.key] = block.bytes
        return sum(owned.values())

    def adopt(self, thing: object) -> int:
        """Counts what was made unseen (loaded, shared, of another thread), and names nobody.

        Returns:
            Bytes that were not counted before.
        """
        before = self.live_bytes
        for tensor, _ in walk([("", thing)]):
            self._block_of(tensor)
        return self.live_bytes - before

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """What is made inside and nobody claims is ``unowned:NAME``."""
        self._scopes.append(name)
        self._set_place()
        try:
            yield
        finally:
            self._scopes.remove(name)
            self._set_place()

    def saved(self, tensor: torch.Tensor) -> Block | None:
        """Notes that autograd holds a tensor once more; None when it is not of this device."""
        block = self._block_of(tensor)
        if block is not None:
            self._book.save(block)
        return block

    def released(self, block: Block) -> None:
        """Notes that autograd let go of what `saved` returned."""
        self._book.release(block)

    # ------------------------------------------------------------------------------ phases

    def begin_phase(self, name: str) -> None:
        """Collects garbage and lets the peak begin at what lives now.

        Raises:
            RuntimeError: A phase is open.
        """
        if self._phase is not None:
            raise RuntimeError(f"phase {name!r} began inside {self._phase!r}; phases do not nest")
        gc.collect()
        self._measure_again()
        self._book.begin()
        self._start_bytes = self.live_bytes
        self._phase = name
        self._set_place()

    def end_phase(
        self, roots: Mapping[str, object] | None = None, *, releases: Sequence[str] = ()
    ) -> PhaseBytes:
        """Collects garbage, names what lives, and attributes the peak.

        After a failure call it behind the except block, never inside: there the traceback still
        holds what failed.

        Args:
            roots: Objects by name beside those that were registered, for this call alone.
            releases: Owners that must be gone. Bytes that were ever theirs count, also when the
                object itself was dropped.

        Raises:
            RuntimeError: No phase is open.
        """
        if self._phase is None:
            raise RuntimeError("no phase is open")
        gc.collect()
        self._measure_again()
        reached = self._name([*self._roots.living(), *(roots or {}).items()])
        living = list(self._book.living.values())
        owners = owners_of(
            self._phase,
            at_peak=self._book.at_peak(),
            living=living,
            saved_at_peak=self._book.saved_at_peak,
        )
        known = {*self._roots.names, *(roots or ())}
        held = {name: sum(b.bytes for b in living if name in b.names) for name in releases}
        found = PhaseBytes(
            name=self._phase,
            peak_bytes=sum(owner.bytes for owner in owners),
            live_start_bytes=self._start_bytes,
            live_end_bytes=sum(block.bytes for block in living),
            autograd_bytes=sum(b.bytes for b in living if b.saves and b.key not in reached),
            owners=owners,
            held_bytes={name: count for name, count in held.items() if count},
            never_owned=tuple(n for n in releases if n.removesuffix(".grad") not in known),
        )
        self._phase = None
        self._set_place()
        return found

    def _set_place(self) -> None:
        phase = self._phase or OUTSIDE
        self._book.place = (phase, self._scopes[-1] if self._scopes else phase)

    def _name(self, roots: Iterable[Root]) -> dict[int, Block]:
        """Gives every block that is reached its owner; those by their key."""
        named: dict[int, Block] = {}
        for tensor, name in walk(roots):
            block = self._block_of(tensor)
            if block is not None and block.key not in named:
                named[block.key] = block
                block.give(name)
        return named

    # ------------------------------------------------------------------------------ what it sees

    def __enter__(self) -> Ledger:
        resizing.listen(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        resizing.leave(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an op and counts what it made; lean, since it stands before every op."""
        for kind in types:
            if kind not in PLAIN:
                return NotImplemented  # the wrapper unwraps, and comes here with what is inside
        effect = self._effects.get(id(func))  # the hash of an op is a call of its own
        if effect is None:
            effect = self._effects[id(func)] = judge(func)
            self._judged.append(func)
        if effect == CONSISTS:
            return self._take_apart(func, args, kwargs or {})
        self._see(args)
        if kwargs:
            self._see(kwargs.values())
            made = func(*args, **kwargs)
        else:
            made = func(*args)
        if effect == MAKES and (refused_bytes := self._keep(made)):
            del made  # else the traceback would keep it for as long as the caller looks at it
            raise self._refusal(refused_bytes)
        return made

    def _take_apart(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs the ops of which one consists, each seen here."""
        _push_mode(self)
        try:
            return func.decompose(*args, **kwargs)
        finally:
            _pop_mode()

    def _see(self, values: Iterable[Any]) -> None:
        """Adopts what an op is given and nobody has seen."""
        living = self._book.living
        for value in values:
            kind = type(value)
            if kind in PLAIN:
                try:
                    if id(value.untyped_storage()) not in living:
                        self._block_of(value)
                except (NotImplementedError, RuntimeError):
                    continue  # sparse
            elif kind not in _NUMBERS:
                self._see_other(value)

    def _see_other(self, value: Any) -> None:
        if isinstance(value, _LISTS):
            if value and type(value[0]) is not int:  # sizes are the most frequent lists
                self._see(value)
        elif isinstance(value, torch.Tensor):
            self._block_of(value)
        elif isinstance(value, torch.UntypedStorage):
            self._block_in(value, value.device)

    def _keep(self, made: Any) -> int:
        """Counts what an op made; the bytes of the first thing that did not fit, else 0."""
        if type(made) not in PLAIN and not isinstance(made, torch.Tensor):
            if isinstance(made, _LISTS):
                return next(filter(None, map(self._keep, made)), 0)
            return 0
        try:
            storage = made.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return 0
        block = self._book.living.get(id(storage))
        if block is not None:
            return self._keep_known(block, storage)
        size_bytes: int = storage.nbytes()
        device = made.device
        if not size_bytes or not (self._here.get(device) or self._is_here(device)):
            return 0
        budget = self.budget_bytes
        if budget is not None and self._book.live_bytes + size_bytes > budget:
            return size_bytes
        self._book.enter(storage, size_bytes)
        return 0

    def _keep_known(self, block: Block, storage: torch.UntypedStorage) -> int:
        grown_bytes = storage.nbytes() - block.size_bytes
        if not grown_bytes:
            return 0
        fits = self._fits(grown_bytes)
        self._book.resize(block, storage, storage.nbytes())  # it has happened, so it counts
        return 0 if fits else grown_bytes

    def _fits(self, more_bytes: int) -> bool:
        budget = self.budget_bytes
        return budget is None or more_bytes <= 0 or self._book.live_bytes + more_bytes <= budget

    def _is_here(self, device: torch.device) -> bool:
        here = self._here.get(device)
        if here is None:
            wanted = self._device
            here = device.type == wanted.type and wanted.index in (None, device.index)
            self._here[device] = here
        return here

    def _block_of(self, tensor: torch.Tensor) -> Block | None:
        """Its block, up to date, adopted if need be; None when it is not of this device."""
        storage = storage_of(tensor)
        return None if storage is None else self._block_in(storage, tensor.device)

    def _block_in(self, storage: torch.UntypedStorage, device: torch.device) -> Block | None:
        block = self._book.living.get(id(storage))
        size_bytes = storage.nbytes()
        if block is None:
            if size_bytes and self._is_here(device):
                return self._book.adopt(storage, size_bytes)
            return None
        if block.size_bytes == size_bytes:
            return block
        return self._book.resize(block, storage, size_bytes)

    def _measure_again(self) -> None:
        """Finds sizes that changed without an op."""
        for block in list(self._book.living.values()):
            storage = block()
            if storage is not None and storage.nbytes() != block.size_bytes:
                self._book.resize(block, storage, storage.nbytes())

    def _refusal(self, request_bytes: int) -> torch.OutOfMemoryError:
        self._name(self._roots.living())  # by the time of `end_phase` much of it has died
        assert self.budget_bytes is not None
        return torch.OutOfMemoryError(
            refusal_text(
                request_bytes=request_bytes,
                budget_bytes=self.budget_bytes,
                live_bytes=self.live_bytes,
            )
        )

    def before_resize(self, storage: torch.UntypedStorage, size_bytes: int) -> None:
        """See `resizing`; refuses what would not fit."""
        block = self._book.living.get(id(storage))
        if block is not None and not self._fits(size_bytes - block.size_bytes):
            raise self._refusal(size_bytes - block.size_bytes)

    def after_resize(self, storage: torch.UntypedStorage) -> None:
        """See `resizing`."""
        block = self._book.living.get(id(storage))
        if block is not None and block.size_bytes != storage.nbytes():
            self._book.resize(block, storage, storage.nbytes())
