"""torch's out-of-memory text over its versions, and what its numbers show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.diagnosis.device_oom import DeviceOom, judge_device_oom, parse_device_oom

MIB, GIB = 1 << 20, 1 << 30
FIXTURES = Path(__file__).parent / "device_oom"


def gib(value: float) -> int:
    return round(value * GIB)


def mib(value: float) -> int:
    return round(value * MIB)


ADVICE = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
# The wordings of torch 1.0, 1.13, 2.1 and later, with and without the parts that may be missing.
TEXTS = {
    "1.0": (
        "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 10.92 GiB total "
        "capacity; 8.62 GiB already allocated; 1.39 GiB free; 58.59 MiB cached)",
        DeviceOom(
            request_bytes=gib(1.5),
            capacity_bytes=gib(10.92),
            allocated_bytes=gib(8.62),
            free_bytes=gib(1.39),
            reserved_unallocated_bytes=mib(58.59),
        ),
    ),
    "1.13": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 300.00 MiB (GPU 0; "
        "23.70 GiB total capacity; 21.57 GiB already allocated; 33.56 MiB free; 21.98 GiB reserved "
        "in total by PyTorch) If reserved memory is >> allocated memory try setting "
        "max_split_size_mb to avoid fragmentation.",
        DeviceOom(
            request_bytes=mib(300),
            capacity_bytes=gib(23.7),
            allocated_bytes=gib(21.57),
            free_bytes=mib(33.56),
            reserved_unallocated_bytes=gib(21.98) - gib(21.57),
        ),
    ),
    "2.1": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 570.00 MiB. GPU 0 has "
        "a total capacty of 79.25 GiB of which 103.50 MiB is free. Including non-PyTorch memory, "
        "this process has 79.14 GiB memory in use. Of the allocated memory 76.38 GiB is allocated "
        "by PyTorch, and 2.24 GiB is reserved by PyTorch but unallocated." + ADVICE,
        DeviceOom(
            request_bytes=mib(570),
            capacity_bytes=gib(79.25),
            free_bytes=mib(103.5),
            process_bytes=gib(79.14),
            others_bytes=0,
            allocated_bytes=gib(76.38),
            reserved_unallocated_bytes=gib(2.24),
        ),
    ),
    "others": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a "
        "total capacity of 31.36 GiB of which 2.62 MiB is free. Process 81034 has 30.57 GiB memory "
        "in use. Including non-PyTorch memory, this process has 784.00 MiB memory in use. Of the "
        "allocated memory 179.69 MiB is allocated by PyTorch, with 2.00 MiB allocated in private "
        "pools (e.g., CUDA Graphs), and 12.31 MiB is reserved by PyTorch but unallocated." + ADVICE,
        DeviceOom(
            request_bytes=mib(20),
            capacity_bytes=gib(31.36),
            free_bytes=mib(2.62),
            process_bytes=mib(784),
            others_bytes=gib(30.57),
            allocated_bytes=mib(179.69),
            reserved_unallocated_bytes=mib(12.31),
        ),
    ),
    "container": (  # the driver counts pids of another namespace: who is who is not known
        "CUDA out of memory. Tried to allocate 224.00 MiB. GPU  has a total capacity of 44.34 GiB "
        "of which 160.81 MiB is free. Process 47694 has 44.17 GiB memory in use. Of the allocated "
        "memory 43.36 GiB is allocated by PyTorch, and 396.27 MiB is reserved by PyTorch but "
        "unallocated." + ADVICE,
        DeviceOom(
            request_bytes=mib(224),
            capacity_bytes=gib(44.34),
            free_bytes=mib(160.81),
            allocated_bytes=gib(43.36),
            reserved_unallocated_bytes=mib(396.27),
        ),
    ),
    "small": (
        "HIP out of memory. Tried to allocate 512 bytes. GPU 1 has a total capacity of 6.00 GiB "
        "of which 0 bytes is free. Of the allocated memory 3.10 GiB is allocated by PyTorch, and "
        "4.00 KiB is reserved by PyTorch but unallocated.",
        DeviceOom(
            request_bytes=512,
            capacity_bytes=gib(6),
            free_bytes=0,
            allocated_bytes=gib(3.1),
            reserved_unallocated_bytes=4096,
        ),
    ),
    "allowed": (
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 GiB "
        "of which 60.00 GiB is free. 8.00 GiB allowed; Of the allocated memory 7.50 GiB is "
        "allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.",
        DeviceOom(
            request_bytes=gib(1),
            capacity_bytes=gib(80),
            free_bytes=gib(60),
            allowed_bytes=gib(8),
            allocated_bytes=gib(7.5),
            reserved_unallocated_bytes=mib(100),
        ),
    ),
}
CAUSES = {
    "1.0": "capacity",
    "1.13": "fragmentation",
    "2.1": "fragmentation",
    "others": "neighbour",
    "container": "fragmentation",
    "small": "fragmentation",
    "allowed": "capacity",
}


@pytest.mark.parametrize("version", TEXTS)
def test_the_numbers_are_read_from_every_wording(version: str) -> None:
    text, expected = TEXTS[version]
    assert parse_device_oom(f"step 690\n[rank5]: {text}\nshutting down\n") == expected


@pytest.mark.parametrize("version", TEXTS)
def test_line_breaks_of_a_terminal_change_nothing(version: str) -> None:
    text, expected = TEXTS[version]
    assert parse_device_oom(text.replace(" ", "\n    ")) == expected


@pytest.mark.parametrize("version", CAUSES)
def test_the_numbers_decide_the_cause(version: str) -> None:
    oom = parse_device_oom(TEXTS[version][0])
    assert oom is not None
    assert judge_device_oom(oom) == CAUSES[version]


def test_the_last_of_several_errors_counts() -> None:
    oom = parse_device_oom(f"{TEXTS['2.1'][0]}\nretrying\n{TEXTS['others'][0]}")
    assert oom == TEXTS["others"][1]


@pytest.mark.parametrize("text", ["", "CUDA out of memory", "Tried to allocate 4.74 GiB", "no OOM"])
def test_a_text_that_names_no_request_has_no_numbers(text: str) -> None:
    assert parse_device_oom(text) is None


def drafter() -> dict[str, float]:
    """A published account of a trainer that resumed with 1,024 anchors a batch on 8 GPUs."""
    told: dict[str, float] = json.loads((FIXTURES / "drafter.json").read_text())
    return told


def test_the_drafter_ran_into_its_capacity_not_into_fragmentation() -> None:
    told = drafter()
    oom = DeviceOom(
        request_bytes=gib(told["request_gib"]),
        capacity_bytes=gib(told["capacity_gib"]),
        free_bytes=gib(told["free_gib"]),
        allocated_bytes=gib(told["allocated_gib"]),
    )
    assert judge_device_oom(oom) == "capacity"
    # Even had every byte that is neither free nor allocated been cached: 0.11 < 0.17 GiB.
    assert oom.shortfall_bytes is not None
    assert oom.reclaimable_bytes is not None
    assert (oom.reclaimable_bytes - gib(told["free_gib"])) / GIB == pytest.approx(0.11, abs=0.005)
    assert oom.shortfall_bytes / GIB == pytest.approx(0.06, abs=0.005)


def test_the_drafters_text_as_torch_writes_it_reads_capacity_too() -> None:
    told = drafter()
    oom = parse_device_oom(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {told['request_gib']} GiB. "
        f"GPU 5 has a total capacity of {told['capacity_gib']} GiB of which {told['free_gib']} GiB "
        f"is free. Of the allocated memory {told['allocated_gib']} GiB is allocated by PyTorch, "
        f"and 12.50 MiB is reserved by PyTorch but unallocated.{ADVICE}"
    )
    assert oom is not None
    assert judge_device_oom(oom) == "capacity"
    assert judge_device_oom(oom, neighbour_bytes=0) == "capacity"


def full(**other: int) -> DeviceOom:
    numbers = {
        "request_bytes": 10 * MIB, "capacity_bytes": 1000 * MIB, "free_bytes": 4 * MIB,
        "allocated_bytes": 900 * MIB, "reserved_unallocated_bytes": 5 * MIB,
    }  # fmt: skip
    return DeviceOom(**{**numbers, **other})


def test_exactly_enough_cached_bytes_are_fragmentation_and_one_less_are_not() -> None:
    assert judge_device_oom(full(reserved_unallocated_bytes=6 * MIB)) == "fragmentation"
    assert judge_device_oom(full(reserved_unallocated_bytes=6 * MIB - 1)) == "capacity"


def test_a_neighbour_is_blamed_only_if_it_is_large_and_would_have_made_the_difference() -> None:
    assert judge_device_oom(full(), neighbour_bytes=None) == "capacity"
    assert judge_device_oom(full(), neighbour_bytes=0) == "capacity"
    assert judge_device_oom(full(), neighbour_bytes=19 * MIB) == "capacity"  # a context
    assert judge_device_oom(full(), neighbour_bytes=20 * MIB) == "neighbour"
    greedy = full(request_bytes=200 * MIB)
    assert judge_device_oom(greedy, neighbour_bytes=100 * MIB) == "capacity"
    # Bytes that were there all the time are nobody else's fault.
    fragmented = full(reserved_unallocated_bytes=50 * MIB)
    assert judge_device_oom(fragmented, neighbour_bytes=500 * MIB) == "fragmentation"


def test_an_error_without_numbers_is_never_fragmentation() -> None:
    assert judge_device_oom(DeviceOom()) == "capacity"
    assert judge_device_oom(DeviceOom(), neighbour_bytes=GIB) == "neighbour"


sizes = st.none() | st.integers(0, 1 << 40)


@given(
    st.builds(
        DeviceOom,
        request_bytes=sizes,
        free_bytes=sizes,
        reserved_unallocated_bytes=sizes,
        allocated_bytes=sizes,
        capacity_bytes=sizes,
    ),
    sizes,
)
def test_fragmentation_is_said_exactly_when_the_inequality_is_shown(
    oom: DeviceOom, neighbour: int | None
) -> None:
    request, free, cached = oom.request_bytes, oom.free_bytes, oom.reserved_unallocated_bytes
    known = request is not None and free is not None and cached is not None
    shown = known and (free or 0) + (cached or 0) >= (request or 0)
    assert (judge_device_oom(oom, neighbour_bytes=neighbour) == "fragmentation") == shown


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    parse_device_oom(text)
    parse_device_oom(f"CUDA out of memory. Tried to allocate {text}")
