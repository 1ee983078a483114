"""``fleetcraft logs``: the output of a task's attempts, whole, the end of it, or as it grows.

A log is streamed and never held in memory, since a task may print gigabytes. Invariant: on a
terminal no control character of a log gets through, so a log cannot do anything to it.
"""

from __future__ import annotations

import codecs
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

import click

from fleetcraft.cli.output import note, print_bytes, print_json
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import FleetError, SpoolError, UsageError
from fleetcraft.files import BulkFileSystem
from fleetcraft.layout import State
from fleetcraft.spool import views
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.view.text import printable

_LINES = 10_000
_BYTES = 16 << 20
_CHUNK = 1 << 16
_POLL_S = 0.2
_LOOK_EVERY_S = 1.0
_GAP = 8  # an attempt whose log could not be made leaves a number without a log

_EXAMPLES = """
fleetcraft logs gen-00017
fleetcraft logs gen-00017 --tail 50
fleetcraft logs gen-00017 -f
fleetcraft logs gen-00017 --attempt 1 --all > first.log
"""
_EXITS = """
0 printed; 1 there is no log yet; 5 no such task or attempt
"""

Emit = Callable[[int, bytes], None]
"""Takes the attempt's number and the next bytes of its log."""


@click.command(cls=FleetCommand, name="logs", examples=_EXAMPLES, exits=_EXITS)
@click.argument("name", metavar="NAME")
@click.option("-f", "--follow", is_flag=True, help="Go on as it grows, until the task has ended.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="This attempt (the last one).")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last so many lines.")
@click.option("--all", "all_", is_flag=True, help="Everything, however much it is.")
@pass_session
def logs_command(
    session: Session,
    *,
    name: str,
    follow: bool,
    attempt: int | None,
    tail: int | None,
    all_: bool,
) -> int:
    """Print the log of a task.

    Without --tail or --all the last 10,000 lines, at most 16 MiB; stderr says how much was left
    out. With -f the logs of later attempts follow; with --attempt as well, only that one.
    """
    if all_ and tail is not None:
        raise UsageError("--all and --tail exclude one another")
    tree = session.tree()
    number = attempt if attempt is not None else _last_attempt(tree, name)
    path = tree.paths.log(name, number)
    if not follow and not tree.fs.exists(path):
        raise _no_log(tree, name, attempt)
    start = 0 if all_ or not tree.fs.exists(path) else _start(path, tail)
    if start:
        note(f"left out: the first {start} bytes of {path} (--all prints everything)")
    if follow:
        follower = _Follower(tree, name, only=attempt is not None)
        if not follower.follow(number, start, _chunk_emitter(session)):
            raise _no_log(tree, name, attempt)
    elif session.json:
        _print_whole(name, number, path, start)
    else:
        emit = _text_emitter()
        for chunk in _chunks(path, start):
            emit(number, chunk)
    return 0


def _last_attempt(tree: SpoolTree, name: str) -> int:
    attempts = views.show(tree, name).attempts
    with_log = [attempt.attempt for attempt in attempts if attempt.log]
    return with_log[-1] if with_log else (attempts[-1].attempt if attempts else 1)


def _no_log(tree: SpoolTree, name: str, attempt: int | None) -> FleetError:
    view = views.show(tree, name)
    logs = [str(a.attempt) for a in view.attempts if a.log]
    if attempt is not None and logs:
        return SpoolError(
            f"task {name!r} has no log of attempt {attempt}",
            hint=f"attempts with a log: {', '.join(logs)}",
            name=name,
            attempt=attempt,
        )
    over = view.state in (State.DONE, State.FAILED)
    return FleetError(
        f"task {name!r} has no log{'' if over else ' yet'}: it is {view.state.value}",
        hint=f"fleetcraft show {name}" if over else f"fleetcraft logs -f {name}",
        name=name,
        state=view.state.value,
    )


def _opened(path: str) -> BinaryIO:
    """A log to read; never a link or a pipe, which no worker makes.

    Raises:
        OSError: It is none, or cannot be read.
    """
    return open(BulkFileSystem().open_source(path), "rb")


def _start(path: str, tail: int | None) -> int:
    """Where to begin so that the last lines are printed."""
    with _opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        lines = _LINES if tail is None else tail
        floor = max(0, size - _BYTES) if tail is None else 0
        position = size
        missing = lines + 1  # the newline before the first wanted line
        while position > floor:
            step = min(_CHUNK, position - floor)
            position -= step
            file.seek(position)
            block = file.read(step)
            if position + step == size and not block.endswith(b"\n"):
                missing -= 1  # the last line has no newline of its own yet
            found = block.count(b"\n")
            if found >= missing:
                return min(size, position + _nth_from_end(block, missing) + 1)
            missing -= found
        return floor


def _nth_from_end(block: bytes, count: int) -> int:
    place = len(block)
    for _ in range(count):
        place = block.rfind(b"\n", 0, place)
    return place


def _chunks(path: str, start: int) -> Iterator[bytes]:
    with _opened(path) as file:
        file.seek(start)
        while chunk := file.read(_CHUNK):
            yield chunk


def _text_emitter() -> Emit:
    """Writes bytes as they are, and to a terminal as harmless text."""
    if not sys.stdout.isatty():

        def write_bytes(_: int, chunk: bytes) -> None:
            print_bytes(chunk)

        return write_bytes
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def write_text(_: int, chunk: bytes) -> None:
        # A carriage return is how progress bars redraw their line: it ends the line here.
        text = decoder.decode(chunk).replace("\r\n", "\n").replace("\r", "\n")
        sys.stdout.write(printable(text))
        sys.stdout.flush()

    return write_text


def _chunk_emitter(session: Session) -> Emit:
    if not session.json:
        return _text_emitter()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write_line(number: int, chunk: bytes) -> None:
        text = decoder.decode(chunk)
        print_json({"schema": "fleetcraft.log_chunk/1", "attempt": number, "text": text})

    return write_line


def _print_whole(name: str, number: int, path: str, start: int) -> None:
    data = b"".join(_chunks(path, start))
    print_json(
        {
            "schema": "fleetcraft.log/1",
            "name": name,
            "attempt": number,
            "path": path,
            "left_out_bytes": start,
            "text": data.decode("utf-8", "replace"),
        }
    )


class _Follower:
    """Reads a log as it grows, then that of the next attempt, until the task has ended."""

    def __init__(self, tree: SpoolTree, name: str, *, only: bool) -> None:
        self._tree = tree
        self._name = name
        self._only = only
        self._looked_at = 0.0
        self._over = False

    def follow(self, number: int, start: int, emit: Emit) -> bool:
        """Prints until the task has ended; returns whether there was any log."""
        position = start
        while True:
            # Looked at before the log is read to its end: what was written until then is printed.
            over = self._is_over(number)
            position = self._emit_new(number, position, emit)
            following = None if self._only else self._next_log(number)
            if following is not None:
                self._emit_new(number, position, emit)
                number, position = following, 0
                note(f"--- attempt {number} ---")
            elif over:
                return self._tree.fs.exists(self._tree.paths.log(self._name, number))
            else:
                time.sleep(_POLL_S)

    def _emit_new(self, number: int, position: int, emit: Emit) -> int:
        path = self._tree.paths.log(self._name, number)
        if not self._tree.fs.exists(path):
            return position
        for chunk in _chunks(path, position):
            emit(number, chunk)
            position += len(chunk)
        return position

    def _next_log(self, number: int) -> int | None:
        later = range(number + 1, number + 1 + _GAP)
        return next(
            (n for n in later if self._tree.fs.exists(self._tree.paths.log(self._name, n))), None
        )

    def _is_over(self, number: int) -> bool:
        if time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            view = self._tree.find(self._name)
            ended = view.state in (State.DONE, State.FAILED)
            self._over = ended or (self._only and self._has_ended(number))
        return self._over

    def _has_ended(self, number: int) -> bool:
        attempts = views.show(self._tree, self._name).attempts
        return any(a.attempt == number and a.outcome is not None for a in attempts)
