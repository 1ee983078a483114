"""Handing nodes to all-smi, a viewer that goes to them by ssh.

Not here: which nodes. Invariant: the user's own known_hosts is neither believed nor written, and
nothing of a call is left behind.

Source: all-smi's monitoring guide, "Agentless SSH mode", and its ``view --help``.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence

from fleetcraft.errors import ConfigError
from fleetcraft.trust import find_program, node_local_folder

PROGRAM = "all-smi"
CONNECT_TIMEOUT_S = 8
"""How long one node may take to answer: a dead one must not hold up the view of the others."""


def find() -> str:
    """The path of the program.

    Raises:
        ConfigError: It is not on PATH.
    """
    path = find_program(PROGRAM)
    if path is None:
        raise ConfigError(
            f"{PROGRAM} is not on PATH; nothing was started",
            hint="install it (https://github.com/lablup/all-smi), or use fleetcraft top without "
            "--all-smi, which needs no ssh",
            program=PROGRAM,
        )
    return path


def show(program: str, nodes: Sequence[str]) -> int:
    """Runs it on these nodes until the person leaves it.

    Node names are used again by clusters, with new host keys, and a key that differs from a known
    one makes all-smi drop the node without a word. So each call begins with an empty known_hosts of
    its own that takes each node's first key.

    Args:
        program: Its path.
        nodes: Names that ssh can reach from here.

    Returns:
        Its exit code; 128 and the signal's number if a signal ended it.

    Raises:
        OSError: It cannot be started.
    """
    folder = tempfile.mkdtemp(prefix="all-smi-", dir=node_local_folder())
    try:
        hosts = f"{folder}/hosts"
        with open(hosts, "w", encoding="utf-8") as file:
            file.writelines(f"{_user()}@{node}\n" for node in nodes)
        argv = [
            program, "view",
            "--ssh-hostfile", hosts,
            "--ssh-known-hosts", f"{folder}/known_hosts",
            "--ssh-strict-host-key", "accept-new",
            "--ssh-timeout-secs", str(CONNECT_TIMEOUT_S),
        ]  # fmt: skip
        return _run(argv)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _run(argv: Sequence[str]) -> int:
    # Ctrl-C goes to both; what it means is for the one that has the screen.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = subprocess.run(argv, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code
