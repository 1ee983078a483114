"""Renewal on a real Slurm: one fleet for queued work, found again after a crash, within a balance.

Each call is a process of its own. Not here: the decisions one by one; tests/fleet has those.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster

REPO = Path(__file__).resolve().parents[2]
HOLD = "until [ -e go ]; do sleep 0.1; done"


class Site:
    """A scratch tree on a cluster, and calls of renew on it."""

    def __init__(self, cluster: Cluster, base: Path) -> None:
        self.cluster = cluster
        self.root = base / "a root"
        self.project = base / "project"
        self.project.mkdir()
        self.bin = base / "bin"
        self.bin.mkdir()
        self._polls = (base / f"polls-{number}" for number in itertools.count())
        self.env = {
            **cluster.env,
            "PYTHONPATH": str(REPO),
            "FLEET_WORKER_HEARTBEAT_S": "1",
            "FLEET_WORKER_IDLE_S": "1",
            "FLEET_RENEW_LANES": "2x00:10:00",
        }
        self.call("init")

    def command(self, *words: str) -> list[str]:
        where = ["--root", str(self.root), "--project-dir", str(self.project)]
        return [sys.executable, "-m", "fleetcraft", *where, *words]

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """A call as a process; it waits for no other call's turn to ask Slurm."""
        return subprocess.Popen(
            self.command(*words),
            env={**self.env, "FLEET_POLLS_DIR": str(next(self._polls)), **env},
            cwd=self.project,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *words: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **env)
        out, err = process.communicate(timeout=110)
        assert process.returncode == code, (process.returncode, out, err)
        return subprocess.CompletedProcess(words, code, out, err)

    def enqueue(self, *names: str, command: str = HOLD) -> None:
        for name in names:
            self.call("enqueue", "-n", name, "--time", "00:05:00", "--", command)

    def renew(self, *words: str, code: int = 0, **env: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(
            self.call("renew", "--json", *words, code=code, **env).stdout
        )
        assert report["schema"] == "fleetcraft.renew/1"
        return report

    def decision(self, *words: str, code: int = 0, **env: str) -> str:
        (lane,) = self.renew(*words, code=code, **env)["lanes"]
        return str(lane["decision"])

    def jobs(self) -> list[str]:
        """Jobs that wait or run."""
        return self.cluster.run("squeue", "-h", "-o", "%i").stdout.split()

    def program(self, name: str, body: str) -> dict[str, str]:
        """Puts a program before Slurm's own; ``$real`` in it is that one."""
        real = self.cluster.run("sh", "-c", f"command -v {name}").stdout.strip()
        file = self.bin / name
        file.write_text(f"#!/bin/bash\nreal={shlex.quote(real)}\n{body}\n")
        file.chmod(0o755)
        return {"PATH": f"{self.bin}:{self.env['PATH']}"}

    def intents(self) -> list[dict[str, Any]]:
        folder = self.root / "control/intents"
        return [json.loads(file.read_bytes()) for file in sorted(folder.glob("*.json"))]


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path)


def test_queued_work_gets_one_fleet_that_does_it_and_no_second_one(site: Site) -> None:
    # Arrange
    site.enqueue("a", "b")
    # Act: two passes, ten seconds apart, and one submission.
    done = site.call("renew", "--json")
    report = json.loads(done.stdout)
    # Assert
    assert "needed in 1 of 2 passes in a row" in done.stderr
    assert report["lanes"][0]["decision"] == "submitted"
    assert report["lanes"][0]["demand"]["tasks"] == 2
    (job,) = report["submitted"]
    assert site.jobs() == [job]
    intent, ending = sorted(site.intents(), key=lambda found: found["schema"])
    assert (ending["how"], ending["job"]) == ("submitted", job)
    shown = site.cluster.run("squeue", "-h", "-j", job, "-o", "%j %k %D %l").stdout.split()
    assert shown[0] == intent["job_name"]
    assert f"intent={intent['nonce']}" in shown
    assert shown[-2:] == ["2", "10:00"]
    # The work is theirs now; and what was seen is left for others to read.
    assert site.decision("--now") == "not_needed"
    left = json.loads((site.root / "control/renew.json").read_bytes())
    assert left["lanes"][0]["decision"] == "not_needed"
    (site.project / "go").touch()
    try:
        site.cluster.wait_for(
            "both are done", lambda: len(os.listdir(site.root / "taskq/done")) == 2
        )
    except AssertionError as error:
        logs = [file.read_text() for file in (site.root / "logs").iterdir()]
        raise AssertionError("\n".join([str(error), site.cluster.job_state(job), *logs])) from None


def test_a_renew_killed_right_after_its_submission_is_followed_by_one_that_finds_the_job(
    site: Site,
) -> None:
    site.enqueue("a", "b")
    deadly = site.program("sbatch", '"$real" "$@"\nkill -KILL $PPID')
    site.call("renew", "--now", code=-signal.SIGKILL, **deadly)
    (job,) = site.jobs()
    assert [found["schema"] for found in site.intents()] == ["fleetcraft.intent/1"]
    report = site.renew("--now")
    assert [(found["how"], found["job_id"]) for found in report["settled"]] == [("submitted", job)]
    assert report["lanes"][0]["decision"] in ("queued", "not_needed")
    assert report["generation"] == 2
    assert site.jobs() == [job]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("exit 0", "not even a header"),
        ("echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1", "Unable to contact"),
        ('"$real" "$@" | head -c 100', "cut off|header"),
    ],
    ids=["empty", "error", "cut off"],
)
def test_a_squeue_that_lies_or_fails_submits_nothing(site: Site, body: str, words: str) -> None:
    site.enqueue("a", "b")
    report = site.renew("--now", code=4, **site.program("squeue", body))
    (lane,) = report["lanes"]
    assert (lane["decision"], lane["demand"], report["trouble"]) == ("unknown", None, "slurm")
    assert any(word in lane["reason"] for word in words.split("|"))
    assert site.jobs() == []


def test_of_two_at_once_one_has_the_lock_and_one_fleet_is_submitted(site: Site) -> None:
    site.enqueue("a", "b")
    slow = site.program("sbatch", f'until [ -e "{site.project}/submit" ]; do sleep 0.1; done\n'
                        'exec "$real" "$@"')  # fmt: skip
    first = site.start("renew", "--json", "--now", **slow)
    site.cluster.wait_for("the first one has recorded its intent", lambda: bool(site.intents()))
    refused = json.loads(site.call("renew", "--json", "--now", code=75).stderr)["error"]
    assert refused["type"] == "LockHeldError"
    assert f"process {first.pid} " in refused["message"]
    assert site.jobs() == []
    (site.project / "submit").touch()
    out, _ = first.communicate(timeout=60)
    assert json.loads(out)["submitted"] == site.jobs()
    assert len(site.jobs()) == 1


def test_a_steady_renewal_ends_on_term_and_leaves_the_lock_to_the_next(site: Site) -> None:
    steady = site.start("renew", "--json", "--every", "1h", "--for", "2h")
    assert steady.stdout is not None
    first = json.loads(steady.stdout.readline())
    assert first["lanes"][0]["decision"] == "not_needed"
    steady.send_signal(signal.SIGTERM)
    assert steady.wait(timeout=60) == 143  # long before its next pass
    steady.communicate()
    assert site.renew("--now")["generation"] == first["generation"] + 1


def test_a_job_does_not_renew_unless_it_is_told_the_way_to_a_login_node(site: Site) -> None:
    site.enqueue("a", "b")
    refused = site.call("renew", "--now", code=3, SLURM_JOB_ID="12")
    assert "inside job 12" in refused.stderr
    assert "login.reach" in refused.stderr
    assert site.jobs() == []
    # sh -c takes one word, as ssh hands one line to the shell there.
    way = {"SLURM_JOB_ID": "12", "FLEET_LOGIN_REACH": "env -u SLURM_JOB_ID sh -c"}
    assert site.decision("--dry-run", **way) == "would_submit"
    assert site.jobs() == []
    assert site.decision("--now", **way) == "submitted"
    assert len(site.jobs()) == 1
    way["FLEET_LOGIN_REACH"] = "sh -c"
    assert "led into job 12" in site.call("renew", code=3, **way).stderr
    way["FLEET_LOGIN_REACH"] = "sh -c 'exit 255'"
    assert "was not reached" in site.call("renew", code=4, **way).stderr


def test_the_balance_of_an_account_bounds_what_is_renewed(
    accounting_cluster: Cluster, tmp_path: Path
) -> None:
    # Arrange: three node-hours are allowed, and a fleet of two nodes may take one and two thirds.
    def sacctmgr(*words: str) -> None:
        accounting_cluster.run("sacctmgr", "-i", "modify", "account", "proj", "set", *words)

    site = Site(accounting_cluster, tmp_path)
    site.env |= {"FLEET_BALANCE_ACCOUNT": "proj", "FLEET_RENEW_LANES": "2x00:50:00"}
    site.enqueue("a", "b")
    sacctmgr("GrpTRESMins=node=180")
    try:
        # Act and assert
        report = site.renew("--now", FLEET_BALANCE_HEADROOM_H="2")
        (lane,) = report["lanes"]
        assert (lane["decision"], lane["balance"]["status"]) == ("balance", "known")
        assert "below the headroom of 2 h" in lane["reason"]
        assert site.jobs() == []
        report = site.renew("--now", FLEET_BALANCE_HEADROOM_H="1")
        assert report["lanes"][0]["decision"] == "submitted"
        assert report["lanes"][0]["cost_h"] == 1.67
    finally:
        sacctmgr("GrpTRESMins=node=-1")
