"""File systems that refuse while a run is supervised: nothing is concluded, and the run goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fleetcraft.files import FileSystem
from fleetcraft.training.launching.reading import Reports
from fleetcraft.training.plan.records import End
from fleetcraft.training.records import State
from fleetcraft.training.supervision.orders import Orders
from tests.training.supervision.scenes import Event, Scene, entered

Make = Callable[..., Scene]
UNTIL_TOLD = """
step = 0
while not os.path.exists(sys.argv[0] + ".end"):
    time.sleep(0.02)
    step += 1
    report_progress(step)
"""


class Refusing(FileSystem):
    """Answers EIO or ENOSPC below some folders while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.listing = ""
        self.existing = ""
        self.writing = ""
        self.refused = 0

    def _refuse(self, number: int, path: str) -> None:
        self.refused += 1
        raise OSError(number, os.strerror(number), path)

    def listdir(self, path: str) -> list[str]:
        if self.listing and path.endswith(self.listing):
            self._refuse(errno.EIO, path)
        return super().listdir(path)

    def exists(self, path: str) -> bool:
        if self.existing and path.endswith(self.existing):
            self._refuse(errno.EIO, path)
        return super().exists(path)

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        if self.writing and self.writing in path:
            self._refuse(errno.ENOSPC, path)
        super().create(path, data, mode=mode, durable=durable)


def let_end(one: Scene) -> None:
    Path(f"{one.script}.end").touch()


def test_a_lock_that_cannot_be_read_for_a_while_stops_nothing_and_launches_nothing(
    scene: Make,
) -> None:
    one, fs = scene(UNTIL_TOLD), Refusing()

    def hook(event: Event, orders: Orders) -> None:
        if entered(State.HEALTHY)(event):
            fs.listing = "/lock"
        if event["event"] == "unknown" and "who owns run" in event["why"]:
            fs.listing = ""
            let_end(one)

    ended = one.supervise(hook, fs=fs)

    assert ended.state is State.DONE
    assert fs.refused
    assert len(one.told("launched")) == 1
    assert not one.told("stopped")


def test_a_full_disk_for_status_costs_the_run_nothing(scene: Make) -> None:
    one, fs = scene(UNTIL_TOLD), Refusing()

    def hook(event: Event, orders: Orders) -> None:
        if entered(State.VERIFYING)(event):
            fs.writing = "status.json"
        if entered(State.HEALTHY)(event):
            let_end(one)

    ended = one.supervise(hook, fs=fs)

    assert ended.state is State.DONE
    assert fs.refused
    assert one.course()[-1] == "DONE"


def test_an_end_that_cannot_be_checked_blocks_and_is_checked_again_later(scene: Make) -> None:
    one, fs = scene("report_progress(1)", end=End(payload=("policy.bin",))), Refusing()
    one.paths.folders()

    def hook(event: Event, orders: Orders) -> None:
        if event["event"] == "launched":
            Path(one.paths.folder, "policy.bin").write_text("weights")

    class NoLook(Refusing):
        def lstat(self, path: str) -> os.stat_result:
            if path.endswith("policy.bin") and Path(path).exists():
                self._refuse(errno.EACCES, path)
            return super().lstat(path)

    fs = NoLook()
    ended = one.supervise(hook, fs=fs)
    again = one.supervise()

    assert ended.state is State.BLOCKED
    assert "Permission denied" in ended.why
    assert again.state is State.DONE
    assert len(one.told("launched")) == 1


def test_an_abort_marker_that_cannot_be_looked_at_is_neither_there_nor_absent(
    scene: Make,
) -> None:
    one, fs = scene("sys.exit(3)"), Refusing()
    seen: list[str] = []

    def hook(event: Event, orders: Orders) -> None:
        if event["event"] == "launched":
            fs.existing = "/ABORT"
        if event["event"] == "state" and event["state"] == "SUSPECT":
            seen.append(event["why"])
            orders.end()

    ended = one.supervise(hook, fs=fs)

    assert seen == ["it ended, and whether ABORT stands cannot be read"]
    assert ended.exit_code == 143
    assert len(one.told("launched")) == 1


class Mute(FileSystem):
    """Takes no line of the journal while it is told to."""

    mute = False

    def append(self, fd: int, data: bytes) -> None:
        if self.mute:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().append(fd, data)


def test_an_end_that_cannot_be_written_down_is_followed_by_no_launch(scene: Make) -> None:
    one, fs = scene("raise ValueError('the code is wrong')"), Mute()

    def hook(event: Event, orders: Orders) -> None:
        fs.mute = fs.mute or event["event"] == "launched"

    ended = one.supervise(hook, fs=fs)

    assert ended.state is State.BLOCKED
    assert "could not be written into the journal" in ended.why
    assert one.supervise().state is State.EXHAUSTED, "the next one finds the code's error"


def test_epochs_that_cannot_be_listed_after_a_stop_block(scene: Make) -> None:
    class Stale(FileSystem):
        looks = -1

        def listdir(self, path: str) -> list[str]:
            if self.looks >= 0 and path.endswith("/epochs"):
                self.looks += 1
                if self.looks == 2:
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
            return super().listdir(path)

    one, fs = scene("raise ValueError('the code is wrong')"), Stale()

    def hook(event: Event, orders: Orders) -> None:
        if event["event"] == "outcome":
            fs.looks = 0

    assert one.supervise(hook, fs=fs).state is State.BLOCKED


def test_a_resume_that_crashes_after_a_run_that_ended_well_unseen_is_not_done(
    scene: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, fs = scene("if epoch > 1: raise ValueError('the code is wrong')"), Mute()

    def hook(event: Event, orders: Orders) -> None:
        fs.mute = fs.mute or entered(State.WARMUP)(event)

    assert one.supervise(hook, fs=fs).state is State.DONE
    monkeypatch.setenv("FLEET_RESUME_FROM", "/checkpoints/step-000000003")

    ended = one.supervise()

    assert ended.state is State.EXHAUSTED
    assert [event["done"] for event in one.told("outcome")] == [True, False]


def test_a_run_that_ended_with_zero_is_not_run_again_for_what_was_reaped_late(
    scene: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Reports.read

    def unclean(self: Reports) -> None:
        look(self)
        for node, end in self.ends.items():
            self.ends[node] = msgspec.structs.replace(end, clean=False)

    monkeypatch.setattr(Reports, "read", unclean)
    one = scene("report_progress(1)")

    def hook(event: Event, orders: Orders) -> None:
        if len(one.told("launched")) > 1:
            orders.end()

    assert one.supervise(hook).state is State.DONE
    assert len(one.told("launched")) == 1
