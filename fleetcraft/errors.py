"""The one tree of errors, drawn whole, with the exit code that each branch carries.

    FleetError                  1   done, and the answer is no
      RefutedError              1   files are not what their manifest says (evidence)
      ComparisonRefusedError    1   arms cannot be compared (evidence); 7 if that is not known
      UsageError                2   the call's words are off
        BadNameError            2
      ConfigError               3   fleet.yaml, an environment variable, a missing scratch tree
      SchedulerError            4   Slurm did not answer or refused
        SlurmMissingError       4   no such program on this machine
        SlurmTimeoutError       4   the program did not end in time
        SlurmFailedError        4   the program said that it failed
        NoAnswerError           4   it ended well, but what it printed is no answer
        NotAskedError           4   it was not even asked: not our turn, or no safe place to wait
        SubmissionUnknownError  4   a job may or may not have been submitted
      SpoolError                5   the spool refuses
        NameTakenError          5
        NoSuchTaskError         5
        IntegrityError          5   two files where one must be; both were kept
        UnsafeSpoolError        5   another user owns or can write it
        NoRoomError             5   the destination of a copy is full (evidence)
      DeviceError               6
      DataError                 7   bad data, or data that cannot be verified
        BatchRefusedError       7   what is found is not what the batch table has frozen
        ChangedError            7   a file changed while it was read (evidence)
      TryAgainLaterError       75

A message says what failed, on which thing, found against expected, and what was not done.
The hint is the next command. Facts are kept as attributes so that a program need not parse prose.
"""

from __future__ import annotations


class FleetError(Exception):
    """An error that a person can act on.

    Args:
        message: What failed, on which thing, and what was not done.
        hint: The next command or step, without the word "hint".
        facts: Named values; they become attributes and part of the JSON error object.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts

    def __getattr__(self, name: str) -> object:
        # Only called for names that normal lookup misses, so facts cannot shadow the fields above.
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)


class UsageError(FleetError):
    """The call's words are off: a bad option, name, time or template."""

    exit_code = 2


class BadNameError(UsageError):
    """A task name that cannot be a file name of the spool."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"bad task name {name!r}: {reason}",
            hint="names are letters, digits, '_', '.', '-', start with a letter or digit, "
            "and have at most 180 bytes",
            name=name,
        )


class ConfigError(FleetError):
    """The configuration is missing, contradictory or unreadable."""

    exit_code = 3


class SchedulerError(FleetError):
    """Slurm did not answer, or answered no."""

    exit_code = 4


class SlurmMissingError(SchedulerError):
    """A Slurm program is not installed here, or could not be started."""

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(
            f"cannot start {program}: {reason}; Slurm was not asked",
            hint="run this where the Slurm commands are on PATH, or load their module",
            program=program,
        )


class SlurmTimeoutError(SchedulerError):
    """A Slurm program did not end in time and was stopped."""

    def __init__(self, program: str, timeout_s: float, first_line: str = "") -> None:
        said = f" (it said: {first_line})" if first_line else ""
        super().__init__(
            f"{program} did not answer within {timeout_s:g} s and was stopped{said}; "
            "nothing was concluded",
            hint="the controller may be busy or down: scontrol ping",
            program=program,
            timeout_s=timeout_s,
        )


class SlurmFailedError(SchedulerError):
    """A Slurm program failed: an exit code, a signal, or an error in its words.

    ``returned`` is its exit code, negative for a signal, and None when the code is not known.
    """

    def __init__(
        self,
        program: str,
        exit_code: int | None,
        first_line: str,
        *,
        not_done: str = "nothing was concluded",
        hint: str = "scontrol ping says whether the controller answers",
    ) -> None:
        if exit_code is None:
            how = "ended, but its exit code was lost"
        elif exit_code < 0:
            how = f"was ended by signal {-exit_code}"
        elif exit_code == 0:
            how = "reported an error (exit code 0)"
        else:
            how = f"failed with exit code {exit_code}"
        super().__init__(
            f"{program} {how}: {first_line or 'it said nothing'}; {not_done}",
            hint=hint,
            program=program,
            returned=exit_code,
            said=first_line,
        )


class NoAnswerError(SchedulerError):
    """What a Slurm program printed is no answer to the question."""

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(
            f"{program} gave no answer: {reason}; nothing was concluded",
            hint=f"run {program} by hand and look at what it prints",
            program=program,
        )


class NotAskedError(SchedulerError):
    """A question was not put to Slurm, or not again so soon after it had failed."""


class SubmissionUnknownError(SchedulerError):
    """Whether a job was submitted is not known: sbatch gave no readable answer.

    ``job_name`` is what the job would be called; the next step is to look for it.
    """

    def __init__(self, reason: str, job_name: str) -> None:
        super().__init__(
            f"a job may or may not have been submitted: {reason}; it was not submitted again",
            hint=f"look for it before you submit again: squeue --me --states=all "
            f"--name={job_name or 'NAME'}, and sacct",
            job_name=job_name,
        )


class SpoolError(FleetError):
    """The spool refuses: the state it is in does not allow the request."""

    exit_code = 5


class NameTakenError(SpoolError):
    """Another task already has this name.

    ``same`` tells whether it is the very same task (equal identity hash).
    """

    def __init__(self, name: str, state: str, *, same: bool) -> None:
        where = f"a {state} task" if state else "another task"
        if same:
            message = f"cannot enqueue {name!r}: the same task is already there ({state})"
            hint = f"fleetcraft show {name}, or enqueue with --if-absent to accept that"
        else:
            message = f"cannot enqueue {name!r}: that name belongs to {where} with another command"
            hint = "choose another name; names are never reused"
        if state == "failed":
            hint = f"fleetcraft retry {name}"
        super().__init__(message, hint=hint, name=name, state=state, same=same)


class NoSuchTaskError(SpoolError):
    """The spool has no task of this name."""

    def __init__(self, name: str, near: list[str]) -> None:
        hint = (
            f"did you mean {', '.join(near)}?" if near else "fleetcraft status lists what is there"
        )
        super().__init__(f"no task named {name!r} in this spool", hint=hint, name=name, near=near)


class IntegrityError(SpoolError):
    """A move found another file at its destination. Both files were kept."""

    def __init__(self, source: str, destination: str) -> None:
        super().__init__(
            f"cannot move {source} to {destination}: another file is there; both were kept",
            hint="fleetcraft check shows what is wrong",
            source=source,
            destination=destination,
        )


class UnsafeSpoolError(SpoolError):
    """A folder or record that someone else owns or can write: it could run their commands."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"refusing {path}: {reason}; nothing was run",
            hint="records are executable: use a spool that only you own and can write (chmod go-w)",
            path=path,
        )


class DeviceError(FleetError):
    """A GPU or its driver is missing, lost or not usable."""

    exit_code = 6


class DataError(FleetError):
    """Bad data, or data that cannot be verified."""

    exit_code = 7


class BatchRefusedError(DataError):
    """What is found here is not what the batch table has frozen, or cannot be compared with it.

    Its code is that of data, also where an enqueue is refused: nothing is wrong with the spool,
    and an edited table and a device that differs are cured alike, by calibrating and freezing.

    Args:
        field: What differs: ``hash``, ``family``, ``identity``, ``device.name``,
            ``device.mem_mib``, ``stack.torch``, ``stack.sdpa``, ``stack.alloc`` or ``batch``; of
            a record that cannot be frozen, what of it is to blame.
        message: It names the field, and says found against frozen.
        hint: The next command.
        facts: More of it, such as ``family``, ``found``, ``frozen``.
    """

    def __init__(self, field: str, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message, hint=hint, field=field, **facts)


class TryAgainLaterError(FleetError):
    """Nothing is wrong with the request, but now is not the time."""

    exit_code = 75
