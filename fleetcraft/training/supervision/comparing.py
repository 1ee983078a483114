"""An epoch beside the one before it: what was measured then, and what is noted for the next.

Reads the notes of verified epochs and the outcomes of attempts. Invariant: without a measurement
there is no number, and what is compared with is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from fleetcraft.training.launching.epochs import Epochs
from fleetcraft.training.plan.verification import Comparison, Throughput, Verified
from fleetcraft.training.records import Epoch
from fleetcraft.training.supervision.history import History, Past

Facts = dict[str, str | int | float]


def compare_epochs(
    epoch: Epoch, verified: Verified, epochs: Epochs, history: Callable[[], History]
) -> Comparison:
    """What became better or worse in an epoch that was just verified.

    Args:
        epoch: That epoch.
        verified: What was seen of it.
        epochs: All of the run.
        history: Reads how earlier attempts ended.

    Raises:
        OSError: What was noted before cannot be read.
        DataError: It is torn.
    """
    past = history().past
    against, before, memory = _before(epochs, past)
    return Comparison(
        epoch=epoch.number,
        rung=epoch.rung,
        against=against,
        knobs=epoch.knobs,
        before=before,
        after=verified.throughput,
        memory_before_bytes=memory,
        memory_after_bytes=max(verified.memory_bytes.values(), default=None),
        memory_bytes=_capacity_bytes(past),
    )


def facts_to_note(verified: Verified) -> Facts:
    """What is noted of a verified epoch, for the comparison with the next."""
    facts: Facts = {"step": verified.step, "steps": verified.steps}
    if verified.throughput is not None:
        fields = msgspec.structs.asdict(verified.throughput)
        facts |= {f"throughput_{key}": value for key, value in fields.items()}
    if verified.memory_bytes:
        facts["memory_bytes"] = max(verified.memory_bytes.values())
    return facts


def _capacity_bytes(past: Sequence[Past]) -> int | None:
    """What a device of the run has, as a rank that ran out of it has told; None if none has."""
    told = (one.diagnosis.oom.capacity_bytes for one in reversed(past) if one.diagnosis.oom)
    return next((size for size in told if size is not None), None)


def _before(
    epochs: Epochs, attempts: Sequence[Past]
) -> tuple[int | None, Throughput | None, int | None]:
    """The last healthy epoch; without one, the last attempt in which anything was measured."""
    healthy = epochs.last_healthy()
    noted = epochs.healthy(healthy.number) if healthy else None
    if healthy is not None and noted is not None:
        memory = noted.facts.get("memory_bytes")
        return healthy.number, _noted(noted.facts), memory if isinstance(memory, int) else None
    for past in reversed(attempts):
        if (measured := _converted(past.throughput)) is not None:
            return past.attempt, measured, None
    return None, None, None


def _noted(facts: Mapping[str, str | int | float]) -> Throughput | None:
    prefix = "throughput_"
    return _converted(
        {key.removeprefix(prefix): text for key, text in facts.items() if key.startswith(prefix)}
    )


def _converted(found: Mapping[str, object]) -> Throughput | None:
    try:
        return msgspec.convert(found, Throughput) if found else None
    except msgspec.ValidationError:
        return None
