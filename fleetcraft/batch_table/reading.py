"""Reading a batch table: strict YAML, one owner, and content that its hash vouches for.

The hash is compared before anything of the content is looked at. Invariant: what is returned is
what `writing` wrote, whatever happened to the file in between.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Hashable
from typing import Any

import msgspec
import yaml

from fleetcraft.batch_table.records import FREEZE_AGAIN, SCHEMA, Row, Table, content, hash_of
from fleetcraft.errors import BatchRefusedError, DataError

MAX_BYTES = 1 << 20
_MAX_DEPTH = 20
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_KEY = re.compile(r"[A-Za-z0-9._/+-]{1,120}")


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases, duplicate keys, merges and deep nesting."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias stands where a value is expected")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise yaml.YAMLError("it is nested too deeply")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag != "tag:yaml.org,2002:str":
                raise yaml.YAMLError(f"the key {key_node.value!r} is no text")
            key = self.construct_object(key_node, deep=True)
            if key in found:
                raise yaml.YAMLError(f"the key {key!r} stands twice")
            found[key] = self.construct_object(value_node, deep=True)
        return found


def read_table(path: str) -> Table:
    """Reads a batch table.

    Args:
        path: Its file; a link is followed.

    Raises:
        BatchRefusedError: Its content is not what its hash says, or cannot be compared with it
            (field ``hash``); another user owns or can write it (``permissions``); another version
            wrote it (``schema``).
        DataError: It is not there or cannot be read.
    """
    document = _parse(path, read_bytes(path))
    found, schema = document.pop("hash", None), document.pop("schema", None)
    if schema != SCHEMA:
        raise _refused(path, "schema", f"found {schema!r}, expected {SCHEMA!r}")
    try:
        right = hash_of(document)
    except (TypeError, ValueError) as error:
        raise _refused(path, "hash", f"the content cannot be hashed: {error}") from error
    if found != right:
        raise _refused(
            path, "hash", f"found {found!r}, but the content has {right}: it was edited", right
        )
    return _table(path, document, right)


def read_bytes(path: str) -> bytes:
    """The bytes of a table that only its user, or root, could have written.

    Raises:
        BatchRefusedError: Another user owns or can write it.
        DataError: It is not there, no regular file, too large, or cannot be read.
    """
    try:
        # O_NONBLOCK so that a FIFO cannot hold the caller for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                raise DataError(f"refusing the batch table {path}: it is no regular file")
            if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & _OTHERS_MAY_WRITE:
                raise BatchRefusedError(
                    "permissions",
                    f"refusing the batch table {path}, bad permissions: another user owns or can "
                    "write it; it was not read",
                    hint=f"it steers what runs: chmod go-w {path}",
                    path=path,
                )
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(
            f"cannot read the batch table {path}: {error.strerror or error}",
            hint=FREEZE_AGAIN,
            path=path,
        ) from error
    if len(data) > MAX_BYTES:
        raise DataError(f"refusing the batch table {path}: it is larger than 1 MiB", path=path)
    return data


def _parse(path: str, data: bytes) -> dict[str, Any]:
    try:
        loader = _Loader(data.decode())
        try:
            document = loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        reason = f"it cannot be verified: no table{where} ({problem})"
        raise _refused(path, "hash", reason) from error
    if not isinstance(document, dict):
        raise _refused(path, "hash", "it cannot be verified: no mapping")
    return document


def _table(path: str, document: dict[str, Any], right: str) -> Table:
    try:
        families = msgspec.convert(document.pop("families", None), dict[str, Row], strict=True)
    except msgspec.ValidationError as error:
        raise DataError(f"bad batch table {path}: {error}", path=path) from error
    if document:
        raise DataError(f"bad batch table {path}: unknown key {min(document)!r}", path=path)
    for key, row in families.items():
        if problem := _problem(key, row):
            raise DataError(f"bad batch table {path}: family {key!r}: {problem}", path=path)
    table = Table(hash=right, families=families)
    if hash_of(content(families)) != right:  # a row that leaves out what has a default
        raise DataError(f"bad batch table {path}: a row is not whole", path=path)
    return table


def _problem(key: str, row: Row) -> str:
    if not _KEY.fullmatch(key):
        return "no family can have this key"
    if not all(_HASH.fullmatch(text) for text in (row.identity, *row.evidence)):
        return "identity and evidence are sha256: and 64 hex digits"
    if row.batch < 1 or not 1 <= row.timed_batch <= row.batch:
        return f"batch {row.batch} and timed_batch {row.timed_batch} are no batches"
    return ""


def _refused(path: str, field: str, reason: str, computed: str = "") -> BatchRefusedError:
    return BatchRefusedError(
        field,
        f"refusing the batch table {path}, {field}: {reason}; nothing of it was used",
        hint=f"it cannot be mended by hand: mv {path} {path}.edited; {FREEZE_AGAIN}",
        path=path,
        **({"computed": computed} if computed else {}),
    )
