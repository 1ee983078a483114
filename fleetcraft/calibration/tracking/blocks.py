"""The account of storages: which live, how much that was at most, and which lived just then.

Who owns them is `ledger`'s to say. Invariant: what lives now and was born before the peak, and what
died after it, is exactly what lived at the peak; nothing else of the dead is kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

Place = tuple[str, str]
"""The phase of birth, and the scope, which is the phase again where there was none."""


class Block(weakref.ReferenceType[torch.UntypedStorage]):
    """One storage at one size; a weak reference that tells of its death.

    Attributes:
        key: `owners.storage_key` of it while it lives.
        size_bytes: Its size.
        bytes: What of it counts; 0 where it shows memory of another block.
        born: Tick of the book's clock.
        place: Where it was born.
        name: Its last known owner.
        names: All that ever were.
        saves: How often autograd holds it now.
        saved_at: Tick since when.
        saved_peak: Tick of the last peak at which it was held, of those after which it was let go.
        heir: The same storage at its next size.
    """

    __slots__ = (
        "born", "bytes", "heir", "key", "name", "names", "place", "saved_at", "saved_peak", "saves",
        "size_bytes",
    )  # fmt: skip

    key: int
    size_bytes: int
    bytes: int
    born: int
    place: Place
    name: str
    names: tuple[str, ...]
    saves: int
    saved_at: int
    saved_peak: int
    heir: Block | None

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def give(self, name: str) -> None:
        """Notes its owner."""
        self.name = name
        if name not in self.names:
            self.names += (name,)

    @property
    def latest(self) -> Block:
        """The same storage at its present size."""
        block = self
        while block.heir is not None:
            block = block.heir
        return block


class Book:
    """All blocks of one device."""

    def __init__(self) -> None:
        self.living: dict[int, Block] = {}
        self.live_bytes = 0
        self.peak_bytes = 0
        self.place: Place = ("", "")
        self._clock = 0
        self._peak_at = 0
        self._gone: list[Block] = []
        self._on_death: Callable[[Block], None] = self._died  # one bound method for all blocks

    def enter(self, storage: torch.UntypedStorage, size_bytes: int) -> Block:
        """Counts a new storage."""
        self._clock = clock = self._clock + 1
        block = Block(storage, self._on_death)
        block.key = key = id(storage)
        block.size_bytes = size_bytes
        block.bytes = size_bytes
        block.born = clock
        block.place = self.place
        block.name = ""
        block.names = ()
        block.saves = block.saved_at = block.saved_peak = 0
        block.heir = None
        self.living[key] = block
        self.live_bytes = live = self.live_bytes + size_bytes
        if live >= self.peak_bytes:  # of equal ones the last: more of its owners will be found
            self.peak_bytes = live
            self._peak_at = clock
            if self._gone:
                self._gone.clear()
        return block

    def adopt(self, storage: torch.UntypedStorage, size_bytes: int) -> Block:
        """Counts a storage that no op has made, unless it shows memory that counts already."""
        shows_another = not storage.resizable() and self._shows_another(storage)
        block = self.enter(storage, 0 if shows_another else size_bytes)
        block.size_bytes = size_bytes
        return block

    def resize(self, block: Block, storage: torch.UntypedStorage, size_bytes: int) -> Block:
        """Counts a storage of the book that has changed its size: one dies, its heir is born."""
        self._died(block)
        place, self.place = self.place, block.place
        heir = self.enter(storage, size_bytes)
        self.place = place
        heir.name, heir.names = block.name, block.names
        heir.saves, heir.saved_at = block.saves, block.saved_at
        block.heir = heir
        return heir

    def save(self, block: Block) -> None:
        """Notes that autograd holds it once more."""
        if not block.saves:
            block.saved_at = self._clock  # no tick: what the peak's own op saves counts at the peak
        block.saves += 1

    def release(self, block: Block) -> None:
        """Notes that autograd holds it once less."""
        block = block.latest
        block.saves -= 1
        if not block.saves and block.saved_at <= self._peak_at:
            block.saved_peak = self._peak_at

    def begin(self) -> None:
        """Lets the peak begin at what lives now."""
        self._clock += 1
        self._peak_at = self._clock
        self._gone.clear()
        self.live_bytes = self.peak_bytes = sum(block.bytes for block in list(self.living.values()))

    def at_peak(self) -> list[Block]:
        """What lived at the peak; its bytes add up to ``peak_bytes``."""
        there = {id(block): block for block in list(self.living.values())}  # may die meanwhile
        there.update((id(block), block) for block in list(self._gone))
        return [block for block in there.values() if block.born <= self._peak_at]

    def saved_at_peak(self, block: Block) -> bool:
        """Whether autograd held it at the peak."""
        latest = block.latest
        held = latest.saves > 0 and latest.saved_at <= self._peak_at
        return held or latest.saved_peak == self._peak_at

    def _shows_another(self, storage: torch.UntypedStorage) -> bool:
        """Whether it shows memory that counts already, as a tensor of an array of a tensor does.

        Only memory that came from elsewhere is looked up; an allocator gives none out twice.
        """
        place = storage.data_ptr()
        for block in list(self.living.values()):
            other = block()
            if other is not None and 0 <= place - other.data_ptr() < block.bytes:
                return True
        return False

    def _died(self, block: Block) -> None:
        if self.living.get(block.key) is block:  # else it is an earlier size of a storage
            del self.living[block.key]
            self.live_bytes -= block.bytes
            if block.born <= self._peak_at:
                self._gone.append(block)
