"""Turns the scores of a sweep into summary.csv, summary.md and summary.png.

It does not wait for scores: the spool starts it when everything it depends on is done.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path
from typing import Any

from documents import SCORE, TIMING, exit_with, read_document, write_text

from fleetcraft.errors import DataError
from fleetcraft.plots import SweepRow, plot_sweep
from fleetcraft.video import read_video

COLUMNS = ("name", "prompt", "seed", "steps")
# What a figure's panel says, for each metric that score.py makes.
LABELS = {
    "brightness": "brightness (0 to 255)",
    "contrast": "contrast (std of luma)",
    "sharpness": "sharpness (var of Laplacian)",
    "colorfulness": "colourfulness",
    "motion": "motion (per frame)",
    "flicker": "flicker (per frame)",
}

Document = dict[str, Any]


def collect(folder: Path) -> tuple[list[Document], list[Document], int]:
    """Reads a folder's scores and timings.

    Args:
        folder: Where the JSON files lie; folders below it are searched too.

    Returns:
        Scores, each with the `path` it came from, ordered by steps and name; timings; and how
        many JSON files were something else or unreadable, and skipped.

    Raises:
        DataError: If there is not one score.
    """
    scores, timings, skipped = [], [], 0
    for path in sorted(folder.rglob("*.json")):
        try:
            document = read_document(path, SCORE, TIMING)
        except DataError as error:
            print(f"skipped: {error.message}", file=sys.stderr)
            document = None
        if document is None:
            skipped += 1
        elif document["schema"] == SCORE:
            scores.append({**document, "path": path})
        else:
            timings.append(document)
    if not scores:
        raise DataError(f"no scores in {folder}", hint="score.py writes them")
    return sorted(scores, key=lambda s: (s["steps"] or 0, s["name"])), timings, skipped


def middle_frame(score: Document) -> Any:
    """The middle frame [H, W, 3] of a score's clip; None if the clip is not there any more."""
    clip = score["path"].parent / score["clip"]
    if not clip.exists():
        return None
    frames = read_video(clip).frames
    return frames[len(frames) // 2]


def table(scores: list[Document]) -> list[list[str]]:
    """Header and rows of the summary; a value that was not measured stays empty."""
    metrics = list(dict.fromkeys(name for score in scores for name in score["metrics"]))
    rows = [[*COLUMNS, *metrics]]
    for score in scores:
        values = [score.get(name) for name in COLUMNS]
        values += [score["metrics"].get(name) for name in metrics]
        rows.append(["" if value is None else str(value) for value in values])
    return rows


def as_csv(rows: list[list[str]]) -> str:
    """The table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def as_markdown(rows: list[list[str]], timings: list[Document], skipped: int) -> str:
    """The table as Markdown, with the timed passes below it."""
    header, *body = rows
    lines = [f"# Sweep: {len(body)} clips", ""]
    lines += [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in body]
    lines += ["", "![Middle frames and metrics](summary.png)", "", "## Timing", ""]
    lines += [describe(timing) for timing in timings] or ["No timed pass was found."]
    lines += ["", f"JSON files that are neither score nor timing, skipped: {skipped}.", ""]
    return "\n".join(lines)


def describe(timing: Document) -> str:
    """One timed pass as a sentence."""
    times = timing["times_s"]
    return (
        f"- {timing['what']}: median {timing['median_s']:.4f} s over {len(times)} runs "
        f"({min(times):.4f} to {max(times):.4f} s), {timing['steps']} steps, "
        f"batch {timing['batch']}, {timing['threads']} thread(s) on {timing['host']} "
        f"({timing['device']}), torch {timing['torch']}"
    )


def as_rows(scores: list[Document]) -> list[SweepRow]:
    """The scores as the figure takes them, coloured by the number of steps."""
    return [
        SweepRow(
            name=score["name"],
            group="" if score["steps"] is None else f"{score['steps']} steps",
            metrics={LABELS.get(name, name): value for name, value in score["metrics"].items()},
            frame=middle_frame(score),
        )
        for score in scores
    ]


def main() -> None:
    """Reads, writes the three files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scores", type=Path, required=True, help="folder of scores and timing")
    parser.add_argument("--out", type=Path, required=True, help="folder for the summary")
    options = parser.parse_args()
    scores, timings, skipped = collect(options.scores)
    rows = table(scores)
    write_text(options.out / "summary.csv", as_csv(rows))
    write_text(options.out / "summary.md", as_markdown(rows, timings, skipped))
    plot_sweep(as_rows(scores), options.out / "summary.png", title="What the sweep made")
    print(f"{options.out}: {len(scores)} clips, {len(timings)} timed, {skipped} files skipped")


if __name__ == "__main__":
    exit_with(main)
