"""What commands write: data to stdout, everything else to stderr.

Invariant: with ``--json``, stdout holds exactly one JSON value (or JSON Lines of a stream), and a
failure is one JSON object on stderr.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TextIO

from fleetcraft.errors import FleetError

STDOUT = "<stdout>"
"""The file of an OSError that writing the answer raised."""


def print_json(value: Mapping[str, Any]) -> None:
    """Writes one JSON value and a newline to stdout; bytes, since JSON is UTF-8 everywhere."""
    with _answering():
        _write_bytes(sys.stdout, encode_json(value) + b"\n")


def print_text(text: str) -> None:
    """Writes a text and a newline to stdout."""
    with _answering():
        sys.stdout.write(_harmless(text) + "\n")


def print_bytes(data: bytes) -> None:
    """Writes bytes to stdout as they are."""
    with _answering():
        _write_bytes(sys.stdout, data)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = STDOUT  # the system does not say which file took nothing
        raise


def note(text: str) -> None:
    """Writes a line for people to stderr."""
    sys.stderr.write(_harmless(text) + "\n")
    sys.stderr.flush()


def _harmless(text: str) -> str:
    from fleetcraft.view.text import harmless

    return harmless(text)


def encode_json(value: Mapping[str, Any]) -> bytes:
    """JSON text of a value; text that is no Unicode (bytes of a strange file name) is replaced."""
    from msgspec.json import encode

    try:
        return encode(value)
    except UnicodeEncodeError:
        return encode(_clean(value))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def show_error(error: FleetError, *, as_json: bool) -> None:
    """Writes an error to stderr: two lines for people, or one JSON object."""
    if as_json:
        body = {
            "type": type(error).__name__,
            "message": error.message,
            "hint": error.hint,
            "exit_code": error.exit_code,
            "facts": {key: _plain(value) for key, value in error.facts.items()},
        }
        value = {"schema": "fleetcraft.error/1", "error": body}
        _write_bytes(sys.stderr, encode_json(value) + b"\n")
        return
    from fleetcraft.view.text import printable

    # Foreign text in it begins no line of its own, which could pass for a hint of ours.
    message, hint = (printable(text).replace("\n", "\n  ") for text in (error.message, error.hint))
    sys.stderr.write(f"error: {message}\n")
    if hint:
        sys.stderr.write(f"hint: {hint}\n")
    sys.stderr.flush()


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)


def _write_bytes(stream: Any, data: bytes) -> None:
    stream.flush()
    stream.buffer.write(data)
    stream.buffer.flush()


def forget(stream: TextIO) -> None:
    """Sends what is still buffered nowhere, for a reader that has gone away or a full disk."""
    with contextlib.suppress(OSError, ValueError):  # it has no descriptor, in tests
        fd = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, fd)
        os.close(nowhere)


@contextlib.contextmanager
def stdout_is_stderr() -> Iterator[None]:
    """While somebody else's code runs in this process, what it prints is no part of the answer."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # it is closed: nobody reads the answer either
        yield
        return
    try:
        os.dup2(2, 1)
        yield
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def columns() -> int | None:
    """The width to which text may be cut: the terminal's, or None where there is none."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return max(40, get_terminal_size().columns)


@contextlib.contextmanager
def reading_bar() -> Iterator[Callable[[int, int], None]]:
    """Bytes done of all as a bar, on a terminal, once it takes longer than a moment."""
    from fleetcraft.view.inspection import ReadingProgress

    progress = ReadingProgress(sys.stderr.isatty())
    try:
        yield progress
    finally:
        progress.close()


class PassingLine:
    """How far something is, in one line of a terminal that is wiped at the end of the block."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._next_s = 0.0

    def __enter__(self) -> Self:
        return self

    def show(self, text: str) -> None:
        """Shows it, at most ten times a second."""
        if self._on and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + 0.1
            self._write(f"\r\x1b[K{_harmless(text)}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        if self._on:
            sys.stderr.write(text)
            sys.stderr.flush()
