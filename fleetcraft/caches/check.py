"""Conflicts of effective cache paths: what will go wrong, or may, each with a code and a cure.

Judges records; looks at nothing itself. Invariant: what is unknown is no conflict and is not taken
for well either: `unknowns` says it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleetcraft.caches.ask import Asked
from fleetcraft.caches.mounts import is_below
from fleetcraft.caches.records import (
    GENERATED,
    HEAVY,
    Code,
    Conflict,
    Effective,
    Peer,
    Role,
    Severity,
    by_role,
)
from fleetcraft.caches.roles import OFFLINE, VARIABLES
from fleetcraft.caches.scope import CacheSettings
from fleetcraft.caches.sharing import (
    differing_workers,
    listed,
    overlapping_graphs,
    shared_sources,
)

_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_OF_NAMES = {Role.HUB: Severity.ERROR, Role.TORCH_HUB: Severity.ADVICE}
_COMPILED = (Role.TRITON, Role.INDUCTOR, Role.EXTENSIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What effective paths are judged against.

    Attributes:
        environ: The environment of the process whose paths they are.
        settings: What the project says; None where workers export nothing.
        offline: It is declared that nothing is downloaded.
        several: Whether a worker runs several tasks at a time.
        peers: Workers that live, with what they have reported.
        asked: What the libraries themselves said; None when nobody asked.
    """

    environ: Mapping[str, str]
    settings: CacheSettings | None = None
    offline: bool = False
    several: bool = False
    peers: Sequence[Peer] = ()
    asked: Asked | None = None


def check(effective: Iterable[Effective], around: Surroundings) -> tuple[Conflict, ...]:
    """Every conflict, errors first.

    Args:
        effective: One record a role, as looked at by `mounts.look_at`.
        around: What they are judged against.
    """
    roles = by_role(effective)
    found = [conflict for judge in _JUDGES for conflict in judge(roles, around)]
    order = list(Severity)
    return tuple(sorted(found, key=lambda one: order.index(one.severity)))


def unknowns(effective: Iterable[Effective], asked: Asked | None) -> tuple[str, ...]:
    """What could not be told, one sentence each; it may hide a conflict."""
    said = []
    for one in effective:
        if os.path.isabs(one.path) and (one.exists is None or one.writable is None):
            said.append(f"whether {one.role} at {one.path} can be used is not known")
        facts = one.filesystem
        if facts and facts.network is None and one.role in (Role.TRITON, Role.INDUCTOR):
            kind = facts.type or "a file system without a type"
            said.append(f"whether other nodes see {one.path} ({kind}) is not known")
    if asked is not None and not asked.answered:
        said.append(f"{asked.python} did not say which paths its libraries use: {asked.why}")
    elif asked is not None:
        said += [
            f"{package} of {asked.python} did not say which paths it uses: {why}"
            for package, why in asked.problems.items()
        ]
    return tuple(said)


# -- names and settings


def _absolute(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    for one in roles.values():
        if not os.path.isabs(one.path):
            yield Conflict(
                code=Code.NOT_ABSOLUTE,
                severity=Severity.ERROR,
                text=f"{one.role} is {one.path!r} (by {one.decided_by}), which means another "
                "folder in every process",
                hint=f"unset {one.decided_by}, or set it to a path that begins with /",
                role=one.role,
                path=one.path,
            )


def _names(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    for one in roles.values():
        for lost in one.overridden:
            if not lost.same_role or _same(lost.path, one.path):
                continue
            if one.role is Role.TRANSFORMERS:
                continue  # its own conflict, and the hub's names are the hub's
            yield Conflict(
                code=Code.NAMES_DIFFER,
                severity=_OF_NAMES.get(one.role, Severity.WARNING),
                text=f"{lost.variable} says {lost.path}, and {one.role} is {one.path} "
                f"(by {one.decided_by}); a library that reads the other name uses another cache",
                hint=f"unset {lost.variable}, or set both to one path",
                role=one.role,
                path=one.path,
            )


def _transformers(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    hub, text = roles[Role.HUB].path, around.environ.get("TRANSFORMERS_CACHE", "")
    if text and not _same(text, hub):
        yield Conflict(
            code=Code.TRANSFORMERS_DIFFERS,
            severity=Severity.WARNING,
            text=f"TRANSFORMERS_CACHE is {text}, and the hub is {hub}: transformers before 5 "
            "downloads a second copy there, later ones ignore it",
            hint="unset TRANSFORMERS_CACHE, or set it to the hub",
            role=Role.TRANSFORMERS,
            path=text,
        )


def _settings(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    if around.settings is None:
        return
    wanted = [("caches.hub", around.settings.hub, roles[Role.HUB])]
    if around.settings.root_is_set:
        wanted.append(("caches.root", around.settings.root, roles[Role.HF_HOME]))
    for name, path, one in wanted:
        if path and not is_below(os.path.normpath(one.path), os.path.normpath(path)):
            yield Conflict(
                code=Code.SETTING_OVERRULED,
                severity=Severity.WARNING,
                text=f"{name} is {path}, and {one.role} is {one.path} (by {one.decided_by}): "
                "what is set in the environment wins",
                hint=f"unset {one.decided_by}, or take {name} out",
                role=one.role,
                path=one.path,
            )


def _offline(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    environ = around.environ
    if not (around.offline or any(_is_true(environ.get(name)) for name in OFFLINE)):
        return
    hub = _is_true(environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE"))
    own = environ.get("HF_DATASETS_OFFLINE")
    datasets = hub if own is None else _is_true(own)
    for role, is_off, names in (
        (Role.HUB, hub, OFFLINE[:2]),
        (Role.DATASETS, datasets, OFFLINE[2:]),
    ):
        if not is_off:
            given = ", ".join(f"{name}={environ[name]}" for name in names if name in environ)
            yield Conflict(
                code=Code.DOWNLOADS_POSSIBLE,
                severity=Severity.ERROR,
                text=f"it is declared that nothing is downloaded, and {role} may be downloaded "
                f"({given or f'{names[0]} is not set'})",
                hint=f"export {names[0]}=1, or unset it and let workers set it (caches.export)",
                role=role,
                path=roles[role].path,
            )


def _asked(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    for role, path in (around.asked.paths if around.asked else {}).items():
        if not _same(path, roles[role].path):
            yield Conflict(
                code=Code.ASKED_DIFFERS,
                severity=Severity.ERROR,
                text=f"the libraries of {around.asked and around.asked.python} use {path} for "
                f"{role}, where {roles[role].path} was computed",
                hint="something at their start changes the environment (sitecustomize, a .pth "
                "file), or that version reads other variables: set the path by hand",
                role=role,
                path=path,
            )


# -- places


def _quota(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    yield from _misplaced(
        roles,
        lambda one: one.filesystem is not None and bool(one.filesystem.quota),
        Code.ON_QUOTA,
        "in a folder with a small quota",
    )


def _work(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    yield from _misplaced(
        roles,
        lambda one: one.filesystem is not None and bool(one.filesystem.work),
        Code.WRONG_PLACE,
        "in persistent storage (storage.work), which is for code and compact evidence",
    )


def _misplaced(
    roles: Mapping[Role, Effective],
    is_there: Callable[[Effective], bool],
    code: Code,
    where: str,
) -> Iterator[Conflict]:
    """One conflict for each folder: what lies below HF_HOME moves with it."""
    home = roles[Role.HF_HOME]
    groups: dict[Role, list[Role]] = {}
    for role in HEAVY:
        if is_there(roles[role]):
            with_home = is_there(home) and is_below(roles[role].path, home.path)
            groups.setdefault(Role.HF_HOME if with_home else role, []).append(role)
    for role, members in groups.items():
        path, by = roles[role].path, roles[role].decided_by
        many = len(members) > 1
        hint = "set caches.root to a folder of scratch"
        if by in VARIABLES:
            hint = f"set {by} to a folder of scratch, or unset it: workers then export caches.root"
        yield Conflict(
            code=code,
            severity=Severity.WARNING,
            text=f"{listed(members)} {'lie' if many else 'lies'} at {path} (by {by}), {where}",
            hint=hint,
            role=role,
            path=path,
        )


def _network(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    for role in _COMPILED:
        one = roles[role]
        if one.filesystem is None or not one.filesystem.network:
            continue
        severity = Severity.ERROR if role is Role.TRITON else Severity.WARNING
        if role is Role.EXTENSIONS and one.decided_by not in VARIABLES:
            severity = Severity.ADVICE
        yield Conflict(
            code=Code.GENERATED_ON_NETWORK,
            severity=severity,
            text=f"{role} generates its sources at {one.path} (by {one.decided_by}), on "
            f"{one.filesystem.type}: nodes that compile at a time break one another's files",
            hint="unset the variable and let workers give each attempt a folder of its node, or "
            "set caches.local to a local disk",
            role=role,
            path=one.path,
        )


def _noexec(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    for role in _COMPILED:
        one = roles[role]
        if one.filesystem is not None and one.filesystem.executable is False:
            yield Conflict(
                code=Code.GENERATED_NOT_EXECUTABLE,
                severity=Severity.ADVICE if role is Role.EXTENSIONS else Severity.ERROR,
                text=f"{role} keeps libraries at {one.path}, and {one.filesystem.mount} is mounted "
                "noexec: they cannot be loaded",
                hint="set caches.local to a folder of a file system without noexec",
                role=role,
                path=one.path,
            )


def _writable(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    # A hub that is complete and read-only is as it should be where nothing is downloaded.
    reads_only = around.offline or _is_true(around.environ.get("HF_HUB_OFFLINE"))
    spared = {Role.HUB, Role.TRANSFORMERS, Role.HF_HOME, Role.XET} if reads_only else set()
    minor = {Role.MODULES, Role.ASSETS, Role.EXTENSIONS, Role.CUDA, Role.HF_HOME}
    for one in roles.values():
        if reads_only and one.role is Role.HUB and one.exists is False:
            yield Conflict(
                code=Code.MISSING,
                severity=Severity.ERROR,
                text=f"nothing is to be downloaded, and the hub {one.path} is not there",
                hint=f"fleetcraft caches mirror REPO --to {shlex.quote(one.path)}, or "
                "fleetcraft caches fill REPO -- hf download REPO",
                role=one.role,
                path=one.path,
            )
        elif one.writable is False and not (one.role in spared and one.exists):
            what = "is read-only" if one.exists else "is not there and cannot be made"
            yield Conflict(
                code=Code.READ_ONLY,
                severity=Severity.ADVICE if one.role in minor else Severity.ERROR,
                text=f"{one.role} at {one.path} (by {one.decided_by}) {what} for this user",
                hint=_cure_of_read_only(one),
                role=one.role,
                path=one.path,
            )


def _cure_of_read_only(one: Effective) -> str:
    if one.role not in GENERATED:
        return "fill it first and set caches.offline: true, or choose a folder of your own"
    if one.decided_by in VARIABLES:
        return f"set {one.decided_by} to a folder of this node that you can write, or unset it"
    return "set caches.local to a folder of this node that you can write"


def _sharing(roles: Mapping[Role, Effective], around: Surroundings) -> Iterator[Conflict]:
    yield from shared_sources(roles)
    yield from overlapping_graphs(roles, around.peers, several=around.several)
    yield from differing_workers(around.peers)


def _same(one: str, other: str) -> bool:
    return os.path.normpath(one) == os.path.normpath(other)


def _is_true(text: str | None) -> bool:
    """Source: ``_is_true`` in constants.py of huggingface_hub 2.4."""
    return (text or "").upper() in _TRUE


_JUDGES: tuple[Callable[[Mapping[Role, Effective], Surroundings], Iterator[Conflict]], ...] = (
    _absolute, _names, _transformers, _settings, _offline, _asked, _quota, _work, _network,
    _noexec, _writable, _sharing,
)  # fmt: skip
