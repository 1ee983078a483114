"""What our own commands say of the figures and summaries that they write: their sources.

Invariant: a figure that was drawn stays drawn; what keeps its origin from being written is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from fleetcraft.cli.output import note
from fleetcraft.errors import FleetError
from fleetcraft.evidence.records import Kind
from fleetcraft.view.text import one_line

Named = tuple[str, Kind | None]


def stamp_made(files: Sequence[str], sources: Iterable[Named], *, made_by: str) -> list[str]:
    """Stamps what a command has just written.

    Args:
        files: Figures or summaries, all in one folder.
        sources: What they were made from; what is no longer there is left out and told.
        made_by: The command.

    Returns:
        The origins that were written.
    """
    if not files:
        return []
    from fleetcraft.evidence.tracing.origins import stamp_all
    from fleetcraft.layout.evidence import origin_file

    there = {os.path.realpath(path): (path, kind) for path, kind in sources}
    try:
        stamp_all(files, list(there.values()), made_by=made_by)
    except FleetError as error:
        note(f"not stamped: {one_line(error.message)}")
        return []
    return [origin_file(path) for path in files]


def journals_of(spools: Mapping[str, str] | None) -> list[Named]:
    """Every journal of some spools; a spool that cannot be listed has none."""
    from fleetcraft.layout import SpoolPaths

    workers = [SpoolPaths(folder).workers for folder in (spools or {}).values()]
    return [named for folder in workers for named in files_of(folder, Kind.JOURNAL)]


def files_of(folder: str, kind: Kind) -> list[Named]:
    """The files of a folder that hold one JSON object a line; none where it cannot be listed."""
    with suppress(OSError):
        names = sorted(name for name in os.listdir(folder) if name.endswith(".jsonl"))
        return [(os.path.join(folder, name), kind) for name in names]
    return []
