"""Which ranks live, and what they use: one look at the processes that introduced themselves.

Looks only at what this machine can tell: procfs here, and what a keeper published of another node.
Invariant: a rank counts as gone only by positive evidence about that very process, identified by
boot, pid namespace, pid and start time.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence

from fleetcraft.identity import HostId
from fleetcraft.training.records import NodeEnd, ProcessRecord, RankProgress, RankState

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GONE_STATES = frozenset({"Z", "X", "x"})
_MOST_RELATIVES = 256


class RankSight(RankState, frozen=True, kw_only=True):
    """A rank in a census, with what else was seen when it was looked at closely.

    Attributes:
        io_bytes: Read and written by it and its descendants so far, page cache included; None when
            it was not asked or may not be read.
        closely: Whether CPU, bytes and state are of the rank with its descendants and threads.
    """

    io_bytes: int | None = None
    closely: bool = False


class _Use:
    """What one process, or one with its descendants, uses."""

    __slots__ = ("cpu_s", "io_bytes", "rss_bytes", "start_ticks", "state")

    def __init__(self, state: str, start_ticks: int, cpu_s: float, rss_bytes: int) -> None:
        self.state = state
        self.start_ticks = start_ticks
        self.cpu_s = cpu_s
        self.rss_bytes = rss_bytes
        self.io_bytes: int | None = None


def take_census(
    ranks: Mapping[int, RankProgress],
    *,
    here: HostId,
    ended: Sequence[NodeEnd] = (),
    now_s: float | None = None,
    closer: Container[int] = (),
    proc: str = "/proc",
) -> tuple[RankSight, ...]:
    """Looks at every rank once.

    Args:
        ranks: What they reported.
        here: This machine, boot and pid namespace.
        ended: Nodes on which nothing of the launch is left, as their keepers published.
        now_s: The reader's clock, to say how long a rank has been idle.
        closer: Ranks to look at with their threads, descendants and bytes read and written, which
            costs some ten times as much: those of `watch.Sight.look_closer`.
        proc: Where procfs is.

    Returns:
        One state a rank, by rank. A rank that never said who it is, or that lives where this
        machine cannot look, has ``alive`` None.
    """
    over = {(end.node, end.nonce) for end in ended if end.clean}
    return tuple(
        _sight(ranks[rank], here, over, now_s, closely=rank in closer, proc=proc)
        for rank in sorted(ranks)
    )


def _sight(
    rank: RankProgress,
    here: HostId,
    over: set[tuple[str, str]],
    now_s: float | None,
    *,
    closely: bool,
    proc: str,
) -> RankSight:
    alive, use = _look(rank.process, here, over, closely=closely, proc=proc)
    quiet = None if now_s is None or rank.changed_s is None else max(0.0, now_s - rank.changed_s)
    return RankSight(
        rank=rank.rank,
        name=rank.name,
        alive=alive,
        process=rank.process,
        step=rank.step,
        idle_s=quiet,
        cpu_s=use.cpu_s if use else None,
        rss_bytes=use.rss_bytes if use else None,
        device_memory_bytes=rank.device_memory_bytes,
        state=use.state if use else "",
        last_line=rank.last_line,
        io_bytes=use.io_bytes if use else None,
        closely=closely and use is not None,
    )


def _look(
    process: ProcessRecord | None,
    here: HostId,
    over: set[tuple[str, str]],
    *,
    closely: bool,
    proc: str,
) -> tuple[bool | None, _Use | None]:
    if process is None:
        return None, None
    place = process.place
    if process.nonce and (place.host, process.nonce) in over:
        return False, None
    if place.host != here.host or not place.boot_id or not here.boot_id:
        return None, None
    if place.boot_id != here.boot_id:
        return False, None  # another boot of this host: nothing of it is left
    if not here.pid_namespace or place.pid_namespace != here.pid_namespace:
        return None, None
    try:
        use = _read_use(proc, process.process.pid)
    except OSError:
        return None, None  # out of descriptors, or procfs hides it
    if use is None or use.start_ticks != process.process.start_ticks:
        return False, None
    if use.state in _GONE_STATES:
        return False, None
    if closely:
        _look_closely(proc, process.process.pid, use)
    return True, use


def _read_use(proc: str, pid: int) -> _Use | None:
    """What a process uses; None when there is none.

    Raises:
        OSError: It could not be looked at.

    Source: proc_pid_stat(5): fields 3 state, 14 utime, 15 stime, 22 starttime, 24 rss. The command
    name may hold spaces and parentheses, so they are counted after the last closing one.
    """
    try:
        data = _read(f"{proc}/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = data[data.rfind(b")") + 2 :].split()
    try:
        return _Use(
            state=fields[0].decode("ascii", "replace"),
            start_ticks=int(fields[19]),
            cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
            rss_bytes=int(fields[21]) * _PAGE_BYTES,
        )
    except (IndexError, ValueError) as error:
        raise OSError(f"not as proc_pid_stat(5) has it: {data[:80]!r}") from error


def _look_closely(proc: str, pid: int, use: _Use) -> None:
    """Adds what threads and descendants do: loaders read while the rank itself only waits."""
    use.io_bytes = _io_bytes(proc, pid)
    if "D" in _thread_states(proc, pid):
        use.state = "D"
    for relative in _descendants(proc, pid):
        try:
            other = _read_use(proc, relative)
        except OSError:
            continue
        if other is None or other.state in _GONE_STATES:
            continue
        use.cpu_s += other.cpu_s
        use.rss_bytes += other.rss_bytes
        use.state = "D" if other.state == "D" else use.state
        moved = _io_bytes(proc, relative)
        if moved is not None:
            use.io_bytes = (use.io_bytes or 0) + moved


def _io_bytes(proc: str, pid: int) -> int | None:
    """Bytes that a process has read and written so far, from whatever; None when unreadable.

    Source: proc_pid_io(5), ``rchar`` and ``wchar``: they count network file systems too, on which
    ``read_bytes`` may stay 0.
    """
    try:
        lines = _read(f"{proc}/{pid}/io").split(b"\n")
    except OSError:
        return None
    values = [line.partition(b": ")[2] for line in lines if line.startswith((b"rchar", b"wchar"))]
    return sum(map(int, values)) if len(values) == 2 else None


def _thread_states(proc: str, pid: int) -> set[str]:
    states = set()
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return set()
    for thread in threads[:_MOST_RELATIVES]:
        try:
            data = _read(f"{proc}/{pid}/task/{thread}/stat")
        except OSError:
            continue
        states.add(data[data.rfind(b")") + 2 :][:1].decode("ascii", "replace"))
    return states


def _descendants(proc: str, pid: int) -> list[int]:
    found: list[int] = []
    open_pids = [pid]
    while open_pids and len(found) < _MOST_RELATIVES:
        children = list(_children(proc, open_pids.pop()))
        found += children
        open_pids += children
    return found[:_MOST_RELATIVES]


def _children(proc: str, pid: int) -> Iterable[int]:
    """Children of every thread of a process. Source: proc_tid_children(5)."""
    try:
        threads = os.listdir(f"{proc}/{pid}/task")
    except OSError:
        return
    for thread in threads[:_MOST_RELATIVES]:
        try:
            data = _read(f"{proc}/{pid}/task/{thread}/children")
        except OSError:
            continue
        yield from map(int, data.split())


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, 4096)
        while more := os.read(fd, 1 << 16) if len(data) >= 4096 else b"":
            data += more
        return data
    finally:
        os.close(fd)
