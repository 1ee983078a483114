"""The generation lock as a state machine: several processes, stalls, thefts and purges.

Each process has a clock of its own that moves only while it waits; what others do meanwhile is
drawn. Invariant, after each step: exactly the process that the model names passes its check, and
nothing was raised but the lock's own errors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fleetcraft.locks import (
    GenerationLock,
    Held,
    Holder,
    LockHeldError,
    LockLostError,
    LockUnknownError,
)
from fleetcraft.locks.generation import _KEPT_GENERATIONS, highest
from tests.fuzz import folders
from tests.quick_fs import QuickFS

_PROCESSES = st.integers(0, 3)
_MEANWHILE = ("nothing", "nothing", "beat", "release")


@dataclass
class Owned:
    """One generation as the model has it; `held` is None for a record that nobody can read."""

    held: Held | None
    process: int = -1
    lives: bool | None = True
    let_go: bool = False
    """It was released in this process, whether that could be written or was taken away again."""
    files: set[str] = field(default_factory=lambda: {"gen", "beat"})

    @property
    def released(self) -> bool:
        return "released" in self.files


class LockMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = folders.fresh("lock")
        self.chain: dict[int, Owned] = {}
        self.every: list[Owned] = []
        self.seams = [QuickFS() for _ in range(4)]
        """Of each process one: a process remembers by it what it has let go of."""
        self.now_s = 0.0
        self.meanwhile = "nothing"

    # -- what a process is handed

    def _judge(self, holder: Holder) -> bool | None:
        for owned in self.every:
            if owned.held is not None and owned.held.holder.nonce == holder.nonce:
                return owned.lives
        raise AssertionError(f"asked about {holder}, whom nobody knows")

    def _sleep(self, seconds: float) -> None:
        self.now_s += max(seconds, 1e-3)  # a fraction of a tick would not move this clock
        act, self.meanwhile = self.meanwhile, "nothing"
        top = self.top
        if act == "nothing" or top is None or top.held is None:
            return
        if act == "beat":
            top.held.beat()
            top.files.add("beat")
        else:
            self._release(top)

    def _release(self, owned: Owned) -> bool:
        assert owned.held is not None
        said = owned.held.release()
        owned.let_go = True
        if said:
            owned.files.add("released")
        return said

    def _lock(self, process: int) -> GenerationLock:
        return GenerationLock(
            self.folder,
            purpose=f"the test of process {process}",
            interval_s=1.0,
            judge=self._judge,
            fs=self.seams[process],
            clock=lambda: self.now_s,
            sleep=self._sleep,
        )

    @property
    def number(self) -> int:
        return max((n for n, owned in self.chain.items() if "gen" in owned.files), default=0)

    @property
    def top(self) -> Owned | None:
        return self.chain.get(self.number) if self.number else None

    # -- what processes do

    @rule(process=_PROCESSES, by_age=st.booleans(), meanwhile=st.sampled_from(_MEANWHILE))
    def acquires(self, process: int, by_age: bool, meanwhile: str) -> None:
        top, number = self.top, self.number
        self.meanwhile = meanwhile
        expected = self._may_take(top, process, by_age, meanwhile)
        try:
            held = self._lock(process).acquire(by_age=by_age)
        except LockHeldError:
            assert not expected, f"generation {number} was to be had"
            return
        except (LockLostError, LockUnknownError) as error:
            raise AssertionError(f"nobody else was there, and yet: {error}") from error
        finally:
            self.meanwhile = "nothing"
        assert expected, f"generation {number} was not to be had"
        assert held.generation == number + 1
        owned = Owned(held, process)
        # What a purge has left of this number may still be there.
        before = self.chain.get(number + 1)
        if before is not None:
            owned.files |= before.files
        self.chain[number + 1] = owned
        self.every.append(owned)
        for old in [n for n in self.chain if n <= number + 1 - _KEPT_GENERATIONS]:
            del self.chain[old]

    def _may_take(self, top: Owned | None, process: int, by_age: bool, meanwhile: str) -> bool:
        if top is None or top.released:
            return True
        if top.let_go and top.process == process:
            return True
        lives = top.lives if top.held is not None else None
        if lives:
            return False
        if top.held is not None and meanwhile == "beat":
            return False  # seen at work, whatever is said of it
        if top.held is not None and meanwhile == "release":
            return True
        return lives is False or by_age

    def _some(self, at: int) -> Owned | None:
        """One that was ever taken, whether its owner has noticed or not."""
        return self.every[at % len(self.every)] if self.every else None

    @rule(at=st.integers(0, 20))
    def beats(self, at: int) -> None:
        owned = self._some(at)
        if owned is not None and owned.held is not None:
            owned.held.beat()
            there = self.chain.setdefault(owned.held.generation, Owned(None, files=set()))
            there.files.add("beat")

    @rule(at=st.integers(0, 20))
    def releases(self, at: int) -> None:
        owned = self._some(at)
        if owned is None or owned.held is None:
            return
        number = owned.held.generation
        mine = self.chain.get(number) is owned and "gen" in owned.files
        before = set(owned.files)
        said = self._release(owned)
        assert not said or mine, "another's generation was released"
        assert said or not mine or "released" in before, "it was not released"

    @rule(at=st.integers(0, 20), lives=st.sampled_from([True, False, None]))
    def is_judged_anew(self, at: int, lives: bool | None) -> None:
        """It dies, stalls where nobody sees it, or is wrongly taken for dead."""
        owned = self._some(at)
        if owned is not None:
            owned.lives = lives

    @rule(count=st.sampled_from([1, 1, 2, 3, _KEPT_GENERATIONS + 3]))
    def many_come_and_go(self, count: int) -> None:
        for _ in range(count):
            if self.top is not None and not self.top.released:
                return
            self.acquires(0, False, "nothing")
            self.releases(len(self.every) - 1)

    # -- what else happens to the folder

    @precondition(lambda self: bool(self.chain))
    @rule(kind=st.sampled_from(["gen", "beat", "released", "all"]), at=st.integers(0, 5))
    def a_purge_takes_files(self, kind: str, at: int) -> None:
        number = sorted(self.chain)[-1 - at % len(self.chain)]
        for one in ("gen", "beat", "released") if kind == "all" else (kind,):
            if one in self.chain[number].files:
                os.unlink(f"{self.folder}/{one}.{number}")
                self.chain[number].files.discard(one)

    @rule(
        name=st.sampled_from(
            ["gen.0", "gen.01", "gen.x", "gen.7.k3x9.tmp", "gen.-1", "beat.1.a.tmp"]
        )
    )
    def a_foreign_file_appears(self, name: str) -> None:
        with open(f"{self.folder}/{name}", "wb") as file:
            file.write(b"\xff{")

    @precondition(lambda self: self.number < 200)
    @rule(data=st.sampled_from([b"", b"{", b"\xff", b"[" * 50_000, b'{"generation":1}']))
    def a_record_is_torn(self, data: bytes) -> None:
        """Without hard links a taker that dies leaves half a record."""
        number = self.number + 1
        path = f"{self.folder}/gen.{number}"
        if os.path.exists(path):
            return
        with open(path, "wb") as file:
            file.write(data)
        before = self.chain.get(number)
        self.chain[number] = Owned(None, files={"gen"} | (before.files if before else set()))

    # -- what must hold

    @invariant()
    def only_the_newest_decides(self) -> None:
        number = highest(os.listdir(self.folder))
        assert number == self.number, f"the newest is {number}, expected {self.number}"
        top = self.top
        for owned in {id(one): one for one in (*self.every[:2], *self.every[-4:])}.values():
            assert owned.held is not None
            mine = owned is top
            try:
                owned.held.check()
            except LockLostError:
                assert not mine, f"generation {owned.held.generation} is said to be lost"
            except LockUnknownError:
                assert owned.held.generation > number, "it is said not to be known"
            else:
                assert mine, f"generation {owned.held.generation} decides beside {number}"
