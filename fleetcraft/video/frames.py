"""Frames in memory: whatever a model returns, checked and turned into what an encoder takes.

No file is touched here, and torch is never imported: tensors are recognised by what they offer.
Invariant: a value is rounded, never wrapped and never stretched; what does not fit is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetcraft.errors import DataError, UsageError

# How far outside [0, 1] is rounding noise: about one step at 1.0 of float16 and of bfloat16.
_TOLERANCE = 1e-3
_BFLOAT16_TOLERANCE = 2.0**-7

# Below these a clip that is not one flat black is taken for a wrong cast: one step of 8 bits, and
# 1/64 of PQ, which is 0.01 cd/m2; 10-bit codes said to be of 16 bits end just below that.
ALMOST_BLACK = 1 / 255
ALMOST_BLACK_PQ = 1 / 64
DEEP_BITS = range(10, 17)


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
    elif _is_float(array.dtype):
        result = _scaled(array, tolerance)
    else:
        raise _bad_dtype(array.dtype)
    _check_not_almost_black(int(result.min()), int(result.max()), 255, ALMOST_BLACK)
    return result


@dataclass(frozen=True, kw_only=True)
class PqFrames:
    """Checked frames for HDR10, scaled one picture at a time.

    Attributes:
        array: PQ values [T, H, W, 3], floats or uint16.
        white: The value of them that is 1.0 in PQ.
    """

    array: NDArray[Any]
    white: float

    def picture(self, index: int, target_white: int) -> NDArray[np.uint16]:
        """One picture [H, W, 3], scaled, clipped and rounded so that 1.0 is `target_white`."""
        scaled = self.array[index].astype(np.float64) * (target_white / self.white)
        codes: NDArray[np.uint16] = np.rint(np.clip(scaled, 0, target_white)).astype(np.uint16)
        return codes


def as_pq_frames(frames: Any, *, bits: int | None = None) -> PqFrames:
    """Checks PQ-encoded frames.

    Args:
        frames: float16, float32, float64 or a torch bfloat16 tensor in [0, 1], or uint16 code
            values with `bits`; of shape [T, H, W, 3] with T >= 1. bfloat16 has steps of 1/256
            near white, so that it fills 8 bits rather than 10.
        bits: Depth of uint16 code values, 10 to 16: they span 0 to ``2**bits - 1``.

    Raises:
        UsageError: If `bits` is missing for uint16, given for floats, or not 10 to 16.
        DataError: If the type, shape or range is another one, a value is NaN or infinite, or the
            clip is almost black in the way that a wrong cast or depth makes it.
    """
    array, tolerance = _as_array(frames)
    _check_shape(array)
    if array.dtype == np.uint16:
        white = _white_of_codes(bits, int(array.max()))
    elif _is_float(array.dtype):
        if bits is not None:
            raise UsageError(
                f"bits is {bits} with {array.dtype} frames, expected it with uint16 only",
                hint="floats are PQ in [0, 1] and have no depth",
                bits=bits,
            )
        _check_range(array, tolerance)
        white = 1.0
    else:
        raise _bad_pq_dtype(array.dtype)
    _check_not_almost_black(float(array.min()), float(array.max()), white, ALMOST_BLACK_PQ)
    return PqFrames(array=array, white=white)


def _white_of_codes(bits: int | None, high: int) -> float:
    if bits is None or bits not in DEEP_BITS:
        raise UsageError(
            f"bits is {bits} with uint16 frames, expected {DEEP_BITS[0]} to {DEEP_BITS[-1]}",
            hint="say how deep the code values are: bits=10 for 0..1023, bits=16 for 0..65535",
            bits=bits,
        )
    white = (1 << bits) - 1
    if high > white:
        raise DataError(
            f"frames have code values up to {high}, expected at most {white} with bits={bits}",
            hint="give the depth that they really have",
            high=high,
            bits=bits,
        )
    return float(white)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" and dtype.itemsize <= 8


def _as_array(frames: Any) -> tuple[NDArray[Any], float]:
    if hasattr(frames, "detach") and hasattr(frames, "cpu"):
        tensor = frames.detach().cpu()
        if str(tensor.dtype).endswith("bfloat16"):
            return np.asarray(tensor.float()), _BFLOAT16_TOLERANCE
        frames = tensor
    try:
        array = np.asarray(frames)
    except (TypeError, ValueError, RuntimeError) as error:
        found = getattr(frames, "dtype", type(frames).__name__)
        raise DataError(
            f"frames of type {found} are no array that numpy takes: {error}",
            hint="convert to uint8 in 0..255, or to float32 in [0, 1]",
            dtype=str(found),
        ) from error
    if str(array.dtype) == "bfloat16":  # as numpy has it from ml_dtypes
        return array.astype(np.float32), _BFLOAT16_TOLERANCE
    return array, _TOLERANCE


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
        "uint16": "write_hdr10_video writes 10 bits; for 8, scale to float in [0, 1] on purpose",
        "bool": "a mask: convert it to uint8 times 255",
    }
    return DataError(
        f"frames have type {dtype}, expected uint8, or floats in [0, 1]",
        hint=hints.get(str(dtype), "convert to uint8 in 0..255, or to float32 in [0, 1]"),
        dtype=str(dtype),
    )


def _bad_pq_dtype(dtype: np.dtype[Any]) -> DataError:
    hints = {
        "uint8": "8 bits show bands in PQ: give what they were made from, or use write_video",
    }
    return DataError(
        f"frames have type {dtype}, expected PQ floats in [0, 1], or uint16 with bits",
        hint=hints.get(str(dtype), "convert to float32 in [0, 1]"),
        dtype=str(dtype),
    )


def _check_range(array: NDArray[Any], tolerance: float) -> None:
    low, high = float(array.min()), float(array.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise DataError(
            "frames contain NaN or infinity",
            hint="the model diverged or a division went wrong; nothing was written",
        )
    if low < -tolerance or high > 1 + tolerance:
        raise _bad_range(low, high, tolerance)


def _scaled(array: NDArray[Any], tolerance: float) -> NDArray[np.uint8]:
    _check_range(array, tolerance)
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


def _check_not_almost_black(low: float, high: float, white: float, limit: float) -> None:
    if low != high and high <= limit * white:
        raise DataError(
            f"the frames are almost black: values span {low:.6g} to {high:.6g} of {white:.6g}",
            hint="a wrong cast, a second division by 255, or a depth that the values do not have; "
            "pass floats in [0, 1] as they are",
            low=low,
            high=high,
            white=white,
        )
