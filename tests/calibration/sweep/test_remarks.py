"""What is said beside a choice: the utilization of the chosen batch, or why it has none."""

from __future__ import annotations

import pytest

from fleetcraft.calibration.family import DiT, Family
from fleetcraft.calibration.records import Environment, Flops
from fleetcraft.calibration.sweep.remarks import whole_flops
from tests.calibration.sweep.families import trial

KNOWN = DiT(active_params=1e9, layers=1, hidden=1, seq=1000)
FAMILY = Family(key="x", cycle=lambda ctx, batch: None, flops=KNOWN)


def test_the_chosen_batch_has_the_share_of_its_very_part() -> None:
    chosen = trial(2, samples_per_s=100.0, environment=Environment(device="NVIDIA B200"))

    found = whole_flops(None, FAMILY, chosen)

    assert found.mfu == pytest.approx(KNOWN.flop * 100 / 2.25e15)


def test_an_unknown_device_is_said_and_gets_no_share() -> None:
    chosen = trial(2, samples_per_s=100.0, environment=Environment(device="NVIDIA RTX 9090"))

    found = whole_flops(Flops(analytic_flop=1e12), FAMILY, chosen)

    assert found.mfu is None
    assert found.detail == "no MFU: unknown device 'NVIDIA RTX 9090'"


def test_without_a_choice_there_is_nothing_to_share() -> None:
    assert whole_flops(None, FAMILY, None).detail == "they were not counted"
