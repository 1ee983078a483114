"""Which one change the next attempt tries, from how the last ones ended. Pure: records in and out.

Deciding whether there may be another attempt at all is `budgets`'. Invariant: a rung changes one
thing against the attempt before, unless the run declared the combined step, and that is marked as
confounded; a protected setting is never changed.

The order after a device's out-of-memory error follows its numbers. Source: TRAINING.md and its
second seed, where 4.74 GiB were requested, 4.57 were free and at most 0.11 were cached: 0.17 GiB
were missing, which no allocator setting finds, so a knob is the cure that can be attributed.

* Fragmentation (what is cached and unallocated would have sufficed): ``expandable_segments``
  first, then the knobs.
* Capacity (it would not): the knobs in their order, each to its floor; the setting last.
* Numbers that do not tell: as fragmentation, since the setting changes nothing that is trained.
* Another process held the memory: once unchanged, since it may be gone; then as capacity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fleetcraft.batch_table.records import ALLOC_VARIABLES, allocator_settings
from fleetcraft.errors import ConfigError
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.plan.run_file import protected_name
from fleetcraft.training.records import (
    NOT_RETRIED_UNCHANGED,
    TRANSIENT,
    Crash,
    DeviceOomFacts,
    Diagnosis,
    Knob,
    Rung,
    RungKind,
)

_SETTING = "expandable_segments"
_SETTING_RUNGS = frozenset({RungKind.EXPANDABLE_SEGMENTS, RungKind.COMBINED})
_KNOB_RUNGS = frozenset({RungKind.KNOB, RungKind.COMBINED})
_OOM = frozenset({Crash.CUDA_OOM, Crash.HOST_OOM})
_WHY_NOT = {
    Crash.CODE_ERROR: "the code failed, and unchanged it fails again",
    Crash.CHECKPOINT_INVALID: "a checkpoint cannot be trusted, and unchanged it is read again",
    Crash.NON_FINITE: "the numbers are no longer finite, which a restart does not cure",
    Crash.DISK_FULL: "there is no room to write, which a restart does not cure",
    Crash.PERMISSION: "something may not be read or written, which a restart does not cure",
    Crash.TIME_LIMIT: "its time was over; it continues in another allocation",
    Crash.CANCELLED: "somebody cancelled it",
}


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """There is no rung left: why, as one sentence, and what a person can do."""

    why: str
    advice: str = ""


class Ladder:
    """The rungs of one run.

    Args:
        plan: What the run declares.

    Raises:
        ConfigError: A declared knob is a protected setting.
    """

    def __init__(self, plan: RunPlan) -> None:
        for knob in plan.ladder.knobs:
            if name := protected_name(knob, plan.protected):
                raise ConfigError(
                    f"knob {knob.name!r} is the protected setting {name!r}, which no rung may touch"
                )
        self._plan = plan.ladder
        self._declared = {knob.name: knob for knob in plan.ladder.knobs}

    def next(
        self,
        history: Sequence[tuple[Rung, Diagnosis]],
        diagnosis: Diagnosis,
        *,
        knobs: Sequence[Knob],
        environment: Mapping[str, str],
    ) -> Rung | Refusal:
        """What the next attempt tries.

        Args:
            history: What was tried and how it ended, oldest first, of the attempts since the last
                newer validated checkpoint; the one that has just ended is the last of them.
            diagnosis: How that one ended.
            knobs: Every knob with its value of that attempt.
            environment: The whole environment of that attempt, or what matters of it.

        Returns:
            One rung, or why there is none.
        """
        crash = diagnosis.crash
        if crash in _OOM:
            return self._after_oom(history, diagnosis, knobs, environment)
        if crash in NOT_RETRIED_UNCHANGED or crash in _WHY_NOT:
            return _refusal(diagnosis, _WHY_NOT.get(crash, "unchanged it ends the same way"))
        assert crash in TRANSIENT or crash is Crash.NONE
        # Preemption is nothing that the run did, so only its budget bounds it.
        if crash is not Crash.PREEMPTED and _repeated(history, diagnosis):
            return _refusal(diagnosis, "it was tried again unchanged and ended the same way")
        return Rung(kind=RungKind.UNCHANGED)

    def _after_oom(
        self,
        history: Sequence[tuple[Rung, Diagnosis]],
        diagnosis: Diagnosis,
        knobs: Sequence[Knob],
        environment: Mapping[str, str],
    ) -> Rung | Refusal:
        oom = diagnosis.oom
        if oom is not None and oom.cause == "neighbour" and not _repeated(history, diagnosis):
            return Rung(kind=RungKind.UNCHANGED)
        on_device = diagnosis.crash is Crash.CUDA_OOM
        why_not = self.setting_refused(environment) if on_device else "it is the host's memory"
        setting = None if why_not else Rung(kind=RungKind.EXPANDABLE_SEGMENTS)
        knob = self._lower_knob(knobs)
        if setting and knob and self._plan.combined:
            return msgspec.structs.replace(knob, kind=RungKind.COMBINED, confounded=True)
        in_order = (knob, setting) if is_capacity(oom) else (setting, knob)
        for rung in in_order:
            if rung is not None:
                return rung
        at_floor = "every declared knob is at its floor" if knobs else "no knob is declared"
        return _refusal(diagnosis, f"{at_floor}, and {_SETTING} is no choice: {why_not}")

    def setting_refused(self, environment: Mapping[str, str]) -> str:
        """Why ``expandable_segments`` is not tried; empty when it may be.

        Source: pytorch #130330, #186213 (CUDA IPC) and uccl #839 (RDMA registration) fail with it.
        """
        if not self._plan.expandable_segments:
            return "the run file excludes it"
        if self._plan.shares_device_memory:
            return "the run shares device memory (CUDA IPC or RDMA), which it breaks"
        if expandable_segments_effective(environment):
            return "it is already in effect"
        return ""

    def _lower_knob(self, knobs: Sequence[Knob]) -> Rung | None:
        for knob in knobs:
            declared = self._declared.get(knob.name)
            after = None if declared is None else lower(knob, self._plan.factor)
            if after is not None:
                return Rung(kind=RungKind.KNOB, knob=knob.name, before=knob.value, after=after)
        return None


def lower(knob: Knob, factor: float) -> int | None:
    """The next lower value of a knob, on its grid and not below its floor; None at the floor."""
    floor = math.ceil(knob.floor / knob.quantum) * knob.quantum
    # The smallest excess keeps 10 x 0.9 from becoming 8 where the product is 9 and a bit less.
    wanted = math.floor(knob.value * factor + 1e-9) // knob.quantum * knob.quantum
    value = max(wanted, floor)
    return value if value < knob.value else None


def is_capacity(oom: DeviceOomFacts | None) -> bool:
    """Whether the numbers show that no way of arranging them would have found the bytes.

    What is cached and unallocated counts as given or, where the text does not say, as the most
    that it can be: what is neither free nor allocated. Numbers that do not tell are no capacity.
    """
    if oom is None or oom.cause == "fragmentation":
        return False
    if oom.cause == "neighbour":
        return True
    cached = oom.reserved_unallocated_bytes
    if cached is None and oom.capacity_bytes is not None and oom.allocated_bytes is not None:
        cached = max(0, oom.capacity_bytes - (oom.free_bytes or 0) - oom.allocated_bytes)
    if cached is None or oom.request_bytes is None or oom.free_bytes is None:
        return False
    return cached < oom.request_bytes - oom.free_bytes


def expandable_segments_effective(environment: Mapping[str, str]) -> bool:
    """Whether torch's allocator is told to use them, by the variable that wins."""
    return _settings(allocator_settings(environment)).get(_SETTING, "").lower() == "true"


def environment_of(
    rung: Rung,
    knobs: Sequence[Knob],
    environ: Mapping[str, str],
    *,
    earlier: Iterable[Rung] = (),
) -> dict[str, str]:
    """The variables that a launch adds to its environment: knobs, and the allocator's setting.

    Args:
        rung: What the launch tries.
        knobs: Every knob with its value of this launch; see `knobs_after`.
        environ: The environment to which they are added; what it says of the allocator stays.
        earlier: The rungs of all earlier attempts of the run: a setting stays once it was tried,
            so that the next rung changes only one thing.

    Returns:
        Variable to value; both of `ALLOC_VARIABLES`, since older builds know only the older name.
    """
    found = {knob.variable: str(knob.value) for knob in knobs if knob.variable}
    if any(one.kind in _SETTING_RUNGS for one in (*earlier, rung)):
        told = allocator_settings(environ)
        for name in ALLOC_VARIABLES:
            settings = {**_settings(environ.get(name, told)), _SETTING: "True"}
            found[name] = ",".join(f"{key}:{value}" for key, value in settings.items())
    return found


def knobs_after(rung: Rung, knobs: Sequence[Knob]) -> tuple[Knob, ...]:
    """Every knob with its value after a rung."""
    return tuple(
        msgspec.structs.replace(knob, value=rung.after)
        if rung.kind in _KNOB_RUNGS and knob.name == rung.knob and rung.after is not None
        else knob
        for knob in knobs
    )


def _repeated(history: Sequence[tuple[Rung, Diagnosis]], diagnosis: Diagnosis) -> bool:
    """Whether the attempt that ended so was itself an unchanged one after the same end.

    An attempt that completed steps beyond those of the one before is no repetition: what ended it
    happened to a run that worked.
    """
    if len(history) < 2 or history[-1][0].kind is not RungKind.UNCHANGED:
        return False
    before = history[-2][1]
    if before.crash is not diagnosis.crash:
        return False
    if before.step is None or diagnosis.step is None:
        return True
    return diagnosis.step <= before.step


def _refusal(diagnosis: Diagnosis, why: str) -> Refusal:
    advice = diagnosis.advice[0] if diagnosis.advice else ""
    return Refusal(why=f"{diagnosis.crash.value}: {why}", advice=advice)


def _settings(text: str) -> dict[str, str]:
    """``key:value,key:value``; a value may be a list in brackets, which holds both marks."""
    found: dict[str, str] = {}
    depth = 0
    part = ""
    for char in f"{text},":
        depth += (char == "[") - (char == "]")
        if char != "," or depth > 0:
            part += char
            continue
        key, _, value = part.partition(":")
        if key.strip():
            found[key.strip()] = value.strip()
        part = ""
    return found
