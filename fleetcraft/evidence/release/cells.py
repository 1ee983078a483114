"""Cells of a grid and the results that fill them: the door for a result, and what is still missing.

Invariant: a result of another grid, of no cell, or of edited scripts is refused or counted, and
fills nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.evidence.release.grid import (
    Grid,
    GridState,
    Standing,
    advance,
    changed_scripts,
    read_standing,
)
from fleetcraft.evidence.results.sets import Result, digest_over, read_set, set_names
from fleetcraft.files import FileSystem
from fleetcraft.layout.evidence import EvidencePaths


def admit(
    paths: EvidencePaths, set_name: str, result: Result, *, fs: FileSystem | None = None
) -> Result:
    """The result as it may be appended: with its grid, where one of this name is frozen.

    The first result of a frozen grid puts it to RUNNING.

    Raises:
        DataError: The grid does not declare it, is another one than it was run for, or takes no
            more results; or a frozen script was edited.
    """
    standing = read_standing(paths, set_name, fs=fs)
    if not standing.records:
        if result.grid_sha256:
            raise _refused(
                set_name, f"it was run for grid {result.grid_sha256[:12]}, and no grid is frozen"
            )
        return result
    why = _objection(standing, result, fs)
    if why:
        raise _refused(set_name, why)
    if standing.state is GridState.FROZEN:
        advance(paths, set_name, GridState.RUNNING, fs=fs, reason="its first result came")
    return msgspec.structs.replace(result, grid=set_name, grid_sha256=standing.grid.sha256)


def admit_rerun(
    paths: EvidencePaths, original: str, result: Result, *, fs: FileSystem | None = None
) -> Result:
    """The result of a rerun as it may be appended beside what it repeats.

    It fills no cell, so the grid need take no more results. It has the grid of what it repeats as
    long as the frozen scripts are as they were, and none otherwise, so that a comparison tells.

    Raises:
        DataError: The grid of the original is another one than it was run for, or a frozen script
            cannot be read.
    """
    standing = read_standing(paths, original, fs=fs)
    frozen = standing.grid.sha256 if standing.records else ""
    if result.grid_sha256 not in ("", frozen):
        said = f"frozen is {frozen[:12]}" if frozen else "no grid is frozen"
        raise _refused(original, f"it was run for grid {result.grid_sha256[:12]}, and {said}")
    if not frozen:
        return result
    try:
        edited = changed_scripts(standing, fs=fs)
    except OSError as error:
        why = f"a frozen script cannot be read: {error.strerror or error} ({error.filename})"
        raise _refused(original, why) from error
    name, digest = ("", "") if edited else (original, frozen)
    return msgspec.structs.replace(result, grid=name, grid_sha256=digest)


def _objection(standing: Standing, result: Result, fs: FileSystem | None) -> str:
    grid = standing.grid
    if result.grid_sha256 not in ("", grid.sha256):
        return f"it was run for grid {result.grid_sha256[:12]}, frozen is {grid.sha256[:12]}"
    if standing.state not in (GridState.FROZEN, GridState.RUNNING):
        return f"the grid is {standing.state} and takes no more results"
    for what in ("arm", "candidate", "seed"):
        value = getattr(result, what)
        if value not in getattr(grid, f"{what}s"):
            return f"the grid declares no {what} {value!r}"
    missing = [name for name in grid.endpoints if name not in result.metrics]
    if missing:
        return f"it has no {missing[0]!r}, which the grid declares as an endpoint"
    try:
        changed = changed_scripts(standing, fs=fs)
    except OSError as error:
        return f"a frozen script cannot be read: {error.strerror or error} ({error.filename})"
    return f"the frozen script {changed[0]}" if changed else ""


def _refused(name: str, why: str) -> DataError:
    return DataError(
        f"the result was refused by grid {name!r}: {why}; nothing was appended",
        hint=f"fleetcraft evidence grid show {name}; another experiment has another name",
        grid=name,
        reason=why,
    )


# -- completeness


class Completeness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether every cell has its result.

    Attributes:
        cells: Declared.
        filled: With exactly one accepted result.
        missing: Cells without one, as ``arm/candidate/seed``.
        doubled: Cells with more than one.
        foreign: Results of another grid, or of none.
        undeclared: Results of no cell.
        without_endpoint: Results that lack a declared metric.
        sha256: Digest over the accepted results.
    """

    cells: int
    filled: int
    missing: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    foreign: int = 0
    undeclared: int = 0
    without_endpoint: int = 0
    sha256: str = ""

    @property
    def complete(self) -> bool:
        """Whether all cells have exactly one result."""
        return self.filled == self.cells


def cell_name(arm: str, candidate: str, seed: int) -> str:
    """A cell for people: ``arm/candidate/seed``."""
    return "/".join(part for part in (arm, candidate, str(seed)) if part)


def completeness(grid: Grid, rows: Iterable[tuple[Result, str]]) -> Completeness:
    """Counts results against the cells of a grid.

    Args:
        grid: As frozen.
        rows: Results, each with its digest.
    """
    accepted: dict[tuple[str, str, int], list[str]] = {}
    refused = {"foreign": 0, "undeclared": 0, "without_endpoint": 0}
    arms, candidates, seeds = set(grid.arms), set(grid.candidates), set(grid.seeds)
    for result, digest in rows:
        if result.grid_sha256 != grid.sha256:
            refused["foreign"] += 1
        elif (
            result.arm not in arms or result.candidate not in candidates or result.seed not in seeds
        ):
            refused["undeclared"] += 1
        elif any(name not in result.metrics for name in grid.endpoints):
            refused["without_endpoint"] += 1
        else:
            cell = (result.arm, result.candidate, result.seed)
            accepted.setdefault(cell, []).append(digest)
    counts = {cell: len(accepted.get(cell, ())) for cell in grid.cells()}
    return Completeness(
        cells=grid.size,
        filled=sum(count == 1 for count in counts.values()),
        missing=tuple(cell_name(*cell) for cell, count in counts.items() if not count),
        doubled=tuple(cell_name(*cell) for cell, count in counts.items() if count > 1),
        sha256=digest_over(digest for found in accepted.values() for digest in found),
        **refused,
    )


def look(
    paths: EvidencePaths, standing: Standing, *, fs: FileSystem | None = None
) -> tuple[Completeness, list[str]]:
    """The cells of a frozen grid as its set fills them, and its edited scripts.

    Raises:
        GridRefusedError: Nothing is frozen.
        DataError: A result or a script cannot be read, or a result was changed.
    """
    grid = standing.grid
    rows = []
    if standing.name in set_names(paths.folder, fs=fs):
        found = read_set(paths.folder, standing.name, fs=fs)
        if found.damaged:
            raise DataError(
                f"result set {standing.name!r} has records that cannot be trusted; "
                "nothing was concluded",
                hint=f"fleetcraft evidence results {standing.name} counts them",
                rejects=found.counts,
            )
        rows = [(row.result, row.sha256) for row in found.current]
    try:
        edited = changed_scripts(standing, fs=fs)
    except OSError as error:
        raise DataError(f"a frozen script cannot be read: {error}") from error
    return completeness(grid, rows), edited


def complete(
    paths: EvidencePaths, name: str, *, fs: FileSystem | None = None
) -> tuple[Standing, Completeness, list[str], bool]:
    """Closes a grid, if every cell has exactly one result and no script was edited.

    Returns:
        How it stands, its cells, its edited scripts, and whether this call closed it. A grid that
        lacks something stays RUNNING.

    Raises:
        GridRefusedError: Nothing is frozen, or it is not RUNNING.
        DataError: A record or result cannot be trusted.
        OSError: Whether it is closed is not known.
    """
    standing = read_standing(paths, name, fs=fs)
    counted, edited = look(paths, standing, fs=fs)
    if GridState.COMPLETE in standing.records or edited or not counted.complete:
        return standing, counted, edited, False
    facts = {"results": counted.filled, "results_sha256": counted.sha256}
    standing, fresh = advance(paths, name, GridState.COMPLETE, fs=fs, **facts)
    return standing, counted, edited, fresh
