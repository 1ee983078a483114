"""The environment of a task: what the worker inherited, who the task is, and where it runs.

Invariant: names and values come from the spool's own records or from a private file of this user;
nothing here is ever printed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping

from fleetcraft.batch_table.records import TABLE_VARIABLE, VARIABLES
from fleetcraft.errors import DataError, SpoolError
from fleetcraft.identity import sha256_hex
from fleetcraft.layout import forwards_folder
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.tree import describe_problem
from fleetcraft.trust import make_folders, require_private_folder
from fleetcraft.worker.pack import GRACE_VARIABLE, outer_owner
from fleetcraft.worker.settings import WorkerSettings

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_OF_ONE_TASK = ("FLEET_FORWARDS", "FLEET_FAMILY", *VARIABLES)
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def as_bytes(env: Mapping[str, str]) -> dict[bytes, bytes]:
    """An environment as the system takes it; done once, not once a task."""
    return {os.fsencode(key): os.fsencode(value) for key, value in env.items()}


def base_environment(
    settings: WorkerSettings, spool_dir: str, caches: Mapping[str, str]
) -> dict[str, str]:
    """What every task of a worker gets: the worker's own environment, caches, and the spool."""
    env = {**os.environ, **caches}
    # A worker that is itself a task (a pack): survivors of either owner can then be found. That of
    # the task which has submitted this job is none of its: its end must not be theirs.
    env.pop("FLEET_OUTER_OWNER", None)
    if (outer := outer_owner(env)) is not None:
        env["FLEET_OUTER_OWNER"] = str(outer)
    env["FLEET_ROOT"] = settings.root
    env["FLEET_SPOOL"] = spool_dir
    env[GRACE_VARIABLE] = f"{settings.grace_s:g}"
    for name in _OF_ONE_TASK:
        env.pop(name, None)  # that of the task that this worker is
    # So that a worker, or an enqueue, inside a task goes by the same table as this one.
    if settings.batch_table:
        env[TABLE_VARIABLE] = settings.batch_table
    if settings.batch_require:
        env["FLEET_BATCH_REQUIRE"] = "true"
    if settings.batch_python:
        env["FLEET_BATCH_PYTHON"] = settings.batch_python
    return env


def room_for_reports(settings: WorkerSettings, note: Callable[[str], None]) -> str:
    """Makes the private folder in which tasks report their forward calls, where there is none.

    Args:
        settings: The worker's.
        note: Told when it cannot be made.

    Returns:
        The telemetry folder; empty when tasks cannot report.
    """
    telemetry_dir = settings.telemetry_dir
    if not telemetry_dir:
        return ""
    try:
        make_folders(os.path.dirname(telemetry_dir))
        for folder in (telemetry_dir, forwards_folder(telemetry_dir)):
            require_private_folder(folder)
    except (OSError, SpoolError) as error:
        note(f"tasks cannot report forward calls: {describe_problem(error)}")
        return ""
    return telemetry_dir


def stream_id(lease_name: str, slot: str) -> str:
    """A number below 2**63, unique per slot and launch, that may seed a deterministic stream."""
    return str(int(sha256_hex(f"{lease_name}.{slot}".encode())[:16], 16) >> 1)


def read_env_file(spec: TaskSpec) -> Mapping[str, str]:
    """Reads a task's ``env-file``: ``NAME=value`` lines, ``#`` comments, optional quotes.

    The file is data: nothing in it is expanded or executed.

    Raises:
        DataError: It cannot be read, another user could write it, or a line is no assignment.
    """
    path = os.path.join(spec.project_dir or os.sep, spec.env_file)
    try:
        # O_NONBLOCK so that a FIFO cannot hold the worker for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise DataError(f"refusing the env-file {path}: it is no regular file")
            if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & _WRITABLE_BY_OTHERS:
                raise DataError(f"refusing the env-file {path}: another user owns or can write it")
            lines = file.read().decode().split("\n")
    except OSError as error:
        raise DataError(f"cannot read the env-file {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        # Its own words would quote what stands in the file.
        raise DataError(f"cannot read the env-file {path}: it is not UTF-8 text") from error
    return dict(
        _assignment(path, number, line) for number, line in enumerate(lines, 1) if _is_set(line)
    )


def _is_set(line: str) -> bool:
    text = line.strip()
    return bool(text) and not text.startswith("#")


def _assignment(path: str, number: int, line: str) -> tuple[str, str]:
    match = _ASSIGNMENT.fullmatch(line.strip())
    if match is None or "\0" in line:
        # The line itself is not shown: it may hold a secret.
        raise DataError(f"line {number} of the env-file {path} is no NAME=value")
    value = match[2].strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return match[1], value
