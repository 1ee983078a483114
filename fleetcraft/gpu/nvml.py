"""The NVML binding, the driver's library behind it, and the GPUs that this process may use.

The only module that imports ``pynvml``. Repeated sampling is in `sampling`. Invariant: a driver
that does not answer is an error or an empty list with a reason, never a made-up device.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import msgspec

from fleetcraft.errors import DeviceError
from fleetcraft.gpu import causes
from fleetcraft.gpu.status import Status

_MIB = 1 << 20
_DRIVER_GPUS = "/proc/driver/nvidia/gpus"
_KERNEL_MODULE = "/proc/driver/nvidia/version"


def visible_gpus() -> list[str]:
    """The GPUs of this process, one entry each, in CUDA's order.

    ``CUDA_VISIBLE_DEVICES``, which Slurm sets for a job's share of the node, limits them. Where
    NVML answers, the entries are UUIDs; where it does not, Slurm's own entries are used.

    Returns:
        UUIDs (``GPU-…``, ``MIG-…``), or the variable's own entries, each once; empty when it is
        set empty.

    Raises:
        DeviceError: NVML does not answer and nothing else says what GPUs there are.
    """
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    entries = None if allowed is None else valid_entries(allowed)
    if entries == []:
        return []
    try:
        uuids = _uuids()
    except DeviceError:
        if entries:
            return list(dict.fromkeys(entries))
        raise
    if entries is None:
        return uuids
    # A GPU that is named twice, by index and by UUID, is still one.
    return list(dict.fromkeys(_resolve(entry, uuids) for entry in entries))


def count_gpus() -> int | None:
    """How many GPUs this process may use, without asking the driver; None when nothing says.

    Source: ``/proc/driver/nvidia/gpus`` has a folder for each GPU of the node (NVIDIA driver
    README, "The /proc filesystem interface").
    """
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None:
        return len(set(valid_entries(allowed)))
    try:
        return len(os.listdir(_DRIVER_GPUS))
    except OSError:
        return None


def valid_entries(text: str) -> list[str]:
    """The entries before the first invalid one: CUDA sees no device after that.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables". ``NoDevFiles`` is what Slurm
    sets for a job without GPUs.
    """
    entries = (entry.strip() for entry in text.split(","))
    return list(takewhile(lambda entry: entry not in ("", "-1", "NoDevFiles"), entries))


def _resolve(entry: str, uuids: list[str]) -> str:
    if entry.isdecimal():
        if int(entry) < len(uuids):
            return uuids[int(entry)]
        raise DeviceError(
            f"CUDA_VISIBLE_DEVICES names GPU {entry}, but the driver shows {len(uuids)}",
            hint="nvidia-smi -L lists them",
        )
    whole = [uuid for uuid in uuids if uuid.startswith(entry)]
    return whole[0] if len(whole) == 1 else entry


def _uuids() -> list[str]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"the NVIDIA driver does not answer: {error}", hint="nvidia-smi should list the GPUs"
        ) from error
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver could not list its GPUs: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, read once. What the driver did not say is None, and ``status`` says why.

    Attributes:
        index: The driver's number of it.
        util_pct: Busy share of at most the last second, 0 to 100.
        mem_used_mib: In use, without what the driver keeps for itself.
        status: ``ok``, else the first cause met, a word of `Status`.
    """

    index: int
    uuid: str = ""
    util_pct: float | None = None
    mem_used_mib: float | None = None
    mem_total_mib: float | None = None
    status: str = "ok"


def read_gpus() -> list[Reading]:
    """Reads every GPU that the driver shows to this process; one in a bad state hides no other.

    A call into a stuck driver never returns: call this where that can be borne.

    Raises:
        DeviceError: The driver does not answer, or cannot say how many there are.
    """
    import pynvml

    # A binding that is newer than the driver's library raises the second, which is no NVMLError.
    failures = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except failures as error:
        raise DeviceError(f"the NVIDIA driver does not answer: {error}") from error
    return [_read(pynvml, index, failures) for index in range(count)]


def _read(pynvml: Any, index: int, failures: tuple[type[Exception], ...]) -> Reading:
    found: list[Status] = []

    def ask(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except failures as error:
            # The binding's own complaint has no code: the driver lacks the function.
            found.append(causes.status_of(getattr(error, "value", causes.FUNCTION_NOT_FOUND)))
            return None

    handle = ask(lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
    if handle is None:
        return Reading(index=index, status=found[0])
    uuid = ask(lambda: _text(pynvml.nvmlDeviceGetUUID(handle)))
    use = ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
    # Version 2 alone leaves out the memory that the driver reserves.
    memory = ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))
    if memory is not None and not memory.total:
        memory = None
        found.append(Status.INVALID)
    return Reading(
        index=index,
        uuid=uuid or "",
        util_pct=None if use is None else float(use.gpu),
        mem_used_mib=None if memory is None else memory.used / _MIB,
        mem_total_mib=None if memory is None else memory.total / _MIB,
        status=found[0] if found else Status.OK,
    )


# ------------------------------------------------------------------------------ the library


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says of itself; empty what it does not say.

    ``kernel_module`` is what the loaded module says, which differs from ``driver_version`` of the
    library until a reboot after an update.
    """

    driver_version: str = ""
    nvml_version: str = ""
    cuda_version: str = ""
    kernel_module: str = ""


class DriverError(DeviceError):
    """The driver does not answer at all: there is no session, and nothing was read.

    Attributes:
        status: The cause.
        code: NVML's number of it; 0 when the answer was no code.
        versions: What could be read all the same.
    """

    def __init__(self, message: str, *, status: Status, code: int, versions: Versions) -> None:
        super().__init__(message, hint=_HINTS.get(status, ""), status=status.value, code=code)
        self.status = status
        self.code = code
        self.versions = versions


_HINTS = {
    Status.NO_NVML: "on a node with NVIDIA GPUs, nvidia-smi should list them",
    Status.DRIVER_NOT_LOADED: "nvidia-smi should list the GPUs; an administrator loads the driver",
    Status.VERSION_MISMATCH: "the driver was updated: a reboot or a reload of its module helps",
    Status.NO_PERMISSION: "ls -l /dev/nvidia* shows who may use the GPUs",
}


class Library:
    """The driver's library, initialized; `close` ends that.

    Calls may come from any thread, but a call that the driver does not answer never returns.

    Attributes:
        binding: The binding, for what is called now and then.

    Raises:
        DriverError: There is no library, or it refuses.
    """

    def __init__(self) -> None:
        import pynvml

        self.binding: Any = pynvml
        # The second is what a binding newer than the driver's library raises; it is no NVMLError.
        self.failures: tuple[type[Exception], ...] = (
            pynvml.NVMLError,
            pynvml.NVMLLibraryMismatchError,
        )
        try:
            pynvml.nvmlInit()
        except self.failures as error:
            raise self.refusal("does not answer", error) from error

    def close(self) -> None:
        """Ends the use of the library; what it has to say about that does not matter any more."""
        with contextlib.suppress(*self.failures):
            self.binding.nvmlShutdown()

    def functions(self, *names: str) -> list[Callable[..., int]]:
        """The functions of these names that this driver has, uncalled, in this order."""
        found = (getattr(self.binding.nvmlLib, name, None) for name in names)
        return [function for function in found if function is not None]

    def code_of(self, error: Exception) -> int:
        """NVML's number for what the binding raised; its own complaint is a missing function."""
        if isinstance(error, self.binding.NVMLError):
            return int(getattr(error, "value", causes.UNKNOWN))
        return causes.FUNCTION_NOT_FOUND

    def ask(self, name: str, *arguments: Any) -> tuple[int, Any]:
        """Calls one function of the binding.

        Returns:
            NVML's code and the answer, which is None unless the code is 0.
        """
        function = getattr(self.binding, name, None)
        if function is None:  # this binding is older than the function
            return causes.FUNCTION_NOT_FOUND, None
        try:
            return 0, function(*arguments)
        except self.failures as error:
            return self.code_of(error), None

    def text(self, name: str, *arguments: Any) -> str:
        """Calls one function of the binding that answers with a text; empty when it refuses.

        Whatever the driver says, it is one line of printable characters.
        """
        try:
            return clean(self.ask(name, *arguments)[1] or "")
        except UnicodeDecodeError:  # the binding decodes what it got
            return ""

    def pci_bus_id(self, handle: Any) -> str:
        """Where a GPU sits, ``domain:bus:device.function``; empty when the driver does not say."""
        code, pci = self.ask("nvmlDeviceGetPciInfo", handle)
        try:
            return "" if code else clean(pci.busId)
        except UnicodeDecodeError:
            return ""

    def versions(self) -> Versions:
        """What the driver says of itself, as far as it does."""
        cuda = self.ask("nvmlSystemGetCudaDriverVersion_v2")[1]
        return Versions(
            driver_version=self.text("nvmlSystemGetDriverVersion"),
            nvml_version=self.text("nvmlSystemGetNVMLVersion"),
            # Source: NVML API reference, NVML_CUDA_DRIVER_VERSION_MAJOR and _MINOR.
            cuda_version="" if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            kernel_module=_kernel_module(),
        )

    def refusal(self, what: str, error: Exception) -> DriverError:
        """The error that tells why there is no session."""
        code = self.code_of(error)
        status = causes.status_of(code)
        versions = self.versions()
        message = f"the NVIDIA driver {what}: {clean(str(error))} (NVML code {code})"
        if status == Status.VERSION_MISMATCH:
            library = versions.nvml_version or "unknown"
            message += f"; library {library}, kernel module {versions.kernel_module or 'unknown'}"
        return DriverError(
            f"{message}; no GPU was read", status=status, code=code, versions=versions
        )


def clean(text: str | bytes) -> str:
    """A driver's text as one line that fits a cell: no commas, quotes or control characters."""
    line = "".join(char if char.isprintable() else " " for char in _text(text))
    return " ".join(re.sub(r"[,;\"']", " ", line).split())


def _kernel_module() -> str:
    """The version of the loaded module; empty when there is none.

    Source: NVIDIA driver README, "The /proc filesystem interface": ``NVRM version: NVIDIA UNIX
    x86_64 Kernel Module  535.161.08  Mon …``, or ``… Open Kernel Module for x86_64  550.54.14 …``.
    """
    try:
        with open(_KERNEL_MODULE, encoding="utf-8", errors="replace") as file:
            found = re.search(r"Module\D.*?\s(\d+(?:\.\d+)+)\s", file.read(4096))
    except OSError:
        return ""
    return found[1] if found else ""
