"""W&B's own offline mode, for real: its files are read back, also those of a killed process.

No network is asked: offline mode needs none, and the sender is given no key.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fleetcraft.streaming.offline_files import records, rows_held
from fleetcraft.streaming.service import Service, Wanted
from fleetcraft.streaming.stream import Target
from fleetcraft.training.records import Rung, RungKind, State
from fleetcraft.training.supervision.journal import Event
from tests.streaming.material import SECRET, Run, T, at, config_of, numbers, rows_of, stored

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="wandb is not installed"
)
REPO = Path(__file__).resolve().parents[2]
FOLLOW = """
import json, sys, threading
from fleetcraft.streaming.service import Service, Wanted
from fleetcraft.streaming.stream import Target
def tell(told):
    one = told.streams[0]
    print(json.dumps({"id": one.id, "folder": one.folder, "rows": one.rows}), flush=True)
wanted = Wanted(root=sys.argv[1], target=Target(project="p", offline=True))
with Service(wanted, interval_s=0.05) as service:
    service.follow(0.1, threading.Event(), tell)
"""


def service(root: Path) -> Service:
    environ = {
        **os.environ,
        "WANDB_API_KEY": SECRET,
        "HF_TOKEN": SECRET,
        "HTTPS_PROXY": "http://127.0.0.1:9",  # where nobody listens, should anything be asked
    }
    target = Target(project="p", offline=True)
    return Service(Wanted(root=str(root), target=target), interval_s=0.05, environ=environ)


class Sent:
    """A run that two calls have sent: 200 steps and a few more lines, then 3 steps."""

    def __init__(self, root: Path) -> None:
        self.root = root
        run = Run(root)
        run.launch()
        run.steps(1, 199)
        more = {"loss": "nan", "queues": {"q_pre": [26, 50]}, "metrics": {"r": 0.5}}
        run.report(0, {"step": 200, **more, "at": at(T + 2000)})
        run.tell(Event.RUNG, rung=Rung(kind=RungKind.KNOB, knob="micro", before=8, after=6))
        run.status(State.HEALTHY)
        self.ids = [self.send()]
        run.steps(201, 3)
        self.ids.append(self.send())
        (self.files,) = root.glob("streams/wandb/p/runs/distill/files")
        self.rows = rows_of(self.files)

    def send(self) -> str:
        with service(self.root) as streaming:
            (told,) = streaming.send_all().streams
        assert told.waiting == 0
        return told.id


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    return Sent(tmp_path_factory.mktemp("sent"))


def test_each_row_is_in_its_files_once_with_its_own_time_and_values(sent: Sent) -> None:
    assert numbers(sent.rows) == list(range(204))
    losses = [row["train/loss"] for row in sent.rows if "train/loss" in row]
    assert losses[:4] == [3.0, 1.5, 1.0, 0.75]
    assert [row["_timestamp"] for row in sent.rows[:3]] == [T + 10, T + 20, T + 30]
    assert sent.rows[3]["train/tokens_per_s"] == 100.0
    (named,) = [row for row in sent.rows if "queues/q_pre" in row]
    assert (named["queues/q_pre"], named["metrics/r"], named["train/step"]) == (26, 0.5, 200)
    assert str(named["train/loss"]).lower() == "nan"
    (rung,) = [row for row in sent.rows if row.get("event") == "rung"]
    assert (rung["event/knob"], rung["event/knob_after"]) == ("micro", 6)
    assert "train/step" not in rung  # no step was its own, and 0 would be one
    config = config_of(sent.files)
    assert (config["world_size"], config["knobs"]) == (3, {"micro_batch": 8})


def test_a_second_call_goes_on_under_the_same_id(sent: Sent) -> None:
    found = {one.run.run_id for one in stored(sent.files) if one.WhichOneof("record_type") == "run"}
    assert found == set(sent.ids)
    assert len(found) == 1
    assert len(list(sent.files.glob("wandb/offline-run-*/*.wandb"))) == 2


def test_no_secret_and_no_name_of_this_machine_is_in_what_would_be_uploaded(sent: Sent) -> None:
    for path in (sent.root / "streams").rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    host = socket.gethostname()
    assert all(host != one.run.host for one in stored(sent.files))
    kinds = {one.WhichOneof("record_type") for one in stored(sent.files)}
    assert not kinds & {"environment", "output", "output_raw", "stats", "files"}, kinds


def test_a_file_that_is_cut_anywhere_gives_the_rows_before_the_cut(
    sent: Sent, tmp_path: Path
) -> None:
    first = min(sent.files.rglob("*.wandb"))
    path = tmp_path / "wandb" / first.parent.name / first.name
    path.parent.mkdir(parents=True)
    whole = first.read_bytes()
    assert len(whole) > 1 << 15  # more than one block
    seen = []
    for size in [*range(0, len(whole), 997), len(whole)]:
        path.write_bytes(whole[:size])
        seen.append(rows_held(str(tmp_path), sent.ids[0]))
        assert len(list(records(path))) >= seen[-1]
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, 201)
    path.write_bytes(b"no file of W&B")
    assert rows_held(str(tmp_path), sent.ids[0]) == 0


def test_after_a_kill_of_everything_each_row_is_there_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.launch()
    run.steps(1, 50)
    process = subprocess.Popen(
        [sys.executable, "-c", FOLLOW, str(tmp_path)], stdout=subprocess.PIPE, cwd=REPO, text=True
    )
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    deadline = time.monotonic() + 60
    while rows_held(said["folder"], said["id"]) < 50:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    theirs = psutil.Process(process.pid).children(recursive=True)
    assert len(theirs) >= 2  # the sender, and W&B's own process
    run.steps(51, 30)  # these it may read, and even send, but they are in no file yet
    while json.loads(process.stdout.readline())["rows"] < 80:
        assert time.monotonic() < deadline
    for pid in (process.pid, *(one.pid for one in theirs)):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(theirs, timeout=20)
    process.stdout.close()
    run.steps(81, 10)
    with service(tmp_path) as streaming:
        (told,) = streaming.send_all().streams
    rows = rows_of(Path(told.folder))
    assert sorted(numbers(rows)) == list(range(90))
    assert sorted(row["train/step"] for row in rows) == list(range(1, 91))
    assert (told.rows, told.waiting, told.id) == (90, 0, said["id"])
