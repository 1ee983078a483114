"""Finds and calls the programs of Slurm, munge and MariaDB.

Not here: what they are called for.
Invariant: a call has a time limit, and an environment that says nothing of another cluster.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .fault import CONFIGURATION, SLURM, Fault

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SLURM_PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "scontrol")
ACCOUNTING_PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")
SLURM_PACKAGES = "slurmctld slurmd slurm-client munge"
ACCOUNTING_PACKAGES = "slurmdbd mariadb-server"
CALL_TIMEOUT_S = 20.0


def search_path() -> str:
    """Where programs are looked for: daemons lie in folders that a user's PATH often lacks."""
    return os.pathsep.join(filter(None, (os.environ.get("PATH"), SYSTEM_PATH)))


def find(program: str) -> str:
    """The path of a program.

    Raises:
        Fault: It is not installed.
    """
    found = shutil.which(program, path=search_path())
    if found is None:
        raise Fault(CONFIGURATION, f"no {program} on this machine", _install_hint(program))
    return found


def need(*, accounting: bool) -> list[int]:
    """Sees that all programs are there, before anything is written; returns Slurm's version.

    Raises:
        Fault: One is not installed.
    """
    for program in SLURM_PROGRAMS + (ACCOUNTING_PROGRAMS if accounting else ()):
        find(program)
    told = call(["slurmd", "-V"], environment("")).stdout
    numbers = re.search(r"(\d+)\.(\d+)", told)
    if numbers is None:
        raise Fault(CONFIGURATION, f"slurmd -V says no version but {told.strip()!r}")
    return [int(number) for number in numbers.groups()]


def _install_hint(program: str) -> str:
    packages = SLURM_PACKAGES
    if program in ACCOUNTING_PROGRAMS:
        packages += f" {ACCOUNTING_PACKAGES}"
    return f"on Debian or Ubuntu: apt-get install {packages}"


def environment(conf: str | Path) -> dict[str, str]:
    """What every program of one cluster is started with."""
    kept = {name: os.environ[name] for name in ("HOME", "USER", "TZ") if name in os.environ}
    return kept | {"PATH": search_path(), "LC_ALL": "C.UTF-8", "SLURM_CONF": str(conf)}


def call(
    argv: list[str], env: Mapping[str, str], *, timeout_s: float = CALL_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Runs a client program to its end; its exit code is the caller's to judge.

    Raises:
        Fault: It is not installed, or hangs.
    """
    try:
        return subprocess.run(
            [find(argv[0]), *argv[1:]],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Fault(SLURM, f"{argv[0]} gave no answer within {timeout_s:g} s") from None
