"""Files of different encoders are not compared, and the fields that differ are named."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from fleetcraft.errors import DataError
from fleetcraft.video import (
    Agreement,
    EncoderSettings,
    compare_frames,
    compare_videos,
    encoder_differences,
    read_encoder_record,
    require_same_encoder,
    write_hdr10_video,
    write_video,
)
from tests.video.clips import psnr_db, smooth_clip, smooth_codes


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "a.mp4", tmp_path / "b.mp4"
    for path in paths:
        write_video(path, smooth_clip(4), fps=24)
    return paths


def rewrite(path: Path, encoder: EncoderSettings) -> None:
    write_video(path, smooth_clip(4), fps=24, encoder=encoder)


def test_files_of_one_encoder_pass_as_paths_and_as_records(pair: tuple[Path, Path]) -> None:
    require_same_encoder(*pair)
    require_same_encoder(read_encoder_record(pair[0]), str(pair[1]))


def test_other_settings_are_refused_by_field(pair: tuple[Path, Path]) -> None:
    rewrite(pair[1], EncoderSettings(qp=20, preset="fast"))
    with pytest.raises(DataError, match="nothing was compared") as caught:
        require_same_encoder(*pair)
    assert "settings.qp 12 against 20" in caught.value.message
    assert "settings.preset medium against fast" in caught.value.message
    fields = caught.value.facts["fields"]
    assert isinstance(fields, list)
    assert {"settings.qp", "settings.preset", "encoder_options"} == set(fields)
    assert all(path.name in caught.value.message for path in pair)


def test_another_version_of_the_encoder_alone_is_refused(pair: tuple[Path, Path]) -> None:
    record = msgspec.structs.replace(read_encoder_record(pair[1]), encoder_version="x264 core 1")
    with pytest.raises(DataError, match="encoder_version") as caught:
        require_same_encoder(pair[0], record)
    assert caught.value.facts["fields"] == ["encoder_version"]


def test_a_long_line_of_options_is_told_by_the_words_that_differ(pair: tuple[Path, Path]) -> None:
    first = read_encoder_record(pair[0])
    words = " ".join(f"a{number}=1" for number in range(40))
    second = msgspec.structs.replace(first, encoder_options=f"{first.encoder_options} {words}")
    (found,) = encoder_differences(first, second)
    assert (found.field, found.first) == ("encoder_options", "the same words")
    assert found.second.endswith("and 34 more")


def test_a_file_without_record_is_not_comparable(pair: tuple[Path, Path]) -> None:
    (pair[1].parent / "b.mp4.encoder.json").unlink()
    with pytest.raises(DataError, match="no encoder record"):
        require_same_encoder(*pair)
    found = compare_videos(*pair)
    assert (found.encoders, len(found.reasons)) == (Agreement.UNKNOWN, 1)
    assert found.likeness is not None
    assert found.likeness.psnr_db == math.inf


def test_the_distance_of_two_files_is_the_psnr_of_their_values(pair: tuple[Path, Path]) -> None:
    assert compare_frames(*pair).psnr_db == math.inf
    rewrite(pair[1], EncoderSettings(qp=30))
    from fleetcraft.video import read_video

    frames = [read_video(path, deep="keep").frames for path in pair]
    found = compare_frames(*pair)
    assert found.frames == 4
    assert found.psnr_db == pytest.approx(psnr_db(frames[0], frames[1]), abs=1e-6)


def test_what_cannot_be_compared_says_why(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    write_video(tmp_path / "short.mp4", smooth_clip(3), fps=24)
    write_video(tmp_path / "small.mp4", smooth_clip(4, 32, 48), fps=24)
    write_hdr10_video(tmp_path / "hdr.mp4", smooth_codes(4), fps=24, bits=10)
    reasons = {
        "short": "numbers of frames differ",
        "small": "sizes differ: 96x64 against 48x32",
        "hdr": "transfer functions differ: bt709 against smpte2084",
    }
    for name, reason in reasons.items():
        found = compare_frames(pair[0], tmp_path / f"{name}.mp4")
        assert (found.psnr_db, found.reason) == (None, reason)


def test_an_unreadable_other_file_is_an_answer(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    found = compare_videos(pair[0], tmp_path / "nowhere.mp4")
    assert (found.encoders, found.likeness) == (Agreement.UNKNOWN, None)
    assert len(found.reasons) == 2
