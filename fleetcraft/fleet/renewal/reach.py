"""The way from inside a job to a login node: the same call, made there by a command like ssh.

Not here: what is called. Invariant: what runs there gets every setting that this process was given
by option or variable, and its end is this call's end, bounded in time.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from fleetcraft.errors import ConfigError, SchedulerError

if TYPE_CHECKING:
    from fleetcraft.config import Config

_SSH_FAILED = 255


def run_on_login(config: Config, words: list[str], *, timeout_s: float) -> int:
    """Runs a verb of fleetcraft through ``login.reach``; its output is this process's output.

    Args:
        config: The settings.
        words: The verb and its options.
        timeout_s: Seconds until the way there is given up; what runs there may then go on.

    Returns:
        The verb's exit code there.

    Raises:
        ConfigError: ``login.reach`` is no command.
        SchedulerError: The login node could not be reached, or took too long.
    """
    reach = config.text("login.reach")
    try:
        argv = [*shlex.split(reach), shlex.join(command_there(config, words))]
        sys.stdout.flush()
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False)
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"login.reach is {reach!r}, and cannot be run: {error}; nothing was submitted here",
            hint="login.reach: a command that runs a command on a login node, such as: ssh login1",
            setting="login.reach",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(
            f"{reach} did not come back within {timeout_s:.0f} s and was stopped; what it started "
            "there may still be at work",
            hint="look on the login node; no other renew can begin while it is",
        ) from error
    if done.returncode == _SSH_FAILED or done.returncode < 0:
        raise SchedulerError(
            f"the login node was not reached: {reach} ended with {done.returncode}; nothing was "
            "submitted here",
            hint=f"try by hand: {reach} true",
        )
    return done.returncode


def command_there(config: Config, words: list[str]) -> list[str]:
    """The command line that makes the same call on another machine with the same files."""
    from fleetcraft.config import BY_NAME

    assignments = []
    for name, value in config.values.items():
        given = value.source.startswith("environment ")
        if given and value.value is not None and name not in ("project_dir", "spool.of_task"):
            assignments.append(f"{BY_NAME[name].variables[0]}={value.value}")
    program = [sys.executable, "-P", "-m", "fleetcraft"]
    where = ["--project-dir", os.path.abspath(config.project_dir)]
    if config.values["root"].source == "--root":
        where += ["--root", config.root]
    return ["env", *assignments, *program, *where, *words]
