"""Submitting a fleet: the exact sbatch line, worked out from the settings, and its submission.

Not here: whether it may be submitted (`readiness`), and what it does once it runs (`allocation`).
Invariant: what is submitted is what `LaunchPlan.sbatch` shows; site facts are options of sbatch,
and what is ours are arguments of the script, so that the template is never edited.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fleetcraft.config import FILE_NAME, Config, shipped
from fleetcraft.errors import ConfigError, UsageError
from fleetcraft.fleet.shapes import Mark, root_mark
from fleetcraft.layout import Scratch
from fleetcraft.slurm import commands
from fleetcraft.units import MAX_DURATION_S, format_clock, parse_duration_s

TEMPLATE = "fleet.sbatch"
JOB_NAME = "fleet"
_MINUTES = re.compile(r"\d{1,6}")
_DAYS_AND_HOURS = re.compile(r"(\d{1,3})-(\d{1,4})")
_MAX_SIGNAL_S = 65535
_DERIVED = "derived from root"
_DEFAULT = "default"
_PARTS = ("spool.dir", "spool.gpu_dir", "telemetry.dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """A submission that was worked out and not made.

    Attributes:
        options: Options of sbatch.
        script: The batch script.
        arguments: Its arguments.
        nodes: How many nodes.
        time_s: The walltime.
        log: Where the batch script's output goes, with ``%j`` for the job id.
        logs: The folder of all logs.
    """

    options: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]
    nodes: int
    time_s: int
    log: str
    logs: str

    @property
    def sbatch(self) -> list[str]:
        """The exact command line."""
        return ["sbatch", "--parsable", *self.options, self.script, *self.arguments]

    def log_of(self, job_id: str) -> str:
        """Where the output of the batch script goes in this job."""
        return f"{self.log.removesuffix('%j.log')}{job_id}.log"

    @property
    def line(self) -> str:
        """The command line as a shell takes it."""
        return shlex.join(self.sbatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """What runs beside the workers, and the markers between them.

    Attributes:
        command: Shell text; empty for nothing.
        nodes: It runs on so many nodes, as one step.
        after_marker: Workers claim nothing before this barrier record verifies; absolute.
        until_marker: Workers leave only after this file exists; absolute.
    """

    command: str = ""
    nodes: int = 0
    after_marker: str = ""
    until_marker: str = ""


def plan_launch(
    config: Config,
    *,
    nodes: int,
    time_s: int,
    idle_s: float | None = None,
    slots: str | None = None,
    partition: str | None = None,
    comment: str = "",
    name: str = "",
    extra: Sequence[str] = (),
    company: Company | None = None,
) -> LaunchPlan:
    """Works out the submission of one fleet; asks nothing of Slurm and writes nothing.

    Args:
        config: The settings; those of ``slurm`` become options of sbatch.
        nodes: How many nodes.
        time_s: The walltime, in seconds; Slurm rounds it up to minutes.
        idle_s: A worker leaves after so long without work; that of the settings if None.
        slots: Tasks that a worker runs at a time, or ``gpu``; that of the settings if None.
        partition: Instead of that of the settings.
        comment: The job's comment, by which renewals find their jobs; the mark of this scratch
            tree if empty.
        name: The job's name.
        extra: Further options of sbatch, after all others.
        company: What runs beside the workers.

    Raises:
        ConfigError: There is no scratch tree, no template, ``slurm.extra`` cannot be split, or
            Slurm could not name a log after the job in the scratch tree.
        UsageError: More nodes are for the command beside the workers than there are.
    """
    company = company or Company()
    if company.nodes > nodes:
        raise UsageError(
            f"the command beside the workers wants {company.nodes} nodes of {nodes}; "
            "nothing was submitted",
            hint="ask for more nodes with -N, or fewer with --beside-nodes",
        )
    scratch = Scratch(config.root)
    warning_s = _warning_s(config, time_s)
    options = [
        f"--nodes={nodes}",
        f"--time={format_clock(time_s)}",
        f"--job-name={name or JOB_NAME}",
        f"--comment={comment or Mark(root_mark(config.root))}",
        "--exclusive",  # a fleet has its nodes whole
        "--no-kill",
        "--requeue",
        f"--output={_output(scratch)}",
        "--open-mode=append",
        f"--chdir={config.project_dir}",
        *_site_options(config, partition),
        *_split(config.text("slurm.extra"), config.values["slurm.extra"].source),
        *extra,
    ]
    if warning_s:
        options.insert(8, f"--signal=B:USR1@{warning_s}")
    return LaunchPlan(
        options=tuple(options),
        script=template(),
        arguments=tuple(_arguments(config, idle_s, slots, warning_s, company)),
        nodes=nodes,
        time_s=time_s,
        log=scratch.batch_log("%j"),
        logs=scratch.logs,
    )


def submit_launch(plan: LaunchPlan) -> str:
    """Submits a fleet, once; returns the job id.

    Raises:
        SlurmMissingError: sbatch is not here; nothing was submitted.
        SlurmFailedError: It was refused; nothing was submitted.
        SubmissionUnknownError: The answer was lost: the job may exist.
    """
    return commands.submit(plan.options, plan.script, plan.arguments)


def template(name: str = TEMPLATE) -> str:
    """The path of a batch script that comes with fleetcraft.

    Raises:
        ConfigError: It is not there.
    """
    path = shipped("slurm", name)
    if not os.path.isfile(path):
        raise ConfigError(
            f"the batch script is missing: {path}; nothing was submitted",
            hint="install fleetcraft anew, or call it from a whole checkout",
            path=path,
        )
    return path


def parse_walltime_s(text: str) -> int:
    """Reads a walltime as sbatch's ``--time`` takes it; a bare number is minutes.

    Args:
        text: ``MINUTES``, ``MM:SS``, ``HH:MM:SS``, ``D-HH``, ``D-HH:MM``, ``D-HH:MM:SS``, or a
            number with ``s``, ``m``, ``h`` or ``d``.

    Raises:
        UsageError: The text is no walltime; one without end is none for a fleet.

    Source: ``--time`` of sbatch(1).
    """
    stripped = text.strip()
    if _MINUTES.fullmatch(stripped):
        seconds = int(stripped) * 60
    elif days := _DAYS_AND_HOURS.fullmatch(stripped):
        seconds = int(days[1]) * 86400 + int(days[2]) * 3600
    else:
        return parse_duration_s(stripped)
    if not 1 <= seconds <= MAX_DURATION_S:
        raise UsageError(
            f"not a usable walltime: {text!r}",
            hint="write it as for sbatch: minutes, HH:MM:SS or D-HH:MM:SS",
            text=text,
        )
    return seconds


def _output(scratch: Scratch) -> str:
    """The batch log as sbatch takes it, where ``%`` stands for the job id only where we say so.

    Raises:
        ConfigError: The path has a backslash, after which Slurm puts no job id in.

    Source: "filename pattern" of sbatch(1).
    """
    if "\\" in scratch.logs:
        raise ConfigError(
            f"Slurm cannot name logs after jobs in a path with a backslash: {scratch.logs}; "
            "nothing was submitted",
            hint="choose a root without a backslash",
            path=scratch.logs,
        )
    return Scratch(scratch.root.replace("%", "%%")).batch_log("%j")


def _warning_s(config: Config, time_s: int) -> int:
    """How long before the end Slurm is to warn: at most a tenth of the walltime; 0 for never."""
    wanted_s = min(config.seconds("slurm.warning_s"), time_s / 10, _MAX_SIGNAL_S)
    return max(1, int(wanted_s)) if wanted_s > 0 else 0


def _site_options(config: Config, partition: str | None) -> list[str]:
    texts = {
        "partition": partition or config.text("slurm.partition"),
        "account": config.text("slurm.account"),
        "qos": config.text("slurm.qos"),
        "constraint": config.text("slurm.constraint"),
    }
    options = [f"--{option}={text}" for option, text in texts.items() if text]
    if gpus := config.count("slurm.gpus_per_node"):
        options.append(f"--gpus-per-node={gpus}")
    return options


def _split(text: str, source: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(
            f"{source}: slurm.extra cannot be split into options ({error}): {text!r}",
            hint="quote it as for a shell",
        ) from error


def _arguments(
    config: Config, idle_s: float | None, slots: str | None, warning_s: int, company: Company
) -> list[str]:
    """What the script needs to become the launcher: words to export, then options."""
    words = [f"FLEETCRAFT_PYTHON={sys.executable}"]
    if setup := config.text("slurm.setup"):
        words.append(f"FLEET_SLURM_SETUP={setup}")
    words += _place(config)
    words += ["--project-dir", config.project_dir]
    site = config.values["site"]
    if site.value and FILE_NAME not in site.source:
        text = str(site.value)
        words += ["--site", os.path.abspath(text) if os.sep in text else text]
    idle_s = config.seconds("worker.idle_s") if idle_s is None else idle_s
    words += ["--slots", slots or config.text("worker.slots"), "--idle", f"{idle_s:g}"]
    for option, setting in (("--heartbeat", "worker.heartbeat_s"), ("--grace", "worker.grace_s")):
        words += [option, f"{config.seconds(setting):g}"]
    words += ["--warning", str(warning_s)]
    if company.command:
        words += ["--beside", company.command, "--beside-nodes", str(company.nodes)]
    for option, path in (
        ("--after-marker", company.after_marker),
        ("--until-marker", company.until_marker),
    ):
        if path:
            words += [option, path]
    return words


def _place(config: Config) -> list[str]:
    """The scratch tree, and its parts where they are not where they belong by themselves."""
    words = []
    if config.values["telemetry.interval_s"].source != _DEFAULT:
        words = [f"FLEET_TELEMETRY_INTERVAL_S={config.seconds('telemetry.interval_s'):g}"]
    if all(config.values[name].source == _DERIVED for name in _PARTS):
        return [*words, "--root", config.root]
    return [
        *words,
        f"FLEET_ROOT={config.root}",
        f"FLEET_SPOOL_DIR={config.spool_dir('outer')}",
        f"FLEET_SPOOL_GPU_DIR={config.spool_dir('gpu')}",
        f"FLEET_TELEMETRY_DIR={config.text('telemetry.dir')}",
    ]
