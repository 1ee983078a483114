"""Ticks of time axes: whenever a fleet ran, labels leave each other room."""

from __future__ import annotations

import pytest

from fleetcraft.report.machine_records import Stretch
from fleetcraft.view.report.charts import Tick, ticks

DIGIT_PX = 7.95  # of DejaVu Sans at the size of labels, its widest common character
HOUR_S = 3600.0


@pytest.mark.parametrize("hours", [0.4, 3, 9, 30, 100, 700])
def test_labels_never_overlap_or_leave_the_page_whatever_the_time_of_day(hours: float) -> None:
    bins = 180
    for quarter in range(96):
        start_s = 1_796_000_400.0 + quarter * 900
        stretch = Stretch(start_s=start_s, bins=bins, first_bin=0)
        made = list(ticks((stretch,), hours * HOUR_S / bins))
        assert made, (hours, quarter)
        assert fits([tick for tick in made if not tick.minor], 288)
        assert fits(made, 660)


def fits(shown: list[Tick], width_px: float) -> bool:
    """Whether each label ends before the next begins, and all lie on the page."""
    taken_px = -1000.0
    for tick in shown:
        width = len(tick.text) * DIGIT_PX
        left = tick.at_pct / 100 * width_px - width * {"start": 0, "": 0.5, "end": 1}[tick.align]
        if left < max(taken_px, 0) - 0.5 or left + width > width_px + 0.5:
            return False
        taken_px = left + width
    return True
