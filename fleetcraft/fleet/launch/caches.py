"""Where the caches of a fleet's tasks would lie, and what living workers have said of theirs.

Gathers for the launch checks, ``fleetcraft caches`` and the doctor; the rules are in
`fleetcraft.caches`. Invariant: nothing is written, made or downloaded.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING

import msgspec

from fleetcraft.caches.ask import Asked
from fleetcraft.caches.check import Surroundings, check, unknowns
from fleetcraft.caches.mounts import is_below, look_at
from fleetcraft.caches.records import (
    GENERATED,
    Code,
    Conflict,
    Effective,
    Peer,
    Role,
    Severity,
    by_role,
    digest,
)
from fleetcraft.caches.resolve import resolve
from fleetcraft.caches.scope import (
    CacheSettings,
    Purpose,
    Scope,
    effective_for,
    environment_for,
    is_ours,
    settings_from,
)
from fleetcraft.config import Config
from fleetcraft.errors import ConfigError, FleetError
from fleetcraft.identity import this_host
from fleetcraft.spool import leases
from fleetcraft.spool.tree import SpoolTree

if TYPE_CHECKING:
    from fleetcraft.caches.purge import PurgeReport

_LIBRARIES = ("huggingface_hub", "transformers", "datasets", "torch", "triton")
_HEAD_BYTES = 1 << 16
_SILENT_INTERVALS = 10
_SLACK_S = 60.0  # of two hosts' clocks, and of a slow mount
_MODELS = "models--"
_OF_A_PLACE = (
    Code.GENERATED_ON_NETWORK,
    Code.GENERATED_NOT_EXECUTABLE,
    Code.READ_ONLY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheView:
    """Effective paths, as looked at, and what of them conflicts.

    Attributes:
        here: Of a process that is started here as it is.
        tasks: Of a task of a worker that is started here; None where workers export nothing, and
            where no scratch tree is known.
        environ: What that task's process gets.
        conflicts: Of tasks; of a process here where those are not known.
        unknown: What could not be told, one sentence each.
        peers: Workers that live, with what they have said.
        asked: What the libraries said; None when they were not asked.
        note: Why ``tasks`` is None.
        purges: By what files are, those that are near their purge; only where that was looked at.
    """

    here: tuple[Effective, ...]
    tasks: tuple[Effective, ...] | None
    environ: Mapping[str, str]
    conflicts: tuple[Conflict, ...]
    unknown: tuple[str, ...]
    peers: tuple[Peer, ...] = ()
    asked: Asked | None = None
    note: str = ""
    purges: Mapping[str, PurgeReport] = field(default_factory=dict)

    @property
    def of_tasks(self) -> tuple[Effective, ...]:
        """What tasks use, as far as it is known."""
        return self.here if self.tasks is None else self.tasks

    @property
    def digest(self) -> str:
        """Of what tasks use; a worker that is started here reports the same."""
        return digest(self.of_tasks)


def look_at_caches(
    config: Config,
    environ: Mapping[str, str],
    *,
    purpose: Purpose = Purpose.TASK,
    asked: Asked | None = None,
    peers: tuple[Peer, ...] = (),
) -> CacheView:
    """Resolves, looks and judges.

    Args:
        config: The settings.
        environ: This process's environment.
        purpose: What the tasks are for.
        asked: What the tasks' Python said of its libraries, when it was asked.
        peers: Workers that live.

    Raises:
        ConfigError: ``storage.quota`` cannot be split.
    """
    settings, note = _settings(config)
    versions = asked.versions if asked else installed_versions(config.text("batch.python"))
    quota, work = quota_folders(config), config.text("storage.work")
    here = look_at(resolve(environ, versions=versions), quota=quota, work=work)
    tasks, given = None, dict(environ)
    if settings is not None:
        scope = any_scope(purpose)
        found = effective_for(scope, environ, settings, versions=versions)
        tasks = look_at(found, quota=quota, work=work)
        given |= environment_for(scope, environ, settings)
    around = Surroundings(
        environ=given,
        settings=settings,
        offline=config.flag("caches.offline"),
        several=config.text("worker.slots") != "1",
        peers=peers,
        asked=asked,
    )
    judged = here if tasks is None else tasks
    elsewhere = _models_elsewhere(here, judged)
    return CacheView(
        here=here,
        tasks=tasks,
        environ=given,
        conflicts=(*check(judged, around), *elsewhere),
        unknown=unknowns(judged, asked),
        peers=peers,
        asked=asked,
        note=note,
    )


def task_environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a task of a worker that is started here, as far as caches go."""
    settings, _ = _settings(config)
    if settings is None:
        return dict(environ)
    return {**environ, **environment_for(any_scope(Purpose.TASK), environ, settings)}


def any_scope(purpose: Purpose) -> Scope:
    """A scope that stands for any attempt on this node."""
    host = this_host().host
    return Scope(node=host, run="<task>", attempt="<attempt>", slot=f"{host}-0", purpose=purpose)


def _settings(config: Config) -> tuple[CacheSettings | None, str]:
    try:
        settings = settings_from(config)
    except ConfigError:
        return None, "no scratch tree is known (--root), so what workers export is not either"
    return settings, "" if settings else "caches.export is false: workers export nothing"


def quota_folders(config: Config) -> list[str]:
    """Folders with a small quota; where none is named, the home folder.

    Whoever has the scratch tree in the home folder, as on a machine of one's own, has no other
    place and no quota that matters.

    Raises:
        ConfigError: ``storage.quota`` cannot be split.
    """
    text = config.text("storage.quota")
    try:
        if named := shlex.split(text):
            return named
        home, root = os.path.realpath(os.path.expanduser("~")), config.text("root")
        return [] if root and is_below(os.path.realpath(root), home) else ["~"]
    except ValueError as error:
        source = config.values["storage.quota"].source
        raise ConfigError(
            f"{source}: storage.quota cannot be split into folders ({error}): {text!r}",
            hint="separate folders by spaces, quoted as for a shell",
        ) from error


def installed_versions(python: str) -> dict[str, str]:
    """Versions of the libraries that tasks use, where their Python is this one; else none."""
    if python and os.path.realpath(python) != os.path.realpath(sys.executable):
        return {}
    found = {}
    for package in _LIBRARIES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def cache_peers(tree: SpoolTree) -> tuple[Peer, ...]:
    """Workers that have not left and whose lease is fresh, with the caches they have reported.

    Those of earlier versions have reported none, and are left out.

    Raises:
        OSError: The leases cannot be listed.
    """
    peers = []
    for lease in leases.read_all(tree):
        if lease.left_at is not None or lease.role != "worker" or not _is_fresh(tree, lease):
            continue
        said = _arrival(tree.paths.journal(lease.name))
        if said is not None:
            name, host, job = lease.name, lease.host, lease.job
            peers.append(Peer(name=name, host=host, job=job, digest=said.digest, roles=said.roles))
    return tuple(peers)


def _is_fresh(tree: SpoolTree, lease: leases.Lease) -> bool:
    """Whether it has beaten of late; by wall clocks, which is enough for what only warns."""
    try:
        age_s = time.time() - os.stat(tree.paths.lease(lease.name)).st_mtime
    except OSError:
        return False
    return age_s < _SILENT_INTERVALS * lease.interval_s + _SLACK_S


class _Said(msgspec.Struct):
    digest: str
    roles: dict[str, str]


class _Event(msgspec.Struct):
    event: str
    caches: _Said | None = None


def _arrival(journal: str) -> _Said | None:
    """What a worker reported when it arrived, which is near the head of its journal."""
    try:
        with open(journal, "rb") as file:
            lines = file.read(_HEAD_BYTES).splitlines()
    except OSError:
        return None
    for line in lines:
        try:
            event = msgspec.json.decode(line, type=_Event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if event.event == "arrive":
            return event.caches
    return None


def _models_elsewhere(
    here: tuple[Effective, ...], tasks: tuple[Effective, ...]
) -> tuple[Conflict, ...]:
    """Advice where models were downloaded to a hub that tasks do not look into."""
    mine, theirs = by_role(here)[Role.HUB].path, by_role(tasks)[Role.HUB].path
    if mine == theirs:
        return ()
    count = len(_models(mine) - _models(theirs))
    if not count:
        return ()
    what = "1 model" if count == 1 else f"{count} models"
    return (
        Conflict(
            code=Code.MODELS_ELSEWHERE,
            severity=Severity.ADVICE,
            text=f"{what} in {mine} cannot be found by tasks, whose hub is {theirs}",
            hint=f"fleetcraft caches mirror REPO --to {shlex.quote(theirs)}, or set caches.hub "
            "or HF_HOME to the old place",
            role=Role.HUB,
            path=mine,
        ),
    )


def _models(hub: str) -> set[str]:
    try:
        return {name for name in os.listdir(hub) if name.startswith(_MODELS)}
    except OSError:
        return set()


def launch_conflicts(config: Config, tree: SpoolTree) -> tuple[Conflict, ...]:
    """What a launch should know of: conflicts of the environment that jobs inherit from here.

    Where generated sources would lie on a compute node cannot be seen from a login node, unless
    the user has set a path that is here too.

    Raises:
        ConfigError: A setting is wrong.
    """
    try:
        peers = cache_peers(tree)
    except (OSError, FleetError):
        peers = ()
    view = look_at_caches(config, os.environ, peers=peers)
    # A local disk of compute nodes is not here; what is there would be judged by what is above it.
    unseen = {
        one.role
        for one in view.of_tasks
        if one.role in GENERATED and (is_ours(one.path) or not one.exists)
    }
    return tuple(
        one
        for one in view.conflicts
        if one.severity is not Severity.ADVICE
        and not (one.role in unseen and one.code in _OF_A_PLACE)
    )
