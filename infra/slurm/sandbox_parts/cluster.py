"""What a user does with a cluster: start it, ask it, kill and revive its parts, stop it.

Not here: reading the command line.
Invariant: one of these acts at a time on one folder, and a start that does not end well leaves no
process behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from . import accounting, ports, processes, programs
from .daemons import Daemons
from .fault import NO, USAGE, Fault
from .site import Folder, Settings

LOST_STATES = {"down", "unknown", "fail", "error"}


def say(text: str) -> None:
    """Tells the user on stderr what happens."""
    print(f"sandbox: {text}", file=sys.stderr, flush=True)


def command(verb: str, path: Path) -> str:
    """A call of this program as it can be typed where the user stands."""
    return shlex.join([sys.argv[0], verb, "--dir", str(path)])


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Holds the folder itself as a lock, which leaves no file behind."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        raise Fault(NO, f"there is no folder {str(path)!r}", command("start", path)) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another call that is at work in {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _opened(path: Path) -> Daemons:
    """The cluster that runs in a folder.

    Raises:
        Fault: None does.
    """
    folder = Folder(path)
    settings = folder.settings()
    daemons = Daemons(folder, settings) if settings else None
    if daemons is None or not is_up(daemons, without="slurmctld"):
        raise Fault(NO, f"no sandbox runs in {str(path)!r}", command("start", path))
    return daemons


def is_up(daemons: Daemons, *, without: str = "") -> bool:
    """Whether all but the nodes run: those may have been killed on purpose.

    Args:
        daemons: The cluster.
        without: A daemon that need not run, since it may have been stopped on purpose.
    """
    spared = {*daemons.settings.nodes, without}
    return all(daemons.keeper(name) for name in daemons.names if name not in spared)


def start(path: Path, wanted: Settings) -> Daemons:
    """Starts a new cluster and waits until all its nodes are idle.

    Args:
        path: The folder, which is made if need be.
        wanted: The settings, with `base`, `first_port` and `slurm_version` still open.

    Raises:
        Fault: It cannot be done; nothing is then left running.
    """
    version = programs.need(accounting=wanted.accounting)
    folder = Folder(path)
    folder.make()
    with _alone(path):
        earlier = folder.settings()
        if earlier:
            before = Daemons(folder, earlier)
            if is_up(before):
                hint = f'eval "$({command("env", path)})", or {command("stop", path)}'
                raise Fault(NO, f"a sandbox runs in {str(path)!r} already", hint)
            _clear_away(before)
        folder.mark.touch()
        with ports.turn():
            first_port = ports.free_block(2 + len(wanted.gpus))
            settings = replace(
                wanted, base=folder.short_name(), first_port=first_port, slurm_version=version
            )
            daemons = Daemons(folder, settings)
            try:
                folder.lay_out(settings)
                _switch_on(daemons)
            except BaseException:  # also Ctrl-C: half a cluster is of no use to anybody
                _clear_away(daemons)
                raise
    return daemons


def _switch_on(daemons: Daemons) -> None:
    base = daemons.settings.base
    started = {"munged": daemons.start("munged", _munged(base))}
    socket_path = Path(base, "run/munge.socket")
    daemons.wait("munged does not listen", socket_path.exists, started)
    if daemons.settings.accounting:
        say("starting a database and slurmdbd")
        accounting.start(daemons)
    controller = daemons.start("slurmctld", ["slurmctld", "-D", "-i"])
    port = daemons.settings.first_port
    # A client that finds nobody waits for seconds before it tries again, and so does slurmd.
    daemons.wait(
        "slurmctld does not listen", lambda: ports.is_taken(port), {"slurmctld": controller}
    )
    started["slurmctld"] = controller
    for node in daemons.settings.nodes:
        started[node] = daemons.start_node(node)
    daemons.wait("the nodes are not idle", lambda: _all_idle(daemons), started)


def _munged(base: str) -> list[str]:
    # --force: the folder is private, where munge wants one that every user can enter, and with
    # root it wants another user. In here all is one user's.
    return [
        "munged",
        "--foreground",
        "--force",
        f"--key-file={base}/run/munge.key",
        f"--socket={base}/run/munge.socket",
        f"--pid-file={base}/run/munged.pid",
        f"--log-file={base}/log/munged.log",
        f"--seed-file={base}/run/munge.seed",
    ]


def node_states(daemons: Daemons) -> dict[str, str]:
    """Slurm's word for each node's state; empty when it does not answer."""
    argv = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T"]
    answer = programs.call(argv, daemons.environment())
    words = [line.split() for line in answer.stdout.splitlines()] if not answer.returncode else []
    return {name: state for name, state in (pair for pair in words if len(pair) == 2)}


def _all_idle(daemons: Daemons) -> bool:
    states = node_states(daemons)
    return len(states) == len(daemons.settings.nodes) and set(states.values()) == {"idle"}


def stop(path: Path, *, purge: bool) -> int:
    """Ends every process of the cluster and removes what it left; returns how many that were."""
    if not path.is_dir():
        return 0
    folder = Folder(path)
    with _alone(path):
        settings = folder.settings()
        ended = 0
        if settings:
            ended = _clear_away(Daemons(folder, settings))
            if purge:
                folder.clear(everything=True)
    return ended


def _clear_away(daemons: Daemons) -> int:
    """Cuts the power: a cluster that is stopped keeps no state, so nothing need end in order."""
    ended = processes.end_all(daemons.all)
    processes.end_all(daemons.keepers)
    daemons.folder.clear(everything=False)
    daemons.folder.drop_link(daemons.settings.base)
    return ended


def kill_node(path: Path, node: str) -> int:
    """Cuts one node's power; returns how many processes it had."""
    with _alone(path):
        daemons = _opened(path)
        _check_node(daemons, node)
        keeper = daemons.keeper(node)
        # The keeper goes last: while it lives nothing of the node can slip away from it.
        ended = processes.end_all(lambda: daemons.of_node(node))
        processes.end_all(lambda: [keeper] if keeper and keeper.is_alive() else [])
        daemons.folder.process_file(node).unlink(missing_ok=True)
    return ended


def revive_node(path: Path, node: str) -> bool:
    """Switches a killed node on and waits until Slurm takes it; False if it was on.

    Raises:
        Fault: Slurm does not take it within a minute.
    """
    with _alone(path):
        daemons = _opened(path)
        _check_node(daemons, node)
        if daemons.keeper(node):
            return False
        started = {node: daemons.start_node(node, "-b")}
        daemons.wait(f"{node} did not come back", lambda: _is_back(daemons, node), started)
    return True


def _is_back(daemons: Daemons, node: str) -> bool:
    """Whether it listens, and Slurm has no word of loss for it (it may not have noticed any)."""
    port = daemons.settings.port_of(node)
    state = node_states(daemons).get(node, "unknown")
    return ports.is_taken(port) and state not in LOST_STATES and not state.endswith("*")


def stop_controller(path: Path) -> bool:
    """Ends slurmctld in order; False if it did not run.

    It is asked to end by TERM, upon which it saves its state; one that does not is killed.
    """
    with _alone(path):
        daemons = _opened(path)
        controller = daemons.process("slurmctld")
        if controller is None:
            return False
        processes.end(controller)
        processes.end_all(lambda: filter(None, [daemons.keeper("slurmctld")]))
        daemons.folder.process_file("slurmctld").unlink(missing_ok=True)
    return True


def start_controller(path: Path) -> bool:
    """Starts slurmctld again, with the state that it saved, and waits until it answers.

    Returns:
        False if it ran.

    Raises:
        Fault: It does not answer within a minute.
    """
    with _alone(path):
        daemons = _opened(path)
        if daemons.process("slurmctld"):
            return False
        started = {"slurmctld": daemons.start("slurmctld", ["slurmctld", "-D", "-i"])}
        daemons.wait("slurmctld does not answer", lambda: bool(node_states(daemons)), started)
    return True


def _check_node(daemons: Daemons, node: str) -> None:
    nodes = daemons.settings.nodes
    if node not in nodes:
        raise Fault(USAGE, f"no node {node!r} in this sandbox", f"its nodes: {', '.join(nodes)}")


def status(path: Path) -> dict[str, object]:
    """What runs in a folder, as one JSON value. A state that Slurm did not tell is null."""
    folder = Folder(path)
    settings = folder.settings()
    report: dict[str, object] = {"schema": "fleetcraft.sandbox_status/1", "dir": str(path)}
    if settings is None:
        return report | {"running": False}
    daemons = Daemons(folder, settings)
    running = is_up(daemons)
    states = {}
    if running:
        with contextlib.suppress(Fault):
            states = node_states(daemons)
    living = {name: daemons.process(name) for name in daemons.names}
    return report | {
        "running": running,
        "slurm_conf": daemons.conf,
        "accounting": settings.accounting,
        "daemons": {
            name: process and process.pid
            for name, process in living.items()
            if name not in settings.nodes
        },
        "nodes": [
            {
                "name": node,
                "gpus": gpus,
                "on": living[node] is not None,
                "state": states.get(node),
            }
            for node, gpus in zip(settings.nodes, settings.gpus, strict=True)
        ],
    }


def environment(path: Path) -> dict[str, str]:
    """The variables with which clients reach the cluster.

    Raises:
        Fault: None runs there.
    """
    return {"SLURM_CONF": _opened(path).conf}
