"""A window of a folder of telemetry, read in one pass and summed up.

Reads a host at a time and computes nothing itself; that is `totals`'s. Invariant: every file that
was not read is counted or named with its reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fleetcraft.layout import forwards_folder, sidecar
from fleetcraft.telemetry.forwards import read_forwards
from fleetcraft.telemetry.queue import read_queue
from fleetcraft.telemetry.reading.sources import NO_SIDECAR, Found, Source, find_sources
from fleetcraft.telemetry.windows.bare_hosts import BareHosts, sentence_without_gpus
from fleetcraft.telemetry.windows.family_mfu import add_up
from fleetcraft.telemetry.windows.levels import Summary
from fleetcraft.telemetry.windows.reach import passed_over
from fleetcraft.telemetry.windows.series import HostRows, read_host
from fleetcraft.telemetry.windows.span import Window
from fleetcraft.telemetry.windows.totals import Evidence, sum_up

_PATH = re.compile(r"/[^\s:;,]+")


@dataclass(kw_only=True)
class Read:
    """What `summarize` found.

    Attributes:
        folder: What paths of files are relative to.
        refused: Files that could not be read, with the reason.
        notes: What a reader of the summary should know.
        bare: Hosts without a row of a GPU in the window.
        evidence: With every row of the window, if it was asked for.
    """

    summary: Summary
    folder: str
    refused: list[tuple[str, str]]
    notes: list[str]
    bare: BareHosts
    evidence: Evidence | None = None


def summarize(
    place: str,
    window: Window,
    *,
    spools: Mapping[str, str] | None = None,
    interval_s: float | None = None,
    keep: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Read:
    """Sums up a window of a folder, or of one file.

    Memory is that of one host's rows within the window, or of all with ``keep``.

    Args:
        place: A folder of telemetry files, or one of them.
        window: The span.
        spools: ``outer`` and ``inner`` to the spools' folders; None when they are not known.
        interval_s: Between samples, for files that do not say.
        keep: Whether to keep and hash everything that `freeze` needs. Paths of this machine are
            then left out of what is kept.
        progress: Called with the files done and the files in all.

    Raises:
        DataError: There is no such place.
    """
    found = find_sources(place)
    folder = _folder_of(place, found)
    wanted = [source for source in found.sources if not passed_over(source, window)]
    start_s, end_s = window.bounds_s(zoned=True)
    forwards = read_forwards(forwards_folder(folder))
    evidence = Evidence(
        window=window,
        hosts=(),
        queue=None if spools is None else read_queue(spools, since_s=start_s, until_s=end_s),
        reported=add_up(forwards.calls, start_s, end_s),
        rejected_reports=sum(forwards.rejected.values()),
        passed_over=len(found.sources) - len(wanted),
        refused=[*found.refused, *_not_told(wanted), *forwards.refused],
    )
    bare = BareHosts()
    hosts = _read_hosts(
        wanted, evidence, bare, folder, interval_s, hash_prefix=keep, progress=progress
    )
    evidence.hosts = list(hosts) if keep else hosts
    refused = list(evidence.refused) if keep else evidence.refused
    if keep:
        _leave_out_paths(evidence)
    summary = sum_up(evidence)
    if bare.hosts and not summary.fleet.hosts:
        words = sentence_without_gpus(bare.hosts, summary.queue)
        summary = msgspec.structs.replace(summary, sentence=words)
    return Read(
        summary=summary,
        folder=folder,
        refused=refused,
        notes=_notes(summary, window),
        bare=bare,
        evidence=evidence if keep else None,
    )


def _folder_of(place: str, found: Found) -> str:
    # Not asked of the system once more: a mount that fails for a moment would make a file of it.
    files = {source.path for source in found.sources} | {path for path, _ in found.refused}
    return os.path.dirname(os.path.abspath(place)) if place in files else place


def _not_told(sources: Sequence[Source]) -> list[tuple[str, str]]:
    """Sidecars that are there and could not be read: without them hosts have fewer GPUs."""
    return [
        (sidecar(source.path), source.sidecar_problem)
        for source in sources
        if source.sidecar_problem not in ("", NO_SIDECAR)
    ]


def _read_hosts(
    sources: Sequence[Source],
    evidence: Evidence,
    bare: BareHosts,
    folder: str,
    interval_s: float | None,
    *,
    hash_prefix: bool,
    progress: Callable[[int, int], None] | None,
) -> Iterator[HostRows]:
    by_host: dict[str, list[Source]] = {}
    for source in sources:
        by_host.setdefault(source.node, []).append(source)
    tried = kept = 0
    for host in sorted(by_host):
        if progress:
            progress(tried, len(sources))
        rows = read_host(
            host,
            by_host[host],
            evidence.window,
            folder=folder,
            first_index=kept,
            interval_s=interval_s,
            hash_prefix=hash_prefix,
            refused=evidence.refused,
        )
        tried += len(by_host[host])
        kept += len(rows.sources)
        if not rows.series:
            bare.read(
                host,
                by_host[host],
                rows.sources,
                evidence.window,
                folder=folder,
                interval_s=interval_s,
            )
        yield rows


def _leave_out_paths(evidence: Evidence) -> None:
    evidence.refused = [
        (os.path.basename(path), _PATH.sub("...", reason)) for path, reason in evidence.refused
    ]
    if evidence.queue is not None:
        evidence.queue.problems = [_PATH.sub("...", text) for text in evidence.queue.problems]


def _notes(summary: Summary, window: Window) -> list[str]:
    notes = []
    if summary.zone in ("file-local", "mixed"):
        which = "the files name" if summary.zone == "file-local" else "some files name"
        how = "of the zone given with --end" if window.end_zone == "given" else "of their own clock"
        notes.append(f"{which} no time zone; their times are taken to be {how}")
    if summary.files_passed_over:
        notes.append(
            f"{summary.files_passed_over} files lie more than a day from the window; not read"
        )
    return notes
