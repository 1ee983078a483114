"""Reading ``fleet.yaml`` and site profiles: YAML nodes to settings, each with its line.

Only names of the table, only plain values: no tags, no duplicate keys. Loaded when a file exists,
since YAML costs more to import than all else. Invariant: an error names the file and the line.
"""

from __future__ import annotations

import os
import stat

import yaml

from fleetcraft.config import (
    BY_NAME,
    FILE_NAME,
    FLAGS,
    SECTIONS,
    Scalar,
    Setting,
    Value,
    fits,
    shipped,
    wrong_value,
)
from fleetcraft.errors import ConfigError, FleetError
from fleetcraft.trust import stranger
from fleetcraft.units import parse_duration_s

_CORE = "tag:yaml.org,2002:"
_PLAIN = frozenset({"str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge"})
_MAX_BYTES = 1 << 20
_ELSEWHERE = {
    "project_dir": "this file is found by it",
    "spool.of_task": "only workers set it",
    "site": "a profile cannot name another",
}


def read_settings_file(path: str) -> dict[str, Value]:
    """Reads ``fleet.yaml``; relative paths in it are relative to the file.

    Raises:
        ConfigError: It cannot be read, is no YAML, or holds a key or value that does not belong.
    """
    return _SettingsFile(path, profile=False).read()


def read_site_profile(site: str, source: str) -> dict[str, Value]:
    """Reads the profile of a site.

    Args:
        site: A name in ``infra/sites``, or a path (it then holds a slash or ends in ``.yaml``).
        source: Where the name came from; a path from a file is relative to that file.

    Raises:
        ConfigError: There is no such profile, or it is wrong.
    """
    if os.sep in site or site.endswith((".yaml", ".yml")):
        base = os.path.dirname(source.rpartition(":")[0]) if FILE_NAME in source else os.curdir
        path = os.path.abspath(os.path.join(base, os.path.expanduser(site)))
    else:
        path = os.path.join(_sites_folder(), f"{site}.yaml")
    if not os.path.exists(path):
        known = _known_sites()
        near = _near(site, known)
        raise ConfigError(
            f"no site profile {site!r} ({source}): {path} does not exist",
            hint=f"did you mean {near!r}?" if near else "give the path of a YAML file",
            site=site,
            path=path,
        )
    return _SettingsFile(path, profile=True).read()


def _sites_folder() -> str:
    return shipped("sites")


def _known_sites() -> list[str]:
    try:
        files = sorted(os.listdir(_sites_folder()))
    except OSError:
        return []
    return [file.removesuffix(".yaml") for file in files if file.endswith(".yaml")]


class _SettingsFile:
    def __init__(self, path: str, *, profile: bool) -> None:
        self._path = path
        self._profile = profile
        self._shipped = profile and os.path.dirname(path) == _sites_folder()
        self._found: dict[str, Value] = {}
        self._lines: dict[str, int] = {}

    def read(self) -> dict[str, Value]:
        text = self._text()
        try:
            loader = yaml.SafeLoader(text)  # it refuses control characters as it is made
            try:
                node = loader.get_single_node()
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else 1
            raise self._error(line, f"not YAML: {error.problem or error}") from error
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            what = f"the character #x{error.character:02x} cannot stand here"
            raise self._error(line, what, hint="save it as plain text") from error
        except (yaml.YAMLError, RecursionError) as error:
            raise self._error(1, f"not YAML: {error}") from error
        if node is not None and node.tag != f"{_CORE}null":
            self._walk(node, "")
        return self._found

    def _text(self) -> str:
        try:
            # O_NONBLOCK so that a FIFO of that name cannot hold every command for ever.
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with open(fd, "rb") as file:
                facts = os.fstat(fd)
                if not stat.S_ISREG(facts.st_mode):
                    raise ConfigError(
                        f"cannot read {self._path}: it is no regular file", path=self._path
                    )
                self._refuse_strangers(facts)
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise ConfigError(
                f"cannot read {self._path}: {error.strerror or error}", path=self._path
            ) from error
        if len(data) > _MAX_BYTES:
            raise self._error(1, "the file is larger than 1 MiB, which no settings file is")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise self._error(line, "not UTF-8 text") from error

    def _refuse_strangers(self, facts: os.stat_result) -> None:
        # It names programs and files that are run, and a folder of others may be the current one.
        why = "" if self._shipped else stranger(facts)
        if why:
            raise ConfigError(
                f"refusing {self._path}: {why}; nothing in it was used",
                hint=f"chmod go-w {self._path}, or a copy of your own in another --project-dir",
                path=self._path,
            )

    def _error(self, line: int, problem: str, *, hint: str = "", **facts: object) -> ConfigError:
        return ConfigError(
            f"{self._path} line {line}: {problem}", hint=hint, path=self._path, line=line, **facts
        )

    def _walk(self, node: yaml.Node, prefix: str) -> None:
        if not isinstance(node, yaml.MappingNode):
            where = prefix.rstrip(".") or "the file"
            problem = f"{where} is {_describe(node)}, expected 'key: value' lines"
            raise self._error(_line(node), problem)
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(_line(key_node), f"a key is {_describe(key_node)}")
            key = prefix + str(key_node.value)
            if key in self._lines:
                problem = f"{key!r} stands twice, first in line {self._lines[key]}"
                raise self._error(_line(key_node), problem, key=key)
            self._lines[key] = _line(key_node)
            self._refuse_tags(value_node, key)
            if key in SECTIONS:
                if value_node.tag != f"{_CORE}null":  # a section whose lines are all comments
                    self._walk(value_node, f"{key}.")
            else:
                self._take(key, _line(key_node), value_node)

    def _refuse_tags(self, node: yaml.Node, key: str) -> None:
        if not node.tag.startswith(_CORE) or node.tag.removeprefix(_CORE) not in _PLAIN:
            raise self._error(_line(node), f"{key} has a tag ({node.tag}), which is not allowed")

    def _take(self, key: str, line: int, node: yaml.Node) -> None:
        setting = BY_NAME.get(key)
        if setting is None or not setting.in_file or (self._profile and key == "site"):
            raise self._unknown(key, line)
        value = self._value(setting, node)
        if value is None or not fits(setting, value):
            where = f"{self._path} line {line}"
            raise wrong_value(setting, where, _describe(node), path=self._path, line=line)
        kind = "site profile " if self._profile else ""
        self._found[key] = Value(value, f"{kind}{self._path}:{line}")

    def _unknown(self, key: str, line: int) -> ConfigError:
        if key in BY_NAME:
            problem = f"{key!r} cannot be set here: {_ELSEWHERE[key]}"
            return self._error(line, problem, key=key, hint="give it as an option or variable")
        known = [name for name, setting in BY_NAME.items() if setting.in_file]
        near = _near(key, known)
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
        return self._error(line, f"unknown setting {key!r}", hint=hint, key=key, near=near)

    def _value(self, setting: Setting, node: yaml.Node) -> Scalar:
        if not isinstance(node, yaml.ScalarNode):
            return None
        kind = node.tag.removeprefix(_CORE)
        text = str(node.value)
        if setting.kind == "path":
            return self._absolute(text, _line(node), setting) if kind == "str" and text else None
        if setting.kind in ("text", "slots"):
            return text if kind == "str" or (setting.kind == "slots" and kind == "int") else None
        if setting.kind == "flag":
            return FLAGS.get(text.lower()) if kind in ("bool", "int") else None
        return _number(setting, kind, text)

    def _absolute(self, text: str, line: int, setting: Setting) -> str:
        expanded = os.path.expandvars(os.path.expanduser(text))
        if "$" in expanded:
            problem = f"{setting.name} is {text!r}, which names a variable that is not set"
            raise self._error(line, problem, key=setting.name)
        return os.path.abspath(os.path.join(os.path.dirname(self._path), expanded))


def _number(setting: Setting, kind: str, text: str) -> float | int | None:
    # YAML 1.1 reads 00:30:00 as text and 1:30:00 as a number to the base of 60; the clock reading
    # of both is the same, so what was written is read here, whatever YAML made of it.
    try:
        if setting.kind == "count":
            return int(text) if kind == "int" else None
        if kind in ("int", "float") and ":" not in text:
            return float(text.replace("_", ""))
        return float(parse_duration_s(text)) if kind in ("str", "int") else None
    except (ValueError, FleetError):
        return None


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _describe(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    kind = node.tag.removeprefix(_CORE)
    if kind == "null":
        return "nothing"
    text = str(node.value)
    if kind == "str":
        return f"the text {text[:60]!r}"
    return f"the {'number ' if kind in ('int', 'float') else ''}{text[:60]}"


def _near(word: str, known: list[str]) -> str:
    import difflib

    last = {name.rpartition(".")[2]: name for name in reversed(known)}  # of equals, the first
    if word in last:
        return last[word]
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if not close:
        ends = difflib.get_close_matches(word.rpartition(".")[2], list(last), n=1, cutoff=0.7)
        close = [last[end] for end in ends]
    return close[0] if close else ""
