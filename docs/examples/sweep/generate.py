"""Samples one clip and writes it: clip.mp4, and clip.json that says what it is."""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

from documents import CLIP, PROMPTS, exit_with, read_document, write_document

from fleetcraft.errors import DataError, UsageError


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="seed of the clip's own noise")
    parser.add_argument("--steps", type=int, default=16, help="sampler steps (default 16)")
    parser.add_argument("--out", type=Path, required=True, help="the clip, as in clip.mp4")
    parser.add_argument("--prompts", type=Path, help="prompts.json made by fetch_prompt.py")
    return parser.parse_args()


def choose_prompt(seed: int, prompts_file: Path | None) -> str:
    """Takes the seed's prompt from the list, or from the model's own scenes."""
    from model import SCENES, prompt_for

    if prompts_file is None:
        return prompt_for(seed)
    document = read_document(prompts_file, PROMPTS)
    known = [name for name in (document or {}).get("prompts", []) if name in SCENES]
    if not known:
        raise DataError(
            f"{prompts_file} has no prompt that the model knows",
            hint=f"the model knows {', '.join(SCENES)}",
        )
    return prompt_for(seed, known)


def main() -> None:
    """Samples, writes, describes."""
    options = arguments()
    if options.steps < 1:
        raise UsageError(f"--steps is {options.steps}, expected at least 1")

    from model import FPS, FlowModel

    from fleetcraft.video import write_video

    prompt = choose_prompt(options.seed, options.prompts)
    model = FlowModel()
    started = time.perf_counter()
    frames = model.sample([options.seed], [prompt], options.steps)[0]
    sampling_s = time.perf_counter() - started
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_video(options.out, frames, fps=FPS)
    write_document(
        options.out.with_suffix(".json"),
        CLIP,
        seed=options.seed,
        steps=options.steps,
        prompt=prompt,
        frames=len(frames),
        fps=FPS,
        # Other tasks may run beside this one: good for a log, not for a report.
        sampling_s=round(sampling_s, 4),
        frames_sha256=hashlib.sha256(frames.numpy().tobytes()).hexdigest(),
    )
    print(f"{options.out}: {prompt}, seed {options.seed}, {options.steps} steps")


if __name__ == "__main__":
    exit_with(main)
