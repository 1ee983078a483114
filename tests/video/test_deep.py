"""HDR and more than 8 bits: described before decoding, refused by default, kept on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fleetcraft.errors import DataError, UsageError
from fleetcraft.video import (
    Deep,
    inspect_video,
    iter_frames,
    read_video,
    reader,
    write_hdr10_video,
    write_video,
)
from fleetcraft.video.tags import ColorTags, pass_gate
from tests.video.clips import encode_planes, encode_raw, smooth_clip, smooth_codes

SDR = {"color_primaries": 1, "color_trc": 1, "colorspace": 1}
LIMITED, FULL = {"color_range": 1}, {"color_range": 2}


def gray_ramp(path: Path, pix_fmt: str, low: int, high: int, tags: dict[str, int]) -> Path:
    """A file whose luma has every code value from low to high, and chroma none."""
    bits = 10 if "10" in pix_fmt else 12
    width = (high - low + 2) // 2 * 2
    luma = np.broadcast_to(np.minimum(np.arange(width) + low, high), (8, width))
    planes = [luma.astype(np.uint16)]
    if not pix_fmt.startswith("gray"):
        halved = pix_fmt.startswith("yuv420p")
        shape = (4, width // 2) if halved else (8, width)
        planes += [np.full(shape, 1 << (bits - 1), np.uint16)] * 2
    return encode_planes(path, planes, pix_fmt, tags=tags)


def test_an_hdr_file_is_described_without_being_refused_or_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hdr10_video(tmp_path / "a.mp4", smooth_codes(), fps=24, bits=10)

    def decoded(*_: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(reader, "walk_frames", decoded)
    info = inspect_video(tmp_path / "a.mp4")
    assert (info.bits, info.pix_fmt, info.is_hdr) == (10, "yuv420p10le", True)
    assert (info.primaries, info.transfer, info.matrix) == ("bt2020", "smpte2084", "bt2020nc")
    assert (info.color_range, info.is_wide_gamut) == ("limited", True)
    assert (info.frames_promised, info.duration_s) == (12, 0.5)


def test_the_refusal_names_every_field_and_comes_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    write_hdr10_video(path, smooth_codes(), fps=24, bits=10)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 9 // 10])  # decoding it would find the damage
    with pytest.raises(DataError, match="truncated"):
        read_video(path, deep="keep")
    with pytest.raises(DataError, match="it is HDR") as caught:
        read_video(path)
    for words in ("yuv420p10le", "primaries bt2020", "transfer smpte2084", "matrix bt2020nc"):
        assert words in caught.value.message
    assert caught.value.facts["bits"] == 10
    assert "deep='keep'" in caught.value.hint


def test_what_a_file_may_be_read_as_is_one_of_three_words(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(3), fps=24)
    with pytest.raises(UsageError, match="deep is 'maybe'"):
        iter_frames(tmp_path / "a.mp4", deep="maybe")


@pytest.mark.parametrize("deep", [Deep.REFUSE, Deep.FLATTEN])
def test_hdr_is_never_flattened(tmp_path: Path, deep: Deep) -> None:
    write_hdr10_video(tmp_path / "a.mp4", smooth_codes(3), fps=24, bits=10)
    with pytest.raises(DataError, match="nothing was flattened") as caught:
        read_video(tmp_path / "a.mp4", deep=deep)
    assert "tone-map" in caught.value.hint


@pytest.mark.parametrize(
    "tags", [{"color_primaries": 9}, {"color_trc": 14}, {"colorspace": 9}, {"color_trc": 18}]
)
def test_a_wide_gamut_or_hlg_is_not_flattened_and_is_kept(
    tmp_path: Path, tags: dict[str, int]
) -> None:
    encode_raw(tmp_path / "a.mp4", smooth_clip(3), pix_fmt="yuv420p10le", tags=tags)
    with pytest.raises(DataError, match="nothing was flattened"):
        read_video(tmp_path / "a.mp4", deep="flatten")
    assert read_video(tmp_path / "a.mp4", deep="keep").bits == 10


@pytest.mark.parametrize("pix_fmt", ["yuv420p10le", "yuv444p10le", "yuv444p12le"])
@pytest.mark.parametrize(("matrix", "transfer"), [(1, 1), (9, 16)], ids=["BT.709", "BT.2020 PQ"])
def test_every_level_of_a_limited_range_ramp_is_kept(
    tmp_path: Path, pix_fmt: str, matrix: int, transfer: int
) -> None:
    scale = 4 if "10" in pix_fmt else 16
    low, high = 16 * scale, 235 * scale
    tags = {"colorspace": matrix, "color_trc": transfer, "color_primaries": matrix, **LIMITED}
    gray_ramp(tmp_path / "a.mkv", pix_fmt, low, high, tags)
    video = read_video(tmp_path / "a.mkv", deep=Deep.KEEP)
    line = video.frames[0, 0, :, 0]
    assert video.bits == (10 if scale == 4 else 12)
    assert (line.dtype, line.min(), line.max()) == (np.uint16, 0, 2**video.bits - 1)
    assert len(np.unique(line)) == high - low + 1
    assert np.all(np.diff(line.astype(int)) >= 0)
    ideal = (np.minimum(np.arange(len(line)) + low, high) - low) * line.max() / (high - low)
    assert np.abs(line - ideal).max() <= 1
    assert (video.frames == video.frames[..., :1]).all()


@pytest.mark.parametrize("pix_fmt", ["yuv420p10le", "yuv444p10le", "gray10le"])
def test_every_level_of_a_full_range_ramp_comes_back_exactly(tmp_path: Path, pix_fmt: str) -> None:
    gray_ramp(tmp_path / "a.mkv", pix_fmt, 0, 1023, {**SDR, **FULL})
    frames = read_video(tmp_path / "a.mkv", deep="keep").frames
    assert np.array_equal(frames[0, 0, :, 1], np.arange(1024))


def test_untagged_gray_counts_as_full_range(tmp_path: Path) -> None:
    gray_ramp(tmp_path / "a.mkv", "gray10le", 0, 1023, {})
    frames = read_video(tmp_path / "a.mkv", deep="keep").frames
    assert len(np.unique(frames)) == 1024


@pytest.mark.parametrize(("pix_fmt", "bits"), [("gbrp10le", 10), ("gbrp12le", 12)])
def test_stored_rgb_comes_back_exactly(tmp_path: Path, pix_fmt: str, bits: int) -> None:
    values = np.random.default_rng(0).integers(0, 2**bits, (3, 16, 32)).astype(np.uint16)
    encode_planes(tmp_path / "a.mkv", list(values), pix_fmt)
    video = read_video(tmp_path / "a.mkv", deep="keep")
    green, blue, red = values
    assert video.bits == bits
    assert np.array_equal(video.frames[0], np.stack([red, green, blue], axis=-1))


def test_flattening_rounds_each_level_to_the_nearest_of_8_bits(tmp_path: Path) -> None:
    gray_ramp(tmp_path / "a.mkv", "yuv444p10le", 64, 940, {**SDR, **LIMITED})
    kept = read_video(tmp_path / "a.mkv", deep="keep")
    flat = read_video(tmp_path / "a.mkv", deep="flatten")
    assert (flat.frames.dtype, flat.bits, flat.info.bits) == (np.uint8, 8, 10)
    assert np.array_equal(flat.frames, np.rint(kept.frames * (255 / 1023)))
    assert len(np.unique(flat.frames)) == 256


def test_an_8_bit_file_is_the_same_however_it_is_read(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", smooth_clip(3), fps=24)
    plain = read_video(tmp_path / "a.mp4")
    flat = read_video(tmp_path / "a.mp4", deep="flatten")
    kept = read_video(tmp_path / "a.mp4", deep="keep")
    assert np.array_equal(plain.frames, flat.frames)
    assert (kept.frames.dtype, kept.bits, plain.bits) == (np.uint16, 8, 8)
    assert np.abs(kept.frames.astype(int) - plain.frames).max() <= 1


def test_frames_one_by_one_are_those_of_the_whole_video_when_kept(tmp_path: Path) -> None:
    write_hdr10_video(tmp_path / "a.mp4", smooth_codes(4), fps=24, bits=10)
    frames = np.stack(list(iter_frames(tmp_path / "a.mp4", deep=Deep.KEEP)))
    assert np.array_equal(frames, read_video(tmp_path / "a.mp4", deep=Deep.KEEP).frames)


def test_a_container_that_hides_the_pq_of_its_frames_does_not_get_them_flattened(
    tmp_path: Path,
) -> None:
    hidden = "log-level=none:pools=1:colorprim=9:transfer=16:colormatrix=9"
    encode_raw(
        tmp_path / "a.mp4",
        smooth_clip(3),
        codec="libx265",
        tags=SDR,
        codec_options={"x265-params": hidden},
    )
    assert not inspect_video(tmp_path / "a.mp4").is_hdr, "the container no longer hides it"
    with pytest.raises(DataError, match="it is HDR"):
        read_video(tmp_path / "a.mp4")


def test_more_bits_than_16_are_not_read() -> None:
    floats = ColorTags(
        pix_fmt="gbrpf32le", bits=32, is_rgb=True, primaries=1, transfer=1, matrix=0, range=2
    )
    for deep in Deep:
        with pytest.raises(DataError, match="32 bits per channel, at most 16"):
            pass_gate("a.exr", floats, deep)


def test_a_matrix_without_conversion_is_described_and_not_read(tmp_path: Path) -> None:
    encode_raw(tmp_path / "a.mp4", smooth_clip(3), tags={"colorspace": 14})
    assert inspect_video(tmp_path / "a.mp4").matrix == "ictcp"
    with pytest.raises(DataError, match="'ictcp' has no exact conversion"):
        read_video(tmp_path / "a.mp4", deep="keep")


def test_the_gray_of_a_plain_10_bit_file_is_that_of_8_bits_when_flattened(tmp_path: Path) -> None:
    planes = [np.full((16, 16), 512, np.uint16)] * 3
    encode_planes(tmp_path / "a.mkv", planes, "yuv444p10le", tags={**SDR, **LIMITED})
    gray = read_video(tmp_path / "a.mkv", deep="flatten").frames
    assert np.unique(gray).tolist() == [round((512 - 64) / 876 * 255)]
