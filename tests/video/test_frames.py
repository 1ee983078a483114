"""What may be written, and by which name everything else is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fleetcraft.errors import DataError
from fleetcraft.video import as_uint8_frames

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
