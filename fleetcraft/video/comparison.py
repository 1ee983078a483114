"""Two videos beside one another: whether one encoder made both, and how far they are apart.

Quality metrics do not live here. Invariant: records are equal in every field or the pair is
refused, since an encoder alone has moved scores by more than what was to be measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fleetcraft.errors import DataError
from fleetcraft.video.encoder import EncoderRecord, read_encoder_record

_WORDS_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A field in which two encoder records differ.

    Attributes:
        field: Its name, as in ``settings.qp``.
        first: Its value in the first record, as text.
        second: Its value in the second one.
    """

    field: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.field} {self.first} against {self.second}"


def encoder_differences(first: EncoderRecord, second: EncoderRecord) -> tuple[Difference, ...]:
    """The fields in which two records differ; none when they are equal."""
    one, other = _flat(msgspec.to_builtins(first)), _flat(msgspec.to_builtins(second))
    found = []
    for field in dict.fromkeys([*one, *other]):
        a, b = one.get(field), other.get(field)
        if a != b:
            if field == "encoder_options":
                a, b = _other_words(a, b), _other_words(b, a)
            found.append(Difference(field=field, first=_text(a), second=_text(b)))
    return tuple(found)


def require_same_encoder(a: EncoderRecord | str | Path, b: EncoderRecord | str | Path) -> None:
    """Refuses to compare files that different encoders or settings made.

    Args:
        a: A record, or a video with its record beside it.
        b: The other one.

    Raises:
        DataError: If they differ, naming the fields; or if a video has no record.
    """
    first, second = (
        item if isinstance(item, EncoderRecord) else read_encoder_record(item) for item in (a, b)
    )
    differences = encoder_differences(first, second)
    if differences:
        names = [_name(item) for item in (a, b)]
        raise DataError(
            f"cannot compare {names[0]} with {names[1]}: their encoders differ in "
            f"{'; '.join(str(item) for item in differences)}; nothing was compared",
            hint="write both with one encoder_profile and one version of fleetcraft[video]",
            fields=[item.field for item in differences],
        )


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """How far two videos are apart.

    Attributes:
        frames: Frames that were compared.
        psnr_db: Peak signal-to-noise ratio over all values; infinite where they are equal, None
            where they could not be compared.
        reason: Why not, else empty.
    """

    frames: int
    psnr_db: float | None
    reason: str = ""


def compare_frames(first: str | Path, second: str | Path) -> Likeness:
    """Measures how far two videos of one size and length are apart.

    Code values are compared as fractions of their own depth, so 8 bits against 10 are comparable.

    Args:
        first: A video.
        second: Another.

    Raises:
        DataError: If one of them cannot be read.
    """
    # Here, so that the records can be compared without PyAV.
    from fleetcraft.video.reader import inspect_video, iter_frames
    from fleetcraft.video.tags import Deep

    one, other = inspect_video(first), inspect_video(second)
    if (one.width, one.height) != (other.width, other.height):
        sizes = f"{one.width}x{one.height} against {other.width}x{other.height}"
        return Likeness(frames=0, psnr_db=None, reason=f"sizes differ: {sizes}")
    if one.transfer != other.transfer and (one.is_hdr or other.is_hdr):
        curves = f"{one.transfer} against {other.transfer}"
        return Likeness(frames=0, psnr_db=None, reason=f"transfer functions differ: {curves}")
    whites = [(1 << info.bits) - 1 for info in (one, other)]
    count, total = 0, 0.0
    pairs = zip_longest(*(iter_frames(path, deep=Deep.KEEP) for path in (first, second)))
    for a, b in pairs:
        if a is None or b is None:
            return Likeness(frames=count, psnr_db=None, reason="numbers of frames differ")
        error = a.astype(np.float64) / whites[0] - b.astype(np.float64) / whites[1]
        total += float(np.mean(error * error))
        count += 1
    psnr_db = math.inf if total == 0 else -10 * math.log10(total / count)
    return Likeness(frames=count, psnr_db=psnr_db)


class Agreement(StrEnum):
    """Whether one encoder with one set of settings made two files."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One video against another.

    Attributes:
        path: The one.
        against: The other.
        encoders: Whether their encoder records are equal; unknown where one is missing.
        differences: The fields in which they differ.
        likeness: How far their pictures are apart; None where one cannot be read.
        reasons: What could not be found out, and why.
    """

    path: str
    against: str
    encoders: Agreement
    differences: tuple[Difference, ...]
    likeness: Likeness | None
    reasons: tuple[str, ...]


def compare_videos(path: str | Path, against: str | Path) -> Compared:
    """Compares the encoder records of two videos, and their pictures where sizes agree.

    Args:
        path: A video.
        against: Another.

    Returns:
        What was found; that a file cannot be read is an answer too.
    """
    reasons, likeness = [], None
    differences: tuple[Difference, ...] = ()
    try:
        differences = encoder_differences(read_encoder_record(path), read_encoder_record(against))
        encoders = Agreement.DIFFERENT if differences else Agreement.SAME
    except DataError as error:
        encoders = Agreement.UNKNOWN
        reasons.append(error.message)
    try:
        likeness = compare_frames(path, against)
    except DataError as error:
        reasons.append(error.message)
    return Compared(
        path=str(path),
        against=str(against),
        encoders=encoders,
        differences=differences,
        likeness=likeness,
        reasons=tuple(reasons),
    )


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            fields |= _flat(item, f"{prefix}{key}.")
        else:
            fields[f"{prefix}{key}"] = item
    return fields


def _other_words(options: str | None, other: str | None) -> str | None:
    """The words of a long line that another line does not have."""
    if options is None:
        return None
    known = set((other or "").split())
    words = [word for word in options.split() if word not in known]
    more = f" and {len(words) - _WORDS_SHOWN} more" if len(words) > _WORDS_SHOWN else ""
    return (" ".join(words[:_WORDS_SHOWN]) or "the same words") + more


def _text(value: object) -> str:
    if value is None:
        return "nothing"
    return str(value) if value != "" else "''"


def _name(item: EncoderRecord | str | Path) -> str:
    return "one record" if isinstance(item, EncoderRecord) else str(item)
