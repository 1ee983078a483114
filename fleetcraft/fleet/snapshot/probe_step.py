"""Asking the nodes of running jobs for their GPUs: one bounded job step each, and none is left.

What runs on the node is `probe`. Invariant: a step that was started has ended, or was cancelled by
its exact id, before the answer is given; no other step and no job is touched.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO

import msgspec

from fleetcraft.errors import FleetError
from fleetcraft.fleet.snapshot.probe import SCHEMA, NodeReport
from fleetcraft.identity import new_launch_token
from fleetcraft.slurm import commands, environment
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.queue import my_steps
from fleetcraft.spool.tree import describe_problem

BOUND_S = 30.0
_AT_A_TIME = 4  # an srun is two processes, and login nodes limit those
_TERM_GRACE_S = 5.0
_OUTPUT_BYTES = 1 << 20


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """A running job.

    Attributes:
        nodes: Its nodes.
        gpus_per_node: GPUs that it has on each; None when that is not known or not the same.
            srun by itself gives a step only what the job asked for.
    """

    job_id: str
    nodes: tuple[str, ...]
    gpus_per_node: int | None = None


class Probed(msgspec.Struct, kw_only=True):
    """What the nodes of some jobs said.

    Attributes:
        reports: By job and node.
        failures: Why a job's nodes did not all answer, by job.
        left: Steps that may still run, since nothing said that they have ended.
    """

    reports: dict[tuple[str, str], NodeReport] = msgspec.field(default_factory=dict)
    failures: dict[str, str] = msgspec.field(default_factory=dict)
    left: list[str] = msgspec.field(default_factory=list)


def probe_jobs(
    allocations: Sequence[Allocation], polls: Polls, *, bound_s: float = BOUND_S
) -> Probed:
    """Asks every node of some running jobs of this user.

    Starts one srun for each job, four at a time. Only after one that had to be stopped is Slurm
    asked for steps and told to cancel one.

    Args:
        allocations: The jobs.
        polls: How Slurm is asked.
        bound_s: How long one job's nodes are waited for.
    """
    probed = Probed()
    for first in range(0, len(allocations), _AT_A_TIME):
        _probe_some(allocations[first : first + _AT_A_TIME], polls, probed, bound_s)
    return probed


def _probe_some(
    allocations: Sequence[Allocation], polls: Polls, probed: Probed, bound_s: float
) -> None:
    steps: list[_Step] = []
    with contextlib.ExitStack() as files:
        try:
            for allocation in allocations:
                try:
                    out = files.enter_context(tempfile.TemporaryFile())
                    err = files.enter_context(tempfile.TemporaryFile())
                    steps.append(_Step(allocation, out, err))
                except (FleetError, OSError) as error:
                    probed.failures[allocation.job_id] = describe_problem(error)
            _wait(steps, bound_s)
        finally:
            for step in steps:
                step.stop()
            for step in steps:
                step.read(probed, bound_s)
                if step.stopped:
                    _cancel(step, polls, probed)


def _wait(steps: Sequence[_Step], bound_s: float) -> None:
    deadline = time.monotonic() + bound_s
    while any(step.runs for step in steps) and time.monotonic() < deadline:
        time.sleep(0.05)


class _Step:
    """One srun with one task on each node of a job."""

    def __init__(self, allocation: Allocation, out: IO[bytes], err: IO[bytes]) -> None:
        self.allocation = allocation
        self.name = f"fleetcraft-probe-{new_launch_token()}"
        self.stopped = False
        self.step_id = ""
        self._out = out
        self._err = err
        # As if in a job, so that whatever job this itself runs in says nothing about the step.
        env = environment.for_submission({**os.environ, "SLURM_JOB_ID": allocation.job_id})
        self._child = commands.start_step(
            self._argv(), env=env, stdout=out.fileno(), stderr=err.fileno()
        )

    def _argv(self) -> list[str]:
        job = self.allocation
        count = len(job.nodes)
        gres = [f"--gres=gpu:{job.gpus_per_node}"] if job.gpus_per_node else []
        return [
            "srun", f"--jobid={job.job_id}", "--overlap", f"--nodes={count}", f"--ntasks={count}",
            "--ntasks-per-node=1", f"--job-name={self.name}", *gres, "--mem=0", "--time=1",
            "--mpi=none", "--input=none", "--chdir=/", "--wait=0", "--kill-on-bad-exit=0",
            "--quiet", sys.executable, "-P", "-m", "fleetcraft.fleet.snapshot.probe",
        ]  # fmt: skip

    @property
    def runs(self) -> bool:
        return self._child.poll() is None

    def stop(self) -> None:
        """Ends the srun if it still runs; by TERM it ends its step too, by KILL it cannot."""
        for number, wait_s in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, _TERM_GRACE_S)):
            if not self.runs:
                return
            self.stopped = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(wait_s)

    def read(self, probed: Probed, bound_s: float) -> None:
        """Takes over what the nodes printed; a line that is no report is passed over."""
        job_id, nodes = self.allocation.job_id, self.allocation.nodes
        for line in _beginning(self._out).splitlines():
            with contextlib.suppress(msgspec.MsgspecError):
                report = msgspec.json.decode(line, type=NodeReport)
                if report.schema == SCHEMA and report.node in nodes:
                    probed.reports[job_id, report.node] = report
                    if report.step.startswith(f"{job_id}."):
                        self.step_id = report.step
        if all((job_id, node) in probed.reports for node in nodes):
            return
        said = _beginning(self._err).decode("utf-8", "replace").strip().partition("\n")[0]
        code = self._child.returncode
        how = f"did not end within {bound_s:g} s" if self.stopped else f"ended with {code}"
        probed.failures[job_id] = f"its srun {how}" + (f": {said}" if said else "")


def _beginning(file: IO[bytes]) -> bytes:
    return os.pread(file.fileno(), _OUTPUT_BYTES, 0)


def _cancel(step: _Step, polls: Polls, probed: Probed) -> None:
    """Cancels what an srun may have left, by the exact id of its step."""
    try:
        for step_id in [step.step_id] if step.step_id else _ids_of(step, polls):
            commands.cancel(step_id)
    except FleetError as error:
        probed.left.append(f"step {step.name} of job {step.allocation.job_id}: {error.message}")


def _ids_of(step: _Step, polls: Polls) -> list[str]:
    """The id of the step with this one's name; none when Slurm lists no such step."""
    of_job = f"{step.allocation.job_id}."
    listed = my_steps(polls, fresh=True).steps
    return [i for i, one in listed.items() if one.name == step.name and i.startswith(of_job)]
