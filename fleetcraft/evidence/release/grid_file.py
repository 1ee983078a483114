"""The file in which a person declares a grid: a draft, until it is frozen.

Invariant: nothing is written here, and what is wrong is an error with its line.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from fleetcraft.errors import ConfigError, FleetError
from fleetcraft.evidence.declared import Declared, read_declared
from fleetcraft.evidence.digests import hash_file
from fleetcraft.evidence.records import NAME
from fleetcraft.evidence.release.grid import GRID_SCHEMA, Grid, Script
from fleetcraft.spool.grid import read_grid
from fleetcraft.spool.tree import SpoolTree

_KEYS = ("name", "arms", "seeds", "candidates", "tasks", "scripts", "endpoints")
_MOST_CELLS = 1_000_000
_T = TypeVar("_T")


def read_grid_file(path: str) -> Grid:
    """Reads a draft, and hashes its scripts.

    Raises:
        ConfigError: It is wrong, or a script cannot be read; the message says where.
    """
    document, _ = read_declared(path)
    found = document.known_keys("a grid", _KEYS)
    for key in ("name", "arms", "seeds"):
        if key not in found:
            raise document.error(f"the grid has no {key}", hint=f"known: {', '.join(_KEYS)}")
    folder = os.path.dirname(os.path.abspath(path))
    grid = Grid(
        schema=GRID_SCHEMA,
        name=_name(found["name"], "name"),
        arms=_names(found["arms"], "arms"),
        seeds=_seeds(found["seeds"]),
        candidates=_candidates(found["candidates"]) if "candidates" in found else ("",),
        tasks=_digest(found["tasks"]) if "tasks" in found else "",
        scripts=tuple(_scripts(found["scripts"], folder)) if "scripts" in found else (),
        endpoints=_names(found["endpoints"], "endpoints") if "endpoints" in found else (),
    )
    if grid.size > _MOST_CELLS:
        raise document.error(f"the grid has {grid.size} cells, more than {_MOST_CELLS}")
    return grid


def _name(item: Declared, what: str) -> str:
    text = item.text(what)
    if not NAME.fullmatch(text):
        raise item.error(
            f"{what} has {text!r}, which is no name",
            hint="letters, digits, '.', '_' and '-', at most 64, and a letter or digit first",
        )
    return text


def _names(item: Declared, what: str) -> tuple[str, ...]:
    return _each_once(item, what, [_name(part, what) for part in item.items(what)])


def _each_once(item: Declared, what: str, values: list[_T]) -> tuple[_T, ...]:
    if not values:
        raise item.error(f"{what} is empty")
    value, count = Counter(values).most_common(1)[0]
    if count > 1:
        raise item.error(f"{what} has {value!r} {count} times")
    return tuple(values)


def _seeds(item: Declared) -> tuple[int, ...]:
    if isinstance(item.value, dict):
        ends = item.known_keys("seeds", ("first", "last"))
        if set(ends) != {"first", "last"}:
            raise item.error("seeds has no first or no last", hint="seeds: {first: 0, last: 499}")
        first, last = (ends[key].whole(key) for key in ("first", "last"))
        if not first <= last < first + _MOST_CELLS:
            raise item.error(f"seeds go from {first} to {last}")
        return tuple(range(first, last + 1))
    return _each_once(item, "seeds", [part.whole("a seed") for part in item.items("seeds")])


def _candidates(item: Declared) -> tuple[str, ...]:
    return _each_once(item, "candidates", [p.text("a candidate") for p in item.items("candidates")])


def _digest(item: Declared) -> str:
    text = item.text("tasks")
    if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
        raise item.error(
            f"tasks is {text!r}, expected the sha256 of a frozen list of tasks",
            hint="fleetcraft enqueue --freeze-grid --lane last --from TASKS.jsonl prints one",
        )
    return text


def _scripts(item: Declared, folder: str) -> Iterator[Script]:
    seen: set[str] = set()
    for part in item.items("scripts"):
        path = part.text("a script")
        if os.path.isabs(path) or os.path.normpath(path) in seen:
            why = "is absolute; paths go from this file" if os.path.isabs(path) else "stands twice"
            raise part.error(f"the script {path!r} {why}")
        seen.add(os.path.normpath(path))
        try:
            size_bytes, sha256 = hash_file(f"{folder}/{path}")
        except OSError as error:
            raise part.error(f"cannot read the script {path}: {error.strerror or error}") from error
        yield Script(path=path, size_bytes=size_bytes, sha256=sha256)


def require_tasks(digest: str, folders: Iterable[str]) -> str:
    """The spool that has a frozen list of tasks.

    Raises:
        ConfigError: None of them has it.
    """
    for folder in folders:
        try:
            read_grid(SpoolTree(folder), digest)
        except FleetError:
            continue
        return folder
    raise ConfigError(
        f"no spool has the frozen list of tasks {digest[:12]}, or it was changed; "
        "nothing was frozen",
        hint="fleetcraft enqueue --freeze-grid --lane last --from TASKS.jsonl prints its digest",
        digest=digest,
    )
