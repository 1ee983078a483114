"""The folder of one cluster: its paths, its settings, and the configuration that Slurm reads.

Not here: any process.
Invariant: everything lies under the folder. A folder whose name is too long for a socket, or that
Slurm's configuration cannot spell, is reached through one private link, which the settings name.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .fault import NO, USAGE, Fault

MARK = "sandbox.json"
KEPT_BY_STOP = ("conf", "log", MARK)
REMOVED_BY_STOP = ("run", "spool", "state", "gpu", "db")
# A socket's path has at most 107 bytes. The longest here is a step's, in its node's spool folder:
# /spool/n100/n100_4294967295.4294967295
LONGEST_BASE = 60
PLAIN = re.compile(r"/[A-Za-z0-9_./-]*")
LOOPBACK = "127.0.0.1"
# With others in their place the cluster would not be found again, or would not stay in its folder.
OWN_SETTINGS = {
    "accountingstoragehost",
    "accountingstoragepass",
    "accountingstorageport",
    "accountingstoragetype",
    "authinfo",
    "authtype",
    "clustername",
    "include",
    "nodename",
    "slurmctldhost",
    "slurmctldlogfile",
    "slurmctldpidfile",
    "slurmctldport",
    "slurmdlogfile",
    "slurmdpidfile",
    "slurmdspooldir",
    "slurmduser",
    "slurmuser",
    "statesavelocation",
}
MEMORY_MIB_PER_NODE = 4000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a start was asked for and what it chose; kept in the folder until the next start."""

    gpus: list[int]  # of n1, n2, ...
    cpus_per_node: int
    slurmd_timeout_s: int
    accounting: bool
    grp_node_minutes: int | None
    overrides: dict[str, str] = field(default_factory=dict)  # lines of slurm.conf
    user: str
    base: str  # the folder as Slurm is told
    slurm_version: list[int]  # such as 22, 5
    first_port: int  # slurmctld's; slurmdbd has the next, and then each node one

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [f"n{number}" for number in range(1, len(self.gpus) + 1)]

    def port_of(self, node: str) -> int:
        """Where a node's slurmd listens."""
        return self.first_port + 2 + self.nodes.index(node)


class Folder:
    """The paths under one folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark = path / MARK
        self.log = path / "log"
        self.run = path / "run"

    def process_file(self, name: str) -> Path:
        """Where the keeper of a daemon or node is written down."""
        return self.run / f"{name}.process"

    def settings(self) -> Settings | None:
        """What the last start wrote, or None where there was none."""
        try:
            text = self.mark.read_text()
        except FileNotFoundError:
            return None
        if not text:  # a start was cut off before it chose anything
            return None
        try:
            return Settings(**json.loads(text)["settings"])
        except (ValueError, KeyError, TypeError):
            raise Fault(
                NO, f"{str(self.mark)!r} cannot be read as a sandbox's settings", "remove the file"
            ) from None

    def make(self) -> None:
        """Makes the folder private to its user, or refuses what does not look like a sandbox's.

        Raises:
            Fault: It holds other things, or belongs to somebody else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise Fault(USAGE, f"{str(self.path)!r} is not a folder", "name a new folder")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.stat().st_uid != os.geteuid():
            raise Fault(
                USAGE, f"{str(self.path)!r} belongs to another user", "name a folder of your own"
            )
        if not self.mark.exists() and any(self.path.iterdir()):
            raise Fault(
                USAGE,
                f"{str(self.path)!r} holds other things than a sandbox; nothing was written",
                "name a new or an empty folder",
            )
        self.path.chmod(0o700)

    def short_name(self) -> str:
        """The folder's own path where Slurm can use it, else a private link to it."""
        plain = str(self.path)
        if PLAIN.fullmatch(plain) and len(os.fsencode(plain)) <= LONGEST_BASE:
            return plain
        link = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp")) / "d"
        link.symlink_to(self.path)
        return str(link)

    def drop_link(self, base: str) -> None:
        """Removes the private link, if there is one and it leads here."""
        link = Path(base)
        if link != self.path and link.is_symlink() and Path(os.readlink(link)) == self.path:
            link.unlink()
            link.parent.rmdir()

    def lay_out(self, settings: Settings) -> None:
        """Writes the folders, the key, the devices and the configuration of a new cluster."""
        for name in (*REMOVED_BY_STOP, "conf", "log"):
            (self.path / name).mkdir(exist_ok=True)
        for node in settings.nodes:
            (self.path / "spool" / node).mkdir()
        for number in range(max(settings.gpus)):
            # Slurm wants a character device whose name ends in its number. This one does nothing,
            # whatever driver the machine has, and takes no root to make.
            (self.path / "gpu" / f"nvidia{number}").symlink_to("/dev/null")
        (self.run / "munge.key").write_bytes(secrets.token_bytes(128))
        (self.run / "munge.key").chmod(0o600)
        for name, text in configuration(settings).items():
            file = self.path / "conf" / name
            file.write_text(text)
            file.chmod(0o600)
        self.mark.write_text(json.dumps({"settings": asdict(settings)}, indent=1) + "\n")

    def clear(self, *, everything: bool) -> None:
        """Removes what a stopped cluster needs no longer; its logs and configuration on request."""
        for name in REMOVED_BY_STOP:
            shutil.rmtree(self.path / name, ignore_errors=True)
        if everything:
            for name in KEPT_BY_STOP:
                shutil.rmtree(self.path / name, ignore_errors=True)
                (self.path / name).unlink(missing_ok=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()


def user_name() -> str:
    """The name of the user that all daemons run as.

    Raises:
        Fault: The user has none, and Slurm knows users by name.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise Fault(
            NO, f"user id {os.geteuid()} has no name on this machine", "use an account of passwd"
        ) from None


def configuration(settings: Settings) -> dict[str, str]:
    """The files that Slurm's programs read, by name."""
    files = {
        "slurm.conf": _slurm_conf(settings),
        "gres.conf": _gres_conf(settings),
        "cgroup.conf": _cgroup_conf(settings),
    }
    if settings.accounting:
        files["slurmdbd.conf"] = _lines(_dbd(settings))
    return files


def _lines(values: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _slurm_conf(settings: Settings) -> str:
    base = settings.base
    values: dict[str, object] = {
        "ClusterName": "sandbox",
        "SlurmctldHost": f"localhost({LOOPBACK})",
        "SlurmctldPort": settings.first_port,
        "SlurmUser": settings.user,
        "SlurmdUser": settings.user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={base}/run/munge.socket",
        "StateSaveLocation": f"{base}/state",
        "SlurmdSpoolDir": f"{base}/spool/%n",
        "SlurmctldPidFile": f"{base}/run/slurmctld.pid",
        "SlurmdPidFile": f"{base}/run/%n.pid",
        "SlurmctldLogFile": f"{base}/log/slurmctld.log",
        "SlurmdLogFile": f"{base}/log/%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "MpiDefault": "none",
        "MailProg": shutil.which("true") or "/bin/true",
        # The nodes have the size that was asked for, whatever the machine has.
        "SlurmdParameters": "config_overrides",
        "GresTypes": "gpu",
        # A lost node is noticed soon and comes back by itself.
        "SlurmdTimeout": settings.slurmd_timeout_s,
        "MessageTimeout": 5,  # of it, 10 s would make the loss of a node known 9 s later (measured)
        "ReturnToService": 2,
        "KillWait": 5,
        "InactiveLimit": 0,
        "BatchStartTimeout": 20,
        "JobRequeue": 1,
        "EnforcePartLimits": "ALL",
        "SchedulerParameters": "sched_interval=2,batch_sched_delay=1,bf_interval=2",
        # A job in `urgent` takes its nodes from one in `main`, which is requeued.
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
    }
    if _hostname_is_loopback():
        values["CommunicationParameters"] = "NoCtldInAddrAny,NoInAddrAny"
    values |= _accounting(settings) if settings.accounting else {"PriorityType": "priority/basic"}
    values |= settings.overrides
    nodes = "".join(_node_line(settings, number) for number in range(len(settings.gpus)))
    partitions = (
        "PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00\n"
        "PartitionName=short Nodes=ALL MaxTime=00:10:00 DefaultTime=00:10:00\n"
        "PartitionName=urgent Nodes=ALL MaxTime=1-00:00:00 DefaultTime=01:00:00"
        " PriorityTier=10 PreemptMode=OFF\n"
    )
    return _lines(values) + nodes + partitions


def _hostname_is_loopback() -> bool:
    """Whether Slurm may be told to listen on the loopback only.

    It then listens on the address of the machine's own name, for srun too, and answers go to
    127.0.0.1: any other address of that name, and the two miss each other. Source: tried, 22.05.
    """
    try:
        return socket.gethostbyname(socket.gethostname()) == LOOPBACK
    except OSError:
        return False


def _node_line(settings: Settings, index: int) -> str:
    node, gpus = settings.nodes[index], settings.gpus[index]
    gres = f" Gres=gpu:{gpus}" if gpus else ""
    return (
        f"NodeName={node} NodeHostname=localhost NodeAddr={LOOPBACK}"
        f" Port={settings.port_of(node)} CPUs={settings.cpus_per_node}"
        f" RealMemory={MEMORY_MIB_PER_NODE}{gres}\n"
    )


def _gres_conf(settings: Settings) -> str:
    lines = ["AutoDetect=off"]
    for node, gpus in zip(settings.nodes, settings.gpus, strict=True):
        if gpus:
            devices = f"{settings.base}/gpu/nvidia[0-{gpus - 1}]"
            lines.append(f"NodeName={node} Name=gpu File={devices}")
    return "\n".join(lines) + "\n"


def _cgroup_conf(settings: Settings) -> str:
    """Nothing set above needs cgroups. Since 24.05 slurmd must be told so, and may be.

    Source: cgroup.conf(5) of 22.05, 23.11 and 24.05.
    """
    return "CgroupPlugin=disabled\n" if settings.slurm_version >= [24, 5] else "# none\n"


def _accounting(settings: Settings) -> dict[str, object]:
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": LOOPBACK,
        "AccountingStoragePort": settings.first_port + 1,
        "AccountingStoragePass": f"{settings.base}/run/munge.socket",  # it does not read AuthInfo
        "AccountingStorageEnforce": "associations,limits",
        "AccountingStorageTRES": "gres/gpu",
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": "task=5",
        # Only this plugin adds up what an account has used; without decay, as a budget is counted.
        "PriorityType": "priority/multifactor",
        "PriorityDecayHalfLife": 0,
        "PriorityUsageResetPeriod": "NONE",
        "PriorityCalcPeriod": 1,
        "PriorityWeightAge": 1000,
    }


def _dbd(settings: Settings) -> dict[str, object]:
    base = settings.base
    values: dict[str, object] = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={base}/run/munge.socket",
        "DbdHost": "localhost",
        "DbdAddr": LOOPBACK,
        "DbdPort": settings.first_port + 1,
        "SlurmUser": settings.user,
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",  # that is: the socket that MYSQL_UNIX_PORT names
        "StorageUser": "root",
        "StorageLoc": "slurm_acct_db",
        "LogFile": f"{base}/log/slurmdbd.log",
        "PidFile": f"{base}/run/slurmdbd.pid",
    }
    if _hostname_is_loopback():
        values["CommunicationParameters"] = "NoInAddrAny"
    return values
