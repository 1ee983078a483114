"""Who a process is part of, as its environment tells."""

from __future__ import annotations

import pytest

from fleetcraft.identity import NO_JOB, JobRun, this_job_run

TOLD = {"FLEET_JOB_ID": "7", "FLEET_JOB_START": "1795997313", "FLEET_JOB_RESTARTS": "2"}


def test_without_a_job_there_is_no_run_whatever_was_inherited() -> None:
    assert this_job_run(TOLD) == NO_JOB


def test_a_run_is_what_the_launcher_was_told_about_this_very_job() -> None:
    assert this_job_run({**TOLD, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3"}) == JobRun(
        job="7", step="3", start_s=1795997313, restarts=2
    )


@pytest.mark.parametrize("inherited", [TOLD, {"FLEET_JOB_START": "1795997313"}])
def test_what_was_told_about_the_job_that_submitted_this_one_says_nothing(
    inherited: dict[str, str],
) -> None:
    # Its start would be before this job's, whose living workers would then count as gone.
    assert this_job_run({**inherited, "SLURM_JOB_ID": "8"}) == JobRun(job="8", restarts=0)
