"""A real Slurm for tests: the sandbox as a user has it, and what tests ask of it again and again.

Not here: the fixtures; they are in conftest.py. Invariant: whatever becomes of the process that
started it, the cluster is stopped and its folder removed when that process ends.
"""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SANDBOX = Path(__file__).resolve().parents[2] / "infra" / "slurm" / "sandbox"
SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PATIENCE_S = 60.0


def missing(*, accounting: bool = False) -> str:
    """Why no cluster can be started here, or nothing."""
    programs = ["munged", "slurmctld", "slurmd", "sbatch"]
    if accounting:
        programs += ["slurmdbd", "mariadbd"]
    lacking = [name for name in programs if shutil.which(name, path=SYSTEM_PATH) is None]
    return f"not installed: {', '.join(lacking)} (.ci/run installs them)" if lacking else ""


class Cluster:
    """One running sandbox.

    Attributes:
        dir: Its folder.
        nodes: The names of its nodes.
        env: An environment with which every client finds it.
    """

    def __init__(self, *options: str, nodes: int = 4) -> None:
        # Under /tmp and not pytest's own folder: sockets want short names.
        self.dir = Path(tempfile.mkdtemp(prefix="fc-slurm-", dir="/tmp"))
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.env = dict(os.environ)
        self._options = options
        # It waits for the end of its input, that is of this process, and then stops the cluster:
        # no signal and no crash can get around it.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; "$0" stop --dir "$1"; rm -rf "$1"', SANDBOX, self.dir],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Starts it anew, without any job."""
        started = self.sandbox("start", "--nodes", str(len(self.nodes)), *self._options)
        assert started.returncode == 0, started.stderr
        for line in self.sandbox("env").stdout.splitlines():
            [word] = shlex.split(line.removeprefix("export "))
            name, _, value = word.partition("=")
            self.env[name] = value

    def close(self) -> None:
        """Stops it for good."""
        self._guard.communicate(timeout=PATIENCE_S)

    def sandbox(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Calls the tool on this cluster's folder."""
        return sandbox(*words, "--dir", str(self.dir))

    def run(
        self, *argv: str | Path, timeout_s: float = 30.0, check: bool = True, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end in this cluster's environment."""
        done = subprocess.run(
            argv,
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, f"{argv}: {done.stderr}"
        return done

    def submit(self, *options: str | Path, script: str) -> str:
        """Submits a bash script; returns the job id. Its output is lost unless `options` say."""
        # Of options that are given twice, Slurm takes the last.
        words = ("sbatch", "--parsable", "--output=/dev/null", *options)
        return self.run(*words, stdin=f"#!/bin/bash\n{script}\n").stdout.strip()

    def job_state(self, job_id: str) -> str:
        """Slurm's word for a job of the last minutes, such as RUNNING."""
        shown = self.run("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T", check=False)
        return shown.stdout.strip()

    def node_states(self) -> dict[str, str]:
        """Slurm's word for each node, such as idle or down*."""
        shown = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").stdout
        return dict(line.split() for line in shown.splitlines())

    def wait_for(
        self, what: str, is_so: Callable[[], bool], *, patience_s: float = PATIENCE_S
    ) -> None:
        """Waits until something is so; fails with the words for it otherwise."""
        give_up_at = time.monotonic() + patience_s
        while not is_so():
            assert time.monotonic() < give_up_at, f"not within {patience_s:g} s: {what}"
            time.sleep(0.1)

    def wait_for_job(self, job_id: str, *states: str, patience_s: float = PATIENCE_S) -> str:
        """Waits until a job is in one of these states; returns it."""
        self.wait_for(
            f"job {job_id} is {' or '.join(states)}",
            lambda: self.job_state(job_id) in states,
            patience_s=patience_s,
        )
        return self.job_state(job_id)

    def kill_node(self, node: str) -> None:
        """Cuts a node's power."""
        done = self.sandbox("kill-node", node)
        assert done.returncode == 0, done.stderr

    def revive_node(self, node: str) -> None:
        """Switches a node on again and waits until Slurm takes it."""
        done = self.sandbox("revive-node", node)
        assert done.returncode == 0, done.stderr

    def cancel_all(self) -> None:
        """Cancels every job, and waits until none is left and all nodes are idle."""
        self.run("scancel", "--user", _user(), check=False)
        self.wait_for("no job, and all nodes idle", self._is_at_rest)

    def come_to_rest(self) -> None:
        """Makes it as new for the next test: all nodes on, no job."""
        try:
            status = json.loads(self.sandbox("status", "--json").stdout)
            for node in status["nodes"]:
                if not node["on"]:
                    self.revive_node(node["name"])
            self.cancel_all()
        except (AssertionError, KeyError, ValueError, subprocess.TimeoutExpired):
            self.sandbox("stop")
            self.start()

    def log_tail(self, lines: int = 40) -> str:
        """The end of the controller's log, for the report of a test that failed."""
        try:
            text = (self.dir / "log" / "slurmctld.log").read_text(errors="replace")
        except OSError as error:
            return str(error)
        return "\n".join(text.splitlines()[-lines:])

    def _is_at_rest(self) -> bool:
        jobs = self.run("squeue", "-h").stdout.strip()
        return not jobs and set(self.node_states().values()) == {"idle"}


def sandbox(*words: str | Path, **more: object) -> subprocess.CompletedProcess[str]:
    """Calls the tool as a shell would."""
    return subprocess.run(
        # By its own first line it would start whatever python3 PATH has.
        [sys.executable, SANDBOX, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        **more,  # type: ignore[call-overload]
    )


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name
