"""What a stream says about its colours and depth, and the gate in front of decoding.

Pixels are not touched here and PyAV is not loaded. Invariant: what 8-bit BT.709 cannot hold passes
only where the caller said in so many words what is to become of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleetcraft.errors import DataError, UsageError

# Code points of colour tags. Source: ITU-T H.273 (2021), tables 2, 3 and 4.
PRIMARIES = {
    1: "bt709",
    2: "unspecified",
    4: "bt470m",
    5: "bt470bg",
    6: "smpte170m",
    7: "smpte240m",
    8: "film",
    9: "bt2020",
    10: "smpte428",
    11: "smpte431",
    12: "smpte432",
    22: "ebu3213",
}
TRANSFERS = {
    1: "bt709",
    2: "unspecified",
    4: "gamma22",
    5: "gamma28",
    6: "smpte170m",
    7: "smpte240m",
    8: "linear",
    9: "log100",
    10: "log316",
    11: "iec61966-2-4",
    12: "bt1361e",
    13: "iec61966-2-1",
    14: "bt2020-10",
    15: "bt2020-12",
    16: "smpte2084",
    17: "smpte428",
    18: "arib-std-b67",
}
MATRICES = {
    0: "rgb",
    1: "bt709",
    2: "unspecified",
    4: "fcc",
    5: "bt470bg",
    6: "smpte170m",
    7: "smpte240m",
    8: "ycgco",
    9: "bt2020nc",
    10: "bt2020c",
    11: "smpte2085",
    12: "chroma-derived-nc",
    13: "chroma-derived-c",
    14: "ictcp",
}
RANGES = {0: "unspecified", 1: "limited", 2: "full"}

BT709 = 1
UNSPECIFIED = 2
BT2020 = 9
SMPTE2084 = 16
LIMITED = 1
FULL = 2

_HDR_TRANSFERS = {16, 18}  # PQ and HLG
_HDR_MATRICES = {14}  # ICtCp is defined for PQ and HLG only
_WIDE_PRIMARIES = {9, 10, 11, 12}
_WIDE_TRANSFERS = {14, 15}  # the curves of BT.2020; the same as BT.709's, in another gamut
_WIDE_MATRICES = {9, 10}
MOST_BITS = 16


class Deep(StrEnum):
    """What is to become of HDR, of a wide gamut and of more than 8 bits a channel.

    Attributes:
        REFUSE: An error that names what was found.
        KEEP: Code values as uint16, every level of them.
        FLATTEN: Rounded to 8 bits; only for BT.709 without HDR, since nothing is tone-mapped.
    """

    REFUSE = "refuse"
    KEEP = "keep"
    FLATTEN = "flatten"

    @classmethod
    def parse(cls, word: str) -> Deep:
        """The choice of that name.

        Raises:
            UsageError: If there is none.
        """
        try:
            return cls(word)
        except ValueError:
            raise UsageError(
                f"deep is {word!r}, expected one of {', '.join(cls)}",
                hint="deep='keep' gives uint16 code values, deep='flatten' rounds to 8 bits",
                deep=str(word),
            ) from None


@dataclass(frozen=True, kw_only=True)
class ColorTags:
    """The colour description that a stream or frame carries, as H.273 code points.

    Attributes:
        pix_fmt: Pixel format.
        bits: Bits of its deepest channel.
        is_rgb: Whether it stores RGB, so that no matrix applies.
        is_gray: Whether it stores luma alone.
        primaries: Colour primaries.
        transfer: Transfer function.
        matrix: Colour matrix.
        range: 0 unspecified, 1 limited, 2 full.
    """

    pix_fmt: str
    bits: int
    is_rgb: bool
    is_gray: bool = False
    primaries: int
    transfer: int
    matrix: int
    range: int

    @property
    def says_full_range(self) -> bool:
        """Whether it says that luma spans all code values; yuvj formats do by their name."""
        return self.range == FULL or self.pix_fmt.startswith("yuvj")

    @property
    def is_full_range(self) -> bool:
        """Whether it is read so; untagged gray is, as everywhere in FFmpeg."""
        return self.says_full_range or (self.is_gray and self.range != LIMITED)

    @property
    def applied_matrix(self) -> int:
        """The matrix that is used: the stream's own, or BT.709 where it names none."""
        return BT709 if self.matrix == UNSPECIFIED else self.matrix

    @property
    def is_hdr(self) -> bool:
        """Whether it is PQ or HLG."""
        return self.transfer in _HDR_TRANSFERS or self.matrix in _HDR_MATRICES

    @property
    def is_wide_gamut(self) -> bool:
        """Whether its colours span more than BT.709, as BT.2020 and P3 do."""
        return (
            self.primaries in _WIDE_PRIMARIES
            or self.transfer in _WIDE_TRANSFERS
            or self.matrix in _WIDE_MATRICES
        )

    @property
    def words(self) -> dict[str, str]:
        """The fields that decide whether 8 bits can hold it, by name."""
        return {
            "pix_fmt": self.pix_fmt,
            "primaries": PRIMARIES.get(self.primaries, str(self.primaries)),
            "transfer": TRANSFERS.get(self.transfer, str(self.transfer)),
            "matrix": "rgb" if self.is_rgb else MATRICES.get(self.matrix, str(self.matrix)),
        }


def pass_gate(path: str, tags: ColorTags, deep: Deep) -> None:
    """Lets a stream through to decoding, or refuses it.

    Args:
        path: The file, for the message.
        tags: What its stream or frame says.
        deep: What the caller said is to become of more than 8-bit BT.709 can hold.

    Raises:
        DataError: If turning it into what was asked for would change what it shows, or it has
            more than 16 bits.
    """
    if tags.bits > MOST_BITS:
        raise _refusal(
            path, tags, f"it has {tags.bits} bits per channel, at most {MOST_BITS} are read", ""
        )
    if deep is Deep.KEEP:
        return
    keep = "read it with deep='keep' for its code values"
    if tags.is_hdr:
        cure = f"{keep}, or tone-map it to 8-bit BT.709 first (ffmpeg's zscale and tonemap)"
        raise _refusal(path, tags, "it is HDR", cure)
    if tags.is_wide_gamut:
        cure = f"{keep}, or convert it to BT.709 first (ffmpeg's zscale)"
        raise _refusal(path, tags, "its gamut is wide", cure)
    if tags.bits > 8 and deep is Deep.REFUSE:
        cure = f"{keep}, with deep='flatten' to round, or: ffmpeg -i IN -pix_fmt yuv420p OUT.mp4"
        raise _refusal(path, tags, f"it has {tags.bits} bits per channel", cure)


def _refusal(path: str, tags: ColorTags, what: str, cure: str) -> DataError:
    found = ", ".join(f"{name} {word}" for name, word in tags.words.items())
    return DataError(
        f"cannot read {path} as 8-bit RGB: {what} ({found}); nothing was flattened",
        hint=cure,
        path=path,
        bits=tags.bits,
        is_hdr=tags.is_hdr,
        **tags.words,
    )
