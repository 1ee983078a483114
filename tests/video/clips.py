"""Clips and files that the video tests share. Everything is made by real encoders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray


def smooth_clip(frames: int = 12, height: int = 64, width: int = 96) -> NDArray[np.uint8]:
    """Smooth colour waves that move: uint8 [T, H, W, 3]."""
    t, y, x = np.meshgrid(
        np.arange(frames), np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij"
    )
    red = 0.5 + 0.5 * np.sin(3 * x + 0.1 * t)
    green = 0.5 + 0.5 * np.cos(4 * y - 0.1 * t)
    blue = 0.5 + 0.4 * np.sin(2 * (x + y) + 0.2 * t)
    return np.rint(255 * np.stack([red, green, blue], axis=-1)).astype(np.uint8)


def smooth_codes(frames: int = 12, height: int = 64, width: int = 96) -> NDArray[np.uint16]:
    """The same waves as 10-bit code values: uint16 [T, H, W, 3]."""
    t, y, x = np.meshgrid(
        np.arange(frames), np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij"
    )
    red = 0.5 + 0.5 * np.sin(3 * x + 0.1 * t)
    green = 0.5 + 0.5 * np.cos(4 * y - 0.1 * t)
    blue = 0.5 + 0.4 * np.sin(2 * (x + y) + 0.2 * t)
    return np.rint(1023 * np.stack([red, green, blue], axis=-1)).astype(np.uint16)


def psnr_db(found: NDArray[Any], expected: NDArray[Any], white: int = 255) -> float:
    """Peak signal-to-noise ratio over all values, in dB."""
    error = np.mean((found.astype(np.float64) - expected) ** 2)
    return float(10 * np.log10(white**2 / error))


def encode_planes(
    path: Path,
    planes: list[NDArray[Any]],
    pix_fmt: str,
    *,
    codec: str = "ffv1",
    tags: dict[str, int] | None = None,
    frames: int = 2,
) -> Path:
    """Writes frames whose stored planes are exactly these, losslessly."""
    height, width = planes[0].shape
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=24)
        stream.height, stream.width, stream.pix_fmt = height, width, pix_fmt
        for name, value in (tags or {}).items():
            setattr(stream.codec_context, name, value)
        for index in range(frames):
            frame = av.VideoFrame(width, height, pix_fmt)
            for target, values in zip(frame.planes, planes, strict=True):
                lines = np.frombuffer(bytes(target), values.dtype).reshape(target.height, -1).copy()
                lines[:, : values.shape[1]] = values
                target.update(lines.tobytes())
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def encode_raw(
    path: Path,
    clip: NDArray[np.uint8],
    *,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    tags: dict[str, int] | None = None,
    convert: Callable[[Any], Any] | None = None,
    options: dict[str, str] | None = None,
    codec_options: dict[str, str] | None = None,
) -> Path:
    """Writes a file with PyAV alone, with any tags, as other tools would."""
    with av.open(str(path), "w", options=options or {}) as container:
        stream = container.add_stream(codec, rate=24)
        stream.height, stream.width = clip.shape[1:3]
        stream.pix_fmt = pix_fmt
        stream.codec_context.options = codec_options or {}
        for name, value in (tags or {}).items():
            setattr(stream.codec_context, name, value)
        for index, picture in enumerate(clip):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame = convert(frame) if convert else frame.reformat(format=pix_fmt)
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path
