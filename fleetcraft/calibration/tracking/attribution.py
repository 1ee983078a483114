"""A phase's bytes by owner: what lived at its peak and at its end, added up.

Which blocks those are is `blocks`'s; who owns them was written on them by `ledger`. Invariant:
every block falls to exactly one owner, so that owners add up to the peak and to what lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from fleetcraft.calibration.records import OwnerBytes
from fleetcraft.calibration.tracking.blocks import Block

AUTOGRAD = "autograd"
UNOWNED = "unowned"


class PhaseBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What one phase did to the device's memory, as far as it is tracked.

    Attributes:
        name: The phase.
        peak_bytes: The highest sum of storages that lived at once; the ``bytes`` of ``owners``
            add up to exactly this.
        live_start_bytes: What lived when it began.
        live_end_bytes: What lives at its end, garbage collected; the ``live_end_bytes`` of
            ``owners`` add up to exactly this.
        autograd_bytes: Of those, what a graph holds for a backward pass and no root reaches.
        owners: Largest share of the peak first; those that came after the peak have 0 there.
        held_bytes: Of the owners that had to be gone, those that are not: name to bytes.
        never_owned: Of the owners that had to be gone, those that nobody ever registered: whether
            they are gone is not known.
    """

    name: str
    peak_bytes: int
    live_start_bytes: int
    live_end_bytes: int
    autograd_bytes: int
    owners: tuple[OwnerBytes, ...] = ()
    held_bytes: dict[str, int] = {}
    never_owned: tuple[str, ...] = ()


def owners_of(
    phase: str,
    *,
    at_peak: Iterable[Block],
    living: Iterable[Block],
    saved_at_peak: Callable[[Block], bool],
) -> tuple[OwnerBytes, ...]:
    """Adds blocks up by owner, largest share of the peak first.

    A block is its last known owner's; where it never had one, autograd's if autograd held it at
    that time; else it is named after the scope of its birth.
    """
    shares: dict[str, _Share] = {}
    for block in at_peak:
        name = _owner(block, saved=saved_at_peak(block))
        shares.setdefault(name, _Share()).add_peak(block)
    for block in living:
        name = _owner(block, saved=block.saves > 0)
        shares.setdefault(name, _Share()).add_living(block)
    owners = [share.record(name, phase) for name, share in shares.items()]
    return tuple(sorted(owners, key=lambda o: (-o.bytes, -o.live_end_bytes, o.name)))


def _owner(block: Block, *, saved: bool) -> str:
    return block.latest.name or (AUTOGRAD if saved else f"{UNOWNED}:{block.place[1]}")


class _Share:
    """One owner's bytes while they are added up."""

    def __init__(self) -> None:
        self.bytes = 0
        self.live_end_bytes = 0
        self.born: dict[str, int] = {}

    def add_peak(self, block: Block) -> None:
        self.bytes += block.bytes
        self.born[block.place[0]] = self.born.get(block.place[0], 0) + block.bytes

    def add_living(self, block: Block) -> None:
        self.live_end_bytes += block.bytes
        self.born.setdefault(block.place[0], 0)

    def record(self, name: str, phase: str) -> OwnerBytes:
        born_in = max(self.born, key=lambda place: self.born[place])
        return OwnerBytes(
            name=name,
            bytes=self.bytes,
            live_end_bytes=self.live_end_bytes,
            born_in=born_in,
            alive_after=born_in != phase or self.live_end_bytes > 0,
        )
