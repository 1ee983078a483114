"""What a check is given: the settings, or why there are none, the environment, and the seam.

Not here: any check. Invariant: settings that are wrong stop no check that needs none.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property

from fleetcraft.config import Config, load
from fleetcraft.errors import FleetError
from fleetcraft.files import FileSystem


class Case:
    """One machine and one project.

    Args:
        flags: Settings given as options, by name.
        environ: The environment; this process's own if None.
        fs: The seam through which the scratch tree is touched.

    The settings are read when they are first asked for.
    """

    def __init__(
        self,
        flags: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        self.flags = dict(flags or {})
        self.environ = os.environ if environ is None else environ
        self.fs = fs or FileSystem()

    @cached_property
    def _loaded(self) -> Config | FleetError:
        try:
            return load(self.flags, self.environ)
        except FleetError as error:
            return error

    @property
    def problem(self) -> FleetError | None:
        """What is wrong with the settings; None if nothing is."""
        return self._loaded if isinstance(self._loaded, FleetError) else None

    @property
    def config(self) -> Config:
        """The settings.

        Raises:
            FleetError: They cannot be read, so that what depends on them was not checked.
        """
        if isinstance(self._loaded, FleetError):
            raise FleetError("the settings cannot be read, see project: settings")
        return self._loaded

    @property
    def root(self) -> str:
        """The scratch tree; empty where nothing says where it is, or the settings are wrong."""
        return "" if self.problem else self.config.text("root")

    @property
    def has_root(self) -> bool:
        """Whether the scratch tree is a folder that is there."""
        return bool(self.root) and os.path.isdir(self.root)

    @property
    def python(self) -> str:
        """The Python whose torch tasks use."""
        return ("" if self.problem else self.config.text("batch.python")) or sys.executable

    def call(self, words: str) -> str:
        """A command of fleetcraft that reaches the same tree."""
        root = self.flags.get("root")
        return f"fleetcraft {f'--root {shlex.quote(root)} ' if root else ''}{words}"


def ask_program(
    argv: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Runs a program of the system that only tells something, without input.

    It stays in this process's group, so that whoever ends the examination ends it too.

    Args:
        argv: The program and its arguments.
        timeout_s: Seconds until it is killed.
        environ: Its environment; this process's own if None.

    Returns:
        Its exit code, what it printed, and what it said beside, with strange bytes replaced.

    Raises:
        FleetError: It cannot be started, or did not end in time.
    """
    try:
        done = subprocess.run(
            list(argv),
            env=None if environ is None else dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FleetError(f"{argv[0]} did not answer within {timeout_s:g} s") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FleetError(f"cannot start {argv[0]}: {why}") from error
    return (
        done.returncode,
        done.stdout.decode("utf-8", "replace"),
        done.stderr.decode("utf-8", "replace"),
    )


def last_line(text: str) -> str:
    """The last line that is not blank; empty if there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
