"""Whether a file is whole: every frame decoded and counted, and its encoder record compared.

Invariant: what is wrong with a file is an answer, not an error; what could not be looked at is
unreadable, which is neither whole nor broken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from fleetcraft.errors import DataError
from fleetcraft.video.banner import Banner, find_banner
from fleetcraft.video.color import codes_from_frame, has_known_matrix
from fleetcraft.video.encoder import EncoderRecord, encoder_record_path, read_encoder_record
from fleetcraft.video.pyav import av, file_url, translated
from fleetcraft.video.reader import VideoInfo, inspect_video, walk_frames
from fleetcraft.video.tags import Deep

# Of white. A coder may lift a black of level 1 by some levels.
_ALMOST_BLACK = 4 / 255
_CODEC_OF = {"libx264": "h264", "libx265": "hevc"}


class Verdict(StrEnum):
    """What a check came to."""

    WHOLE = "whole"
    BROKEN = "broken"
    UNREADABLE = "unreadable"


class RecordState(StrEnum):
    """What is known of a file's encoder record."""

    MATCHING = "matching"
    DIFFERING = "differing"
    MISSING = "missing"
    UNREADABLE = "unreadable"


class Black(StrEnum):
    """Whether a clip shows anything."""

    NO = "no"
    ALMOST = "almost"
    ALL = "all"


@dataclass(frozen=True, kw_only=True)
class RecordFacts:
    """An encoder record and how far it agrees with the file beside it.

    Attributes:
        state: What is known of it.
        record: The record; None where it is missing or unreadable.
        differs: What the record says otherwise than the file, as "field: record, file".
    """

    state: RecordState
    record: EncoderRecord | None = None
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found out about one file.

    Attributes:
        path: The file.
        verdict: What it came to.
        reasons: Why it is not whole; empty where it is.
        info: What it says before decoding; None where it could not be read.
        size_bytes: Its size; None where there is no such file.
        frames: Frames that were decoded, up to the damage if there is some.
        brightest_fraction: The brightest value of all channels, 0 to 1; None where no frame was
            decoded or its colour matrix has no exact conversion.
        mean_fraction: The mean of all values, likewise.
        black: Whether it shows anything; None where that is not known.
        record: Its encoder record.
    """

    path: str
    verdict: Verdict
    reasons: tuple[str, ...]
    info: VideoInfo | None
    size_bytes: int | None
    frames: int
    brightest_fraction: float | None
    mean_fraction: float | None
    black: Black | None
    record: RecordFacts


def check_video(path: str | Path, *, progress: Callable[[int], None] | None = None) -> Checked:
    """Decodes a whole file and says whether anything is wrong with it.

    Args:
        path: The file.
        progress: Called with the number of frames so far, after each.

    Returns:
        What was found; damage and a missing file too.
    """
    path = str(path)
    size_bytes = _size_bytes(path)
    try:
        info = inspect_video(path)
    except DataError as error:
        return _unreadable(path, error, size_bytes)
    light, reasons = _Light(), []
    try:
        for frame, tags in walk_frames(path, Deep.KEEP):
            light.frames += 1
            if has_known_matrix(tags):
                light.add(codes_from_frame(frame, tags), tags.bits)
            if progress is not None:
                progress(light.frames)
    except DataError as error:
        reasons.append(error.message)
    record = encoder_record_state(path, info)
    if record.state is RecordState.DIFFERING:
        reasons.append(f"its encoder record is of another file: {'; '.join(record.differs)}")
    elif record.state is RecordState.UNREADABLE:
        reasons.append("its encoder record cannot be read")
    return Checked(
        path=path,
        verdict=Verdict.BROKEN if reasons else Verdict.WHOLE,
        reasons=tuple(reasons),
        info=info,
        size_bytes=size_bytes,
        frames=light.frames,
        brightest_fraction=light.brightest,
        mean_fraction=light.mean,
        black=light.black,
        record=record,
    )


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What a file says about itself.

    Attributes:
        path: The file.
        info: What it says; None where it could not be read.
        reason: Why it could not, else empty.
        record: Its encoder record.
        size_bytes: Its size; None where there is no such file.
    """

    path: str
    info: VideoInfo | None
    reason: str
    record: RecordFacts
    size_bytes: int | None


def probe_video(path: str | Path) -> Probed:
    """Says what a file says about itself, without decoding it.

    Args:
        path: The file.

    Returns:
        What was found; a file that cannot be read too.
    """
    path = str(path)
    size_bytes = _size_bytes(path)
    try:
        info = inspect_video(path)
    except DataError as error:
        bare = RecordFacts(state=_bare_state(path))
        return Probed(
            path=path, info=None, reason=error.message, record=bare, size_bytes=size_bytes
        )
    record = encoder_record_state(path, info)
    return Probed(path=path, info=info, reason="", record=record, size_bytes=size_bytes)


def encoder_record_state(path: str | Path, info: VideoInfo) -> RecordFacts:
    """Compares the record beside a file with what the file says, its encoder's words included.

    Args:
        path: The video.
        info: What it says about itself.
    """
    if not encoder_record_path(Path(path)).exists():
        return RecordFacts(state=RecordState.MISSING)
    try:
        record = read_encoder_record(path)
        banner = _banner_of(str(path))
    except DataError:
        return RecordFacts(state=RecordState.UNREADABLE)
    pairs = {
        "codec": (_CODEC_OF[record.settings.codec], info.codec),
        "pix_fmt": (record.settings.pix_fmt, info.pix_fmt),
        "matrix": (record.matrix, info.matrix),
        "primaries": (record.primaries, info.primaries),
        "transfer": (record.transfer, info.transfer),
        "color_range": (record.color_range, info.color_range),
        "encoder_version": (record.encoder_version, banner.version if banner else None),
    }
    differs = [f"{k}: {a}, {b}" for k, (a, b) in pairs.items() if a != b]
    if banner is not None and banner.options != record.encoder_options:
        differs.append("encoder_options: others than in the bitstream")
    state = RecordState.DIFFERING if differs else RecordState.MATCHING
    return RecordFacts(state=state, record=record, differs=tuple(differs))


class _Light:
    """How bright a clip is, frame by frame."""

    def __init__(self) -> None:
        self.frames = 0
        self.brightest: float | None = None
        self._sum = 0.0
        self._measured = 0

    def add(self, codes: np.ndarray, bits: int) -> None:
        white = (1 << bits) - 1
        self.brightest = max(self.brightest or 0.0, float(codes.max()) / white)
        self._sum += float(codes.mean()) / white
        self._measured += 1

    @property
    def mean(self) -> float | None:
        return self._sum / self._measured if self._measured else None

    @property
    def black(self) -> Black | None:
        if self.brightest is None:
            return None
        if self.brightest == 0:
            return Black.ALL
        return Black.ALMOST if self.brightest <= _ALMOST_BLACK else Black.NO


def _unreadable(path: str, error: DataError, size_bytes: int | None) -> Checked:
    return Checked(
        path=path,
        verdict=Verdict.UNREADABLE,
        reasons=(error.message,),
        info=None,
        size_bytes=size_bytes,
        frames=0,
        brightest_fraction=None,
        mean_fraction=None,
        black=None,
        record=RecordFacts(state=_bare_state(path)),
    )


def _size_bytes(path: str) -> int | None:
    return Path(path).stat().st_size if Path(path).is_file() else None


def _bare_state(path: str) -> RecordState:
    """The state of a record whose video cannot be read: missing, or not to be told."""
    there = encoder_record_path(Path(path)).exists()
    return RecordState.UNREADABLE if there else RecordState.MISSING


def _banner_of(path: str) -> Banner | None:
    with translated(path, "read"), av.open(file_url(path)) as container:
        stream = container.streams.video[0]
        found = find_banner(bytes(stream.codec_context.extradata or b""))
        for packet in container.demux(stream):
            return found or find_banner(bytes(packet))
        return found
