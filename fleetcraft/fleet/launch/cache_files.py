"""What lies in the caches of a fleet's tasks: models that are not whole, files near their purge.

Looks at names, links, sizes and times, which takes longer than paths alone, so that a launch does
not wait for it. Invariant: nothing is written, and no content is read.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace

import msgspec

from fleetcraft.caches.hub import RepoType
from fleetcraft.caches.purge import PurgeReport, near_purge, referred_files
from fleetcraft.caches.records import Code, Conflict, Role, Severity, by_role
from fleetcraft.caches.refs import MAIN
from fleetcraft.caches.snapshots import Snapshot, read_hub
from fleetcraft.config import Config
from fleetcraft.fleet.launch.caches import CacheView
from fleetcraft.layout import Scratch
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.units import format_bytes

EVIDENCE = "evidence"
MODELS = "hub"
"""What is looked at for its purge: what evidence refers to, and the hub of tasks."""


def look_into_caches(config: Config, view: CacheView) -> CacheView:
    """The same view, with what the files of the caches and of evidence add; errors first."""
    hub = by_role(view.of_tasks)[Role.HUB].path
    found = [*view.conflicts, *_incomplete_models(hub)]
    unknown = list(view.unknown)
    purges: dict[str, PurgeReport] = {}
    days = config.values["storage.purge_days"].value
    if days is not None:
        purges = _purges(config, hub, float(days))
    if (evidence := purges.get(EVIDENCE)) is not None:
        found += _of_evidence(evidence)
    if (models := purges.get(MODELS)) is not None and models.near:
        found.append(_near(models, "of the hub", Severity.ADVICE))
    for report in purges.values():
        unknown += report.unknown
    order = list(Severity)
    found.sort(key=lambda one: order.index(one.severity))
    return replace(view, conflicts=tuple(found), unknown=tuple(unknown), purges=purges)


def _incomplete_models(hub: str) -> list[Conflict]:
    """Snapshots that cannot be loaded whole, and repositories that cannot be read.

    A job that may not download fails on one; others would fetch the rest, each node for itself.
    """
    if not os.path.isdir(hub):
        return []
    try:
        snapshots, unread = read_hub(hub)
    except OSError as error:
        return [_not_whole(f"{hub}: {error.strerror or error}", hub)]
    found = [
        _not_whole(f"{one.repo} at {one.commit[:12]}: {'; '.join(one.troubles)}", hub, one)
        for one in snapshots
        if not one.complete
    ]
    return found + [_not_whole(text, hub) for text in unread]


def _not_whole(text: str, hub: str, snapshot: Snapshot | None = None) -> Conflict:
    which = _words_of(snapshot) if snapshot else "REPO"
    return Conflict(
        code=Code.SNAPSHOT_INCOMPLETE,
        severity=Severity.WARNING,
        text=f"a model is not whole: {text}",
        hint=f"fleetcraft caches mirror {which} from a whole cache, or "
        f"fleetcraft caches fill {which} -- hf download {which}",
        role=Role.HUB,
        path=hub,
    )


def _words_of(snapshot: Snapshot) -> str:
    """How a snapshot is named on the command line, to us and to hf alike."""
    words = [snapshot.repo.name]
    if snapshot.repo.type is not RepoType.MODEL:
        words += ["--repo-type", snapshot.repo.type.value]
    if MAIN not in snapshot.refs:
        words += ["--revision", snapshot.commit]
    return shlex.join(words)


def _purges(config: Config, hub: str, days: float) -> dict[str, PurgeReport]:
    """What is near its purge, of what evidence refers to and of the hub, where these are there."""
    found = {}
    if root := config.text("root"):
        evidence = EvidencePaths(Scratch(root).evidence)
        unread: list[str] = []
        referred = referred_files(evidence, beside=[Scratch(root).telemetry], unread=unread)
        report = near_purge(referred, days, referred=referred)
        found[EVIDENCE] = msgspec.structs.replace(report, unknown=(*unread, *report.unknown))
    if os.path.isdir(hub):
        found[MODELS] = near_purge([hub], days)
    return found


def _of_evidence(report: PurgeReport) -> list[Conflict]:
    """Conflicts of files that evidence refers to: near their purge, or gone."""
    what = "that evidence refers to"
    found = [_near(report, what, Severity.WARNING)] if report.near else []
    if report.gone:
        count, first = len(report.gone), report.gone[0]
        found.append(
            Conflict(
                code=Code.PURGED,
                severity=Severity.ERROR,
                text=f"{_files(count)} {what} {'is' if count == 1 else 'are'} gone, such as "
                f"{first.path} (named by {first.referred_by[0]})",
                hint="fleetcraft evidence verify says what of it is left; restore it from an "
                "archive",
                path=first.path,
            )
        )
    return found


def _near(report: PurgeReport, what: str, severity: Severity) -> Conflict:
    first = report.near[0]
    by = f", named by {first.referred_by[0]}" if first.referred_by else ""
    return Conflict(
        code=Code.NEAR_PURGE,
        severity=severity,
        text=f"{_files(report.near_files)} {what} ({format_bytes(report.near_bytes)}) will soon "
        f"have been idle for {report.purge_days:g} days and be purged: first {first.path}, idle "
        f"for {first.idle_days:.1f} days{by}",
        hint="fleetcraft evidence archive copies evidence to persistent storage, byte for byte"
        if severity is Severity.WARNING
        else "mirror the models that are still needed",
        path=first.path,
    )


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
