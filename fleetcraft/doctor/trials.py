"""What the mount of the scratch tree really does, tried in a private folder that is removed again.

By this host alone: what another host sees, and when, is not tried. Each trial says what it saw, or
raises `Broken`. Invariant: nothing outside the trial's own folder is touched.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from fleetcraft.doctor.findings import Finding, Verdict, ok, wrong
from fleetcraft.files import NO_HARD_LINKS, FileSystem
from fleetcraft.identity import new_record_id

PREFIX = ".probe-"
"""What the names of trial folders begin with; one is left only where a trial was cut off."""
_ELSEWHERE = (
    "choose a scratch tree on another mount (ext4, xfs, Lustre, GPFS and NFS 4 keep these rules), "
    "or show this to the operators"
)
_WRITE_BYTES = 1 << 20
_ROUNDS = 40
_LIMIT_S = 3.0
_BLOCK_BYTES = 4096
_LINES = 50
_LINE_BYTES = 100
_LONGEST_NAME = 180 + len(".sh.") + 48  # a task's name, and the owner of its claim
_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class Broken(Exception):
    """The mount did something else than the protocol needs.

    Args:
        found: What it did.
        verdict: ``wrong``, or ``advice`` where fleetcraft has another way.
        hint: What to do.
    """

    def __init__(
        self, found: str, *, verdict: Verdict = Verdict.WRONG, hint: str = _ELSEWHERE
    ) -> None:
        super().__init__(found)
        self.found = found
        self.verdict = verdict
        self.hint = hint


Trial = Callable[[FileSystem, str], str]


def try_mount(fs: FileSystem, root: str) -> Iterator[Finding]:
    """Tries every operation that the protocol rests on.

    Args:
        fs: The seam.
        root: The folder below which a trial folder is made, and removed.
    """
    folder = f"{root}/{PREFIX}{new_record_id()}"
    try:
        fs.make_folder(folder)
    except OSError as error:
        yield _refused("write", error, f"a folder below {root}")
        return
    try:
        for name, (trial, expected) in _TRIALS.items():
            room = f"{folder}/{name.replace(' ', '-')}"
            yield _tried(fs, room, name, trial, expected)
    finally:
        _clear(fs, folder)


def _tried(fs: FileSystem, room: str, name: str, trial: Trial, expected: str) -> Finding:
    try:
        fs.make_folder(room)
        return ok(name, trial(fs, room), expected)
    except Broken as broken:
        return Finding(
            name=name,
            verdict=broken.verdict,
            found=broken.found,
            expected=expected,
            hint=broken.hint,
        )
    except OSError as error:
        return _refused(name, error, expected)
    finally:
        _clear(fs, room)


def _refused(name: str, error: OSError, expected: str) -> Finding:
    hint = _ELSEWHERE
    if error.errno in _SPACE:
        hint = "remove what is not needed; quota -s, lfs quota and df -i show what is full"
    elif error.errno == errno.EROFS:
        hint = "the mount is read-only: ask the operators, or choose another scratch tree"
    elif error.errno == errno.EACCES:
        hint = "ls -ld shows who owns it: choose a scratch tree of your own"
    return wrong(name, f"the system refused: {error.strerror or error}", expected, hint)


def _clear(fs: FileSystem, folder: str) -> None:
    """Removes a trial's files; a server that fails here leaves them, and they are told later."""
    with contextlib.suppress(OSError):
        for name in fs.listdir(folder):
            with contextlib.suppress(OSError):
                fs.unlink(f"{folder}/{name}")
        fs.remove_folder(folder)


# ---------------------------------------------------------------------------------- the trials


def _write(fs: FileSystem, room: str) -> str:
    data = os.urandom(1 << 10) * (_WRITE_BYTES >> 10)
    fs.create(f"{room}/file", data, durable=True)
    if fs.read(f"{room}/file") != data:
        raise Broken("what was read is not what was written")
    return "1 MiB was written, forced to disk and read back"


def _rename(fs: FileSystem, room: str) -> str:
    fs.create(f"{room}/a", b"content")
    fs.rename_new(f"{room}/a", f"{room}/b")
    if fs.exists(f"{room}/a"):
        raise Broken("after the rename the old name is still there")
    if fs.read(f"{room}/b") != b"content":
        raise Broken("after the rename the new name has another content")
    return "a file moved whole"


def _keep(fs: FileSystem, room: str) -> str:
    fs.create(f"{room}/a", b"new")
    fs.create(f"{room}/b", b"old")
    try:
        fs.rename_new(f"{room}/a", f"{room}/b")
    except FileExistsError:
        pass
    else:
        raise Broken("a rename to a taken name was not refused")
    if fs.read(f"{room}/a") != b"new" or fs.read(f"{room}/b") != b"old":
        raise Broken("a refused rename changed a file")
    return "a taken name was refused, and both files were kept"


def _claim(fs: FileSystem, room: str) -> str:
    def act(turn: int, who: int) -> bool:
        try:
            fs.rename_new(f"{room}/{turn}", f"{room}/{turn}.{who}")
        except FileNotFoundError:
            return False
        return True

    def prepare(turn: int) -> None:
        fs.create(f"{room}/{turn}", b"")

    rounds = _race(prepare, act, "renamed one file")
    return f"of two threads that renamed one file, one won in each of {rounds} rounds"


def _replace(fs: FileSystem, room: str) -> str:
    """One thread replaces a file again and again; whoever looks must always see a whole one."""
    target = f"{room}/target"
    blocks = (b"a" * _BLOCK_BYTES, b"b" * _BLOCK_BYTES)
    fs.create(target, blocks[0])
    done = threading.Event()

    def write() -> None:
        try:
            for turn in _within(_ROUNDS):
                fs.create(f"{room}/{turn}", blocks[turn % 2])
                fs.replace(f"{room}/{turn}", target)
        finally:
            done.set()

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        looks = _look(fs, target, blocks, done)
        written.result()
    return f"{looks} looks while it was replaced saw a whole file"


def _look(fs: FileSystem, target: str, blocks: Sequence[bytes], done: threading.Event) -> int:
    looks = 0
    while not (done.is_set() and looks):
        try:
            data = fs.read(target)
        except FileNotFoundError:
            raise Broken("while it was replaced, the file was not there for a moment") from None
        if data not in blocks:
            raise Broken(f"while it was replaced, the file had {len(data)} strange bytes")
        looks += 1
    return looks


def _link(fs: FileSystem, room: str) -> str:
    fs.create(f"{room}/a", b"content")
    try:
        fs.link(f"{room}/a", f"{room}/b")
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        raise Broken(
            f"there are no hard links here: {error.strerror or error}",
            verdict=Verdict.ADVICE,
            hint="fleetcraft does without (identities are folders, records are created in place), "
            "but a crash may then leave a torn record; another mount is better",
        ) from error
    first, second = fs.lstat(f"{room}/a"), fs.lstat(f"{room}/b")
    if first.st_ino != second.st_ino or second.st_nlink != 2:
        raise Broken("the two names of a link are two files")
    return "two names are one file"


def _put(fs: FileSystem, room: str) -> str:
    def prepare(turn: int) -> None:
        for who in (0, 1):
            fs.create(f"{room}/{turn}.{who}", b"")

    def act(turn: int, who: int) -> bool:
        try:
            fs.link(f"{room}/{turn}.{who}", f"{room}/{turn}")
        except FileExistsError:
            return False
        return True

    try:
        rounds = _race(prepare, act, "linked one name")
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        return "not tried: there are no hard links here"
    return f"of two threads that took one name, one won in each of {rounds} rounds"


def _append(fs: FileSystem, room: str) -> str:
    path = f"{room}/lines"
    fs.create(path, b"")
    wanted = [
        [f"{who}{turn:03d}".encode().ljust(_LINE_BYTES - 1, b".") + b"\n" for turn in range(_LINES)]
        for who in (0, 1)
    ]

    def write(lines: list[bytes]) -> None:
        fd = fs.open_append(path)
        try:
            for line in lines:
                fs.append(fd, line)
        finally:
            fs.close(fd)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, wanted))
    found = fs.read(path).splitlines(keepends=True)
    if sorted(found) != sorted(wanted[0] + wanted[1]):
        raise Broken(
            f"of {2 * _LINES} lines that two descriptors appended, "
            f"{len(set(found) & {*wanted[0], *wanted[1]})} are whole"
        )
    return f"{2 * _LINES} lines that two descriptors appended are whole"


def _force(fs: FileSystem, room: str) -> str:
    fs.create(f"{room}/file", b"x" * _BLOCK_BYTES)
    began_s = time.monotonic()
    fd = fs.open_append(f"{room}/file")
    try:
        fs.append(fd, b"y")
        fs.datasync(fd)
    finally:
        fs.close(fd)
    fs.sync_folder(room)
    took_ms = (time.monotonic() - began_s) * 1000
    return f"a file and its folder were forced to disk in {took_ms:.1f} ms"


def _lock(fs: FileSystem, room: str) -> str:
    fs.create(f"{room}/lock", b"")
    first, second = (fs.open_append(f"{room}/lock") for _ in range(2))
    hint = "nothing rests on locks here, but telemetry loggers may write beside one another"
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "a lock that is held is refused to others"
        raise Broken("a lock was given to two at a time", verdict=Verdict.ADVICE, hint=hint)
    except OSError as error:
        found = f"flock is refused: {error.strerror or error}"
        raise Broken(found, verdict=Verdict.ADVICE, hint=hint) from error
    finally:
        fs.close(first)
        fs.close(second)


def _list(fs: FileSystem, room: str) -> str:
    for turn in range(_ROUNDS):
        fs.create(f"{room}/{turn}", b"")
        if str(turn) not in fs.listdir(room):
            raise Broken("a file that was just made is not in the listing")
        fs.rename_new(f"{room}/{turn}", f"{room}/{turn}.moved")
        if str(turn) in fs.listdir(room):
            raise Broken("a file that was renamed is still listed under its old name")
        fs.unlink(f"{room}/{turn}.moved")
    return "what was made and moved was listed so at once, on this host"


def _names(fs: FileSystem, room: str) -> str:
    fs.create(f"{room}/task", b"")
    try:
        fs.create(f"{room}/TASK", b"")
    except FileExistsError:
        raise Broken("names that differ only in case are one name") from None
    try:
        fs.create(f"{room}/{'n' * _LONGEST_NAME}", b"")
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise Broken(
            f"a name of {_LONGEST_NAME} bytes is too long here",
            verdict=Verdict.ADVICE,
            hint="give tasks short names, or choose another mount: a claim's name has up to "
            f"{_LONGEST_NAME} bytes",
        ) from error
    return f"case counts, and {_LONGEST_NAME} bytes fit"


_TRIALS: dict[str, tuple[Trial, str]] = {
    "write": (_write, "what was written is read back"),
    "rename": (_rename, "a file moves whole to a new name"),
    "rename no replace": (_keep, "a rename never takes a name that is taken"),
    "claim": (_claim, "one of two that rename a file wins"),
    "replace": (_replace, "a file is replaced at once, and is always there"),
    "hard links": (_link, "a file can have two names"),
    "put if absent": (_put, "one of two that take a name wins"),
    "append": (_append, "lines of two writers never mix"),
    "force to disk": (_force, "data and names can be forced to disk"),
    "flock": (_lock, "a lock is held by one"),
    "listing": (_list, "a listing shows what was done"),
    "names": (_names, "names of tasks are told apart"),
}


def _within(count: int) -> Iterator[int]:
    """Numbers from 0, until there were enough or it has taken long: a mount may be slow."""
    end_s = time.monotonic() + _LIMIT_S
    for number in range(count):
        if number and time.monotonic() > end_s:
            return
        yield number


def _race(prepare: Callable[[int], None], act: Callable[[int, int], bool], did: str) -> int:
    """Lets two threads do the same thing at a time, in rounds, and wants one winner in each."""
    rounds = 0
    barrier = threading.Barrier(2)

    def run(turn: int, who: int) -> bool:
        barrier.wait(timeout=10 * _LIMIT_S)
        return act(turn, who)

    with ThreadPoolExecutor(2) as pool:
        for turn in _within(_ROUNDS):
            prepare(turn)
            winners = sum(pool.map(lambda who, turn=turn: run(turn, who), (0, 1)))
            if winners != 1:
                raise Broken(f"of two threads that {did}, {'both' if winners else 'none'} won")
            rounds += 1
    return rounds
