"""The explicit conversions between RGB and YUV, at 8 bits and deeper.

No file is opened here; what streams say about themselves is in `tags`. Invariant: every conversion
names its matrix and its ranges; tags only describe what was done, they never do it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetcraft.errors import DataError
from fleetcraft.video.pyav import ColorRange, Colorspace, Interpolation, VideoFrame
from fleetcraft.video.tags import MATRICES, ColorTags

# The matrices that libswscale converts, by tag; 5 and 6 are both BT.601.
_SWSCALE_MATRIX = {
    1: Colorspace.ITU709,
    4: Colorspace.FCC,
    5: Colorspace.ITU601,
    6: Colorspace.ITU601,
    7: Colorspace.SMPTE240M,
    9: Colorspace.BT2020,
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

RGB48_WHITE = 255 << 8
"""White of libswscale's 16-bit RGB next to limited-range YUV: 255 shifted, not 65535.

Measured with PyAV 18.1: 65280 and nothing else gives luma 940 in 10 bits and comes back from it.
"""


def refuse_unknown_matrix(path: str, tags: ColorTags) -> None:
    """Refuses a YUV stream whose matrix cannot be converted exactly.

    Raises:
        DataError: If libswscale has no such matrix.
    """
    if has_known_matrix(tags):
        return
    name = MATRICES.get(tags.matrix, str(tags.matrix))
    raise DataError(
        f"cannot read {path}: its colour matrix {name!r} has no exact conversion to RGB here",
        hint="convert it to BT.709 first (ffmpeg's zscale)",
        path=path,
        matrix=name,
    )


def has_known_matrix(tags: ColorTags) -> bool:
    """Whether a stream can be converted to RGB exactly."""
    return tags.is_rgb or tags.applied_matrix in _SWSCALE_MATRIX


def yuv_from_rgb(frame: VideoFrame, pix_fmt: str, matrix: int) -> VideoFrame:
    """Converts full-range RGB to limited-range YUV.

    Args:
        frame: An rgb24 frame [H, W, 3], or rgb48le whose white is `RGB48_WHITE`.
        pix_fmt: The YUV format to make.
        matrix: The colour matrix, by tag: 1 is BT.709, 9 BT.2020 non-constant luminance.
    """
    return _reformat(frame, pix_fmt, _SWSCALE_MATRIX[matrix], ColorRange.JPEG, ColorRange.MPEG)


def rgb_from_frame(frame: VideoFrame, tags: ColorTags) -> NDArray[np.uint8]:
    """A decoded frame of 8 bits as full-range RGB, by the matrix and range of its stream.

    Args:
        frame: The frame as decoded, YUV or RGB.
        tags: What the stream says; an unnamed matrix counts as BT.709.

    Returns:
        uint8 [H, W, 3].
    """
    return _as_rgb(frame, tags, "rgb24").to_ndarray()  # type: ignore[return-value]


def codes_from_frame(frame: VideoFrame, tags: ColorTags) -> NDArray[np.uint16]:
    """A decoded frame as full-range RGB code values of its own depth.

    Every luma level of a gray ramp stays a level of its own.

    Args:
        frame: The frame as decoded, of 8 to 16 bits.
        tags: What the stream says; an unnamed matrix counts as BT.709.

    Returns:
        uint16 [H, W, 3], 0 to ``2**tags.bits - 1``.
    """
    wide: NDArray[Any] = _as_rgb(frame, tags, "rgb48le").to_ndarray()
    most = (1 << tags.bits) - 1
    if tags.is_rgb:
        # The low bits are a repetition of the high ones, which rounding would carry over.
        return (wide >> (16 - tags.bits)).astype(np.uint16)
    if tags.is_full_range:
        codes = wide.astype(np.float64) / (1 << (16 - tags.bits))
    else:
        codes = wide.astype(np.float64) * (most / RGB48_WHITE)
    return np.minimum(np.rint(codes), most).astype(np.uint16)


def rounded_to_8_bits(codes: NDArray[np.uint16], bits: int) -> NDArray[np.uint8]:
    """Code values of any depth as uint8, each rounded to the nearest.

    Args:
        codes: Code values, 0 to ``2**bits - 1``.
        bits: Their depth.
    """
    scaled = codes.astype(np.float64) * (255 / ((1 << bits) - 1))
    return np.rint(scaled).astype(np.uint8)


def _as_rgb(frame: VideoFrame, tags: ColorTags, pix_fmt: str) -> VideoFrame:
    if tags.is_rgb:
        return frame.reformat(format=pix_fmt, interpolation=_FLAGS, threads=1)
    source = ColorRange.JPEG if tags.is_full_range else ColorRange.MPEG
    matrix = _SWSCALE_MATRIX[tags.applied_matrix]
    return _reformat(frame, pix_fmt, matrix, source, ColorRange.JPEG)


def _reformat(
    frame: VideoFrame, pix_fmt: str, matrix: Colorspace, source: ColorRange, target: ColorRange
) -> VideoFrame:
    return frame.reformat(
        format=pix_fmt,
        src_colorspace=matrix,
        dst_colorspace=matrix,
        src_color_range=source,
        dst_color_range=target,
        interpolation=_FLAGS,
        threads=1,
    )
