"""Reading: a video file as RGB frames, whole or one at a time.

What a stream says about its colours is looked at before anything is decoded. Measuring and
comparing videos is not done here. Invariant: either every frame of the file comes out, or an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fleetcraft.errors import DataError
from fleetcraft.video.color import (
    codes_from_frame,
    refuse_unknown_matrix,
    rgb_from_frame,
    rounded_to_8_bits,
)
from fleetcraft.video.matroska import missing_bytes
from fleetcraft.video.pyav import av, file_url, translated
from fleetcraft.video.tags import (
    MATRICES,
    RANGES,
    UNSPECIFIED,
    ColorTags,
    Deep,
    pass_gate,
)

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_BROKEN = "the file is damaged or its writer was interrupted: make it again"
DECODER_THREADS = 4


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
        bits: Bits of the deepest channel.
        is_hdr: Whether it is PQ or HLG.
        is_wide_gamut: Whether its colours span more than BT.709, as BT.2020 and P3 do.
        container: Name of the container's format.
        frames_promised: How many frames its container says that it holds; None if it does not.
        duration_s: How long its container says that it is; None if it does not.
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
    bits: int
    is_hdr: bool
    is_wide_gamut: bool
    container: str
    frames_promised: int | None
    duration_s: float | None


@dataclass(frozen=True, kw_only=True)
class Video:
    """A decoded video.

    Attributes:
        frames: RGB [T, H, W, 3]: uint8, or uint16 code values where they were kept. Display
            rotation is not applied.
        bits: Depth of these values: they span 0 to ``2**bits - 1``.
        info: What the file says about it.
    """

    frames: NDArray[Any]
    info: VideoInfo
    bits: int = 8

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


def read_video(path: str | Path, *, deep: Deep | str = Deep.REFUSE) -> Video:
    """Reads a whole video.

    Args:
        path: The file.
        deep: What is to become of HDR, a wide gamut and more than 8 bits: ``refuse``, ``keep``
            them as uint16 code values of the file's own depth (of any file, so of 8 bits too), or
            ``flatten`` to 8 bits what is BT.709 without HDR.

    Returns:
        All frames as RGB [T, H, W, 3], with their depth and what the file says about them.

    Raises:
        UsageError: If `deep` is none of these.
        DataError: If the file is missing, empty, truncated, has no video, or is what `deep` does
            not allow; nothing was decoded then.
    """
    deep = Deep.parse(deep)
    info = inspect_video(path)
    frames = np.stack(list(iter_frames(path, deep=deep)))
    return Video(frames=frames, info=info, bits=info.bits if deep is Deep.KEEP else 8)


def inspect_video(path: str | Path) -> VideoInfo:
    """Reads what a file says about its video stream, HDR and deep ones too, without decoding.

    Args:
        path: The file.

    Raises:
        DataError: If it is missing, empty, no video, or its header is damaged.
    """
    path = str(path)
    with _opened(path) as container:
        return _info(path, container, _video_stream(path, container))


def iter_frames(path: str | Path, *, deep: Deep | str = Deep.REFUSE) -> Iterator[NDArray[Any]]:
    """Decodes frame by frame, so that a long video need not fit in memory.

    Args:
        path: The file.
        deep: As in `read_video`.

    Returns:
        RGB frames [H, W, 3], all of one size: uint8, or uint16 code values where they are kept.

    Raises:
        UsageError: If `deep` is unknown.
        DataError: As `read_video`; damage is found when the iterator reaches it.
    """
    return _rgb_frames(str(path), Deep.parse(deep))


def _rgb_frames(path: str, deep: Deep) -> Iterator[NDArray[Any]]:
    passed = None
    for frame, tags in walk_frames(path, deep):
        if tags != passed:
            refuse_unknown_matrix(path, tags)
            passed = tags
        if deep is Deep.KEEP:
            yield codes_from_frame(frame, tags)
        elif tags.bits > 8:
            yield rounded_to_8_bits(codes_from_frame(frame, tags), tags.bits)
        else:
            yield rgb_from_frame(frame, tags)


def walk_frames(path: str, deep: Deep) -> Iterator[tuple[VideoFrame, ColorTags]]:
    """Decodes every frame, unconverted, with what is true of its colours.

    Args:
        path: The file.
        deep: What may pass.

    Yields:
        A frame as decoded, and the tags of its stream.

    Raises:
        DataError: As `read_video`.
    """
    with _opened(path) as container, translated(path, "decode", _BROKEN):
        stream = _video_stream(path, container)
        context = stream.codec_context
        context.thread_count = DECODER_THREADS
        tags = _stream_tags(path, context)
        pass_gate(path, tags, deep)
        size = (context.width, context.height)
        count = _Count()
        for frame in count.decode(container, stream):
            _check_frame(path, frame, tags, size)
            pass_gate(path, _as_frame_says(tags, frame), deep)
            yield frame, tags
        if count.last is None:
            raise DataError(f"{path} has a video stream without frames", hint=_BROKEN, path=path)
        _check_reached_end(path, stream, count.last)
        _check_promise(path, stream, count)
        if container.format.name.startswith("matroska") and (missing := missing_bytes(path)):
            raise DataError(
                f"{path} is truncated: its last element lacks {missing} bytes",
                hint=_BROKEN,
                path=path,
            )


class _Count:
    """Decodes a stream and counts what came out and what was not meant to."""

    def __init__(self) -> None:
        self.frames = 0
        self.discarded = 0
        self.last: VideoFrame | None = None

    def decode(self, container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
        for packet in container.demux(stream):
            # An edit list starts a clip between two key frames; what leads up to it is not shown.
            self.discarded += bool(packet.size and packet.is_discard)
            for frame in packet.decode():
                self.frames += 1
                self.last = frame
                yield frame


def _opened(path: str) -> InputContainer:
    file = Path(path)
    if not path or file.is_fifo() or file.is_socket():  # nobody may ever write into a pipe
        what = "is no file but a pipe or a socket" if path else "is no name of a file"
        raise DataError(f"{path!r} {what}; it was not read", path=path)
    if file.is_file() and file.stat().st_size == 0:
        raise DataError(f"cannot read {path}: the file is empty (0 bytes)", hint=_BROKEN, path=path)
    with translated(path, "read", _BROKEN if file.is_file() else ""):
        # Titles and comments may be in any encoding, and nothing here looks at them.
        return av.open(file_url(path), metadata_errors="replace")


def _video_stream(path: str, container: InputContainer) -> VideoStream:
    if not container.streams.video:
        kinds: list[str] = sorted({stream.type for stream in container.streams}) or ["nothing"]
        raise DataError(
            f"cannot read {path}: it has no video stream, only {', '.join(kinds)}", path=path
        )
    stream = container.streams.video[0]
    if stream.codec_context is None:
        raise DataError(f"cannot read {path}: its codec is unknown", hint=_BROKEN, path=path)
    return stream


def _info(path: str, container: InputContainer, stream: VideoStream) -> VideoInfo:
    context = stream.codec_context
    tags = _stream_tags(path, context)
    rate = stream.average_rate or stream.guessed_rate or stream.base_rate
    if not rate:
        raise DataError(f"cannot read {path}: its frame rate is unknown", hint=_BROKEN, path=path)
    known = MATRICES.get(tags.applied_matrix, str(tags.applied_matrix))
    words = tags.words
    return VideoInfo(
        width=context.width,
        height=context.height,
        fps=rate,
        codec=context.name,
        pix_fmt=tags.pix_fmt,
        matrix="rgb" if tags.is_rgb else known,
        matrix_assumed=not tags.is_rgb and tags.applied_matrix != tags.matrix,
        primaries=words["primaries"],
        transfer=words["transfer"],
        color_range="full" if tags.says_full_range else RANGES.get(tags.range, "unspecified"),
        bits=tags.bits,
        is_hdr=tags.is_hdr,
        is_wide_gamut=tags.is_wide_gamut,
        container=container.format.name,
        frames_promised=stream.frames or None,
        duration_s=_duration_s(container, stream),
    )


def _duration_s(container: InputContainer, stream: VideoStream) -> float | None:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    promised_s = _promised_duration_s(stream)
    if promised_s is None and container.duration is not None:
        return container.duration / av.time_base
    return promised_s


def _stream_tags(path: str, context: VideoCodecContext) -> ColorTags:
    pixels = context.format
    if pixels is None or not context.width or not context.height:
        what = "pixel format" if pixels is None else "size"
        raise DataError(f"cannot read {path}: its {what} is unknown", hint=_BROKEN, path=path)
    return ColorTags(
        pix_fmt=pixels.name,
        bits=max(component.bits for component in pixels.components),
        is_rgb=pixels.is_rgb,
        is_gray=pixels.name.startswith(("gray", "ya", "mono")),
        primaries=int(context.color_primaries),
        transfer=int(context.color_trc),
        matrix=int(context.colorspace),
        range=int(context.color_range),
    )


def _as_frame_says(tags: ColorTags, frame: VideoFrame) -> ColorTags:
    """The stream's tags, with what the frame itself says where that is something."""

    def said(of_frame: int, of_stream: int) -> int:
        return of_stream if of_frame in (0, UNSPECIFIED) else int(of_frame)

    return replace(
        tags,
        primaries=said(frame.color_primaries, tags.primaries),
        transfer=said(frame.color_trc, tags.transfer),
        matrix=said(frame.colorspace, tags.matrix),
    )


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


def _check_promise(path: str, stream: VideoStream, count: _Count) -> None:
    expected = stream.frames - count.discarded
    if stream.frames and count.frames < expected:
        raise DataError(
            f"{path} is damaged: it has {count.frames} of the {expected} frames that it promises",
            hint=_BROKEN,
            path=path,
            found=count.frames,
            expected=expected,
        )


def _promised_duration_s(stream: VideoStream) -> float | None:
    """The stream's length that a Matroska muxer wrote as a tag, HH:MM:SS.fraction."""
    parts = stream.metadata.get("DURATION", "").split(":")
    try:
        hours, minutes, seconds = (float(part) for part in parts)
    except ValueError:
        return None
    return hours * 3600 + minutes * 60 + seconds
