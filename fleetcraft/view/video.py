"""What video files say, as JSON and as text for people.

Records in, text out. Invariant: what is not known is null or a dash, never zero; words that come
from a file are made printable.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fleetcraft.view.text import Paint, joined, left_out, one_line, plural, table

if TYPE_CHECKING:
    from fleetcraft.video.check import Checked, Probed, RecordFacts
    from fleetcraft.video.comparison import Compared, Likeness
    from fleetcraft.video.reader import VideoInfo
    from fleetcraft.video.repeats import Repeatability

_COLOURS = {"whole": "good", "broken": "bad", "unreadable": "bad"}
_EVERY = 25


class CheckProgress:
    """Frames that were decoded, on a terminal's last line; nothing elsewhere.

    Args:
        on: Whether stderr is a terminal.
    """

    def __init__(self, on: bool) -> None:
        self._on = on
        self._shown = False

    def of(self, path: str) -> Callable[[int], None]:
        """What to call with the number of frames of one file."""

        def show(frames: int) -> None:
            if self._on and frames % _EVERY == 0:
                sys.stderr.write(f"\r\x1b[K{one_line(path, 60)}: {plural(frames, 'frame')}")
                sys.stderr.flush()
                self._shown = True

        return show

    def close(self) -> None:
        """Clears the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def probe_shape(found: Sequence[Probed]) -> dict[str, Any]:
    """What files say, as JSON."""
    return {
        "schema": "fleetcraft.video_probe/1",
        "files": [
            {
                "path": item.path,
                "readable": item.info is not None,
                "reason": item.reason or None,
                "size_bytes": item.size_bytes,
                "video": _info_shape(item.info),
                "encoder_record": _record_shape(item.record),
            }
            for item in found
        ],
        "unreadable": sum(item.info is None for item in found),
    }


def check_shape(
    found: Sequence[Checked],
    compared: Sequence[Compared],
    encoders: Sequence[tuple[str, Repeatability]],
    *,
    against: str | None,
) -> dict[str, Any]:
    """What was checked, as JSON."""
    return {
        "schema": "fleetcraft.video_check/1",
        "files": [_checked_shape(item) for item in found],
        "whole": sum(item.verdict == "whole" for item in found),
        "broken": sum(item.verdict == "broken" for item in found),
        "unreadable": sum(item.verdict == "unreadable" for item in found),
        "against": against,
        "compared": [_compared_shape(item) for item in compared],
        "encoders": [_tried_shape(name, tried) for name, tried in encoders],
    }


def _checked_shape(item: Checked) -> dict[str, Any]:
    return {
        "path": item.path,
        "verdict": item.verdict.value,
        "reasons": list(item.reasons),
        "size_bytes": item.size_bytes,
        "frames": item.frames if item.info is not None else None,
        "frames_promised": item.info.frames_promised if item.info is not None else None,
        "brightest_fraction": item.brightest_fraction,
        "mean_fraction": item.mean_fraction,
        "black": item.black.value if item.black is not None else None,
        "video": _info_shape(item.info),
        "encoder_record": _record_shape(item.record),
    }


def _info_shape(info: VideoInfo | None) -> dict[str, Any] | None:
    if info is None:
        return None
    return {
        "container": info.container,
        "codec": info.codec,
        "width": info.width,
        "height": info.height,
        "fps": float(info.fps),
        "fps_exact": str(info.fps),
        "frames_promised": info.frames_promised,
        "duration_s": info.duration_s,
        "bits": info.bits,
        "pix_fmt": info.pix_fmt,
        "primaries": info.primaries,
        "transfer": info.transfer,
        "matrix": info.matrix,
        "matrix_assumed": info.matrix_assumed,
        "range": info.color_range,
        "is_hdr": info.is_hdr,
        "is_wide_gamut": info.is_wide_gamut,
    }


def _record_shape(facts: RecordFacts) -> dict[str, Any]:
    from msgspec import to_builtins

    return {
        "state": facts.state.value,
        "differs": list(facts.differs),
        "record": None if facts.record is None else to_builtins(facts.record),
    }


def _compared_shape(item: Compared) -> dict[str, Any]:
    likeness = item.likeness
    known = likeness is not None and likeness.psnr_db is not None
    same = likeness is not None and likeness.psnr_db == math.inf
    return {
        "path": item.path,
        "encoders": item.encoders.value,
        "differences": [
            {"field": each.field, "first": each.first, "second": each.second}
            for each in item.differences
        ],
        "frames_compared": likeness.frames if likeness is not None else None,
        # JSON has no infinity: pictures that are equal have no ratio.
        "psnr_db": likeness.psnr_db if likeness is not None and not same else None,
        "pictures_equal": same if known else None,
        "reasons": [*item.reasons, *([likeness.reason] if likeness and likeness.reason else [])],
    }


def _tried_shape(name: str, tried: Repeatability) -> dict[str, Any]:
    from msgspec import to_builtins

    return {
        "profile": name,
        "repeats": tried.repeats,
        "runs": tried.runs,
        "bitstreams": tried.bitstreams,
        "sha256": list(tried.sha256),
        "sizes_bytes": list(tried.sizes_bytes),
        "clip": {"frames": tried.frames, "height": tried.height, "width": tried.width},
        "encoder_version": tried.encoder_version,
        "settings": to_builtins(tried.settings),
    }


def render_probe(found: Sequence[Probed], *, limit: int, paint: Paint, width: int | None) -> str:
    """What files say, for people."""
    parts = []
    for item in found[:limit]:
        name = paint("strong", one_line(item.path))
        if item.info is None:
            parts.append(f"{name}: {paint('bad', 'unreadable')}: {one_line(item.reason)}")
            continue
        parts.append(f"{name}\n{table([*_info_rows(item.info), _record_row(item.record)])}")
    return joined([*parts, *left_out(len(found) - limit if limit < len(found) else 0, "files")])


def _info_rows(info: VideoInfo) -> list[tuple[str, str]]:
    length = [] if info.duration_s is None else [f"{info.duration_s:.3f} s"]
    if info.frames_promised is not None:
        length.append(f"{plural(info.frames_promised, 'frame')} promised")
    kind = [f"{info.bits} bits", "HDR" if info.is_hdr else "SDR"]
    if info.is_wide_gamut:
        kind.append("wide gamut")
    assumed = " (assumed)" if info.matrix_assumed else ""
    return [
        ("video", one_line(f"{info.codec} in {info.container}, {info.width}x{info.height}")),
        ("length", f"{', '.join(length) or 'not said'}, {float(info.fps):.6g} frames a second"),
        ("depth", f"{', '.join(kind)}, {info.pix_fmt}"),
        ("colour", f"primaries {info.primaries}, transfer {info.transfer}"),
        ("", f"matrix {info.matrix}{assumed}, range {info.color_range}"),
    ]


def _record_row(facts: RecordFacts) -> tuple[str, str]:
    words = facts.state.value
    if facts.record is not None:
        settings = facts.record.settings
        rate = f"qp {settings.qp}" if settings.qp is not None else f"crf {settings.crf}"
        version = facts.record.encoder_version or "of unknown version"
        words += f": {settings.codec} {rate} {settings.preset}, {version}"
    if facts.differs:
        words += f" ({'; '.join(facts.differs)})"
    return "encoder", one_line(words, 200)


def render_check(
    found: Sequence[Checked],
    compared: Sequence[Compared],
    encoders: Sequence[tuple[str, Repeatability]],
    *,
    limit: int,
    paint: Paint,
    width: int | None,
) -> str:
    """What was checked, for people."""
    lines = [_checked_line(item, paint) for item in found[:limit]]
    lines += left_out(max(0, len(found) - limit), "files")
    if len(found) > 1:
        whole = sum(item.verdict == "whole" for item in found)
        lines.append(f"{whole} of {plural(len(found), 'file')} whole")
    against = [_compared_line(item, paint) for item in compared[:limit]]
    against += left_out(max(0, len(compared) - limit), "comparisons")
    tried = [_tried_line(name, item, paint) for name, item in encoders]
    return joined(["\n".join(lines), "\n".join(against), "\n".join(tried)])


def _checked_line(item: Checked, paint: Paint) -> str:
    head = f"{one_line(item.path)}: {paint(_COLOURS[item.verdict], item.verdict.value)}"
    facts = list(item.reasons)
    if item.info is not None:
        promised = item.info.frames_promised
        of = f" of {promised} promised" if promised is not None else ""
        if item.verdict == "whole" and item.frames < (promised or 0):
            of += " (its edit list leaves out the others)"
        facts.append(f"{plural(item.frames, 'frame')}{of}, {item.info.bits} bits")
        facts.append(f"encoder record {item.record.state.value}")
    if item.black is not None and item.black != "no":
        facts.append("all black" if item.black == "all" else "almost black")
    return f"{head}: {one_line('; '.join(facts), 600)}"


def _compared_line(item: Compared, paint: Paint) -> str:
    colour = {"same": "good", "different": "bad", "unknown": "warn"}[item.encoders]
    words = {
        "same": "same encoder",
        "different": "not comparable: encoders differ",
        "unknown": "not comparable: encoders unknown",
    }[item.encoders]
    facts = [str(each) for each in item.differences] + list(item.reasons)
    facts.append(_likeness_words(item.likeness))
    text = one_line("; ".join(facts), 600)
    pair = f"{one_line(item.path)} against {one_line(item.against)}"
    return f"{pair}: {paint(colour, words)}: {text}"


def _likeness_words(likeness: Likeness | None) -> str:
    if likeness is None:
        return "pictures not compared"
    if likeness.psnr_db is None:
        return f"pictures not compared: {likeness.reason}"
    if likeness.psnr_db == math.inf:
        return f"{plural(likeness.frames, 'frame')} equal"
    return f"PSNR {likeness.psnr_db:.2f} dB over {plural(likeness.frames, 'frame')}"


def _tried_line(name: str, tried: Repeatability, paint: Paint) -> str:
    said = paint("good", "repeats") if tried.repeats else paint("bad", "does not repeat")
    streams = plural(tried.bitstreams, "bitstream")
    short = ", ".join(dict.fromkeys(each[:12] for each in tried.sha256))
    return (
        f"{name}: {said}: {streams} in {plural(tried.runs, 'encoding')} of "
        f"{tried.frames} frames {tried.width}x{tried.height} "
        f"({one_line(tried.encoder_version or 'version unknown', 90)}; sha256 {short})"
    )
