"""Clocks of a cycle, on a device whose work goes on behind a call."""

from __future__ import annotations

import time

import pytest

from fleetcraft.calibration.trial import meters
from fleetcraft.calibration.trial.meters import ClockMeter


def test_what_the_device_does_between_phases_is_part_of_the_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun_s = [0.0]

    def synchronize(device: str) -> None:
        time.sleep(begun_s[0])
        begun_s[0] = 0.0

    monkeypatch.setattr(meters.devices, "synchronize", synchronize)
    meter = ClockMeter("cuda:0")
    with meter.cycle():
        begun_s[0] = 0.04
        meter.pause()
        meter.begin("denoise")
        begun_s[0] = 0.02
        meter.end("denoise")
        meter.resume()
        begun_s[0] = 0.04
    assert meter.phases_s["denoise"] >= 0.02
    assert meter.between_s >= 0.08
