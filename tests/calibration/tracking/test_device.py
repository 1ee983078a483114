"""The seam to the device's allocator, with a stand-in that only answers and writes down."""

from __future__ import annotations

import pytest
import torch

from fleetcraft.calibration.tracking import device as devices


class Cuda:
    """As `torch.cuda` answers, after work that is seen only once it was waited for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def synchronize(self, device: torch.device) -> None:
        self.asked.append(("synchronize", str(device)))

    def empty_cache(self) -> None:
        self.asked.append(("empty_cache", ""))

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.asked.append(("reset", str(device)))

    def max_memory_allocated(self, device: torch.device) -> int:
        self.asked.append(("allocated", str(device)))
        return 900

    def max_memory_reserved(self, device: torch.device) -> int:
        return 1000

    def memory_allocated(self, device: torch.device) -> int:
        return 500

    def memory_reserved(self, device: torch.device) -> int:
        return 700


def test_peaks_are_reset_and_read_when_all_work_is_done() -> None:
    cuda = Cuda()
    devices.reset_peaks("cuda:1", cuda=cuda)
    assert devices.allocator_peaks("cuda:1", cuda=cuda) == (900, 1000)
    assert cuda.asked == [
        ("synchronize", "cuda:1"),
        ("reset", "cuda:1"),
        ("synchronize", "cuda:1"),
        ("allocated", "cuda:1"),
    ]


def test_what_lives_and_what_is_cached_are_told_apart() -> None:
    assert devices.allocator_live("cuda", cuda=Cuda()) == (500, 700)


def test_the_residual_is_what_the_tracker_did_not_see() -> None:
    assert devices.residual_bytes((900, 1000), 850) == 50
    assert devices.residual_bytes(None, 850) is None


def test_a_cpu_has_no_such_allocator_and_is_never_asked() -> None:
    cuda = Cuda()
    devices.synchronize("cpu", cuda=cuda)
    devices.reset_peaks("cpu", cuda=cuda)
    devices.empty_cache("cpu", cuda=cuda)
    assert devices.allocator_peaks("cpu", cuda=cuda) is None
    assert devices.allocator_live("cpu", cuda=cuda) is None
    assert cuda.asked == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_the_allocator_and_the_tracker_agree_but_for_the_residual() -> None:
    from fleetcraft.calibration.tracking.ledger import Ledger

    with Ledger("cuda") as ledger:
        devices.reset_peaks("cuda")
        start = devices.allocator_live("cuda")
        ledger.begin_phase("decode")
        kept = torch.zeros(1 << 20, device="cuda")
        found = ledger.end_phase()
        peaks = devices.allocator_peaks("cuda")
    assert peaks is not None
    assert start is not None
    assert peaks[0] - start[0] == found.peak_bytes
    del kept
