"""What may be written, and by which name everything else is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fleetcraft.errors import DataError, UsageError
from fleetcraft.video import as_pq_frames, as_uint8_frames

SHAPE = (2, 4, 6, 3)


def ramp(dtype: str) -> np.ndarray:
    return np.linspace(0, 1, int(np.prod(SHAPE))).reshape(SHAPE).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_in_zero_to_one_are_scaled_and_rounded(dtype: str) -> None:
    frames = ramp(dtype)
    expected = np.rint(frames.astype(np.float32) * np.float32(255)).astype(np.uint8)
    assert np.array_equal(as_uint8_frames(frames), expected)


def test_uint8_passes_unchanged_and_contiguous() -> None:
    frames = np.arange(2 * 6 * 4 * 3, dtype=np.uint8).reshape(2, 6, 4, 3).transpose(0, 2, 1, 3)
    result = as_uint8_frames(frames)
    assert np.array_equal(result, frames)
    assert result.flags.c_contiguous


def test_rounding_noise_just_outside_the_range_is_clipped() -> None:
    frames = ramp("float32")
    frames[0, 0, 0, 0] = -0.0005
    frames[0, 0, 0, 1] = 1.0005
    result = as_uint8_frames(frames)
    assert (result[0, 0, 0, 0], result[0, 0, 0, 1]) == (0, 255)


def test_a_torch_bfloat16_tensor_is_accepted_even_one_step_above_one() -> None:
    torch = pytest.importorskip("torch")
    frames = torch.full(SHAPE, 1.0078125, dtype=torch.bfloat16)
    frames[:, :, :3] = 0.5
    result = as_uint8_frames(frames)
    assert set(np.unique(result)) == {128, 255}


def test_a_torch_tensor_with_gradient_is_accepted() -> None:
    torch = pytest.importorskip("torch")
    frames = torch.linspace(0, 1, int(np.prod(SHAPE))).reshape(SHAPE).requires_grad_()
    assert as_uint8_frames(frames).max() == 255


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (ramp("float32") * 2 - 1, r"looks like \[-1, 1\]"),
        (ramp("float32") * 255, "looks like 0..255 in floats"),
        (ramp("float32") * 1.2, "expected .0, 1.; nothing was clipped"),
        (np.where(ramp("float32") > 0.5, np.nan, 0.1), "NaN or infinity"),
        (np.where(ramp("float32") > 0.5, np.inf, 0.1), "NaN or infinity"),
        ((ramp("float32") * 65535).astype(np.uint16), "type uint16"),
        ((ramp("float32") * 255).astype(np.int64), "type int64"),
        (ramp("float32") > 0.5, "type bool"),
        (ramp("float32")[0], r"3 dimensions \[4, 6, 3\]"),
        (ramp("float32")[..., :1], "1 channels"),
        (ramp("float32")[:0], "no frames to write"),
        (ramp("float32").astype(np.uint8), "almost black"),
        (ramp("float32") / 255, "almost black"),
    ],
    ids=[
        "minus one to one",
        "floats to 255",
        "slightly too bright",
        "nan",
        "infinity",
        "uint16",
        "int64",
        "bool",
        "one picture",
        "gray",
        "no frames",
        "float cast to uint8",
        "divided twice",
    ],
)
def test_frames_that_are_not_what_they_should_be_are_refused_by_name(
    frames: np.ndarray, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        as_uint8_frames(frames)


def test_channels_first_is_refused_with_the_permutation_as_hint() -> None:
    with pytest.raises(DataError) as caught:
        as_uint8_frames(ramp("float32").transpose(0, 3, 1, 2))
    assert "permute it to [T, H, W, 3]" in caught.value.hint


def test_a_clip_that_really_is_black_is_written() -> None:
    assert as_uint8_frames(np.zeros(SHAPE, np.float32)).max() == 0


def test_the_same_guard_holds_for_torch_tensors_that_numpy_does_not_know() -> None:
    torch = pytest.importorskip("torch")
    frames = torch.zeros(SHAPE).to(torch.float8_e4m3fn)
    with pytest.raises(DataError, match="float8"):
        as_uint8_frames(frames)


def test_a_torch_uint16_tensor_is_refused_by_name() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(DataError, match="type uint16"):
        as_uint8_frames(torch.zeros(SHAPE, dtype=torch.uint16))


def test_minus_one_to_one_in_bfloat16_is_refused() -> None:
    torch = pytest.importorskip("torch")
    frames = (torch.from_numpy(ramp("float32")) * 2 - 1).bfloat16()
    for guard in (as_uint8_frames, as_pq_frames):
        with pytest.raises(DataError, match=r"looks like \[-1, 1\]"):
            guard(frames)


def test_a_ragged_list_is_a_sentence() -> None:
    with pytest.raises(DataError, match="no array"):
        as_uint8_frames([[[1, 2], [3]]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_pq_floats_pass_and_are_scaled_to_the_white_that_is_asked_for(dtype: str) -> None:
    frames = as_pq_frames(ramp(dtype))
    picture = frames.picture(1, 1023)
    assert picture.dtype == np.uint16
    assert np.array_equal(picture, np.rint(ramp(dtype)[1].astype(np.float64) * 1023))


@pytest.mark.parametrize("bits", [10, 12, 16])
def test_code_values_pass_with_their_depth(bits: int) -> None:
    white = 2**bits - 1
    codes = np.rint(ramp("float64") * white).astype(np.uint16)
    assert np.array_equal(as_pq_frames(codes, bits=bits).picture(0, white), codes[0])


def test_a_pq_clip_of_torch_bfloat16_is_accepted() -> None:
    torch = pytest.importorskip("torch")
    frames = torch.full(SHAPE, 1.0078125, dtype=torch.bfloat16)
    assert as_pq_frames(frames).picture(0, 1023).min() == 1023


@pytest.mark.parametrize(
    ("frames", "bits", "words"),
    [
        (ramp("float32") * 2 - 1, None, r"looks like \[-1, 1\]"),
        (ramp("float32") * 255, None, "looks like 0..255 in floats"),
        (ramp("float32") * 1023, None, "expected .0, 1."),
        (np.where(ramp("float32") > 0.5, np.nan, 0.1), None, "NaN or infinity"),
        ((ramp("float32") * 255).astype(np.uint8), None, "type uint8"),
        ((ramp("float32") * 1023).astype(np.int32), None, "type int32"),
        ((ramp("float32") * 1023).astype(np.uint16), 16, "almost black"),
        (ramp("float32").astype(np.uint16), 10, "almost black"),
        (ramp("float32") / 255, None, "almost black"),
        ((ramp("float32") * 4095).astype(np.uint16), 10, "up to 4095, expected at most 1023"),
        (ramp("float32")[..., :1], None, "1 channels"),
    ],
    ids=[
        "minus one to one",
        "floats to 255",
        "floats to 1023",
        "nan",
        "uint8",
        "int32",
        "10 bits said to be 16",
        "float cast to uint16",
        "divided by 255",
        "12 bits said to be 10",
        "gray",
    ],
)
def test_frames_that_are_no_pq_are_refused_by_name(
    frames: np.ndarray, bits: int | None, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        as_pq_frames(frames, bits=bits)


@pytest.mark.parametrize(
    ("dtype", "bits"), [("uint16", None), ("uint16", 8), ("uint16", 17), ("float32", 10)]
)
def test_the_depth_is_said_for_code_values_and_for_nothing_else(
    dtype: str, bits: int | None
) -> None:
    frames = (ramp("float32") * (1023 if dtype == "uint16" else 1)).astype(dtype)
    with pytest.raises(UsageError, match="bits is"):
        as_pq_frames(frames, bits=bits)


def test_a_pq_clip_that_really_is_black_passes() -> None:
    assert as_pq_frames(np.zeros(SHAPE, np.uint16), bits=10).picture(0, 1023).max() == 0
