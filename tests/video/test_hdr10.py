"""HDR10 files: colours, tags, metadata, the record, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import av
import numpy as np
import pytest

from fleetcraft.errors import DataError, UsageError
from fleetcraft.video import (
    P3_D65_1000,
    ContentLight,
    EncoderSettings,
    MasteringDisplay,
    encoder_profile,
    inspect_video,
    read_encoder_record,
    read_video,
    write_hdr10_video,
    write_video,
)
from tests.video.clips import psnr_db, smooth_clip, smooth_codes

FULL_CHROMA = EncoderSettings(codec="libx265", pix_fmt="yuv444p10le")
LIGHT = ContentLight(max_cll_cd_m2=900, max_fall_cd_m2=300)


@pytest.mark.parametrize(
    ("encoder", "least_db"), [(encoder_profile("hevc-hdr10-v1"), 45), (FULL_CHROMA, 48)]
)
@pytest.mark.parametrize("floats", [True, False])
def test_smooth_colours_come_back_within_45_db(
    tmp_path: Path, encoder: EncoderSettings, least_db: float, floats: bool
) -> None:
    codes = smooth_codes()
    given = {"frames": codes / 1023} if floats else {"frames": codes, "bits": 10}
    write_hdr10_video(tmp_path / "a.mp4", fps=24, encoder=encoder, **given)  # type: ignore[arg-type]
    video = read_video(tmp_path / "a.mp4", deep="keep")
    assert (video.bits, video.frames.dtype) == (10, np.uint16)
    assert psnr_db(video.frames, codes, 1023) >= least_db


def test_black_and_white_come_back_exactly(tmp_path: Path) -> None:
    codes = np.zeros((2, 64, 64, 3), np.uint16)
    codes[:, :, 32:] = 1023
    write_hdr10_video(tmp_path / "a.mp4", codes, fps=24, bits=10)
    frames = read_video(tmp_path / "a.mp4", deep="keep").frames
    assert (frames[0, 8, 8].max(), frames[0, 8, 56].min()) == (0, 1023)


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
def test_the_tags_are_readable_before_decoding_in_every_container(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a{suffix}"
    write_hdr10_video(path, smooth_codes(5), fps=30, bits=10)
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        found = (context.color_primaries, context.color_trc, context.colorspace)
    assert tuple(int(item) for item in found) == (9, 16, 9)
    info = inspect_video(path)
    assert (info.codec, info.bits, info.color_range, float(info.fps)) == ("hevc", 10, "limited", 30)


def test_static_metadata_arrives_in_the_decoded_frames(tmp_path: Path) -> None:
    write_hdr10_video(
        tmp_path / "a.mp4",
        smooth_codes(3),
        fps=24,
        bits=10,
        mastering_display=P3_D65_1000,
        content_light=LIGHT,
    )
    with av.open(str(tmp_path / "a.mp4")) as container:
        sides = {side.type.name: bytes(side) for side in next(container.decode(video=0)).side_data}
    light = np.frombuffer(sides["CONTENT_LIGHT_LEVEL"][:8], np.uint32)
    display = np.frombuffer(sides["MASTERING_DISPLAY_METADATA"][:80], np.int32).reshape(10, 2)
    values = display[:, 0] / display[:, 1]
    assert light.tolist() == [900, 300]
    expected = [0.68, 0.32, 0.265, 0.69, 0.15, 0.06, 0.3127, 0.3290, 0.0001, 1000]
    assert values.tolist() == pytest.approx(expected, abs=2e-5)


def test_the_record_says_what_ran_and_is_the_same_for_another_clip(tmp_path: Path) -> None:
    first = write_hdr10_video(tmp_path / "a.mp4", smooth_codes(), fps=24, bits=10)
    other = write_hdr10_video(tmp_path / "b.mkv", smooth_codes(5, 96, 128) / 1023, fps=30)
    assert read_encoder_record(tmp_path / "a.mp4") == first == other
    assert (first.matrix, first.primaries, first.transfer) == ("bt2020nc", "bt2020", "smpte2084")
    assert (first.encoder_version or "").startswith("x265 build")
    assert "qp=12" in (first.encoder_options or "").split()
    assert "cpuid" not in (first.encoder_options or "")


def test_metadata_is_part_of_the_record(tmp_path: Path) -> None:
    bare = write_hdr10_video(tmp_path / "a.mp4", smooth_codes(3), fps=24, bits=10)
    said = write_hdr10_video(
        tmp_path / "b.mp4", smooth_codes(3), fps=24, bits=10, content_light=LIGHT
    )
    assert said != bare
    assert read_encoder_record(tmp_path / "b.mp4").content_light == LIGHT


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_frames_give_the_same_bytes(tmp_path: Path, threads: int) -> None:
    encoder = EncoderSettings(codec="libx265", pix_fmt="yuv420p10le", threads=threads)
    noise = np.random.default_rng(0).integers(0, 200, (12, 128, 128, 3), dtype=np.uint16)
    files = []
    for name in ("a.mp4", "b.mp4"):
        write_hdr10_video(tmp_path / name, noise + 300, fps=24, bits=10, encoder=encoder)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]


def test_each_writer_refuses_the_encoder_of_the_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="libx265"):
        write_video(tmp_path / "a.mp4", smooth_clip(3), fps=24, encoder=FULL_CHROMA)
    with pytest.raises(UsageError, match="libx264"):
        write_hdr10_video(
            tmp_path / "a.mp4", smooth_codes(3), fps=24, bits=10, encoder=EncoderSettings()
        )
    assert os.listdir(tmp_path) == []


def test_the_8_bit_writer_names_the_one_for_uint16(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="type uint16") as caught:
        write_video(tmp_path / "a.mp4", smooth_codes(3), fps=24)
    assert "write_hdr10_video" in caught.value.hint


def test_odd_sizes_need_full_chroma(tmp_path: Path) -> None:
    codes = smooth_codes(3, 63, 95)
    with pytest.raises(DataError, match="95x63 frames as yuv420p10le") as caught:
        write_hdr10_video(tmp_path / "a.mp4", codes, fps=24, bits=10)
    assert "yuv444p10le" in caught.value.hint
    write_hdr10_video(tmp_path / "a.mp4", codes, fps=24, bits=10, encoder=FULL_CHROMA)
    assert read_video(tmp_path / "a.mp4", deep="keep").frames.shape == codes.shape


def test_frames_that_are_refused_leave_the_old_file(tmp_path: Path) -> None:
    write_hdr10_video(tmp_path / "a.mp4", smooth_codes(3), fps=24, bits=10)
    old = (tmp_path / "a.mp4").read_bytes()
    with pytest.raises(DataError):
        write_hdr10_video(tmp_path / "a.mp4", smooth_clip(3), fps=24)
    assert (tmp_path / "a.mp4").read_bytes() == old


@pytest.mark.parametrize(
    "bad",
    [
        {"red": (0.68, 1.2)},
        {"white": (0.0, 0.3)},
        {"max_cd_m2": 20_000},
        {"min_cd_m2": 1000},
        {"max_cd_m2": float("nan")},
    ],
    ids=str,
)
def test_a_display_that_cannot_be_is_refused(bad: dict[str, object]) -> None:
    good = {
        "red": (0.68, 0.32),
        "green": (0.265, 0.69),
        "blue": (0.15, 0.06),
        "white": (0.3127, 0.329),
        "max_cd_m2": 1000,
        "min_cd_m2": 0.0001,
    }
    with pytest.raises(UsageError, match="mastering display"):
        MasteringDisplay(**(good | bad))  # type: ignore[arg-type]


@pytest.mark.parametrize(("most", "mean"), [(300, 900), (20_000, 1), (100, -1)])
def test_light_that_cannot_be_is_refused(most: int, mean: int) -> None:
    with pytest.raises(UsageError, match="content light"):
        ContentLight(max_cll_cd_m2=most, max_fall_cd_m2=mean)
