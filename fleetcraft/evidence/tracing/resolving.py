"""What each kind of file rests on, read from its content: one small function a kind.

The walk itself is in `walking`; a kind without a function here ends it. Invariant: content is
looked at only after its bytes were found to be as recorded, or it vouches for itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fleetcraft.batch_table import read_table
from fleetcraft.errors import DataError
from fleetcraft.evidence.kinds import BATCH_TABLE_MARK, RESULT_MARK
from fleetcraft.evidence.records import Kind, Level
from fleetcraft.evidence.results.sets import Result, Row, read_file, read_set, set_names
from fleetcraft.evidence.tracing.claimed import Claimed
from fleetcraft.evidence.tracing.expected import Expected
from fleetcraft.evidence.tracing.nodes import Node, Standing
from fleetcraft.evidence.tracing.origins import digest_of_prefix, read_prefix
from fleetcraft.evidence.tracing.walking import Findings, Item, Resolver, Walk
from fleetcraft.identity import sha256_hex
from fleetcraft.layout import Scratch, calibration_record
from fleetcraft.layout.checkpoints import CONTINUED
from fleetcraft.spool.record import parse

_WINDOW = "gpu_telemetry_window"
_WINDOW_VERSION = 3
_CALIBRATION = "fleetcraft.calibration/"
_CHECKPOINT = "fleetcraft.checkpoint/"
_MOST_MANIFEST_BYTES = 256 << 20


# ------------------------------------------------------------------------------------ summaries


class _WindowSource(msgspec.Struct, frozen=True):
    path: str
    node: str
    prefix_bytes: int
    sha256: str
    job: str = ""


class _Run(msgspec.Struct, frozen=True):
    spool: str
    task: str
    claim: str
    host: str = ""
    outcome: str = ""


class _Queue(msgspec.Struct, frozen=True):
    runs: tuple[_Run, ...] = ()


class _TrialEvidence(msgspec.Struct, frozen=True):
    soak_journal: str = ""
    soak_journal_sha256: str = ""


class _Trial(msgspec.Struct, frozen=True):
    journal: str = ""
    journal_sha256: str = ""
    evidence: _TrialEvidence = _TrialEvidence()

    def journals(self) -> tuple[tuple[str, str], ...]:
        """Its own and that of its soak, each with its digest."""
        soak = self.evidence
        return (
            (self.journal, self.journal_sha256),
            (soak.soak_journal, soak.soak_journal_sha256),
        )


class _Calibration(msgspec.Struct, frozen=True):
    folder: str
    trials: tuple[_Trial, ...] = ()


class _Window(msgspec.Struct, frozen=True):
    folder: str
    sources: tuple[_WindowSource, ...]
    queue: _Queue | None = None


def _summary(walk: Walk, item: Item) -> Findings:
    """A frozen window and a calibration hold their sources; of other summaries the origin does."""
    value = _json(walk, item)
    if str(value.get("schema", "")).startswith(_CALIBRATION):
        return _calibration(walk, item, value)
    if value.get("kind") != _WINDOW:
        return Findings()
    if value.get("schema_version") != _WINDOW_VERSION:
        said = f"a window of schema {value.get('schema_version')!r}: fleetcraft telemetry verify"
        return Findings(verdict=Standing.UNKNOWN, detail=said)
    rest = {key: one for key, one in value.items() if key != "digest"}
    if sha256_hex(msgspec.json.encode(rest, order="deterministic")) != value.get("digest"):
        return Findings(verdict=Standing.CHANGED, detail="its digest does not hold")
    try:
        window = msgspec.convert(value, _Window)
    except msgspec.ValidationError as error:
        return Findings(verdict=Standing.UNKNOWN, detail=f"no frozen window: {error}")
    children = tuple(_of_window(walk, item, window))
    if walk.recompute is None:
        return Findings(children, vouches=True)
    verdict, detail = walk.recompute(item.path)
    return Findings(children, verdict, detail, vouches=True)


def _calibration(walk: Walk, item: Item, value: Mapping[str, Any]) -> Findings:
    """The journals of its trials and soaks, which lie where it says from its own folder."""
    try:
        run = msgspec.convert(value, _Calibration)
    except msgspec.ValidationError as error:
        return Findings(verdict=Standing.UNKNOWN, detail=f"no calibration: {error}")
    kept = (pair for trial in run.trials for pair in trial.journals() if all(pair))
    journals = (
        walk.file(
            os.path.dirname(item.path),
            os.path.relpath(journal, run.folder),
            Kind.JOURNAL,
            Expected(None, digest.removeprefix("sha256:")),
            into=False,
        )
        for journal, digest in kept
    )
    return Findings(tuple(journals))


def _of_window(walk: Walk, item: Item, window: _Window) -> Iterator[Node]:
    """Each source with the tasks that ran on its node, then the tasks of nodes without a file."""
    folder = os.path.join(os.path.dirname(item.path), window.folder)
    by_host: dict[str, list[_Run]] = {}
    for run in window.queue.runs if window.queue else ():
        by_host.setdefault(run.host, []).append(run)
    for source in window.sources:
        if source.path != os.path.basename(source.path) or os.path.isabs(window.folder):
            detail = "it names a file outside its folder"
            yield Node(
                name=source.path, kind=Kind.TELEMETRY, verdict=Standing.UNKNOWN, detail=detail
            )
            continue
        yield walk.file(
            folder,
            source.path,
            Kind.TELEMETRY,
            Expected(source.prefix_bytes, source.sha256),
            extra=_runs(walk, by_host.pop(source.node, ())),
        )
    for runs in by_host.values():
        yield from _runs(walk, runs)


def _runs(walk: Walk, runs: Iterable[_Run]) -> list[Node]:
    return [
        walk.task(Claimed(task=run.task, spool=run.spool, token=run.claim, outcome=run.outcome))
        for run in runs
    ]


def _json(walk: Walk, item: Item) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(read_prefix(walk.fs, item.path, count=item.size_bytes))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}  # a summary need not be JSON
    return value if isinstance(value, dict) else {}


# -------------------------------------------------------------------------------------- results


def _results(walk: Walk, item: Item) -> Findings:
    """A node for each record in the part of the file that counts, with its task and outputs."""
    content = read_prefix(walk.fs, item.path, count=item.size_bytes)
    if RESULT_MARK not in content:
        return Findings()
    found, lines = read_file(item.path, fs=walk.fs), content.count(b"\n")
    rows = [row for row in found.rows if row.line <= lines]
    rejects = [one for one in found.rejects if one.line <= lines and one.reason != "torn"]
    children = [_row(walk, found.folder, row) for row in rows]
    if rejects:
        said = f"{len(rejects)} of its lines cannot be trusted ({rejects[0].reason})"
        changed = any(one.reason == "digest" for one in rejects)
        verdict = Standing.CHANGED if changed else Standing.UNKNOWN
        return Findings(tuple(children), verdict, said)
    return Findings(tuple(children), vouches=True)


def _row(walk: Walk, folder: str, row: Row) -> Node:
    result = row.result
    below = [
        walk.output(folder, out.path, Expected(out.size_bytes, out.sha256))
        for out in result.outputs
    ]
    verdict, detail = Standing.VERIFIED, ""
    if result.producer.task:
        below.append(walk.made_by(result.producer, identity=result.command_identity))
    else:
        verdict, detail = Standing.UNRECORDED, "no task made it"
    children, left_out = walk.cut(below)
    return Node(
        name=label_of(result),
        kind=Kind.RESULTS,
        verdict=verdict,
        level=Level.HASHED,
        detail=detail,
        expected_sha256=row.sha256,
        found_sha256=row.sha256,
        children=children,
        left_out=left_out,
    )


def label_of(result: Result) -> str:
    """What a result is called: ``candidate/arm/seed``, without a candidate that it has not."""
    return "/".join(part for part in (result.candidate, result.arm, str(result.seed)) if part)


def results_that_name(walk: Walk, sha256: str) -> list[Node]:
    """The result records, of any set of the roots, that name an output with these bytes."""
    found: list[Node] = []
    for root in (walk.rooms.roots.scratch, *walk.rooms.roots.archives):
        evidence = Scratch(root).evidence if root else ""
        for name in set_names(evidence) if evidence else ():
            results = read_set(evidence, name, fs=walk.fs)
            found += [
                _row(walk, results.folder, row)
                for row in results.rows
                if any(out.sha256 == sha256 for out in row.result.outputs)
            ]
    return found


# ------------------------------------------------------------------------------ journals, tasks


class _Event(msgspec.Struct, frozen=True):
    event: str = ""
    task: str = ""
    claim: str = ""
    outcome: str = ""


_decode_event = msgspec.json.Decoder(_Event).decode


def _journal(walk: Walk, item: Item) -> Findings:
    """The tasks that a worker ended, as far as its journal counts."""
    ended: dict[str, _Event] = {}
    bad = 0
    for line in read_prefix(walk.fs, item.path, count=item.size_bytes).split(b"\n"):
        try:
            event = _decode_event(line) if line.strip() else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            bad += 1
            continue
        if event is not None and event.event == "end" and event.task and event.claim:
            ended.setdefault(event.claim, event)
    spool = os.path.dirname(os.path.dirname(os.path.realpath(item.path)))
    children = tuple(
        walk.task(Claimed(task=end.task, token=end.claim, outcome=end.outcome, beside=spool))
        for end in ended.values()
    )
    return Findings(children, detail=f"{bad} lines are no events" if bad else "")


def _task(walk: Walk, item: Item) -> Findings:
    """A record itself: its last attempt, in the spool in which it lies."""
    record = parse(read_prefix(walk.fs, item.path, count=item.size_bytes))
    spool = os.path.dirname(os.path.dirname(os.path.realpath(item.path)))
    claimed = Claimed(task=record.spec.name, beside=spool, identity=record.identity)
    return Findings((walk.task(claimed),), vouches=True)


# ---------------------------------------------------------------------------------- batch table


def _table(walk: Walk, item: Item) -> Findings:
    """A frozen batch table: each row's calibration record, found by its hash; of others nothing."""
    if BATCH_TABLE_MARK not in read_prefix(walk.fs, item.path, count=item.size_bytes):
        return Findings()
    if walk.fs.lstat(os.path.realpath(item.path)).st_size != item.size_bytes:
        said = "a frozen batch table is never appended to"
        return Findings(verdict=Standing.CHANGED, detail=said)
    table = read_table(item.path)
    children = [
        node
        for family, row in table.families.items()
        if (node := _calibrated(walk, family, row.evidence)) is not None
    ]
    missing = len(table.families) - len(children)
    detail = f"{missing} rows whose calibration record is not here" if missing else ""
    verdict = Standing.MISSING if missing else Standing.VERIFIED
    return Findings(tuple(children), verdict, detail, vouches=True)


def _calibrated(walk: Walk, family: str, evidence: tuple[str, ...]) -> Node | None:
    wanted = {text.rpartition(":")[2] for text in evidence}
    for root in (walk.rooms.roots.scratch, *walk.rooms.roots.archives):
        folder = Scratch(root).family_folder(family) if root else ""
        if not os.path.isdir(folder):
            continue
        for run in sorted(walk.fs.listdir(folder), reverse=True):
            path = calibration_record(os.path.join(folder, run))
            try:
                size_bytes, sha256 = digest_of_prefix(walk.fs, path)
            except DataError:
                continue
            if sha256 in wanted:
                where, name = os.path.split(path)
                return walk.file(where, name, Kind.SUMMARY, Expected(size_bytes, sha256))
    return None


def rows_that_name(walk: Walk, sha256: str) -> list[str]:
    """The families of the scratch tree's batch table whose evidence is the record of this digest.

    Raises:
        FleetError: There is such a table, and it cannot be trusted.
    """
    path = Scratch(walk.rooms.roots.scratch).batch_table if walk.rooms.roots.scratch else ""
    if not path or not os.path.exists(path):
        return []
    return [
        family
        for family, row in read_table(path).families.items()
        if sha256 in {text.rpartition(":")[2] for text in row.evidence}
    ]


# ---------------------------------------------------------------------------------- checkpoints


class _Shard(msgspec.Struct, frozen=True):
    path: str
    size_bytes: int
    sha256: str


class _Rank(msgspec.Struct, frozen=True):
    files: tuple[_Shard, ...] = ()


class _Checkpoint(msgspec.Struct, frozen=True):
    step: int
    ranks: tuple[_Rank, ...]


class _Continued(msgspec.Struct, frozen=True):
    manifest_sha256: str = ""


def _checkpoint(walk: Walk, item: Item) -> Findings:
    """A committed checkpoint's manifest: the files of every rank. Other checkpoints end here."""
    if item.size_bytes > _MOST_MANIFEST_BYTES or not item.path.endswith(".json"):
        return Findings()
    value = _json(walk, item)
    if not str(value.get("schema", "")).startswith(_CHECKPOINT):
        return Findings()
    try:
        manifest = msgspec.convert(value, _Checkpoint)
    except msgspec.ValidationError as error:
        return Findings(verdict=Standing.UNKNOWN, detail=f"no checkpoint's manifest: {error}")
    folder = os.path.dirname(item.path)
    children = tuple(
        walk.output(folder, one.path, Expected(one.size_bytes, one.sha256), Kind.CHECKPOINT)
        for rank in manifest.ranks
        for one in rank.files
    )
    # The note of a later step names the manifest by its digest.
    known = _continued(walk, folder) == digest_of_prefix(walk.fs, item.path)[1]
    return Findings(children, detail=f"step {manifest.step}", vouches=known)


def _continued(walk: Walk, folder: str) -> str:
    try:
        data = read_prefix(walk.fs, os.path.join(folder, CONTINUED), most_bytes=1 << 20)
        return msgspec.json.decode(data, type=_Continued).manifest_sha256
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


RESOLVERS: Mapping[Kind, Resolver] = {
    Kind.SUMMARY: _summary,
    Kind.RESULTS: _results,
    Kind.JOURNAL: _journal,
    Kind.TASK: _task,
    Kind.TABLE: _table,
    Kind.CHECKPOINT: _checkpoint,
}
"""What the content of a kind of file says; the other kinds end a trace."""
