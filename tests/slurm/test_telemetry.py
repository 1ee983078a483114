"""Telemetry of fleets on a real Slurm: a logger on each node, joined with the queue.

The driver is our C library behind the real binding, told apart for each node; a node without it
would write host rows. Every wait is for a condition.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.layout import parse_telemetry_file, sidecar
from tests.rig.rig import Rig
from tests.slurm.cluster import Cluster
from tests.slurm.test_fleet import HOLD, Site
from tests.worker.harness import command_line, processes_with

# The processes of all nodes have one environment; each begins by looking at its own node's driver.
OF_THIS_NODE = """
import os
folder, node = os.environ.get("RIG_FOLDER"), os.environ.get("SLURMD_NODENAME")
if folder and node:
    os.environ["FLEETRIG_CONTROL"] = f"{folder}/{node}/rig.control"
"""
GPUS = 2


class LoggedSite(Site):
    """A site whose fleets have telemetry, and whose nodes have two GPUs each."""

    def __init__(self, cluster: Cluster, base: Path) -> None:
        super().__init__(cluster, base)
        rigs = base / "rigs"
        for node in cluster.nodes:
            (rigs / node).mkdir(parents=True)
            settings = {f"gpu.{n}.uuid": uuid_of(node, n) for n in range(GPUS)}
            rig = Rig(rigs / node, settings={**settings, "gpu.0.util": 90, "gpu.1.util": 0})
            self.env = rig.env(self.env)
        (rigs / "sitecustomize.py").write_text(OF_THIS_NODE)
        self.env["PYTHONPATH"] = f"{rigs}{os.pathsep}{self.env['PYTHONPATH']}"
        self.env["RIG_FOLDER"] = str(rigs)
        self.env["FLEET_TELEMETRY_INTERVAL_S"] = "0.5"

    def launch(self, *options: str, nodes: int = 4, minutes: str = "10") -> str:
        return super().launch("--gpus-per-node", str(GPUS), *options, nodes=nodes, minutes=minutes)

    def telemetry(self, node: str = "*") -> list[Path]:
        """The telemetry files of a node, oldest first, that have a row."""
        files = sorted((self.root / "telemetry").glob(f"{node}_job*.csv"))
        return [file for file in files if file.read_bytes().count(b"\n") > 1]

    def wait_logged(self, nodes: int) -> None:
        self.wait(f"{nodes} nodes are logged", lambda: len(self.telemetry()) == nodes)

    def logger_pids(self) -> list[int]:
        place = f'"folder":"{self.root}/telemetry"'.encode()
        pids = map(int, filter(str.isdecimal, os.listdir("/proc")))
        return [pid for pid in pids if place in command_line(pid)]


def uuid_of(node: str, number: int) -> str:
    return f"GPU-{node}-{number}"


def facts(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(sidecar(str(file))).read_text())
    return found


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[LoggedSite]:
    made = LoggedSite(cluster, tmp_path)
    yield made
    cluster.run("scancel", "--me")
    for pid in processes_with("FLEET_ROOT", str(made.root)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(180)
def test_each_node_is_logged_for_its_worker_and_joined_with_the_queue(site: LoggedSite) -> None:
    site.enqueue_many("held", HOLD, 3)
    site.enqueue_many("more", "true", 4)

    job = site.launch(nodes=3)
    site.wait_running(3)
    site.wait_logged(3)
    site.wait("two rows a GPU", lambda: min(len(rows(file)) for file in site.telemetry()) >= 4)
    picture = site.ok("top", "--once")
    summary = site.ok("telemetry", "summary", "--window", "60")

    for file in site.telemetry():
        named = parse_telemetry_file(file.name)
        assert named is not None
        assert named.job == job
        assert {row["gpu_uuid"] for row in rows(file)} == {
            uuid_of(named.node, n) for n in range(GPUS)
        }
        assert {(row["job_id"], row["kind"]) for row in rows(file)} == {(job, "gpu")}
        assert (facts(file)["node"], facts(file)["expected_gpus"]) == (named.node, GPUS)
        assert facts(file)["step_id"].isdecimal()
    logged = {parse_telemetry_file(file.name)[0] for file in site.telemetry()}
    listed = site.cluster.run("squeue", "--noheader", "--jobs", job, "--format", "%N").stdout
    expanded = site.cluster.run("scontrol", "show", "hostnames", listed.strip()).stdout
    assert logged == set(expanded.split())
    assert picture["allocated"] == 3 * GPUS
    assert summary["fleet"]["gpus_allocated"] == 3 * GPUS

    # A worker that dies takes its logger along, in order; its replacement has one of its own.
    killed = site.worker_pid(1)
    node = next(
        name for name in site.cluster.nodes
        if f"SLURMD_NODENAME={name}".encode()
        in Path(f"/proc/{killed}/environ").read_bytes().split(b"\0")
    )  # fmt: skip
    [held] = [name for name in site.files("running") if f".sh.{job}.1." in name]
    os.kill(killed, signal.SIGKILL)
    site.wait("its node is logged again", lambda: len(site.telemetry(node)) == 2)
    site.wait("its task is put back", lambda: site.outcomes(held.partition(".")[0]) == ["lost"])
    site.go()
    site.ended(job, "COMPLETED")

    assert len(site.telemetry()) == 4
    cut = site.telemetry(node)[0]
    ended = [file for file in site.telemetry() if facts(file)["ended_at"]]
    # Slurm kills what is left of a step, and so may cut the last word of a dead worker's logger.
    assert set(site.telemetry()) - set(ended) <= {cut}
    assert site.logger_pids() == []
    assert site.counts()["done"] == 7
    read = site.ok("telemetry", "inspect")
    assert (read["gpus"], read["rejected"]) == (3 * GPUS, 0)


@pytest.mark.timeout(120)
def test_scancel_leaves_files_that_can_be_read_and_no_logger(site: LoggedSite) -> None:
    site.enqueue_many("held", HOLD, 2)
    job = site.launch(nodes=2)
    site.wait_running(2)
    site.wait_logged(2)

    site.cluster.run("scancel", job)
    site.ended(job, "CANCELLED")

    site.wait("no logger is left", lambda: site.logger_pids() == [])
    read = site.ok("telemetry", "inspect")
    assert (read["files"], read["gpus"]) == (2, 2 * GPUS)
    assert all(file.read_bytes().endswith(b"\n") for file in site.telemetry())
    assert site.counts()["pending"] == 2
