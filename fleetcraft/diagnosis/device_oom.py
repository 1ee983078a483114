"""What torch's out-of-memory text says: its numbers, and which of three causes they show.

Parsing and one inequality; no torch here. Invariant: a number that the text does not hold is None,
and nothing is called fragmentation unless the cached bytes would really have sufficed.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Cause = Literal["fragmentation", "capacity", "neighbour"]
NEIGHBOUR_SHARE = 0.02
"""Share of a device's memory below which what others hold is never blamed: contexts of idle
processes and a display server take such amounts on any machine."""

_UNITS = {"byte": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(?<![\d.])(?P<{0}>\d{{1,15}}(?:\.\d{{1,15}})?)\s+(?P<{0}_unit>bytes?|[KMGT]iB)"


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern in which ``<name>`` stands for a size and a space for any white space."""
    sized = re.sub(r"<(\w+)>", lambda found: _SIZE.format(found[1]), text)
    return re.compile(sized.replace(" ", r"\s+"))


_BEGIN = _pattern(r"\b\w+ out of memory\. Tried to allocate\b")
# Source: c10/cuda/CUDACachingAllocator.cpp. Up to torch 1.3 "cached" was what is cached and not
# allocated; up to 2.0 "reserved in total" holds what is allocated too; 2.1 wrote "capacty".
_REQUEST = _pattern(r"Tried to allocate <size>")
_CAPACITY = _pattern(r"total capac\w+ of <size>")
_OLD_CAPACITY = _pattern(r"<size> total capacity;")
_FREE = _pattern(r"of which <size> is free")
_OLD_FREE = _pattern(r"<size> free;")
_ALLOCATED = _pattern(r"Of the allocated memory <size> is allocated by PyTorch")
_OLD_ALLOCATED = _pattern(r"<size> already allocated")
_UNALLOCATED = _pattern(r"<size> is reserved by PyTorch but unallocated")
_CACHED = _pattern(r"<size> cached\)")
_RESERVED = _pattern(r"<size> reserved in total by PyTorch")
_ALLOWED = _pattern(r"<size> allowed;")
_THIS_PROCESS = _pattern(r"this process has <size> memory in use")
_OTHER_PROCESS = _pattern(r"Process \d+ has <size> memory in use")


class DeviceOom(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one out-of-memory error; None where its text lacks them.

    Attributes:
        request_bytes: What could not be allocated.
        capacity_bytes: The device's memory.
        free_bytes: What the device still had.
        allocated_bytes: What tensors of this process hold.
        reserved_unallocated_bytes: What its allocator holds and no tensor uses.
        process_bytes: All that this process holds there, context and libraries included.
        others_bytes: What the text says of other processes, when it tells them from this one.
        allowed_bytes: The share of the device that the process may use, if it was limited.
    """

    request_bytes: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_unallocated_bytes: int | None = None
    process_bytes: int | None = None
    others_bytes: int | None = None
    allowed_bytes: int | None = None

    @property
    def reclaimable_bytes(self) -> int | None:
        """What could have served the request without a tensor less: free and cached bytes.

        Where the text does not say what is cached, the most that it can be: what is neither free
        nor allocated. None when not even that is known.
        """
        if self.free_bytes is None:
            return None
        cached = self.reserved_unallocated_bytes
        if cached is None:
            if self.capacity_bytes is None or self.allocated_bytes is None:
                return None
            cached = max(0, self.capacity_bytes - self.free_bytes - self.allocated_bytes)
        return self.free_bytes + cached

    @property
    def shortfall_bytes(self) -> int | None:
        """How much more than the free and cached bytes was wanted; negative: none."""
        if self.request_bytes is None or self.reclaimable_bytes is None:
            return None
        return self.request_bytes - self.reclaimable_bytes


def parse_device_oom(text: str) -> DeviceOom | None:
    """Reads the last of torch's out-of-memory errors in a text, wrapped or not.

    Sizes are rounded there to a hundredth of their unit.

    Returns:
        None when there is none that names a request.
    """
    begins = [found.start() for found in _BEGIN.finditer(text)]
    if not begins:
        return None
    error = text[begins[-1] :]
    own = _size(_THIS_PROCESS, error)
    return DeviceOom(
        request_bytes=_size(_REQUEST, error),
        capacity_bytes=_size(_CAPACITY, error) or _size(_OLD_CAPACITY, error),
        free_bytes=_first(_size(_FREE, error), _size(_OLD_FREE, error)),
        allocated_bytes=_first(_size(_ALLOCATED, error), _size(_OLD_ALLOCATED, error)),
        reserved_unallocated_bytes=_unallocated(error),
        process_bytes=own or None,  # "0 bytes" is what a driver says that cannot tell
        others_bytes=_others(error) if own else None,
        allowed_bytes=_size(_ALLOWED, error),
    )


def judge_device_oom(oom: DeviceOom, *, neighbour_bytes: int | None = None) -> Cause:
    """Which of three causes the numbers show.

    ``fragmentation``: free + (reserved - allocated) >= request, so the bytes were there and only
    their shape was wrong. ``neighbour``: they were not, but would have been had other processes
    not held theirs. ``capacity``: otherwise, also when the text lacks the numbers.

    Args:
        oom: The numbers.
        neighbour_bytes: What other processes held on the device, measured from outside; None when
            that is unknown, and then what the text itself says of them counts.
    """
    shortfall = oom.shortfall_bytes
    if shortfall is not None and shortfall <= 0 and oom.reserved_unallocated_bytes is not None:
        # Bytes that a process may not use would not have helped it.
        if oom.allowed_bytes is None:
            return "fragmentation"
        in_use = (oom.allocated_bytes or 0) + (oom.request_bytes or 0)
        return "fragmentation" if in_use <= oom.allowed_bytes else "capacity"
    others = oom.others_bytes if neighbour_bytes is None else neighbour_bytes
    if not others or others < NEIGHBOUR_SHARE * (oom.capacity_bytes or 0):
        return "capacity"
    return "neighbour" if shortfall is None or others >= shortfall else "capacity"


def _unallocated(error: str) -> int | None:
    cached = _first(_size(_UNALLOCATED, error), _size(_CACHED, error))
    if cached is not None:
        return cached
    total = _size(_RESERVED, error)
    allocated = _size(_OLD_ALLOCATED, error)
    return None if total is None or allocated is None else max(0, total - allocated)


def _others(error: str) -> int:
    return sum(_bytes(found) for found in _OTHER_PROCESS.finditer(error))


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return _bytes(found) if found else None


def _bytes(found: re.Match[str]) -> int:
    return round(float(found["size"]) * _UNITS[found["size_unit"]])


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
