"""The supervisor's states: which follow which, and which one facts lead to. Pure.

What is done in a state is the supervisor's; reading facts is its rooms'. Invariant: a fact that is
not known (None, UNKNOWN) never leads to a launch, a stop, or a claim that the run is done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from fleetcraft.training.records import Standing, State, StopResult

_WATCHED = frozenset({State.WARMUP, State.VERIFYING, State.HEALTHY})
WATCHED = _WATCHED | {State.SUSPECT}
"""States in which a run is alive and looked at."""
_LEAVES = frozenset({State.DONE, State.ABORTED, State.BLOCKED, State.STOPPING})
_DECIDED = frozenset({State.EXHAUSTED, State.ABORTED, State.BLOCKED, State.DONE})
_FOLLOWING: dict[State, frozenset[State]] = {
    State.IDLE: frozenset({State.LOCKED}),
    State.LOCKED: _DECIDED | {State.LAUNCHING, State.ADOPTING, State.DIAGNOSING, State.IDLE},
    State.LAUNCHING: frozenset({State.WARMUP, State.BLOCKED}),
    State.ADOPTING: frozenset({State.WARMUP, State.BLOCKED}),
    State.WARMUP: _LEAVES | {State.VERIFYING, State.SUSPECT},
    State.VERIFYING: _LEAVES | {State.HEALTHY, State.SUSPECT},
    State.HEALTHY: _LEAVES | {State.SUSPECT},
    State.SUSPECT: _LEAVES | _WATCHED | {State.DIAGNOSING},
    State.DIAGNOSING: frozenset({State.STOPPING}),
    State.STOPPING: _DECIDED | {State.BACKOFF, State.IDLE},
    State.BACKOFF: _DECIDED | {State.LAUNCHING, State.IDLE},
}


def following(state: State) -> frozenset[State]:
    """The states that may follow one; none follow a terminal one."""
    after = _FOLLOWING.get(state, frozenset())
    return after | {State.LOCK_LOST} if after else after


class Run(StrEnum):
    """What a look at the keepers says of the whole launch.

    LOST: a keeper is positively gone and left no record of an end.
    """

    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    UNKNOWN = "unknown"


class Live(StrEnum):
    """What is there of an earlier epoch.

    STUCK: its processes are identified and live, and nothing of it moved for as long as an alarm
    takes, or nobody keeps them any more. NONE: nothing was ever launched.
    """

    LIVE = "live"
    STUCK = "stuck"
    DEAD = "dead"
    UNKNOWN = "unknown"
    NONE = "none"


class Trouble(StrEnum):
    """Why a run is suspected."""

    EXIT = "exit"
    DEAD_RANK = "dead rank"
    STALL = "stall"
    EVIDENCE = "crash evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What a run is suspected of, and since when.

    Attributes:
        origin: The state to which it returns when it clears itself.
        trouble: The reason.
        step: The last completed step when it arose; progress past it clears.
        since_s: The observer's clock.
        dead: Ranks that were gone then.
    """

    origin: State
    trouble: Trouble
    step: int | None
    since_s: float
    dead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a watched run has found.

    Attributes:
        now_s: The observer's clock.
        run: What the keepers say.
        clean: Whether nothing of the launch is left, for a run that has ended.
        exit_zero: Every node's command ended with 0.
        end: Whether the declared end is reached; True where none is declared. Read only once the
            run has ended.
        end_why: The sentence that goes with it.
        abort: Whether the ABORT marker stands.
        standing: What the progress watch says.
        why: Its sentence.
        step: The last completed step.
        dead: Ranks that are positively gone.
        excused: Ranks that were gone already when the run was seen to advance without them.
        in_phase: A living rank is in a declared phase and within its budget.
        episode: The crash episode that is open, in a few words; empty for none.
        warm: Warm-up is over.
        verified: The epoch has done all that verification asks.
        settle_s: How long a dead rank is given to end the run by itself, which leaves better
            evidence than a stop does.
    """

    now_s: float
    run: Run = Run.RUNNING
    clean: bool = True
    exit_zero: bool = False
    end: bool | None = None
    end_why: str = ""
    abort: bool | None = False
    standing: Standing = Standing.PROGRESSING
    why: str = ""
    step: int | None = None
    dead: tuple[int, ...] = ()
    excused: frozenset[int] = frozenset()
    in_phase: bool = False
    episode: str = ""
    warm: bool = False
    verified: bool = False
    settle_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The next state and why; the same state when nothing changes."""

    to: State
    why: str = ""
    suspicion: Suspicion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Whether another launch may follow, as far as each one who has a say answers.

    Attributes:
        end: Whether the declared end is reached; False where none is declared.
        end_why: The sentence that goes with it.
        abort: Whether the ABORT marker stands.
        allowed: Whether the budgets allow another launch.
        allowed_why: Their sentence.
        refusal: Why the ladder has no rung; empty when it has one.
    """

    end: bool | None = False
    end_why: str = ""
    abort: bool | None = False
    allowed: bool | None = True
    allowed_why: str = ""
    refusal: str = ""


# ----------------------------------------------------------------------------- before a launch


def after_lock(live: Live, leave: Leave, *, unrecorded: bool, why: str) -> Move:
    """Where a supervisor begins that has the lock.

    Args:
        live: What is there of the last epoch.
        leave: Who has a say about another launch.
        unrecorded: The last epoch has ended and nobody has written down how.
        why: The sentence that goes with `live`.
    """
    if live is Live.UNKNOWN:
        return Move(to=State.BLOCKED, why=why)
    if live is Live.LIVE:
        return Move(to=State.ADOPTING, why=why)
    if unrecorded or live is Live.STUCK:
        return Move(to=State.DIAGNOSING, why=why or "the last epoch ended unseen")
    return _launch_or_leave(leave, State.LAUNCHING, "a fresh run" if live is Live.NONE else why)


def after_stop(result: StopResult, stop_why: str, leave: Leave, *, ordered: bool) -> Move:
    """Where a stop leads.

    Args:
        result: Whether anything of the launch is left.
        stop_why: The sentence that goes with it.
        leave: Who has a say about another launch.
        ordered: The supervisor itself was told to end.
    """
    if result is StopResult.UNREAPED:
        return Move(to=State.BLOCKED, why=stop_why or "processes are left that KILL does not end")
    if ordered:
        return Move(to=State.IDLE, why="stopped, since the supervisor was told to end")
    return _launch_or_leave(leave, State.BACKOFF, "")


def after_pause(abort: bool | None, *, ordered: bool) -> Move:
    """Where a pause before a launch leads; BACKOFF while it is not known whether ABORT stands."""
    if ordered:
        return Move(to=State.IDLE, why="the supervisor was told to end")
    if abort is None:
        return Move(to=State.BACKOFF, why="whether ABORT stands cannot be read")
    if abort:
        return Move(to=State.ABORTED, why="ABORT stands")
    return Move(to=State.LAUNCHING, why="the pause is over")


def _launch_or_leave(leave: Leave, onward: State, why: str) -> Move:
    if leave.end is None:
        return Move(to=State.BLOCKED, why=leave.end_why or "whether the run is done is not known")
    if leave.end:
        return Move(to=State.DONE, why=leave.end_why)
    if leave.abort is None:
        return Move(to=State.BLOCKED, why="whether ABORT stands cannot be read")
    if leave.abort:
        return Move(to=State.ABORTED, why="ABORT stands")
    if leave.allowed is None:
        return Move(to=State.BLOCKED, why=leave.allowed_why)
    if not leave.allowed:
        return Move(to=State.EXHAUSTED, why=leave.allowed_why)
    if leave.refusal:
        return Move(to=State.EXHAUSTED, why=leave.refusal)
    return Move(to=onward, why=why or leave.allowed_why)


# ------------------------------------------------------------------------------- while it runs


def watch(state: State, suspicion: Suspicion | None, look: Look) -> Move:
    """Where one look at a run leads.

    Args:
        state: WARMUP, VERIFYING, HEALTHY or SUSPECT.
        suspicion: For SUSPECT, of what.
        look: What was found.
    """
    if look.run is Run.ENDED:
        return _ended(state, suspicion, look)
    if look.run is Run.LOST:
        return _suspect_or_diagnose(state, suspicion, look, "its keeper is gone, without a record")
    if suspicion is not None:
        return _suspected(suspicion, look)
    trouble = _trouble(look)
    if trouble is not None:
        return _suspect(state, trouble, look, _words(trouble, look))
    if state is State.WARMUP and look.warm:
        return Move(to=State.VERIFYING, why="warm-up is over")
    if state is State.VERIFYING and look.verified:
        return Move(to=State.HEALTHY, why="verified")
    return Move(to=state)


def _ended(state: State, suspicion: Suspicion | None, look: Look) -> Move:
    if look.abort is None:
        why = "it ended, and whether ABORT stands cannot be read"
        return _suspect(state, Trouble.EXIT, look, why, suspicion)
    if look.clean and look.exit_zero and look.end:
        return Move(to=State.DONE, why=look.end_why)
    if look.clean and look.exit_zero and look.end is None:
        return Move(to=State.BLOCKED, why=look.end_why)
    if look.clean and look.abort:
        return Move(to=State.ABORTED, why="it left while ABORT stood")
    how = f"it ended with 0, but {look.end_why}" if look.exit_zero else "it ended"
    return _suspect_or_diagnose(state, suspicion, look, how)


def _suspect_or_diagnose(state: State, suspicion: Suspicion | None, look: Look, why: str) -> Move:
    # Two looks, so that a journal always has the suspicion before the diagnosis.
    if suspicion is not None and suspicion.trouble is Trouble.EXIT:
        return Move(to=State.DIAGNOSING, why=why)
    return _suspect(state, Trouble.EXIT, look, why, suspicion)


def _suspected(suspicion: Suspicion, look: Look) -> Move:
    stay = Move(to=State.SUSPECT, suspicion=suspicion)
    if look.run is Run.UNKNOWN or look.standing is Standing.UNKNOWN:
        return stay
    if _advanced(suspicion, look):
        return Move(to=suspicion.origin, why=f"step {look.step} was completed since")
    trouble = _trouble(look)
    if trouble is None:
        return Move(to=suspicion.origin, why=f"no {suspicion.trouble} any more")
    if trouble is not suspicion.trouble:
        worse = replace(suspicion, trouble=trouble, since_s=look.now_s, dead=look.dead)
        return Move(to=State.SUSPECT, why=_words(trouble, look), suspicion=worse)
    if trouble is Trouble.EVIDENCE or look.in_phase:
        return stay  # words alone act on nothing, and a phase has a budget of its own
    waited_s = look.now_s - suspicion.since_s
    if trouble is Trouble.DEAD_RANK and waited_s < look.settle_s:
        return stay
    return Move(to=State.DIAGNOSING, why=_words(trouble, look))


def _advanced(suspicion: Suspicion, look: Look) -> bool:
    if look.step is None:
        return False
    return suspicion.step is None or look.step > suspicion.step


def _suspect(
    state: State, trouble: Trouble, look: Look, why: str, before: Suspicion | None = None
) -> Move:
    if before is not None and before.trouble is trouble:
        return Move(to=State.SUSPECT, suspicion=before)
    found = Suspicion(
        origin=before.origin if before else state,
        trouble=trouble,
        step=before.step if before else look.step,
        since_s=look.now_s,
        dead=look.dead,
    )
    return Move(to=State.SUSPECT, why=why, suspicion=found)


def _trouble(look: Look) -> Trouble | None:
    if look.run is Run.UNKNOWN:
        return None
    if look.standing in (Standing.STALLED, Standing.STALLED_IO):
        return Trouble.STALL
    if set(look.dead) - look.excused:
        return Trouble.DEAD_RANK
    return Trouble.EVIDENCE if look.episode else None


def _words(trouble: Trouble, look: Look) -> str:
    if trouble is Trouble.EVIDENCE:
        return look.episode
    return look.why or str(trouble)
