"""With which versions a run's command runs: its Python, torch and CUDA build, driver, packages.

Read from the files that installers leave, without importing anything. The command's interpreter
may be another than this one, and then it is asked, in a bounded process. Invariant: what is not
installed or cannot be read is left out, and nothing is guessed.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence

ALL = "*"
"""As a package's name: every package that is installed there."""
_LIMIT_S = 20.0
_KERNEL_MODULE = "/proc/driver/nvidia/version"
_DIST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*?)-([^-]+)(?:-py[\d.]+)?\.(?:dist-info|egg-info)")
_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_ASK = "import json, platform, sys; print(json.dumps([platform.python_version(), sys.path]))"


def collect_stack(
    packages: Iterable[str] = (),
    *,
    command: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    directory: str = "",
) -> dict[str, str]:
    """The versions with which a command runs.

    Args:
        packages: Packages beside torch whose versions count; `ALL` for every one.
        command: The command's words; its interpreter is that of its first program: a Python, or a
            script that names one, such as torchrun. This process's own without a command.
        environ: The command's environment; this process's if None.
        directory: Where it runs.

    Returns:
        ``python``, ``torch``, ``cuda`` (of the torch build), ``driver``, ``interpreter``, and
        every package by its normalized name. What is not known or not installed is left out. A
        command whose interpreter cannot be told has ``driver`` alone.
    """
    environ = os.environ if environ is None else environ
    found: dict[str, str] = {}
    if driver := driver_version():
        found["driver"] = driver
    interpreter = interpreter_of(command, environ, directory) if command else sys.executable
    told = _ask(interpreter, environ, directory) if interpreter else None
    if told is None:
        return found
    found["interpreter"] = interpreter
    found["python"], folders = told
    installed, torch_folder = _installed(folders)
    if "torch" in installed:
        found["torch"] = installed["torch"]
    if torch_folder and (cuda := _cuda_of(torch_folder)):
        found["cuda"] = cuda
    wanted = list(packages)
    names = sorted(installed) if ALL in wanted else [normal_name(name) for name in wanted]
    return found | {name: installed[name] for name in names if name in installed}


def interpreter_of(command: Sequence[str], environ: Mapping[str, str], directory: str = "") -> str:
    """The Python that runs a command, as a path; empty when that cannot be told from its words.

    ``env NAME=VALUE`` and ``srun`` are not followed: what they start may lie on another node.
    """
    if not command:
        return ""
    place = os.path.join(directory or os.curdir, command[0])
    if os.sep in command[0]:
        program = place if os.access(place, os.X_OK) else ""
    else:
        program = shutil.which(command[0], path=environ.get("PATH", os.defpath)) or ""
    if not program or _is_python(program):
        return program
    try:
        with open(program, "rb") as file:
            first = file.readline(4096)
    except OSError:
        return ""
    if not first.startswith(b"#!"):
        return ""
    words = first[2:].decode("utf-8", "surrogateescape").split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
        words[:1] = [shutil.which(words[0], path=environ.get("PATH", os.defpath)) or ""] * bool(
            words
        )
    return words[0] if words and _is_python(words[0]) else ""


def driver_version(path: str = _KERNEL_MODULE) -> str:
    """The version of the loaded NVIDIA kernel module; empty without one. Asks no driver.

    Source: NVIDIA driver README, "The /proc filesystem interface".
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.search(r"Module\D.*?\s(\d+(?:\.\d+)+)\s", file.read(4096))
    except OSError:
        return ""
    return found[1] if found else ""


def normal_name(name: str) -> str:
    """A package's name in its normal form. Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_python(program: str) -> bool:
    return _PYTHON.fullmatch(os.path.basename(program)) is not None


def _ask(
    interpreter: str, environ: Mapping[str, str], directory: str
) -> tuple[str, list[str]] | None:
    """Version and import path of an interpreter; None when it does not answer in time."""
    if interpreter == sys.executable and environ is os.environ:
        return platform.python_version(), list(sys.path)
    try:
        said = subprocess.run(
            [interpreter, "-c", _ASK],
            env=dict(environ),
            cwd=directory or None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=True,
        ).stdout
        version, folders = json.loads(said)
        return str(version), [str(folder) for folder in folders]
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _installed(folders: Iterable[str]) -> tuple[dict[str, str], str]:
    """Packages by normalized name, and the folder of the first torch.

    Names and versions stand in the names of the folders that installers leave, so nothing is
    opened: on a network file system that is the difference between 200 requests and a few.
    Source: PyPA, "Recording installed projects".
    """
    found: dict[str, str] = {}
    torch_folder = ""
    for folder in dict.fromkeys(folders):
        try:
            names = os.listdir(folder or os.curdir)
        except OSError:
            continue  # a zip archive, or no longer there
        for name in names:
            if dist := _DIST.fullmatch(name):
                found.setdefault(normal_name(dist[1]), dist[2].removesuffix(".dist-info"))
        if not torch_folder and "torch" in names:
            torch_folder = os.path.join(folder, "torch")
    return found, torch_folder


def _cuda_of(torch_folder: str) -> str:
    """The CUDA version that torch was built for; empty for a build without it."""
    try:
        with open(os.path.join(torch_folder, "version.py"), encoding="utf-8") as file:
            found = _CUDA.search(file.read(65536))
    except (OSError, UnicodeDecodeError):
        return ""
    return found[1] if found else ""
