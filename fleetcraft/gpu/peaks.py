"""Dense BF16 peaks by exact part, each with its source.

A table and its look-up. Invariant: a name that is not wholly understood has no peak; there is no
default, and no part answers for another whose name contains its own (GB200 and B200, GH200 and
H200).
"""

from __future__ import annotations

import re
from difflib import get_close_matches

import msgspec


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The dense BF16 rate of one part.

    Attributes:
        name: What it is called here.
        dense_bf16_flop_per_s: Without structured sparsity, 32-bit accumulation.
        power_w: Power at which it holds; None where the sheet names none.
        source: Where the number is from. Sheets that give the sparse rate are halved.
    """

    name: str
    dense_bf16_flop_per_s: float
    power_w: int | None
    source: str


def _sheet(name: str) -> str:
    return f"NVIDIA {name} datasheet, BF16 Tensor Core without sparsity"


_A100 = Peak(
    name="A100", dense_bf16_flop_per_s=312e12, power_w=400, source=_sheet("A100 Tensor Core GPU")
)
_H100 = "H100 Tensor Core GPU"
PEAKS = (
    _A100,
    Peak(name="H100 SXM", dense_bf16_flop_per_s=989.4e12, power_w=700, source=_sheet(_H100)),
    Peak(name="H100 PCIe", dense_bf16_flop_per_s=756e12, power_w=350, source=_sheet(_H100)),
    Peak(name="H100 NVL", dense_bf16_flop_per_s=835e12, power_w=400, source=_sheet(_H100)),
    Peak(
        name="H200 SXM",
        dense_bf16_flop_per_s=989.4e12,
        power_w=700,
        source=_sheet("H200 Tensor Core GPU"),
    ),
    Peak(
        name="H200 NVL",
        dense_bf16_flop_per_s=835e12,
        power_w=600,
        source=_sheet("H200 Tensor Core GPU"),
    ),
    Peak(
        name="GH200",
        dense_bf16_flop_per_s=989.4e12,
        power_w=None,
        source=_sheet("GH200 Grace Hopper Superchip") + "; the sheet prints 990",
    ),
    Peak(
        name="B200",
        dense_bf16_flop_per_s=2.25e15,
        power_w=1000,
        source="NVIDIA Blackwell architecture brief, HGX B200 per GPU at 1,000 W, without sparsity",
    ),
    Peak(
        name="GB200 NVL72",
        dense_bf16_flop_per_s=2.5e15,
        power_w=1200,
        source="NVIDIA Blackwell architecture brief, GB200 NVL72 per GPU at 1,200 W, without "
        "sparsity",
    ),
    Peak(name="A30", dense_bf16_flop_per_s=165e12, power_w=165, source=_sheet("A30")),
    Peak(name="A10", dense_bf16_flop_per_s=125e12, power_w=150, source=_sheet("A10")),
    Peak(name="A40", dense_bf16_flop_per_s=149.7e12, power_w=300, source=_sheet("A40")),
    Peak(name="L4", dense_bf16_flop_per_s=121e12, power_w=72, source=_sheet("L4")),
    Peak(name="L40", dense_bf16_flop_per_s=181.05e12, power_w=300, source=_sheet("L40")),
    Peak(name="L40S", dense_bf16_flop_per_s=362.05e12, power_w=350, source=_sheet("L40S")),
)
BY_NAME = {peak.name: peak for peak in PEAKS}

# Which words of a name make a part. Words of the first set must all be there; beside them only
# words of the second may be. The driver calls an H100 SXM "NVIDIA H100 80GB HBM3", and a GH200 by
# the size of its host memory.
_MADE_OF: tuple[tuple[str, frozenset[str], frozenset[str]], ...] = tuple(
    (name, frozenset(must.split()), frozenset(may.split()))
    for name, must, may in (
        ("A100", "A100", "SXM SXM4 PCIE 40GB 80GB"),
        ("H100 SXM", "H100 SXM", "80GB HBM3"),
        ("H100 SXM", "H100 SXM5", "80GB HBM3"),
        ("H100 SXM", "H100 80GB HBM3", ""),
        ("H100 PCIe", "H100 PCIE", "80GB"),
        ("H100 NVL", "H100 NVL", "94GB"),
        ("H200 SXM", "H200", "SXM SXM5 141GB HBM3E"),
        ("H200 NVL", "H200 NVL", "141GB"),
        ("GH200", "GH200", "96GB 144GB 144G HBM3 HBM3E 120GB 480GB GRACE HOPPER SUPERCHIP"),
        ("B200", "B200", "SXM SXM6 HGX DGX 180GB 192GB"),
        ("GB200 NVL72", "GB200", "NVL72 186GB 192GB"),
        ("A30", "A30", "PCIE 24GB"),
        ("A10", "A10", "PCIE 24GB"),
        ("A40", "A40", "PCIE 48GB"),
        ("L4", "L4", "24GB"),
        ("L40", "L40", "48GB"),
        ("L40S", "L40S", "48GB"),
    )
)
_ALWAYS = frozenset({"NVIDIA", "TESLA", "GPU", "TENSOR", "CORE"})


def find_peak(name: str) -> Peak | None:
    """The peak of a part, by the driver's name or ours; None when the name is not understood.

    ``H100`` alone names three parts with three peaks, so it has none; slices of a GPU have none.
    """
    words = frozenset(re.findall(r"[A-Z0-9]+", name.upper())) - _ALWAYS
    for part, must, may in _MADE_OF:
        if must <= words <= must | may:
            return BY_NAME[part]
    return None


def same_model(name: str) -> list[str]:
    """Parts of the model that a name mentions: which of them it is, the name does not say."""
    words = set(re.findall(r"[A-Z0-9]+", name.upper()))
    return [part for part in BY_NAME if part.split()[0].upper() in words]


def near_names(name: str) -> list[str]:
    """Parts whose names look like this one, for a hint."""
    return same_model(name) or get_close_matches(name.upper(), BY_NAME, n=3, cutoff=0.4)
