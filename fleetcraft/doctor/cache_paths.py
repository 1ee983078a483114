"""Where models and compilers keep their files for a task that a worker would start here.

Paths, files and conflicts are told by `fleet.launch` and `caches`; here they become findings.
Invariant: a conflict that refuses a launch is wrong, one that warns is advice, and what could not
be told is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleetcraft.caches.ask import ask
from fleetcraft.caches.records import Code, Conflict, Peer, Role, Severity, by_role
from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Finding, Verdict, advice, ok, unknown
from fleetcraft.errors import FleetError
from fleetcraft.fleet.launch.cache_files import look_into_caches
from fleetcraft.fleet.launch.caches import (
    CacheView,
    cache_peers,
    look_at_caches,
    task_environment,
)
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.units import counted

_LIMIT_S = 100.0
_VERDICTS = {
    Severity.ERROR: Verdict.WRONG,
    Severity.WARNING: Verdict.ADVICE,
    Severity.ADVICE: Verdict.ADVICE,
}
_LOOK = "fleetcraft caches check"


def check_caches(case: Case) -> Iterator[Finding]:
    """The effective paths of caches, what conflicts, and what living workers use."""
    peers = _peers(case)
    view = look_at_caches(case.config, case.environ, peers=peers)
    hub = by_role(view.of_tasks)[Role.HUB]
    yield ok("hub", f"{hub.path} (by {hub.decided_by})")
    yield from (_finding(conflict) for conflict in view.conflicts)
    if view.unknown:
        yield unknown("paths", "; ".join(view.unknown), _LOOK)
    if view.note and case.root:
        yield advice("export", view.note, "on, so that all nodes agree", "take caches.export out")
    if peers:
        digests = {peer.digest for peer in peers}
        if digests <= {view.digest}:
            yield ok("workers", f"{counted(len(peers), 'worker')} with these caches")
        else:
            found = "workers that live use other caches than one that is started here would"
            yield advice("workers", found, "the same", "fleetcraft caches show, here and in a task")


def check_cache_files(case: Case) -> Iterator[Finding]:
    """Models that are not whole, and files near their purge."""
    view = look_at_caches(case.config, case.environ)
    found = look_into_caches(case.config, view)
    news = [conflict for conflict in found.conflicts if conflict not in view.conflicts]
    yield from (_finding(conflict) for conflict in news)
    said = [text for text in found.unknown if text not in view.unknown]
    if said:
        yield unknown("files", "; ".join(said), _LOOK)
    if not news and not said:
        yield ok("files", f"{_models(view)}, none of them torn and nothing near its purge")


def _models(view: CacheView) -> str:
    from fleetcraft.caches.hub import list_repos

    hub = by_role(view.of_tasks)[Role.HUB]
    if hub.exists is False:
        return "no hub yet"
    return counted(len(list_repos(hub.path)), "repository", "repositories")


def check_libraries(case: Case) -> Iterator[Finding]:
    """Whether the libraries of the tasks' Python use the paths that were computed."""
    asked = ask(case.python, task_environment(case.config, case.environ), limit_s=_LIMIT_S)
    view = look_at_caches(case.config, case.environ, asked=asked)
    conflicts = [one for one in view.conflicts if one.code is Code.ASKED_DIFFERS]
    yield from (_finding(conflict) for conflict in conflicts)
    said = [asked.why] if asked.why else [f"{name}: {why}" for name, why in asked.problems.items()]
    if said:
        found = f"{case.python} did not say which paths its libraries use: {'; '.join(said)}"
        yield unknown("libraries", found, f"{_LOOK} --ask")
    elif not conflicts:
        names = ", ".join(f"{name} {version}" for name, version in sorted(asked.versions.items()))
        told = f"as computed, by {names}" if names else "no library with a cache is installed"
        yield ok("libraries", f"{told} ({case.python})")


def _peers(case: Case) -> tuple[Peer, ...]:
    """Workers of the outer spool that live; none where there is no spool."""
    if not case.has_root:
        return ()
    try:
        return cache_peers(SpoolTree(case.config.spool_dir("outer"), case.fs).check_safe())
    except (OSError, FleetError):
        return ()  # told by the project's own checks


def _finding(conflict: Conflict) -> Finding:
    name = conflict.code.value.replace("_", " ")
    if conflict.role is not None:
        name = f"{conflict.role.value}: {name}"
    return Finding(
        name=name, verdict=_VERDICTS[conflict.severity], found=conflict.text, hint=conflict.hint
    )
