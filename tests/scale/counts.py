"""The tables of counts: every act at every size, many workers at once, seam beside kernel.

Invariant: nothing here is timed, so that the numbers are the same on any machine.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fleetcraft.spool.tree import SpoolTree
from tests.scale.acts import SOME, Found, Subject, crowd, globs, idle_poll, markers
from tests.scale.counting import Counts, asked, describe, short
from tests.scale.kernel import compare, of_seam
from tests.scale.makers import empty_spool, write_pending
from tests.scale.tables import Table

Say = Callable[[str], None]
SIZES = (1_000, 10_000, 100_000, 1_000_000)
WORKERS = (1, 8, 64, 256)
_NAMES_AT_MOST = 100_000_000
_KERNEL_TASKS = 500
FLAT = 1.02
"""Counts of acts on one task may differ so much between sizes."""
BOUNDED_BY_SIZE = (
    "`status`", "promotion", "check", "`report`", "`top`", "depth", "listing", "recovery",
)  # fmt: skip
"""What looks at a whole spool; everything else must cost the same in each."""


@dataclass(kw_only=True)
class Counted:
    """Everything that was counted: by act, and by number of workers."""

    acts: dict[str, dict[int, Found]] = field(default_factory=dict)
    crowds: dict[tuple[int, int], tuple[Counts, int]] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)

    def add(self, found: Found) -> None:
        """Keeps one."""
        self.acts.setdefault(found.act, {})[found.size] = found


def sizes_up_to(most: int) -> list[int]:
    """The sizes that are counted."""
    return [size for size in SIZES if size <= most] or [most]


def measure(folder: Path, most: int, say: Say) -> Counted:
    """Counts everything.

    Args:
        folder: Where the spools are made, each removed before the next.
        most: Tasks of the largest spool.
        say: Told what is done.
    """
    counted = Counted()
    sizes = sizes_up_to(most)
    for size in sizes:
        say(f"  acts on {size:,} tasks")
        with _room(folder) as room:
            for found in Subject(room, size, say).all():
                counted.add(found)
        with _room(folder) as room:
            for found in globs(room, size, say):
                counted.add(found)
    counted.tables.append(_acts_table(counted, sizes))
    with _room(folder) as room:
        for found in (idle_poll(room / "idle"), markers(room / "markers")):
            counted.add(found)
    counted.tables.append(_clock_table(counted))
    counted.tables.append(_crowds(counted, folder, sizes, say))
    say("  seam and kernel")
    with _room(folder) as room:
        counted.tables.append(_kernel(room))
    return counted


def _room(folder: Path) -> _Room:
    return _Room(folder)


class _Room:
    """A folder for one spool."""

    def __init__(self, folder: Path) -> None:
        self._path = Path(tempfile.mkdtemp(dir=folder))

    def __enter__(self) -> Path:
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path)


def _acts_table(counted: Counted, sizes: list[int]) -> Table:
    table = Table(
        title="counts: what each act asks of the file system",
        how="Metadata operations (path calls and listings; reads and writes of open files and "
        f"entries of listings apart) on a spool of which half is done, 1 in 100 failed, 1 in 100 "
        "waits and up to 64 are claimed by as many workers. Acts on many tasks are counts for one "
        f"of them ({SOME} are cancelled and retried, 1,000 enqueued). Listed: entries that "
        "listings returned, at the largest size. Counted at the seam through which all of the "
        "product reaches its spool; see below for the kernel's own count.",
        columns=["act", *(f"{size:,}" for size in sizes), "what, at the largest", "listed"],
    )
    for act, by_size in counted.acts.items():
        found = [by_size[size] for size in sizes if size in by_size]
        if not found:
            continue
        values = [asked(one.counts) / one.tasks for one in found]
        last = found[-1]
        listed = last.counts["names"] / last.tasks
        table.rows.append(
            [act, *map(short, values), describe(last.counts, last.tasks), short(round(listed, 1))]
        )
        table.data[act] = {
            one.size: {kind: n / one.tasks for kind, n in one.counts.items()} for one in found
        }
        per_task = not act.startswith(BOUNDED_BY_SIZE)
        if per_task and max(values) > FLAT * max(min(values), 1):
            table.failed.append(f"{act}: {', '.join(map(short, values))} operations, not flat")
    table.after.append(
        "Flat means that an act on a task costs the same however many tasks there are. `check` and "
        "`report` read every record, which is what they are for: two and one operations a task. "
        "`status` reads at most 2,000 waiting records and looks at no more than 2,000 failed ones; "
        "beyond that it says how many it left out. A watcher of waiting tasks reads each once; "
        "looking again costs one look at each distinct task or file that they wait for."
    )
    return table


def _clock_table(counted: Counted) -> Table:
    table = Table(
        title="counts: what goes on by the clock",
        how="What a worker asks for whether or not it has tasks, and how often at most. Of many "
        "workers each does some of it more seldom, so that the fleet's rate is bounded.",
        columns=["what", "operations", "kinds", "one worker", "10,000 workers, each"],
    )
    paces = {
        "idle poll": ("5 s", "20 s"),
        "look at markers": ("5 s", "5 s"),
        "heartbeat, one task": ("30 s", "30 s"),
        "recovery, none dead, next pass": ("60 s", "600 s"),
        "promotion, next look": ("2 s", "1,250 s"),
    }
    for act, (one, many) in paces.items():
        found = next(iter(counted.acts[act].values()))
        table.rows.append(
            [
                act,
                short(asked(found.counts)),
                describe(found.counts),
                f"every {one}",
                f"every {many}",
            ]
        )
    return table


def _crowds(counted: Counted, folder: Path, sizes: list[int], say: Say) -> Table:
    table = Table(
        title="counts: many workers on one queue",
        how="Workers in one process, each the real claiming, beginning and filing, in turns; tasks "
        "of 1 to 3 s of simulated time, four for each worker, at least 200, once all have begun. "
        "Operations a task, lost races and listings included; in brackets entries listed a task.",
        columns=["pending", *(f"{ranks} workers" for ranks in WORKERS)],
    )
    for size in sizes:
        row = [f"{size:,}"]
        with _room(folder) as room:
            tree = empty_spool(room)
            write_pending(tree, size)
            for ranks in WORKERS:
                say(f"  {ranks} workers on {size:,} pending")
                row.append(_crowd_cell(counted, tree, size, ranks))
        table.rows.append(row)
    table.after.append(
        "With tasks of two seconds the listings by the clock are in every one of these numbers: "
        "each worker looks into lane `first` every 2 s, and lists the plain lane again after 4 s "
        "or more. With longer tasks their share is larger a task, and the same a second; the model "
        "below has both."
    )
    return table


def _crowd_cell(counted: Counted, tree: SpoolTree, size: int, ranks: int) -> str:
    tasks = max(200, 4 * ranks)
    if 2 * ranks + tasks > size // 2:
        return "too few tasks"
    # Each worker lists three times as it begins; then one listing comes on about two tasks.
    names = max(3 * ranks, tasks // 2) * size
    if names > _NAMES_AT_MOST:
        return f"not run: some {names / 1e6:,.0f} M names"
    counts, done, _ = crowd(tree, ranks, tasks)
    counted.crowds[size, ranks] = counts, done
    return f"{short(asked(counts) / done)} ({short(round(counts['names'] / done))})"


def _kernel(folder: Path) -> Table:
    table = Table(
        title="counts: seam and kernel",
        how=f"The same acts on a spool of {_KERNEL_TASKS} tasks, counted at the seam and by strace "
        "in one run.",
        columns=["act", "seam", "kernel", "same"],
    )
    found = compare(folder, _KERNEL_TASKS)
    if isinstance(found, str):
        table.after.append(f"Not compared: {found}.")
        return table
    for act, (seam, kernel) in found.items():
        ours = of_seam(seam)
        same = ours == +kernel
        table.rows.append([act, str(ours.total()), str(kernel.total()), "yes" if same else "no"])
        if not same and "`top`" not in act:
            table.failed.append(f"{act}: the seam counts {dict(ours)}, the kernel {dict(kernel)}")
    table.after.append(
        "`top` follows journals by descriptors of its own, outside of the seam: one open for each "
        "worker that has not left."
    )
    return table
