"""Writing: frames to an 8-bit BT.709 file, or to a 10-bit HDR10 one.

Checking and scaling of frames is in `frames`, encoding and publishing in `encoding`. Invariant:
what a file is tagged with is what its frames were converted to.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from fleetcraft.errors import UsageError
from fleetcraft.video.color import RGB48_WHITE, yuv_from_rgb
from fleetcraft.video.encoder import EncoderRecord, EncoderSettings
from fleetcraft.video.encoding import (
    HDR10,
    Job,
    Look,
    check_size,
    container_format,
    frame_rate,
    write_and_publish,
)
from fleetcraft.video.frames import as_pq_frames, as_uint8_frames
from fleetcraft.video.metadata import ContentLight, MasteringDisplay
from fleetcraft.video.profiles import PROFILES
from fleetcraft.video.pyav import VideoFrame

DEFAULT_ENCODER = EncoderSettings()
HDR10_ENCODER = PROFILES["hevc-hdr10-v1"]


def write_video(
    path: str | Path,
    frames: Any,
    *,
    fps: float | Fraction,
    encoder: EncoderSettings = DEFAULT_ENCODER,
) -> EncoderRecord:
    """Writes frames as an 8-bit H.264 file in BT.709, limited range.

    Args:
        path: Where to; .mp4, .m4v, .mov or .mkv. An existing file is replaced.
        frames: [T, H, W, 3], uint8 or float in [0, 1]; see `as_uint8_frames`.
        fps: Frames per second, above 0.
        encoder: What to encode with; of 8 bits.

    Returns:
        What it was encoded with, also written to ``NAME.encoder.json`` beside the file.

    Raises:
        UsageError: If the suffix, the frame rate or the encoder cannot be used.
        DataError: If the frames are not what they should be, or encoding fails; nothing is left
            under the final name then that was not there before.
    """
    path = Path(path)
    container_format(path)
    rate = frame_rate(fps)
    _require_bits(encoder, 8, "write_video", "write_hdr10_video writes 10 bits")
    pixels = as_uint8_frames(frames)
    look = Look()

    def picture(index: int) -> VideoFrame:
        rgb = VideoFrame.from_ndarray(pixels[index], format="rgb24")
        return yuv_from_rgb(rgb, encoder.pix_fmt, look.matrix)

    size = check_size(pixels.shape, encoder.pix_fmt)
    return write_and_publish(
        Job(path=path, size=size, rate=rate, settings=encoder, look=look, picture=picture)
    )


def write_hdr10_video(
    path: str | Path,
    frames: Any,
    *,
    fps: float | Fraction,
    bits: int | None = None,
    encoder: EncoderSettings = HDR10_ENCODER,
    mastering_display: MasteringDisplay | None = None,
    content_light: ContentLight | None = None,
) -> EncoderRecord:
    """Writes PQ frames as 10-bit HEVC in BT.2020, non-constant luminance, limited range.

    Args:
        path: Where to; .mp4, .m4v, .mov or .mkv. An existing file is replaced.
        frames: [T, H, W, 3] of BT.2020 RGB after the PQ curve: floats in [0, 1], or uint16 code
            values with `bits`. No curve and no gamut is applied here.
        fps: Frames per second, above 0.
        bits: Depth of uint16 code values, 10 to 16; more than 10 are rounded to 10.
        encoder: What to encode with; of 10 bits.
        mastering_display: The display the clip was graded on, if it is to be said.
        content_light: MaxCLL and MaxFALL, if they are to be said.

    Returns:
        What it was encoded with, also written to ``NAME.encoder.json`` beside the file. Metadata
        is part of it, so clips that are to be compared are given the same.

    Raises:
        UsageError: If the suffix, the frame rate, the depth or the encoder cannot be used.
        DataError: If the frames are not what they should be, or encoding fails; nothing is left
            under the final name then that was not there before.
    """
    path = Path(path)
    container_format(path)
    rate = frame_rate(fps)
    _require_bits(encoder, 10, "write_hdr10_video", "encoder_profile('hevc-hdr10-v1') is one")
    pixels = as_pq_frames(frames, bits=bits)
    look = replace(HDR10, mastering_display=mastering_display, content_light=content_light)

    def picture(index: int) -> VideoFrame:
        wide = pixels.picture(index, RGB48_WHITE)
        rgb = VideoFrame.from_ndarray(wide, format="rgb48le")
        return yuv_from_rgb(rgb, encoder.pix_fmt, look.matrix)

    size = check_size(pixels.array.shape, encoder.pix_fmt)
    return write_and_publish(
        Job(path=path, size=size, rate=rate, settings=encoder, look=look, picture=picture)
    )


def _require_bits(encoder: EncoderSettings, bits: int, who: str, hint: str) -> None:
    if encoder.bits != bits:
        raise UsageError(
            f"{who} cannot use {encoder.codec} ({encoder.bits} bits), expected {bits} bits",
            hint=hint,
            codec=encoder.codec,
        )
