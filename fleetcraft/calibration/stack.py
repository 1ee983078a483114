"""What runs here: torch, its attention backend and allocator, the device, the host.

One description for a trial's record, for the check inside a task, and, as a program, for a worker,
which loads no torch itself. A CPU is called ``cpu`` and its model, and has no memory of its own:
its job limits a trial there. Invariant: what cannot be read is empty or None, never guessed.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Sequence

import msgspec

from fleetcraft.batch_table.records import allocator_settings
from fleetcraft.calibration.records import Environment
from fleetcraft.errors import DeviceError, FleetError, UsageError
from fleetcraft.gpu.devices import GpuFacts, describe_gpus
from fleetcraft.identity import this_host, this_job_run

_USAGE = "python -m fleetcraft.calibration.stack [--json] [--device D] [--limit S]"


def describe_stack(device: str = "auto") -> Environment:
    """Describes this process's stack; imports torch.

    Args:
        device: ``cpu``, ``cuda``, ``cuda:N``, or ``auto`` for CUDA where torch sees it.

    Raises:
        DeviceError: There is no such device, or the driver refuses.
        ImportError: There is no torch here.
    """
    import torch

    from fleetcraft.calibration.checks.sdpa import active_backend
    from fleetcraft.calibration.trial.cgroup import host_limit_bytes

    where = _resolve(device)
    gpu = _gpu(where) if where.startswith("cuda") else None
    host = this_host()
    return Environment(
        device=gpu.name if gpu else cpu_name(),
        device_mem_mib=gpu.mem_mib if gpu else None,
        power_limit_w=gpu.power_limit_w if gpu else None,
        driver=gpu.driver if gpu else "",
        torch=str(torch.__version__),
        sdpa=active_backend(where),
        alloc=allocator_settings(os.environ),
        python=platform.python_version(),
        host=host.host,
        cpus=len(os.sched_getaffinity(0)),
        host_limit_bytes=host_limit_bytes(),
        job=this_job_run(os.environ).job,
    )


def cpu_name(path: str = "/proc/cpuinfo") -> str:
    """``cpu`` and the processor's model, as the kernel calls it.

    On ARM the kernel has no name for a model, only the numbers of implementer and part.
    """
    facts: dict[str, str] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                facts.setdefault(name.strip(), " ".join(value.split()))
    except OSError:
        pass
    parts = (facts.get("CPU implementer", ""), facts.get("CPU part", ""))
    model = facts.get("model name") or " ".join([platform.machine(), *filter(None, parts)])
    return f"cpu {model}"


def _resolve(device: str) -> str:
    import torch

    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    wanted = "cuda" if device == "auto" else device
    number = wanted.removeprefix("cuda").removeprefix(":")
    if not wanted.startswith("cuda") or not (number.isdecimal() or wanted == "cuda"):
        raise UsageError(f"no device is called {device!r}", hint="cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise DeviceError(f"torch cannot use {device!r} here", device=device)
    return f"cuda:{number or torch.cuda.current_device()}"


def _gpu(where: str) -> GpuFacts:
    import torch

    properties = torch.cuda.get_device_properties(where)
    uuid = str(getattr(properties, "uuid", ""))
    try:
        gpus = describe_gpus()
    except DeviceError:
        gpus = []
    named = [gpu for gpu in gpus if uuid and gpu.uuid.endswith(uuid)]
    if named or len(gpus) == 1:
        return (named or gpus)[0]
    # Torch's total is less than the driver's, so it is no stand-in for it.
    return GpuFacts(uuid=uuid, name=str(properties.name))


def main(words: Sequence[str]) -> int:
    """Prints one JSON value: the environment; ``torch`` is empty where there is none."""
    rest = [word for word in words if word != "--json"]
    options = dict(zip(rest[::2], rest[1::2], strict=False))
    if len(rest) % 2 or set(options) - {"--device", "--limit"}:
        sys.stderr.write(f"usage: {_USAGE}\n")
        return 2
    # Ends this process by its default action, also while a library is being loaded.
    signal.setitimer(signal.ITIMER_REAL, float(options.get("--limit", 0)))
    try:
        said: bytes = msgspec.json.encode(describe_stack(options.get("--device", "auto")))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        said = msgspec.json.encode(
            {"torch": "", "device": cpu_name(), "error": f"{error} in {sys.executable}"}
        )
    except (FleetError, ImportError, OSError, RuntimeError) as error:
        said = msgspec.json.encode({"error": str(error).partition("\n")[0]})
    sys.stdout.buffer.write(said + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
