"""Starting a launch and looking at it: one keeper on this machine, or a step with one on each node.

Not here: what the keeper does (`keeper`), stopping (`stop`), finding an earlier one (`adoption`).
Invariant: the attempt's folder did not exist before its launch, so a number is launched once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from subprocess import Popen

import msgspec

from fleetcraft.caches.scope import CacheSettings
from fleetcraft.errors import ConfigError, TryAgainLaterError
from fleetcraft.files import FileSystem
from fleetcraft.identity import sha256_hex
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.locks import put_if_absent
from fleetcraft.process import KILL_WAIT_S
from fleetcraft.slurm import commands
from fleetcraft.slurm.steps import step_environment
from fleetcraft.training.launching import steps as steps_of
from fleetcraft.training.launching.looking import AskSteps, Launch, Starter
from fleetcraft.training.launching.order import NONCE, ORDER_SCHEMA, Order
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import Epoch

KEEPER_LOG = "keeper"
"""Stem of the log of what starts the keepers: what srun and slurmstepd say of a step."""
_MODULE = "fleetcraft.training.launching.keeper"
_LOOK_S = 1.0
_FIRST_PORT = 20_000
_PORTS = 10_000  # below the usual ephemeral range, which begins at 32768
_DEFAULT_SIGNALS = (
    signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1,
    signal.SIGUSR2, signal.SIGCHLD,
)  # fmt: skip


class AttemptExistsError(TryAgainLaterError):
    """Another launch has this attempt's folder, or it was closed before it began."""


def launch(
    paths: AttemptPaths,
    plan: RunPlan,
    epoch: Epoch,
    *,
    environment: Mapping[str, str],
    nodes: int | None = None,
    node_list: Sequence[str] = (),
    steps: AskSteps | None = None,
    kill_wait_s: float = KILL_WAIT_S,
    caches: CacheSettings | None = None,
    environ: Mapping[str, str] | None = None,
    fs: FileSystem | None = None,
) -> Launch:
    """Starts the command of an epoch and returns at once; `Launch.look` says what became of it.

    Inside a Slurm job, with several nodes or with ``nodes`` given, it is one step of that job with
    a keeper on each node; else one keeper on this machine, in a session of its own, which outlives
    this process.

    Args:
        paths: The attempt of this epoch; its folder must not be there.
        plan: Of it the directory, graces, nodes and GPUs are used.
        epoch: Of it the run, number, generation, nonce and command are used. It is published.
        environment: Variables that the command gets beside this process's own. They are written
            into the order, so secrets belong into this process's environment, not here.
        nodes: Nodes of the step; ``plan.nodes`` if None.
        node_list: Which nodes; if empty, Slurm chooses, or in a step of several ranks they are
            those of that step.
        steps: Asks Slurm for this user's steps; needed to look at a step whose srun is gone.
        kill_wait_s: How long a keeper waits for what it has killed.
        caches: What the project says of caches; None tells the command nothing about them.
        environ: This process's environment.
        fs: The seam.

    Raises:
        AttemptExistsError: The attempt's folder is there: this epoch was launched, or closed.
        ConfigError: Several nodes without a Slurm job, more than the step of this process has
            ranks for, or no command.
        SchedulerError: The nodes of this process's step could not be named.
        SlurmMissingError: srun is not here.
        OSError: It could not be begun. Nothing runs: no keeper was started.
    """
    fs = fs or FileSystem()
    environ = os.environ if environ is None else environ
    count = nodes if nodes is not None else plan.nodes
    in_job = bool(environ.get("SLURM_JOB_ID"))
    if count > 1 and not in_job:
        raise ConfigError(
            f"run {epoch.run!r} wants {count} nodes, and this is no Slurm job; nothing was started",
            hint="start the supervisor inside an allocation, or declare nodes: 1",
            nodes=count,
        )
    if not epoch.command:
        raise ConfigError(f"run {epoch.run!r} has no command; nothing was started")
    as_step = in_job and (count > 1 or nodes is not None)
    node_list = node_list or steps_of.nodes_of_step(epoch.run, count, environ)
    name = steps_of.step_name(epoch.run, epoch.nonce) if as_step else ""
    order = _order(
        paths,
        plan,
        epoch,
        environment,
        nodes=count,
        step_name=name,
        kill_wait_s=kill_wait_s,
        caches=caches,
    )
    _make_folders(paths, fs)
    if not put_if_absent(fs, paths.order, msgspec.json.encode(order) + b"\n"):
        raise _exists(paths)
    if as_step:
        starter = _start_step(order, environ, fs, gpus=plan.gpus_per_node, node_list=node_list)
    else:
        starter = _start_here(paths, order, environ, fs)
    return Launch(paths, order, starter=starter, steps=steps, fs=fs)


def _order(
    paths: AttemptPaths,
    plan: RunPlan,
    epoch: Epoch,
    environment: Mapping[str, str],
    *,
    nodes: int,
    step_name: str,
    kill_wait_s: float,
    caches: CacheSettings | None,
) -> Order:
    return Order(
        schema=ORDER_SCHEMA,
        run=epoch.run,
        epoch=epoch.number,
        generation=epoch.generation,
        nonce=epoch.nonce,
        attempt=paths.folder,
        command=epoch.command,
        environment=dict(environment),
        directory=plan.directory,
        nodes=nodes,
        step_name=step_name,
        port=_FIRST_PORT + int(sha256_hex(epoch.nonce.encode())[:8], 16) % _PORTS,
        grace_s=plan.grace_s,
        kill_wait_s=kill_wait_s,
        look_s=min(_LOOK_S, plan.look_s),
        caches=caches,
    )


def _make_folders(paths: AttemptPaths, fs: FileSystem) -> None:
    try:
        for folder in paths.folders():
            fs.make_folder(folder)
    except FileExistsError:
        raise _exists(paths) from None


def _exists(paths: AttemptPaths) -> AttemptExistsError:
    return AttemptExistsError(
        f"cannot launch {os.path.basename(paths.folder)}: its folder is there already, so this "
        "epoch was launched before, or was closed by a later supervisor; nothing was started",
        hint="the next epoch has a folder of its own",
        folder=paths.folder,
    )


def _keeper_words(order_path: str) -> list[str]:
    # As this process was started: with -P, a folder of the project is no place for modules.
    return [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", _MODULE, order_path]


def _start_here(
    paths: AttemptPaths, order: Order, environ: Mapping[str, str], fs: FileSystem
) -> Starter:
    log_fd = fs.create_log(paths.log(KEEPER_LOG))
    words = _keeper_words(paths.order)
    try:
        pid = os.posix_spawn(
            words[0],
            words,
            {**environ, NONCE: order.nonce},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, log_fd, 1),
                (os.POSIX_SPAWN_DUP2, log_fd, 2),
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            ],
            setsid=True,  # a supervisor's terminal or process group is not its own
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,
        )
    finally:
        fs.close(log_fd)
    return Starter(pid)


def _start_step(
    order: Order,
    environ: Mapping[str, str],
    fs: FileSystem,
    *,
    gpus: int | None,
    node_list: Sequence[str],
) -> Starter:
    paths = AttemptPaths(order.attempt)
    words = steps_of.srun(
        order.nodes,
        name=order.step_name,
        directory=os.getcwd(),
        gpus_per_node=gpus,
        overlap=steps_of.in_numbered_step(environ),
        node_list=node_list,
    )
    log_fd = fs.create_log(paths.log(KEEPER_LOG))
    try:
        child: Popen[bytes] = commands.start_step(
            [*words, *_keeper_words(paths.order)],
            env=step_environment(environ, **{NONCE: order.nonce}),
            stdout=log_fd,
            stderr=log_fd,
        )
    finally:
        fs.close(log_fd)
    return Starter(child.pid, child)
