"""Whether a queue needs one more node of producers, and the one task that asks for it.

Advice is arithmetic over what was seen. Not here: nodes, jobs and Slurm; the task waits in a spool
like any other, and the fleet sees it as demand. Invariant: at most one task a pass, none while one
of an earlier pass waits or starts, and none on anything that is not known.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from fleetcraft.errors import NameTakenError, SpoolError, UsageError
from fleetcraft.identity import new_record_id
from fleetcraft.layout import State
from fleetcraft.rollouts.status import QueueStatus, Rates
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import enqueue
from fleetcraft.spool.tree import Location, SpoolTree

_NUMBER = re.compile(r"\d{6,}")
_LOOKED_AT = 64  # passes: there is at most one task of each, and all but the last have long begun


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """Workers of the queue's run that make the wanted shape.

    Attributes:
        fresh: Streams whose workers were seen at work.
        unknown: Streams of whose workers nothing is known yet.
    """

    fresh: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a queue's level.

    Attributes:
        nodes: 0 or 1.
        deficit: Records up to the high water; None when the level is not known.
        minutes_to_fill: Until the high water at the measured rates, with ``nodes`` more; None when
            a rate is not known or consumption is quicker.
        settled: False when it rests on something that watching longer would tell.
        why: The arithmetic, for people.
    """

    nodes: int
    deficit: int | None
    minutes_to_fill: float | None = None
    settled: bool = True
    why: str


class Outstanding(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of earlier passes that are not done.

    Attributes:
        waiting: Nobody has begun them, or they are on the move.
        starting: They run, and not for long enough that their workers must have beaten.
        running: All that run.
        last: The highest number that a pass has used; 0 before the first.
    """

    waiting: tuple[str, ...] = ()
    starting: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    last: int = 0


class Replenished(StrEnum):
    """What became of the task of a pass."""

    ENQUEUED = "enqueued"
    OTHER_PASS = "other_pass"
    """Another pass was quicker, and its task is the one."""


def workers_of(status: QueueStatus, shape: str = "") -> Workers:
    """Which workers suppress a replacement: fresh, of the same run, and of the same shape.

    Args:
        status: The queue.
        shape: The wanted shape; any if empty.
    """
    answers = {
        stream.stream: stream.produces(status.settings.run, shape) for stream in status.streams
    }
    return Workers(
        fresh=tuple(name for name, answer in answers.items() if answer),
        unknown=tuple(name for name, answer in answers.items() if answer is None),
    )


def advise(
    status: QueueStatus,
    workers: Workers,
    *,
    rates: Rates,
    workers_per_node: int = 1,
    outstanding: Outstanding | None = None,
) -> Advice:
    """Whether one more node of producers is needed now.

    Only with a live trainer, and with fewer records than the low water pending in whole groups.
    Workers at work suppress it unless they are known to make less than the trainer consumes.

    Args:
        status: The queue.
        workers: Who produces.
        rates: Records an hour, measured or given.
        workers_per_node: Workers that one task of a node starts.
        outstanding: Tasks of earlier passes; None where there is no spool to ask.

    Source: the first seed document: 154 an hour of a node of three workers against 96 consumed; one
    node gains 58 an hour and fills 80 to 160 in about 83 minutes, a second one would overshoot.
    """
    high, low = status.settings.high_water, status.settings.low_water
    if status.waiting is None or status.ready is None:
        why = "how many wait is not known: transactions came and went"
        return Advice(nodes=0, deficit=None, settled=False, why=why)
    deficit = max(0, high - status.waiting)
    fill = _minutes(deficit, _gain(len(workers.fresh), rates))
    level = f"{status.ready} pending"
    if why := _no_need(status, f"{level}, low water {low}", outstanding):
        return Advice(nodes=0, deficit=deficit, minutes_to_fill=fill, why=why)
    if status.trainer.alive is None:
        why = f"whether the trainer lives is not known ({status.trainer.why})"
        return Advice(nodes=0, deficit=deficit, settled=False, why=why)
    gain = _gain(len(workers.fresh), rates)
    if workers.fresh and (gain is None or gain > 0):
        why = f"{level}, low water {low}; {_at_work(workers, gain, fill)}"
        return Advice(nodes=0, deficit=deficit, minutes_to_fill=fill, why=why)
    if workers.unknown:
        why = f"whether {', '.join(workers.unknown)} produce is not known yet"
        return Advice(nodes=0, deficit=deficit, settled=False, why=why)
    with_one = _gain(len(workers.fresh) + workers_per_node, rates)
    fill = _minutes(deficit, with_one)
    why = f"{level}, low water {low}; {_one_more(workers, gain, with_one, fill)}"
    return Advice(nodes=1, deficit=deficit, minutes_to_fill=fill, why=why)


def find_outstanding(
    tree: SpoolTree, run: str, *, fresh_workers: int, workers_per_node: int, starting_s: float
) -> Outstanding:
    """The tasks of earlier passes that are not done.

    Args:
        tree: The spool.
        run: The queue's run.
        fresh_workers: Workers seen at work.
        workers_per_node: Workers that one task starts.
        starting_s: For how long a running task may have no worker that beats.

    Raises:
        SpoolError: The spool cannot be read.
    """
    try:
        numbers = _numbers(tree, run)
        waiting, running, young = [], [], []
        for number in sorted(numbers)[-_LOOKED_AT:]:
            name = task_name(run, number)
            location = tree.locate(name)
            if location is None or location.state in (State.PENDING, State.WAITING):
                waiting.append(name)
            elif location.state is State.RUNNING:
                running.append(name)
                young += [name] if _is_young(tree, location, starting_s) else []
    except OSError as error:
        raise SpoolError(
            f"cannot look at the tasks of run {run} in {tree.paths.root}: "
            f"{error.strerror or error}; nothing was enqueued",
            hint="check the mount and the folder's permissions, then call again",
        ) from error
    begun = -(-fresh_workers // workers_per_node)
    starting = young[-(len(running) - begun) :] if len(running) > begun else []
    return Outstanding(
        waiting=tuple(waiting),
        starting=tuple(starting),
        running=tuple(running),
        last=max(numbers, default=0),
    )


def enqueue_producer(tree: SpoolTree, run: str, spec: TaskSpec, *, after: int) -> Replenished:
    """Publishes the one task of a pass; of several passes at once, one wins.

    The number is the next one in the spool's list of names, which holds every name once and for
    ever, so a pass that saw the same list tries for the same name.

    Args:
        tree: The spool.
        run: The queue's run.
        spec: The task; its name is set here, and ``{n}`` in its command becomes the number.
        after: The highest number that this pass has seen.

    Raises:
        UsageError: The task cannot be written as a record.
        SpoolError: The spool could not be written.
    """
    number = after + 1
    named = msgspec.structs.replace(
        spec, name=task_name(run, number), command=spec.command.replace("{n}", str(number))
    )
    try:
        enqueue(tree, named)
    except NameTakenError:
        return Replenished.OTHER_PASS
    return Replenished.ENQUEUED


def task_name(run: str, number: int) -> str:
    """What the task of one pass is called; a run's name has no dot, so no two runs share one."""
    return f"rollouts.{run}.{number:06d}"


def require_workers(count: int) -> int:
    """How many workers a node's task starts, checked.

    Raises:
        UsageError: Fewer than one.
    """
    if count < 1:
        raise UsageError(f"found {count} workers a node, expected 1 or more")
    return count


# ------------------------------------------------------------------------------ arithmetic


def _no_need(status: QueueStatus, level: str, outstanding: Outstanding | None) -> str:
    """Why nothing is needed, whatever else is not known; empty when that cannot be said."""
    if status.abort is not None:
        return f"ABORT stands: {status.abort.reason}"
    if status.trainer.alive is False:
        return f"no trainer: {status.trainer.why}"
    if status.ready is not None and status.ready >= status.settings.low_water:
        return level
    if status.waiting is not None and status.waiting >= status.settings.high_water:
        return f"{level}; what is reserved or in pieces leaves no room ({status.waiting} in all)"
    if outstanding and outstanding.waiting:
        return f"task {outstanding.waiting[0]} waits to be run"
    if outstanding and outstanding.starting:
        return f"task {outstanding.starting[0]} runs, and its workers have not begun to beat"
    return ""


def _gain(workers: int, rates: Rates) -> float | None:
    """Records an hour by which the queue grows."""
    if rates.consumed_per_h is None or rates.produced_per_worker_h is None:
        return None
    return workers * rates.produced_per_worker_h - rates.consumed_per_h


def _minutes(deficit: int, gain: float | None) -> float | None:
    return None if gain is None or gain <= 0 else deficit / gain * 60


def _at_work(workers: Workers, gain: float | None, fill: float | None) -> str:
    count = len(workers.fresh)
    if gain is None or fill is None:
        return f"{count} at work, at a rate that is not known yet"
    return f"{count} at work gain {gain:.0f} an hour and fill it in about {fill:.0f} min"


def _one_more(
    workers: Workers, gain: float | None, with_one: float | None, fill: float | None
) -> str:
    if workers.fresh and gain is not None:
        now = f"{len(workers.fresh)} at work lose {-gain:.0f} an hour"
    else:
        now = "nobody is known to produce"
    if with_one is None:
        return f"{now}; rates are not known yet"
    if fill is None:
        return f"{now}; one more node still loses {-with_one:.0f} an hour"
    return f"{now}; one node more gains {with_one:.0f} an hour and fills it in about {fill:.0f} min"


# ------------------------------------------------------------------------------ the spool


def _numbers(tree: SpoolTree, run: str) -> list[int]:
    prefix = f"rollouts.{run}."
    rests = (
        name.removeprefix(prefix)
        for name in tree.fs.listdir(tree.paths.names)
        if name.startswith(prefix)
    )
    return [int(rest) for rest in rests if _NUMBER.fullmatch(rest)]


def _is_young(tree: SpoolTree, location: Location, limit_s: float) -> bool:
    """Whether a task was claimed so short ago that its workers may not have begun.

    By the clock of the file system that holds the claim, which renaming it has dated.
    """
    probe = tree.paths.temporary(f"probe-{new_record_id()}")
    tree.fs.create(probe, b"")
    try:
        claimed_s = tree.fs.lstat(location.path).st_ctime
        return tree.fs.lstat(probe).st_ctime - claimed_s < limit_s
    except FileNotFoundError:  # it ends just now
        return True
    finally:
        tree.fs.unlink(probe)
