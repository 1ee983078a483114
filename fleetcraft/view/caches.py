"""Effective cache paths and their conflicts, as text and as JSON.

Records in, text out. Invariant: paths and values come from files and the environment of whoever
calls, so everything is spelled out printable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fleetcraft.caches.ask import Asked
from fleetcraft.caches.records import Conflict, Effective, Severity, by_role, digest
from fleetcraft.fleet.launch.caches import CacheView
from fleetcraft.units import format_bytes
from fleetcraft.view.caches_models import purge_shape, render_purge
from fleetcraft.view.text import Paint, joined, left_out, one_line, plural, printable, table

_PAINT = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.ADVICE: "quiet"}


def show_shape(view: CacheView, purpose: str) -> dict[str, Any]:
    """The JSON of ``caches show``: paths here and of tasks, with the digest of what tasks use."""
    return {
        "schema": "fleetcraft.caches/1",
        "purpose": purpose,
        "here": msgspec.to_builtins(view.here),
        "tasks": None if view.tasks is None else msgspec.to_builtins(view.tasks),
        "digest": view.digest,
        "digest_here": digest(view.here),
        "asked": _asked_shape(view.asked),
        "unknown": list(view.unknown),
        "note": view.note,
    }


def check_shape(view: CacheView, answer: str) -> dict[str, Any]:
    """The JSON of ``caches check``: every conflict with its code, and what is unknown."""
    return {
        "schema": "fleetcraft.caches-check/1",
        "answer": answer,
        "conflicts": msgspec.to_builtins(view.conflicts),
        "unknown": list(view.unknown),
        "purge": {name: purge_shape(report) for name, report in view.purges.items()},
        "digest": view.digest,
        "workers": msgspec.to_builtins(view.peers),
        "asked": _asked_shape(view.asked),
        "note": view.note,
    }


def _asked_shape(asked: Asked | None) -> Any:
    return None if asked is None else msgspec.to_builtins(asked)


def render_show(view: CacheView, *, paint: Paint, width: int | None) -> str:
    """What ``caches show`` prints.

    Args:
        view: What was found.
        paint: Colours.
        width: Of the terminal; None never cuts.
    """
    parts = []
    if view.tasks is None:
        parts.append(_section("a process started from here", view.here, paint, width))
        parts.append(printable(view.note))
    else:
        parts.append(_section("tasks of a worker started here", view.tasks, paint, width))
        tasks = by_role(view.tasks)
        other = [one for one in view.here if one.path != tasks[one.role].path]
        if other:
            title = "elsewhere for a process started from here without a worker"
            parts.append(_section(title, other, paint, width))
    if lost := _lost(view.of_tasks):
        parts.append("\n".join([paint("strong", "set, and without effect"), *lost]))
    parts.append(_asked(view))
    parts += [f"unknown: {printable(text)}" for text in view.unknown]
    parts.append(f"digest of what all nodes share: {view.digest[:16]}")
    return joined(parts)


def _section(title: str, effective: Sequence[Effective], paint: Paint, width: int | None) -> str:
    rows = [[one.role.value, printable(one.path), one.decided_by, _place(one)] for one in effective]
    return f"{paint('strong', title)}\n{table(rows, width=width)}"


def _place(one: Effective) -> str:
    facts = one.filesystem
    if facts is None:
        return "not an absolute path"
    shared = {True: "shared", False: "of this node", None: "shared or not: unknown"}
    words = [facts.type or "unknown file system", shared[facts.network]]
    if facts.free_bytes is not None:
        words.append(f"{format_bytes(facts.free_bytes)} free")
    if facts.quota:
        words.append("small quota")
    if one.exists is False:
        words.append("not there yet")
    if one.writable is False:
        words.append("cannot be written")
    return one_line(", ".join(words))


def _lost(effective: Sequence[Effective]) -> list[str]:
    rows = [
        [lost.variable, printable(lost.path), f"for {one.role}, which {one.decided_by} decides"]
        for one in effective
        for lost in one.overridden
        if lost.same_role and lost.path != one.path
    ]
    return [table(rows)] if rows else []


def _asked(view: CacheView) -> str:
    asked = view.asked
    if asked is None or not asked.answered:
        return ""
    computed = by_role(view.of_tasks)
    agreed = sum(computed[role].path == path for role, path in asked.paths.items())
    names = ", ".join(f"{name} {version}" for name, version in sorted(asked.versions.items()))
    return printable(
        f"asked {asked.python}: {names or 'no library with a cache'}; "
        f"{agreed} of {plural(len(asked.paths), 'path')} as computed"
    )


def render_check(view: CacheView, *, limit: int | None, paint: Paint) -> str:
    """What ``caches check`` prints: conflicts with their cures, and what is unknown.

    Args:
        view: What was found, errors first.
        limit: So many conflicts, files and unknown things at most; None for all.
        paint: Colours.
    """
    parts = [_conflict(one, paint) for one in view.conflicts[:limit]]
    parts += _more(len(view.conflicts), limit)
    for name, report in view.purges.items():
        if report.near or report.gone:
            parts.append(render_purge(report, name, paint=paint, limit=limit))
    parts += [f"unknown: {printable(text)}" for text in view.unknown[:limit]]
    parts += _more(len(view.unknown), limit)
    if view.note:
        parts.append(f"note: {printable(view.note)}")
    parts.append(_asked(view))
    parts.append(_verdict(view))
    return joined(parts)


def _more(count: int, limit: int | None) -> list[str]:
    return left_out(0 if limit is None else max(0, count - limit), "more (--limit 0 shows all)")


def _conflict(one: Conflict, paint: Paint) -> str:
    head = f"{paint(_PAINT[one.severity], one.severity.value)} {one.code}: {printable(one.text)}"
    return f"{head}\n  {printable(one.hint)}" if one.hint else head


def _verdict(view: CacheView) -> str:
    errors, warnings = (
        sum(one.severity is severity for one in view.conflicts)
        for severity in (Severity.ERROR, Severity.WARNING)
    )
    counts = [plural(errors, "error")] * bool(errors) + [plural(warnings, "warning")] * bool(
        warnings
    )
    words = [" and ".join(counts) or "no conflict"]
    if view.peers:
        words.append(f"{plural(len(view.peers), 'worker')} compared")
    if view.unknown:
        words.append(f"{plural(len(view.unknown), 'thing is', 'things are')} unknown")
    return "; ".join(words)


def render_env(variables: Mapping[str, str]) -> str:
    """Lines that a POSIX shell evaluates."""
    from shlex import quote

    return "\n".join(f"export {name}={quote(text)}" for name, text in sorted(variables.items()))
