"""The live view: CPU of a refresh over a hundred hosts, on a terminal and in its parts.

Seen from outside on a pseudo-terminal, where it draws as it does for a person, and in a process
that takes its looks apart. Invariant: the tree has grown, or has not, as the row says.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import live_tree
from tests.bench.logger_costs import told
from tests.bench.measure import (
    Bench,
    BenchError,
    Cost,
    Row,
    Section,
    clean_environment,
    cost_rows,
    interleaved,
    median,
    process_cpu_s,
    ratios,
    spread,
    timed,
)
from tests.bench.reading_costs import fleet

GPUS = 8
GOAL_HOSTS = 100
GOAL_S = 0.150
_HOSTS = (10, GOAL_HOSTS, 400)
_WIDTH = 120
_LEAST_INTERVAL_S = 0.4
_HOSTS_A_SECOND = 125  # so that it has drawn, and the tree has grown, well before the next look
_WARM = 2  # the first look reads the ends of all files, the second counts folders once more
_HEADLINE = b"GPUs allocated"  # once a screen
_SCREEN_S = 30.0
_DRAWN_S = 0.05
_PARTS = {
    "telemetry": "files of loggers",
    "spools": "leases, journals, claims and folders",
    "compose": "what it all means",
    "text": "the text",
}


def measure(bench: Bench) -> Section:
    """10, 100 and 400 hosts."""
    section = Section(
        name="top",
        title="a refresh of the live view",
        how=f"Hosts of {GPUS} GPUs, each with a logger's file and two workers (leases, journals, "
        f"claims). *On a terminal*: CPU of `fleetcraft top` on a pseudo-terminal of {_WIDTH} "
        "columns, between two screens, from the third on. *Taken apart*: the same looks in one "
        "process. Beside both: a bare Python loop, in turns with these, that lists the same "
        "folders, looks at the same files, reads what was appended and cuts it in cells. *Grown*: "
        "since the look before every logger has written a sample, and every worker has renewed "
        "its lease, ended a task and started one, which is half a minute of a fleet's life at "
        "once; *quiet*: none has.",
    )
    per_host = {}
    for hosts in _HOSTS[: bench.pick(3, 2)]:
        bench.say(f"  {hosts} hosts")
        root = bench.new_folder(f"hosts-{hosts}")
        live_tree.build(root, hosts=hosts, gpus=GPUS)
        per_host[hosts] = _one_size(bench, section, root, hosts)
    few, many = min(per_host), max(per_host)
    each_ms = (per_host[many] - per_host[few]) / (many - few) * 1e3
    section.growth = (
        f"linear in the hosts: {each_ms:.2f} ms of CPU a host of {GPUS} GPUs for a refresh after "
        f"which everything has grown, beyond {per_host[few] * 1e3 - few * each_ms:.0f} ms. Nothing "
        "grows with the length of files, journals or history."
    )
    return section


def _one_size(bench: Bench, section: Section, root: Path, hosts: int) -> float:
    env = clean_environment()
    runs = bench.pick(5 if hosts == GOAL_HOSTS else 2, 2)
    looks = str(bench.pick(8, 4))
    apart, *screens = interleaved(
        runs,
        lambda: told(["looks", str(root), looks], env),
        *(lambda grown=grown: _screens(bench, root, hosts, is_grown=grown) for grown in (1, 0)),
    )
    _require_gpus(apart, hosts)
    goal = hosts == GOAL_HOSTS
    for name, costs in zip(("grown", "quiet"), screens, strict=True):
        bare = [_median(run[name], lambda look: look["bare"]) for run in apart]
        section.rows.append(
            Row(
                what=f"{hosts} hosts, on a terminal, {name}: CPU a refresh",
                measured=spread(costs, "ms", 1, 1e3),
                beside=spread(bare, "ms", 1, 1e3),
                ratio=spread(ratios(costs, bare), digits=1),
                goal=f"< {GOAL_S * 1e3:g} ms" if goal else "",
                met=median(costs) < GOAL_S if goal else None,
                samples={"seconds": costs},
            )
        )
    section.rows += _apart(apart, hosts, is_goal=goal)
    section.rows += _once(bench, root, hosts) if goal else []
    return median(screens[0])


def _require_gpus(apart: list[dict[str, Any]], hosts: int) -> None:
    for found in apart:
        for look in found["grown"]:
            if look["gpus"] != hosts * GPUS:
                raise BenchError(f"expected {hosts * GPUS} GPUs, the view has {look['gpus']}")


# -------------------------------------------------------------------------------- taken apart


def _apart(apart: list[dict[str, Any]], hosts: int, *, is_goal: bool) -> list[Row]:
    """Rows of the table; a repetition's value is the median of its looks."""
    rows = []
    for name in ("grown", "quiet"):
        ours = [
            _median(run[name], lambda look: sum(look[part] for part in _PARTS)) for run in apart
        ]
        bare = [_median(run[name], lambda look: look["bare"]) for run in apart]
        rows.append(
            Row(
                what=f"{hosts} hosts, taken apart, {name}",
                measured=spread(ours, "ms", 1, 1e3),
                beside=spread(bare, "ms", 1, 1e3),
                ratio=spread(ratios(ours, bare), digits=1),
                goal=f"< {GOAL_S * 1e3:g} ms" if is_goal else "",
                met=median(ours) < GOAL_S if is_goal else None,
                samples={"looks": [run[name] for run in apart]},
            )
        )
    if is_goal:
        for part, words in [*_PARTS.items(), ("json", "instead of the text: JSON")]:
            rows.append(_part(apart, "grown", part, words))
        first = [sum(run["first"][0][part] for part in _PARTS) for run in apart]
        rows.append(Row(what="the first look", measured=spread(first, "ms", 1, 1e3)))
    return rows


def _part(apart: list[dict[str, Any]], name: str, part: str, words: str) -> Row:
    mine = [_median(run[name], lambda look: look[part]) for run in apart]
    what = words if part == "json" else f"of that, grown: {words}"
    return Row(what=what, measured=spread(mine, "ms", 1, 1e3))


def _median(looks: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> float:
    return median([value(look) for look in looks])


# ----------------------------------------------------------------------------- on a terminal


def _screens(bench: Bench, root: Path, hosts: int, *, is_grown: bool) -> float:
    """CPU of a refresh, over some of them."""
    count = bench.pick(10 if hosts <= GOAL_HOSTS else 5, 4)
    interval_s = max(_LEAST_INTERVAL_S, hosts / _HOSTS_A_SECOND)
    lines = min(hosts, GOAL_HOSTS) + 20
    with live_tree.watched_files(root) as files, _Terminal(root, interval_s, lines) as terminal:
        terminal.wait_for(_WARM)
        before_s = process_cpu_s(terminal.pid)
        for _ in range(count):
            if is_grown:
                files.grow()
            terminal.wait_for(1)
        # Should it have drawn more often, this is above the truth, not below.
        return (process_cpu_s(terminal.pid) - before_s) / count


class _Terminal:
    """``fleetcraft top`` on a terminal of its own, interrupted at the end of the block."""

    def __init__(self, root: Path, interval_s: float, lines: int) -> None:
        words = fleet("--root", str(root), "top", "--interval", str(interval_s))
        env = clean_environment() | {"TERM": "xterm-256color"}
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execve(words[0], words, env)
        size = struct.pack("HHHH", lines, _WIDTH, 0, 0)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)
        self._shown = b""
        self._screens = 0

    def __enter__(self) -> _Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGINT)
        until_s = time.monotonic() + 10
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > until_s:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                break
            self._read(0.05)
        os.close(self._fd)

    def wait_for(self, screens: int) -> None:
        """Waits for so many more screens, until the last one is drawn to its end."""
        wanted = self._screens + screens
        until_s = time.monotonic() + _SCREEN_S
        while self._screens < wanted:
            if time.monotonic() > until_s:
                raise BenchError(f"no screen in {_SCREEN_S:.0f} s: {self._shown[-300:]!r}")
            self._read(0.1)
        while self._read(_DRAWN_S) and time.monotonic() < until_s:
            pass

    def _read(self, patience_s: float) -> bool:
        """Takes what was drawn; False when that is nothing."""
        if not select.select([self._fd], [], [], patience_s)[0]:
            return False
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # it has ended
            return False
        self._shown = self._shown[-len(_HEADLINE) + 1 :] + data
        self._screens += self._shown.count(_HEADLINE)
        return True


# ------------------------------------------------------------------------------------- once


def _once(bench: Bench, root: Path, hosts: int) -> list[Row]:
    """The whole command, and how much of it is its start."""
    empty = bench.new_folder("empty")
    live_tree.build(empty, hosts=0, gpus=GPUS)
    output = bench.new_folder("out") / "top.json"

    def once(place: Path) -> Cost:
        cost = timed(fleet("--root", str(place), "top", "--once", "--json"), output=output)
        json.loads(output.read_bytes())
        return cost

    runs: list[Callable[[], Cost]] = [
        lambda: once(empty),
        lambda: once(root),
        lambda: timed([sys.executable, "-c", "import click"]),
    ]
    for run in runs:
        run()
    nothing, ours, click = interleaved(bench.pick(11, 5), *runs)
    return [
        *cost_rows(
            f"{hosts} hosts, `fleetcraft top --once --json` whole; beside: over an empty tree, "
            "which is its start and imports",
            ours,
            nothing,
            digits=3,
        ),
        *cost_rows(
            "that start and imports; beside: `python -c 'import click'`", nothing, click, digits=3
        ),
    ]
