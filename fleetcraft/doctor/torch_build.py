"""Whether the torch that tasks use fits this machine: its CUDA, its GPU architectures, its wheel.

Torch is imported by a bounded process of the tasks' own Python, never by this one. Judging is pure.
Invariant: a build is called wrong only for what cannot work; that torch uses the device is proof
that it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from fleetcraft.doctor.case import Case, ask_program, last_line
from fleetcraft.doctor.driver import DriverFacts, read_driver
from fleetcraft.doctor.findings import Finding, advice, ok, unknown, wrong

_LIMIT_S = 120.0
_ASK = """
import json, platform, sys, warnings
sys.path[:] = [folder for folder in sys.path if folder]
import importlib.util
facts = {"python": platform.python_version(), "machine": platform.machine()}
if importlib.util.find_spec("torch") is not None:
    try:
        import torch
        facts["torch"] = str(torch.__version__)
        facts["cuda"] = str(torch.version.cuda or "")
        facts["hip"] = str(getattr(torch.version, "hip", None) or "")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            facts["is_available"] = bool(torch.cuda.is_available())
            if facts["is_available"]:
                facts["devices"] = [
                    [torch.cuda.get_device_name(i), *torch.cuda.get_device_capability(i)]
                    for i in range(torch.cuda.device_count())
                ]
        facts["said"] = " ".join(str(one.message) for one in caught)[:500]
        flags = getattr(torch._C, "_cuda_getArchFlags", lambda: "")() or ""
        facts["archs"] = flags.split()
    except BaseException as error:
        facts["problem"] = (type(error).__name__ + ": " + str(error)).splitlines()[0][:300]
print()
print(json.dumps(facts))
"""
_SHADOW = re.compile(r"cuda|cudnn|nccl", re.IGNORECASE)
_ARCH = re.compile(r"(sm|compute)_(\d+)([af]?)")
_INDEX = "https://pytorch.org/get-started/locally names the index of the build that fits"


class TorchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the tasks' Python says of its torch.

    Attributes:
        python: Version of that Python.
        machine: ``x86_64``, ``aarch64``.
        torch: Torch's version; empty where there is none.
        cuda: The CUDA that it was built with; empty for a build without.
        hip: The same of ROCm.
        archs: What its kernels were built for: ``sm_90``, ``compute_90``.
        is_available: Whether it can use a CUDA device here; None if that was not asked.
        devices: Name and compute capability of each device that it sees.
        said: Its warnings.
        problem: Why it could not be imported or asked.
    """

    python: str
    machine: str = ""
    torch: str = ""
    cuda: str = ""
    hip: str = ""
    archs: tuple[str, ...] = ()
    is_available: bool | None = None
    devices: tuple[tuple[str, int, int], ...] = ()
    said: str = ""
    problem: str = ""


def check_torch(case: Case) -> Iterator[Finding]:
    """Torch, its CUDA build against the driver, and its kernels against the GPUs."""
    facts = ask_torch(case.python)
    yield judge_torch(facts, case.python)
    if facts.cuda and (shadows := judge_library_path(case.environ.get("LD_LIBRARY_PATH", ""))):
        yield shadows
    if facts.torch and not facts.problem:
        # Only now: a driver that hangs would take the answer above with it.
        yield from judge_build(facts, read_driver())


def judge_library_path(text: str) -> Finding | None:
    """Folders of LD_LIBRARY_PATH whose libraries may come before those of torch's own wheel.

    Source: ld.so(8): LD_LIBRARY_PATH is searched before the DT_RUNPATH of a library.
    """
    shadows = [folder for folder in text.split(":") if _SHADOW.search(folder)]
    if not shadows:
        return None
    return advice(
        "LD_LIBRARY_PATH",
        f"{', '.join(shadows)}: libraries of another CUDA come before those that torch brought",
        "none, for a torch of a wheel",
        "unset LD_LIBRARY_PATH, or unload that module, if torch crashes or finds no kernels",
    )


def ask_torch(python: str) -> TorchFacts:
    """Asks a Python about its torch, in a process of its own.

    Raises:
        FleetError: It cannot be started or did not answer in time.
    """
    code, out, err = ask_program([python, "-c", _ASK], _LIMIT_S)
    try:
        return msgspec.json.decode(last_line(out), type=TorchFacts)
    except (msgspec.DecodeError, RecursionError):
        how = f"ended by signal {-code}" if code < 0 else f"ended with status {code}"
        said = last_line(err) or "it said nothing"
        return TorchFacts(python="", problem=f"{python} {how} when it was asked: {said}")


def judge_torch(facts: TorchFacts, python: str) -> Finding:
    """Whether there is a torch that can be imported.

    Args:
        facts: What that Python said.
        python: Its path, for the words.
    """
    hint = "set batch.python to the Python of your tasks, or pip install 'fleetcraft[torch]'"
    if facts.problem:
        return wrong("torch", facts.problem, "torch can be imported", f"{python} -c 'import torch'")
    if not facts.torch:
        return advice("torch", f"{python} has no torch", "only where tasks need it", hint)
    build = f"CUDA {facts.cuda}" if facts.cuda else f"ROCm {facts.hip}" if facts.hip else "CPU only"
    return ok("torch", f"{facts.torch} ({build}, {facts.machine}), Python {facts.python}, {python}")


def judge_build(facts: TorchFacts, driver: DriverFacts) -> Iterator[Finding]:
    """Whether torch's build fits the driver and the GPUs of this machine."""
    if not driver.gpus:
        if driver.gpus is None and not driver.is_absent:
            yield unknown("device", f"the driver does not answer: {driver.problem}")
        else:
            yield ok("device", "no GPU here, so that the build for one was not compared")
        return
    if not facts.cuda:
        yield _without_cuda(facts, len(driver.gpus))
        return
    yield judge_cuda(facts, driver.versions.cuda_version)
    yield _device(facts, len(driver.gpus))
    capabilities = {gpu.capability for gpu in driver.gpus if gpu.capability is not None}
    capabilities |= {(major, minor) for _, major, minor in facts.devices}
    yield judge_archs(facts.archs, capabilities)


def _without_cuda(facts: TorchFacts, gpus: int) -> Finding:
    why = ""
    if facts.machine == "aarch64":
        why = "; on aarch64 a bare pip install can give such a wheel"
    return wrong(
        "CUDA build",
        f"torch {facts.torch} was built without CUDA, and this machine has {gpus} GPUs{why}",
        "a CUDA build of torch",
        f"pip install --force-reinstall torch --index-url URL; {_INDEX}",
    )


def judge_cuda(facts: TorchFacts, driver_cuda: str) -> Finding:
    """Whether torch's CUDA is one that the driver can serve.

    Args:
        facts: Torch's.
        driver_cuda: The newest CUDA of the driver, ``13.0``; empty if it does not say.

    Source: NVIDIA, "CUDA Compatibility": a driver serves every CUDA up to its own, and within one
    major version also a later minor one, there without compiling PTX. Packages of forward
    compatibility can lift that; then torch uses the device.
    """
    name, built, most = "CUDA build", _version(facts.cuda), _version(driver_cuda)
    if built is None or most is None:
        return unknown(name, f"torch has CUDA {facts.cuda}, and the driver's newest is not known")
    found = f"torch was built for CUDA {facts.cuda}, and the driver serves up to {driver_cuda}"
    if built <= most:
        return ok(name, found)
    if built[0] == most[0] or facts.is_available:
        what = "kernels that are compiled when first used (PTX) may fail"
        return advice(name, f"{found}: {what}", "a driver as new as the build", _INDEX)
    hint = f"install a build for CUDA {driver_cuda} or older, or have the driver updated; {_INDEX}"
    return wrong(name, found, f"a build for CUDA {most[0]} or older", hint)


def _version(text: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _device(facts: TorchFacts, gpus: int) -> Finding:
    if facts.is_available:
        names = ", ".join(sorted({name for name, _, _ in facts.devices}))
        return ok("device", f"torch uses {len(facts.devices)} of {gpus} GPUs: {names}")
    said = f": {facts.said}" if facts.said else ""
    hint = "CUDA_VISIBLE_DEVICES and the driver's version are the usual causes: nvidia-smi"
    return wrong("device", f"torch can use none of {gpus} GPUs{said}", "torch uses them", hint)


def judge_archs(archs: tuple[str, ...], capabilities: set[tuple[int, int]]) -> Finding:
    """Whether torch has kernels for these GPUs.

    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility": code for
    ``sm_XY`` runs on compute capability X.Z with Z at least Y; PTX of ``compute_XY`` is compiled
    for every later one; architecture-specific code (``a``) runs on exactly its own, family-specific
    code (``f``) within its major version.
    """
    name = "GPU architectures"
    if not archs or not capabilities:
        what = "what torch was built for" if not archs else "the GPUs' compute capability"
        return unknown(name, f"{what} is not known")
    lists = f"torch was built for {', '.join(archs)}"
    missing = [cap for cap in sorted(capabilities) if not any(_runs(a, cap) for a in archs)]
    if missing:
        found = f"{lists}, and not for compute capability {_listed(missing)}"
        return wrong(name, found, "kernels for every GPU", f"install another build; {_INDEX}")
    native = [cap for cap in capabilities if any(_runs(a, cap) for a in archs if "sm_" in a)]
    if len(native) < len(capabilities):
        found = f"{lists}; for {_listed(sorted(capabilities))} kernels are compiled when first used"
        return advice(
            name, found, "kernels for every GPU", f"a newer build starts faster; {_INDEX}"
        )
    return ok(name, f"{lists}; the GPUs have {_listed(sorted(capabilities))}")


def _runs(arch: str, capability: tuple[int, int]) -> bool:
    parsed = _ARCH.fullmatch(arch)
    if parsed is None:
        return False
    built = divmod(int(parsed[2]), 10)
    if parsed[3] == "a":
        return built == capability
    if parsed[1] == "compute" and not parsed[3]:
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def _listed(capabilities: list[tuple[int, int]]) -> str:
    return ", ".join(f"{major}.{minor}" for major, minor in capabilities)
