"""File systems that refuse while a run is supervised: nothing is concluded, and the run goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from fleetcraft.files import FileSystem
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
