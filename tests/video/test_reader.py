"""Reading a file: the right matrix, and everything that is refused instead of flattened."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange, Colorspace

from fleetcraft.errors import DataError
from fleetcraft.video import inspect_video, iter_frames, read_video, write_video
from tests.video.clips import encode_raw, psnr_db, smooth_clip

REPOSITORY = Path(__file__).parents[2]


def has_10_bit_encoder() -> bool:
    formats = av.codec.Codec("libx264", "w").video_formats or ()
    return any(pixels.name == "yuv420p10le" for pixels in formats)


def converted(matrix: int, target_range: int) -> object:
    def convert(frame: av.VideoFrame) -> av.VideoFrame:
        return frame.reformat(
            format="yuv420p",
            src_colorspace=matrix,
            dst_colorspace=matrix,
            src_color_range=ColorRange.JPEG,
            dst_color_range=target_range,
        )

    return convert


def test_frames_one_by_one_equal_the_whole_video(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(5), fps=24)
    frames = list(iter_frames(tmp_path / "a.mp4"))
    assert all(frame.shape == (64, 96, 3) and frame.dtype == np.uint8 for frame in frames)
    assert np.array_equal(np.stack(frames), read_video(tmp_path / "a.mp4").frames)


def test_a_video_is_described_without_decoding_it(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(5), fps=24)
    info = inspect_video(tmp_path / "a.mp4")
    assert (info.width, info.height, info.fps) == (96, 64, Fraction(24))


def test_the_matrix_of_a_bt601_file_is_used(tmp_path: Path) -> None:
    clip = smooth_clip()
    convert = converted(Colorspace.ITU601, ColorRange.MPEG)
    tags = {"colorspace": 6, "color_range": 1}
    encode_raw(tmp_path / "a.mp4", clip, tags=tags, convert=convert)  # type: ignore[arg-type]
    video = read_video(tmp_path / "a.mp4")
    assert (video.info.matrix, video.info.matrix_assumed) == ("smpte170m", False)
    assert psnr_db(video.frames, clip) >= 38


def test_full_range_is_used_where_the_file_says_so(tmp_path: Path) -> None:
    clip = smooth_clip()
    convert = converted(Colorspace.ITU709, ColorRange.JPEG)
    tags = {"colorspace": 1, "color_range": 2}
    encode_raw(tmp_path / "a.mp4", clip, tags=tags, convert=convert)  # type: ignore[arg-type]
    video = read_video(tmp_path / "a.mp4")
    assert video.info.color_range == "full"
    assert psnr_db(video.frames, clip) >= 38


def test_a_file_without_tags_counts_as_bt709_and_says_so(tmp_path: Path) -> None:
    clip = smooth_clip()
    convert = converted(Colorspace.ITU709, ColorRange.MPEG)
    tags = {"colorspace": 2}
    encode_raw(tmp_path / "a.mp4", clip, tags=tags, convert=convert)  # type: ignore[arg-type]
    video = read_video(tmp_path / "a.mp4")
    assert (video.info.matrix, video.info.matrix_assumed) == ("bt709", True)
    assert psnr_db(video.frames, clip) >= 38


def test_a_real_10_bit_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    if not has_10_bit_encoder():
        pytest.skip("this PyAV build has no 10-bit H.264 encoder")
    encode_raw(tmp_path / "a.mp4", smooth_clip(4), pix_fmt="yuv420p10le")
    with pytest.raises(DataError, match="10 bits per channel") as caught:
        read_video(tmp_path / "a.mp4")
    assert "-pix_fmt yuv420p" in caught.value.hint


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ({"color_trc": 16}, "it is HDR .*smpte2084"),
        ({"color_trc": 18}, "it is HDR .*arib-std-b67"),
        ({"colorspace": 9}, "gamut is wide .*bt2020nc"),
        ({"color_primaries": 9}, "gamut is wide .*bt2020"),
        ({"color_primaries": 12}, "gamut is wide .*smpte432"),
        ({"colorspace": 8}, "colour matrix 'ycgco'"),
    ],
    ids=["PQ", "HLG", "BT.2020 matrix", "BT.2020 primaries", "P3 primaries", "YCgCo"],
)
def test_hdr_and_wide_gamut_are_refused_even_in_8_bits(
    tmp_path: Path, tags: dict[str, int], words: str
) -> None:
    encode_raw(tmp_path / "a.mp4", smooth_clip(4), tags=tags)
    with pytest.raises(DataError, match=words):
        read_video(tmp_path / "a.mp4")


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*a\.mp4: no such file or directory"):
        read_video(tmp_path / "a.mp4")


def test_a_zero_byte_file_is_named_so(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    with pytest.raises(DataError, match=r"empty \(0 bytes\)"):
        read_video(tmp_path / "a.mp4")


def test_a_file_that_is_no_video_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("not a video\n" * 100)
    with pytest.raises(DataError, match=r"cannot read .*invalid data"):
        read_video(tmp_path / "a.mp4")


def test_a_file_with_sound_only_is_refused(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        sound.rate = 44100
        container.mux(stream.encode(sound))
        container.mux(stream.encode(None))
    with pytest.raises(DataError, match="no video stream, only audio"):
        read_video(tmp_path / "a.mp4")


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.9])
def test_a_truncated_file_is_refused(tmp_path: Path, suffix: str, fraction: float) -> None:
    whole = tmp_path / f"whole{suffix}"
    write_video(whole, smooth_clip(24), fps=24)
    content = whole.read_bytes()
    cut = tmp_path / f"cut{suffix}"
    cut.write_bytes(content[: int(len(content) * fraction)])
    with pytest.raises(DataError):
        read_video(cut)


@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.9])
def test_a_truncated_file_with_its_index_in_front_is_refused(
    tmp_path: Path, fraction: float
) -> None:
    whole = encode_raw(tmp_path / "whole.mp4", smooth_clip(24), options={"movflags": "+faststart"})
    content = whole.read_bytes()
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(content[: int(len(content) * fraction)])
    with pytest.raises(DataError, match=r"cut\.mp4"):
        read_video(cut)


def test_importing_the_package_loads_neither_pyav_nor_numpy() -> None:
    script = "import sys, fleetcraft.video; print({'av', 'numpy'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert result.stdout.strip() == "set()"


def test_without_pyav_the_error_names_the_extra() -> None:
    script = """
import sys
sys.modules["av"] = None
from fleetcraft.errors import FleetError
try:
    from fleetcraft.video import read_video
except FleetError as error:
    print(error.message, error.hint)
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert "PyAV" in result.stdout
    assert "fleetcraft[video]" in result.stdout
