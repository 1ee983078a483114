"""What commands of this group share: where telemetry is, which spools belong to it, and progress.

Invariant: what was typed wins over every setting, and spools that nothing ties to the telemetry are
no part of the answer.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fleetcraft.cli.output import PassingLine
from fleetcraft.cli.session import Session
from fleetcraft.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from fleetcraft.config import Config


def telemetry_place(session: Session, given: str | None) -> str:
    """The folder or file that a command reads.

    Raises:
        UsageError: What was given is not there.
        ConfigError: Nothing was given, and the scratch tree is not known or has no telemetry yet.
    """
    place = given or session.config.telemetry_dir
    if os.path.exists(place):
        return place
    if given:
        raise UsageError(
            f"no telemetry at {place}: there is no such place; nothing was read",
            hint="name a folder of telemetry files, or one file",
            place=place,
        )
    raise ConfigError(
        f"no telemetry in {place}: no logger has written there yet; nothing was read",
        hint="fleetcraft telemetry log, or name another folder",
        place=place,
    )


def folder_of(place: str) -> str:
    """The folder that a place is, or that a file lies in."""
    return place if os.path.isdir(place) else os.path.dirname(os.path.abspath(place))


def spools_of(session: Session, given: str | None) -> dict[str, str] | None:
    """The spools that belong to telemetry: those of the settings, or those beside its folder.

    Args:
        session: Its settings count where their telemetry is read, or where a root was typed.
        given: The place that was typed.

    Returns:
        ``outer`` and ``inner`` to their folders; None when nothing says that any belong to it.
    """
    config = session.config
    if given is None or "root" in session.flags:
        return _set_spools(config)
    folder = os.path.abspath(folder_of(given))
    if _is_same(folder, config.text("telemetry.dir")):
        return _set_spools(config)
    from fleetcraft.layout import Scratch

    tree = Scratch(os.path.dirname(folder))
    beside = {"outer": tree.outer, "inner": tree.inner}
    ours = _is_same(folder, tree.telemetry) and all(map(os.path.isdir, beside.values()))
    return beside if ours else None


def _set_spools(config: Config) -> dict[str, str] | None:
    try:
        return {"outer": config.spool_dir("outer"), "inner": config.spool_dir("gpu")}
    except ConfigError:  # telemetry alone is set
        return None


def _is_same(one: str, other: str) -> bool:
    return bool(other) and os.path.realpath(one) == os.path.realpath(other)


class FileProgress(PassingLine):
    """How many files are read."""

    def __call__(self, done: int, total: int) -> None:
        """Shows how far it is."""
        self.show(f"reading files: {done} of {total}")
