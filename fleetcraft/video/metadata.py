"""Static HDR metadata: the display a clip was graded on, and its brightest light.

Nothing is measured here; the values are the caller's. Invariant: what cannot be stored exactly in
the units of the bitstream's message is rounded once, here.
"""

from __future__ import annotations

import math

import msgspec

from fleetcraft.errors import UsageError

# Source: SMPTE ST 2086 and ITU-T H.265 D.3.28: units of 0.00002 and of 0.0001 cd/m2.
_CHROMATICITY_STEPS = 50_000
_LUMINANCE_STEPS = 10_000
_MOST_CD_M2 = 10_000  # Source: ITU-R BT.2100, the brightest that PQ can say.


class MasteringDisplay(msgspec.Struct, frozen=True, kw_only=True):
    """The display that a clip was graded on (SMPTE ST 2086).

    Attributes:
        red: Chromaticity x, y of red, 0 to 1.
        green: Chromaticity of green.
        blue: Chromaticity of blue.
        white: Chromaticity of the white point.
        max_cd_m2: Brightest white in cd/m2, up to 10000.
        min_cd_m2: Darkest black in cd/m2.
    """

    red: tuple[float, float]
    green: tuple[float, float]
    blue: tuple[float, float]
    white: tuple[float, float]
    max_cd_m2: float
    min_cd_m2: float

    def __post_init__(self) -> None:
        for name in ("red", "green", "blue", "white"):
            point = getattr(self, name)
            if len(point) != 2 or not all(0 < value < 1 for value in point):
                raise UsageError(
                    f"mastering display: {name} is {point}, expected chromaticity x, y in 0..1",
                    field=name,
                )
        if not 0 <= self.min_cd_m2 < self.max_cd_m2 <= _MOST_CD_M2:
            raise UsageError(
                f"mastering display: luminance {self.min_cd_m2} to {self.max_cd_m2} cd/m2, "
                f"expected 0 <= min < max <= {_MOST_CD_M2}",
                field="max_cd_m2",
            )

    @property
    def x265_words(self) -> str:
        """The value of x265's option master-display."""
        points = (("G", self.green), ("B", self.blue), ("R", self.red), ("WP", self.white))
        text = "".join(
            f"{name}({round(x * _CHROMATICITY_STEPS)},{round(y * _CHROMATICITY_STEPS)})"
            for name, (x, y) in points
        )
        most, least = (
            round(value * _LUMINANCE_STEPS) for value in (self.max_cd_m2, self.min_cd_m2)
        )
        return f"{text}L({most},{least})"


class ContentLight(msgspec.Struct, frozen=True, kw_only=True):
    """The brightest light of a clip (CTA-861.3).

    Attributes:
        max_cll_cd_m2: MaxCLL, the brightest pixel, in whole cd/m2.
        max_fall_cd_m2: MaxFALL, the brightest mean of a frame, in whole cd/m2.
    """

    max_cll_cd_m2: int
    max_fall_cd_m2: int

    def __post_init__(self) -> None:
        values = (self.max_fall_cd_m2, self.max_cll_cd_m2)
        if not (all(math.isfinite(value) for value in values) and 0 <= values[0] <= values[1]):
            raise UsageError(
                f"content light: MaxCLL {self.max_cll_cd_m2}, MaxFALL {self.max_fall_cd_m2}, "
                "expected 0 <= MaxFALL <= MaxCLL",
                field="max_cll_cd_m2",
            )
        if self.max_cll_cd_m2 > _MOST_CD_M2:
            raise UsageError(
                f"content light: MaxCLL {self.max_cll_cd_m2}, expected at most {_MOST_CD_M2}",
                field="max_cll_cd_m2",
            )

    @property
    def x265_words(self) -> str:
        """The value of x265's option max-cll."""
        return f"{self.max_cll_cd_m2},{self.max_fall_cd_m2}"


P3_D65_1000 = MasteringDisplay(
    red=(0.680, 0.320),
    green=(0.265, 0.690),
    blue=(0.150, 0.060),
    white=(0.3127, 0.3290),
    max_cd_m2=1000,
    min_cd_m2=0.0001,
)
"""P3 primaries with a D65 white point and 1000 cd/m2. Source: SMPTE RP 431-2 and EG 432-1."""
