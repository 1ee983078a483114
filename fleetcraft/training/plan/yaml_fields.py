"""One YAML document as fields that know their line: plain values only, no tags, no key twice.

What the fields mean is `run_file`'s. Invariant: an error names the file, the line and the key, and
a key that nobody asked for is an error, with a near name where there is one.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from enum import StrEnum

import yaml

from fleetcraft.errors import ConfigError, FleetError
from fleetcraft.trust import stranger
from fleetcraft.units import parse_duration_s

_CORE = "tag:yaml.org,2002:"
_PLAIN = frozenset({"str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge"})
_MAX_BYTES = 1 << 20
_COUNT = re.compile(r"[+-]?(?:0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|m|h|d)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def read_document(path: str) -> Field:
    """Reads a YAML file whose top is a mapping.

    Raises:
        ConfigError: It cannot be read, or is no such YAML.
    """
    text = _text(path)
    try:
        loader = yaml.SafeLoader(text)  # it refuses control characters as it is made
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _wrong(path, mark.line + 1 if mark else 1, f"not YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        what = f"the character #x{error.character:02x} cannot stand here"
        raise _wrong(path, line, what, hint="save it as plain text") from error
    except yaml.YAMLError as error:
        raise _wrong(path, 1, f"not YAML: {error}") from error
    except RecursionError as error:
        raise _wrong(path, 1, "it is nested too deeply for a run file") from error
    if node is None:
        raise _wrong(path, 1, "the file is empty", hint="it needs at least: run, command")
    return Field(path, "", node)


class Field:
    """One value of the document.

    Attributes:
        key: Its name with dots, as ``budgets.total.restarts``; empty for the whole.
        line: Its line in the file, from 1.
    """

    def __init__(self, path: str, key: str, node: yaml.Node) -> None:
        self._path = path
        self._node = node
        self.key = key
        self.line = int(node.start_mark.line) + 1
        self._kind = str(node.tag).removeprefix(_CORE)
        if self._kind not in _PLAIN or self._kind == node.tag:
            raise self.error(f"{self._called} has a tag ({node.tag}), which is not allowed")

    @property
    def is_empty(self) -> bool:
        """Whether nothing stands there; a section whose lines are all comments is such."""
        return self._kind == "null"

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self._node, yaml.SequenceNode)

    def error(self, problem: str, *, hint: str = "", **facts: object) -> ConfigError:
        """The error that says where this field stands."""
        return _wrong(self._path, self.line, problem, hint=hint, **{"key": self.key, **facts})

    def fields(self, known: Collection[str] | None = None) -> dict[str, Field]:
        """The fields of a mapping by name; of no value at all, none.

        Args:
            known: The names that belong here; None for any.
        """
        if self.is_empty:
            return {}
        if not isinstance(self._node, yaml.MappingNode):
            raise self._unexpected("'name: value' lines")
        found: dict[str, Field] = {}
        for name_node, node in self._node.value:
            where = Field(self._path, self.key, name_node)
            if not isinstance(name_node, yaml.ScalarNode):
                raise where.error(f"a key of {self._called} is no text")
            name = str(name_node.value)
            where._refuse_odd(name)
            field = Field(self._path, f"{self.key}.{name}".lstrip("."), node)
            if name in found:
                raise where.error(
                    f"{field.key!r} stands twice, first in line {found[name].line}", key=field.key
                )
            if known is not None and name not in known:
                raise where._unknown(field.key, name, known)
            found[name] = field
        return found

    def items(self) -> list[Field]:
        """The fields of a list; of no value at all, none."""
        if self.is_empty:
            return []
        if not isinstance(self._node, yaml.SequenceNode):
            raise self._unexpected("a list")
        return [
            Field(self._path, f"{self.key}[{number}]", node)
            for number, node in enumerate(self._node.value, start=1)
        ]

    def text(self, *, may_be_empty: bool = False) -> str:
        """A text; numbers and flags count as the text that stands there."""
        if not isinstance(self._node, yaml.ScalarNode) or self.is_empty:
            raise self._unexpected("a text")
        text = str(self._node.value)
        if not (text or may_be_empty):
            raise self.error(f"{self.key} is empty, expected a text")
        self._refuse_odd(text)
        return text

    def _refuse_odd(self, text: str) -> None:
        # An escape of YAML can make what neither an environment nor JSON can hold.
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            raise self.error(f"{self._called} holds {text!r}, which is no text")

    def texts(self) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(item.text() for item in self.items())

    def one_of(self, values: type[StrEnum] | Collection[str]) -> str:
        """One of a closed set of texts."""
        text = self.text()
        known = [str(value) for value in values]
        if text not in known:
            raise self.error(
                f"{self.key} is {text!r}, expected {', '.join(known)}", hint=_did_you(text, known)
            )
        return text

    def flag(self) -> bool:
        """True or false."""
        if self._kind != "bool":
            raise self._unexpected("true or false")
        return str(self._node.value).lower() in ("true", "yes", "on")

    def count(self, *, least: int = 0) -> int:
        """A whole number."""
        text = str(self._node.value).replace("_", "")
        # A leading zero means base 8 to YAML and nothing to people, so it is refused.
        if self._kind != "int" or not _COUNT.fullmatch(text) or int(text) < least:
            raise self._unexpected(f"a whole number, {least} or more")
        return int(text)

    def number(self, *, least: float = 0.0, below: float = math.inf) -> float:
        """A finite number from ``least`` to under ``below``; ``least`` itself only if it is 0."""
        expected = f"a number above {least:g}" + (f", below {below:g}" if below < math.inf else "")
        # YAML 1.1 takes 1e5 for a text; what is quoted is one.
        quoted = getattr(self._node, "style", None)
        plain = self._kind in ("int", "float") or (self._kind == "str" and not quoted)
        text = str(self._node.value).replace("_", "") if plain else ""
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not (math.isfinite(value) and least < value < below):
            raise self._unexpected(expected)
        return value

    def seconds(self, *, may_be_zero: bool = False) -> float:
        """A number of seconds, or a duration such as ``10m``, ``1.5h`` or ``00:30:00``."""
        # YAML 1.1 reads 1:30:00 as a number to the base of 60, so what was written is read here.
        value = math.nan
        if self._kind in ("str", "int", "float"):
            value = _seconds(str(self._node.value))
        if not (value > 0 or (may_be_zero and value == 0)) or value == math.inf:
            raise self._unexpected("seconds, or a duration such as 90s or 10m")
        return value

    def plain(self) -> str | int | float:
        """A text or a number, as YAML has it."""
        if self._kind == "int":
            return self.count(least=-(10**18))
        if self._kind == "float":
            return self.number(least=-math.inf)
        return self.text(may_be_empty=True)

    @property
    def _called(self) -> str:
        return self.key or "the file"

    def _unexpected(self, expected: str) -> ConfigError:
        return self.error(f"{self._called} is {_describe(self._node)}, expected {expected}")

    def _unknown(self, key: str, name: str, known: Collection[str]) -> ConfigError:
        hint = _did_you(name, known) or f"known here: {', '.join(known)}"
        return self.error(f"unknown key {key!r}", hint=hint, key=key)


def _text(path: str) -> str:
    try:
        # O_NONBLOCK so that a FIFO cannot hold the caller for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise ConfigError(f"cannot read {path}: it is no regular file", path=path)
            if why := stranger(facts):  # it names the commands that are run
                raise ConfigError(
                    f"refusing {path}: {why}; nothing was launched",
                    hint=f"chmod go-w {path}, or a copy of your own",
                    path=path,
                )
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}", path=path) from error
    if len(data) > _MAX_BYTES:
        raise _wrong(path, 1, "the file is larger than 1 MiB, which no run file is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _wrong(path, data.count(b"\n", 0, error.start) + 1, "not UTF-8 text") from error


def _wrong(path: str, line: int, problem: str, *, hint: str = "", **facts: object) -> ConfigError:
    return ConfigError(f"{path} line {line}: {problem}", hint=hint, path=path, line=line, **facts)


def _seconds(text: str) -> float:
    if _NUMBER.fullmatch(text.replace("_", "")):
        return float(text.replace("_", ""))
    if found := _DURATION.fullmatch(text):  # here, since fractions of a second count
        return float(found[1]) * _UNIT_S[found[2]]
    try:
        return float(parse_duration_s(text))
    except FleetError:
        return math.nan


def _did_you(word: str, known: Collection[str]) -> str:
    # `grace` for `grace_s` is the likely slip, and short words are not close by letters alone.
    near = [name for name in known if name.rpartition("_")[0] == word]
    near = near or [name for name in known if name.lower() == word.lower()]
    near = near or get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""


def _describe(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if node.tag == f"{_CORE}null":
        return "nothing"
    text = str(node.value)[:60]
    return f"the text {text!r}" if node.tag == f"{_CORE}str" else text


def without_empty(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Those fields at which something stands; the others keep their defaults."""
    return {name: field for name, field in fields.items() if not field.is_empty}
