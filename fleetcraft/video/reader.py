"""Reading: a video file as uint8 RGB frames, whole or one at a time.

What a stream says about its colours is looked at before anything is decoded. Measuring and
comparing videos is not done here. Invariant: either every frame of the file comes out, or an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fleetcraft.errors import DataError
from fleetcraft.video.color import (
    MATRICES,
    PRIMARIES,
    RANGES,
    TRANSFERS,
    ColorTags,
    refuse_unknown_matrix,
    refuse_what_8_bits_cannot_hold,
    rgb_from_yuv,
)
from fleetcraft.video.pyav import av, file_url, translated

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_BROKEN = "the file is damaged or its writer was interrupted: make it again"


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """What a file says about its video stream, before decoding.

    Attributes:
        width: Pixels across, W.
        height: Pixels down, H.
        fps: Average frames per second.
        codec: Name of the codec, as in h264.
        pix_fmt: Pixel format as stored.
        matrix: Colour matrix that decoding uses.
        matrix_assumed: True where the file names none and BT.709 is taken.
        primaries: Colour primaries as tagged.
        transfer: Transfer function as tagged.
        color_range: limited, full or unspecified (then limited is taken), as tagged.
    """

    width: int
    height: int
    fps: Fraction
    codec: str
    pix_fmt: str
    matrix: str
    matrix_assumed: bool
    primaries: str
    transfer: str
    color_range: str


@dataclass(frozen=True, kw_only=True)
class Video:
    """A decoded video.

    Attributes:
        frames: uint8 RGB [T, H, W, 3]. Display rotation is not applied.
        info: What the file says about it.
    """

    frames: NDArray[np.uint8]
    info: VideoInfo

    @property
    def fps(self) -> Fraction:
        """Average frames per second."""
        return self.info.fps

    @property
    def codec(self) -> str:
        """Name of the codec."""
        return self.info.codec

    @property
    def pix_fmt(self) -> str:
        """Pixel format as stored in the file."""
        return self.info.pix_fmt


def read_video(path: str | Path) -> Video:
    """Reads a whole 8-bit video.

    Args:
        path: The file.

    Returns:
        All frames as uint8 RGB [T, H, W, 3], with what the file says about them.

    Raises:
        DataError: If the file is missing, empty, truncated, has no video, or is HDR, wide gamut
            or deeper than 8 bits.
    """
    info = inspect_video(path)
    return Video(frames=np.stack(list(iter_frames(path))), info=info)


def inspect_video(path: str | Path) -> VideoInfo:
    """Reads what a file says about its video stream, and refuses what 8 bits cannot hold.

    Args:
        path: The file.

    Raises:
        DataError: As `read_video`, except that damage after the header is not found.
    """
    path = str(path)
    with _opened(path) as container:
        stream = _video_stream(path, container)
        tags = _stream_tags(path, stream.codec_context)
        if not stream.average_rate:
            raise DataError(f"cannot read {path}: its frame rate is unknown", hint=_BROKEN)
        return VideoInfo(
            width=stream.codec_context.width,
            height=stream.codec_context.height,
            fps=stream.average_rate,
            codec=stream.codec_context.name,
            pix_fmt=tags.pix_fmt,
            matrix="rgb" if tags.is_rgb else MATRICES[tags.applied_matrix],
            matrix_assumed=not tags.is_rgb and tags.applied_matrix != tags.matrix,
            primaries=PRIMARIES.get(tags.primaries, str(tags.primaries)),
            transfer=TRANSFERS.get(tags.transfer, str(tags.transfer)),
            color_range="full" if tags.is_full_range else RANGES.get(tags.range, "unspecified"),
        )


def iter_frames(path: str | Path) -> Iterator[NDArray[np.uint8]]:
    """Decodes frame by frame, so that a long video need not fit in memory.

    Args:
        path: The file.

    Yields:
        uint8 RGB frames [H, W, 3], all of one size.

    Raises:
        DataError: As `read_video`; damage is found when the iterator reaches it.
    """
    path = str(path)
    with _opened(path) as container, translated(path, "decode", _BROKEN):
        stream = _video_stream(path, container)
        tags = _stream_tags(path, stream.codec_context)
        size = (stream.codec_context.width, stream.codec_context.height)
        last = None
        for frame in container.decode(stream):
            _check_frame(path, frame, tags, size)
            last = frame
            yield rgb_from_yuv(frame, tags).to_ndarray()  # type: ignore[misc]
        if last is None:
            raise DataError(f"{path} has a video stream without frames", hint=_BROKEN, path=path)
        _check_reached_end(path, stream, last)


def _opened(path: str) -> InputContainer:
    file = Path(path)
    if file.is_file() and file.stat().st_size == 0:
        raise DataError(f"cannot read {path}: the file is empty (0 bytes)", hint=_BROKEN, path=path)
    with translated(path, "read", _BROKEN if file.is_file() else ""):
        return av.open(file_url(path))


def _video_stream(path: str, container: InputContainer) -> VideoStream:
    if not container.streams.video:
        kinds: list[str] = sorted({stream.type for stream in container.streams}) or ["nothing"]
        raise DataError(
            f"cannot read {path}: it has no video stream, only {', '.join(kinds)}", path=path
        )
    return container.streams.video[0]


def _stream_tags(path: str, context: VideoCodecContext) -> ColorTags:
    pixels = context.format
    if pixels is None:
        raise DataError(f"cannot read {path}: its pixel format is unknown", hint=_BROKEN, path=path)
    tags = ColorTags(
        pix_fmt=pixels.name,
        bits=max(component.bits for component in pixels.components),
        is_rgb=pixels.is_rgb,
        primaries=int(context.color_primaries),
        transfer=int(context.color_trc),
        matrix=int(context.colorspace),
        range=int(context.color_range),
    )
    refuse_what_8_bits_cannot_hold(path, tags)
    refuse_unknown_matrix(path, tags)
    return tags


def _check_frame(path: str, frame: VideoFrame, tags: ColorTags, size: tuple[int, int]) -> None:
    if frame.is_corrupt:
        raise DataError(f"cannot decode {path}: a frame is damaged", hint=_BROKEN, path=path)
    found = (frame.width, frame.height)
    if found != size or frame.format.name != tags.pix_fmt:
        raise DataError(
            f"cannot decode {path}: it changes from {size[0]}x{size[1]} {tags.pix_fmt} "
            f"to {found[0]}x{found[1]} {frame.format.name} on the way",
            hint="split it where it changes",
            path=path,
        )


def _check_reached_end(path: str, stream: VideoStream, last: VideoFrame) -> None:
    # MP4 fails by itself when samples are missing; Matroska just stops early, without an error.
    promised_s = _promised_duration_s(stream)
    if promised_s is None or stream.frames or last.pts is None or last.time_base is None:
        return
    rate = stream.average_rate or Fraction(1)
    end_s = (last.pts + last.duration) * last.time_base if last.duration else last.time + 1 / rate
    if end_s < promised_s - 0.5 / rate:
        raise DataError(
            f"{path} is truncated: it ends at {float(end_s):.3f} s of {promised_s:.3f} s",
            hint=_BROKEN,
            path=path,
        )


def _promised_duration_s(stream: VideoStream) -> float | None:
    """The stream's length that a Matroska muxer wrote as a tag, HH:MM:SS.fraction."""
    parts = stream.metadata.get("DURATION", "").split(":")
    try:
        hours, minutes, seconds = (float(part) for part in parts)
    except ValueError:
        return None
    return hours * 3600 + minutes * 60 + seconds
