"""The walk back from a figure, a summary or an output to the tasks and logs that it rests on.

Where it begins is here; how one file is judged is in `walking`, and what a kind of file rests on in
`resolving`. Invariant: a trace reads and never writes.
"""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from fleetcraft.errors import DataError, FleetError
from fleetcraft.evidence.records import Kind, Level
from fleetcraft.evidence.tracing.expected import APPENDED, Expected
from fleetcraft.evidence.tracing.nodes import Node, Standing
from fleetcraft.evidence.tracing.origins import kind_of
from fleetcraft.evidence.tracing.resolving import RESOLVERS, results_that_name, rows_that_name
from fleetcraft.evidence.tracing.rooms import Rooms, Roots
from fleetcraft.evidence.tracing.walking import Progress, Recompute, Walk
from fleetcraft.files import FileSystem
from fleetcraft.layout.evidence import is_origin_file, origin_file
from fleetcraft.spool.names import near


def trace(
    path: str,
    *,
    roots: Roots | None = None,
    limit: int = 50,
    hash_outputs: bool = True,
    recompute: Recompute | None = None,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> Node:
    """Walks from a file back to the tasks and logs that it rests on.

    Args:
        path: A figure, summary, result file, telemetry file, or an output of a task.
        roots: Where sources, spools and result sets may lie, beside where records say.
        limit: At most so many children of one node are shown; all are looked at.
        hash_outputs: Whether outputs that results name are hashed; else only their sizes count.
        recompute: Computes a frozen window again; None to go by its digest and its sources.
        progress: Told how many things were looked at.
        fs: The seam; for tests.

    Returns:
        The file, with everything below it.

    Raises:
        DataError: The file is not there or cannot be read.
    """
    if is_origin_file(path):
        path = path.removesuffix(origin_file(""))
    walk = Walk(
        Rooms(roots or Roots()),
        RESOLVERS,
        base=os.path.dirname(os.path.abspath(path)),
        limit=limit,
        hash_outputs=hash_outputs,
        recompute=recompute,
        progress=progress,
        fs=fs,
    )
    return _begin(walk, path)


def _begin(walk: Walk, path: str) -> Node:
    _require_file(path)
    origin, problem = walk.origin_of(path)
    known = Expected(origin.size_bytes, origin.sha256) if origin else Expected()
    kind = origin.kind if origin else kind_of(path, fs=walk.fs)
    folder, name = os.path.split(os.path.abspath(path))
    # An origin speaks of the whole file beside it; only its sources may have grown since.
    node = walk.file(folder, name, kind, known, here=True, whole=kind not in APPENDED)
    if problem:
        return msgspec.structs.replace(node, verdict=Standing.UNKNOWN, detail=problem)
    if node.verdict is Standing.UNRECORDED and node.found_sha256:
        return _by_table(walk, node) if _is_calibration(node) else _by_hash(walk, node)
    return node


def _require_file(path: str) -> None:
    """Raises DataError where there is nothing, or a folder."""
    if os.path.isdir(path):
        raise DataError(
            f"cannot trace {path}: it is a folder; nothing was looked at",
            hint="name a file in it; fleetcraft evidence verify looks at archives and bags",
            path=path,
        )
    if os.path.lexists(path):
        return
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(os.path.dirname(path) or ".")
    close = near(os.path.basename(path), names)
    raise DataError(
        f"cannot trace {path}: there is no such file; nothing was looked at",
        hint=f"did you mean {' or '.join(close)}?"
        if close
        else "name a figure, a summary, or another file that was made from something",
        path=path,
    )


def _is_calibration(node: Node) -> bool:
    return node.kind is Kind.SUMMARY and any(one.kind is Kind.JOURNAL for one in node.children)


def _by_table(walk: Walk, node: Node) -> Node:
    """A calibration record, by the row of the frozen batch table that names its digest."""
    try:
        families = rows_that_name(walk, node.found_sha256)
    except FleetError as error:
        return msgspec.structs.replace(node, verdict=Standing.UNKNOWN, detail=error.message)
    if not families:
        return node
    return msgspec.structs.replace(
        node,
        verdict=Standing.VERIFIED,
        level=Level.HASHED,
        detail=f"the batch table's row of {', '.join(families)} names it by its hash",
        expected_sha256=node.found_sha256,
        expected_bytes=node.found_bytes,
    )


def _by_hash(walk: Walk, node: Node) -> Node:
    """A file without an origin, by the result records or the task that name its digest."""
    named = results_that_name(walk, node.found_sha256)
    if not named and not walk.is_output(node.found_sha256):
        return node
    children, left_out = walk.cut([*node.children, *named])
    who = "result records name" if named else "a task's history names"
    return msgspec.structs.replace(
        node,
        verdict=Standing.VERIFIED,
        level=Level.HASHED,
        detail=f"an output that {who} by its hash",
        expected_sha256=node.found_sha256,
        expected_bytes=node.found_bytes,
        children=children,
        left_out=left_out,
    )
