"""This Python and what is installed in it: where the toolkit runs, and what could get in its way.

Torch is `torch_build`'s. Invariant: nothing is imported to find out whether it is installed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata

import fleetcraft
from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Finding, advice, ok, unknown, wrong
from fleetcraft.doctor.mounts import room_on
from fleetcraft.errors import UnsafeSpoolError
from fleetcraft.trust import node_local_folder
from fleetcraft.units import format_bytes

_LEAST = (3, 11)
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
_LITTLE_SHARED_BYTES = 1 << 30
_NOT_FOR_USERS = frozenset({"dev"})


def check_python(case: Case) -> Iterator[Finding]:
    """The interpreter and its environment."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    found = f"{version}, {sys.executable}, {platform.machine()}"
    if sys.version_info < _LEAST:
        yield wrong("python", found, "3.11 or newer", "bin/demo makes an environment with one")
    else:
        yield ok("python", found, "3.11 or newer")
    yield _environment(case)
    if leaking := case.environ.get("PYTHONPATH"):
        yield advice(
            "PYTHONPATH",
            f"PYTHONPATH={leaking}: modules from there come before installed ones",
            "unset, unless it is meant",
            "unset PYTHONPATH; a module system may have set it",
        )


def _environment(case: Case) -> Finding:
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):
        return ok("environment", f"conda at {sys.prefix}")
    if sys.prefix != sys.base_prefix:
        return ok("environment", f"virtual environment {sys.prefix}")
    return advice(
        "environment",
        f"no environment of its own: {sys.prefix}",
        "a virtual environment, which no update of the system changes",
        "bin/demo makes .venv; or python3 -m venv .venv",
    )


def check_fleetcraft(case: Case) -> Iterator[Finding]:
    """Which fleetcraft runs, and which one PATH would start."""
    folder = os.path.dirname(os.path.abspath(fleetcraft.__file__))
    yield ok("fleetcraft", f"{fleetcraft.__version__}, {folder}")
    on_path = shutil.which("fleetcraft", path=case.environ.get("PATH"))
    own = os.path.join(os.path.dirname(sys.executable), "fleetcraft")
    if on_path is None:
        yield ok("on PATH", f"no fleetcraft is on PATH; {sys.executable} -m fleetcraft starts it")
    elif os.path.exists(own) and os.path.realpath(on_path) != os.path.realpath(own):
        yield advice(
            "on PATH",
            f"PATH starts {on_path}, which is another installation",
            own,
            f"source {os.path.dirname(own)}/activate, or call {own}",
        )
    else:
        yield ok("on PATH", on_path)


def check_packages(case: Case) -> Iterator[Finding]:
    """The packages that fleetcraft needs, and those of its extras."""
    try:
        needed, extras = requirements()
    except metadata.PackageNotFoundError:
        yield unknown(
            "packages",
            "fleetcraft runs without being installed, so what it needs is not listed",
            "pip install -e . in the checkout",
        )
        return
    missing = sorted(name for name in needed if version_of(name) is None)
    hint = "pip install -c infra/constraints.txt -e . in the checkout"
    if missing:
        yield wrong("packages", f"not installed: {', '.join(missing)}", "all of them", hint)
    else:
        yield ok("packages", f"all {len(needed)} that are needed are installed")
    yield _extras(extras)
    if version_of("pynvml") is not None:
        yield advice(
            "pynvml",
            f"the deprecated package pynvml {version_of('pynvml')} is installed",
            "nvidia-ml-py alone, which provides the module",
            "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py",
        )


def _extras(extras: dict[str, list[str]]) -> Finding:
    there: list[str] = []
    not_there: list[str] = []
    for extra, names in sorted(extras.items()):
        lacking = [name for name in names if version_of(name) is None]
        (not_there if lacking else there).append(extra)
    parts = [f"installed: {', '.join(there) or 'none'}"]
    if not_there:
        parts.append(f"not installed: {', '.join(not_there)}")
        parts.append(f"pip install 'fleetcraft[{not_there[0]}]' would add one")
    return ok("extras", "; ".join(parts))


def requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Names of the packages that fleetcraft needs, and those of each extra for users.

    Raises:
        PackageNotFoundError: It is not installed.

    Source: PyPA, "Core metadata specifications", Requires-Dist.
    """
    needed: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in metadata.requires("fleetcraft") or []:
        name = _NAME.match(line)
        if name is None:
            continue
        extra = _EXTRA.search(line)
        if extra is None:
            needed.append(name[0])
        elif extra[1] not in _NOT_FOR_USERS:
            extras.setdefault(extra[1], []).append(name[0])
    return needed, extras


def version_of(package: str) -> str | None:
    """The version of an installed package; None when it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_local_folders(case: Case) -> Iterator[Finding]:
    """Folders of this machine alone: locks in memory, temporary files."""
    try:
        yield judge_memory_folder(node_local_folder())
    except UnsafeSpoolError as error:
        yield wrong("node-local memory", error.message, "a private folder", error.hint)
    except OSError as error:
        found = f"{error.filename or '/dev/shm'}: {error.strerror}"
        hint = "df -h /dev/shm shows whether it is full; gates and polls need it"
        yield wrong("node-local memory", found, "a private folder can be made", hint)
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * 4096)
            file.flush()
        yield ok("temporary files", tempfile.gettempdir())
    except OSError as error:
        found = f"no temporary file can be made: {error.strerror or error}"
        hint = "set TMPDIR to a folder of this node with room"
        yield wrong("temporary files", found, "a folder of this node with room", hint)


def judge_memory_folder(folder: str) -> Finding:
    """Whether the file system of a folder in memory is large enough for data loaders too."""
    room = room_on(folder)
    found = f"{folder}, private, {format_bytes(room.total_bytes)}"
    if room.total_bytes < _LITTLE_SHARED_BYTES:
        return advice(
            "node-local memory",
            f"{found}: data loaders share batches there, and die with a bus error when it is full",
            f"{format_bytes(_LITTLE_SHARED_BYTES)} or more",
            "start the container with a larger --shm-size, or use num_workers=0",
        )
    return ok("node-local memory", found)
