"""Intents: published once, ended once, explored with two controllers that nobody keeps apart.

Not here: what a pass decides; test_control has that.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fleetcraft.errors import DataError, SubmissionUnknownError
from fleetcraft.files import FileSystem
from fleetcraft.fleet.renewal import submission
from fleetcraft.fleet.renewal.control import Controller
from fleetcraft.fleet.renewal.decision import Outside, Rules
from fleetcraft.fleet.renewal.demand import Demand, Kind
from fleetcraft.fleet.renewal.intents import Ending, Entry, How, Intent, Intents
from fleetcraft.fleet.shapes import Shape, parse_shape, read_mark
from fleetcraft.identity import HostId, ProcessId
from fleetcraft.locks import (
    GenerationLock,
    LockHeldError,
    LockLostError,
    LockUnknownError,
    generation,
)
from fleetcraft.slurm.queue import Jobs
from tests.explore import determinism
from tests.explore.explorer import Actor, Budget, End, Scenario, explore
from tests.explore.model_fs import ModelFS, World
from tests.fleet.renewals import NO_ACCOUNTS, ROOT, FakePlan, a_job, no_answer

LANE = parse_shape("4x02:00:00@gpu/2")


def an_intent(window: int = 1, **fields: Any) -> Intent:
    given: dict[str, Any] = {
        "schema": "fleetcraft.intent/1", "lane": str(LANE), "window": window, "nonce": "abcd2345",
        "job_name": "fleet-0123456789ab-abcd2345",
        "generation": 3, "by": "process 7 on login1", "cluster": "test", "cost_h": 8.0,
        "tres": "node", "recorded_at": "now", "observed": {"tasks": 9}, "sbatch": ("sbatch",),
    }  # fmt: skip
    return Intent(**{**given, **fields})


def an_ending(how: How = How.SUBMITTED, writer: str = "me", **fields: Any) -> Ending:
    given: dict[str, Any] = {
        "schema": "fleetcraft.intent_end/1", "nonce": "abcd2345", "how": how, "generation": 3,
        "writer": writer, "at": "now", "job": "812",
    }  # fmt: skip
    return Ending(**{**given, **fields})


@pytest.fixture
def intents(tmp_path: Path) -> Intents:
    return Intents(str(tmp_path))


# -------------------------------------------------------------------------------------- on disk


def test_an_intent_is_read_back_open_and_then_with_its_end(intents: Intents) -> None:
    assert intents.latest() == {}
    assert intents.record(an_intent()) is True
    assert intents.latest() == {LANE.key: Entry(an_intent(), None)}
    assert intents.ending_of(an_intent()) is None
    assert intents.end(an_intent(), an_ending()) == an_ending()
    assert intents.latest() == {LANE.key: Entry(an_intent(), an_ending())}
    assert intents.ending_of(an_intent()) == an_ending()


def test_the_files_are_private_and_named_by_lane_and_window(
    intents: Intents, tmp_path: Path
) -> None:
    intents.record(an_intent())
    intents.end(an_intent(), an_ending())
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == {"4x7200s@gpu+2.1.json": 0o600, "4x7200s@gpu+2.1.end.json": 0o600}


def test_a_window_is_recorded_once(intents: Intents) -> None:
    assert intents.record(an_intent(nonce="first")) is True
    assert intents.record(an_intent(nonce="second")) is False
    entry = intents.latest()[LANE.key]
    assert isinstance(entry, Entry)
    assert entry.intent.nonce == "first"


def test_an_intent_ends_once_and_the_first_end_stands(intents: Intents) -> None:
    intents.record(an_intent())
    given_up = an_ending(How.ABANDONED, "other", job="")
    assert intents.end(an_intent(), given_up) == given_up
    assert intents.end(an_intent(), an_ending()) == given_up


def test_the_newest_window_of_each_lane_counts(intents: Intents, tmp_path: Path) -> None:
    other = parse_shape("8x02:00:00")
    for window in (1, 2, 10, 9):
        intents.record(an_intent(window))
    intents.record(an_intent(lane=str(other)))
    (tmp_path / "4x7200s@gpu+2.11.json.0a1b.tmp").write_bytes(b"half")
    (tmp_path / "notes").write_bytes(b"")
    found = intents.latest()
    windows = {key: entry.intent.window for key, entry in found.items() if isinstance(entry, Entry)}
    assert windows == {LANE.key: 10, other.key: 1}


def test_without_a_folder_there_are_none_and_nothing_is_recorded(tmp_path: Path) -> None:
    nowhere = Intents(str(tmp_path / "nowhere"))
    assert nowhere.latest() == {}
    with pytest.raises(FileNotFoundError):
        nowhere.record(an_intent())


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema":"fleetcraft.intent/1"}', b"\xff"])
def test_a_file_that_is_no_intent_is_an_error_of_its_lane(
    intents: Intents, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / f"{LANE.key}.1.json").write_bytes(content)
    assert isinstance(intents.latest()[LANE.key], DataError)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", ["create", "link", "sync_folder"])
def test_a_record_that_may_not_be_there_is_no_record(
    tmp_path: Path, operation: str, code: int
) -> None:
    fs = FileSystem()

    def fail(*arguments: Any, **more: Any) -> None:
        raise OSError(code, os.strerror(code))

    with mock.patch.object(fs, operation, fail), pytest.raises(OSError, match=os.strerror(code)):
        Intents(str(tmp_path), fs).record(an_intent())


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EIO, errno.ENOENT], ids=errno.errorcode.get)
def test_a_link_that_was_made_and_reported_as_failed_counts(tmp_path: Path, code: int) -> None:
    fs = FileSystem()
    real = fs.link

    def lie(source: str, destination: str) -> None:
        real(source, destination)
        raise OSError(code, os.strerror(code))

    with mock.patch.object(fs, "link", lie):
        assert Intents(str(tmp_path), fs).record(an_intent()) is True
        assert Intents(str(tmp_path), fs).record(an_intent(nonce="other")) is False


# --------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("text", "shape", "key"),
    [
        ("8x12:00:00", Shape(8, 43200), "8x43200s"),
        ("8X12h", Shape(8, 43200), "8x43200s"),
        (" 1x90s ", Shape(1, 90), "1x90s"),
        ("4x1-00:00:00@gpu,big/4", Shape(4, 86400, "gpu,big", "4"), "4x86400s@gpu,big+4"),
        ("4x30m/gpu", Shape(4, 1800, "", "gpu"), "4x1800s+gpu"),
    ],
)
def test_a_lane_is_read(text: str, shape: Shape, key: str) -> None:
    assert parse_shape(text) == shape
    assert shape.key == key
    assert parse_shape(str(shape)) == shape


@pytest.mark.parametrize(
    "text",
    ["", "8", "8x", "x12h", "0x12h", "8x0s", "8x12", "8x12h@", "8x12h@a b", "8x1h/0", "8x1h/x"],
)
def test_what_is_no_lane_is_a_usage_error(text: str) -> None:
    with pytest.raises(Exception, match="lane|duration") as raised:
        parse_shape(text)
    assert getattr(raised.value, "exit_code", None) == 2


def test_slurm_rounds_a_walltime_up_to_minutes() -> None:
    assert [parse_shape(text).limit_s for text in ("1x90s", "1x60s", "1x1s")] == [120, 60, 60]


def test_a_mark_is_found_wherever_it_stands_in_a_comment() -> None:
    text = "project 7; fleetcraft root=0123456789ab lane=8x12:00:00 intent=abcd2345, approved"
    mark = read_mark(text)
    assert mark is not None
    assert (mark.root, mark.lane, mark.nonce) == ("0123456789ab", "8x12:00:00", "abcd2345")
    assert read_mark("fleetcraft root=0123456789ab") is not None
    assert read_mark("fleet of somebody") is None


# ------------------------------------------------------------------- explored, nobody kept apart


QUEUE = "/queue"
FOLDERS = ("/lock", "/intents", QUEUE)


@pytest.fixture
def same_every_time() -> Iterator[None]:
    """Nonces, clocks and process facts of the modelled processes."""
    here = HostId(host="c1", boot_id="boot", pid_namespace="pid:[1]")

    def draw() -> str:
        return determinism.current.draw()

    replaced: list[tuple[Any, str, Any]] = [
        (generation, "new_launch_token", draw),
        (generation, "this_host", lambda: here),
        (generation, "process_id", lambda pid: ProcessId(1, 1)),
        (generation, "timestamp", lambda: "now"),
        (generation, "_LOOKS_PER_INTERVAL", 1 / 3),
        (submission, "new_launch_token", draw),
        (submission, "timestamp", lambda: "now"),
        (submission, "_TRY_AGAIN_S", 0),
        (os, "getpid", lambda: 1),
        (os, "urandom", lambda size: draw().encode()),
    ]
    with contextlib.ExitStack() as stack:
        for module, name, value in replaced:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def empty_world() -> World:
    world = World()
    for ino, folder in enumerate(FOLDERS, start=1):
        world.names[folder] = ino
        world.data[ino] = None
    return world


class ModelSlurm:
    """A queue whose jobs are files, so that every question and every submission is a step."""

    def __init__(self, fs: ModelFS, clock: list[float]) -> None:
        self._fs = fs
        self._clock = clock

    def jobs(self) -> Jobs:
        jobs = {}
        try:
            for name in self._fs.listdir(QUEUE):
                comment = self._fs.read(f"{QUEUE}/{name}").decode()
                jobs[name] = a_job(name, comment=comment)
        except OSError as error:
            raise no_answer(str(error)) from error
        return Jobs(cluster="test", age_s=0.0, jobs=jobs)

    def submit(self, plan: FakePlan) -> str:
        nonce = plan.name.rpartition("-")[2]
        try:
            self._fs.create(f"{QUEUE}/{nonce}", plan.comment.encode())
        except OSError as error:
            raise SubmissionUnknownError(str(error), plan.name) from error
        self._fs.note("submitted", nonce)
        return nonce

    def cancel(self, job_id: str) -> None:
        try:
            self._fs.unlink(f"{QUEUE}/{job_id}")
        except OSError as error:
            self._fs.note("not cancelled", job_id)
            raise no_answer(str(error)) from error

    def demand(self) -> Demand:
        kinds = Counter({Kind(None, False, ""): 1})
        return Demand(kinds=kinds, pending=1, unread=0, unfit=0, seen_s=self._clock[0])


def renewer(name: str, *, passes: int, steals: bool = False) -> Any:
    """A controller with one lane of one node and work for one fleet.

    One that steals takes the lock from whoever is silent, and its own clock runs past every limit
    between two passes, so that a fellow who is not scheduled seems to have been away for hours.
    """

    def act(fs: ModelFS) -> list[str]:
        clock = [0.0]

        def wait(seconds: float) -> None:
            clock[0] += seconds

        lock = GenerationLock(
            "/lock", purpose=name, judge=lambda holder: None, fs=fs,
            clock=lambda: clock[0], sleep=wait,
        )  # fmt: skip
        slurm = ModelSlurm(fs, clock)
        outside = Outside(
            jobs=slurm.jobs, demand=slurm.demand, markers=dict, balance=lambda _: NO_ACCOUNTS,
            plan=FakePlan, submit=slurm.submit, cancel=slurm.cancel,
            in_accounting=lambda _: "", took_work=lambda _: True,
        )  # fmt: skip
        did: list[str] = []
        try:
            held = lock.acquire(by_age=steals)
            controller = Controller(
                [Shape(1, 3600)], Rules(root=ROOT, passes=1), outside, Intents("/intents", fs),
                held=held, clock=lambda: clock[0],
            )  # fmt: skip
            for _ in range(passes):
                did += [lane.decision.value for lane in controller.run_pass().lanes]
                wait(1000.0)
        except (LockHeldError, LockLostError, LockUnknownError) as error:
            did.append(type(error).__name__)
        return did

    return act


def one_fleet(end: End) -> str:
    """No submission without its record, none twice, and one job in the end unless one crashed."""
    world = end.world
    nonces = [event[1] for event in world.trace if event[0] == "submitted"]
    if len(set(nonces)) < len(nonces):
        return f"submitted twice: {nonces}"
    recorded = {
        world.content(f"/intents/{name}") or b""
        for name in world.children("/intents")
        if name.endswith(".json") and not name.endswith(".end.json")
    }
    for nonce in nonces:
        if not any(f'"nonce":"{nonce}"'.encode() in content for content in recorded):
            return f"{nonce} was submitted without a record"
    jobs = world.children(QUEUE)
    not_cancelled = sum(event[0] == "not cancelled" for event in world.trace)
    if len(jobs) > 1 + end.spent.crashes + not_cancelled:
        return f"one fleet was needed, and these wait: {jobs}"
    said = any("submitted" in str(result) for result in end.results)
    if not jobs and said and not not_cancelled:
        return "a controller said that it submitted, and there is no job"
    return ""


def paused_and_followed(**budget: Any) -> Scenario:
    """One that may stand still anywhere, and one that takes over and gives up on its intent."""
    actors = (
        Actor("A", renewer("A", passes=1), launch="A"),
        Actor("B", renewer("B", passes=3, steals=True), launch="B"),
    )
    return Scenario("paused and followed", empty_world(), actors, Budget(**budget), one_fleet)


@pytest.mark.usefixtures("same_every_time")
@pytest.mark.parametrize(
    "budget",
    [
        {"preemptions": 3},
        {"crashes": 1, "preemptions": 2},
        {"lies": 1, "preemptions": 1},
        {"faults": 1, "preemptions": 1},
    ],
    ids=str,
)
def test_a_controller_paused_anywhere_never_leaves_a_second_fleet(budget: dict[str, int]) -> None:
    report = explore(paused_and_followed(**budget))
    assert report.exhausted
    assert report.ends > 10


@pytest.mark.usefixtures("same_every_time")
def test_the_exploration_finds_the_second_fleet_where_a_late_job_is_not_cancelled() -> None:
    def keep(self: ModelSlurm, job_id: str) -> None:
        return None

    with (
        mock.patch.object(ModelSlurm, "cancel", keep),
        pytest.raises(AssertionError, match="one fleet was needed"),
    ):
        explore(paused_and_followed(preemptions=2))


@pytest.mark.usefixtures("same_every_time")
def test_the_exploration_finds_the_second_fleet_where_windows_are_not_published_once() -> None:
    def replace(fs: FileSystem, path: str, data: bytes) -> bool:
        temporary = f"{path}.{determinism.current.draw()}.tmp"
        fs.create(temporary, data)
        fs.replace(temporary, path)
        return True

    with (
        mock.patch("fleetcraft.fleet.renewal.intents.put_if_absent", replace),
        pytest.raises(AssertionError, match="without a record|one fleet was needed"),
    ):
        explore(paused_and_followed(preemptions=3), max_states=400_000)


def test_an_ending_whose_intent_was_removed_is_an_error_of_its_lane_alone(
    intents: Intents, tmp_path: Path
) -> None:
    other = parse_shape("8x02:00:00")
    intents.record(an_intent())
    intents.end(an_intent(), an_ending())
    intents.record(an_intent(lane=str(other)))
    (tmp_path / f"{LANE.key}.1.json").unlink()  # as the hint of an unreadable one says

    found = intents.latest()

    assert isinstance(found[LANE.key], DataError)
    assert isinstance(found[other.key], Entry)
