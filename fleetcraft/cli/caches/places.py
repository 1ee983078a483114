"""Which hub cache a command means, and where its records go.

Invariant: what a command writes by default is the hub that workers give their tasks.
"""

from __future__ import annotations

import contextlib
import os

from fleetcraft.caches.hub import Repo, RepoType, parse_repo
from fleetcraft.caches.records import Role, by_role
from fleetcraft.caches.resolve import resolve
from fleetcraft.caches.scope import settings_from, shared_exports
from fleetcraft.cli.session import Session
from fleetcraft.errors import ConfigError
from fleetcraft.layout import Scratch
from fleetcraft.layout.caches import CachePaths, HubPaths
from fleetcraft.units import parse_duration_s


def effective_hub() -> str:
    """The hub cache that libraries use in this very environment."""
    return by_role(resolve(os.environ))[Role.HUB].path


def shared_hub(session: Session, given: str | None) -> str:
    """The hub cache that was named, else the one of the project's tasks, else the effective one."""
    if given:
        return os.path.abspath(given)
    with contextlib.suppress(ConfigError):
        if (settings := settings_from(session.config)) is not None:
            return shared_exports(os.environ, settings)["HF_HUB_CACHE"]
    return session.config.text("caches.hub") or effective_hub()


def records_of(session: Session, hub: str) -> CachePaths:
    """Where records about a hub cache go: the project's caches, else the hub's own room."""
    if root := session.config.text("caches.root"):
        return CachePaths(root)
    with contextlib.suppress(ConfigError):
        root = session.config.root
        if os.path.isdir(root):
            return CachePaths(Scratch(root).caches)
    return CachePaths(HubPaths(hub).own)


def named_repo(text: str, repo_type: str) -> Repo:
    """The repository that was named on the command line.

    Raises:
        UsageError: It is no name of one.
    """
    return parse_repo(text, RepoType(repo_type))


def read_wait_s(text: str) -> float:
    """Seconds of a duration as the command line has it; ``0`` and ``0s`` are none.

    Raises:
        UsageError: It is no duration.
    """
    return 0.0 if text.strip() in ("0", "0s") else float(parse_duration_s(text))
