"""A warm process that forks the three processes of one trial after another: prepare, act, prove.

Run with one JSON object, with the crash library preloaded; prints one JSON object a line. Not here:
which trials are wanted in all (`engine`). Invariant: the act is the only process of a trial that is
disturbed, and the proof is made by another one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import math
import mmap
import os
import select
import shutil
import signal
import struct
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from tests.crash.faults import FAULTS, Fault, How, Operation
from tests.crash.protocol import Place, Protocol

_BOARD_BYTES = 4 << 20
_HEAD = struct.Struct("=qq32s1000sqq")
_LONGEST_S = 60.0
_COUNTED = Fault("counted", "", How.COUNT_ONLY)


class Board:
    """Memory that the act shares with this process: what it did outlives it."""

    def __init__(self, library: str) -> None:
        self._memory = mmap.mmap(-1, _BOARD_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._library = ctypes.CDLL(library)
        self._library.crash_trace_offset.restype = ctypes.c_int64
        assert self._library.crash_trace_offset() == _HEAD.size

    def arm(self, root: str, fault: Fault, at: int) -> None:
        """Counts from now on, in this process, and disturbs the k-th operation."""
        self._library.crash_arm(
            os.fsencode(root),
            os.fsencode(os.path.realpath(root)),
            ctypes.c_void_p(self._address),
            ctypes.c_int64(_BOARD_BYTES),
            ctypes.c_int64(at),
            int(fault.how),
            fault.code,
        )

    def disarm(self) -> None:
        """From now on nothing is counted."""
        self._library.crash_disarm()

    def clear(self) -> None:
        """Forgets the last act."""
        self._memory[: _HEAD.size] = bytes(_HEAD.size)

    def hit(self) -> tuple[int, str, str]:
        """The operation that was disturbed (0: none), its name, and its path."""
        _, number, name, path, _, _ = _HEAD.unpack_from(self._memory)
        return number, _text(name), _text(path)

    def operations(self) -> list[Operation]:
        """What was counted."""
        used = _HEAD.unpack_from(self._memory)[4]
        assert used <= _BOARD_BYTES - _HEAD.size, "the act has too many operations to be noted"
        trace = os.fsdecode(self._memory[_HEAD.size : _HEAD.size + used])
        return [Operation(*line.split("\t", 2)) for line in trace.splitlines()]


def _text(field: bytes) -> str:
    return os.fsdecode(field.partition(b"\0")[0])


# -- processes


def in_child(work: Callable[[], Any], words: str = os.devnull) -> dict[str, Any]:
    """Forks, works, and returns what the child said, or the signal that ended it.

    Args:
        work: Returns something that JSON can say.
        words: The file that takes the child's standard output and error.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _live_alone(words)
        said = attempt(work)
        with os.fdopen(writer, "w") as pipe:
            json.dump(said, pipe)
        os._exit(0)
    os.close(writer)
    text = _heard(pid, reader)
    os.close(reader)
    if text is None:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if text is None:
        return {"trouble": f"it had not ended after {_LONGEST_S:.0f} s"}
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    heard: dict[str, Any] = json.loads(text)
    return heard


def _live_alone(words: str) -> None:
    os.setsid()
    fd = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _heard(pid: int, reader: int) -> bytes | None:
    """Everything up to the child's end; None when it takes too long.

    The pipe alone does not tell the end, for what the child has forked may hold it.
    """
    os.set_blocking(reader, False)
    ended = os.pidfd_open(pid)
    parts = []
    deadline_s = time.monotonic() + _LONGEST_S
    try:
        while (left_s := deadline_s - time.monotonic()) > 0:
            ready, _, _ = select.select([reader, ended], [], [], left_s)
            chunk = None
            if reader in ready or ended in ready:
                with contextlib.suppress(BlockingIOError):
                    chunk = os.read(reader, 1 << 16)
                    parts.append(chunk)
            if chunk == b"" or (not chunk and ended in ready):
                return b"".join(parts)
        return None
    finally:
        os.close(ended)


def attempt(work: Callable[[], Any]) -> dict[str, Any]:
    """What some work returns, or the traceback of what it raises."""
    try:
        return {"returned": work()}
    except BaseException:
        return {"trouble": traceback.format_exc()}


def _adopt() -> None:
    """What a killed act leaves running becomes a child of this process, so that it can be ended."""
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_adopted() -> None:
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    except OSError:
        return
    for child in children:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(int(child), signal.SIGKILL)
            os.waitpid(int(child), 0)


# -- trials


class Bench:
    """Where the trials of one protocol take place, one after another."""

    def __init__(self, protocol: Protocol, base: str, board: Board) -> None:
        self._protocol = protocol
        self._folder = f"{base}/trial"
        self._board = board

    def trial(self, fault: Fault, at: int) -> dict[str, Any]:
        """Prepares, acts with the k-th operation disturbed, and proves.

        Returns:
            ``hit``: whether there was such an operation; ``trouble``: what did not hold, if so.
        """
        place = Place(Path(self._folder, "tree"), Path(self._folder, "notes"))
        try:
            os.mkdir(self._folder, 0o700)
            os.mkdir(place.root, 0o700)
            return self._on(place, fault, at)
        finally:
            _end_adopted()
            shutil.rmtree(self._folder)

    def _on(self, place: Place, fault: Fault, at: int) -> dict[str, Any]:
        self._board.clear()
        report: dict[str, Any] = {"fault": fault.name, "at": at, "hit": False}
        prepared = self._phase("prepare", lambda: self._protocol.prepare(place))
        if "returned" not in prepared:
            return {**report, **self._trouble("prepare", prepared, place)}
        acted = self._phase("act", lambda: self._act(place, fault, at))
        number, name, path = self._board.hit()
        below = os.path.relpath(path, place.root) if path else ""
        report |= {"hit": number > 0, "operation": name, "path": below, "acted": _in_words(acted)}
        was_killed = acted.get("signal") == signal.SIGKILL and number > 0
        if "returned" not in acted and not was_killed:
            return {**report, **self._trouble("act", acted, place)}
        proved = self._phase("prove", lambda: self._protocol.prove(place))
        if "returned" not in proved:
            return {**report, **self._trouble("prove", proved, place)}
        return report

    def _phase(self, name: str, work: Callable[[], None]) -> dict[str, Any]:
        return in_child(work, f"{self._folder}/{name}.out")

    def _act(self, place: Place, fault: Fault, at: int) -> str:
        self._board.arm(str(place.root), fault, at)
        try:
            self._protocol.act(place)
        except self._protocol.expected as error:
            self._board.disarm()
            return f"{type(error).__name__}: {error}"
        finally:
            self._board.disarm()
        return ""

    def _trouble(self, phase: str, ended: dict[str, Any], place: Place) -> dict[str, Any]:
        said = Path(self._folder, f"{phase}.out").read_text(errors="replace")[-2000:]
        return {
            "phase": phase,
            "trouble": ended.get("trouble") or f"ended by signal {ended.get('signal')}",
            "printed": said,
            "notes": [" ".join(words) for words in place.said()],
            "listing": listing(place.root),
        }

    def operations(self, *, any_number: bool = False) -> list[Operation]:
        """Counts the operations of an act that is not disturbed, and proves that it is sound.

        Args:
            any_number: Whether it may have fewer than the protocol says.

        Raises:
            RuntimeError: It is not, or it has fewer than it must have.
        """
        report = self.trial(_COUNTED, 0)
        if "trouble" in report:
            raise RuntimeError(f"undisturbed, {report['phase']}: {report['trouble']}")
        if report["acted"]:
            raise RuntimeError(f"undisturbed, the act raises {report['acted']}")
        counted = self._board.operations()
        if len(counted) < self._protocol.fewest and not any_number:
            least = self._protocol.fewest
            raise RuntimeError(f"the act has {len(counted)} operations, expected at least {least}")
        return counted


def _in_words(acted: dict[str, Any]) -> str:
    if "signal" in acted:
        return f"signal {acted['signal']}"
    return str(acted.get("returned", "trouble"))


def listing(root: Path) -> list[str]:
    """Every file below a folder."""
    return sorted(
        os.path.relpath(os.path.join(folder, file), root)
        for folder, folders, files in os.walk(root)
        for file in [*files, *(f"{name}/" for name in folders)]
    )


def picked(operations: list[Operation], fault: Fault, share: float, seed: str) -> list[int]:
    """The steps at which a fault is tried: the same share of them each time, evenly spaced.

    Args:
        operations: Of the act.
        fault: Only operations to which it applies are taken.
        share: Above 0, at most 1; at least one step is taken where there is any.
        seed: Text from which the first step follows.

    Returns:
        Numbers from 1, growing.
    """
    steps = [at for at, done in enumerate(operations, 1) if fault.applies(done)]
    if not steps:
        return []
    wanted = max(1, math.ceil(share * len(steps) - 1e-9))
    offset = zlib.crc32(f"{seed} {fault.name}".encode()) if wanted < len(steps) else 0
    places = {(offset + number * len(steps) // wanted) % len(steps) for number in range(wanted)}
    return [steps[place] for place in sorted(places)]


def _not_even_undisturbed(why: str, is_meant: bool) -> dict[str, Any]:
    """A protocol that does not hold by itself; where a rule was broken, that is what shows it."""
    if not is_meant:
        return {"broken": why}
    trouble = {"phase": "prove", "trouble": why, "notes": [], "listing": []}
    return {"point": {"fault": "undisturbed", "at": 0, "hit": True, **trouble}}


def trials_of(bench: Bench, request: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Everything that is said about one protocol."""
    started_s = time.monotonic()
    try:
        operations = bench.operations(any_number=bool(request["mutation"]))
    except RuntimeError as error:
        yield {"protocol": name, **_not_even_undisturbed(str(error), bool(request["mutation"]))}
        return
    kinds = [[done.name, done.kind, done.path] for done in operations]
    yield {"protocol": name, "operations": kinds}
    for fault in [fault for fault in FAULTS if fault.name in request["faults"]]:
        for at in picked(operations, fault, request["share"], name):
            report = bench.trial(fault, at)
            yield {"protocol": name, "point": report}
            if "trouble" in report and request["stop_at_first"]:
                return
    yield {"protocol": name, "seconds": time.monotonic() - started_s}


def main(text: str, said: TextIO) -> None:
    """Answers one request."""
    request = json.loads(text)
    library = os.environ.pop("LD_PRELOAD")
    module = importlib.import_module(request["module"])
    board = Board(library)
    _adopt()
    wanted = request["protocols"]
    chosen: list[Protocol] = [
        one for one in module.PROTOCOLS if wanted is None or one.name in wanted
    ]
    if request["only_names"]:
        for one in chosen:
            mutations = [name for name, _ in one.mutations]
            print(json.dumps({"protocol": one.name, "mutations": mutations}), file=said, flush=True)
        return
    if request["mutation"]:
        dict(chosen[0].mutations)[request["mutation"]]()
    gc.collect()
    gc.freeze()
    for protocol in chosen:
        bench = Bench(protocol, request["base"], board)
        for line in trials_of(bench, request, protocol.name):
            print(json.dumps(line), file=said, flush=True)


if __name__ == "__main__":
    # What a protocol prints is not an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(sys.argv[1], answers)
