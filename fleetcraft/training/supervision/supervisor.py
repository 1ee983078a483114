"""The supervisor of one run: does what each state asks for, until a state is terminal.

Which state follows is `machine`'s, what the rooms do is `rooms`', what is told is `telling`'s.
Invariant: before each durable act the lock is looked at, and one that was lost ends this process
without stopping anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fleetcraft.errors import DataError, FleetError
from fleetcraft.locks import Held, LockLostError, LockUnknownError
from fleetcraft.training.records import TERMINAL, Diagnosis, Epoch, State, Stopped, StopResult
from fleetcraft.training.supervision.deciding import Decision, next_launch
from fleetcraft.training.supervision.facts import NO_END, examined, facts_of, unreaped_words
from fleetcraft.training.supervision.history import History, this_moment
from fleetcraft.training.supervision.journal import Event
from fleetcraft.training.supervision.leaving import EXIT_CODES, Ended, next_step
from fleetcraft.training.supervision.machine import (
    WATCHED,
    Leave,
    Live,
    Look,
    Move,
    Run,
    Suspicion,
    after_lock,
    after_pause,
    after_stop,
    following,
    watch,
)
from fleetcraft.training.supervision.observing import Observer, Picture, measured
from fleetcraft.training.supervision.orders import Orders
from fleetcraft.training.supervision.rooms import Found, Rooms
from fleetcraft.training.supervision.slurm_word import NO_STEP
from fleetcraft.training.supervision.telling import Teller

_LOCK_PATIENCE_S = 30.0


class _Blocked(Exception):
    """What has to be known is not known; its text says what."""


class Supervisor:
    """Supervises one run from the moment it has the lock.

    Args:
        held: The run's lock.
        rooms: What launches, finds, watches and stops.
        teller: Journal and status.
        orders: Signals that this process got.
        detach: Leave the run alive when told to end, for the next supervisor to adopt.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        held: Held,
        rooms: Rooms,
        teller: Teller,
        orders: Orders,
        *,
        detach: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._held = held
        self._rooms = rooms
        self._plan = rooms.plan
        self._teller = teller
        self._orders = orders
        self._detach = detach
        self._clock = clock
        self._state = State.IDLE
        self._why = ""
        self._suspicion: Suspicion | None = None
        self._found: Found | None = None
        self._decision: Decision | None = None
        self._epoch: Epoch | None = None
        self._observer: Observer | None = None
        self._diagnosis: Diagnosis | None = None
        self._advice = ""
        self._ended_well = False

    def run(self) -> Ended:
        """Goes from state to state until one is terminal, or this process was told to end."""
        acts: dict[State, Callable[[], Move]] = {
            State.LOCKED: self._begin,
            State.LAUNCHING: self._launch,
            State.ADOPTING: self._adopt,
            State.DIAGNOSING: self._diagnose,
            State.STOPPING: self._stop,
            State.BACKOFF: self._back_off,
            **dict.fromkeys(WATCHED, self._watch),
        }
        self._go(Move(to=State.LOCKED, why=f"generation {self._held.generation}"))
        try:
            while self._state in acts:
                if self._detached():
                    break
                self._go(self._act(acts[self._state]))
        except LockLostError as error:
            self._go(Move(to=State.LOCK_LOST, why=error.message))
        finally:
            if self._observer is not None:
                self._observer.close()
        return self._leave()

    def _act(self, act: Callable[[], Move]) -> Move:
        try:
            return act()
        except _Blocked as blocked:
            return Move(to=State.BLOCKED, why=str(blocked))

    def _go(self, move: Move) -> None:
        before, self._suspicion = self._state, move.suspicion
        if move.to is before:
            return
        assert move.to in following(before), f"{before} -> {move.to}"
        self._state, self._why = move.to, move.why
        self._teller.state(move.to, before, move.why)

    def _detached(self) -> bool:
        return self._detach and self._orders.is_told() and self._state in WATCHED

    def _leave(self) -> Ended:
        code = EXIT_CODES.get(self._state)
        if code is None:
            code = 128 + (self._orders.told or 0)
        step = next_step(self._state, self._plan.run, self._advice)
        if self._state not in TERMINAL and self._state is not State.IDLE:
            self._teller.event(Event.TOLD_TO_END, why="the run lives on, for the next supervisor")
        self._teller.ended(self._state, code, self._why, step)
        return Ended(state=self._state, exit_code=code, why=self._why, next_step=step)

    # -- before a launch

    def _begin(self) -> Move:
        self._require_lock()
        if self._orders.is_told():
            return Move(to=State.IDLE, why="the supervisor was told to end")
        history = self._history()
        found = self._found = self._rooms.find(history, self._held.generation)
        if self._orders.is_told():
            return Move(to=State.IDLE, why="the supervisor was told to end")
        unrecorded = history.unrecorded is not None and found.live is Live.DEAD
        settled = found.live in (Live.NONE, Live.DEAD) and not unrecorded
        leave = self._leave_facts(history) if settled else Leave()
        move = after_lock(found.live, leave, unrecorded=unrecorded, why=found.why)
        if move.to is State.DIAGNOSING:
            self._epoch = history.unrecorded or found.epoch
            self._diagnosis = history.diagnosed
            assert self._epoch is not None
            self._teller.follow(self._epoch)
            if found.live is Live.STUCK:
                self._follow(self._epoch, found)
        return move

    def _launch(self) -> Move:
        assert self._decision is not None
        self._require_lock()
        try:
            epoch = self._rooms.new_epoch(self._decision, self._held.generation, self._why)
            if not self._rooms.epochs.publish(epoch):
                self._held.check()
                raise _Blocked(f"epoch {epoch.number} was published by somebody else")
            self._require_lock()
            launch = self._rooms.launch(epoch, self._decision)
        except (OSError, FleetError) as error:
            if isinstance(error, LockLostError):
                raise
            raise _Blocked(f"the run could not be launched: {error}") from error
        self._ended_well = False  # that was another attempt
        self._teller.epoch(Event.LAUNCHED, epoch)
        found = Found(live=Live.LIVE, launch=launch, paths=self._rooms.paths.attempt(epoch.number))
        self._follow(epoch, found)
        return Move(to=State.WARMUP, why=f"epoch {epoch.number} was launched")

    def _adopt(self) -> Move:
        found = self._found
        assert found is not None
        self._require_lock()
        try:
            epoch = self._rooms.adopted_epoch(found, self._held.generation)
            if not self._rooms.epochs.publish(epoch):
                self._held.check()
                raise _Blocked(f"epoch {epoch.number} was published by somebody else")
        except (OSError, DataError) as error:
            raise _Blocked(f"the live run could not be adopted: {error}") from error
        self._teller.epoch(Event.ADOPTED, epoch)
        self._follow(epoch, found)
        return Move(to=State.WARMUP, why=f"epoch {epoch.number} adopts attempt {epoch.attempt}")

    def _follow(self, epoch: Epoch | None, found: Found) -> None:
        assert epoch is not None
        if self._observer is not None:
            self._observer.close()
        self._epoch = epoch
        self._teller.follow(epoch)
        self._observer = self._rooms.observe(epoch, found)

    # -- while it runs

    def _watch(self) -> Move:
        assert self._observer is not None
        self._orders.wait(self._plan.look_s)
        if self._orders.is_told():
            self._teller.event(Event.TOLD_TO_END, why=f"signal {self._orders.told}")
            return Move(to=State.STOPPING, why="the supervisor was told to end")
        if not self._lock_is_ours():
            return Move(to=self._state, suspicion=self._suspicion)
        checkpoints = self._rooms.recent_checkpoints()
        picture = self._observer.look(checkpoints)
        self._teller.look(picture, checkpoints)
        look = facts_of(picture, self._observer, self._rooms)
        move = watch(self._state, self._suspicion, look)
        self._note(move, picture, look)
        return move

    def _note(self, move: Move, picture: Picture, look: Look) -> None:
        """Tells what a move means, and remembers ranks without which the run went on."""
        assert self._observer is not None
        self._teller.abort(look.abort)
        if move.to is State.SUSPECT and move.suspicion != self._suspicion:
            self._teller.suspicion(move, picture)
        if self._suspicion is not None and move.to in WATCHED - {State.SUSPECT}:
            self._observer.excused |= frozenset(self._suspicion.dead)
        if move.to is State.VERIFYING and self._state is State.WARMUP:
            self._compare_built()
        if move.to is State.HEALTHY and self._state is State.VERIFYING:
            self._mark_healthy(picture)
        if move.to in (State.DONE, State.ABORTED):
            self._record_outcome(None, done=move.to is State.DONE)

    def _compare_built(self) -> None:
        assert self._epoch is not None
        for line in self._rooms.built(self._epoch):
            self._teller.event(Event.BUILT, why=line)

    def _mark_healthy(self, picture: Picture) -> None:
        assert self._epoch is not None
        try:
            report = self._rooms.report(self._epoch, picture.verified, self._held.generation)
        except (OSError, DataError) as error:
            self._teller.event(Event.UNKNOWN, why=f"the report could not be written: {error}")
            return
        self._teller.verified(report)

    # -- how it ended

    def _diagnose(self) -> Move:
        picture = self._observer.look() if self._observer else None
        slurm = NO_STEP
        if self._observer is not None and picture is not None:
            if picture.run in (Run.ENDED, Run.LOST):
                slurm = self._rooms.slurm_word(self._observer.launch.paths)
            found = examined(self._observer, picture, self._why, slurm)
            # Ended with 0, and KILL was late to what it left: done as soon as that is reaped.
            sight = picture.launch
            self._ended_well = self._plan.end is None and sight.exit_zero and not sight.clean
        else:
            assert self._found is not None
            mortem = self._rooms.post_mortem(self._found, self._why)
            found, self._ended_well = mortem.diagnosis, mortem.ended_well
            slurm = mortem.slurm
            # Its supervisor has seen it die, and then died itself before it was stopped or closed.
            found = self._diagnosis or found
        self._diagnosis = found
        self._teller.diagnosis(found, self._rooms.changes(self._epoch), picture, slurm)
        return Move(to=State.STOPPING, why=f"{found.crash}: {self._why}")

    def _stop(self) -> Move:
        self._require_lock()
        ordered = self._orders.is_told()
        if self._observer is None:
            stopped = Stopped(result=StopResult.REAPED, seconds=0.0, why="nothing of it was left")
        else:
            stopped = self._rooms.stop(self._observer)
        self._teller.stopped(stopped)
        if stopped.result is StopResult.UNREAPED:
            return after_stop(stopped.result, unreaped_words(stopped), Leave(), ordered=ordered)
        self._require_lock()
        self._record_outcome(stopped)
        if self._orders.is_told():
            return after_stop(stopped.result, stopped.why, Leave(), ordered=True)
        history = self._history()
        if history.unrecorded is not None:
            raise _Blocked("how the attempt ended could not be written into the journal")
        leave = self._leave_facts(history)
        return after_stop(stopped.result, stopped.why, leave, ordered=False)

    def _record_outcome(self, stopped: Stopped | None, *, done: bool = False) -> None:
        assert self._epoch is not None
        diagnosis = self._diagnosis or Diagnosis()
        throughput = self._observer.throughput() if self._observer else None
        checkpoints = self._rooms.checkpoints()
        self._teller.event(
            Event.OUTCOME,
            durable=True,
            attempt=self._epoch.attempt,
            diagnosis=diagnosis,
            stopped=stopped,
            done=done or self._ended_well,
            checkpoint_step=checkpoints.step,
            checkpoint_known=checkpoints.known,
            throughput=measured(throughput),
            moment=this_moment(),
        )
        self._diagnosis = None

    def _leave_facts(self, history: History) -> Leave:
        """Who has a say about another launch, and what that would try."""
        end, end_why = self._rooms.end()
        if self._plan.end is None:
            done = (history.done or self._ended_well) and not history.resumed
            end, end_why = done, NO_END
        try:
            series = self._rooms.series(history)
        except (OSError, DataError) as error:
            raise _Blocked(f"what was launched before cannot be read: {error}") from error
        decision = next_launch(
            self._plan,
            history,
            series,
            self._rooms.checkpoints(),
            self._rooms.environ,
        )
        self._decision, self._advice = decision, decision.advice
        abort = self._rooms.abort()
        self._teller.decision(decision, history, due=end is False and abort is False)
        return Leave(
            end=end,
            end_why=end_why,
            abort=abort,
            allowed=decision.spend.allowed,
            allowed_why=decision.spend.why,
            refusal=decision.refusal,
        )

    def _back_off(self) -> Move:
        assert self._decision is not None
        until_s = self._clock() + self._decision.spend.pause_s
        while True:
            left_s = until_s - self._clock()
            self._orders.wait(max(0.0, min(left_s, self._plan.look_s)))
            ordered = self._orders.is_told()
            move = after_pause(self._rooms.abort(), ordered=ordered)
            if move.to is State.IDLE or move.to is State.ABORTED:
                return move
            self._teller.refresh()
            if self._lock_is_ours() and left_s <= 0 and move.to is State.LAUNCHING:
                return move

    # -- what is needed everywhere

    def _history(self) -> History:
        try:
            return self._rooms.history()
        except (OSError, DataError) as error:
            raise _Blocked(f"what was launched before cannot be read: {error}") from error

    def _lock_is_ours(self) -> bool:
        """Whether the lock is known to be ours; LockLostError when it is another's."""
        try:
            self._held.check()
        except LockUnknownError as error:
            self._teller.unknown(error.message)
            return False
        return True

    def _require_lock(self) -> None:
        """Waits until it is known that the lock is ours, but not for ever.

        Raises:
            LockLostError: It is another's.
        """
        until_s = self._clock() + _LOCK_PATIENCE_S
        while not self._lock_is_ours():
            if self._clock() >= until_s:
                raise _Blocked("who owns the run's lock cannot be told")
            self._orders.pause(self._plan.look_s)
