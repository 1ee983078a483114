"""What lies in the caches of a fleet's tasks: models that are not whole, files near their purge.

Looks at names, links, sizes and times, which takes longer than paths alone, so that a launch does
not wait for it. Invariant: nothing is written, and no content is read.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace

from fleetcraft.caches.purge import PurgeReport, near_purge, referred_files
from fleetcraft.caches.records import Code, Conflict, Role, Severity, by_role
from fleetcraft.caches.snapshots import read_hub
from fleetcraft.config import Config
from fleetcraft.fleet.launch.caches import CacheView
from fleetcraft.layout import Scratch
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.units import format_bytes


def look_into_caches(config: Config, view: CacheView) -> CacheView:
    """The same view, with what the files of the caches and of evidence add; errors first."""
    hub = by_role(view.of_tasks)[Role.HUB].path
    found = [*view.conflicts, *_incomplete_models(hub)]
    unknown = list(view.unknown)
    days = config.values["storage.purge_days"].value
    if days is not None:
        for purge in (_purge_of_evidence(config, float(days)), _purge_of_hub(hub, float(days))):
            found += purge[0]
            unknown += purge[1]
    order = list(Severity)
    found.sort(key=lambda one: order.index(one.severity))
    return replace(view, conflicts=tuple(found), unknown=tuple(unknown))


def _incomplete_models(hub: str) -> list[Conflict]:
    """Snapshots that cannot be loaded whole, and repositories that cannot be read.

    A job that may not download fails on one; others would fetch the rest, each node for itself.
    """
    if not os.path.isdir(hub):
        return []
    try:
        snapshots, unread = read_hub(hub)
    except OSError as error:
        return [_not_whole(f"{hub}: {error.strerror or error}", "REPO", hub)]
    found = [
        _not_whole(
            f"{one.repo} at {one.commit[:12]}: {'; '.join(one.troubles)}", one.repo.name, hub
        )
        for one in snapshots
        if not one.complete
    ]
    return found + [_not_whole(text, "REPO", hub) for text in unread]


def _not_whole(text: str, repo: str, hub: str) -> Conflict:
    return Conflict(
        code=Code.SNAPSHOT_INCOMPLETE,
        severity=Severity.WARNING,
        text=f"a model is not whole: {text}",
        hint=f"fleetcraft caches mirror {shlex.quote(repo)} from a whole cache, or "
        f"fleetcraft caches fill {shlex.quote(repo)}",
        role=Role.HUB,
        path=hub,
    )


def _purge_of_evidence(config: Config, days: float) -> tuple[list[Conflict], list[str]]:
    """Files that evidence refers to: near their purge, or gone."""
    root = config.text("root")
    if not root:
        return [], []
    evidence = EvidencePaths(Scratch(root).evidence)
    referred = referred_files(evidence, beside=[Scratch(root).telemetry])
    report = near_purge(referred, days, referred=referred)
    found = [_near(report, "that evidence refers to", Severity.WARNING)] if report.near else []
    if report.gone:
        count = len(report.gone)
        found.append(
            Conflict(
                code=Code.PURGED,
                severity=Severity.ERROR,
                text=f"{_files(count)} that evidence refers to {'is' if count == 1 else 'are'} "
                f"gone, such as {report.gone[0]} (named by {referred[report.gone[0]][0]})",
                hint="fleetcraft evidence verify says what of it is left; restore it from an "
                "archive",
                path=report.gone[0],
            )
        )
    return found, list(report.unknown)


def _purge_of_hub(hub: str, days: float) -> tuple[list[Conflict], list[str]]:
    if not os.path.isdir(hub):
        return [], []
    report = near_purge([hub], days)
    found = [_near(report, "of the hub", Severity.ADVICE)] if report.near else []
    return found, list(report.unknown)


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
