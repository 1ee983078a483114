"""The progress watch: alarms with their arithmetic, phases, dead ranks, and what is no alarm."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.training.plan.records import End, ProgressPlan, RunPlan
from fleetcraft.training.records import QueueStanding, Standing
from tests.training.watching.runs import QUEUES, SEED, STEP_S, SimulatedRun, process

DRAFTERS = ("drafter-0", "drafter-1", "drafter-2")
PLAIN = RunPlan(run="plain", command=("true",), look_s=1e6)


def test_the_seeds_stall_is_raised_after_two_minutes_with_its_arithmetic() -> None:
    run = SimulatedRun(SEED)
    run.run_steps(15, first=676)
    run.now_s += 119.0
    assert run.look().standing is Standing.PROGRESSING
    run.now_s += 1.0
    sight = run.look()
    assert sight.standing is Standing.STALLED
    assert sight.why == (
        "no step for 120 s, 120 s allowed; it stands at step 690;"
        " 4 x 32,768 tokens / 6,900 tok/s = 19.0 s a step; 6.3 steps were due in 120 s, 0 came"
    )
    run.now_s += 300.0
    sight = run.look()
    assert sight.expected is not None
    assert sight.expected.arithmetic.endswith("22.1 steps were due in 420 s, 0 came")
    assert (sight.step, sight.quiet_s) == (690, 420.0)


def test_two_of_three_dead_drafters_are_named_at_once_also_during_warm_up() -> None:
    run = SimulatedRun(SEED, names=DRAFTERS)
    run.run_steps(3, first=688)
    run.dead = {1, 2}
    sight = run.look()
    assert sight.standing is Standing.DEAD_RANK
    assert sight.dead == (1, 2)
    assert sight.why.startswith(
        "2 of 3 ranks gone: drafter-1 (rank 1), drafter-2 (rank 2); step 690"
    )
    assert sight.eta_s is None


def test_a_third_of_the_throughput_with_two_dead_is_one_of_three_drafters() -> None:
    plan = msgspec.structs.replace(
        SEED, progress=ProgressPlan(tokens_per_step=32 * 1024, accumulation=4, tokens_per_s=21_500)
    )
    run = SimulatedRun(plan, names=DRAFTERS)
    run.run_steps(30)
    run.dead = {1, 2}
    sight = run.look()
    assert sight.throughput_ratio == pytest.approx(6.9 / 21.5, abs=0.005)
    assert sight.alive_ratio == "0.32: one of three drafters alive"


def test_the_best_plateau_is_the_reference_where_no_throughput_was_declared() -> None:
    plan = msgspec.structs.replace(SEED, progress=ProgressPlan())
    run = SimulatedRun(plan, names=DRAFTERS)
    assert run.run_steps(40, step_s=10.0).throughput_ratio == pytest.approx(1.0)
    sight = run.run_steps(40, first=40, step_s=30.0)
    assert sight.throughput_ratio == pytest.approx(1 / 3, rel=0.05)


def test_a_rank_that_beats_without_completing_steps_holds_the_run_back() -> None:
    run = SimulatedRun(SEED, names=DRAFTERS)
    run.run_steps(15)
    for step in range(15, 40):
        run.now_s += STEP_S
        run.step(0, step)
        run.step(1, step)
        run.set(2)  # it reports, but step 14 again
        sight = run.look()
    assert sight.standing is Standing.STALLED
    assert sight.step == 14


def test_before_the_end_of_warm_up_nothing_is_an_alarm() -> None:
    run = SimulatedRun(SEED)
    run.run_steps(1, first=690)
    run.now_s = 179.0
    sight = run.look()
    assert (sight.standing, sight.why) == (Standing.WARMING, "warm-up ends in 1.0 s")
    run.now_s = 180.0
    assert run.look().standing is Standing.STALLED


def test_a_run_without_any_step_yet_is_given_the_alarms_time_after_warm_up() -> None:
    run = SimulatedRun(SEED)
    run.now_s = 299.0
    assert run.look().standing is Standing.PROGRESSING
    run.now_s = 300.0
    sight = run.look()
    assert (sight.standing, sight.step) == (Standing.STALLED, None)


def test_a_counter_that_stood_there_before_is_raised_with_the_end_of_warm_up() -> None:
    run = SimulatedRun(SEED)
    run.set(0, step=690)  # never seen to move
    run.now_s = 180.0
    assert run.look().standing is Standing.STALLED


def test_the_alarm_waits_five_times_a_long_step() -> None:
    plan = msgspec.structs.replace(SEED, progress=ProgressPlan())
    run = SimulatedRun(plan)
    run.run_steps(10, step_s=60.0)
    run.now_s += 299.0
    assert run.look().standing is Standing.PROGRESSING
    run.now_s += 1.0
    sight = run.look()
    assert sight.standing is Standing.STALLED
    assert "the last 7 steps took 60.0 s each; 5.0 steps were due in 300 s, 0 came" in sight.why


def test_standing_still_does_not_stretch_what_is_expected() -> None:
    plan = msgspec.structs.replace(
        SEED, progress=ProgressPlan(tokens_per_step=32 * 1024, accumulation=4)
    )
    run = SimulatedRun(plan)
    run.run_steps(20)
    for _ in range(120):
        run.now_s += 1.0
        sight = run.look()
    assert sight.standing is Standing.STALLED
    assert sight.expected is not None
    assert sight.expected.step_s == pytest.approx(STEP_S)


def test_a_declared_phase_excuses_and_the_wait_begins_at_its_end() -> None:
    run = SimulatedRun(SEED)
    run.run_steps(15)
    run.phase(0, "save")
    for _ in range(80):
        run.now_s += 10.0
        sight = run.look()
        assert sight.standing is Standing.IN_PHASE
    assert sight.why == "drafter-0 (rank 0) in phase save for 800 s, 900 s allowed"
    run.phase(0, "")
    run.now_s += 119.0
    assert run.look().standing is Standing.PROGRESSING
    run.now_s += 1.0
    assert run.look().standing is Standing.STALLED


def over_budget(run: SimulatedRun, **use: object) -> None:
    """Lets rank 0 be in phase save for 901 s, with what it uses at the last looks."""
    run.run_steps(15)
    run.phase(0, "save")
    began_s = run.now_s
    for late_s in (880.0, 890.0, 901.0):
        run.now_s = began_s + late_s
        run.seen[0] = {
            name: value(late_s) if callable(value) else value for name, value in use.items()
        }
        run.look()


@pytest.mark.parametrize(
    ("use", "standing", "why"),
    [
        (
            {"cpu_s": lambda late_s: late_s, "closely": True},
            Standing.SLOW,
            "CPU time or bytes advance",
        ),
        (
            {"cpu_s": 5.0, "io_bytes": lambda late_s: int(late_s * 1e6), "closely": True},
            Standing.SLOW,
            "CPU time or bytes advance",
        ),
        (
            {"cpu_s": 5.0, "io_bytes": 77, "state": "D", "closely": True},
            Standing.STALLED_IO,
            "in state D, and no bytes advance",
        ),
        (
            {"cpu_s": 5.0, "io_bytes": 77, "state": "S", "closely": True},
            Standing.STALLED,
            "neither CPU time nor bytes advance",
        ),
        ({}, Standing.STALLED, "its CPU time cannot be seen from here"),
    ],
)
def test_a_phase_over_its_budget_is_judged_by_what_its_rank_does(
    use: dict[str, object], standing: Standing, why: str
) -> None:
    run = SimulatedRun(SEED)
    over_budget(run, **use)
    sight = run.look()
    assert sight.standing is standing
    assert sight.why == f"drafter-0 (rank 0) in phase save for 901 s, 900 s allowed; {why}"


def test_a_rank_that_spins_in_a_phase_for_ever_is_not_slow_for_ever() -> None:
    run = SimulatedRun(SEED)
    over_budget(run, cpu_s=lambda late_s: late_s, closely=True)
    run.now_s += 5 * 900.0
    run.seen[0]["cpu_s"] = 9000.0
    assert run.look().standing is Standing.STALLED


def test_who_is_long_in_a_phase_or_holds_the_run_back_is_to_be_looked_at_closely() -> None:
    run = SimulatedRun(SEED, names=DRAFTERS)
    run.run_steps(15)
    assert run.look().look_closer == ()
    run.now_s += 60.0
    run.step(0, 15)
    assert run.look().look_closer == (1, 2)
    run.phase(0, "save")
    run.now_s += 450.0
    assert 0 in run.look().look_closer


def test_a_phase_that_was_not_declared_excuses_nothing() -> None:
    run = SimulatedRun(SEED)
    run.run_steps(15)
    run.phase(0, "lunch")
    run.now_s += 1.0
    assert run.look().standing is Standing.PROGRESSING
    assert "phase 'lunch' is not declared" in run.look().why
    run.now_s += 119.0
    assert run.look().standing is Standing.STALLED


def test_an_evaluator_that_counts_no_steps_excuses_nobody() -> None:
    run = SimulatedRun(SEED, names=("trainer", "evaluator"))
    run.ranks[1] = msgspec.structs.replace(run.ranks[1], step=None)
    for step in range(15):
        run.now_s += STEP_S
        run.step(0, step)
    run.phase(1, "eval")
    run.look()
    run.now_s += 120.0
    assert run.look().standing is Standing.STALLED


def test_a_run_that_waits_for_a_rank_that_loads_is_in_that_phase() -> None:
    run = SimulatedRun(SEED, names=("trainer", "drafter-0"))
    run.phase(1, "load")
    run.step(0, 0)
    run.now_s = 1200.0
    assert run.look().standing is Standing.IN_PHASE


def test_a_phase_of_a_dead_rank_excuses_nobody() -> None:
    run = SimulatedRun(SEED, names=DRAFTERS)
    run.run_steps(15)
    run.phase(1, "save")
    run.dead = {1}
    assert run.look().standing is Standing.DEAD_RANK


def test_a_rank_that_may_be_gone_is_neither_dead_nor_holds_the_run_back() -> None:
    run = SimulatedRun(SEED, names=DRAFTERS)
    run.run_steps(15)
    run.dead = {2}
    for step in range(15, 30):
        run.now_s += STEP_S
        run.step(0, step)
        run.step(1, step)
        sight = run.watch.observe(run.ranks, run.census(), run.now_s, excused={2})
    assert (sight.standing, sight.step, sight.dead) == (Standing.PROGRESSING, 29, ())
    assert len(sight.ranks) == 3


def test_a_rank_that_has_left_at_the_declared_end_is_not_dead_while_others_save() -> None:
    run = SimulatedRun(msgspec.structs.replace(SEED, end=End(step=14)), names=DRAFTERS)
    run.run_steps(15)
    run.dead = {1, 2}
    run.phase(0, "save")
    sight = run.look()
    assert (sight.standing, sight.dead) == (Standing.IN_PHASE, ())


@pytest.mark.parametrize("end", [13, 15])
def test_a_rank_that_has_left_at_another_step_is_dead(end: int) -> None:
    run = SimulatedRun(msgspec.structs.replace(SEED, end=End(step=end)), names=DRAFTERS)
    run.run_steps(15)
    run.dead = {1}
    assert (run.look().standing, run.look().dead) == (Standing.DEAD_RANK, (1,))


def test_silence_that_may_be_the_readers_own_is_unknown() -> None:
    run = SimulatedRun(SEED)
    run.run_steps(15)
    run.now_s += 500.0
    run.trouble = "rank 0: Stale file handle"
    sight = run.look()
    assert sight.standing is Standing.UNKNOWN
    assert sight.why.endswith("but not all could be read: rank 0: Stale file handle")
    run.trouble = ""
    assert run.look().standing is Standing.STALLED


def test_time_in_which_nobody_looked_is_not_waited() -> None:
    run = SimulatedRun(msgspec.structs.replace(SEED, look_s=1.0))
    run.run_steps(40, step_s=8.0)
    run.now_s += 3600.0  # the whole job was suspended
    sight = run.look()
    assert (sight.standing, sight.quiet_s) == (Standing.PROGRESSING, 10.0)
    for _ in range(11):
        run.now_s += 10.0
        sight = run.look()
    assert (sight.standing, sight.quiet_s) == (Standing.STALLED, 120.0)


def test_a_phase_is_not_used_up_while_nobody_looked() -> None:
    run = SimulatedRun(msgspec.structs.replace(SEED, look_s=1.0))
    run.run_steps(40, step_s=8.0)
    run.phase(0, "save")
    run.look()
    run.now_s += 3600.0
    sight = run.look()
    assert sight.standing is Standing.IN_PHASE
    assert "for 10.0 s, 900 s allowed" in sight.why


def test_looks_that_always_come_late_raise_the_alarm_later_but_do() -> None:
    run = SimulatedRun(msgspec.structs.replace(SEED, look_s=1.0))
    run.run_steps(40, step_s=8.0)
    for _ in range(12):
        run.now_s += 20.0
        sight = run.look()
    assert sight.standing is Standing.STALLED


def test_a_command_that_reports_nothing_and_declares_nothing_is_unknown_not_stalled() -> None:
    run = SimulatedRun(PLAIN, names=())
    run.now_s = 1e6
    assert run.look().standing is Standing.UNKNOWN


def test_a_command_that_declares_progress_and_reports_none_is_stalled() -> None:
    run = SimulatedRun(SEED, names=())
    run.now_s = 1e6
    assert run.look().standing is Standing.STALLED


def test_progress_after_a_stall_is_progress() -> None:
    run = SimulatedRun(SEED)
    run.run_steps(15)
    run.now_s += 500.0
    assert run.look().standing is Standing.STALLED
    run.step(0, 15)
    assert run.look().standing is Standing.PROGRESSING


def test_a_launcher_that_restarts_its_ranks_by_itself_gets_a_new_warm_up() -> None:
    run = SimulatedRun(SEED)
    run.run_steps(15, first=676)
    run.set(0, process=process(900))
    assert run.look().standing is Standing.WARMING
    run.now_s += 200.0
    assert run.look().standing is Standing.PROGRESSING
    run.step(0, 600)
    run.look()
    run.now_s += 119.0
    sight = run.look()
    assert (sight.standing, sight.step) == (Standing.PROGRESSING, 600)
    run.now_s += 1.0
    assert run.look().standing is Standing.STALLED


def test_a_counter_that_went_back_and_stays_is_no_progress() -> None:
    run = SimulatedRun(SEED)
    run.run_steps(15, first=676)
    run.now_s += 60.0
    run.set(0, step=600)
    run.look()
    run.now_s += 60.0
    assert run.look().standing is Standing.STALLED


def test_status_has_throughput_queues_loss_metrics_and_an_interval_for_the_end() -> None:
    run = SimulatedRun(SEED, names=DRAFTERS)
    run.set(1, loss=2.5, metrics={"acceptance": 0.7}, queues=QUEUES)
    run.set(2, loss=9.0, metrics={"acceptance": 0.1, "lag": 3.0})
    sight = run.run_steps(30)
    assert sight.standing is Standing.PROGRESSING
    assert sight.tokens_per_s == pytest.approx(131_072 / STEP_S, rel=1e-3)
    assert sight.steps_per_s == pytest.approx(1 / STEP_S)
    assert sight.tokens_slope == pytest.approx(0.0, abs=1.0)
    assert sight.step_s == pytest.approx(STEP_S)
    assert (sight.loss, sight.metrics) == (2.5, {"acceptance": 0.7, "lag": 3.0})
    assert sight.queues_verdict is QueueStanding.BALANCED
    assert sight.eta_s == (pytest.approx(971 * STEP_S), pytest.approx(971 * STEP_S))
    assert (sight.plateau, sight.provisional) == (True, False)


def test_figures_are_provisional_before_the_plateau() -> None:
    run = SimulatedRun(SEED)
    sight = run.run_steps(8)
    assert sight.tokens_per_s is not None
    assert (sight.provisional, sight.plateau, sight.eta_s) == (True, False, None)


def test_queues_that_stand_still_while_steps_are_due_are_frozen() -> None:
    run = SimulatedRun(SEED)
    run.set(0, queues=QUEUES)
    run.run_steps(15)
    assert run.look().queues_verdict is QueueStanding.BALANCED
    run.now_s += 2 * STEP_S
    sight = run.look()
    assert sight.queues_verdict is QueueStanding.FROZEN
    assert sight.queues_why == "no depth changes: q_pre 50 of 50, q_hs 26 of 50"


def test_a_run_at_its_declared_end_needs_no_more_time() -> None:
    run = SimulatedRun(msgspec.structs.replace(SEED, end=End(step=14)))
    assert run.run_steps(15).eta_s == (0.0, 0.0)


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 60), st.sampled_from(["step", "back", "save", "", "lunch", "none"])
        ),
        max_size=40,
    )
)
def test_no_run_stands_still_before_its_time(events: list[tuple[float, str]]) -> None:
    run = SimulatedRun(SEED)
    step = 0
    for later_s, event in events:
        run.now_s += later_s
        if event in {"step", "back"}:
            step = step + 1 if event == "step" else 0
            run.step(0, step)
        elif event != "none":
            run.phase(0, event)
        sight = run.look()
        assert sight.quiet_s is not None
        if sight.standing is Standing.STALLED:
            assert sight.quiet_s >= 120.0
            assert run.now_s >= SEED.warmup_s
        if event == "step" and run.ranks[0].phase != "save":
            assert sight.standing in {Standing.PROGRESSING, Standing.WARMING}


def test_a_sight_can_be_written_as_json_also_with_a_loss_that_is_no_number() -> None:
    run = SimulatedRun(SEED)
    run.set(0, loss=float("nan"))
    assert msgspec.json.decode(msgspec.json.encode(run.look()))["loss"] is None
