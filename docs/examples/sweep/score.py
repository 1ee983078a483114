"""Measures one clip from its decoded pixels: what a viewer gets, not what the model meant."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from documents import CLIP, SCORE, exit_with, read_document, write_document
from numpy.typing import NDArray

from fleetcraft.video import read_video

# Luma of BT.709. Source: ITU-R BT.709-6, item 3.2.
LUMA = np.array([0.2126, 0.7152, 0.0722])


def measure(frames: NDArray[np.uint8]) -> dict[str, float]:
    """Computes the metrics of one clip.

    Args:
        frames: uint8 RGB [T, H, W, 3].

    Returns:
        Each metric by name, in steps of 255 unless its function says otherwise.
    """
    luma = frames @ LUMA
    return {
        "brightness": float(luma.mean()),
        "contrast": float(luma.std(axis=(1, 2)).mean()),
        "sharpness": sharpness(luma),
        "colorfulness": colorfulness(frames),
        "motion": float(np.abs(np.diff(luma, axis=0)).mean()) if len(luma) > 1 else 0.0,
        "flicker": flicker(luma),
    }


def sharpness(luma: NDArray[np.float64]) -> float:
    """Variance of the Laplacian of [T, H, W], averaged over frames, in squared steps.

    Source: Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy" (2000).
    """
    inner = luma[:, 1:-1, 1:-1]
    around = luma[:, :-2, 1:-1] + luma[:, 2:, 1:-1] + luma[:, 1:-1, :-2] + luma[:, 1:-1, 2:]
    return float((around - 4 * inner).var(axis=(1, 2)).mean())


def colorfulness(frames: NDArray[np.uint8]) -> float:
    """How colourful the frames [T, H, W, 3] look, over all pixels.

    Source: Hasler and Suesstrunk, "Measuring colourfulness in natural images" (2003).
    """
    red, green, blue = np.moveaxis(frames.astype(np.float64), -1, 0)
    red_green, yellow_blue = red - green, (red + green) / 2 - blue
    spread = np.hypot(red_green.std(), yellow_blue.std())
    return float(spread + 0.3 * np.hypot(red_green.mean(), yellow_blue.mean()))


def flicker(luma: NDArray[np.float64]) -> float:
    """Mean change of the whole picture's brightness from frame to frame of [T, H, W]."""
    return float(np.abs(np.diff(luma.mean(axis=(1, 2)))).mean()) if len(luma) > 1 else 0.0


def main() -> None:
    """Decodes, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clip", type=Path, required=True, help="the clip, as in clip.mp4")
    parser.add_argument("--out", type=Path, required=True, help="the score, as in score.json")
    options = parser.parse_args()
    video = read_video(options.clip)
    about = options.clip.with_suffix(".json")
    origin = (read_document(about, CLIP) or {}) if about.exists() else {}
    metrics = {name: round(value, 4) for name, value in measure(video.frames).items()}
    write_document(
        options.out,
        SCORE,
        name=options.clip.stem,
        # Relative to the score, so that the whole tree can be moved.
        clip=os.path.relpath(options.clip, options.out.parent),
        seed=origin.get("seed"),
        steps=origin.get("steps"),
        prompt=origin.get("prompt"),
        metrics=metrics,
    )
    print(" ".join(f"{name}={value}" for name, value in metrics.items()))


if __name__ == "__main__":
    exit_with(main)
