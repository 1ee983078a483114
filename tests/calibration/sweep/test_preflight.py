"""What is predicted before anything is tried, and what a failed prediction costs."""

from __future__ import annotations

import pytest

from fleetcraft.calibration.family import Family
from fleetcraft.calibration.records import Prediction
from fleetcraft.calibration.sweep.preflight import Preflight, budget_between, predict
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.calibration.trial.reading import Failed, Journal, Predicted
from fleetcraft.errors import ConfigError, FleetError

FAMILY = Family(key="sim", cycle=lambda ctx, batch: None)
PHASES = {"backward1": 100, "backward2": 200}


def order(*batches: int) -> Order:
    return Order(
        family="sim", batch=batches[0], passes=(Pass.PREFLIGHT,), folder="/nowhere",
        preflight_batches=batches,
    )  # fmt: skip


def predicted(batch: int, **other) -> Predicted:
    return Predicted(**{"batch": batch, "peak_bytes": 200 * batch, "phase": "backward2",
                        "phases": PHASES, **other})  # fmt: skip


def answers(**values):
    return lambda order, family: Journal(path="/nowhere", **values)


def test_predictions_come_from_the_journal_of_one_process():
    ran = []

    def run(order: Order, family: Family) -> Journal:
        ran.append(order.preflight_batches)
        return Journal(path="", predictions=(predicted(1), predicted(2)))

    found = predict(order(1, 2), FAMILY, run)

    assert ran == [(1, 2)]
    assert found.problem == ""
    assert found.peaks == {1: 200, 2: 400}
    assert found.predictions[0] == Prediction(batch=1, peak_bytes=200, phase="backward2")


def test_further_batches_follow_each_phase_on_its_own_line():
    ran = []

    def run(order: Order, family: Family) -> Journal:
        ran.append(order.preflight_batches)
        at_1 = predicted(
            1, peak_bytes=110, phase="backward", phases={"decode": 60, "backward": 110}
        )
        at_2 = predicted(2, peak_bytes=120, phase="decode", phases={"decode": 120, "backward": 115})
        return Journal(path="", predictions=(at_1, at_2))

    found = predict(order(8, 1, 2, 4), FAMILY, run)

    assert ran == [(1, 2)]
    assert found.peaks == {1: 110, 2: 120, 4: 240, 8: 480}
    assert found.found[-1].phases == {"decode": 480, "backward": 145}
    assert found.predictions[-1].detail == "by the lines through batches 1 and 2"
    assert found.problem == ""


def test_a_family_that_cannot_be_faked_is_not_run():
    def run(order: Order, family: Family) -> Journal:
        raise AssertionError("it was run")

    found = predict(order(1), Family(key="sim", cycle=FAMILY.cycle, preflight=False), run)

    assert found.peaks == {}
    assert found.problem == "the family says that its cycle cannot run on fake tensors"


@pytest.mark.parametrize("error", [ConfigError("cannot import it"), OSError("cannot fork")])
def test_a_preflight_that_cannot_be_run_is_a_problem_and_no_error(error):
    def run(order: Order, family: Family) -> Journal:
        raise error

    found = predict(order(1), FAMILY, run)

    assert found == Preflight(problem=f"it could not be run: {error}")


@pytest.mark.parametrize(("journal", "words"), [
    ({"failed": Failed(kind="ValueError", message="no value")}, "ValueError: no value"),
    ({"predictions": (predicted(1, peak_bytes=None, detail="decode needs values"),)},
     "decode needs values"),
    ({"last_pass": "preflight"}, "ended without a word in preflight"),
    ({"last_pass": "preflight", "open_phase": "decode"}, "ended without a word in decode"),
])  # fmt: skip
def test_why_a_prediction_is_missing_is_told(journal, words):
    found = predict(order(1), FAMILY, answers(**journal))

    assert found.peaks == {}
    assert found.problem.startswith("no peak for batch 1: ")
    assert words in found.problem


def test_what_came_before_a_failure_is_kept():
    found = predict(order(1, 2, 4), FAMILY, answers(predictions=(predicted(1),)))

    assert found.peaks == {1: 200}
    assert found.problem.startswith("no peak for batch 2, 4: ")


def test_a_budget_lies_half_way_between_two_phases_of_its_batch():
    found = Preflight(found=(predicted(1), predicted(2, phases={"backward1": 0, "backward2": 9})))

    assert budget_between(found, 1, ("backward1", "backward2")) == 150


@pytest.mark.parametrize("phases", [("backward1", "step9"), ("backward2", "backward1")])
def test_a_budget_that_cannot_be_between_is_refused(phases):
    with pytest.raises(FleetError, match="nothing was tried") as refusal:
        budget_between(Preflight(found=(predicted(1),)), 1, phases)

    assert "--device-budget-mib" in refusal.value.hint


def test_a_budget_needs_a_preflight_and_tells_why_there_is_none():
    nothing = Preflight(problem="it could not be run: cannot fork")

    with pytest.raises(FleetError, match="cannot fork"):
        budget_between(nothing, 1, ("backward1", "backward2"))
