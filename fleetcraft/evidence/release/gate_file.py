"""The file in which a person declares a gate: predicates in stages, each a row of one table.

What a predicate finds is in the modules of predicates, and what follows in `gates`. Invariant: a
check or field that the table does not have is an error with its line, never passed over.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleetcraft.evidence.declared import Declared, read_declared
from fleetcraft.evidence.records import NAME


class Stage(StrEnum):
    """The order in which a gate looks; a later stage waits for all of the earlier ones."""

    MECHANICAL = "mechanical"
    SEMANTIC = "semantic"
    ACCOUNTING = "accounting"


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One kind of predicate.

    Attributes:
        sentence: What it asks.
        required: Fields that it must have.
        optional: Fields that it may have.
    """

    sentence: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


CHECKS: Mapping[str, CheckRow] = {
    "manifest": CheckRow(
        "The files of a manifest are as it says, at a level (hashed).",
        ("manifest",),
        ("folder", "level"),
    ),
    "archive": CheckRow(
        "An archive is as its own manifest says, at a level (hashed), and has its receipt.",
        ("archive",),
        ("level",),
    ),
    "files": CheckRow("Files are there, with the digests that are given.", ("files",)),
    "grid_complete": CheckRow(
        "Every cell of a frozen grid has exactly one result, and no frozen script was edited.",
        ("grid",),
    ),
    "arms": CheckRow(
        "No arm mixes batched and unbatched runs, backends, stacks, encoders, devices or grids.",
        ("set",),
        ("arms", "stated"),
    ),
    "encoder": CheckRow("All arms have one and the same encoder record.", ("set",), ("arms",)),
    "outputs": CheckRow("Outputs of results still have their digests.", ("set",), ("arms",)),
    "tasks_done": CheckRow(
        "Tasks of a spool are done, completed, with their declared outputs.",
        (),
        ("tasks", "grid", "spool"),
    ),
    "none_failed": CheckRow("No task of a spool failed or is lost.", (), ("tasks", "spool")),
    "training_end": CheckRow("A training run has reached the end that it declares.", ("run",)),
    "window": CheckRow("A frozen window of telemetry verifies.", ("file",)),
    "metric": CheckRow(
        "A metric of an arm is within bounds: over mean (default), median, min, max or each; "
        "with timed: true every record must be a timed one.",
        ("set", "arm", "metric"),
        ("at_least", "at_most", "over", "timed"),
    ),
    "comparison": CheckRow(
        "Two arms compared over their pairs: the interval (default) or estimate is within bounds.",
        ("a", "b", "metric"),
        ("set", "at_least", "at_most", "on", "difference", "timed"),
    ),
    "jobs_ended": CheckRow(
        "Slurm's accounting says that every job which made the results has ended.",
        (),
        ("set", "jobs"),
    ),
    "gpu_hours": CheckRow(
        "Slurm's accounting states the GPU-hours of those jobs, together at most so many.",
        (),
        ("set", "jobs", "at_most"),
    ),
}
"""What a gate can ask."""
_ANY_OF = {
    "tasks_done": ("tasks", "grid"),
    "metric": ("at_least", "at_most"),
    "comparison": ("at_least", "at_most"),
    "jobs_ended": ("set", "jobs"),
    "gpu_hours": ("set", "jobs"),
}
_OVER = ("mean", "median", "min", "max", "each")
_LEVELS = ("listed", "sized", "hashed", "reread")


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """One line of a gate.

    Attributes:
        name: For people; the check's own name, numbered, if it has none.
        check: A key of `CHECKS`.
        stage: When it is asked.
        given: Its fields, each of the type that `CHECKS` asks for.
    """

    name: str
    check: str
    stage: Stage
    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A gate as it is declared.

    Attributes:
        name: Under which a pass is kept.
        predicates: In the order of stages, and within one as they stand.
        path: The file.
        sha256: Of the file.
    """

    name: str
    predicates: tuple[Predicate, ...]
    path: str
    sha256: str


def read_gate_file(path: str) -> Gate:
    """Reads a gate.

    Raises:
        ConfigError: It is wrong; the message says where.
    """
    document, sha256 = read_declared(path)
    found = document.known_keys("a gate", ("name", *(stage.value for stage in Stage)))
    if "name" not in found:
        raise document.error("the gate has no name", hint="name: release-1")
    predicates: list[Predicate] = []
    for stage in Stage:
        if stage.value in found:
            for item in found[stage.value].items(stage.value):
                predicates.append(_predicate(item, stage, {each.name for each in predicates}))
    if not predicates:
        raise document.error(
            "the gate asks nothing, so it would always pass",
            hint=f"list predicates under {', '.join(Stage)}",
        )
    return Gate(
        name=_name(found["name"], "name"), predicates=tuple(predicates), path=path, sha256=sha256
    )


def _predicate(item: Declared, stage: Stage, taken: set[str]) -> Predicate:
    mapping = item.mapping("a predicate")
    if "check" not in mapping:
        raise item.error("the predicate has no check", hint=f"known: {', '.join(CHECKS)}")
    check = mapping["check"].text("check")
    row = CHECKS.get(check)
    if row is None:
        near = difflib.get_close_matches(check, CHECKS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(CHECKS)}"
        raise mapping["check"].error(f"no check is called {check!r}", hint=hint, check=check)
    item.known_keys(f"the check {check}", ("check", "name", *row.required, *row.optional))
    for key in row.required:
        if key not in mapping:
            raise item.error(f"the check {check} has no {key}", hint=row.sentence, check=check)
    alternatives = _ANY_OF.get(check, ())
    if alternatives and not any(key in mapping for key in alternatives):
        raise item.error(f"the check {check} needs {' or '.join(alternatives)}", hint=row.sentence)
    given = {
        key: _READERS[key](value, key)
        for key, value in mapping.items()
        if key not in ("check", "name")
    }
    return Predicate(name=_unique(mapping, check, taken), check=check, stage=stage, given=given)


def _unique(mapping: Mapping[str, Declared], check: str, taken: set[str]) -> str:
    if "name" in mapping:
        name = mapping["name"].text("name")
        if name in taken:
            raise mapping["name"].error(f"two predicates are called {name!r}")
        return name
    number = 1
    while (name := check if number == 1 else f"{check}-{number}") in taken:
        number += 1
    return name


def _name(item: Declared, what: str) -> str:
    text = item.text(what)
    if not NAME.fullmatch(text):
        raise item.error(
            f"{what} is {text!r}, which is no name",
            hint="letters, digits, '.', '_' and '-', at most 64, and a letter or digit first",
        )
    return text


def _texts(item: Declared, what: str) -> tuple[str, ...]:
    """A list of texts, or a single one; numbers, such as jobs, as their text."""
    parts = item.items(what) if isinstance(item.value, list) else [item]
    if not parts:
        raise item.error(f"{what} is empty")
    return tuple(str(part.value) if type(part.value) is int else part.text(what) for part in parts)


def _files(item: Declared, what: str) -> tuple[tuple[str, str], ...]:
    """Each file with its digest; an empty one where only its presence is asked for."""
    found = []
    for part in item.items(what):
        if not isinstance(part.value, dict):
            found.append((part.text("a file"), ""))
            continue
        fields = part.known_keys("a file", ("path", "sha256"))
        if "path" not in fields:
            raise part.error("a file has no path")
        digest = fields["sha256"].text("sha256") if "sha256" in fields else ""
        if digest and (len(digest) != 64 or not set(digest) <= set("0123456789abcdef")):
            raise part.error(f"sha256 is {digest!r}, expected 64 hex digits")
        found.append((fields["path"].text("path"), digest))
    if not found:
        raise item.error("files is empty")
    return tuple(found)


def _flag(item: Declared, what: str) -> bool:
    if not isinstance(item.value, bool):
        raise item.error(f"{what} is {item.described()}, expected true or false")
    return item.value


def _one_of(*words: str) -> Callable[[Declared, str], str]:
    def read(item: Declared, what: str) -> str:
        text = item.text(what)
        if text not in words:
            raise item.error(f"{what} is {text!r}, expected {', '.join(words)}")
        return text

    return read


_READERS: Mapping[str, Callable[[Declared, str], Any]] = {
    "a": Declared.text,
    "archive": Declared.text,
    "arm": _name,
    "arms": _texts,
    "at_least": Declared.number,
    "at_most": Declared.number,
    "b": Declared.text,
    "difference": _flag,
    "file": Declared.text,
    "files": _files,
    "folder": Declared.text,
    "grid": _name,
    "jobs": _texts,
    "level": _one_of(*_LEVELS),
    "manifest": Declared.text,
    "metric": _name,
    "on": _one_of("interval", "estimate"),
    "over": _one_of(*_OVER),
    "run": Declared.text,
    "set": _name,
    "spool": _one_of("outer", "gpu"),
    "stated": _texts,
    "tasks": _texts,
    "timed": _flag,
}
