"""How a supervisor leaves: its exit code, and what a person does next.

Invariant: every terminal state has a code, and a state that needs a person names the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleetcraft.training.records import ABORTED_EXIT_CODE, State

EXIT_CODES = {
    State.DONE: 0,
    State.EXHAUSTED: 1,
    State.BLOCKED: 1,
    State.ABORTED: ABORTED_EXIT_CODE,
    State.LOCK_LOST: 75,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a supervisor left."""

    state: State
    exit_code: int
    why: str
    next_step: str = ""


def next_step(state: State, run: str, advice: str) -> str:
    """What a person does next; empty where nothing is to be done.

    Args:
        state: In which the supervisor left.
        run: The run's name.
        advice: The diagnosis' first sentence, if there is one.
    """
    if state is State.BLOCKED:
        return (
            "find out whether processes of the run live, and end them if so; then call supervise "
            f"again (fleetcraft train status {run} shows what is known)"
        )
    if state is State.EXHAUSTED:
        first = f"{advice.rstrip('.')}; then" if advice else "change what makes it fail, then"
        return f"{first} call supervise with --anew, which counts from the beginning"
    if state is State.ABORTED:
        return f"fleetcraft train abort {run} --clear, when the run may go on"
    return ""
