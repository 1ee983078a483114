from __future__ import annotations

import pytest

from fleetcraft.calibration.records import Flops
from fleetcraft.calibration.utilization import with_mfu

# The 81-frame rollout of the design: 282.99 TFLOP a forward, 100 forwards, 104.9 rollouts an hour.
ROLLOUT = Flops(analytic_flop=282.99e12 * 100)
PER_S = 104.9 / 3600


@pytest.mark.parametrize(
    ("device", "expected", "part"),
    [("NVIDIA GB200", 0.330, "GB200 NVL72"), ("NVIDIA B200", 0.366, "B200")],
)
def test_the_same_work_is_another_share_of_b200_and_of_gb200(
    device: str, expected: float, part: str
) -> None:
    found = with_mfu(ROLLOUT, device, PER_S)

    assert found.mfu == pytest.approx(expected, abs=0.0005)
    assert found.peak_name == part


@pytest.mark.parametrize("device", ["", "cpu", "NVIDIA H100", "NVIDIA RTX 9090"])
def test_an_unknown_device_has_no_mfu_and_says_so(device: str) -> None:
    found = with_mfu(ROLLOUT, device, PER_S)

    assert found.mfu is None
    assert f"unknown device {device!r}" in found.detail


def test_what_was_not_timed_or_not_declared_has_none_either() -> None:
    assert "not timed" in with_mfu(ROLLOUT, "NVIDIA B200", None).detail
    assert "not known" in with_mfu(Flops(), "NVIDIA B200", 1.0).detail
    assert with_mfu(Flops(detail="why"), "NVIDIA B200", 1.0).detail.startswith("why; ")
