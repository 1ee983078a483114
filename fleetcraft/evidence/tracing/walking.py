"""One step of a trace: a file compared with what was recorded of it, and what lies below it.

What a kind of file rests on is its resolver's to say, which the walk is handed. Invariant: the walk
reads and never writes, ends on every input, and says of each thing at which level it stands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from fleetcraft.errors import DataError, FleetError
from fleetcraft.evidence.digests import hash_file
from fleetcraft.evidence.kinds import kind_by_name
from fleetcraft.evidence.records import Kind, Level, Origin, Producer
from fleetcraft.evidence.tracing import claimed as tasks
from fleetcraft.evidence.tracing.claimed import Claimed, token_of
from fleetcraft.evidence.tracing.expected import GROWING, Expected
from fleetcraft.evidence.tracing.nodes import Node, Standing, shown, worst
from fleetcraft.evidence.tracing.origins import read_origin
from fleetcraft.evidence.tracing.rooms import Place, Rooms, is_usable
from fleetcraft.files import FileSystem

NEEDS_ORIGIN = frozenset({Kind.FIGURE, Kind.SUMMARY})
"""Kinds that are made from something; others may be where a trace ends."""
_MOST_DEEP = 40
Progress = Callable[[int], None]
Recompute = Callable[[str], tuple[Standing, str]]
"""Computes a frozen window again from its rows: how that stands, and why in words."""


class Item(NamedTuple):
    """A file whose bytes are as recorded, handed to the resolver of its kind.

    ``size_bytes`` is how much of it counts; ``name`` is how the trace calls it.
    """

    path: str
    name: str
    kind: Kind
    size_bytes: int


class Findings(NamedTuple):
    """What a resolver found: what it rests on, and what its content says of itself."""

    children: tuple[Node, ...] = ()
    verdict: Standing = Standing.VERIFIED
    detail: str = ""
    vouches: bool = False
    """Whether the content holds a digest of itself, so that nothing else need have recorded it."""


class _Found(NamedTuple):
    """Where a file was found; the digest is of as many bytes as were recorded."""

    place: Place | None
    size_bytes: int
    sha256: str
    problem: str = ""


Resolver = Callable[["Walk", Item], Findings]
_MADE_OTHERWISE = frozenset(
    {Kind.TASK, Kind.LOG, Kind.JOURNAL, Kind.TELEMETRY, Kind.RESULTS, Kind.CODE, Kind.CONFIG}
)
"""Kinds that no task declares as its output: written by workers and loggers, or by people."""


class Walk:
    """One walk: where it looks, what it has seen, and how it judges one file.

    Args:
        rooms: Where things may lie.
        resolvers: What the content of a kind of file says; a kind without one ends the walk.
        base: The folder from which names are told.
        limit: Children shown of one node.
        hash_outputs: As in `trace`.
        recompute: As in `trace`.
        progress: As in `trace`.
        fs: The seam.
    """

    def __init__(
        self,
        rooms: Rooms,
        resolvers: Mapping[Kind, Resolver],
        *,
        base: str,
        limit: int,
        hash_outputs: bool,
        recompute: Recompute | None = None,
        progress: Progress | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        self.rooms = rooms
        self.recompute = recompute
        self._resolvers = resolvers
        self.hash_outputs = hash_outputs
        self.fs = fs or FileSystem()
        self._base = base
        self._limit = limit
        self._progress = progress
        self._above: list[str] = []
        self._seen: set[object] = set()
        # Folders of records that were found elsewhere, and where those records lay.
        self._stand_in: dict[str, str] = {}
        self._count = 0
        self._makers: dict[str, list[Claimed]] | None = None

    # -- files

    def file(
        self,
        folder: str,
        recorded: str,
        kind: Kind,
        expected: Expected,
        *,
        extra: Iterable[Node] = (),
        into: bool = True,
        here: bool = False,
        whole: bool = False,
    ) -> Node:
        """One file that a record in a folder names.

        Args:
            folder: Of the record.
            recorded: The path in it.
            kind: What the file is.
            expected: What was recorded of it.
            extra: What else is known to lie below it.
            into: Whether to look into its content.
            here: Whether only the place counts that the record names.
            whole: Whether the record speaks of the whole file; of a source it may be a prefix.
        """
        self._tick()
        places = self._places(folder, recorded)
        found = self._best((p for p in places if not (here and p.label)), expected)
        node = Node(
            name=self._name(folder, recorded),
            kind=kind,
            verdict=Standing.UNKNOWN if found.problem else Standing.MISSING,
            detail=found.problem or "not found",
            expected_bytes=expected.size_bytes,
            expected_sha256=expected.sha256,
        )
        if found.place is None:
            children, left_out = shown(extra, self._limit)
            return replace(node, children=children, left_out=left_out)
        grows = kind in GROWING and not whole
        verdict, level, detail = expected.compare(found.size_bytes, found.sha256, grows=grows)
        detail = _also(detail, found.problem)
        node = replace(
            node,
            verdict=verdict,
            level=level,
            detail=detail,
            place=found.place.label,
            found_bytes=found.size_bytes,
            found_sha256=found.sha256,
        )
        if found.place.label:
            meant = os.path.dirname(self._meant(folder, recorded))
            self._stand_in.setdefault(os.path.dirname(found.place.path), meant)
        return self._with_below(node, found, expected, tuple(extra), into=into)

    def _with_below(
        self, node: Node, found: _Found, expected: Expected, extra: tuple[Node, ...], *, into: bool
    ) -> Node:
        assert found.place is not None
        real = os.path.realpath(found.place.path)
        if real in self._above:
            looped = "its sources lead back to itself"
            return replace(node, verdict=Standing.UNKNOWN, detail=looped)
        if len(self._above) >= _MOST_DEEP:
            deep = f"more than {_MOST_DEEP} files deep: not looked at"
            return replace(node, verdict=Standing.UNKNOWN, detail=deep)
        key = (real, expected, into)
        if key in self._seen and not extra:
            return replace(node, detail=_also(node.detail, "what is below it is shown above"))
        self._above.append(real)
        try:
            below = self._below(node, found, expected, into=into)
        finally:
            self._above.pop()
        verdict, level, detail = node.verdict, node.level, node.detail
        if below.vouches and not expected.sha256:
            verdict, level, detail = Standing.VERIFIED, Level.HASHED, ""
        children, left_out = shown((*below.children, *extra), self._limit)
        node = replace(
            node,
            verdict=worst((verdict, below.verdict)),
            level=level,
            detail=_also(detail, below.detail),
            children=children,
            left_out=left_out,
        )
        self._seen.add(key)
        return node

    def _name(self, folder: str, recorded: str) -> str:
        return os.path.relpath(self._meant(folder, recorded), self._base)

    def _meant(self, folder: str, recorded: str) -> str:
        """Where a file lay when it was recorded, also if its record was found elsewhere."""
        path = os.path.join(folder, recorded)
        for here, meant in self._stand_in.items():
            if path.startswith(f"{here}/"):
                return os.path.normpath(meant + path[len(here) :])
        return os.path.normpath(path)

    def _places(self, folder: str, recorded: str) -> Iterator[Place]:
        if not is_usable(recorded) or "\0" in folder:
            return
        meant = self._meant(folder, recorded)
        if meant != os.path.normpath(os.path.join(folder, recorded)) and os.path.lexists(meant):
            yield Place(meant, "")
        yield from self.rooms.files(folder, recorded)

    def _best(self, places: Iterable[Place], expected: Expected) -> _Found:
        """The place whose bytes are as recorded, else the first that can be read."""
        first: _Found | None = None
        problem = ""
        for place in places:
            try:
                size = self.fs.lstat(os.path.realpath(place.path)).st_size
                _, sha256 = hash_file(place.path, expected.counted(size), fs=self.fs)
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = problem or error.strerror or str(error)
                continue
            found = _Found(place, size, sha256)
            if not expected.sha256 or sha256 == expected.sha256:
                if first is None or first.place is None:
                    return found
                return found._replace(problem=f"other bytes {_where(first.place.label)}")
            first = first or found
        return first or _Found(None, 0, "", problem)

    def _below(self, node: Node, found: _Found, expected: Expected, *, into: bool) -> Findings:
        """What the content says, then what stands beside the file."""
        assert found.place is not None
        path, inside = found.place.path, Findings()
        resolver = self._resolvers.get(node.kind)
        if resolver is not None and into and node.verdict is not Standing.CHANGED:
            counted = expected.counted(found.size_bytes)
            try:
                inside = resolver(self, Item(path, node.name, node.kind, counted))
            except (FleetError, OSError) as error:
                why = error.message if isinstance(error, FleetError) else error.strerror
                inside = Findings(verdict=Standing.UNKNOWN, detail=why or str(error))
        children, state, detail = list(inside.children), inside.verdict, inside.detail
        origin, problem = self.origin_of(path)
        if origin is not None:
            if origin.sha256 not in (expected.sha256, self._whole(path, found.size_bytes)):
                state = worst((state, Standing.UNKNOWN))
                detail = _also(detail, "its origin is of other bytes")
            children += self._of_origin(path, origin, node.kind)
        elif problem:
            state, detail = worst((state, Standing.UNKNOWN)), _also(detail, problem)
        if not children and into and node.kind not in _MADE_OTHERWISE and node.found_sha256:
            children += self.makers(node.found_sha256)
        if not children and node.kind in NEEDS_ORIGIN and node.verdict is Standing.VERIFIED:
            state = worst((state, Standing.UNRECORDED))
            detail = _also(detail, "nothing says what it was made from")
        return Findings(tuple(children), state, detail, inside.vouches)

    def _whole(self, path: str, size: int) -> str:
        try:
            return hash_file(path, size, fs=self.fs)[1]
        except OSError:
            return ""

    # -- origins

    def origin_of(self, path: str) -> tuple[Origin | None, str]:
        """What stands beside a file, and why that cannot be used if it cannot."""
        try:
            return read_origin(path, fs=self.fs), ""
        except DataError as error:
            return None, error.message

    def _of_origin(self, path: str, origin: Origin, kind: Kind) -> list[Node]:
        folder = os.path.dirname(os.path.abspath(path))
        # A summary knows which tasks it counts; its journals know of others, too.
        into = kind is not Kind.SUMMARY
        found = [
            self.file(
                folder,
                source.path,
                source.kind,
                Expected(source.size_bytes, source.sha256),
                into=into or source.kind is not Kind.JOURNAL,
            )
            for source in origin.sources
        ]
        if origin.producer.task:
            found.append(self.made_by(origin.producer))
        return found

    # -- tasks

    def makers(self, sha256: str) -> list[Node]:
        """The tasks that declared a file with these bytes as their output, and left it behind."""
        return [self.task(claimed) for claimed in self._claimed_by(sha256)]

    def is_output(self, sha256: str) -> bool:
        """Whether there is such a task."""
        return bool(self._claimed_by(sha256))

    def _claimed_by(self, sha256: str) -> list[Claimed]:
        if self._makers is None:
            self._makers = tasks.makers_of(self.rooms, self.fs)
        return self._makers.get(sha256, [])

    def made_by(self, producer: Producer, *, identity: str = "") -> Node:
        """The task that made something, by what it said of itself."""
        return self.task(
            Claimed(
                task=producer.task,
                spool=producer.spool,
                attempt=producer.attempt,
                token=token_of(producer.owner),
                identity=identity,
            )
        )

    def task(self, claimed: Claimed) -> Node:
        """One attempt of a task, with its log; without it where that was shown already."""
        self._tick()
        node = tasks.node_of(self.rooms, claimed, self.fs)
        key = (claimed.task, claimed.spool, claimed.token or claimed.attempt, claimed.identity)
        if key in self._seen:
            return replace(node, children=())
        self._seen.add(key)
        return node

    def output(
        self, folder: str, recorded: str, expected: Expected, kind: Kind | None = None
    ) -> Node:
        """A whole file that a result or checkpoint names as its own, hashed or only sized.

        Args:
            folder: Of the record.
            recorded: The path in it.
            expected: What was recorded of it.
            kind: What it is; by its name if None.
        """
        kind = kind or kind_by_name(recorded)
        if self.hash_outputs:
            return self.file(folder, recorded, kind, expected, into=False, whole=True)
        self._tick()
        node = Node(
            name=self._name(folder, recorded),
            kind=kind,
            verdict=Standing.MISSING,
            detail="not found",
            expected_bytes=expected.size_bytes,
            expected_sha256=expected.sha256,
        )
        for place in self._places(folder, recorded):
            try:
                size = self.fs.lstat(os.path.realpath(place.path)).st_size
            except FileNotFoundError:
                continue
            except OSError as error:
                node = replace(node, verdict=Standing.UNKNOWN, detail=error.strerror or str(error))
                continue
            same = size == expected.size_bytes
            return replace(
                node,
                verdict=Standing.VERIFIED if same else Standing.CHANGED,
                level=Level.SIZED,
                place=place.label,
                detail="" if same else f"{size} bytes, recorded {expected.size_bytes}",
                found_bytes=size,
            )
        return node

    def cut(self, nodes: Iterable[Node]) -> tuple[tuple[Node, ...], int]:
        """As many children as are shown, and how many more there are."""
        return shown(nodes, self._limit)

    def _tick(self) -> None:
        self._count += 1
        if self._progress:
            self._progress(self._count)


def _where(label: str) -> str:
    return f"in {label}" if label else "where the record says"


def _also(one: str, other: str) -> str:
    return "; ".join(part for part in (one, other) if part)
