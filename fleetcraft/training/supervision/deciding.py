"""What the next launch of a run tries, and whether there may be one: ladder and budgets together.

Pure: history, diagnosis and checkpoints in, a decision out. Invariant: only a checkpoint that is
known and newer takes an earlier attempt off the count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fleetcraft.training.plan.budgets import Budgets, Restart, Spend
from fleetcraft.training.plan.ladder import Ladder, Refusal, environment_of, knobs_after
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import Crash, Diagnosis, Epoch, Knob, Rung, RungKind
from fleetcraft.training.supervision.history import History, Past


class Checkpoints(msgspec.Struct, frozen=True, kw_only=True):
    """The newest validated checkpoint, as far as it is known.

    Attributes:
        step: Its step; None when there is none.
        known: Whether that could be read.
        why: What could not.
    """

    step: int | None = None
    known: bool = True
    why: str = ""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What the next launch tries, or why there is none.

    Attributes:
        rung: What it tries; None when the ladder refuses.
        knobs: Every knob with its value of that launch.
        environment: Variables that it adds: knobs and the allocator's setting.
        refusal: The ladder's sentence.
        advice: What a person can do then.
        spend: What the budgets say.
    """

    rung: Rung | None
    knobs: tuple[Knob, ...] = ()
    environment: dict[str, str] = {}
    refusal: str = ""
    advice: str = ""
    spend: Spend = Spend(allowed=True, why="")


def first_launch(
    plan: RunPlan, history: History, epochs: Sequence[Epoch], environ: Mapping[str, str]
) -> Decision:
    """What a launch tries that follows no crash: the first, or one that goes on after an order.

    Args:
        plan: The run.
        history: Its attempts.
        epochs: All its epochs, for the settings that stay.
        environ: The environment to which variables are added.
    """
    anew = history.last is None or history.anew
    knobs = plan.ladder.knobs if anew else present_knobs(plan, history.last)
    rung = Rung(kind=RungKind.FIRST if anew else RungKind.UNCHANGED)
    return _decided(rung, knobs, environ, () if anew else epochs)


def next_launch(
    plan: RunPlan,
    history: History,
    epochs: Sequence[Epoch],
    checkpoints: Checkpoints,
    environ: Mapping[str, str],
) -> Decision:
    """What a launch tries that follows the last attempt of the history.

    An attempt that did not crash (it was stopped on order) costs nothing and changes nothing. A
    resume that was claimed is one launch, also of a run that was given up.
    """
    if not history.past or history.past[-1].crash is Crash.NONE:
        return first_launch(plan, history, epochs, environ)
    decision = _after_crash(plan, history, epochs, checkpoints, environ)
    given_up = decision.rung is None or decision.spend.allowed is False
    if history.resumed and given_up:
        return first_launch(plan, history, epochs, environ)
    return decision


def _after_crash(
    plan: RunPlan,
    history: History,
    epochs: Sequence[Epoch],
    checkpoints: Checkpoints,
    environ: Mapping[str, str],
) -> Decision:
    last = history.past[-1]
    spend = _spend(plan, history, last, checkpoints)
    knobs = present_knobs(plan, history.last)
    # The setting of earlier rungs is in the command's environment, so the ladder must see it there.
    present = {**environ, **environment_of(last.rung, knobs, environ, earlier=_rungs(epochs))}
    rung = Ladder(plan).next(
        _since_progress(history.past, checkpoints), last.diagnosis, knobs=knobs, environment=present
    )
    if isinstance(rung, Refusal):
        return Decision(rung=None, knobs=knobs, refusal=rung.why, advice=rung.advice, spend=spend)
    decided = _decided(rung, knobs_after(rung, knobs), environ, epochs)
    return msgspec.structs.replace(decided, spend=spend)


def present_knobs(plan: RunPlan, last: Epoch | None) -> tuple[Knob, ...]:
    """Every declared knob with its value of the last epoch, where that is lower than declared."""
    lowered = {knob.name: knob.value for knob in last.knobs} if last else {}
    return tuple(
        msgspec.structs.replace(knob, value=max(knob.floor, min(knob.value, value)))
        if (value := lowered.get(knob.name)) is not None
        else knob
        for knob in plan.ladder.knobs
    )


def _decided(
    rung: Rung, knobs: tuple[Knob, ...], environ: Mapping[str, str], epochs: Sequence[Epoch]
) -> Decision:
    environment = environment_of(rung, knobs, environ, earlier=_rungs(epochs))
    return Decision(rung=rung, knobs=knobs, environment=environment)


def _rungs(epochs: Sequence[Epoch]) -> list[Rung]:
    return [epoch.rung for epoch in epochs]


def _spend(plan: RunPlan, history: History, last: Past, checkpoints: Checkpoints) -> Spend:
    """Asks the budgets: every crash before the last one was followed by a restart."""
    restarts = [
        Restart(
            at_s=-past.age_s,
            crash=past.crash,
            checkpoint_step=past.checkpoint_step,
            checkpoint_known=past.checkpoint_known,
        )
        for past in history.past[:-1]
        if past.crash is not Crash.NONE
    ]
    return Budgets(plan.budgets).spend(
        restarts,
        0.0,
        last.crash,
        checkpoint_step=checkpoints.step,
        checkpoint_known=checkpoints.known,
    )


def _since_progress(past: Sequence[Past], checkpoints: Checkpoints) -> list[tuple[Rung, Diagnosis]]:
    """Attempts since the newest validated checkpoint; the last one always counts."""
    *earlier, last = past
    kept = [one for one in earlier if not _left_behind(one, checkpoints)]
    return [(one.rung, one.diagnosis) for one in (*kept, last)]


def _left_behind(past: Past, checkpoints: Checkpoints) -> bool:
    if not checkpoints.known or checkpoints.step is None or not past.checkpoint_known:
        return False
    return past.checkpoint_step is None or checkpoints.step > past.checkpoint_step
