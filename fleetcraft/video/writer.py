"""Writing: uint8 frames to an 8-bit BT.709 file, with the encoder's record beside it.

Checking and scaling of frames is in `frames`. Invariant: under the final name there is a complete
file or what was there before; the record beside a video never describes another video.
"""

from __future__ import annotations

import math
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetcraft.errors import DataError, UsageError
from fleetcraft.files import replace_atomically
from fleetcraft.video.color import BT709, CONVERTER_FLAGS, LIMITED, yuv_from_rgb
from fleetcraft.video.encoder import EncoderRecord, EncoderSettings, encoder_record_path
from fleetcraft.video.frames import as_uint8_frames
from fleetcraft.video.pyav import av, file_url, translated

_CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}
DEFAULT_ENCODER = EncoderSettings()
_BANNER = re.compile(rb"x264 - core ([^-]+?) - .*?options: ([ -~]+)", re.DOTALL)


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
        encoder: What to encode with.

    Returns:
        What it was encoded with, also written to ``NAME.encoder.json`` beside the file.

    Raises:
        UsageError: If the suffix or the frame rate cannot be used.
        DataError: If the frames are not what they should be, or encoding fails; nothing is left
            under the final name then that was not there before.
    """
    path = Path(path)
    container_format = _container_format(path)
    rate = _frame_rate(fps)
    pixels = as_uint8_frames(frames)
    _check_size(pixels, encoder.pix_fmt)
    with _temporary_beside(path) as video, _temporary_beside(path) as note:
        banner = _encode(video, container_format, pixels, rate, encoder)
        _check_written(video, path, len(pixels))
        record = _record(encoder, banner)
        note.write_bytes(record.to_json())
        # A crash between these steps leaves a video without a record, never with a wrong one.
        encoder_record_path(path).unlink(missing_ok=True)
        replace_atomically(str(video), str(path))
        replace_atomically(str(note), str(encoder_record_path(path)))
    return record


def _container_format(path: Path) -> str:
    found = _CONTAINERS.get(path.suffix.lower())
    if found is None:
        raise UsageError(
            f"cannot write {path}: unknown video suffix {path.suffix!r}",
            hint=f"use one of {' '.join(_CONTAINERS)}",
        )
    return found


def _frame_rate(fps: float | Fraction) -> Fraction:
    if not math.isfinite(fps) or fps <= 0:
        raise UsageError(f"fps is {fps}, expected a number above 0", fps=float(fps))
    # 65535 keeps 24000/1001 exact and fits the time scales of every container.
    return Fraction(fps).limit_denominator(65535)


def _check_size(pixels: NDArray[np.uint8], pix_fmt: str) -> None:
    height, width = pixels.shape[1:3]
    if pix_fmt == "yuv420p" and (height % 2 or width % 2):
        raise DataError(
            f"cannot write {width}x{height} frames as yuv420p: width and height must be even",
            hint="pad or crop by one pixel, or use EncoderSettings(pix_fmt='yuv444p')",
            width=width,
            height=height,
        )


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """A name in the same folder that is gone afterwards unless it was moved away."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _encode(
    target: Path,
    container_format: str,
    pixels: NDArray[np.uint8],
    rate: Fraction,
    encoder: EncoderSettings,
) -> tuple[str, str] | None:
    """Encodes all frames; returns the encoder's own words about its version and options."""
    banner = None
    with (
        translated(str(target.parent), "write a video in"),
        av.open(file_url(str(target)), "w", format=container_format) as container,
    ):
        stream = container.add_stream(encoder.codec, rate=rate)
        _configure(stream, pixels.shape, encoder)
        for packet in _packets(stream, pixels, encoder.pix_fmt):
            banner = banner or _BANNER.search(bytes(packet))
            container.mux(packet)
    if banner is None:
        return None
    return banner[1].decode("ascii"), banner[2].decode("ascii")


def _configure(stream: Any, shape: tuple[int, ...], encoder: EncoderSettings) -> None:
    stream.height, stream.width = shape[1:3]
    stream.pix_fmt = encoder.pix_fmt
    context = stream.codec_context
    context.thread_count = encoder.threads
    context.options = encoder.options
    context.colorspace = context.color_primaries = context.color_trc = BT709
    context.color_range = LIMITED


def _packets(stream: Any, pixels: NDArray[np.uint8], pix_fmt: str) -> Iterator[Any]:
    for index, picture in enumerate(pixels):
        frame = yuv_from_rgb(av.VideoFrame.from_ndarray(picture, format="rgb24"), pix_fmt)
        frame.pts = index
        yield from stream.encode(frame)
    yield from stream.encode(None)


def _check_written(temporary: Path, path: Path, expected: int) -> None:
    found = 0
    if os.path.getsize(temporary):
        with translated(str(path), "read back"), av.open(file_url(str(temporary))) as container:
            found = sum(packet.size > 0 for packet in container.demux(video=0))
    if found != expected:
        raise DataError(
            f"cannot write {path}: the encoder gave {found} of {expected} frames",
            found=found,
            expected=expected,
        )


def _record(encoder: EncoderSettings, banner: tuple[str, str] | None) -> EncoderRecord:
    def version(library: str) -> str:
        return ".".join(str(part) for part in av.library_versions[library])

    return EncoderRecord(
        settings=encoder,
        encoder_version=f"x264 core {banner[0]}" if banner else None,
        encoder_options=banner[1] if banner else None,
        libavcodec=version("libavcodec"),
        libswscale=version("libswscale"),
        pyav=av.__version__,
        converter=CONVERTER_FLAGS,
    )
