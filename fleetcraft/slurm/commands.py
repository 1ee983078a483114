"""Starting Slurm's programs: the only place that does.

Not here: reading tables, and how often may be asked (`polls`). Invariant: whatever the program
does, the call ends in time, and anything but a plain success is a SchedulerError that names the
program and what it said.

A process whose children somebody else waits for (``waitpid(-1)``) must not do so while a call is
under way: a lost exit code is an error here, never taken for a success.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from fleetcraft.errors import (
    NoAnswerError,
    SlurmFailedError,
    SlurmMissingError,
    SlurmTimeoutError,
    SubmissionUnknownError,
    UsageError,
)
from fleetcraft.slurm import environment
from fleetcraft.slurm.program import Ended, first_line, run_program
from fleetcraft.trust import find_program

TIMEOUT_S = 15.0
"""How long a program may take. Source: the contract of the scheduler calls (15 s)."""
_SUBMIT_TIMEOUT_S = 60.0
_SAID_ERROR = re.compile(rb"\b(?:error|fatal)\b|unable to contact", re.IGNORECASE)
# After these the request may have reached the controller, whatever became of its answer.
_LOST_ON_THE_WAY = re.compile(
    r"timed out|unable to contact|zero bytes|connect|communication|message (?:send|receive)"
    r"|(?:unexpected|insane) message|protocol|unspecified|interrupted|broken pipe|reset by peer"
    r"|temporarily|header length|transmitted|unreachable|no route",
    re.IGNORECASE,
)
_SUBMITTED = re.compile(r"(\d+)(?:;([\w.-]+))?", re.ASCII)
_JOB_OR_STEP = re.compile(r"\d+(?:[_+]\d+)?(?:\.\d+)?", re.ASCII)
_NOT_THERE = re.compile(rb"already completing or completed|Invalid job id specified")
_SIGNAL = re.compile(r"[A-Z0-9]{1,10}")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_CONFIG_HEADER = re.compile(r"(?:CLUSTER: .*\n)?Configuration data as of ")
_NO_NODES = frozenset({"", "(null)", "None assigned", "n/a", "N/A"})


def is_here() -> bool:
    """Whether Slurm's commands are installed here: squeue is on PATH."""
    return find_program("squeue") is not None


def find(program: str) -> str:
    """The path of a Slurm program.

    Raises:
        SlurmMissingError: It is not on PATH.
    """
    path = find_program(program)
    if path is None:
        raise SlurmMissingError(os.path.basename(program), "it is not on PATH")
    return path


def run(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str:
    """Runs one program that asks Slurm something, and returns what it printed.

    It gets a process group of its own, no input, the C locale, times as seconds since 1970, and an
    environment without the variables that are options of the programs (see `environment`). After
    the timeout it is ended by TERM, and two seconds later by KILL.

    Args:
        argv: The program's name and its arguments.
        timeout_s: Seconds until it is stopped.

    Returns:
        Its standard output. Whether that is an answer is for the reader of the table to say.

    Raises:
        SlurmMissingError: It is not on PATH or cannot be started.
        SlurmTimeoutError: It did not end in time.
        SlurmFailedError: It failed, or reported an error although it ended with exit code 0.
        NoAnswerError: It printed more than 64 MiB.
        NotAskedError: ``SLURM_CLUSTERS`` names several clusters.
    """
    ended = _run(argv, environment.for_questions(), timeout_s)
    if ended.exit_code != 0 or _SAID_ERROR.search(ended.stderr):
        raise SlurmFailedError(_name(argv), ended.exit_code, ended.said)
    return ended.stdout.decode("utf-8", "replace")


def submit(
    options: Sequence[str],
    script: str,
    arguments: Sequence[str] = (),
    *,
    timeout_s: float = _SUBMIT_TIMEOUT_S,
) -> str:
    """Submits a batch script, once: it is never tried again here.

    Args:
        options: Options of sbatch; ``--parsable`` is added.
        script: Path of the batch script.
        arguments: Its arguments.
        timeout_s: Seconds until sbatch is stopped; what became of the job is then not known.

    Returns:
        The job id.

    Raises:
        SlurmMissingError: sbatch is not here; nothing was submitted.
        SlurmFailedError: sbatch or the controller refused; nothing was submitted.
        SubmissionUnknownError: The answer was lost or cannot be read: the job may exist.
    """
    path = script if "/" in script else f"./{script}"
    argv = ["sbatch", "--parsable", *options, path, *arguments]
    name = _job_name(options)
    try:
        ended = _run(argv, environment.for_submission(), timeout_s)
    except SlurmTimeoutError as error:
        reason = f"sbatch did not answer within {timeout_s:g} s"
        raise SubmissionUnknownError(reason, name) from error
    except NoAnswerError as error:
        raise SubmissionUnknownError("sbatch printed far too much", name) from error
    lines = ended.stdout.decode("utf-8", "replace").splitlines()
    found = [match for line in lines if (match := _SUBMITTED.fullmatch(line.strip()))]
    if ended.exit_code == 0 and len(found) == 1:
        return found[0][1]
    if not found and _is_refusal(ended):
        raise SlurmFailedError(
            "sbatch",
            ended.exit_code,
            ended.said,
            not_done="no job was submitted",
            hint="sinfo shows what can be asked for, scontrol ping whether the controller answers",
        )
    said = first_line(ended.stdout) or ended.said or "nothing"
    raise SubmissionUnknownError(
        f"sbatch ended with {_how(ended.exit_code)} and said {said!r}", name
    )


def cancel(what: str, *, signal: str | int | None = None) -> None:
    """Cancels, or signals, one job or step.

    Something that has already ended, or that Slurm does not know, counts as cancelled.

    Args:
        what: ``JOB``, ``JOB_INDEX``, ``JOB+COMPONENT``, or any of them with the number of a step.
            The plain id of an array stands for all its elements.
        signal: Sent instead of cancelling; a name without SIG, or a number.

    Raises:
        UsageError: The id or signal is none; nothing was cancelled.
        SchedulerError: scancel failed or did not answer; whether it was cancelled is not known.
    """
    if not _JOB_OR_STEP.fullmatch(what):
        raise UsageError(
            f"not a job or step id: {what!r}; nothing was cancelled",
            hint="write JOB, JOB_INDEX or JOB.STEP",
            what=what,
        )
    argv = ["scancel", what]
    if signal is not None:
        if not _SIGNAL.fullmatch(str(signal)):
            raise UsageError(f"not a signal: {signal!r}; nothing was signalled", signal=signal)
        argv.insert(1, f"--signal={signal}")
    ended = _run(argv, environment.for_questions(), TIMEOUT_S)
    if _NOT_THERE.search(ended.stderr):
        return
    if ended.exit_code != 0 or _SAID_ERROR.search(ended.stderr):
        not_done = f"whether {what} got it is not known"
        raise SlurmFailedError("scancel", ended.exit_code, ended.said, not_done=not_done)


def start_step(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts ``srun …`` as a child, in a process group of its own.

    Args:
        argv: The whole command line; its first word is ``srun``.
        env: The step's environment, as it is; this process's own if None.
        stdin: What its input is, as Popen takes it; nothing if not given.
        stdout: Where its output goes, as Popen takes it.
        stderr: Where its errors go, as Popen takes it.

    Returns:
        The child, which the caller waits for.

    Raises:
        SlurmMissingError: srun is not on PATH or cannot be started.
    """
    try:
        return subprocess.Popen(
            [find(argv[0]), *argv[1:]],
            env=None if env is None else dict(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            process_group=0,
        )
    except OSError as error:
        raise SlurmMissingError(_name(argv), error.strerror or str(error)) from error


def hostnames(node_list: str) -> list[str]:
    """The nodes that a list such as ``n[1-3,7]`` stands for, in its order.

    Asks the program only where there is something to expand; it reads its configuration but does
    not speak to the controller.

    Raises:
        SchedulerError: The list could not be expanded.
    """
    node_list = node_list.strip()
    if node_list in _NO_NODES:
        return []
    if _NODE_NAME.fullmatch(node_list):
        return [node_list]
    names = run(["scontrol", "show", "hostnames", node_list]).split()
    if not names or not all(_NODE_NAME.fullmatch(name) for name in names):
        raise NoAnswerError("scontrol", f"{node_list!r} could not be expanded to node names")
    return names


CONFIG_QUESTION = ("scontrol", "show", "config")


def read_setting(config: str, name: str) -> str:
    """One setting in what ``scontrol show config`` printed.

    Raises:
        NoAnswerError: It is not there, or the text is none of a configuration.
    """
    if _CONFIG_HEADER.match(config):
        found = re.search(rf"^{name}\s*= (.*?)\s*$", config, re.MULTILINE)
        if found is not None:
            return found[1]
    raise NoAnswerError("scontrol", f"there is no {name} in its configuration")


def read_cluster_name(config: str) -> str:
    """The cluster's name in what ``scontrol show config`` printed.

    Raises:
        NoAnswerError: It is not there.
    """
    name = read_setting(config, "ClusterName")
    if not _NODE_NAME.fullmatch(name):
        raise NoAnswerError("scontrol", f"{name!r} is no cluster name")
    return name


def _is_refusal(ended: Ended) -> bool:
    """Whether sbatch has said no in so many words, so that no job can exist."""
    if ended.exit_code is None or ended.exit_code <= 0 or not ended.said:
        return False
    return _LOST_ON_THE_WAY.search(ended.stderr.decode("utf-8", "replace")) is None


def _run(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Ended:
    path = find(argv[0])
    try:
        ended = run_program([path, *argv[1:]], env, timeout_s)
    except (OSError, ValueError) as error:  # ValueError: a NUL in foreign text
        raise SlurmMissingError(_name(argv), str(error)) from error
    if ended.timed_out:
        raise SlurmTimeoutError(_name(argv), timeout_s, ended.said)
    if ended.too_much:
        raise NoAnswerError(_name(argv), "it printed far more than any answer has")
    return ended


def _name(argv: Sequence[str]) -> str:
    return os.path.basename(argv[0])


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return "an exit code that was lost"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def _job_name(options: Sequence[str]) -> str:
    for index, option in enumerate(options):
        if option.startswith("--job-name="):
            return option.partition("=")[2]
        if option in ("-J", "--job-name") and index + 1 < len(options):
            return options[index + 1]
        if option.startswith("-J") and not option.startswith("--"):
            return option[2:]
    return ""
