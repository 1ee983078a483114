"""A scratch tree as a fleet at work leaves it, to look at while it grows.

Each node has a logger's file, an outer worker with one slot and an inner one with a slot a GPU;
both have journals, and most have claims. One node in eight idles, one has lost a GPU, one has no
telemetry. Not here: looking. Invariant: everything is written the way its owner writes it.
"""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from fleetcraft.identity import Owner
from fleetcraft.layout import INNER_SPOOL, OUTER_SPOOL, Lane, parse_telemetry_file, telemetry_file
from fleetcraft.spool import leases
from fleetcraft.spool.leases import Journal, Lease
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.telemetry.columns import COLUMNS
from tests.bench import traces

PAST_TASKS = 40  # in each journal
_SAMPLES = 120  # in each logger's file: an hour
_PENDING = 120


def build(root: Path, *, hosts: int, gpus: int) -> None:
    """Makes the tree.

    Args:
        root: An empty folder.
        hosts: Nodes.
        gpus: Of each.
    """
    outer, inner = SpoolTree(str(root / OUTER_SPOOL)), SpoolTree(str(root / INNER_SPOOL))
    for tree in (outer, inner):
        set_up(tree)
    telemetry = root / "telemetry"
    telemetry.mkdir(mode=0o700)
    rng = random.Random(4)
    for host in range(hosts):
        kind = "lost" if host == 0 else rng.choice(["busy"] * 6 + ["resident", "free"])
        if host != 2:
            _log(telemetry, host, gpus, kind)
        uuids = tuple(traces.gpu_uuid(host, gpu) for gpu in range(gpus))
        for tree, slots, slot_gpus in ((outer, 1, ()), (inner, gpus, uuids)):
            _work(tree, host, gpus, slots, slot_gpus, is_busy=kind in ("busy", "lost"))
    for number in range(_PENDING):
        record = Path(inner.paths.pending_record(f"next-{number:03d}", Lane.PLAIN))
        record.write_text("#!/bin/bash\ntrue\n")


def _name(host: int) -> str:
    return f"gpu{host:03d}"


def _ago(seconds: float) -> str:
    return traces.our_time(datetime.now(UTC) - timedelta(seconds=seconds))


def _log(folder: Path, host: int, gpus: int, kind: str) -> None:
    path = folder / telemetry_file(_name(host), traces.JOB, "20261130T010000Z")
    lines = [",".join(COLUMNS) + "\n"]
    for sample in range(_SAMPLES):
        at = _ago(traces.INTERVAL_S * (_SAMPLES - sample) - 25)
        for gpu in range(gpus):
            idle = kind in ("resident", "free")
            row = traces.row_pattern(host, gpu).format(
                t=at,
                mem=4 if kind == "free" else 60_000,
                util=0 if idle else 60 + (sample + gpu) % 40,
                energy=sample * 8000,
            )
            lines.append(_as_lost(row) if kind == "lost" and gpu == 1 else row)
    path.write_text("".join(lines))
    path.chmod(0o600)
    facts = traces.sidecar_facts(_name(host), host, gpus)
    path.with_suffix(".json").write_text(json.dumps(facts))


def _as_lost(row: str) -> str:
    cells = dict(zip(COLUMNS, row.rstrip("\n").split(","), strict=True))
    measured = ("mem_used_mib", "mem_total_mib", "util_pct", "power_w", "energy_j")
    cells |= {**dict.fromkeys(measured, ""), "status": "lost"}
    return ",".join(cells.values()) + "\n"


def _work(
    tree: SpoolTree, host: int, gpus: int, slots: int, uuids: tuple[str, ...], *, is_busy: bool
) -> None:
    fresh = leases.new_lease(rank=str(host), interval_s=30, slots=slots, gpus=gpus, slot_gpus=uuids)
    lease = msgspec.structs.replace(fresh, job=traces.JOB, host=_name(host))
    leases.publish(tree, lease)
    journal = Journal(tree, lease.name)
    journal.write(
        {"event": "arrive", "at": _ago(5000), "slots": slots, "host": lease.host,
         "job": lease.job, "gpus": gpus, "slot_gpus": list(uuids)}
    )  # fmt: skip
    for number in range(PAST_TASKS):
        began_s = 4000 - 95 * number
        for event in _task(lease, number, _ago(began_s), _ago(began_s - 90)):
            journal.write(event)
        journal.write(
            {"event": "depth", "at": _ago(began_s), "waiting": 1, "pending": 200 - number,
             "running": 3, "done": number, "failed": 0}
        )  # fmt: skip
    for slot in range(slots if is_busy else 0):
        _hold(tree, lease, journal, slot)
    journal.close()


def _task(lease: Lease, number: int, began: str, ended: str) -> list[dict[str, object]]:
    """Its start and its end."""
    claim = f"{lease.launch}-{number + 1000}"
    of = {"task": f"old-{lease.rank}-{number}", "attempt": 1, "claim": claim}
    return [
        {"event": "start", "at": began, **of, "slot": 0, "pid": 1, "family": "video"},
        {"event": "end", "at": ended, **of, "outcome": "completed", "to": "done", "wall_s": 90.0},
    ]


def _hold(tree: SpoolTree, lease: Lease, journal: Journal, slot: int) -> None:
    task = f"gen-{tree.paths.root.rpartition('/')[2]}-{lease.rank}-{slot}"
    owner = Owner(lease.job, lease.rank, str(slot), f"{lease.launch}-{slot + 1}")
    claim = Path(tree.paths.claim(task, owner))
    claim.write_text("#!/bin/bash\nsleep 3600\n")
    claim.chmod(0o700)
    journal.write(
        {"event": "start", "at": _ago(20 + slot), "task": task, "attempt": 1,
         "claim": owner.token, "slot": slot, "pid": 1, "family": "video"}
    )  # fmt: skip


# ---------------------------------------------------------------------------------- it grows


class WatchedFiles:
    """What grows; closes the journals, which it holds open as their workers do, at the block's end.

    Args:
        hosts: Telemetry files, with the last sample's rows without their time.
        workers: Leases, with their spools.
    """

    def __init__(
        self, hosts: dict[Path, list[str]], workers: list[tuple[SpoolTree, Lease]]
    ) -> None:
        self.hosts = hosts
        self._times = 0
        self._workers = [(tree, lease, Journal(tree, lease.name)) for tree, lease in workers]

    def __enter__(self) -> WatchedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for _, _, journal in self._workers:
            journal.close()

    def grow(self) -> None:
        """All at once what else happens within half a minute: a sample and a heartbeat of each.

        Every worker also ends one task and starts another.
        """
        self._times += 1
        at = traces.our_time(datetime.now(UTC))
        for path, rows in self.hosts.items():
            with path.open("a") as file:
                file.write("".join(at + row for row in rows))
        for tree, lease, journal in self._workers:
            leases.publish(tree, msgspec.structs.replace(lease, counter=self._times))
            for event in _task(lease, PAST_TASKS + self._times, at, at):
                journal.write(event)
        time.sleep(0.01)  # so that no two changes have one time


def watched_files(root: Path) -> WatchedFiles:
    """The growing files of a tree."""
    hosts = {}
    for path in sorted((root / "telemetry").glob("*.csv")):
        if parse_telemetry_file(path.name) is None:
            continue
        lines = path.read_text().splitlines(keepends=True)
        gpus = len({line.split(",")[5] for line in lines[1:]})
        hosts[path] = [line[line.index(",") :] for line in lines[-gpus:]]
    trees = [SpoolTree(str(root / name)) for name in (OUTER_SPOOL, INNER_SPOOL)]
    found = [(tree, lease) for tree in trees for lease in leases.read_all(tree)]
    return WatchedFiles(hosts, found)
