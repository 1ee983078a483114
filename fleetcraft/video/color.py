"""Colour: the tags of a stream by name, what is refused, and the two explicit conversions.

No file is opened here. Invariant: every conversion between RGB and YUV names its matrix and its
ranges; tags only describe what was done, they never do it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleetcraft.errors import DataError
from fleetcraft.video.pyav import ColorRange, Colorspace, Interpolation, VideoFrame

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
    11: "iec61966-2-4",
    13: "iec61966-2-1",
    14: "bt2020-10",
    15: "bt2020-12",
    16: "smpte2084",
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
}
RANGES = {0: "unspecified", 1: "limited", 2: "full"}

BT709 = 1
UNSPECIFIED = 2
LIMITED = 1

_WIDE_PRIMARIES = {9, 11, 12}
_HDR_TRANSFERS = {14, 15, 16, 18}
_HDR_MATRICES = {9, 10}

# The matrices that libswscale converts, by tag; 5 and 6 are both BT.601.
_SWSCALE_MATRIX = {
    1: Colorspace.ITU709,
    4: Colorspace.FCC,
    5: Colorspace.ITU601,
    6: Colorspace.ITU601,
    7: Colorspace.SMPTE240M,
}

# The slow and exact paths of libswscale, and none that depends on the CPU's vector units.
CONVERTER_FLAGS = ("bicubic", "accurate_rnd", "full_chr_h_int", "full_chr_h_inp", "bitexact")
_FLAGS = int(
    Interpolation.BICUBIC
    | Interpolation.ACCURATE_RND
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.FULL_CHR_H_INP
    | Interpolation.BITEXACT
)


@dataclass(frozen=True, kw_only=True)
class ColorTags:
    """The colour description that a stream or frame carries, as H.273 code points."""

    pix_fmt: str
    bits: int
    is_rgb: bool
    primaries: int
    transfer: int
    matrix: int
    range: int

    @property
    def is_full_range(self) -> bool:
        """Whether luma spans 0 to 255; the yuvj formats say so by their name."""
        return self.range == 2 or self.pix_fmt.startswith("yuvj")

    @property
    def applied_matrix(self) -> int:
        """The matrix that is used: the stream's own, or BT.709 where it names none."""
        return BT709 if self.matrix == UNSPECIFIED else self.matrix


def refuse_what_8_bits_cannot_hold(path: str, tags: ColorTags) -> None:
    """Refuses high bit depth, HDR and wide gamut.

    Args:
        path: The file, for the message.
        tags: What its stream or frame says.

    Raises:
        DataError: If turning it into 8-bit BT.709 RGB would change what it shows.
    """
    transfer = TRANSFERS.get(tags.transfer, str(tags.transfer))
    primaries = PRIMARIES.get(tags.primaries, str(tags.primaries))
    found = f"{tags.pix_fmt}, primaries {primaries}, transfer {transfer}"
    if tags.transfer in _HDR_TRANSFERS or tags.matrix in _HDR_MATRICES:
        what, cure = "it is HDR", "tone-map it to 8-bit BT.709 first (ffmpeg's zscale and tonemap)"
    elif tags.primaries in _WIDE_PRIMARIES:
        what, cure = "its gamut is wide", "convert it to BT.709 first (ffmpeg's zscale)"
    elif tags.bits > 8:
        what = f"it has {tags.bits} bits per channel"
        cure = "convert it to 8 bits first: ffmpeg -i IN -pix_fmt yuv420p OUT.mp4"
    else:
        return
    raise DataError(
        f"cannot read {path} as 8-bit RGB: {what} ({found}); nothing was flattened",
        hint=cure,
        path=path,
        pix_fmt=tags.pix_fmt,
        primaries=primaries,
        transfer=transfer,
    )


def refuse_unknown_matrix(path: str, tags: ColorTags) -> None:
    """Refuses a YUV stream whose matrix cannot be converted exactly.

    Raises:
        DataError: If libswscale has no such matrix.
    """
    if tags.is_rgb or tags.applied_matrix in _SWSCALE_MATRIX:
        return
    name = MATRICES.get(tags.matrix, str(tags.matrix))
    raise DataError(
        f"cannot read {path}: its colour matrix {name!r} has no exact conversion to RGB here",
        hint="convert it to BT.709 first (ffmpeg's zscale)",
        path=path,
        matrix=name,
    )


def yuv_from_rgb(frame: VideoFrame, pix_fmt: str) -> VideoFrame:
    """Converts full-range RGB to limited-range BT.709 YUV.

    Args:
        frame: An rgb24 frame [H, W, 3].
        pix_fmt: The YUV format to make.
    """
    return frame.reformat(
        format=pix_fmt,
        src_colorspace=Colorspace.ITU709,
        dst_colorspace=Colorspace.ITU709,
        src_color_range=ColorRange.JPEG,
        dst_color_range=ColorRange.MPEG,
        interpolation=_FLAGS,
    )


def rgb_from_yuv(frame: VideoFrame, tags: ColorTags) -> VideoFrame:
    """Converts a decoded frame to full-range RGB with the matrix and range of its stream.

    Args:
        frame: The frame as decoded, YUV or RGB.
        tags: What the stream says; an unnamed matrix counts as BT.709.
    """
    if tags.is_rgb:
        return frame.reformat(format="rgb24", interpolation=_FLAGS)
    matrix = _SWSCALE_MATRIX[tags.applied_matrix]
    return frame.reformat(
        format="rgb24",
        src_colorspace=matrix,
        dst_colorspace=matrix,
        src_color_range=ColorRange.JPEG if tags.is_full_range else ColorRange.MPEG,
        dst_color_range=ColorRange.JPEG,
        interpolation=_FLAGS,
    )
