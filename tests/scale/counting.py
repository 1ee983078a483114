"""Counting what a spool asks of its file system, at the seam that everything goes through.

`CountingFS` performs and counts; `KERNEL` says which system calls each method is, which `kernel`
compares with strace. Invariant: an operation that fails counts as much as one that succeeds.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from fleetcraft.files import FileSystem

Counts = Counter[str]

METADATA = ("stat", "open", "create", "link", "rename", "unlink", "list")
"""What a metadata server is asked. Beside them: ``names`` (entries that listings returned),
``sync`` (forced writes), ``read`` and ``write`` (data of files that are open)."""
SHOWN = (*METADATA, "sync", "read", "write")


class CountingFS(FileSystem):
    """The real file system, counted by kind of operation.

    Args:
        durable: Whether forced writes are done, or only counted.
    """

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__()
        self.counts: Counts = Counter()
        self._durable = durable

    def _note(self, **kinds: int) -> None:
        for kind, count in kinds.items():
            self.counts[kind] += count

    # -- looking

    def listdir(self, path: str) -> list[str]:
        names = super().listdir(path)
        self._note(list=1, names=len(names))
        return names

    def scan(self, path: str) -> Iterator[list[str]]:
        self._note(list=1)
        return map(self._counted, super().scan(path))

    def _counted(self, names: list[str]) -> list[str]:
        self._note(names=len(names))
        return names

    def exists(self, path: str) -> bool:
        self._note(stat=1)
        return super().exists(path)

    def lstat(self, path: str) -> os.stat_result:
        self._note(stat=1)
        return super().lstat(path)

    def read_with_facts(self, path: str) -> tuple[bytes, os.stat_result]:
        self._note(open=1, read=1)
        return super().read_with_facts(path)

    def peek(self, path: str) -> bytes:
        self._note(open=1, read=1)
        return super().peek(path)

    def open_read(self, path: str) -> int:
        self._note(open=1)
        return super().open_read(path)

    def read_at(self, fd: int, count: int, offset: int) -> bytes:
        self._note(read=1)
        return super().read_at(fd, count, offset)

    # -- making

    def make_folder(self, path: str) -> None:
        self._note(create=1)
        super().make_folder(path)

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        self._note(create=1, write=bool(data), sync=durable)
        super().create(path, data, mode=mode, durable=durable and self._durable)

    def create_log(self, path: str) -> int:
        self._note(create=1)
        return super().create_log(path)

    def link(self, source: str, destination: str) -> None:
        self._note(link=1)
        super().link(source, destination)

    # -- moving

    def rename_new(self, source: str, destination: str) -> None:
        self._note(rename=1)
        super().rename_new(source, destination)

    def replace(self, source: str, destination: str) -> None:
        self._note(rename=1)
        super().replace(source, destination)

    def unlink(self, path: str) -> None:
        self._note(unlink=1)
        super().unlink(path)

    def remove_folder(self, path: str) -> None:
        self._note(unlink=1)
        super().remove_folder(path)

    # -- appending to a record

    def open_append(self, path: str) -> int:
        self._note(open=1)
        return super().open_append(path)

    def ends_with_newline(self, fd: int) -> bool:
        self._note(read=1)
        return super().ends_with_newline(fd)

    def append(self, fd: int, data: bytes) -> None:
        self._note(write=1)
        super().append(fd, data)

    def read_from(self, fd: int, offset: int) -> bytes:
        self._note(read=1)
        return super().read_from(fd, offset)

    def datasync(self, fd: int) -> None:
        self._note(sync=1)
        if self._durable:
            super().datasync(fd)

    def sync_folder(self, path: str) -> None:
        self._note(open=1, sync=1)
        if self._durable:
            super().sync_folder(path)

    def sync_mount(self, path: str) -> None:
        self._note(open=1, sync=1)
        if self._durable:
            super().sync_mount(path)

    @contextmanager
    def counted(self) -> Iterator[Counts]:
        """What is counted from here to the end of the block."""
        before = self.counts.copy()
        found: Counts = Counter()
        try:
            yield found
        finally:
            found.update({k: n for k in self.counts if (n := self.counts[k] - before[k])})

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Counts also what opens a spool by its folder alone, such as `top` and `report`."""
        with mock.patch("fleetcraft.spool.tree.FileSystem", return_value=self):
            yield


def _must_be_whole() -> None:
    """A method that is not counted would make a cost invisible."""
    seam = {name for name in vars(FileSystem) if not name.startswith("_")}
    missing = seam - set(vars(CountingFS)) - {"read", "size", "close"}
    assert not missing, f"CountingFS lacks {missing}"


_must_be_whole()


def asked(counts: Counts) -> int:
    """How many operations a metadata server sees, pages of listings not counted."""
    return sum(counts[kind] for kind in METADATA)


def describe(counts: Counts, tasks: float = 1.0) -> str:
    """Counts a task, largest first: ``open 3, stat 2.5``."""
    shown = [(kind, counts[kind] / tasks) for kind in SHOWN if counts[kind]]
    shown.sort(key=lambda pair: -pair[1])
    return ", ".join(f"{kind} {short(value)}" for kind, value in shown)


def short(value: float) -> str:
    """A count with at most two decimals, and with commas when it is large."""
    if value >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".")
