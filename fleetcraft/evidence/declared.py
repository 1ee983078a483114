"""Reading what people declare: YAML of plain values, each known by the line that it stands in.

What grids and gates mean is in `grid` and `gate_file`. Invariant: a key that nobody knows, that
stands twice or that has a tag is an error with the file and the line.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from fleetcraft.errors import ConfigError
from fleetcraft.files import FileSystem
from fleetcraft.identity import sha256_hex

_CORE = "tag:yaml.org,2002:"
_PLAIN = frozenset({"str", "int", "float", "bool", "null", "map", "seq"})
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Declared:
    """A value with its place.

    Attributes:
        value: Plain; items of a mapping or list are `Declared` themselves.
        line: From 1.
        path: The file.
    """

    value: Any
    line: int
    path: str

    def error(self, problem: str, *, hint: str = "", **facts: object) -> ConfigError:
        """The error for something that is wrong here."""
        return ConfigError(
            f"{self.path} line {self.line}: {problem}",
            hint=hint,
            path=self.path,
            line=self.line,
            **facts,
        )

    def mapping(self, what: str) -> Mapping[str, Declared]:
        """The value as ``key: value`` lines.

        Raises:
            ConfigError: It is something else.
        """
        if not isinstance(self.value, dict):
            raise self.error(f"{what} is {self.described()}, expected 'key: value' lines")
        return self.value

    def items(self, what: str) -> list[Declared]:
        """The value as a list.

        Raises:
            ConfigError: It is something else.
        """
        if not isinstance(self.value, list):
            raise self.error(f"{what} is {self.described()}, expected a list")
        return self.value

    def text(self, what: str) -> str:
        """The value as text that is not empty.

        Raises:
            ConfigError: It is something else.
        """
        if not isinstance(self.value, str) or not self.value:
            quotes = f"; put it in quotes: '{self.value}'" if isinstance(self.value, int) else ""
            raise self.error(f"{what} is {self.described()}, expected text{quotes}")
        return self.value

    def number(self, what: str) -> float:
        """The value as a finite number.

        Raises:
            ConfigError: It is something else.
        """
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
            raise self.error(f"{what} is {self.described()}, expected a number")
        return float(value)

    def whole(self, what: str) -> int:
        """The value as a whole number.

        Raises:
            ConfigError: It is something else.
        """
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.error(f"{what} is {self.described()}, expected a whole number")
        return self.value

    def known_keys(self, what: str, known: tuple[str, ...]) -> Mapping[str, Declared]:
        """The value as a mapping without any other keys.

        Raises:
            ConfigError: A key is not known; a near one is named.
        """
        found = self.mapping(what)
        for key, item in found.items():
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise item.error(f"{what} has no {key!r}", hint=hint, key=key)
        return found

    def described(self) -> str:
        """What it is, for a message."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        return "nothing" if self.value is None else repr(self.value)[:60]


def read_declared(path: str) -> tuple[Declared, str]:
    """Reads a file that a person wrote.

    Returns:
        Its content, and the sha256 of its bytes.

    Raises:
        ConfigError: It cannot be read, or is not plain YAML.
    """
    try:
        with open(FileSystem().open_read(path), "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror or error}; nothing was decided or frozen",
            hint="name a YAML file that is there; --help shows one",
            path=path,
        ) from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{path} is larger than 1 MiB, which no such file is", path=path)
    try:
        node = _compose(data.decode("utf-8-sig"))
        return _plain(node, os.fspath(path), set()), sha256_hex(data)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text", path=path) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        here = Declared(None, mark.line + 1 if mark else 1, path)
        raise here.error(f"not YAML: {error.problem or error}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path} is not YAML: {error}", path=path) from error


def _compose(text: str) -> yaml.Node | None:
    loader = yaml.SafeLoader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _plain(node: yaml.Node | None, path: str, seen: set[int]) -> Declared:
    if node is None:
        return Declared(None, 1, path)
    line = int(node.start_mark.line) + 1
    here = Declared(None, line, path)
    if id(node) in seen:
        # A few lines of these can stand for more values than there is memory.
        raise here.error("it is referred to by an alias, which is not allowed")
    seen.add(id(node))
    if not node.tag.startswith(_CORE) or node.tag.removeprefix(_CORE) not in _PLAIN:
        if node.tag != f"{_CORE}timestamp":
            raise here.error(f"it has a tag ({node.tag}), which is not allowed")
        return Declared(str(node.value), line, path)
    if isinstance(node, yaml.MappingNode):
        return Declared(dict(_pairs(node, path, seen)), line, path)
    if isinstance(node, yaml.SequenceNode):
        return Declared([_plain(item, path, seen) for item in node.value], line, path)
    return Declared(_scalar(node, here), line, path)


def _pairs(node: yaml.MappingNode, path: str, seen: set[int]) -> Iterator[tuple[str, Declared]]:
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        here = Declared(None, int(key_node.start_mark.line) + 1, path)
        if not isinstance(key_node, yaml.ScalarNode):
            raise here.error("a key is no plain word")
        key = str(key_node.value)
        if key in lines:
            raise here.error(f"{key!r} stands twice, first in line {lines[key]}", key=key)
        lines[key] = here.line
        yield key, _plain(value_node, path, seen)


def _scalar(node: yaml.Node, here: Declared) -> str | int | float | bool | None:
    constructor = yaml.constructor.SafeConstructor()
    try:
        value: str | int | float | bool | None = constructor.construct_object(node)
    except ValueError as error:
        raise here.error(f"{str(node.value)[:60]!r} is no value: {error}") from error
    return value
