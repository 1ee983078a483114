"""The sender as a process of its own: a library that hangs, fails, prints, or is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleetcraft.errors import ConfigError, UsageError
from fleetcraft.streaming.sending import Limits, SenderGoneError, environment_of
from fleetcraft.streaming.service import Fleet, Service, Told, Wanted
from fleetcraft.streaming.stream import Target
from fleetcraft.training.records import State
from tests.streaming.material import SECRET, Run

STUB = Path(__file__).parent / "stub"
REPO = Path(__file__).resolve().parents[2]
LIMITS = Limits(open_s=20.0, rows_s=20.0, close_s=20.0)
SHORT = {
    "init": Limits(open_s=1.0, rows_s=20.0, close_s=20.0),
    "log": Limits(open_s=20.0, rows_s=1.0, close_s=20.0),
    "finish": Limits(open_s=20.0, rows_s=20.0, close_s=1.0),
}


class Stub:
    """A scratch tree with a run, and a service that is a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root / "tree"
        self.service = root / "service"
        self.service.mkdir()
        self.run = Run(self.root)
        self.run.launch()

    def open(
        self,
        limits: Limits = LIMITS,
        runs: tuple[str, ...] = (),
        *,
        offline: bool = False,
        **stub: str,
    ) -> Service:
        environ = {
            **os.environ,
            "PYTHONPATH": f"{STUB}{os.pathsep}{REPO}",
            "STUB_WANDB": str(self.service),
            "WANDB_API_KEY": SECRET,
            "WANDB_RUN_ID": "somebody-elses",
            **stub,
        }
        target = Target(project="p", offline=offline)
        wanted = Wanted(root=str(self.root), target=target, runs=runs)
        return Service(wanted, limits=limits, interval_s=0.05, environ=environ)

    def steps(self) -> list[int]:
        rows = [
            json.loads(line)
            for path in self.service.glob("distill-*.jsonl")
            for line in path.read_text().splitlines()
        ]
        assert [row["_step"] for row in rows] == list(range(len(rows)))
        return [row["train/step"] for row in rows]


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    assert set(psutil.Process().children(recursive=True)) <= before


def take_the_adopted(before: set[psutil.Process]) -> None:
    """Waits for orphans: another test may have made this process the one that adopts them."""
    deadline = time.monotonic() + 20
    while set(psutil.Process().children()) - before and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.02)


def test_what_was_sent_is_there_and_the_run_goes_on_under_its_own_id(stub: Stub) -> None:
    stub.run.steps(1, 3)
    with stub.open() as service:
        told = service.send_all()
    stub.run.steps(4, 2)
    with stub.open() as service:
        service.send_all()
    assert stub.steps() == [1, 2, 3, 4, 5]
    inits = [json.loads(line) for line in (stub.service / "inits.jsonl").read_text().splitlines()]
    assert [one["id"] for one in inits] == [told.streams[0].id] * 2
    assert {one["resume"] for one in inits} == {"allow"}
    assert "WANDB_RUN_ID" not in inits[0]["environ"]
    assert inits[0]["settings"]["x_disable_meta"] is True
    assert inits[0]["settings"]["mode"] == "online"


@pytest.mark.parametrize("call", ["init", "log", "finish"])
@pytest.mark.parametrize("how", ["STUB_HANG", "STUB_FAIL"])
def test_a_library_that_hangs_or_fails_costs_no_row(stub: Stub, call: str, how: str) -> None:
    stub.run.steps(1, 3)
    with stub.open(SHORT[call], **{how: call}) as service, pytest.raises(SenderGoneError) as gone:
        service.send_all()
    assert SECRET not in gone.value.message
    assert gone.value.exit_code == 75
    stub.run.steps(4, 2)
    with stub.open() as service:
        service.send_all()
    assert stub.steps() == [1, 2, 3, 4, 5]


def test_rows_that_had_arrived_before_it_hung_are_not_sent_again(stub: Stub) -> None:
    stub.run.steps(1, 3)
    with stub.open(SHORT["finish"], STUB_HANG="finish", STUB_KEEPS="1") as service:
        with pytest.raises(SenderGoneError, match="no answer within"):
            service.send_all()
        assert service.told().streams[0].waiting == 3
    with stub.open() as service:
        told = service.send_all()
    assert stub.steps() == [1, 2, 3]
    assert (told.streams[0].sent, told.streams[0].waiting) == (0, 0)


def test_the_sender_is_given_what_reaches_the_service_and_nothing_that_names_a_run() -> None:
    ours = {
        "HOME": "/home/me",
        "WANDB_API_KEY": SECRET,
        "WANDB_BASE_URL": "https://wandb.example",
        "WANDB_RUN_ID": "a-script-of-somebody",
        "WANDB_RESUME": "must",
        "WANDB_MODE": "disabled",
        "WANDB_CACHE_DIR": "/scratch/mine",
    }
    online = environment_of(ours, offline=False, files="/s")
    assert (online["WANDB_API_KEY"], online["WANDB_BASE_URL"]) == (SECRET, "https://wandb.example")
    assert not {"WANDB_RUN_ID", "WANDB_RESUME", "WANDB_MODE"} & set(online)
    assert (online["WANDB_CACHE_DIR"], online["WANDB_DATA_DIR"]) == ("/scratch/mine", "/s/data")
    assert online["WANDB_ERROR_REPORTING"] == "false"
    assert "WANDB_API_KEY" not in environment_of(ours, offline=True, files="/s")


def test_a_service_that_does_not_know_us_is_a_matter_of_configuration(stub: Stub) -> None:
    stub.run.steps(1, 1)
    with stub.open(STUB_DENIED="init") as service, pytest.raises(ConfigError) as refused:
        service.send_all()
    assert "wandb login" in refused.value.hint


def is_sender(process: psutil.Process) -> bool:
    try:
        return "sender" in " ".join(process.cmdline())
    except psutil.Error:  # a child of another test that has ended and was not waited for yet
        return False


def test_following_goes_on_over_trouble_and_ends_when_the_named_run_is_over(stub: Stub) -> None:
    stub.run.steps(1, 3)
    seen: list[Told] = []
    stop = threading.Event()

    def tell(told: Told) -> None:
        seen.append(told)
        if len(seen) == 1:
            (sender,) = [child for child in psutil.Process().children() if is_sender(child)]
            sender.send_signal(signal.SIGKILL)
            sender.wait(20)
            stub.run.steps(4, 2)
        if len(seen) == 2:
            assert "did not take it" in told.trouble
            stub.run.steps(6, 1)
            stub.run.status(State.DONE)
        assert len(seen) < 10

    with stub.open(runs=("distill",)) as service:
        service.follow(0.05, stop, tell)
    assert stub.steps() == [1, 2, 3, 4, 5, 6]
    assert (stub.service / "finished").read_text().split()[-1] == "0"
    assert seen[-1].streams[0].over


def test_when_it_is_stopped_what_is_open_is_finished(stub: Stub) -> None:
    stub.run.steps(1, 3)
    stop = threading.Event()
    with stub.open() as service:
        told = service.follow(30, stop, lambda _: stop.set())
    assert stub.steps() == [1, 2, 3]
    assert told.streams[0].waiting == 0


def test_runs_that_begin_later_are_followed_too_and_others_ones_are_left_alone(stub: Stub) -> None:
    stub.run.steps(1, 1)
    with stub.open() as other:
        other.send_all()
        later = Run(stub.root, "later")
        later.launch()
        later.steps(1, 2)
        with stub.open() as service:
            told = service.send_all()
            assert told.elsewhere == ("distill",)
            assert [one.stream for one in told.streams] == ["later"]
        assert {one.stream for one in other.send_all().streams} == {"distill", "later"}


def test_a_run_that_is_not_there_is_a_matter_of_words(stub: Stub) -> None:
    with stub.open(runs=("distil",)) as service, pytest.raises(UsageError, match="no run named"):
        service.send_all()


def test_what_is_followed_is_not_touched(stub: Stub) -> None:
    stub.run.steps(1, 3)

    def look() -> dict[str, Any]:
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.stat().st_mode)
            for path in (stub.root / "runs").rglob("*")
        }

    before = look()
    with stub.open() as service:
        service.send_all()
    assert look() == before


def test_a_sender_whose_owner_was_killed_finishes_what_it_has(stub: Stub) -> None:
    before = set(psutil.Process().children())
    stub.run.steps(1, 3)
    pid = os.fork()
    if pid == 0:
        try:
            service = stub.open()
            service.find()
            service.look()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + 30
    while not (stub.service / "finished").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    with stub.open() as service:
        told = service.send_all()
    assert stub.steps() == [1, 2, 3]
    assert told.streams[0].sent == 0
    take_the_adopted(before)


def test_a_telemetry_folder_that_is_not_there_yet_gives_no_row(stub: Stub) -> None:
    fleet = Fleet(folder=str(stub.root / "telemetry"), spools=None, window_s=60)
    wanted = Wanted(root=str(stub.root), target=Target(project="p"), fleet=fleet, with_runs=False)
    with Service(wanted, limits=LIMITS, interval_s=0.05) as service:
        (one,) = service.send_all().streams
    assert (one.rows, one.skipped) == (0, {})


def test_offline_rows_that_are_in_no_file_when_it_is_closed_are_kept(stub: Stub) -> None:
    stub.run.steps(1, 3)  # the stub writes no file of W&B's, as the library on a full disk
    with (
        stub.open(offline=True) as service,
        pytest.raises(SenderGoneError, match="lack the last 3 of 3 rows"),
    ):
        service.send_all()
    assert service.told().streams[0].waiting == 3
