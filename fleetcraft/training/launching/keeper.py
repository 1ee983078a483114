"""The keeper of one node: a small process that starts the command, owns every wait, and stops it.

``python -m fleetcraft.training.launching.keeper ORDER``. Single-threaded, and child subreaper
before it starts anything; in a session of its own, so that it outlives a supervisor that dies and
the run can be adopted. Not here: why a run is stopped. Invariants: its identity is published before
it looks for an order to stop, and it looks before it starts anything, so that whoever has put that
order and sees no keeper knows that none will begin; the end of its node is published after the last
process is gone, or says that it is not.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time

import msgspec

from fleetcraft.caches.clearing import clear_folder
from fleetcraft.caches.local import require_local_root
from fleetcraft.caches.roles import INDUCTOR_VARIABLE
from fleetcraft.caches.scope import TRITON_VARIABLE, is_ours
from fleetcraft.diagnosis import OomCounter
from fleetcraft.errors import DataError, FleetError
from fleetcraft.files import FileSystem
from fleetcraft.identity import process_id, this_host
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.locks import put_if_absent
from fleetcraft.process import Ended, TaskProcess, become_subreaper
from fleetcraft.training.launching.order import NONCE, Order, StopOrder
from fleetcraft.training.launching.reading import read_record
from fleetcraft.training.launching.steps import this_step
from fleetcraft.training.launching.surroundings import command_environment
from fleetcraft.training.launching.sweeping import Net
from fleetcraft.training.records import Keeper, NodeEnd, ProcessRecord

_PUBLISH_S = 60.0
_PUBLISH_PAUSE_S = 0.5
_CLEAR_S = 10.0
_STOPPING = (signal.SIGTERM, signal.SIGINT)
# Slurm sends its warnings to every process of a step; they are the command's to understand.
_IGNORED = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class NodeKeeper:
    """Keeps one command on this node.

    Args:
        order: What to do.
        fs: The seam.
    """

    def __init__(self, order: Order, fs: FileSystem | None = None) -> None:
        self._order = order
        self._fs = fs or FileSystem()
        self._paths = AttemptPaths(order.attempt)
        self._here = this_host()
        self._node = self._here.host
        self._told = False
        self._compiled = ""
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _STOPPING:
            signal.signal(number, self._note_order)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        become_subreaper()
        self._tree = TaskProcess(order.kill_wait_s)
        self._counter = OomCounter()

    def serve(self) -> int:
        """Until the command has ended; the exit code of this process."""
        if not self._publish_identity():
            print(f"node {self._node} has a keeper already; nothing was started", file=sys.stderr)
            return 1
        end = self._run()
        published = self._publish_end(end)
        if self._compiled and end.clean:
            clear_folder(self._compiled, limit_s=_CLEAR_S)
        return 0 if published else 1

    def _publish_identity(self) -> bool:
        me = process_id(os.getpid())
        if me is None:
            raise DataError("this process cannot be identified; nothing was started")
        record = ProcessRecord(place=self._here, process=me, nonce=self._order.nonce)
        keeper = Keeper(node=self._node, keeper=record, step=this_step(os.environ))
        return put_if_absent(self._fs, self._paths.keeper(self._node), _encode(keeper))

    def _run(self) -> NodeEnd:
        try:
            if self._told or self._fs.exists(self._paths.stop_order):
                return self._end(told_to_stop=True, why="it was stopped before it began")
            before = self._counter.read()
            self._start()
        except (OSError, ValueError, FleetError) as error:  # ValueError: a NUL in a word
            return self._end(why=f"it was not started: {error}")
        ended, told = self._wait()
        strangers, swept = self._sweep(ended)
        return self._end(
            exit_code=ended.exit_code,
            signal=ended.signal,
            clean=ended.clean and swept,
            leftovers=ended.leftovers + strangers,
            oom_kills=_difference(before, self._counter.read()),
            cpu_s=round(ended.cpu_s, 3),
            max_rss_bytes=ended.max_rss_bytes,
            told_to_stop=told,
            why="" if ended.known else "KILL did not end its first process in time",
        )

    def _start(self) -> None:
        environment = command_environment(self._order, self._paths, self._node, os.environ)
        self._compiled = self._place_for_compilers(environment)
        if self._order.directory:
            os.chdir(self._order.directory)
        program = shutil.which(self._order.command[0], path=environment.get("PATH", os.defpath))
        if program is None:
            raise DataError(f"there is no program {self._order.command[0]!r} to run")
        log_fd = self._fs.create_log(self._paths.log(self._node))
        try:
            self._tree.start(
                [os.fsencode(word) for word in (program, *self._order.command[1:])],
                {os.fsencode(name): os.fsencode(text) for name, text in environment.items()},
                log_fd=log_fd,
                gate_fd=None,
                grace_s=self._order.grace_s,
            )
        finally:
            self._fs.close(log_fd)

    def _place_for_compilers(self, environment: dict[str, str]) -> str:
        """Makes sure of the node's private folder; without it compilers use their own.

        Returns:
            The folder of what this launch alone generates; empty if there is none.
        """
        if self._order.caches is None:
            return ""
        try:
            require_local_root(environment, self._order.caches)
        except (OSError, FleetError) as error:
            print(f"compilers keep their own cache folders: {error}", file=sys.stderr)
            for name in (TRITON_VARIABLE, INDUCTOR_VARIABLE):
                if is_ours(environment.get(name, "")):
                    del environment[name]
        folder = environment.get(TRITON_VARIABLE, "")
        return folder if is_ours(folder) else ""

    def _wait(self) -> tuple[Ended, bool]:
        """Until the command has ended, by itself or on order; says which."""
        while True:
            select.select([self._wake], [], [], self._order.look_s)
            self._drain()
            ended = self._tree.poll()
            if ended is not None:
                return ended, self._told
            if self._told or self._stop_is_there():
                ended = self._tree.stop(self._grace_s())
                if ended is not None:
                    return ended, True

    def _drain(self) -> None:
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            return

    def _stop_is_there(self) -> bool:
        try:
            return self._fs.exists(self._paths.stop_order)
        except OSError:
            return False  # what cannot be looked at stops nothing

    def _grace_s(self) -> float:
        try:
            told = read_record(self._fs, self._paths.stop_order, StopOrder).grace_s
        except (OSError, DataError):
            told = None
        return self._order.grace_s if told is None else told

    def _sweep(self, ended: Ended) -> tuple[int, bool]:
        """Stops what carries the nonce here and is no descendant, such as what a daemon started."""
        net = Net(self._order.nonce, node=self._node)
        wait_s = self._order.kill_wait_s if ended.clean else 0.0
        return net.signalled, net.sweep(signal.SIGKILL, wait_s).quiet

    def _end(self, **facts: object) -> NodeEnd:
        known = {"node": self._node, "nonce": self._order.nonce, **facts}
        return msgspec.convert(known, NodeEnd)

    def _publish_end(self, end: NodeEnd) -> bool:
        """Publishes it, again and again while the file system refuses, for a minute at most."""
        deadline = time.monotonic() + _PUBLISH_S
        while True:
            try:
                if put_if_absent(self._fs, self._paths.ended(self._node), _encode(end)):
                    return True
                print("another end of this node is there already", file=sys.stderr)
                return False
            except OSError as error:
                print(f"the end of this node could not be published: {error}", file=sys.stderr)
                if time.monotonic() >= deadline:
                    return False
            time.sleep(_PUBLISH_PAUSE_S)

    def _note_order(self, *_: object) -> None:
        self._told = True


def _difference(before: int | None, after: int | None) -> int | None:
    return after - before if before is not None and after is not None else None


def _encode(record: object) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def main() -> int:
    """Keeps the command of the order that this command line names."""
    fs = FileSystem()
    try:
        order = read_record(fs, sys.argv[1], Order)
        if os.environ.get(NONCE) != order.nonce:
            raise DataError(f"{sys.argv[1]} is not the order of this launch; nothing was started")
        return NodeKeeper(order, fs).serve()
    except (OSError, FleetError) as error:
        print(f"this node's keeper leaves: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
