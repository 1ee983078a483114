"""The scheduler: takes real code one file operation at a time, in every order, and breaks things.

An actor is a greenlet over real code. It is deterministic, so where it is follows from the results
it has seen: those histories form a tree (`_Node`), and a state of the whole is a `World`, one node
per actor, and what is left to spoil. States met before are not explored again. Not here: what the
actors do (`actors`) and what must hold (`invariants`).
"""

from __future__ import annotations

import errno
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from fleetcraft.errors import FleetError
from tests.explore import determinism
from tests.explore.model_fs import INVISIBLE, ModelFS, Request, Result, World, apply, failed

_MAX_LIVE_GREENLETS = 4000
LIES = {
    "rename_new": (errno.ENOENT, errno.EIO),
    "replace": (errno.ENOENT, errno.EIO),
    "link": (errno.EEXIST, errno.ENOENT, errno.EIO),
    "unlink": (errno.ENOENT, errno.EIO),
}
"""What a network file system may report of something that it did: a retransmitted call meets its
own effect, or the answer is lost."""
FAULTS = frozenset(
    {"rename_new", "link", "unlink", "open_append", "append", "read_from", "create", "create_log",
     "read", "listdir", "exists", "lstat"}
)  # fmt: skip
"""Operations that may fail without having done anything (EIO)."""


@dataclass(frozen=True)
class Actor:
    """One process.

    ``launch`` names it to the judge of liveness; ``after`` is the actor that must be dead or done
    before this one starts: a restart.
    """

    name: str
    act: Callable[[ModelFS], Any]
    launch: str = ""
    after: int | None = None


@dataclass(frozen=True)
class Budget:
    """What may still go wrong."""

    crashes: int = 0
    lies: int = 0
    faults: int = 0
    verdicts: int = 0
    preemptions: int = -1
    """Switches away from an actor that could go on; -1 is without bound."""


@dataclass(frozen=True)
class Scenario:
    """Who acts on what, what may go wrong, and what must hold.

    ``always`` is asked after every step, ``finally_`` at the end of every schedule; both return a
    sentence about what is wrong, or an empty text.
    """

    name: str
    start: World
    actors: tuple[Actor, ...]
    budget: Budget
    finally_: Callable[[End], str]
    always: Callable[[World, Budget], str] = lambda world, left: ""
    rename_flags: bool = True
    hard_links: bool = True


@dataclass(frozen=True)
class End:
    """A finished schedule: what is on disk, what actors returned (None: crashed), what is left."""

    world: World
    results: tuple[Any, ...]
    left: Budget
    spent: Budget
    rename_flags: bool


class Violation(AssertionError):
    """A schedule after which something does not hold."""

    def __init__(self, scenario: str, problem: str, schedule: list[str], end: World) -> None:
        lines = "\n".join(f"  {number:3d}. {step}" for number, step in enumerate(schedule, 1))
        files = "\n".join(f"  {path} -> {ino}" for path, ino in sorted(end.names.items()))
        super().__init__(f"{scenario}: {problem}\n{lines}\nat the end:\n{files}\n{end.trace}")
        self.problem = problem
        self.schedule = schedule


class _Node:
    """One actor after one sequence of results: its next request, or what it returned."""

    __slots__ = ("actor", "children", "depth", "final", "live", "number", "parent", "request",
                 "result")  # fmt: skip

    def __init__(
        self, number: int, actor: int, parent: _Node | None, result: Result | None
    ) -> None:
        self.number = number
        self.actor = actor
        self.parent = parent
        self.result = result
        self.depth = 0 if parent is None else parent.depth + 1
        self.children: dict[Result, _Node] = {}
        self.request: Request | None = None
        self.final: Any = None
        self.live: _Process | None = None


class _Process:
    """A greenlet in the middle of real code."""

    def __init__(self, actor: Actor, scenario: Scenario) -> None:
        self._hub = getcurrent()
        self._fs = ModelFS(
            self._step, rename_flags=scenario.rename_flags, hard_links=scenario.hard_links
        )
        self._tokens = determinism.Tokens(actor.name)
        self._actor = actor
        self._greenlet = greenlet(self._main)
        self._killed = False

    def resume(self, result: Result | None) -> tuple[Request | None, Any]:
        """Goes on to the next request; returns it, or None and what the code returned."""
        determinism.current = self._tokens
        self._hub = getcurrent()
        answer = self._greenlet.switch(result) if self._greenlet else self._greenlet.switch()
        return (None, answer) if self._greenlet.dead else (answer, None)

    def kill(self) -> None:
        self._killed = True
        self._greenlet.throw(GreenletExit)

    def _step(self, request: Request) -> Result:
        if self._killed:
            raise GreenletExit
        return self._hub.switch(request)

    def _main(self) -> Any:
        try:
            return ("returned", self._actor.act(self._fs))
        except (OSError, FleetError) as error:
            return ("raised", type(error).__name__, str(error))
        except GreenletExit:
            raise
        except Exception as error:
            return ("broke", f"{type(error).__name__}: {error}")


class _Tree:
    """Every history of every actor that any schedule has produced."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._count = 0
        self._resting: deque[_Node] = deque()
        self.roots = [self._root(index) for index in range(len(scenario.actors))]

    def __len__(self) -> int:
        return self._count

    def _root(self, index: int) -> _Node:
        node = self._node(index, None, None)
        process = self._process(index)
        self._settle(node, process, *process.resume(None))
        return node

    def _node(self, actor: int, parent: _Node | None, result: Result | None) -> _Node:
        self._count += 1
        return _Node(self._count, actor, parent, result)

    def _process(self, index: int) -> _Process:
        return _Process(self._scenario.actors[index], self._scenario)

    def _settle(self, node: _Node, process: _Process, request: Request | None, final: Any) -> None:
        node.request, node.final = request, final
        if request is None:
            return
        node.live = process
        self._resting.append(node)
        if len(self._resting) > _MAX_LIVE_GREENLETS:
            oldest = self._resting.popleft()
            if oldest.live is not None:
                oldest.live.kill()
                oldest.live = None

    def child(self, node: _Node, result: Result) -> _Node:
        found = node.children.get(result)
        if found is None:
            process = node.live or self._replay(node)
            node.live = None
            found = node.children[result] = self._node(node.actor, node, result)
            self._settle(found, process, *process.resume(result))
        return found

    def _replay(self, node: _Node) -> _Process:
        results: list[Result] = []
        step: _Node = node
        while step.parent is not None:
            assert step.result is not None
            results.append(step.result)
            step = step.parent
        process = self._process(node.actor)
        request, _ = process.resume(None)
        for result in reversed(results):
            request, _ = process.resume(result)
        assert request == node.request, "an actor is not deterministic"
        return process


@dataclass(frozen=True)
class _State:
    world: World
    nodes: tuple[_Node, ...]
    crashed: int  # bit set
    left: Budget
    last: int
    trail: Any  # (trail before, text)

    def key(self, bounded: bool) -> int:
        left = self.left
        return hash(
            (
                self.world.key(),
                tuple(node.number for node in self.nodes),
                self.crashed,
                (left.crashes, left.lies, left.faults, left.verdicts),
                (left.preemptions, self.last) if bounded else None,
            )
        )


@dataclass
class Explored:
    """What an exploration covered."""

    scenario: str
    states: int = 0
    steps: int = 0
    ends: int = 0
    histories: int = 0
    exhausted: bool = False
    walks: int = 0
    wall_s: float = 0.0

    def __str__(self) -> str:
        how = "exhausted" if self.exhausted else "stopped"
        walks = f", {self.walks} random walks" if self.walks else ""
        return (
            f"{self.scenario}: {self.states} states, {self.steps} steps, {self.ends} endings"
            f"{walks}, {self.histories} actor histories, {how}, {self.wall_s:.1f} s"
        )


class Explorer:
    """One scenario, explored.

    Args:
        scenario: What to explore.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._tree = _Tree(scenario)
        self._judged: dict[Any, str] = {}
        self._launches = {
            actor.launch: index for index, actor in enumerate(scenario.actors) if actor.launch
        }
        self.explored = Explored(scenario.name)

    def exhaust(self, *, max_states: int = sys.maxsize, seconds: float = 1e9) -> Explored:
        """Depth first through every state, up to a limit.

        Raises:
            Violation: With the schedule that leads to it.
        """
        started = time.monotonic()
        report = self.explored
        bounded = self._scenario.budget.preemptions >= 0
        first = self._start()
        seen = {first.key(bounded)}
        stack = [first]
        while stack and report.states < max_states:
            if report.steps & 1023 == 0 and time.monotonic() - started > seconds:
                break
            state = stack.pop()
            report.states += 1
            ended = True
            for after in self._successors(state):
                ended = False
                report.steps += 1
                key = after.key(bounded)
                if key not in seen:
                    seen.add(key)
                    stack.append(after)
            if ended:
                self._judge_end(state)
        report.exhausted = not stack
        return self._close(started)

    def walk(self, rng: random.Random, *, walks: int, seconds: float = 1e9) -> Explored:
        """Random schedules to their end.

        Raises:
            Violation: With the schedule that leads to it.
        """
        started = time.monotonic()
        for _ in range(walks):
            if time.monotonic() - started > seconds:
                break
            state = self._start()
            while options := self._enabled(state):
                # First who, then what: else a choice with many answers would be taken too often.
                actor = state.last if state.last in options and rng.random() < 0.6 else (
                    rng.choice(options)
                )  # fmt: skip
                ways = list(self._ways(state, actor))
                plain = [way for way in ways if way.left == state.left] or ways
                state = rng.choice(ways if rng.random() < 0.06 else plain)
                self.explored.steps += 1
                self.explored.states += 1
            self._judge_end(state)
            self.explored.walks += 1
        return self._close(started)

    def _close(self, started: float) -> Explored:
        self.explored.wall_s += time.monotonic() - started
        self.explored.histories = len(self._tree)
        return self.explored

    def _start(self) -> _State:
        return _State(
            self._scenario.start, tuple(self._tree.roots), 0, self._scenario.budget, -1, None
        )

    # -- steps

    def _enabled(self, state: _State) -> list[int]:
        return [index for index in range(len(state.nodes)) if self._can_step(state, index)]

    def _can_step(self, state: _State, index: int) -> bool:
        if state.crashed >> index & 1 or state.nodes[index].request is None:
            return False
        before = self._scenario.actors[index].after
        return before is None or not self._lives(state, before)

    def _lives(self, state: _State, index: int) -> bool:
        return not state.crashed >> index & 1 and state.nodes[index].request is not None

    def _successors(self, state: _State) -> Iterator[_State]:
        for index in self._enabled(state):
            yield from self._ways(state, index)

    def _ways(self, state: _State, index: int) -> Iterator[_State]:
        """Everything that may happen when this actor is next."""
        left = state.left
        if left.preemptions >= 0 and self._preempts(state, index):
            if left.preemptions == 0:
                return
            left = replace(left, preemptions=left.preemptions - 1)
        node = state.nodes[index]
        request = node.request
        assert request is not None
        operation, arguments = request
        if operation in ("choose", "run_end"):
            for option in arguments:
                world, _ = apply(state.world, index, node.depth, request) if (
                    operation == "run_end"
                ) else (state.world, None)  # fmt: skip
                yield self._after(state, index, world, ("ok", option), left, f" -> {option}")
        elif operation == "verdict":
            yield from self._verdicts(state, index, arguments[0], left)
        else:
            world, result = apply(state.world, index, node.depth, request)
            yield self._after(state, index, world, result, left)
            if left.lies and operation in LIES and result[0] == "ok":
                spent = replace(left, lies=left.lies - 1)
                for code in LIES[operation]:
                    what = f" DONE, BUT REPORTS {errno.errorcode[code]}"
                    yield self._after(state, index, world, failed(code), spent, what)
            if left.faults and operation in FAULTS and result[0] == "ok":
                spent = replace(left, faults=left.faults - 1)
                result = failed(errno.EIO)
                yield self._after(state, index, state.world, result, spent, " NOT DONE, EIO")
        if left.crashes and node.depth:
            yield replace(
                state,
                world=state.world.forget_process(index),
                crashed=state.crashed | 1 << index,
                left=replace(left, crashes=left.crashes - 1),
                trail=(state.trail, f"{self._scenario.actors[index].name} CRASHES"),
            )

    def _preempts(self, state: _State, index: int) -> bool:
        return state.last not in (-1, index) and self._can_step(state, state.last)

    def _verdicts(self, state: _State, index: int, launch: str, left: Budget) -> Iterator[_State]:
        owner = self._launches.get(launch)
        if owner is None or not self._lives(state, owner):
            yield self._after(state, index, state.world, ("ok", "gone"), left, " gone")
            return
        yield self._after(state, index, state.world, ("ok", "alive"), left, " alive")
        if left.verdicts:
            wrong = replace(left, verdicts=left.verdicts - 1)
            yield self._after(state, index, state.world, ("ok", "gone"), wrong, " gone, WRONGLY")

    def _after(  # noqa: PLR0917 - a step has so many parts
        self, state: _State, index: int, world: World, result: Result, left: Budget, how: str = ""
    ) -> _State:
        node = state.nodes[index]
        assert node.request is not None
        operation, arguments = node.request
        child = self._tree.child(node, result)
        while child.request is not None and child.request[0] in INVISIBLE:
            world, answer = apply(world, index, child.depth, child.request)
            child = self._tree.child(child, answer)
        if child.request is None:
            world = world.forget_process(index)
        if not how and result[0] == "err":
            how = f" -> {errno.errorcode[result[1]]}"
        what = " ".join(_short(argument) for argument in arguments)
        nodes = (*state.nodes[:index], child, *state.nodes[index + 1 :])
        text = (self._scenario.actors[index].name, operation, what, how)
        after = _State(world, nodes, state.crashed, left, index, (state.trail, text))
        if child.final is not None and child.final[0] == "broke":
            self._fail(after, f"{self._scenario.actors[index].name} broke: {child.final[1]}")
        if problem := self._scenario.always(world, left):
            self._fail(after, problem)
        return after

    # -- endings

    def _judge_end(self, state: _State) -> None:
        self.explored.ends += 1
        results = tuple(
            None if state.crashed >> index & 1 else node.final
            for index, node in enumerate(state.nodes)
        )
        key = (state.world.key(), repr(results), state.left)
        if key not in self._judged:
            total, left = self._scenario.budget, state.left
            spent = Budget(
                crashes=total.crashes - left.crashes,
                lies=total.lies - left.lies,
                faults=total.faults - left.faults,
                verdicts=total.verdicts - left.verdicts,
            )
            end = End(state.world, results, left, spent, self._scenario.rename_flags)
            self._judged[key] = self._scenario.finally_(end)
        if problem := self._judged[key]:
            self._fail(state, problem, results)

    def _fail(self, state: _State, problem: str, results: Any = None) -> None:
        schedule: list[str] = []
        trail = state.trail
        while trail is not None:
            trail, text = trail
            schedule.append(text if isinstance(text, str) else "{} {} {}{}".format(*text))
        schedule.reverse()
        if results is not None:
            schedule.append(f"results: {results}")
        raise Violation(self._scenario.name, problem, schedule, state.world)


def _short(argument: Any) -> str:
    text = argument.decode("utf-8", "replace") if isinstance(argument, bytes) else str(argument)
    text = text.strip()
    return text if len(text) <= 90 else f"{text[:60]}…({len(text)})"


def explore(scenario: Scenario, *, max_states: int = sys.maxsize, seconds: float = 1e9) -> Explored:
    """Explores one scenario up to a limit; see `Explorer.exhaust`."""
    return Explorer(scenario).exhaust(max_states=max_states, seconds=seconds)


def shortest(
    scenario: Scenario, *, up_to: int = 4, max_states: int = sys.maxsize, seconds: float = 1e9
) -> Violation | None:
    """The counterexample with the fewest preemptions, or None when none is found up to a bound."""
    for preemptions in range(up_to + 1):
        bounded = replace(scenario, budget=replace(scenario.budget, preemptions=preemptions))
        try:
            explore(bounded, max_states=max_states, seconds=seconds)
        except Violation as violation:
            return violation
    return None
