"""Grids: the cells of an experiment, declared before it runs, and what state they have reached.

A grid's results lie in the set of its name. Each state is a sealed record that is put once, after
the one before it, whose digest it names; before the first there is only a draft, see `grid_file`.
What fills the cells is in `cells`. Invariant: a state is never skipped, replaced or taken back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError, FleetError
from fleetcraft.evidence.digests import hash_file
from fleetcraft.evidence.records import Producer, producer_here
from fleetcraft.evidence.results.sets import check_name
from fleetcraft.evidence.sealed import seal, unseal
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token, sha256_hex
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.locks import put_if_absent
from fleetcraft.trust import require_private_folder

GRID_SCHEMA = "fleetcraft.evidence-grid/1"
STATE_SCHEMA = "fleetcraft.evidence-grid-state/1"
_FREEZE = "fleetcraft evidence grid freeze GRID.yaml"


class GridState(StrEnum):
    """How far a grid is, in this order."""

    DRAFT = "DRAFT"
    FROZEN = "FROZEN"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    RELEASED = "RELEASED"


_RECORDED = (GridState.FROZEN, GridState.RUNNING, GridState.COMPLETE, GridState.RELEASED)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A file whose content is part of the grid; its path is relative to the grid's file."""

    path: str
    size_bytes: int
    sha256: str


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """What is declared. Its digest is over exactly this.

    Attributes:
        schema: `GRID_SCHEMA`.
        name: Also of the result set.
        arms: What is compared.
        seeds: For each arm and candidate.
        candidates: What results are made for; one empty one where there is no such thing.
        tasks: Digest of the frozen list of tasks in the spool; empty without one.
        scripts: Files whose content is part of it.
        endpoints: Metrics that will be reported; a result without one of them fills no cell.
    """

    schema: str
    name: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    candidates: tuple[str, ...] = ("",)
    tasks: str = ""
    scripts: tuple[Script, ...] = ()
    endpoints: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """The digest of the grid."""
        value = msgspec.to_builtins(self)
        return sha256_hex(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())

    @property
    def size(self) -> int:
        """How many cells it has."""
        return len(self.arms) * len(self.candidates) * len(self.seeds)

    def cells(self) -> Iterator[tuple[str, str, int]]:
        """Every cell as arm, candidate, seed."""
        for arm in self.arms:
            for candidate in self.candidates:
                for seed in self.seeds:
                    yield arm, candidate, seed


class StateRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of one state's file.

    Attributes:
        schema: `STATE_SCHEMA`.
        state: Which.
        grid_sha256: The grid's digest.
        at: Wall clock, for people.
        by: Who put it there.
        nonce: Tells it from that of another process.
        previous_sha256: Digest of the record of the state before.
        grid: The grid itself, in FROZEN.
        base: Where its scripts are found, relative to the folder of this record, in FROZEN.
        results: How many results fill the cells, in COMPLETE.
        results_sha256: Digest over the digests of those, in COMPLETE.
        gate: The gate that let it out, in RELEASED.
        gate_sha256: Digest of that gate's record.
        reason: Why, where that is not plain.
    """

    schema: str
    state: GridState
    grid_sha256: str
    at: str
    by: Producer
    nonce: str
    previous_sha256: str = ""
    grid: Grid | None = None
    base: str = ""
    results: int | None = None
    results_sha256: str = ""
    gate: str = ""
    gate_sha256: str = ""
    reason: str = ""


class GridRefusedError(FleetError):
    """The grid is not in the state for this; nothing was changed."""


class Standing:
    """A grid as its records show it.

    Args:
        name: The grid's.
        records: By state, with the digest of each record.
        folder: Where they lie.
    """

    def __init__(
        self, name: str, records: dict[GridState, tuple[StateRecord, str]], folder: str
    ) -> None:
        self.name = name
        self.records = records
        self.folder = folder

    @property
    def state(self) -> GridState:
        """The last state that was reached."""
        return max(self.records, key=_RECORDED.index, default=GridState.DRAFT)

    @property
    def grid(self) -> Grid:
        """The frozen grid.

        Raises:
            GridRefusedError: Nothing is frozen.
        """
        frozen = self.records.get(GridState.FROZEN)
        if frozen is None or frozen[0].grid is None:
            raise GridRefusedError(f"no grid {self.name!r} is frozen", hint=_FREEZE, grid=self.name)
        return frozen[0].grid

    @property
    def base(self) -> str:
        """The folder from which the scripts' paths go, absolute."""
        base = self.records[GridState.FROZEN][0].base
        return os.path.normpath(os.path.join(os.path.realpath(self.folder), base))

    def digest(self, state: GridState) -> str:
        """Digest of a state's record; empty where it was not reached."""
        return self.records[state][1] if state in self.records else ""


# -- looking


_decode = msgspec.json.Decoder(StateRecord).decode


def read_standing(paths: EvidencePaths, name: str, *, fs: FileSystem | None = None) -> Standing:
    """How far a grid is; a name without records is a draft.

    Raises:
        UsageError: The name is none.
        DataError: A record was changed, or cannot be read, or one before it is missing.
    """
    check_name(name, "grid")
    records: dict[GridState, tuple[StateRecord, str]] = {}
    previous = ""
    for state in _RECORDED:
        found = _read_state(fs or FileSystem(), paths.grid_state(name, state))
        if found is None:
            continue
        record, digest = found
        standing = (record.state, record.previous_sha256, record.schema)
        if standing != (state, previous, STATE_SCHEMA) or (previous == "") != (not records):
            raise _broken(paths.grid_state(name, state), "it does not follow the one before it")
        if state is GridState.FROZEN and (
            record.grid is None or record.grid.sha256 != record.grid_sha256
        ):
            raise _broken(paths.grid_state(name, state), "its digest is not that of its grid")
        records[state] = found
        previous = digest
    if records and GridState.FROZEN not in records:
        raise _broken(paths.grid_state(name, GridState.FROZEN), "it is missing")
    return Standing(name, records, paths.grid(name))


def _read_state(fs: FileSystem, path: str) -> tuple[StateRecord, str] | None:
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _broken(path, error.strerror or str(error)) from error
    body, reason = unseal(data.removesuffix(b"\n"))
    if reason:
        raise _broken(path, "it was changed or cut short")
    try:
        return _decode(body), sha256_hex(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _broken(path, str(error)) from error


def _broken(path: str, reason: str) -> DataError:
    return DataError(
        f"the grid's record {path} cannot be trusted: {reason}; nothing was concluded", path=path
    )


def changed_scripts(standing: Standing, *, fs: FileSystem | None = None) -> list[str]:
    """What is wrong with the frozen scripts, a sentence each; empty if they are as they were.

    Raises:
        OSError: A script is there, but cannot be read.
    """
    found = []
    for script in standing.grid.scripts:
        try:
            now = hash_file(f"{standing.base}/{script.path}", fs=fs)
        except FileNotFoundError:
            found.append(f"{script.path} is gone")
            continue
        if now != (script.size_bytes, script.sha256):
            found.append(
                f"{script.path} was edited (sha256 {now[1][:12]}, frozen as {script.sha256[:12]})"
            )
    return found


# -- putting states


def freeze(
    paths: EvidencePaths, grid: Grid, folder_of_scripts: str, *, fs: FileSystem | None = None
) -> tuple[Standing, bool]:
    """Freezes a grid under its name.

    Args:
        paths: The room.
        grid: As `grid_file` reads it.
        folder_of_scripts: From where the paths of its scripts go.
        fs: The seam.

    Returns:
        How it stands, and whether this call froze it; the very same grid may be frozen again.

    Raises:
        GridRefusedError: Another grid has the name.
        UnsafeSpoolError: Somebody else could write the room.
        OSError: Whether it is frozen is not known.
    """
    fs = fs or FileSystem()
    folder = paths.grid(grid.name)
    for place in (paths.folder, paths.grids, folder):
        require_private_folder(place)
    # Both real, so that the way from one to the other holds whatever links lead there.
    base = os.path.relpath(os.path.realpath(folder_of_scripts), os.path.realpath(folder))
    fresh = _put(fs, paths, grid.name, _record(GridState.FROZEN, grid.sha256, grid=grid, base=base))
    standing = read_standing(paths, grid.name, fs=fs)
    if standing.grid != grid:
        field = next(
            f for f in grid.__struct_fields__ if getattr(grid, f) != getattr(standing.grid, f)
        )
        raise GridRefusedError(
            f"grid {grid.name!r} is frozen already with other {field} "
            f"(sha256 {standing.grid.sha256[:12]}); nothing was changed",
            hint="a frozen grid stays: give the new one another name",
            grid=grid.name,
            field=field,
            found=grid.sha256,
            frozen=standing.grid.sha256,
        )
    return standing, fresh


def advance(
    paths: EvidencePaths,
    name: str,
    state: GridState,
    *,
    fs: FileSystem | None = None,
    **facts: Any,
) -> tuple[Standing, bool]:
    """Puts the record of the next state.

    Args:
        paths: The room.
        name: The grid.
        state: RUNNING, COMPLETE or RELEASED.
        fs: The seam.
        facts: Fields of `StateRecord`.

    Returns:
        How it stands, and whether this call put it there.

    Raises:
        GridRefusedError: The state before has not been reached.
        DataError: A record cannot be trusted.
        OSError: Whether it stands is not known.
    """
    fs = fs or FileSystem()
    standing = read_standing(paths, name, fs=fs)
    grid = standing.grid
    if state in standing.records:
        return standing, False
    before = _RECORDED[_RECORDED.index(state) - 1]
    if standing.state is not before:
        raise GridRefusedError(
            f"grid {name!r} is {standing.state}, and only a grid that is {before} becomes {state}; "
            "nothing was changed",
            hint=f"fleetcraft evidence grid show {name}",
            grid=name,
            state=standing.state.value,
        )
    record = _record(state, grid.sha256, previous_sha256=standing.digest(before), **facts)
    fresh = _put(fs, paths, name, record)
    return read_standing(paths, name, fs=fs), fresh


def _record(state: GridState, grid_sha256: str, **facts: Any) -> StateRecord:
    return StateRecord(
        schema=STATE_SCHEMA,
        state=state,
        grid_sha256=grid_sha256,
        at=timestamp(),
        by=producer_here(),
        nonce=new_launch_token(),
        **facts,
    )


def _put(fs: FileSystem, paths: EvidencePaths, name: str, record: StateRecord) -> bool:
    path = paths.grid_state(name, record.state)
    return put_if_absent(fs, path, seal(msgspec.json.encode(record)))
