"""The NVIDIA driver of this machine, through NVML: does it answer, and are all GPUs there?

The calls are made in this process, which whoever started it ends if the driver hangs. Invariant: a
machine without a GPU is no fault, and a GPU without a driver is one.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

import msgspec

from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Finding, advice, ok, unknown, wrong
from fleetcraft.gpu.nvml import DriverError, Library, Versions, count_gpus, valid_entries
from fleetcraft.gpu.status import Status

_NO_DRIVER = frozenset({Status.NO_NVML, Status.DRIVER_NOT_LOADED})
_PCI = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"
_MIB_PER_GIB = 1024


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as the driver tells it; what it does not say is empty or None.

    Attributes:
        name: Its model.
        mem_mib: Its memory.
        capability: Its compute capability, major and minor.
        problem: Why it could not be read.
    """

    name: str = ""
    mem_mib: float | None = None
    capability: tuple[int, int] | None = None
    problem: str = ""


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML says.

    Attributes:
        versions: Of the driver, as far as it says.
        gpus: Every GPU that it shows; None where it does not answer.
        problem: Why it does not answer.
        is_absent: Whether there is no driver at all.
    """

    versions: Versions = Versions()
    gpus: tuple[Gpu, ...] | None = None
    problem: str = ""
    is_absent: bool = False


def read_driver() -> DriverFacts:
    """Asks NVML. A call into a stuck driver never returns: call this where that can be borne."""
    try:
        library = Library()
    except DriverError as error:
        return DriverFacts(
            versions=error.versions, problem=error.message, is_absent=error.status in _NO_DRIVER
        )
    try:
        code, count = library.ask("nvmlDeviceGetCount")
        if code:
            why = f"the driver does not say how many GPUs there are (NVML code {code})"
            return DriverFacts(versions=library.versions(), problem=why)
        gpus = tuple(_read(library, index) for index in range(count))
        return DriverFacts(versions=library.versions(), gpus=gpus)
    finally:
        library.close()


def _read(library: Library, index: int) -> Gpu:
    code, handle = library.ask("nvmlDeviceGetHandleByIndex", index)
    if code:
        return Gpu(problem=f"GPU {index} cannot be reached (NVML code {code})")
    code, memory = library.ask("nvmlDeviceGetMemoryInfo", handle)
    _, capability = library.ask("nvmlDeviceGetCudaComputeCapability", handle)
    return Gpu(
        name=library.text("nvmlDeviceGetName", handle),
        mem_mib=None if code else int(memory.total) / (1 << 20),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        problem=f"GPU {index} does not tell its memory (NVML code {code})" if code else "",
    )


def check_driver(case: Case) -> Iterator[Finding]:
    """The driver, its GPUs, and how many of them this process may use."""
    facts = read_driver()
    on_bus = gpus_on_bus()
    yield judge_driver(facts, on_bus)
    if facts.gpus is None:
        return
    yield judge_gpus(facts.gpus, None if "SLURM_JOB_ID" in case.environ else on_bus)
    if (visible := case.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        yield _visible(visible, len(facts.gpus))


def judge_driver(facts: DriverFacts, on_bus: int | None) -> Finding:
    """Whether the driver answers, where there is something for it to drive.

    Args:
        facts: What NVML said.
        on_bus: NVIDIA GPUs on the PCI bus; None when that cannot be seen.
    """
    versions = facts.versions
    if facts.gpus is not None:
        found = (
            f"{versions.driver_version or 'a driver'}, CUDA up to {versions.cuda_version or '?'}"
        )
        if versions.kernel_module and versions.kernel_module != versions.driver_version:
            found += f", kernel module {versions.kernel_module}"
            hint = "the driver was updated: a reboot, or a reload of its module, by the operators"
            return wrong("driver", found, "library and kernel module of one version", hint)
        return ok("driver", found)
    if facts.is_absent and not on_bus:
        seen = "none is on its bus" if on_bus == 0 else "whether one is on its bus is not known"
        return ok("driver", f"no NVIDIA driver, and {seen}: this machine is used without GPUs")
    if facts.is_absent:
        hint = "nvidia-smi should list them; the operators load the driver"
        return wrong("driver", f"{on_bus} NVIDIA GPUs, and {facts.problem}", "a driver", hint)
    return wrong("driver", facts.problem, "an answer", "nvidia-smi shows what the driver says")


def gpus_on_bus(folder: str = _PCI) -> int | None:
    """How many NVIDIA display controllers the kernel sees; None when it does not tell.

    Source: Documentation/ABI/testing/sysfs-bus-pci; vendor and class are hex numbers, class 03 is
    display controllers (PCI Code and ID Assignment).
    """
    if not os.path.isdir(folder):
        return None
    count = 0
    for device in glob.glob(f"{glob.escape(folder)}/*"):
        try:
            with open(f"{device}/vendor", encoding="ascii", errors="replace") as file:
                vendor = file.read().strip()
            with open(f"{device}/class", encoding="ascii", errors="replace") as file:
                kind = file.read().strip()
        except OSError:
            continue
        count += vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS)
    return count


def judge_gpus(gpus: tuple[Gpu, ...], on_bus: int | None) -> Finding:
    """Whether every GPU of the machine is there and can be read.

    Args:
        gpus: Those that the driver shows.
        on_bus: How many are on the bus; None when that is not known, or not all are meant for here.
    """
    hint = "nvidia-smi -L, and dmesg | grep -i xid; tell the operators, and use another node"
    if problems := [gpu.problem for gpu in gpus if gpu.problem]:
        return wrong("GPUs", "; ".join(problems), f"all {len(gpus)} can be read", hint)
    if on_bus is not None and on_bus > len(gpus):
        found = f"the driver shows {len(gpus)} of {on_bus} GPUs on the bus"
        return advice("GPUs", found, "all of them, unless a container was given some", hint)
    if not gpus:
        return advice("GPUs", "a driver, and no GPU that it shows", "", hint)
    kinds = {(gpu.name, gpu.mem_mib) for gpu in gpus}
    words = ", ".join(f"{name or 'a GPU'}{_memory(mib)}" for name, mib in sorted(kinds, key=str))
    return ok("GPUs", f"{len(gpus)}: {words}")


def _memory(mib: float | None) -> str:
    return "" if mib is None else f" ({mib / _MIB_PER_GIB:.1f} GiB)"


def _visible(text: str, shown: int) -> Finding:
    found = f"CUDA_VISIBLE_DEVICES={text!r}"
    count = count_gpus()
    if not valid_entries(text) and shown:
        return advice(
            "visible GPUs",
            f"{found} hides all {shown} GPUs from this process",
            "",
            "in a job, ask for GPUs: slurm.gpus_per_node, or --gpus-per-node; else unset it",
        )
    if count is None:
        return unknown("visible GPUs", f"{found}: how many that are is not known")
    return ok("visible GPUs", f"{found}: {count}")
