"""Starting a trial's process through its keeper, with its groups and limits.

How it is watched and judged is elsewhere. No torch in this process: it loads in the keeper, for
trials on the CPU, or in the trial's own interpreter. Invariant: this process signals no trial
itself; it tells the keeper, which cannot mean another process than its own child.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import subprocess
import sys
import tempfile
import threading
import time

import msgspec

from fleetcraft.calibration.trial.cgroup import MEMORY, PIDS, TrialGroup, make_group
from fleetcraft.calibration.trial.entering import PROGRAM, Entry
from fleetcraft.calibration.trial.keeper import Reply, Request
from fleetcraft.calibration.trial.orders import Order
from fleetcraft.errors import ConfigError, FleetError
from fleetcraft.process import Ended

STOP_GRACE_S = 2.0
_READY_WAIT_S = 300.0
"""Loading torch from a cold network file system can take minutes."""
_START_WAIT_S = 30.0
_KILL_WAIT_S = 15.0
_LOADED = ("fleetcraft.calibration.trial.preloading",)
_CAP_SYS_RESOURCE = 1 << 24
_CAP_SYS_ADMIN = 1 << 21


class KeeperLostError(FleetError):
    """The keeper died or does not answer; what became of its trial is in the journal."""


class Keeper:
    """One keeper process, and the trial that it runs. One trial at a time.

    Args:
        modules: What it loads once, so that forks of it have it.

    Raises:
        ConfigError: It could not load them.
        KeeperLostError: It did not get ready.
    """

    def __init__(self, modules: tuple[str, ...] = ()) -> None:
        self.modules = modules
        self._pending = b""
        self._running = False
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # what it says before it dies
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fleetcraft.calibration.trial.keeper", str(os.getpid()),
             *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            bufsize=0,
            env=_environment(),
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests_fd = self._process.stdin.fileno()
        self._replies_fd = self._process.stdout.fileno()
        self._poll = select.poll()  # select cannot take the descriptors of a large process
        self._poll.register(self._replies_fd, select.POLLIN)
        try:
            reply = self._must_reply(_READY_WAIT_S)
            if reply.failed:
                raise ConfigError(
                    f"the trial's program cannot be loaded: {reply.failed}; nothing was tried",
                    hint="torch comes with the extra: pip install 'fleetcraft[torch]'",
                )
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    def start(self, entry: Entry) -> int:
        """Starts a trial; returns its pid.

        Raises:
            ConfigError: The process could not be made.
            KeeperLostError: The keeper is gone.
        """
        self._running = True  # from here on an interrupt must stop it
        self._ask(Request(start=entry))
        reply = self._must_reply(_START_WAIT_S)
        if reply.started is None:
            self._running = False
            raise ConfigError(f"{reply.failed}; nothing was tried", hint="ulimit -a; free -m")
        return reply.started

    def wait(self, timeout_s: float) -> Ended | None:
        """How the trial ended; None when it has not within this time.

        Raises:
            KeeperLostError: The keeper is gone.
        """
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) >= 0:
            reply = self._reply(left_s)
            if reply is not None and reply.ended is not None:
                self._running = False
                return reply.ended
        return None

    def stop(self, why: str, grace_s: float = STOP_GRACE_S) -> Ended | None:
        """Stops the trial with all that belongs to it, and has its journal say why.

        Returns:
            How it ended; None when nothing was running.

        Raises:
            KeeperLostError: The keeper is gone, and so its trial.
        """
        if not self._running:
            return None
        self._ask(Request(stop=why, grace_s=grace_s))
        ended = self.wait(grace_s + _KILL_WAIT_S)
        if ended is None:
            self.close()
            raise KeeperLostError(f"the keeper did not stop its trial within {_KILL_WAIT_S:g} s")
        return ended

    def close(self) -> None:
        """Ends the keeper; it stops what it runs."""
        self._running = False
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(timeout=_KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.close()

    def _ask(self, request: Request) -> None:
        try:
            os.write(self._requests_fd, msgspec.json.encode(request) + b"\n")
        except BrokenPipeError as error:
            raise self._lost() from error

    def _must_reply(self, timeout_s: float) -> Reply:
        reply = self._reply(timeout_s)
        if reply is None:
            # It may have begun a trial that it did not tell of: none outlives a silent keeper.
            self.close()
            raise KeeperLostError(
                f"the keeper of the trials said nothing for {timeout_s:g} s and was ended"
            )
        return reply

    def _reply(self, timeout_s: float) -> Reply | None:
        """The next line; None when time is up."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left_s = max(0.0, deadline - time.monotonic())
            if not self._poll.poll(left_s * 1000):
                return None
            data = os.read(self._replies_fd, 1 << 16)
            if not data:
                raise self._lost()
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return msgspec.json.decode(line, type=Reply)

    def _lost(self) -> KeeperLostError:
        self._running = False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        self._words.seek(0)
        words = self._words.read().decode(errors="replace").strip().splitlines()
        said = f": {words[-1][:300]}" if words else ""
        return KeeperLostError(
            f"the keeper of the trials is gone (exit {self._process.returncode}){said}"
        )


def _environment() -> dict[str, str]:
    """Ours, with our import path, so that a family is found there as it was found here.

    Threads of OpenMP that wait for one another shall sleep: where others are busy too they spin
    longer than they compute.
    """
    return {
        "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


# ------------------------------------------------------------------------------ the usual ones

_keepers: dict[tuple[str, ...], Keeper] = {}
_lock = threading.RLock()


def keeper_for(device: str, program: str = PROGRAM) -> Keeper:
    """The keeper that runs trials on a device; it is started when it is first needed.

    On the CPU it has the program and torch loaded, and trials are forks of it: 0.01 s each in
    place of 1.2 s. A process that has been forked cannot use CUDA, so there it loads nothing.
    """
    loaded = (program, *_LOADED) if program == PROGRAM else (program,)
    modules = () if is_fresh(device) else loaded
    with _lock:
        keeper = _keepers.get(modules)
        if keeper is not None and not keeper.alive:
            close_keepers(modules)
            keeper = None
        if keeper is None:
            keeper = _keepers[modules] = Keeper(modules)
        return keeper


def is_fresh(device: str) -> bool:
    """Whether trials on a device need an interpreter of their own."""
    return not device.startswith("cpu")


def close_keepers(modules: tuple[str, ...] | None = None) -> None:
    """Ends the keepers, or the one with these modules."""
    with _lock:
        for key in [key for key in _keepers if modules in (None, key)]:
            _keepers.pop(key).close()


def _forget_keepers() -> None:
    """In a fork of this process: they are the parent's."""
    _keepers.clear()


atexit.register(close_keepers)
os.register_at_fork(after_in_child=_forget_keepers)


# ------------------------------------------------------------------------------ confinement


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps one trial within its limits.

    Attributes:
        data_bytes: Limit of its data segment, where there is no memory group.
        processes: Limit of its user's processes, where there is no pids group.
        notes: What is weaker than asked, one sentence each.
    """

    data_bytes: int | None = None
    processes: int | None = None
    notes: tuple[str, ...] = ()


def confine(order: Order) -> tuple[TrialGroup, Confinement]:
    """Makes the trial's groups, and says what stands in for those that could not be had.

    Raises:
        ConfigError: A limit was asked for that nothing here can set.
    """
    group = make_group(memory_bytes=order.host_budget_bytes, pids=order.pids_limit)
    try:
        return group, _stand_ins(order, group)
    except BaseException:
        group.remove()
        raise


def _stand_ins(order: Order, group: TrialGroup) -> Confinement:
    notes = []
    data_bytes = processes = None
    if order.host_budget_bytes is not None and MEMORY not in group.places:
        data_bytes = order.host_budget_bytes
        notes.append(
            "host memory is limited by RLIMIT_DATA of each process, not by a cgroup: "
            f"{group.refused[MEMORY]}"
        )
    if order.pids_limit is not None and PIDS not in group.places:
        if _ignores_process_limits():
            raise ConfigError(
                f"the trial cannot be limited to {order.pids_limit} processes: no pids cgroup "
                f"can be made ({group.refused[PIDS]}), and RLIMIT_NPROC does not bind this user; "
                "nothing was tried",
                hint="run it as another user, or where cgroups can be written",
                pids_limit=order.pids_limit,
            )
        processes = order.pids_limit
        notes.append(
            "processes are limited by RLIMIT_NPROC of the whole user, not by a cgroup: "
            f"{group.refused[PIDS]}"
        )
    return Confinement(data_bytes=data_bytes, processes=processes, notes=tuple(notes))


def _ignores_process_limits() -> bool:
    """Source: getrlimit(2), RLIMIT_NPROC: not for root, CAP_SYS_ADMIN or CAP_SYS_RESOURCE."""
    if os.getuid() == 0:
        return True
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) & (_CAP_SYS_ADMIN | _CAP_SYS_RESOURCE))
    return False


def entry_of(
    order: Order, order_path: str, group: TrialGroup, limits: Confinement, program: str = PROGRAM
) -> Entry:
    """What the keeper is told of one trial."""
    return Entry(
        order=order_path,
        journal=order.journal,
        log=log_path(order),
        program=program,
        fresh=is_fresh(order.device),
        entrances=group.entrances,
        group_folders=group.folders,
        data_bytes=limits.data_bytes,
        processes=limits.processes,
    )


def log_path(order: Order) -> str:
    """What the trial's process prints."""
    return f"{order.folder}/child.log"


def order_path(order: Order) -> str:
    """The order as the trial's process reads it."""
    return f"{order.folder}/order.json"
