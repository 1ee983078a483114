"""What the device's own allocator says, behind one seam: nothing on CPU, `torch.cuda` on CUDA.

The tracked side is `ledger`'s. Invariant: a device whose allocator keeps no peaks answers None,
never 0; nothing here starts CUDA for a device that is not one.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch


class Cuda(Protocol):
    """The part of `torch.cuda` that is used."""

    def synchronize(self, device: torch.device) -> None: ...  # noqa: D102
    def empty_cache(self) -> None: ...  # noqa: D102
    def reset_peak_memory_stats(self, device: torch.device) -> None: ...  # noqa: D102
    def max_memory_allocated(self, device: torch.device) -> int: ...  # noqa: D102
    def max_memory_reserved(self, device: torch.device) -> int: ...  # noqa: D102
    def memory_allocated(self, device: torch.device) -> int: ...  # noqa: D102
    def memory_reserved(self, device: torch.device) -> int: ...  # noqa: D102


def synchronize(device: str, *, cuda: Cuda | None = None) -> None:
    """Waits until everything that was started on the device has ended; at once on CPU."""
    if seam := _seam(device, cuda):
        seam.synchronize(torch.device(device))


def empty_cache(device: str, *, cuda: Cuda | None = None) -> None:
    """Gives cached bytes that no tensor uses back to the device."""
    if seam := _seam(device, cuda):
        seam.empty_cache()


def reset_peaks(device: str, *, cuda: Cuda | None = None) -> None:
    """Lets both peaks of the allocator begin again at what it holds now, all work done."""
    if seam := _seam(device, cuda):
        seam.synchronize(torch.device(device))
        seam.reset_peak_memory_stats(torch.device(device))


def allocator_peaks(device: str, *, cuda: Cuda | None = None) -> tuple[int, int] | None:
    """Peaks since the last reset, all work done.

    Returns:
        Bytes that tensors held, rounded as the allocator does, and bytes taken from the device;
        None where there is no such allocator.
    """
    if not (seam := _seam(device, cuda)):
        return None
    place = torch.device(device)
    seam.synchronize(place)
    return seam.max_memory_allocated(place), seam.max_memory_reserved(place)


def allocator_live(device: str, *, cuda: Cuda | None = None) -> tuple[int, int] | None:
    """What tensors hold and what is taken from the device, now; the difference is cached.

    Returns:
        Both in bytes; None where there is no such allocator.
    """
    if not (seam := _seam(device, cuda)):
        return None
    place = torch.device(device)
    return seam.memory_allocated(place), seam.memory_reserved(place)


def residual_bytes(peaks: tuple[int, int] | None, tracked_peak_bytes: int) -> int | None:
    """The allocator's peak less the tracked one: an owner of its own, ``untracked``.

    Workspaces of libraries, rounding to 512 bytes, tensors made in other Python threads and inside
    compiled graphs, and whatever was there before tracking and never seen. Negative where memory
    is counted that another allocator gave.
    """
    return None if peaks is None else peaks[0] - tracked_peak_bytes


def _seam(device: str, cuda: Cuda | None) -> Cuda | None:
    if torch.device(device).type != "cuda":
        return None
    return cuda if cuda is not None else cast(Cuda, torch.cuda)
