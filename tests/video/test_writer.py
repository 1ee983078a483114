"""Writing a file: colours, repeatability, the record beside it, and what a failure leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fleetcraft.errors import DataError, UsageError
from fleetcraft.video import (
    EncoderSettings,
    encoding,
    iter_frames,
    read_encoder_record,
    read_video,
    write_video,
    writer,
)
from tests.video.clips import psnr_db, smooth_clip


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv444p"])
def test_smooth_colours_come_back_within_40_db(tmp_path: Path, pix_fmt: str) -> None:
    clip = smooth_clip()
    write_video(tmp_path / "a.mp4", clip, fps=24, encoder=EncoderSettings(pix_fmt=pix_fmt))
    assert psnr_db(read_video(tmp_path / "a.mp4").frames, clip) >= 40


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("fps", [12, 23.976023976023978, Fraction(30000, 1001)])
def test_frame_count_and_rate_come_back(tmp_path: Path, suffix: str, fps: float | Fraction) -> None:
    path = tmp_path / f"a{suffix}"
    write_video(path, smooth_clip(7), fps=fps)
    video = read_video(path)
    assert len(video.frames) == 7
    assert float(video.fps) == pytest.approx(float(fps), rel=1e-6)


def test_the_tags_of_a_written_file_say_what_was_converted(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(), fps=24)
    info = read_video(tmp_path / "a.mp4").info
    assert (info.matrix, info.primaries, info.transfer) == ("bt709", "bt709", "bt709")
    assert (info.color_range, info.matrix_assumed) == ("limited", False)
    assert (info.codec, info.pix_fmt) == ("h264", "yuv420p")


def test_one_single_frame_makes_a_readable_file(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(1), fps=8)
    assert read_video(tmp_path / "a.mp4").frames.shape == (1, 64, 96, 3)


@pytest.mark.parametrize("encoder", [EncoderSettings(), EncoderSettings(qp=None, crf=18)])
def test_encoding_the_same_frames_again_gives_the_same_bytes(
    tmp_path: Path, encoder: EncoderSettings
) -> None:
    noise = np.random.default_rng(0).integers(0, 60, (24, 64, 96, 3), dtype=np.uint8)
    clip = smooth_clip(24) // 2 + noise
    files = []
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        write_video(tmp_path / name, clip, fps=24, encoder=encoder)
        files.append((tmp_path / name).read_bytes())
    assert len(set(files)) == 1


def test_torch_bfloat16_frames_are_written(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    clip = smooth_clip()
    write_video(tmp_path / "a.mp4", torch.from_numpy(clip).bfloat16() / 255, fps=24)
    assert psnr_db(read_video(tmp_path / "a.mp4").frames, clip) >= 38


def test_the_record_beside_the_file_says_what_ran(tmp_path: Path) -> None:
    record = write_video(tmp_path / "a.mp4", smooth_clip(), fps=24)
    assert (tmp_path / "a.mp4.encoder.json").is_file()
    assert read_encoder_record(tmp_path / "a.mp4") == record
    assert record.encoder_version is not None
    assert record.encoder_version.startswith("x264 core")
    assert "qp=12" in (record.encoder_options or "")
    assert "threads=1 " in (record.encoder_options or "")


def test_records_of_two_settings_differ_and_of_the_same_do_not(tmp_path: Path) -> None:
    other = EncoderSettings(qp=20)
    first = write_video(tmp_path / "a.mp4", smooth_clip(), fps=24)
    second = write_video(tmp_path / "b.mp4", smooth_clip(3), fps=24)
    third = write_video(tmp_path / "c.mp4", smooth_clip(), fps=24, encoder=other)
    assert first == second
    assert first != third


def test_a_missing_or_foreign_record_is_bad_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no encoder record"):
        read_encoder_record(tmp_path / "a.mp4")
    (tmp_path / "a.mp4.encoder.json").write_bytes(msgspec.json.encode({"codec": "other"}))
    with pytest.raises(DataError, match="cannot read the encoder record"):
        read_encoder_record(tmp_path / "a.mp4")


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"qp": 12', b'"qp": 99'), (b"fleetcraft.encoder/1", b"fleetcraft.encoder/9")],
    ids=["impossible settings", "another schema"],
)
def test_a_record_that_cannot_be_true_is_bad_data(tmp_path: Path, old: bytes, new: bytes) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(3), fps=24)
    note = tmp_path / "a.mp4.encoder.json"
    note.write_bytes(note.read_bytes().replace(old, new))
    with pytest.raises(DataError, match="cannot read the encoder record"):
        read_encoder_record(tmp_path / "a.mp4")


def test_a_record_of_before_hdr10_is_read_and_equal(tmp_path: Path) -> None:
    record = write_video(tmp_path / "a.mp4", smooth_clip(3), fps=24)
    older = msgspec.to_builtins(record)
    for field in ("mastering_display", "content_light"):
        del older[field]
    del older["settings"]["x265_params"]
    (tmp_path / "a.mp4.encoder.json").write_bytes(msgspec.json.encode(older))
    assert read_encoder_record(tmp_path / "a.mp4") == record


def test_an_encoder_that_writes_nothing_is_an_error_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(3), fps=24)
    old = (tmp_path / "a.mp4").read_bytes()

    def silent(target: Path, *_: object) -> None:
        target.touch()

    monkeypatch.setattr(encoding, "_encode", silent)
    with pytest.raises(DataError, match="gave 0 of 12 frames"):
        write_video(tmp_path / "a.mp4", smooth_clip(), fps=24)
    assert (tmp_path / "a.mp4").read_bytes() == old
    assert sorted(os.listdir(tmp_path)) == ["a.mp4", "a.mp4.encoder.json"]


def test_an_encoder_that_drops_frames_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encoding._packets
    monkeypatch.setattr(encoding, "_packets", lambda *args: list(whole(*args))[:-2])
    with pytest.raises(DataError, match="gave 10 of 12 frames"):
        write_video(tmp_path / "a.mp4", smooth_clip(), fps=24)
    assert os.listdir(tmp_path) == []


def test_odd_sizes_are_refused_for_yuv420_and_work_for_yuv444(tmp_path: Path) -> None:
    clip = smooth_clip(3, 63, 95)
    with pytest.raises(DataError, match="95x63 frames as yuv420p") as caught:
        write_video(tmp_path / "a.mp4", clip, fps=24)
    assert "yuv444p" in caught.value.hint
    write_video(tmp_path / "a.mp4", clip, fps=24, encoder=EncoderSettings(pix_fmt="yuv444p"))
    assert read_video(tmp_path / "a.mp4").frames.shape == clip.shape


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf")])
def test_impossible_frame_rates_are_refused(tmp_path: Path, fps: float) -> None:
    with pytest.raises(UsageError, match="fps"):
        write_video(tmp_path / "a.mp4", smooth_clip(3), fps=fps)


@pytest.mark.parametrize(
    "bad",
    [
        {"codec": "mpeg4"},
        {"pix_fmt": "yuv420p10le"},
        {"codec": "libx265"},
        {"x265_params": "pools=2"},
        {"preset": "quick"},
        {"threads": 0},
        {"qp": 52},
        {"crf": 18.0},
        {"qp": None},
    ],
    ids=str,
)
def test_impossible_encoder_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        EncoderSettings(**bad)  # type: ignore[arg-type]


def test_colons_spaces_and_percent_signs_in_a_name_are_only_letters(tmp_path: Path) -> None:
    path = tmp_path / "seed:3 at 100%d.mp4"
    write_video(path, smooth_clip(3), fps=24)
    assert len(read_video(path).frames) == 3


def test_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        write_video(tmp_path / "a.txt", smooth_clip(3), fps=24)
    assert ".mp4" in caught.value.hint


def test_a_missing_folder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or directory"):
        write_video(tmp_path / "nowhere" / "a.mp4", smooth_clip(3), fps=24)


def test_an_interrupted_encoding_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_video(tmp_path / "a.mp4", smooth_clip(3), fps=24)
    convert, calls = writer.yuv_from_rgb, []

    def interrupted(*args: object) -> object:
        calls.append(args)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return convert(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(writer, "yuv_from_rgb", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_video(tmp_path / "a.mp4", smooth_clip(), fps=24, encoder=EncoderSettings(qp=30))
    assert sorted(os.listdir(tmp_path)) == ["a.mp4", "a.mp4.encoder.json"]
    assert len(list(iter_frames(tmp_path / "a.mp4"))) == 3
    assert read_encoder_record(tmp_path / "a.mp4") == old


@pytest.mark.parametrize(
    "call", ["write_video(path, noise,", "write_hdr10_video(path, noise / 255,"]
)
def test_a_full_disk_leaves_no_file_under_the_final_name(tmp_path: Path, call: str) -> None:
    # RLIMIT_FSIZE makes the kernel refuse the write, as a full disk or quota does.
    script = """
import resource, signal, sys
import numpy as np
from fleetcraft.errors import DataError
from fleetcraft.video import write_hdr10_video, write_video
path = sys.argv[1]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
noise = np.random.default_rng(0).integers(0, 255, (24, 128, 128, 3), dtype=np.uint8)
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
try:
    CALL fps=24)
except DataError as error:
    print(error.message)
"""
    result = subprocess.run(
        [sys.executable, "-c", script.replace("CALL", call), str(tmp_path / "a.mp4")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert "cannot write a video" in result.stdout
    assert os.listdir(tmp_path) == []
