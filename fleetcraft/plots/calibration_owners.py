"""Owners of peaks as layers of a stack: which are drawn alone, in which order and colour.

Records in, layers out; drawing them is `calibration`'s. Invariant: an owner has one place and one
colour on the whole page, and the layers of a phase add up to its peak, whatever was folded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetcraft.calibration.records import PhaseRecord, Trial
from fleetcraft.plots.style import PALETTE, drawable, lighter

MOST = 7
"""Owners that have a layer of their own, beside autograd, the unowned and the untracked."""
_LEAST_SHARE = 0.02
"""An owner that never has more of a peak than this would not be seen, and is folded."""
AUTOGRAD = "autograd"
UNOWNED = "unowned"
UNTRACKED = "untracked"
_OTHER = "other"
_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _RED = PALETTE
_COLORS = (_BLUE, _ORANGE, _GREEN, _PINK, _SKY, "#8a6a3f", "#00466e")
_GREY = "#c9ced6"
_LABEL_CHARS = 25


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of every stack.

    Attributes:
        name: Of the owner, or of the group of owners.
        label: In the legend.
        color: Its fill.
        hatch: Set on what no owner claimed.
    """

    name: str
    label: str
    color: str
    hatch: str = ""


class Layers:
    """The layers of all trials of one page, from the bottom up.

    Args:
        trials: All of them; an owner that is large in one batch has a layer in every one.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        phases = [phase for trial in trials for phase in trial.phases]
        largest, seen, shares = _extent(phases)
        named = [n for n in largest if n not in (AUTOGRAD, UNOWNED, UNTRACKED) and largest[n]]
        visible = [name for name in named if shares[name] >= _LEAST_SHARE]
        # What lives longest lies lowest, so that the base of neighbouring bars is the same.
        shown = sorted(visible, key=lambda name: (-largest[name], name))[:MOST]
        shown.sort(key=lambda name: (-seen[name], -largest[name], name))
        folded = len(named) - len(shown)
        self._shown = frozenset((*shown, AUTOGRAD, UNOWNED, UNTRACKED))
        self.layers = tuple(_looks(shown, folded, largest))

    def bytes_of(self, phase: PhaseRecord) -> list[int]:
        """Bytes of each layer at the peak of one phase."""
        found: Counter[str] = Counter()
        for name, count in _shares(phase):
            found[name if name in self._shown else _OTHER] += count
        return [found[layer.name] for layer in self.layers]


def _looks(shown: Sequence[str], folded: int, largest: Mapping[str, int]) -> list[Layer]:
    colors: dict[str, str] = {}
    for name in shown:
        if _base(name) not in shown:
            colors[name] = _COLORS[len(colors) % len(_COLORS)]
    for name in shown:
        colors.setdefault(name, lighter(colors.get(_base(name), _GREY), 0.55))
    looks = [
        Layer(name=name, label=drawable(name, _LABEL_CHARS), color=colors[name]) for name in shown
    ]
    if folded:
        looks.append(Layer(name=_OTHER, label=f"other ({folded})", color="#8d96a3"))
    if largest.get(AUTOGRAD):
        looks.append(Layer(name=AUTOGRAD, label=AUTOGRAD, color=_RED))
    if largest.get(UNOWNED):
        looks.append(Layer(name=UNOWNED, label="unowned", color=_GREY, hatch="////"))
    if largest.get(UNTRACKED):
        label = "untracked (allocator)"
        looks.append(Layer(name=UNTRACKED, label=label, color="#eceef1", hatch="...."))
    return looks


def _base(name: str) -> str:
    """The owner whose gradients these are; nobody's else."""
    return name.removesuffix(".grad") if name.endswith(".grad") else ""


def _extent(
    phases: Sequence[PhaseRecord],
) -> tuple[dict[str, int], Counter[str], dict[str, float]]:
    """The most bytes of each owner, in how many phases it has any, its largest share of a peak."""
    largest: dict[str, int] = {}
    seen: Counter[str] = Counter()
    most: dict[str, float] = {}
    for phase in phases:
        found: Counter[str] = Counter()
        for name, count in _shares(phase):
            found[name] += count
        whole = max(1, found.total())
        for name, count in found.items():
            largest[name] = max(largest.get(name, 0), count)
            most[name] = max(most.get(name, 0.0), count / whole)
            seen[name] += count > 0
    return largest, seen, most


def _shares(phase: PhaseRecord) -> list[tuple[str, int]]:
    shares = [(_group(owner.name), owner.bytes) for owner in phase.owners]
    if phase.residual_bytes and phase.residual_bytes > 0:
        shares.append((UNTRACKED, phase.residual_bytes))
    return shares


def _group(name: str) -> str:
    return UNOWNED if name == UNOWNED or name.startswith(f"{UNOWNED}:") else name
