"""Calls with deadlines, with calls that return late, never, or not at all well."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from fleetcraft.telemetry.logger import driver_thread
from fleetcraft.telemetry.logger.driver_thread import DriverThread, Step
from fleetcraft.telemetry.logger.waiting import Waiting
from tests.telemetry.loggers import until

SOON_S = 0.05
DEADLINE_S = 60.0
NEVER_S = 3600.0


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    made = Waiting()
    yield made
    made.close()


@pytest.fixture
def driver(waiting: Waiting) -> DriverThread:
    return DriverThread(waiting.wait, waiting.wake)


class Clock:
    """A clock for which time passes in stuck calls alone, however slow this machine is."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._now_s = 0.0
        self._wake = wake

    def monotonic(self) -> float:
        return self._now_s

    def time(self) -> float:
        return time.time()

    def let_pass(self) -> None:
        """So much that any deadline is over, and whoever waits for one looks again."""
        self._now_s += NEVER_S
        self._wake()


@pytest.fixture
def clock(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(waiting.wake)
    monkeypatch.setattr(driver_thread, "time", made)
    return made


class Gate:
    """A call that returns when it is let go.

    Args:
        stuck: Called when it has begun.
    """

    def __init__(self, stuck: Callable[[], None] = lambda: None) -> None:
        self.open = threading.Event()
        self.began = threading.Event()
        self.calls = 0
        self._stuck = stuck

    def __call__(self) -> str:
        self.calls += 1
        self.began.set()
        if not self.open.is_set():
            self._stuck()
        self.open.wait()
        return "late"


def values(
    driver: DriverThread, steps: list[Step], deadline_s: float = DEADLINE_S
) -> dict[str, object]:
    return {
        key: "TIMEOUT" if outcome.timed_out else outcome.error or outcome.value
        for key, outcome in driver.run(steps, deadline_s).items()
    }


def test_calls_are_made_in_order_on_one_thread_that_is_not_this_one(driver: DriverThread) -> None:
    seen: list[tuple[int, int]] = []
    steps = [
        Step(str(number), lambda n=number: seen.append((n, threading.get_ident())))  # type: ignore[misc]
        for number in range(20)
    ]
    driver.run(steps, NEVER_S)
    driver.run(steps, NEVER_S)
    assert [number for number, _ in seen] == [*range(20), *range(20)]
    (thread,) = {ident for _, ident in seen}
    assert thread != threading.get_ident()
    assert driver.close(None, 10.0)


def test_what_a_call_raises_is_its_outcome_and_no_others(driver: DriverThread) -> None:
    error = ValueError("broken")

    def fail() -> None:
        raise error

    steps = [Step("a", lambda: 1), Step("b", fail), Step("c", lambda: 3)]
    assert values(driver, steps, NEVER_S) == {"a": 1, "b": error, "c": 3}
    assert driver.close(None, 10.0)


def test_a_stuck_call_is_left_behind_and_not_made_again_until_it_returns(
    driver: DriverThread, clock: Clock
) -> None:
    gate = Gate(clock.let_pass)
    steps = [Step("a", lambda: 1), Step("b", gate), Step("c", lambda: 3)]
    for _ in range(3):
        assert values(driver, steps) == {"a": 1, "b": "TIMEOUT", "c": 3}
    assert gate.calls == 1
    assert set(driver.stuck) == {"b"}
    assert driver.take_late() == {}

    gate.open.set()
    until(lambda: not driver.stuck)
    late = driver.take_late()
    assert late["b"].value == "late"
    assert late["b"].took_s >= DEADLINE_S
    assert driver.take_late() == {}
    assert values(driver, steps) == {"a": 1, "b": "late", "c": 3}
    assert driver.close(None, 10.0)


def test_at_most_one_thread_is_left_behind_for_each_key(driver: DriverThread, clock: Clock) -> None:
    before = threading.active_count()
    gates = {key: Gate(clock.let_pass) for key in "abcd"}
    steps = [*(Step(key, gate) for key, gate in gates.items()), Step("fine", lambda: 1)]
    for _ in range(4):
        assert values(driver, steps)["fine"] == 1
    assert Counter(gate.calls for gate in gates.values()) == {1: 4}
    assert threading.active_count() <= before + len(gates) + 1
    for gate in gates.values():
        gate.open.set()
    until(lambda: not driver.stuck)
    assert set(driver.take_late()) == set("abcd")
    assert driver.close(None, 10.0)
    until(lambda: threading.active_count() <= before)  # one of an earlier test may have ended too


def test_an_order_to_end_gives_up_the_call_at_once_and_keeps_what_was_done(
    driver: DriverThread, waiting: Waiting
) -> None:
    gate = Gate()

    def order() -> None:
        gate.began.wait()
        waiting.end("told")
        waiting.wake()

    orderer = threading.Thread(target=order)
    orderer.start()
    steps = [Step("a", lambda: 1), Step("b", gate), Step("c", lambda: 3)]
    assert values(driver, steps, NEVER_S) == {"a": 1}
    orderer.join()
    last: list[str] = []
    assert not driver.close(lambda: last.append("closed"), SOON_S)
    assert last == []  # nothing is called beside a call that is stuck
    gate.open.set()
    until(lambda: not driver.stuck)


def test_the_last_call_is_made_although_the_order_to_end_was_given(
    driver: DriverThread, waiting: Waiting
) -> None:
    driver.run([Step("a", lambda: 1)], NEVER_S)
    waiting.end("told")
    last: list[str] = []
    assert driver.close(lambda: last.append("closed"), 10.0)
    assert last == ["closed"]


def test_a_call_that_returns_at_its_deadline_is_counted_once(driver: DriverThread) -> None:
    for _ in range(200):
        pause = threading.Event()
        steps: list[Step] = [Step("a", _waits(pause, 0.001)), Step("b", lambda: 2)]
        outcomes = driver.run(steps, 0.001)
        assert set(outcomes) == {"a", "b"}
        assert outcomes["b"].timed_out or outcomes["b"].value == 2
        until(lambda: not driver.stuck)
        late = driver.take_late()
        assert all(outcomes[key].timed_out for key in late)
    assert driver.close(None, 10.0)


def _waits(event: threading.Event, seconds: float) -> Callable[[], object]:
    return lambda: event.wait(seconds)
