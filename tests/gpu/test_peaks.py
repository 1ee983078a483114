"""Which names have a peak, and which must not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.gpu.peaks import PEAKS, find_peak, near_names, same_model

DRIVERS_NAMES = {
    "NVIDIA A100-SXM4-40GB": "A100",
    "NVIDIA A100-PCIE-40GB": "A100",
    "NVIDIA A100 80GB PCIe": "A100",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA H200 NVL": "H200 NVL",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA GH200 120GB": "GH200",
    "NVIDIA B200": "B200",
    "NVIDIA GB200": "GB200 NVL72",
    "NVIDIA L40S": "L40S",
    "NVIDIA L40": "L40",
    "NVIDIA L4": "L4",
    "NVIDIA A10": "A10",
}


@pytest.mark.parametrize(("name", "part"), DRIVERS_NAMES.items())
def test_the_drivers_name_leads_to_the_part(name: str, part: str) -> None:
    peak = find_peak(name)
    assert peak is not None
    assert peak.name == part


@pytest.mark.parametrize("peak", PEAKS, ids=lambda peak: peak.name)
def test_each_part_is_found_by_its_own_name_and_has_a_source(peak) -> None:
    assert find_peak(peak.name) is peak
    assert "NVIDIA" in peak.source
    assert 1e14 < peak.dense_bf16_flop_per_s < 1e16


def test_the_two_blackwell_parts_are_not_one() -> None:
    b200, gb200 = find_peak("B200"), find_peak("GB200")
    assert b200 is not None
    assert gb200 is not None
    assert b200.dense_bf16_flop_per_s == 2.25e15
    assert gb200.dense_bf16_flop_per_s == 2.5e15


@pytest.mark.parametrize(
    "name",
    [
        "",
        "H100",  # three parts with three peaks
        "NVIDIA GB10",
        "NVIDIA B300",
        "NVIDIA GB300",
        "NVIDIA A100-SXM-64GB",  # a part of one site, with another chip
        "NVIDIA H100 64GB HBM2",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A1000",
        "Tesla V100-SXM2-16GB",
        "AMD Instinct MI300X",
        "A100 or H100 PCIe",
    ],
)
def test_a_name_that_is_not_wholly_understood_has_no_peak(name: str) -> None:
    assert find_peak(name) is None


@given(st.text(max_size=30))
def test_no_text_is_a_part_unless_it_names_its_model_as_a_word(name: str) -> None:
    peak = find_peak(name)
    if peak is not None:
        assert peak.name in same_model(name)


def test_near_names_help_and_do_not_answer() -> None:
    assert near_names("H100") == ["H100 SXM", "H100 PCIe", "H100 NVL"]
    assert "GB200 NVL72" in near_names("GB200 NVL4 X")
    assert near_names("GB20O")
    assert near_names("a toaster") == []
