"""Packs on a real Slurm: single-GPU tasks fill whole nodes, next to tasks that need a node alone.

The workers of the nodes are steps of a plain batch script: what a launch adds is tested with it.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.identity import process_id
from fleetcraft.spool.store import Spool
from tests.slurm.cluster import Cluster
from tests.worker.harness import ESCAPED, REPO, python, wait_until

pytestmark = pytest.mark.timeout(240)
FLEETCRAFT = [sys.executable, "-m", "fleetcraft"]
NOTE = 'echo "$SLURMD_NODENAME {kind} $(cut -d" " -f1 /proc/uptime)" >> {folder}/notes'


class Site:
    """A scratch tree with both spools, and a cluster of four nodes with two GPUs each."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.root = folder / "scratch"
        self.root.mkdir(mode=0o700)
        self.outer = Spool.create(str(self.root / "taskq"), project_dir=str(folder))
        self.inner = Spool.create(str(self.root / "taskq_gpu"), project_dir=str(folder))
        self.env = {
            **cluster.env,
            "PYTHONPATH": str(REPO),
            "PROJECT_SCRATCH": str(self.root),
            "PROJECT": str(folder),
            "FLEET_PACK_IDLE_S": "1",
        }
        self._polls = 0

    def call(self, *words: str | Path) -> Any:
        """What a command printed as JSON, as if the last poll of Slurm were long ago."""
        self._polls += 1
        polls = self.folder / f"polls-{self._polls}"
        polls.mkdir(mode=0o700)
        done = subprocess.run(
            words,
            env={**self.env, "FLEET_POLLS_DIR": str(polls)},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start_fleet(self, *, idle_s: float = 60.0) -> str:
        """A job with one worker step on each node; returns its id."""
        nodes = self.cluster.nodes
        worker = shlex.join(
            [*FLEETCRAFT, "--root", str(self.root), "worker", "--heartbeat", "2", "--idle"]
        )
        steps = "\n".join(
            f"FLEET_RANK={rank} FLEET_RANKS={len(nodes)} "
            f"srun -N1 -n1 -w {node} --gres=gpu:2 {worker} {idle_s:g} &"
            for rank, node in enumerate(nodes)
        )
        exports = f"export PYTHONPATH={REPO} FLEET_WORKER_HEARTBEAT_S=0.5"
        return self.cluster.submit(
            "--nodes", str(len(nodes)), "--exclusive", "--gres", "gpu:2", "--no-kill",
            "--time", "10", "--output", self.folder / "job.out",
            script=f"{exports}\n{steps}\nwait; wait",
        )  # fmt: skip

    def bridge_when_free(self, gpus: int) -> Any:
        """Publishes packs once so many GPUs are seen free."""
        bridge = [*FLEETCRAFT, "bridge", "--json"]
        wait_until(
            lambda: self.call(*bridge, "--dry-run")["free_gpus"] == gpus, f"{gpus} GPUs are free"
        )
        return self.call(*bridge)

    def notes(self) -> list[list[str]]:
        return [line.split() for line in (self.folder / "notes").read_text().splitlines()]


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path)


def gpu_enqueue(site: Site, name: str, command: str) -> None:
    launcher = REPO / "bin" / "gpu_enqueue.sh"
    subprocess.run([launcher, command, name], env=site.env, check=True, capture_output=True)


def test_packs_fill_every_gpu_of_the_fleet_and_share_no_node_with_whole_node_tasks(
    site: Site,
) -> None:
    # Eight that end only when all eight run at the same time, one on each GPU.
    together = (
        'echo "$FLEET_PHYSICAL_SLOT $CUDA_VISIBLE_DEVICES $FLEET_STREAM $SLURM_JOB_ID" >> slots; '
        "touch begun-$FLEET_TASK; until [ $(ls begun-* | wc -l) = 8 ]; do sleep 0.05; done"
    )
    gpu_enqueue(site, "a-0", together)
    for n in range(1, 8):
        site.inner.enqueue(f"a-{n}", together)
    # Then more than there are slots, one of which lets a process escape that nobody knows.
    note = NOTE.format(kind="gpu-{}", folder=site.folder)
    escapes = f"env -i {python(ESCAPED)} escaped; until [ -s escaped ]; do sleep 0.02; done"
    site.inner.enqueue("b-escapes", escapes)
    for n in range(16):
        around = f"{note.format('in')}; sleep 0.3; {note.format('out')}"
        site.inner.enqueue(f"c-{n:02d}", around)
    site.inner.enqueue("d-timed", "touch timed-ran", timed=True)

    job = site.start_fleet()
    told = site.bridge_when_free(8)
    assert (told["published"], told["pending"]) == (8, 12)
    assert {entry["gpus"] for entry in told["nodes"]} == {2}
    wait_until(lambda: len(list(site.folder.glob("begun-*"))) == 8, "all GPUs are used")
    # Published while packs run: nodes are given on only when they are empty.
    for n in range(4):
        note = NOTE.format(kind="node-{}", folder=site.folder)
        site.outer.enqueue(f"node-{n}", f"{note.format('in')}; sleep 0.4; {note.format('out')}")
    wait_until(lambda: site.inner.counts()["done"] == 25, "the inner spool is drained")
    wait_until(lambda: site.outer.counts()["done"] == 12, "packs and whole nodes are done")
    site.outer.drain("all is done")
    site.cluster.wait_for_job(job, "COMPLETED")

    assert site.inner.counts() == {
        "waiting": 0,
        "pending": 1,
        "running": 0,
        "done": 25,
        "failed": 0,
    }
    assert site.inner.show("d-timed").state.value == "pending"
    assert site.outer.counts() == {
        "waiting": 0,
        "pending": 0,
        "running": 0,
        "done": 12,
        "failed": 0,
    }
    slots = [line.split() for line in (site.folder / "slots").read_text().splitlines()]
    expected = {f"{node}/{gpu}" for node in site.cluster.nodes for gpu in (0, 1)}
    assert {physical for physical, *_ in slots} == expected
    assert all(physical.endswith(f"/{visible}") for physical, visible, *_ in slots)
    assert len({stream for _, _, stream, _ in slots}) == 8
    assert {job_id for *_, job_id in slots} == {job}
    assert process_id(int((site.folder / "escaped").read_text())) is None
    assert overlaps(site.notes()) == []
    assert site.inner.check().ok
    assert site.outer.check().ok


def overlaps(notes: list[list[str]]) -> list[tuple[str, str]]:
    """Nodes on which a single-GPU task and a whole-node task were there at one time."""
    found = []
    for node in {host for host, _, _ in notes}:
        inside = {"gpu": 0, "node": 0}
        events = sorted((float(at), kind) for host, kind, at in notes if host == node)
        # What ends and begins within a hundredth, which is all that is told apart, is no overlap.
        for at, group in itertools.groupby(events, key=lambda event: event[0]):
            kinds = [kind for _, kind in group]
            for kind in sorted(kinds, key=lambda kind: kind.endswith("in")):
                who, _, way = kind.partition("-")
                inside[who] += 1 if way == "in" else -1
            if all(inside.values()):
                found.append((node, str(at)))
    return found


def test_both_layers_come_back_when_every_worker_was_killed(site: Site) -> None:
    ignores = "trap '' TERM; touch begun-$FLEET_TASK; while true; do sleep 0.1; done"
    for n in range(8):
        site.inner.enqueue(f"a-{n}", ignores)
    job = site.start_fleet()
    site.bridge_when_free(8)
    wait_until(lambda: len(list(site.folder.glob("begun-*"))) == 8, "all GPUs are used")
    site.cluster.run("scancel", "--signal=KILL", job)
    site.cluster.wait_for_job(job, "CANCELLED", "COMPLETED", "FAILED")
    assert site.outer.counts()["running"] == 4
    assert site.inner.counts()["running"] == 8

    outer = site.call(*FLEETCRAFT, "recover", "--json")
    reap = REPO / "bin" / "reap_gpu_spool.sh"
    inner = site.call(reap, "--json")
    assert (outer["recovered"], outer["unknown"]) == (4, 0)
    assert (inner["recovered"], inner["unknown"]) == (8, 0)
    assert site.inner.counts()["pending"] == 8
    for n in range(8):
        assert [line.outcome.value for line in site.inner.show(f"a-{n}").record.history] == ["lost"]
    assert not _processes_below(str(site.root))


def _processes_below(root: str) -> list[str]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if f"FLEET_ROOT={root}\0".encode() in environment and process_id(int(pid)):
            found.append(pid)
    return found
