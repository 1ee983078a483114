"""What a logger is told, and what it tells whoever started it.

Records alone, as JSON between processes; nothing here logs. Invariant: settings that were made can
be kept.
"""

from __future__ import annotations

import os

import msgspec

from fleetcraft.errors import UsageError
from fleetcraft.identity import this_host, this_job_run

LEAST_INTERVAL_S = 0.1
MOST_INTERVAL_S = 86400.0


class LoggerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a logger is told.

    Attributes:
        folder: Where its files go, absolute.
        interval_s: Between samples, 0.1 s to a day.
        node: The node's name.
        job: The job's id; see `LoggerSettings.here`.
        step: Slurm's step, or empty.
        cluster: Slurm's name of the cluster, or empty.
        watch_fd: The read end of a pipe that whoever starts it holds; the logger ends at its end.
        done_fd: The write end of a pipe: held open to the very end, so that it can be waited for,
            and told each GPU that is lost, as a line that begins with ``lost``.
        wait_s: How long to wait for another logger of this node and job to end.
        all_gpus: Whether to log GPUs that ``CUDA_VISIBLE_DEVICES`` leaves out.
        samples: Ends after so many; None for never.
        deadline_s: For the driver's calls of one GPU; half the interval, 0.5 s to
            5 s, if None.
    """

    folder: str
    interval_s: float
    node: str
    job: str
    step: str = ""
    cluster: str = ""
    watch_fd: int | None = None
    done_fd: int | None = None
    wait_s: float = 0.0
    all_gpus: bool = False
    samples: int | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        """Refuses an interval that no cadence can keep."""
        if not LEAST_INTERVAL_S <= self.interval_s <= MOST_INTERVAL_S:
            raise UsageError(
                f"the interval is {self.interval_s:g} s, expected {LEAST_INTERVAL_S:g} to "
                f"{MOST_INTERVAL_S:g}; nothing was logged",
                hint="the driver keeps what it saw between samples: 30 is often enough",
                interval_s=self.interval_s,
            )

    @classmethod
    def here(cls, folder: str, interval_s: float, **more: object) -> LoggerSettings:
        """Settings for this node and the Slurm job that this process is part of.

        Outside Slurm the job is ``L`` and twelve hex digits of host and boot.

        Args:
            folder: Where its files go.
            interval_s: Between samples.
            more: Other settings by name.
        """
        run, host = this_job_run(os.environ), this_host()
        of_place = {
            "node": host.host,
            "job": run.job or host.local_job,
            "step": run.step,
            "cluster": run.cluster,
        }
        given = {"folder": os.path.abspath(folder), "interval_s": interval_s, **of_place, **more}
        return cls(**given)  # type: ignore[arg-type]


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """What is said when the first row has been written."""

    path: str
    pid: int
    interval_s: float
    gpus: int
    driver: str


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What is said at the end.

    Attributes:
        path: The file that it wrote last; empty when none could be made.
        reason: Why it ended.
        samples: How often it looked.
        rows_written: Rows in its files.
        rows_lost: Rows that the disk did not take.
    """

    path: str
    reason: str
    samples: int
    rows_written: int
    rows_lost: int


def started_line(started: Started) -> str:
    """The start as a line for people."""
    gpus = f"{started.gpus} GPU{'' if started.gpus == 1 else 's'}"
    where = started.path or "no file yet, the disk does not take one"
    return f"telemetry: {where}, every {started.interval_s:g} s, {gpus}"


def ended_line(ended: Ended) -> str:
    """The end as a line for people."""
    lost = f", {ended.rows_lost} lost" if ended.rows_lost else ""
    return f"telemetry: {ended.rows_written} rows written{lost}; ended: {ended.reason}"
