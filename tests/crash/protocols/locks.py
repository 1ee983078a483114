"""The generation lock: taken free, taken from a dead owner, beaten, released.

Time is counted here and not waited for, so that an act has the same operations each time. Not
here: several contenders at one time. Invariant that is proved: a generation has one owner for ever,
a lock whose owner is dead is taken in one pass, and an owner that was followed decides no more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from fleetcraft.errors import TryAgainLaterError
from fleetcraft.files import FileSystem
from fleetcraft.locks import (
    GenerationLock,
    Held,
    LockHeldError,
    LockLostError,
    generation,
    put_if_absent,
    read_holder,
)
from tests.crash.protocol import Place, Protocol
from tests.crash.protocols.broken import put_in_place

_KEPT = 32
_TEMPORARY = re.compile(r"(gen|beat|released)\.\d+\..+\.tmp")


class Ticks:
    """A clock that is moved on by whoever sleeps by it, so that nobody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def clock(self) -> float:
        """Seconds."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Lets so many seconds pass."""
        self.now_s += seconds


def _lock(place: Place) -> GenerationLock:
    ticks = Ticks()
    return GenerationLock(
        f"{place.root}/lock", purpose="the matrix", clock=ticks.clock, sleep=ticks.sleep
    )


# -- starts


def _free(place: Place) -> None:
    os.mkdir(place.root / "lock", 0o700)


def _dead_owner(place: Place) -> None:
    _free(place)
    held = _lock(place).acquire()
    held.beat()
    place.say("owns", str(held.generation), held.holder.nonce)


def _released(place: Place) -> None:
    _free(place)
    held = _lock(place).acquire()
    place.say("owns", str(held.generation), held.holder.nonce)
    assert held.release()


def _many_generations(place: Place) -> None:
    _free(place)
    for _ in range(_KEPT + 2):
        held = _lock(place).acquire()
        held.beat()
        assert held.release()


# -- acts


def _take(place: Place) -> Held:
    """Takes the lock; a process that was told to try again later does so once."""
    try:
        held = _lock(place).acquire()
    except TryAgainLaterError:
        held = _again(place)
    place.say("owns", str(held.generation), held.holder.nonce)
    return held


def _again(place: Place) -> Held:
    try:
        return _lock(place).acquire()
    except LockHeldError as error:
        raise AssertionError(f"nobody alive owns it, and it was refused: {error.message}") from None


def _acquire(place: Place) -> None:
    _take(place)


def _hold(place: Place) -> None:
    """The life of an owner: it looks, decides once, beats and leaves."""
    held = _take(place)
    held.check()
    path = f"{place.root}/decided"
    if put_if_absent(FileSystem(), path, f"{held.generation} {held.holder.nonce}\n".encode()):
        place.say("decided", str(held.generation))
    held.beat()
    held.beat()
    if held.release():
        place.say("released", str(held.generation))


# -- proof


def _prove(place: Place) -> None:
    _no_second_owner(place)
    lock, now = _lock(place), _highest(place)
    if ["released", str(now)] in place.said():
        assert os.path.exists(lock.path("released", now)), "a promised release is not there"
    held = lock.acquire()
    assert held.generation > now, f"generation {held.generation} came after {now}"
    held.check()
    _those_before_are_fenced(place, lock, held)
    held.beat()
    assert held.release(), "the lock could not be released"
    after = lock.acquire()
    assert after.generation == held.generation + 1, "a released lock was not free at once"
    assert after.release()
    _nothing_piles_up(place, after.generation)


def _no_second_owner(place: Place) -> None:
    owners: dict[int, set[str]] = {}
    for words in place.said():
        if words[0] == "owns":
            owners.setdefault(int(words[1]), set()).add(words[2])
    for number, nonces in owners.items():
        assert len(nonces) == 1, f"generation {number} has the owners {nonces}"
        path = _lock(place).path("gen", number)
        if number <= _highest(place) - _KEPT:
            continue  # forgotten, long after it was over
        holder = read_holder(FileSystem().read(path))
        assert holder is not None, f"the owner of generation {number} cannot be read"
        assert {holder.nonce} == nonces, f"generation {number} was given to {nonces} as well"
    for words in place.said():
        if words[0] == "decided":
            text = (place.root / "decided").read_text()
            assert text.split()[0] == words[1], f"{text!r} was decided, and {words[1]} promised"


def _highest(place: Place) -> int:
    return generation.highest(os.listdir(place.root / "lock"))


def _those_before_are_fenced(place: Place, lock: GenerationLock, now: Held) -> None:
    """An owner that was paused finds out, whatever became of the file that names it."""
    for words in place.said():
        path = lock.path("gen", int(words[1]))
        if words[0] != "owns" or not os.path.exists(path):
            continue
        content = FileSystem().read(path)
        holder = read_holder(content)
        assert holder is not None
        try:
            Held(lock, holder, content).check()
        except LockLostError:
            continue
        raise AssertionError(f"generation {words[1]} still decides under {now.generation}")


def _nothing_piles_up(place: Place, newest: int) -> None:
    names = os.listdir(place.root / "lock")
    temporary = [name for name in names if _TEMPORARY.fullmatch(name)]
    assert len(temporary) <= 2, f"temporary files are left: {temporary}"
    kinds = re.compile(r"(gen|beat|released)\.(\d+)")
    numbers = [int(m[2]) for name in names if (m := kinds.fullmatch(name))]
    assert len(numbers) + len(temporary) == len(names), f"something else lies there: {names}"
    assert min(numbers) > newest - _KEPT - 2, f"generation {min(numbers)} was never forgotten"


# -- rules that are broken on purpose


def _written_in_place() -> None:
    generation.put_if_absent = put_in_place  # type: ignore[attr-defined]


def _what_was_left_is_not_known() -> None:
    GenerationLock._is_left_behind = lambda self, content: False  # type: ignore[method-assign]


def _an_owner_never_looks() -> None:
    Held.check = lambda self: None  # type: ignore[method-assign]


_Start = Callable[[Place], None]
_MUTATIONS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("the owner is written in place", _written_in_place),
    ("a process does not know what it left behind", _what_was_left_is_not_known),
)
_FENCE = (("an owner never looks again", _an_owner_never_looks),)
PROTOCOLS = (
    Protocol("locks: acquire a free one", _free, _acquire, _prove, 18, mutations=_MUTATIONS),
    Protocol("locks: after a release", _released, _acquire, _prove, 20, mutations=_MUTATIONS),
    Protocol("locks: steal from a dead owner", _dead_owner, _hold, _prove, 60, mutations=_FENCE),
    Protocol("locks: forget old ones", _many_generations, _acquire, _prove, 24, mutations=_FENCE),
)
