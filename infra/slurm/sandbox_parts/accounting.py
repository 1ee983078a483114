"""Accounting of one cluster: a MariaDB of its own, slurmdbd, an account with its user and limit.

Not here: the settings that turn it on in slurm.conf; they are in site.
Invariant: the database listens on one socket in the private folder and on no port, so that it
needs no password.
"""

from __future__ import annotations

import os
import socket

from . import ports, programs
from .daemons import Daemons
from .fault import SLURM, Fault

ACCOUNT = "proj"
PREPARE_TIMEOUT_S = 120.0


def start(daemons: Daemons) -> None:
    """Starts the database and slurmdbd, and waits until it answers. munged must run already."""
    base = daemons.settings.base
    database = _start_database(daemons)
    socket_path = f"{base}/run/db.socket"
    mariadbd = daemons.start("mariadbd", ["mariadbd", *database, "--skip-networking"])
    waiting = {"mariadbd": mariadbd}
    daemons.wait("the database does not listen", lambda: _listens(socket_path), waiting)
    slurmdbd = daemons.start("slurmdbd", ["slurmdbd", "-D"], {"MYSQL_UNIX_PORT": socket_path})
    waiting["slurmdbd"] = slurmdbd
    daemons.wait("slurmdbd does not answer", lambda: _answers(daemons), waiting)
    _fill(daemons)


def _start_database(daemons: Daemons) -> list[str]:
    """Makes an empty database; returns the options that its server needs."""
    base = daemons.settings.base
    here = [f"--datadir={base}/db", f"--user={daemons.settings.user}", "--skip-name-resolve"]
    prepared = programs.call(
        [
            "mariadb-install-db",
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *here,
        ],
        daemons.environment(),
        timeout_s=PREPARE_TIMEOUT_S,
    )
    if prepared.returncode:
        last = "\n  ".join((prepared.stdout + prepared.stderr).strip().splitlines()[-3:])
        raise Fault(SLURM, "the accounting database could not be prepared", last)
    return [
        "--no-defaults",
        *here,
        f"--socket={base}/run/db.socket",
        f"--pid-file={base}/run/mariadbd.pid",
        f"--tmpdir={base}/run",
        "--innodb-buffer-pool-size=32M",
        "--innodb-lock-wait-timeout=900",  # Source: slurmdbd asks for it at its start
        "--innodb-flush-log-at-trx-commit=0",  # nothing of it outlives the cluster
    ]


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _answers(daemons: Daemons) -> bool:
    if not ports.is_taken(daemons.settings.first_port + 1):
        return False
    listed = programs.call(["sacctmgr", "-n", "-P", "list", "cluster"], daemons.environment())
    return listed.returncode == 0


def _fill(daemons: Daemons) -> None:
    user = daemons.settings.user
    _sacctmgr(daemons, "add", "cluster", "sandbox")
    _sacctmgr(daemons, "add", "account", ACCOUNT, "Description=sandbox", "Organization=sandbox")
    _sacctmgr(daemons, "add", "user", user, f"Account={ACCOUNT}", f"DefaultAccount={ACCOUNT}")
    if os.geteuid() == 0:  # root comes with an account of its own and keeps its default there
        _sacctmgr(daemons, "modify", "user", user, "set", f"DefaultAccount={ACCOUNT}")
    minutes = daemons.settings.grp_node_minutes
    if minutes is not None:
        _sacctmgr(daemons, "modify", "account", ACCOUNT, "set", f"GrpTRESMins=node={minutes}")


def _sacctmgr(daemons: Daemons, *words: str) -> None:
    done = programs.call(["sacctmgr", "-i", *words], daemons.environment())
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise Fault(SLURM, f"sacctmgr {' '.join(words)} failed", said)
