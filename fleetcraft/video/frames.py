"""Frames in memory: whatever a model returns, checked and turned into uint8 [T, H, W, 3].

No file is touched here, and torch is never imported: tensors are recognised by what they offer.
Invariant: a value is rounded, never wrapped and never stretched; what does not fit is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetcraft.errors import DataError

# How far outside [0, 1] is rounding noise: about one step at 1.0 of float16 and of bfloat16.
_TOLERANCE = 1e-3
_BFLOAT16_TOLERANCE = 2.0**-7


def as_uint8_frames(frames: Any) -> NDArray[np.uint8]:
    """Checks frames and returns them as uint8.

    Args:
        frames: uint8 in 0..255, or float16, float32, float64 or a torch bfloat16 tensor in
            [0, 1], of shape [T, H, W, 3] with T >= 1. A torch tensor may be on any device.

    Returns:
        Contiguous uint8 [T, H, W, 3]; floats are scaled by 255, clipped and rounded.

    Raises:
        DataError: If the type, shape or range is another one, a value is NaN or infinite, or the
            result is almost black in the way that a wrong cast makes it.
    """
    array, tolerance = _as_array(frames)
    _check_shape(array)
    if array.dtype == np.uint8:
        result: NDArray[np.uint8] = np.ascontiguousarray(array)
    elif array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        result = _scaled(array, tolerance)
    else:
        raise _bad_dtype(array.dtype)
    _check_not_almost_black(result)
    return result


def _as_array(frames: Any) -> tuple[NDArray[Any], float]:
    if not (hasattr(frames, "detach") and hasattr(frames, "cpu")):
        return np.asarray(frames), _TOLERANCE
    tensor = frames.detach().cpu()
    if str(tensor.dtype).endswith("bfloat16"):
        return np.asarray(tensor.float()), _BFLOAT16_TOLERANCE
    return np.asarray(tensor), _TOLERANCE


def _check_shape(array: NDArray[Any]) -> None:
    shape = list(array.shape)
    if array.ndim != 4:
        raise DataError(
            f"frames have {array.ndim} dimensions {shape}, expected 4: [T, H, W, 3]",
            hint="one clip at a time; add a leading axis to a single picture",
            shape=shape,
        )
    if array.shape[3] != 3:
        hint = "this is [T, 3, H, W]: permute it to [T, H, W, 3]" if array.shape[1] == 3 else ""
        raise DataError(
            f"frames have {array.shape[3]} channels in {shape}, expected 3 in the last axis",
            hint=hint,
            shape=shape,
        )
    if 0 in array.shape:
        raise DataError(f"there are no frames to write: the shape is {shape}", shape=shape)


def _bad_dtype(dtype: np.dtype[Any]) -> DataError:
    hints = {
        "uint16": "scale 16-bit frames to float in [0, 1]; dropping bits is your choice to make",
        "bool": "a mask: convert it to uint8 times 255",
    }
    return DataError(
        f"frames have type {dtype}, expected uint8, or floats in [0, 1]",
        hint=hints.get(str(dtype), "convert to uint8 in 0..255, or to float32 in [0, 1]"),
        dtype=str(dtype),
    )


def _scaled(array: NDArray[Any], tolerance: float) -> NDArray[np.uint8]:
    low, high = float(array.min()), float(array.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise DataError(
            "frames contain NaN or infinity",
            hint="the model diverged or a division went wrong; nothing was written",
        )
    if low < -tolerance or high > 1 + tolerance:
        raise _bad_range(low, high, tolerance)
    result = np.empty(array.shape, np.uint8)
    for source, target in zip(array, result, strict=True):
        # float32 first: 255 * x in float16 has steps of 1/8 and would round twice.
        scaled = source.astype(np.float32) * np.float32(255)
        target[...] = np.rint(np.clip(scaled, 0, 255))
    return result


def _bad_range(low: float, high: float, tolerance: float) -> DataError:
    if -1 - tolerance <= low < 0 and high <= 1 + tolerance:
        likely, hint = "this looks like [-1, 1]", "map it with (x + 1) / 2 first"
    elif low >= 0 and 2 < high <= 255:
        likely, hint = "this looks like 0..255 in floats", "divide by 255, or cast to uint8"
    else:
        likely, hint = "nothing was clipped", "clip or rescale on purpose before writing"
    return DataError(
        f"float frames span {low:.6g} to {high:.6g}, expected [0, 1]; {likely}",
        hint=hint,
        low=low,
        high=high,
    )


def _check_not_almost_black(result: NDArray[np.uint8]) -> None:
    low, high = int(result.min()), int(result.max())
    if high <= 1 and low != high:
        raise DataError(
            f"the frames are almost black: values span {low} to {high} of 255",
            hint="a float in [0, 1] was cast to uint8 or divided by 255 twice; pass it as it is",
            low=low,
            high=high,
        )
