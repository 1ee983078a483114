"""Whether a file is whole: counted frames, damage, blackness, and the record beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import av
import numpy as np
import pytest

from fleetcraft.video import (
    EncoderSettings,
    RecordState,
    Verdict,
    check_video,
    write_hdr10_video,
    write_video,
)
from tests.video.clips import encode_raw, smooth_clip, smooth_codes


def copied(source: Path, target: Path, *, without: int = -1, earlier: int = 0) -> Path:
    """Copies a file's packets without one of them, or shifted to begin before the clip does."""
    with av.open(str(source)) as whole, av.open(str(target), "w") as cut:
        stream = cut.add_stream_from_template(whole.streams.video[0])
        for number, packet in enumerate(whole.demux(video=0)):
            if not packet.size or number == without or packet.pts is None:
                continue
            packet.pts -= earlier * (packet.duration or 0)
            packet.dts, packet.stream = packet.pts, stream
            cut.mux(packet)
    return target


def test_a_whole_file_with_its_record(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(5), fps=24)
    found = check_video(tmp_path / "a.mp4")
    assert (found.verdict, found.reasons) == (Verdict.WHOLE, ())
    assert (found.frames, found.black, found.record.state) == (5, "no", RecordState.MATCHING)
    assert found.mean_fraction == pytest.approx(smooth_clip(5).mean() / 255, abs=0.01)
    assert found.size_bytes == (tmp_path / "a.mp4").stat().st_size


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
def test_a_whole_hdr_file_is_checked_like_any_other(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write_hdr10_video(path, smooth_codes(5), fps=24, bits=10)
    found = check_video(path)
    assert (found.verdict, found.reasons, found.frames) == (Verdict.WHOLE, (), 5)
    assert found.record.state is RecordState.MATCHING


def test_progress_is_told_frame_by_frame(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(5), fps=24)
    told: list[int] = []
    check_video(tmp_path / "a.mp4", progress=told.append)
    assert told == [1, 2, 3, 4, 5]


def test_a_file_of_another_tool_is_whole_without_a_record(tmp_path: Path) -> None:
    encode_raw(tmp_path / "a.mp4", smooth_clip(4))
    found = check_video(tmp_path / "a.mp4")
    assert (found.verdict, found.record.state) == (Verdict.WHOLE, RecordState.MISSING)


@pytest.mark.parametrize("fraction", [0.6, 0.8, 0.95])
def test_a_truncated_file_is_broken_with_the_frames_that_are_left(
    tmp_path: Path, fraction: float
) -> None:
    whole = encode_raw(tmp_path / "a.mp4", smooth_clip(24), options={"movflags": "+faststart"})
    content = whole.read_bytes()
    whole.write_bytes(content[: int(len(content) * fraction)])
    found = check_video(whole)
    assert found.verdict is Verdict.BROKEN
    assert found.frames < 24
    assert found.reasons


@pytest.mark.parametrize("fraction", [1, 0.97, 0.7, 0.4])
def test_matroska_that_says_no_length_is_broken_where_an_element_is_cut_off(
    tmp_path: Path, fraction: float
) -> None:
    whole = encode_raw(
        tmp_path / "a.mkv", smooth_clip(24), options={"live": "1"}, codec_options={"g": "6"}
    )
    content = whole.read_bytes()
    whole.write_bytes(content[: int(len(content) * fraction)])
    found = check_video(whole)
    assert found.info is not None
    assert found.info.duration_s is None
    assert (found.verdict is Verdict.WHOLE) == (found.frames == 24) == (fraction == 1)
    assert fraction == 1 or "its last element lacks" in found.reasons[0]


def test_a_container_that_promises_more_frames_than_can_be_decoded_is_broken(
    tmp_path: Path,
) -> None:
    source = encode_raw(tmp_path / "a.mp4", smooth_clip(24), codec_options={"bf": "0", "g": "8"})
    cut = copied(source, tmp_path / "cut.mp4", without=8)  # a key frame
    found = check_video(cut)
    assert found.verdict is Verdict.BROKEN
    assert "it has 17 of the 23 frames that it promises" in found.reasons[0]
    assert found.frames == 17


@pytest.mark.parametrize("content", [b"", b"not a video\n" * 200], ids=["0 bytes", "text"])
def test_what_cannot_be_opened_is_unreadable(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.mp4").write_bytes(content)
    found = check_video(tmp_path / "a.mp4")
    assert (found.verdict, found.info, found.frames) == (Verdict.UNREADABLE, None, 0)
    assert found.size_bytes == len(content)


def test_a_missing_file_is_unreadable_and_has_no_size(tmp_path: Path) -> None:
    found = check_video(tmp_path / "a.mp4")
    assert (found.verdict, found.size_bytes) == (Verdict.UNREADABLE, None)
    assert "no such file" in found.reasons[0]


@pytest.mark.parametrize(("level", "black"), [(0, "all"), (1, "almost"), (3, "almost"), (9, "no")])
def test_black_clips_are_whole_and_said_to_be_black(tmp_path: Path, level: int, black: str) -> None:
    write_video(tmp_path / "a.mp4", np.full((3, 32, 32, 3), level, np.uint8), fps=24)
    found = check_video(tmp_path / "a.mp4")
    assert (found.verdict, found.black) == (Verdict.WHOLE, black)


def test_a_record_of_another_file_is_found_out(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(4), fps=24)
    write_video(tmp_path / "b.mp4", smooth_clip(4), fps=24, encoder=EncoderSettings(qp=20))
    write_hdr10_video(tmp_path / "c.mp4", smooth_codes(4), fps=24, bits=10)
    for other, field in (("b", "encoder_options"), ("c", "codec: libx265")):
        shutil.copy(tmp_path / f"{other}.mp4.encoder.json", tmp_path / "a.mp4.encoder.json")
        found = check_video(tmp_path / "a.mp4")
        assert (found.verdict, found.record.state) == (Verdict.BROKEN, RecordState.DIFFERING)
        assert field.partition(":")[0] in "; ".join(found.record.differs)


def test_an_unreadable_record_is_said(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(4), fps=24)
    (tmp_path / "a.mp4.encoder.json").write_text("{")
    found = check_video(tmp_path / "a.mp4")
    assert (found.verdict, found.record.state) == (Verdict.BROKEN, RecordState.UNREADABLE)


def test_a_matrix_without_conversion_is_counted_but_not_measured(tmp_path: Path) -> None:
    encode_raw(tmp_path / "a.mp4", smooth_clip(4), tags={"colorspace": 8})
    found = check_video(tmp_path / "a.mp4")
    assert (found.verdict, found.frames) == (Verdict.WHOLE, 4)
    assert (found.brightest_fraction, found.mean_fraction, found.black) == (None, None, None)


def test_a_clip_that_starts_between_key_frames_is_whole(tmp_path: Path) -> None:
    """Its container counts frames that an edit list leaves out, as ffmpeg -ss -c copy writes it."""
    source = encode_raw(tmp_path / "a.mp4", smooth_clip(24), codec_options={"bf": "0"})
    cut = copied(source, tmp_path / "cut.mp4", earlier=4)
    found = check_video(cut)
    assert (found.verdict, found.reasons, found.frames) == (Verdict.WHOLE, (), 20)
    assert found.info is not None
    assert found.info.frames_promised == 24
