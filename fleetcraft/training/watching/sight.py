"""What the progress watch says after one look: the record that status and decisions are made from.

Only the record. Invariant: a figure that is not known is None; ``why`` holds the arithmetic of what
``standing`` says.
"""

from __future__ import annotations

import msgspec

from fleetcraft.training.records import QueueDepth, QueueStanding, RankState, Standing
from fleetcraft.training.watching.expectation import Expectation


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a run.

    Attributes:
        standing: What the watch says.
        why: Why, with its numbers, one sentence.
        step: The least completed step among ranks that count steps.
        expected: What a step should take, with steps due and come while none comes.
        alarm_s: Seconds without a step after which the run counts as standing still.
        quiet_s: Seconds since a step was last seen to complete; since the epoch began, if none was.
            Time in which nobody looked is left out.
        tokens_per_s: Recent throughput of all ranks; it falls while none comes.
        tokens_slope: By how much it changes in a minute.
        steps_per_s: The same in optimizer steps.
        step_s: What a recent step took, after warm-up.
        loss: As the lowest rank that has one told it last.
        metrics: The user's own, by name.
        queues: Depth and standing of each.
        queues_verdict: What they say as a whole.
        queues_why: Why.
        eta_s: Seconds to the declared last step, at least and at most.
        provisional: Whether rates and ETA are from before the plateau.
        plateau: Whether the throughput has become even since warm-up.
        throughput_ratio: Throughput of the last steps against the declared or best one. A witness:
            nothing is decided by it.
        alive_ratio: What that suggests, such as ``0.32: one of three drafters alive``.
        ranks: The census.
        dead: Ranks that are positively gone.
        look_closer: Ranks that the next census should look at closely.
    """

    standing: Standing
    why: str
    step: int | None = None
    expected: Expectation | None = None
    alarm_s: float | None = None
    quiet_s: float | None = None
    tokens_per_s: float | None = None
    tokens_slope: float | None = None
    steps_per_s: float | None = None
    step_s: float | None = None
    loss: float | None = None
    metrics: dict[str, float] = {}
    queues: tuple[QueueDepth, ...] = ()
    queues_verdict: QueueStanding | None = None
    queues_why: str = ""
    eta_s: tuple[float, float] | None = None
    provisional: bool = True
    plateau: bool = False
    throughput_ratio: float | None = None
    alive_ratio: str = ""
    ranks: tuple[RankState, ...] = ()
    dead: tuple[int, ...] = ()
    look_closer: tuple[int, ...] = ()
