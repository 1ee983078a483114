"""What every writer shares: encode under a temporary name, read back, then publish.

Which frames an encoder is given, and how they are converted, is the writers' part. Invariant: under
the final name there is a complete file or what was there before; the record beside a video never
describes another video.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from fleetcraft.errors import DataError, UsageError
from fleetcraft.files import replace_atomically
from fleetcraft.video.banner import Banner, find_banner
from fleetcraft.video.color import CONVERTER_FLAGS
from fleetcraft.video.encoder import EncoderRecord, EncoderSettings, encoder_record_path
from fleetcraft.video.metadata import ContentLight, MasteringDisplay
from fleetcraft.video.pyav import VideoFrame, av, file_url, translated
from fleetcraft.video.tags import (
    BT709,
    BT2020,
    LIMITED,
    MATRICES,
    PRIMARIES,
    RANGES,
    SMPTE2084,
    TRANSFERS,
)

CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a file says about its colours, as H.273 code points, and its static metadata."""

    matrix: int = BT709
    primaries: int = BT709
    transfer: int = BT709
    mastering_display: MasteringDisplay | None = None
    content_light: ContentLight | None = None


HDR10 = Look(matrix=BT2020, primaries=BT2020, transfer=SMPTE2084)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One clip to encode.

    Attributes:
        path: The final name.
        size: Frames, height, width.
        rate: Frames per second.
        settings: What to encode with.
        look: What the file says about its colours.
        picture: The frame of an index, converted to the encoder's pixel format.
    """

    path: Path
    size: tuple[int, int, int]
    rate: Fraction
    settings: EncoderSettings
    look: Look
    picture: Callable[[int], VideoFrame]


def container_format(path: Path) -> str:
    """The container that a suffix means.

    Raises:
        UsageError: If it means none.
    """
    found = CONTAINERS.get(path.suffix.lower())
    if found is None:
        raise UsageError(
            f"cannot write {path}: unknown video suffix {path.suffix!r}",
            hint=f"use one of {' '.join(CONTAINERS)}",
        )
    return found


def frame_rate(fps: float | Fraction) -> Fraction:
    """Frames per second as every container can hold them.

    Raises:
        UsageError: If it is not a number above 0.
    """
    if not math.isfinite(fps) or fps <= 0:
        raise UsageError(f"fps is {fps}, expected a number above 0", fps=float(fps))
    # 65535 keeps 24000/1001 exact and fits the time scales of every container.
    return Fraction(fps).limit_denominator(65535)


def check_size(shape: tuple[int, ...], pix_fmt: str) -> tuple[int, int, int]:
    """Frames, height and width of [T, H, W, 3].

    Raises:
        DataError: If halved chroma cannot have this size.
    """
    count, height, width = shape[:3]
    if pix_fmt.startswith("yuv420p") and (height % 2 or width % 2):
        other = pix_fmt.replace("420", "444")
        raise DataError(
            f"cannot write {width}x{height} frames as {pix_fmt}: width and height must be even",
            hint=f"pad or crop by one pixel, or use EncoderSettings(pix_fmt={other!r})",
            width=width,
            height=height,
        )
    return count, height, width


def write_and_publish(job: Job) -> EncoderRecord:
    """Encodes a clip, reads it back, and puts it under its name with its record beside it.

    Raises:
        UsageError: If the suffix is of no container.
        DataError: If encoding fails or what came out is not the whole clip; under the final name
            nothing changed then.
    """
    container = container_format(job.path)
    note_path = encoder_record_path(job.path)
    with _temporary_beside(job.path) as video, _temporary_beside(job.path) as note:
        banner = _encode(video, container, job)
        check_written(video, job.path, job.size[0])
        record = _record(job, banner)
        _write_note(note, record)
        # A crash between these steps leaves a video without a record, never with a wrong one.
        note_path.unlink(missing_ok=True)
        replace_atomically(str(video), str(job.path))
        replace_atomically(str(note), str(note_path))
    return record


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """A name in the same folder that is gone afterwards unless it was moved away."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _encode(target: Path, container_name: str, job: Job) -> Banner | None:
    """Encodes all frames; returns the encoder's own words about its version and options."""
    banner = None
    with (
        translated(str(target.parent), "write a video in"),
        av.open(file_url(str(target)), "w", format=container_name) as container,
    ):
        stream = container.add_stream(job.settings.codec, rate=job.rate)
        _configure(stream, job)
        for packet in _packets(stream, job):
            banner = banner or find_banner(bytes(packet))
            container.mux(packet)
        banner = banner or find_banner(bytes(stream.codec_context.extradata or b""))
    return banner


def _configure(stream: Any, job: Job) -> None:
    _, stream.height, stream.width = job.size
    stream.pix_fmt = job.settings.pix_fmt
    context = stream.codec_context
    context.thread_count = job.settings.threads
    context.options = _options(job)
    look = job.look
    context.colorspace, context.color_primaries = look.matrix, look.primaries
    context.color_trc = look.transfer
    context.color_range = LIMITED
    if job.settings.codec == "libx265" and container_format(job.path) != "matroska":
        context.codec_tag = "hvc1"  # hev1, the default, is not played by Apple's players


def _options(job: Job) -> dict[str, str]:
    options, look = dict(job.settings.options), job.look
    words = []
    if look.mastering_display is not None:
        words.append(f"master-display={look.mastering_display.x265_words}")
    if look.content_light is not None:
        words.append(f"max-cll={look.content_light.x265_words}")
    if words:
        options["x265-params"] = ":".join([options["x265-params"], "hdr10=1", *words])
    return options


def _packets(stream: Any, job: Job) -> Iterator[Any]:
    for index in range(job.size[0]):
        frame = job.picture(index)
        frame.pts = index
        yield from stream.encode(frame)
    yield from stream.encode(None)


def check_written(temporary: Path, path: Path, expected: int) -> None:
    """Decodes what was written and counts.

    Args:
        temporary: The file as the encoder left it.
        path: The name it is to get, for the message.
        expected: Frames that were given to the encoder.

    Raises:
        DataError: If it is empty, cannot be read, or has another number of frames.
    """
    found = 0
    if os.path.getsize(temporary):
        with translated(str(path), "read back"), av.open(file_url(str(temporary))) as container:
            if container.streams.video:
                found = sum(not frame.is_corrupt for frame in container.decode(video=0))
    if found != expected:
        raise DataError(
            f"cannot write {path}: the encoder gave {found} of {expected} frames",
            hint="the disk may be full, or the encoder failed without saying so",
            found=found,
            expected=expected,
        )


def _write_note(note: Path, record: EncoderRecord) -> None:
    with translated(str(note.parent), "write an encoder record in"):
        note.write_bytes(record.to_json())


def _record(job: Job, banner: Banner | None) -> EncoderRecord:
    def version(library: str) -> str:
        return ".".join(str(part) for part in av.library_versions[library])

    return EncoderRecord(
        settings=job.settings,
        encoder_version=banner.version if banner else None,
        encoder_options=banner.options if banner else None,
        libavcodec=version("libavcodec"),
        libswscale=version("libswscale"),
        pyav=av.__version__,
        converter=CONVERTER_FLAGS,
        matrix=MATRICES[job.look.matrix],
        primaries=PRIMARIES[job.look.primaries],
        transfer=TRANSFERS[job.look.transfer],
        color_range=RANGES[LIMITED],
        mastering_display=job.look.mastering_display,
        content_light=job.look.content_light,
    )
