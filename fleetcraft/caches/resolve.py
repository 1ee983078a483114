"""Effective cache paths, computed from an environment as the libraries compute them.

Pure: nothing on disk is looked at (`mounts` does that) and no library is imported (`ask` does).
Invariant: the same environment and home give the same paths, on every node.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping

from fleetcraft.caches.records import DEFAULT, Effective, Lost, Role
from fleetcraft.caches.roles import (
    CHAINS,
    INDUCTOR_LIBRARY,
    INDUCTOR_VARIABLE,
    TRANSFORMERS_BEFORE_5,
    Chain,
    Reads,
    Step,
)

_NAME = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_USER = ("LOGNAME", "USER", "LNAME", "USERNAME")
_BAD_IN_A_NAME = re.compile(r'[\\/:*?"<>|]')


def resolve(
    environ: Mapping[str, str],
    *,
    home: str | None = None,
    versions: Mapping[str, str] | None = None,
) -> tuple[Effective, ...]:
    """Where every role's files go in a process that starts with this environment.

    Args:
        environ: Its environment.
        home: Its home folder; that of the environment, else of the password database, if None.
        versions: Versions of the libraries it uses, by package; those read `roles` describes where
            one is missing.

    Returns:
        One record a role, in the order of `Role`; nothing was looked at on disk.
    """
    home = home_of(environ) if home is None else home
    versions = versions or {}
    found = []
    for role in Role:
        if role is Role.INDUCTOR:
            one = _inductor(environ)
        else:
            one = _by_chain(role, _chain(role, versions), environ, home)
        version = versions.get(one.library, "")
        library = f"{one.library} {version}" if version else ""
        found.append(
            Effective(
                role=role,
                path=one.path,
                decided_by=one.decided_by,
                overridden=one.overridden,
                library=library,
            )
        )
    return tuple(found)


def home_of(environ: Mapping[str, str]) -> str:
    """The home folder as ``~`` stands for it: the variable's, else the password database's."""
    home = environ.get("HOME")
    if home is not None:
        return home
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "~"  # as os.path.expanduser leaves it


def _chain(role: Role, versions: Mapping[str, str]) -> Chain:
    major = versions.get("transformers", "").partition(".")[0]
    if role is Role.TRANSFORMERS and major.isdecimal() and int(major) < 5:
        return TRANSFORMERS_BEFORE_5
    return CHAINS[role]


def _by_chain(role: Role, chain: Chain, environ: Mapping[str, str], home: str) -> Effective:
    given = [step for step in chain.steps if step.variable in environ]
    lost = [_lost(step, environ, home) for step in given[1:]]
    lost += [_lost(Step(name), environ, home) for name in chain.ignored if name in environ]
    if given:
        path, decided_by = _path(given[0], environ, home), given[0].variable
    else:
        path, decided_by = os.path.join(home, chain.default), DEFAULT
    return Effective(
        role=role,
        path=path,
        decided_by=decided_by,
        overridden=tuple(lost),
        library=chain.library,
    )


def _lost(step: Step, environ: Mapping[str, str], home: str) -> Lost:
    same_role = not step.below and not step.then
    return Lost(variable=step.variable, path=_path(step, environ, home), same_role=same_role)


def _path(step: Step, environ: Mapping[str, str], home: str) -> str:
    path = environ[step.variable]
    for below, reads in ((step.below, step.reads), (step.then, step.again)):
        path = os.path.join(path, below) if below else path
        if reads is not Reads.RAW:
            path = _at_home(path, home)
        if reads is Reads.FULL:
            path = _with_names(path, environ)
    return path


def _at_home(path: str, home: str) -> str:
    """As ``os.path.expanduser``, with this home."""
    if path == "~" or path.startswith("~/"):
        return (home.rstrip("/") + path[1:]) or "/"
    return os.path.expanduser(path) if path.startswith("~") else path


def _with_names(path: str, environ: Mapping[str, str]) -> str:
    """As ``os.path.expandvars``: a name that is not set stays as it stands."""

    def text_of(found: re.Match[str]) -> str:
        name = found[1]
        return environ.get(name[1:-1] if name.startswith("{") else name, found[0])

    return _NAME.sub(text_of, path)


def _inductor(environ: Mapping[str, str]) -> Effective:
    """Source: _inductor/runtime/cache_dir_utils.py of torch 2.13, and ``tempfile.gettempdir``."""
    if INDUCTOR_VARIABLE in environ:
        path, decided_by = environ[INDUCTOR_VARIABLE], INDUCTOR_VARIABLE
    else:
        decided_by = next((name for name in _TEMPORARY if environ.get(name)), DEFAULT)
        folder = environ.get(decided_by, "/tmp")
        path = os.path.join(folder, f"torchinductor_{_user_name(environ)}")
    return Effective(role=Role.INDUCTOR, path=path, decided_by=decided_by, library=INDUCTOR_LIBRARY)


def _user_name(environ: Mapping[str, str]) -> str:
    name = next((environ[key] for key in _USER if environ.get(key)), "")
    if not name:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            name = f"uid_{os.getuid()}"
    return _BAD_IN_A_NAME.sub("_", name)
