"""The ladder: one change an attempt, in the order that the numbers of the error give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.diagnosis.device_oom import judge_device_oom, parse_device_oom
from fleetcraft.errors import ConfigError
from fleetcraft.training.plan.ladder import (
    Ladder,
    Refusal,
    environment_of,
    expandable_segments_effective,
    is_capacity,
    knobs_after,
    lower,
)
from fleetcraft.training.plan.records import LadderPlan, RunPlan
from fleetcraft.training.records import (
    TRANSIENT,
    Crash,
    DeviceOomFacts,
    Diagnosis,
    Knob,
    Rung,
    RungKind,
)

GIB = 1 << 30
ANCHORS = Knob(name="max_anchors", value=1024, floor=512, quantum=64, variable="MAX_ANCHORS")
CHUNK = Knob(name="chunk", value=8, floor=4, variable="CHUNK")
SETTING = Rung(kind=RungKind.EXPANDABLE_SEGMENTS)
UNCHANGED = Rung(kind=RungKind.UNCHANGED)
FIRST = Rung(kind=RungKind.FIRST)
ON = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def ladder(*knobs: Knob, **settings: object) -> Ladder:
    return Ladder(RunPlan(run="a", command=("x",), ladder=LadderPlan(knobs=knobs, **settings)))


def oom(cause: str, *, cached: float | None = None, free: float = 4.57) -> Diagnosis:
    facts = DeviceOomFacts(
        cause=cause,
        request_bytes=round(4.74 * GIB),
        free_bytes=round(free * GIB),
        reserved_unallocated_bytes=None if cached is None else round(cached * GIB),
    )
    return Diagnosis(crash=Crash.CUDA_OOM, episode_open=True, oom=facts)


CAPACITY = oom("capacity", cached=0.1)
FRAGMENTATION = oom("fragmentation", cached=0.9)


def after(
    tried: Ladder,
    diagnosis: Diagnosis,
    *knobs: Knob,
    history: Sequence[tuple[Rung, Diagnosis]] = (),
    environment: Mapping[str, str] = {},
) -> Rung | Refusal:
    return tried.next(history, diagnosis, knobs=knobs, environment=environment)


def lowered(knob: Knob, value: int) -> Rung:
    return Rung(kind=RungKind.KNOB, knob=knob.name, before=knob.value, after=value)


def climb(tried: Ladder, diagnosis: Diagnosis, *knobs: Knob) -> list[Rung | Refusal]:
    """Every rung until there is none, each attempt dying in the same way."""
    found: list[Rung | Refusal] = []
    history = [(FIRST, diagnosis)]
    environment: dict[str, str] = {}
    while not found or isinstance(found[-1], Rung):
        rung = tried.next(history, diagnosis, knobs=knobs, environment=environment)
        found.append(rung)
        if isinstance(rung, Rung):
            history.append((rung, diagnosis))
            knobs = knobs_after(rung, knobs)
            environment |= environment_of(rung, knobs, environment)
    return found


def test_the_second_seed_is_capacity_and_lowers_the_knob_first() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 4.74 GiB. GPU 5 has a total capacity of 94.97 GiB "
        "of which 4.57 GiB is free. Of the allocated memory 90.29 GiB is allocated by PyTorch."
    )
    found = parse_device_oom(text)
    assert found is not None
    facts = DeviceOomFacts(
        cause=judge_device_oom(found),
        request_bytes=found.request_bytes,
        free_bytes=found.free_bytes,
        capacity_bytes=found.capacity_bytes,
        allocated_bytes=found.allocated_bytes,
        reserved_unallocated_bytes=found.reserved_unallocated_bytes,
    )

    rung = after(ladder(ANCHORS), Diagnosis(crash=Crash.CUDA_OOM, oom=facts), ANCHORS)

    assert rung == lowered(ANCHORS, 768)


def test_fragmentation_tries_the_setting_and_then_each_knob_to_its_floor() -> None:
    rungs = climb(ladder(ANCHORS, CHUNK), FRAGMENTATION, ANCHORS, CHUNK)

    assert [(r.kind, r.knob, r.after) for r in rungs if isinstance(r, Rung)] == [
        (RungKind.EXPANDABLE_SEGMENTS, "", None),
        (RungKind.KNOB, "max_anchors", 768),
        (RungKind.KNOB, "max_anchors", 576),
        (RungKind.KNOB, "max_anchors", 512),
        (RungKind.KNOB, "chunk", 6),
        (RungKind.KNOB, "chunk", 4),
    ]
    assert isinstance(rungs[-1], Refusal)
    assert "every declared knob is at its floor" in rungs[-1].why


def test_capacity_lowers_every_knob_before_the_setting() -> None:
    rungs = climb(ladder(CHUNK), CAPACITY, CHUNK)

    kinds = [rung.kind for rung in rungs if isinstance(rung, Rung)]
    assert kinds == [RungKind.KNOB, RungKind.KNOB, RungKind.EXPANDABLE_SEGMENTS]


def test_numbers_that_do_not_tell_try_the_setting_first_since_it_changes_no_result() -> None:
    assert after(ladder(ANCHORS), Diagnosis(crash=Crash.CUDA_OOM), ANCHORS) == SETTING
    assert after(ladder(ANCHORS), oom("capacity"), ANCHORS) == SETTING


def test_memory_of_another_process_is_waited_for_once_and_then_is_capacity() -> None:
    neighbour = oom("neighbour", cached=0.0)
    tried = ladder(ANCHORS)

    assert after(tried, neighbour, ANCHORS, history=[(FIRST, neighbour)]) == UNCHANGED
    history = [(FIRST, neighbour), (UNCHANGED, neighbour)]
    assert after(tried, neighbour, ANCHORS, history=history) == lowered(ANCHORS, 768)


@pytest.mark.parametrize(
    "environment",
    [
        ON,
        {"PYTORCH_ALLOC_CONF": "max_split_size_mb:128, expandable_segments:true"},
        {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[256:1,>:4],expandable_segments:True"},
    ],
)
def test_a_setting_that_is_in_effect_by_either_name_is_not_tried_again(
    environment: dict[str, str],
) -> None:
    assert expandable_segments_effective(environment)
    assert after(ladder(ANCHORS), FRAGMENTATION, ANCHORS, environment=environment) == lowered(
        ANCHORS, 768
    )


def test_the_newer_name_wins_where_both_are_set() -> None:
    off = {"PYTORCH_ALLOC_CONF": "expandable_segments:False", **ON}

    assert not expandable_segments_effective(off)
    assert after(ladder(), FRAGMENTATION, environment=off) == SETTING


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"shares_device_memory": True}, "shares device memory"),
        ({"expandable_segments": False}, "the run file excludes it"),
    ],
)
def test_a_declared_conflict_rules_the_setting_out(settings: dict[str, bool], why: str) -> None:
    refusal = after(ladder(**settings), FRAGMENTATION)

    assert isinstance(refusal, Refusal)
    assert "no knob is declared" in refusal.why
    assert why in refusal.why


def test_two_changes_at_once_only_when_declared_and_then_confounded() -> None:
    rung = after(ladder(ANCHORS, combined=True), CAPACITY, ANCHORS)

    assert rung == Rung(
        kind=RungKind.COMBINED, knob="max_anchors", before=1024, after=768, confounded=True
    )
    again = after(ladder(ANCHORS, combined=True), CAPACITY, ANCHORS, environment=ON)
    assert isinstance(again, Rung)
    assert not again.confounded


def test_the_host_s_memory_is_no_business_of_the_device_s_allocator() -> None:
    died = Diagnosis(crash=Crash.HOST_OOM)

    assert after(ladder(CHUNK), died, CHUNK) == lowered(CHUNK, 6)
    assert isinstance(after(ladder(), died), Refusal)


@pytest.mark.parametrize("crash", sorted(TRANSIENT - {Crash.PREEMPTED}))
def test_a_transient_end_is_tried_again_unchanged_once(crash: Crash) -> None:
    died = Diagnosis(crash=crash, step=690)
    tried = ladder(ANCHORS)

    assert after(tried, died, ANCHORS, history=[(FIRST, died)]) == UNCHANGED
    refusal = after(tried, died, ANCHORS, history=[(FIRST, died), (UNCHANGED, died)])
    assert isinstance(refusal, Refusal)
    assert "tried again unchanged" in refusal.why


def test_a_run_that_advanced_since_may_be_tried_again_unchanged() -> None:
    before = Diagnosis(crash=Crash.DIST_NETWORK, step=690)
    now = Diagnosis(crash=Crash.DIST_NETWORK, step=812)

    assert after(ladder(), now, history=[(FIRST, before), (UNCHANGED, now)]) == UNCHANGED


def test_preemption_is_bounded_by_its_budget_alone() -> None:
    died = Diagnosis(crash=Crash.PREEMPTED)

    assert after(ladder(), died, history=[(FIRST, died), *[(UNCHANGED, died)] * 5]) == UNCHANGED


@pytest.mark.parametrize("crash", sorted(set(Crash) - TRANSIENT - {Crash.NONE}))
def test_other_ends_are_never_tried_again_unchanged(crash: Crash) -> None:
    found = after(ladder(ANCHORS), Diagnosis(crash=crash, advice=("Fix it.",)), ANCHORS)

    if crash in (Crash.CUDA_OOM, Crash.HOST_OOM):
        assert isinstance(found, Rung)
        assert found.kind is not RungKind.UNCHANGED
    else:
        assert isinstance(found, Refusal)
        assert found.why.startswith(crash.value)
        assert found.advice == "Fix it."


def test_a_protected_knob_is_refused_also_without_a_run_file() -> None:
    with pytest.raises(ConfigError, match="protected setting 'token_budget'"):
        ladder(Knob(name="Token-Budget", value=8, floor=1))


def test_a_knob_of_an_epoch_that_is_not_declared_any_more_is_left_alone() -> None:
    assert isinstance(after(ladder(), oom("capacity", cached=0), CHUNK, environment=ON), Refusal)


@given(st.integers(1, 4096), st.integers(0, 4096), st.integers(1, 64), st.floats(0.01, 0.99))
def test_lowering_a_knob_ends_at_its_floor_and_stays_on_its_grid(
    value: int, floor: int, quantum: int, factor: float
) -> None:
    knob = Knob(name="k", value=value * quantum, floor=floor, quantum=quantum)
    steps = 0
    while (below := lower(knob, factor)) is not None:
        assert floor <= below < knob.value
        assert below % quantum == 0
        knob = msgspec.structs.replace(knob, value=below)
        steps += 1
        assert steps <= value
    assert knob.value < floor + quantum or knob.value == value * quantum


def test_a_product_that_is_whole_but_for_rounding_is_not_lowered_further() -> None:
    assert lower(Knob(name="k", value=10, floor=1), 0.7) == 7
    assert lower(Knob(name="k", value=100, floor=1), 0.29) == 29


def test_cached_memory_that_is_not_told_counts_as_the_most_that_it_can_be() -> None:
    facts = DeviceOomFacts(
        cause="capacity", request_bytes=10, free_bytes=4, capacity_bytes=100, allocated_bytes=92
    )

    assert is_capacity(facts)
    assert not is_capacity(msgspec.structs.replace(facts, allocated_bytes=90))
    assert not is_capacity(msgspec.structs.replace(facts, free_bytes=None))


def test_the_environment_of_a_rung_has_the_knobs_and_keeps_other_allocator_settings() -> None:
    environ = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:False"}

    assert environment_of(FIRST, [ANCHORS], environ) == {"MAX_ANCHORS": "1024"}
    merged = "max_split_size_mb:128,expandable_segments:True"
    assert environment_of(SETTING, [ANCHORS], environ) == {
        "MAX_ANCHORS": "1024",
        "PYTORCH_ALLOC_CONF": merged,
        "PYTORCH_CUDA_ALLOC_CONF": merged,
    }


def test_a_setting_stays_in_the_attempts_after_the_one_that_tried_it() -> None:
    rung = lowered(ANCHORS, 768)
    knobs = knobs_after(rung, [ANCHORS, CHUNK])

    found = environment_of(rung, knobs, {}, earlier=[FIRST, SETTING])

    assert found["MAX_ANCHORS"] == "768"
    assert found["CHUNK"] == "8"
    assert expandable_segments_effective(found)
