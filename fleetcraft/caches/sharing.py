"""Conflicts of who shares what: generated sources, compiled graphs, and workers of one job.

Judges records; not here: names and places (`check`). Invariant: only workers that have told their
caches are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fleetcraft.caches.records import (
    GENERATED,
    Code,
    Conflict,
    Effective,
    Peer,
    Role,
    Severity,
)
from fleetcraft.caches.scope import is_ours

_SHOWN = 4


def shared_sources(roles: Mapping[Role, Effective]) -> Iterator[Conflict]:
    """Triton's folder, where it is one for all runs and attempts."""
    triton = roles[Role.TRITON]
    if not is_ours(triton.path):
        yield Conflict(
            code=Code.GENERATED_SHARED,
            severity=Severity.WARNING,
            text=f"every run, task and attempt generates Triton sources at {triton.path} "
            f"(by {triton.decided_by})",
            hint="unset TRITON_CACHE_DIR and TRITON_HOME, and leave caches.export on",
            role=Role.TRITON,
            path=triton.path,
        )


def overlapping_graphs(
    roles: Mapping[Role, Effective], peers: Sequence[Peer], *, several: bool
) -> Iterator[Conflict]:
    """Inductor's folder, where it has users at the same time.

    Args:
        roles: Effective paths.
        peers: Workers that live, and what they have said.
        several: Whether a worker runs several tasks at a time.
    """
    one = roles[Role.INDUCTOR]
    seen: dict[tuple[str, str], list[str]] = {}
    for peer in peers:
        if path := peer.roles.get(Role.INDUCTOR, ""):
            seen.setdefault((peer.host, path), []).append(peer.name)
    for (host, path), names in seen.items():
        if len(names) > 1:
            yield _overlapping(path, f"{len(names)} workers on {host} ({listed(names)})")
    on_network = one.filesystem is not None and bool(one.filesystem.network)
    if not is_ours(one.path) and (several or on_network):
        yield _overlapping(one.path, "several slots" if several else "several nodes")


def _overlapping(path: str, who: str) -> Conflict:
    return Conflict(
        code=Code.INDUCTOR_OVERLAP,
        severity=Severity.WARNING,
        text=f"{who} keep compiled graphs at {path} at the same time",
        hint="unset TORCHINDUCTOR_CACHE_DIR, and leave caches.export on",
        role=Role.INDUCTOR,
        path=path,
    )


def differing_workers(peers: Iterable[Peer]) -> Iterator[Conflict]:
    """Workers of one job that use different caches: one conflict a job."""
    jobs: dict[str, list[Peer]] = {}
    for peer in peers:
        jobs.setdefault(peer.job, []).append(peer)
    for job, members in jobs.items():
        if len({peer.digest for peer in members}) > 1:
            yield _differing(job, members)


def _differing(job: str, peers: Sequence[Peer]) -> Conflict:
    for role in Role:
        if role in GENERATED:
            continue
        places: dict[str, list[str]] = {}
        for peer in peers:
            places.setdefault(peer.roles.get(role, ""), []).append(peer.host)
        if len(places) > 1:
            # The smallest group first: that is the worker in which a variable was not set.
            groups = sorted(places.items(), key=lambda item: len(item[1]))
            said = "; ".join(
                f"{path or 'nothing told'} on {listed(hosts)}" for path, hosts in groups[:_SHOWN]
            )
            return Conflict(
                code=Code.WORKERS_DIFFER,
                severity=Severity.ERROR,
                text=f"workers of job {job} use different caches: {role} is {said}",
                hint="one of them lacks a variable that the others have: set caches.root and "
                "caches.hub in fleet.yaml, drain, and launch again",
                role=role,
                path=groups[0][0],
            )
    return Conflict(
        code=Code.WORKERS_DIFFER,
        severity=Severity.ERROR,
        text=f"workers of job {job} report different digests of their caches",
        hint="drain, and launch again with one version of fleetcraft",
    )


def listed(names: Sequence[str]) -> str:
    """The first few of some names, each once, and how many more there are."""
    unique = list(dict.fromkeys(str(name) for name in names))
    more = len(unique) - _SHOWN
    return ", ".join(unique[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
