"""The paths of a training run: what its supervisor decides, and what its attempts leave.

Pure text, as all of the layout. Invariant: what an attempt writes lies under a folder that did not
exist before it.
"""

from __future__ import annotations

import os


class RunPaths:
    """The paths of one training run: what its supervisor decides, and what its attempts leave.

    An attempt is one launch of the run's command; it has the number of its epoch.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.name = os.path.basename(self.folder)
        self.lock = f"{self.folder}/lock"
        self.epochs = f"{self.folder}/epochs"
        self.events = f"{self.folder}/events.jsonl"
        self.status = f"{self.folder}/status.json"
        self.abort_marker = f"{self.folder}/ABORT"
        self.archive = f"{self.folder}/archive"
        self.reports = f"{self.folder}/reports"
        self.checkpoints = f"{self.folder}/checkpoints"
        self.resume = f"{self.folder}/resume"
        self.end = f"{self.folder}/end.json"

    def folders(self) -> tuple[str, ...]:
        """Every folder of a run, parents before children."""
        return (
            self.folder, self.lock, self.epochs, self.archive, self.reports, self.checkpoints,
            self.resume,
        )  # fmt: skip

    def epoch(self, number: int) -> str:
        """The record of one epoch."""
        return f"{self.epochs}/{number:06d}.json"

    def healthy(self, number: int) -> str:
        """Stands once an epoch was verified as healthy."""
        return f"{self.epochs}/{number:06d}.healthy.json"

    def report(self, number: int) -> str:
        """What became better or worse in an epoch: throughput, memory, the knob."""
        return f"{self.reports}/{number:06d}.json"

    def attempt(self, number: int) -> AttemptPaths:
        """What the launch of one epoch leaves."""
        return AttemptPaths(f"{self.folder}/attempt-{number:06d}")

    def preflight(self, nonce: str) -> AttemptPaths:
        """What a launch that only shows what is built leaves; no epoch, so it lies in the archive.

        Its folder is below one of its own, which the launch's nonce names.
        """
        return AttemptPaths(f"{self.archive}/{nonce}/attempt-000000")

    def resume_claims(self, task: str) -> str:
        """The resumes of one task, by from where to where."""
        return f"{self.resume}/{task}"

    def resume_claim(self, task: str, have: str, want: str) -> str:
        """The one resume of a task whose declared end is missing."""
        return f"{self.resume_claims(task)}/{have}-{want}"


class AttemptPaths:
    """The paths of one launch of a run's command; its folder is new, so no old line is inside."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.logs = f"{folder}/logs"
        self.progress = f"{folder}/progress"
        self.errors = f"{folder}/errors"
        self.nodes = f"{folder}/nodes"
        self.built = f"{folder}/built"
        self.order = f"{folder}/order.json"
        self.stop_order = f"{folder}/STOP"

    def folders(self) -> tuple[str, ...]:
        """Every folder of an attempt, parents before children."""
        return (self.folder, self.logs, self.progress, self.errors, self.nodes, self.built)

    def log(self, node: str) -> str:
        """What the command printed on one node."""
        return f"{self.logs}/{node}.log"

    def rank_progress(self, rank: int) -> str:
        """What one rank reports of its progress, one JSON object a line."""
        return progress_file(self.progress, rank)

    def error_file(self, node: str) -> str:
        """Where torchrun puts the first error of a node's ranks."""
        return f"{self.errors}/{node}.json"

    def keeper(self, node: str) -> str:
        """Which process keeps the command on one node, and in which step."""
        return f"{self.nodes}/{node}.keeper.json"

    def ended(self, node: str) -> str:
        """How the command ended on one node."""
        return f"{self.nodes}/{node}.ended.json"

    def built_file(self, rank: int) -> str:
        """What the launcher really built, as one rank tells."""
        return f"{self.built}/rank-{rank:05d}.json"


def progress_file(folder: str, rank: int) -> str:
    """What one rank reports of its progress, one JSON object a line."""
    return f"{folder}/rank-{rank:05d}.jsonl"
