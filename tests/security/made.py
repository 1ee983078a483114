"""A small project that goes through every room of the toolkit, made under a umask of one's choice.

Run as a program, ``python -m tests.security.made BASE UMASK [heavy]``: every verb then works in a
process whose umask and environment are not those of pytest. What each call said is kept. Not here:
what is asserted of it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fleetcraft.cli.main import main

SAID = "said.json"
"""In BASE: what each call said, and its exit code."""
SECRET = "c4nary-7f1e"
"""Stands in every secret below, and nowhere else."""
SECRETS = {
    "HF_TOKEN": f"hf_{SECRET}",
    "WANDB_API_KEY": f"{SECRET}{'0' * 29}",
    "MY_SERVICE_TOKEN": SECRET,
    "OPENAI_API_KEY": f"sk-{SECRET}",
    "DB_PASSWORD": SECRET,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_SESSION_TOKEN": SECRET,
    "SSH_PRIVATE_KEY": f"-----BEGIN KEY-----\n{SECRET}",
    "PIP_INDEX_URL": f"https://user:{SECRET}@pypi.example.org/simple",
    "HTTPS_PROXY": f"http://user:{SECRET}@proxy.example.org:3128",
    "HF_ENDPOINT": f"https://user:{SECRET}@hub.example.org",
    "DATABASE_URL": f"postgres://user:{SECRET}@db.example.org/x",
    "FLEET_TORCH_INDEX": f"https://user:{SECRET}@torch.example.org",
    "SLURM_JWT": SECRET,
}

_RUN = """
run: distill
command: [{python}, -c, "print('step')"]
look_s: 0.05
warmup_s: 0.1
grace_s: 1
inner_grace_s: 0
"""


class Maker:
    """Calls verbs on one scratch tree and keeps what they said."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "shared" / "scratch"
        self.project = base / "project"
        self.said: list[tuple[list[str], int, str]] = []

    def __call__(self, *words: object, fine: tuple[int, ...] = (0,)) -> None:
        """One call; its exit code must be one of those that are fine."""
        called = [str(word) for word in words]
        text = io.TextIOWrapper(io.BytesIO(), "utf-8")
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            code = main(["--root", str(self.root), *called])
        text.flush()
        said = text.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]
        self.said.append((called, code, said))
        assert code in fine, (called, code, said)


def _spool(call: Maker) -> None:
    env_file = call.project / "env"
    env_file.write_text(f"FROM_FILE={SECRET}\n")
    env_file.chmod(0o600)
    call("init")
    look = "echo $$ > ps.txt; ps -eo pid=,ppid=,args= >> ps.txt; echo made > out.txt"
    call("enqueue", "-n", "good", "--outputs", "out.txt", "--env-file", "env", look)
    call("enqueue", "-n", "bad", "--family", "f/1", "echo 'Error: it broke' >&2; exit 3")
    call("enqueue", "-n", "next", "--after", "good", "true")
    call("enqueue", "-n", "never", "--after", "bad", "true")
    call("run", fine=(1,))
    call("enqueue", "-n", "rest", "true")
    call("enqueue", "-n", "gone", "true")
    call("cancel", "gone")
    call("drain")
    for verb in ("status", "check", "promote", "recover"):
        call(verb)
    call("resume")
    call("show", "bad")
    call("logs", "bad")
    call("barrier", "write", "ready.json", "out.txt", "--note", "done")
    call("barrier", "check", "ready.json")


def _telemetry(call: Maker) -> None:
    from fleetcraft.identity import this_host
    from tests.telemetry.trees import lines, write_file

    folder = call.root / "telemetry"
    write_file(folder, this_host().host, lines(time.time() - 290, 30, 10.0), sidecar={})
    call("telemetry", "inspect", fine=(0, 1))
    call("telemetry", "summary", "--window", "600", "--freeze", "window.json")
    call("telemetry", "verify", "window.json")
    call("telemetry", "export", "--out", "given/away")


def _figures(call: Maker) -> None:
    call("telemetry", "plot", "--out", "figures/deep")


def _training(call: Maker) -> None:
    run_file = call.project / "run.yaml"
    run_file.write_text(_RUN.format(python=json.dumps(sys.executable)))
    run_file.chmod(0o644)
    call("train", "supervise", "run.yaml")
    call("train", "status")
    call("train", "claims", fine=(0, 1))
    call("train", "abort", "distill", "--reason", "enough", fine=(0, 1, 2, 5))
    from fleetcraft.training.checkpoint.store import CheckpointStore
    from tests.training.checkpoint.stores import save

    store = CheckpointStore(call.root / "runs" / "distill" / "checkpoints")
    save(store, 1)
    call("train", "checkpoints", store.paths.folder)
    call("train", "diagnose", call.root / "taskq" / "logs" / "bad.1.log", fine=(0, 1))


def _rollouts(call: Maker) -> None:
    from fleetcraft.rollouts.producer import Producer
    from fleetcraft.rollouts.queue import RolloutQueue
    from fleetcraft.rollouts.records import Settings
    from fleetcraft.rollouts.trainer import RolloutTrainer

    folder = str(call.root / "trajq" / "deep" / "wan")
    settings = Settings(run="wan", batch=2, high_water=10, low_water=5, lock_interval_s=0.05)
    queue = RolloutQueue.create(folder, settings)
    with Producer(queue, "seed6", shape="81x480x832") as producer:
        for unit in producer:
            unit.publish(scalars={"reward": float("nan") if unit.sequence == 1 else 1.0})
            if unit.sequence == 4:
                break
    with RolloutTrainer(queue) as trainer:
        for batch in trainer.batches(limit=1, patience_s=0):
            batch.commit("step-1", f"{1:064x}")
    call("rollouts", "status", folder)
    call("rollouts", "audit", folder)
    call("rollouts", "abort", folder, "--reason", "enough")


def _evidence(call: Maker) -> None:
    for arm, score in (("full", 0.5), ("cached", 0.6)):
        words = ("--arm", arm, "--seed", 1, "--metric", f"score={score}", "--output", "out.txt")
        call("evidence", "append", "--set", "sweep", *words, "--stack", "python=3")
    call("evidence", "results", "sweep")
    comparing = ("full", "cached", "--metric", "score", "-o", "comparison.json")
    call("evidence", "compare", *comparing, fine=(0, 1))
    for name in ("set", "set/deep"):
        (call.project / name).mkdir(mode=0o700)
        (call.project / name / "a.txt").write_text("a")
    call("evidence", "freeze", "set", "--name", "s-1")
    call("evidence", "archive", "s-1", "archive/deep/s-1")
    call("evidence", "export", "s-1", "bag")
    call("evidence", "verify", "archive/deep/s-1", "--level", "reread")
    (call.project / "score.svg").write_text("<svg/>\n")
    call("evidence", "stamp", "score.svg", "comparison.json", "--by", "plot.py")
    call("evidence", "trace", "score.svg", fine=(0, 1, 7))


def _caches(call: Maker) -> None:
    for words in (("show",), ("check",), ("env", "--run", "sweep", "--attempt", "1")):
        call("caches", *words, fine=(0, 1))
    fill = 'mkdir -p "$HF_HUB_CACHE"'
    call("caches", "fill", "org/tiny", "--", "sh", "-c", fill, fine=(7,))


def _calibration(call: Maker) -> None:
    if importlib.util.find_spec("torch") is None:
        return
    family = Path(__file__).parents[1] / "calibration" / "sweep" / "tinyfam.py"
    words = (
        f"{family}:plain",
        "--batches",
        "1",
        "--threads",
        "1",
        "--device",
        "cpu",
        "--no-figure",
    )
    call("calibrate", "run", *words, "--cycles", 1, "--soak", 0)
    call("calibrate", "show", "tiny/plain")
    call("calibrate", "freeze", "tiny/plain", fine=(0, 1, 7))
    call("calibrate", "show", fine=(0, 1, 3, 7))


def _looking(call: Maker) -> None:
    call("report", "-o", "report.html")
    call("config", "show")
    call("guard", fine=(0, 1, 2, 3))
    call("snapshot", fine=(0, 1, 4))
    call("top", "--once", fine=(0, 1, 2, 6))
    call("doctor", "--quick", fine=(0, 1, 3))
    call("enqueue", "-n", "good", "another command", fine=(5,))
    call("enqueue", "--from", "no-such-file", fine=(2, 3, 5))
    call("caches", "fill", "org/other", "--", "no-such-program", fine=(2,))


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def make(base: Path, *, heavy: bool) -> Maker:
    """Makes it in a folder; the umask and environment are the caller's.

    Args:
        base: An empty folder.
        heavy: Whether figures are drawn and a family is calibrated, which takes most of the time.
    """
    call = Maker(base)
    call.project.mkdir(mode=0o700)
    with _inside(call.project):
        rooms = (_spool, _telemetry, _training, _rollouts, _evidence, _caches)
        for room in (*rooms, *((_figures, _calibration) if heavy else ()), _looking):
            room(call)
    return call


if __name__ == "__main__":
    os.environ.update(SECRETS)
    os.umask(int(sys.argv[2], 8))
    made = make(Path(sys.argv[1]), heavy="heavy" in sys.argv[3:])
    Path(sys.argv[1], SAID).write_text(json.dumps(made.said))
