"""What a process is told about caches: shared roots for all, generated sources for one alone.

A variable that the user has set wins, and is exported as the path that it stands for, so that
libraries which read it differently still agree. Not here: whether that is wise (`check`).
Invariants: nothing here looks at a disk; no two of (node, run, attempt) get the same folder of
generated sources, unless their user has set one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from fleetcraft.caches.mounts import is_below
from fleetcraft.caches.records import Effective, Role, by_role
from fleetcraft.caches.resolve import home_of, resolve
from fleetcraft.caches.roles import INDUCTOR_VARIABLE, OFFLINE, TOKEN_PATH, VARIABLES
from fleetcraft.config import Config
from fleetcraft.layout import Scratch
from fleetcraft.layout.caches import CachePaths, LocalCachePaths

TRITON_VARIABLE = "TRITON_CACHE_DIR"
_HUB_NAMES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
_XDG = "XDG_CACHE_HOME"
_OURS = re.compile(r"/fleetcraft-\d+/caches/(task|train)/(triton|inductor)/")


class Purpose(StrEnum):
    """What a process is for: training and evaluation share no generated sources."""

    TASK = "task"
    TRAIN = "train"


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose generated sources they are.

    Attributes:
        node: Where it runs.
        run: The task or the run.
        attempt: Which attempt of it, unique.
        slot: The place whose users follow one another; compiled graphs stay there.
        purpose: What it is for.
    """

    node: str
    run: str
    attempt: str
    slot: str
    purpose: Purpose = Purpose.TASK


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a project says about caches.

    Attributes:
        root: Where models and compilers keep their files, unless variables say otherwise.
        root_is_set: Somebody has chosen it; else it is a default.
        hub: The hub cache; below the root if empty.
        local: A folder of the node for generated sources; that of ``TMPDIR`` if empty.
        offline: Nothing is to be downloaded.
    """

    root: str
    root_is_set: bool = False
    hub: str = ""
    local: str = ""
    offline: bool = False


def settings_from(config: Config) -> CacheSettings | None:
    """What the settings say; None where workers are to export nothing.

    Raises:
        ConfigError: Nothing says where the caches are.
    """
    return settings_of(config) if config.flag("caches.export") else None


def settings_of(config: Config) -> CacheSettings:
    """The same, also where workers export nothing.

    Raises:
        ConfigError: Nothing says where the caches are.
    """
    root = config.text("caches.root")
    return CacheSettings(
        root=root or Scratch(config.root).caches,
        root_is_set=bool(root),
        hub=config.text("caches.hub"),
        local=config.text("caches.local"),
        offline=config.flag("caches.offline"),
    )


def environment_for(
    scope: Scope, environ: Mapping[str, str], settings: CacheSettings
) -> dict[str, str]:
    """The variables that a process of this scope gets, beside its environment.

    Args:
        scope: Whose it is.
        environ: The environment that it starts from; what is set there wins.
        settings: What the project says.
    """
    return {
        **shared_exports(environ, settings),
        **generated_exports(scope, environ, settings),
    }


def shared_exports(environ: Mapping[str, str], settings: CacheSettings) -> dict[str, str]:
    """The variables of what all nodes share: models, data sets, the token, and whether to download.

    ``HF_HOME`` also holds the token of whoever has logged in; where it moves, the token does not.
    """
    environ = _without_empty(environ)
    paths = CachePaths(settings.root)
    before = by_role(resolve(environ))
    home = before[Role.HF_HOME]
    chosen = _is_chosen(home, environ, settings)
    exports = {"HF_HOME": home.path if chosen else paths.huggingface}
    if not chosen and TOKEN_PATH not in environ:
        exports[TOKEN_PATH] = os.path.join(home.path, "token")
    if settings.hub and not any(name in environ for name in _HUB_NAMES):
        exports["HF_HUB_CACHE"] = settings.hub
    after = by_role(resolve({**environ, **exports}))
    exports["HF_HUB_CACHE"] = after[Role.HUB].path
    exports["HF_DATASETS_CACHE"] = after[Role.DATASETS].path
    exports["TRANSFORMERS_CACHE"] = environ.get("TRANSFORMERS_CACHE", after[Role.HUB].path)
    torch = before[Role.TORCH_HUB]
    chosen = _is_chosen(torch, environ, settings)
    exports["TORCH_HOME"] = os.path.dirname(torch.path) if chosen else paths.torch
    if settings.offline:
        exports |= {name: "1" for name in OFFLINE if name not in environ}
    return exports


def generated_exports(
    scope: Scope, environ: Mapping[str, str], settings: CacheSettings
) -> dict[str, str]:
    """The variables of what a compiler generates: on the node, for this scope alone.

    What another worker or supervisor of ours has set for its own child is no choice of the user's.
    """
    environ = _without_empty(environ)
    paths = LocalCachePaths(local_root(environ, settings), scope.purpose)
    found = by_role(resolve(environ))
    triton, inductor = found[Role.TRITON], found[Role.INDUCTOR]
    return {
        TRITON_VARIABLE: triton.path
        if is_users(triton)
        else paths.triton(scope.node, scope.run, scope.attempt),
        INDUCTOR_VARIABLE: inductor.path if is_users(inductor) else paths.inductor(scope.slot),
    }


def effective_for(
    scope: Scope,
    environ: Mapping[str, str],
    settings: CacheSettings,
    *,
    versions: Mapping[str, str] | None = None,
) -> tuple[Effective, ...]:
    """Where every role's files go in a process of this scope, and who decided that.

    A path that is what it was without us was decided by the user's variable; one of ours by
    ``caches.root``, ``caches.hub`` or ``caches.local``.

    Args:
        scope: Whose it is.
        environ: The environment that it starts from.
        settings: What the project says.
        versions: As for `resolve`.
    """
    environ = _without_empty(environ)
    before = by_role(resolve(environ, versions=versions))
    given = {**environ, **environment_for(scope, environ, settings)}
    return tuple(
        msgspec.structs.replace(
            one,
            decided_by=_who_decided(one, before[one.role], settings),
            overridden=before[one.role].overridden,
        )
        for one in resolve(given, versions=versions)
    )


def _who_decided(now: Effective, before: Effective, settings: CacheSettings) -> str:
    if now.path == before.path:
        return before.decided_by
    if now.role in (Role.TRITON, Role.INDUCTOR):
        return "caches.local"
    if settings.hub and now.path == settings.hub:
        return "caches.hub"
    # The user's own variable, which libraries read differently, exported as one path.
    home = before.decided_by if before.decided_by in ("HF_HOME", _XDG) else ""
    ours = CachePaths(settings.root)
    is_ours_now = is_below(now.path, ours.huggingface) or is_below(now.path, ours.torch)
    return "caches.root" if is_ours_now or not home else home


def is_users(generated: Effective) -> bool:
    """Whether the user has chosen where generated sources go."""
    names = (TRITON_VARIABLE, "TRITON_HOME", INDUCTOR_VARIABLE)
    return generated.decided_by in names and not is_ours(generated.path)


def is_ours(path: str) -> bool:
    """Whether a path is one that fleetcraft gives to generated sources."""
    return _OURS.search(f"{path}/") is not None


def local_root(environ: Mapping[str, str], settings: CacheSettings) -> str:
    """The folder of this node, private to this user, below which generated sources lie."""
    base = settings.local or environ.get("TMPDIR", "")
    if not os.path.isabs(base):
        base = "/tmp"
    return f"{base.rstrip('/')}/fleetcraft-{os.geteuid()}/caches"


def _without_empty(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which an empty cache variable is an unset one, as scripts mean it.

    The libraries take an empty one for the current folder.
    """
    return {name: text for name, text in environ.items() if text or name not in VARIABLES}


def _is_chosen(one: Effective, environ: Mapping[str, str], settings: CacheSettings) -> bool:
    """Whether the user has chosen it: by its own variable, or by moving all caches elsewhere."""
    if one.decided_by in ("HF_HOME", "TORCH_HOME"):
        return True
    usual = os.path.join(home_of(environ), ".cache")
    moved = environ.get(_XDG, usual).rstrip("/") not in ("", usual)
    return one.decided_by == _XDG and moved and not settings.root_is_set
