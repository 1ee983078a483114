"""Whether the graces of a run fit into one another: the inner strictly shorter than the outer.

Numbers in, an error out. Invariant: whoever is stopped has the time that it gives to those below
it, and what stops it waits for longer than that.
"""

from __future__ import annotations

from fleetcraft.errors import ConfigError
from fleetcraft.process import KILL_WAIT_S
from fleetcraft.training.plan.records import RunPlan

_MOST_MARGIN_S = 5.0
_MARGIN_FRACTION = 0.1


def margin_s(grace_s: float) -> float:
    """What an outer grace must have beyond an inner one: a tenth of it, at most 5 s."""
    return min(_MOST_MARGIN_S, _MARGIN_FRACTION * grace_s)


def stop_bound_s(grace_s: float, kill_wait_s: float = KILL_WAIT_S, look_s: float = 1.0) -> float:
    """How long a keeper may take from the order to stop until it has told the end of its node."""
    return look_s + grace_s + kill_wait_s + 3.0


def check_graces(
    plan: RunPlan, *, kill_wait_s: float = KILL_WAIT_S, outer_s: float | None = None
) -> None:
    """Refuses graces that cut one another short. Called before anything is launched.

    Args:
        plan: ``grace_s`` is what the command gets between TERM and KILL, ``inner_grace_s`` what
            the command gives its own children (torchrun: 30 s).
        kill_wait_s: How long it is then waited for what was killed.
        outer_s: What the supervisor itself is given to leave, when that is known.

    Raises:
        ConfigError: The outer grace is not longer than the inner one, or what the supervisor is
            given is shorter than a whole stop.

    Source: TRAINING.md, Stopping: outer >= inner TERM + KILL window + margin.
    """
    least_s = plan.inner_grace_s + margin_s(plan.inner_grace_s)
    if plan.grace_s <= plan.inner_grace_s or plan.grace_s < least_s:
        raise ConfigError(
            f"run {plan.run!r}: grace_s is {plan.grace_s:g}, and the command gives its own "
            f"children {plan.inner_grace_s:g} s, so it would be killed while it waits for them; "
            "nothing was launched",
            hint=f"set grace_s to at least {least_s:g}, or inner_grace_s to what the command does",
            grace_s=plan.grace_s,
            inner_grace_s=plan.inner_grace_s,
        )
    bound_s = stop_bound_s(plan.grace_s, kill_wait_s, min(1.0, plan.look_s))
    if outer_s is not None and outer_s < bound_s:
        raise ConfigError(
            f"run {plan.run!r}: a stop takes up to {bound_s:g} s, and this supervisor is given "
            f"{outer_s:g} s to leave; nothing was launched",
            hint=f"give it at least {bound_s:g} s, or lower grace_s",
            bound_s=bound_s,
            outer_s=outer_s,
        )
