"""A run over several nodes on a real Slurm: one step, adopted, cancelled exactly, beside another.

Every wait is for a condition. The supervisor of the tests is a small program in the batch script.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import RunPaths
from fleetcraft.training.launching.reading import Reports
from fleetcraft.training.launching.sweeping import Net
from fleetcraft.training.records import EPOCH_SCHEMA, Epoch, EpochKind
from tests.slurm.cluster import Cluster

REPO = Path(__file__).resolve().parents[2]
SUPERVISOR = """
import json, os, sys, time
import msgspec
from fleetcraft.layout.runs import RunPaths
from fleetcraft.slurm.polls import Polls
from fleetcraft.training.launching.adoption import find_live
from fleetcraft.training.launching.start import launch
from fleetcraft.training.launching.steps import ask_steps
from fleetcraft.training.launching.stop import stop
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import Epoch

base = sys.argv[1]
paths = RunPaths(f"{base}/runs/r1")
polls = Polls(f"{base}/polls", interval_s=1.0)
steps = lambda: ask_steps(polls, fresh=True)
code = (
    "import os, time; n = os.environ['SLURMD_NODENAME']; "
    "open(f'rank-{n}', 'w').write(os.environ['FLEET_NODE_RANK'] + os.environ['PET_MASTER_ADDR']); "
    "time.sleep(600)"
)
plan = RunPlan(
    run="r1", command=(sys.executable, "-S", "-c", code), directory=base, nodes=2, grace_s=0.5,
    inner_grace_s=0.0, look_s=0.2,
)

def say(name, **facts):
    with open(f"{base}/{name}.new", "w") as file:
        json.dump(facts, file)
    os.rename(f"{base}/{name}.new", f"{base}/{name}")

def wait_for(name):
    while not os.path.exists(f"{base}/{name}"):
        time.sleep(0.05)

def tell(name, launched):
    sight = launched.look()
    say(name, whole=sight.whole.value, why=sight.why, nodes=[node.node for node in sight.nodes],
        ends=[msgspec.to_builtins(end) for end in sight.ends],
        step=launched.step.id if launched.step else "")

if sys.argv[2] == "launch":
    epoch = msgspec.json.decode(open(f"{base}/epoch").read(), type=Epoch)
    epoch = msgspec.structs.replace(epoch, command=plan.command)
    started = launch(paths.attempt(1), plan, epoch, environment={}, nodes=2, steps=steps)
    while started.look().whole.value == "starting":
        time.sleep(0.05)
    tell("started", started)
    time.sleep(600)
else:
    found = find_live(paths, moved=lambda: True, steps=steps, generation=2)
    say("found", answer=found.answer.value, why=found.why)
    if found.launch is not None:
        tell("adopted", found.launch)
        wait_for("stop")
        options = json.load(open(f"{base}/stop"))
        stopped = stop(found.launch, grace_s=0.5, kill_wait_s=options["kill_wait_s"])
        tell("after", found.launch)
        say("stopped", result=stopped.result.value, why=stopped.why, seconds=stopped.seconds)
"""


class Site:
    """One run on a cluster, and the programs that play its supervisors."""

    def __init__(self, cluster: Cluster, base: Path) -> None:
        self.cluster = cluster
        self.base = base
        self.paths = RunPaths(str(base / "runs" / "r1"))
        (base / "runs").mkdir()
        for folder in self.paths.folders():
            Path(folder).mkdir(mode=0o700)
        self.epoch = Epoch(
            schema=EPOCH_SCHEMA, number=1, generation=1, run="r1", kind=EpochKind.LAUNCHED,
            attempt=1, nonce=f"step{os.getpid()}", at="", why="a test", command=(),
            command_sha256="", environment_sha256="", nodes=2,
        )  # fmt: skip
        (base / "supervisor.py").write_text(SUPERVISOR)

    def supervisor(self, act: str) -> str:
        words = [sys.executable, str(self.base / "supervisor.py"), str(self.base), act]
        return f"PYTHONPATH={shlex.quote(str(REPO))} {shlex.join(words)}"

    def submit(self, script: str, nodes: int = 3) -> str:
        log = self.base / "batch.log"
        return self.cluster.submit(f"-N{nodes}", f"--output={log}", "--time=10", script=script)

    def read(self, name: str) -> dict[str, Any]:
        self.cluster.wait_for(name, (self.base / name).exists, patience_s=90)
        found: dict[str, Any] = json.loads((self.base / name).read_text())
        return found

    def steps(self, job: str) -> dict[str, str]:
        """Names of the job's numbered steps by number."""
        shown = self.cluster.run("squeue", "-h", "-s", "-j", job, "-o", "%i|%j|%N").stdout
        rows = [line.split("|") for line in shown.splitlines()]
        return {i.partition(".")[2]: f"{name} {n}" for i, name, n in rows if i[-1].isdecimal()}


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    made = Site(cluster, tmp_path)
    yield made
    cluster.run("scancel", "--me")
    Net(made.epoch.nonce).sweep(signal.SIGKILL, 10.0)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("keepers", ["obey", "are paused"])
def test_a_step_over_two_of_three_nodes_is_cancelled_exactly_and_all_else_lives_on(
    site: Site, keepers: str
) -> None:
    epoch = msgspec.json.encode(site.epoch)
    Path(site.paths.epoch(1)).write_bytes(epoch)
    (site.base / "epoch").write_bytes(epoch)
    job = site.submit(
        f"{site.supervisor('launch')} & echo $! > {site.base}/first\n"
        f"until [ -e {site.base}/started ]; do sleep 0.1; done\n"
        f"srun -N1 -n1 --job-name=beside sleep 500 & \n"
        f"until [ -e {site.base}/adopt ]; do sleep 0.1; done\n"
        f"{site.supervisor('adopt')} & wait %1; touch {site.base}/over; sleep 500\n"
    )

    started = site.read("started")

    assert started["whole"] == "running", (site.base / "batch.log").read_text()
    assert started["nodes"] == ["n1", "n2"]
    site.cluster.wait_for("both ranks run", lambda: len(list(site.base.glob("rank-n*"))) == 2)
    ranks = {path.name: path.read_text() for path in site.base.glob("rank-n*")}
    assert ranks == {"rank-n1": "0n1", "rank-n2": "1n1"}
    site.cluster.wait_for("another step runs", lambda: len(site.steps(job)) == 2)
    assert sorted(site.steps(job).values())[0] == "beside n3", "the surplus node is free for it"

    os.kill(int((site.base / "first").read_text()), signal.SIGKILL)
    (site.base / "adopt").touch()
    assert site.read("found")["answer"] == "LIVE", site.read("found")
    assert site.read("adopted")["step"] == started["step"]
    if keepers == "are paused":
        pause_keepers(site)
    (site.base / "stop").write_text(json.dumps({"kill_wait_s": 0.5}))

    stopped = site.read("stopped")
    assert stopped["result"] == "REAPED", stopped
    ends = site.read("after")["ends"]
    if keepers == "obey":
        assert [(end["node"], end["told_to_stop"], end["clean"]) for end in ends] == [
            ("n1", True, True),
            ("n2", True, True),
        ]
    site.cluster.wait_for(
        "only the other step is left",
        lambda: list(site.steps(job).values()) == ["beside n3"],
        patience_s=90,
    )
    assert site.cluster.job_state(job) == "RUNNING"
    assert Net(site.epoch.nonce).sweep(None, 5.0).quiet


def pause_keepers(site: Site) -> None:
    """As on a node that hangs: the keepers hear nothing."""
    reports = Reports(site.paths.attempt(1), FileSystem())
    reports.read()
    for keeper in reports.keepers.values():
        os.kill(keeper.keeper.process.pid, signal.SIGSTOP)


@pytest.mark.timeout(120)
def test_a_step_that_cannot_begin_is_a_loss_with_its_reason(site: Site) -> None:
    epoch = msgspec.json.encode(site.epoch)
    (site.base / "epoch").write_bytes(epoch)
    site.submit(f"{site.supervisor('launch')}", nodes=1)  # it wants two
    started = site.read("started")
    assert started["whole"] == "lost"
    assert "srun ended with 250" in started["why"]
    said = Path(site.paths.attempt(1).log("keeper")).read_text()
    assert "nodes" in said.lower(), said
