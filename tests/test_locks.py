"""The generation lock: explored in a model with every switch and mishap, and by real processes.

Not here: what is decided under it; tests/fleet has that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fleetcraft.files import FileSystem
from fleetcraft.identity import HostId, JobRun, ProcessId
from fleetcraft.locks import (
    GenerationLock,
    Held,
    Holder,
    LockHeldError,
    LockLostError,
    LockUnknownError,
    lives_here,
    publishing,
    put_if_absent,
    read_holder,
)
from fleetcraft.locks import generation as chain
from fleetcraft.locks.holder import write_holder
from tests.explore import determinism
from tests.explore.explorer import Actor, Budget, End, Explorer, Scenario, explore
from tests.explore.model_fs import DirectFS, ModelFS, World

REPO = Path(__file__).resolve().parents[1]
FOLDER = "/lock"
ACTS = "/acts"


# ------------------------------------------------------------------------- explored in a model


def draw() -> str:
    """A token of whichever modelled process is at work."""
    return determinism.current.draw()


def drawn_bytes(size: int) -> bytes:
    return draw().encode()


@contextlib.contextmanager
def modelled() -> Iterator[None]:
    """Nonces, clocks and process facts of the modelled processes."""
    here = HostId(host="c1", boot_id="boot", pid_namespace="pid:[1]")
    replaced: list[tuple[str, Any]] = [
        ("new_launch_token", draw),
        ("this_host", lambda: here),
        ("process_id", lambda pid: ProcessId(1, 1)),
        ("timestamp", lambda: "now"),
        ("_LOOKS_PER_INTERVAL", 1 / 3),  # one look at the end: each costs the exploration steps
    ]
    with contextlib.ExitStack() as stack:
        for name, value in replaced:
            stack.enter_context(mock.patch.object(chain, name, value))
        stack.enter_context(mock.patch.object(os, "getpid", return_value=1))
        stack.enter_context(mock.patch.object(os, "urandom", drawn_bytes))
        yield


@pytest.fixture
def same_every_time() -> Iterator[None]:
    with modelled():
        yield


def empty_world() -> World:
    world = World()
    for ino, folder in enumerate((FOLDER, ACTS), start=1):
        world.names[folder] = ino
        world.data[ino] = None
    return world


class OwnClock:
    """A process's own clock, which moves only while that process waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def lock_on(fs: ModelFS, name: str, *, knows: bool = True) -> GenerationLock:
    """A lock whose judge is the explorer, or one that never knows."""

    def judge(holder: Holder) -> bool | None:
        return fs.verdict(holder.purpose) == "alive" if knows else None

    clock = OwnClock()
    return GenerationLock(
        FOLDER, purpose=name, interval_s=5.0, judge=judge, fs=fs, clock=clock, sleep=clock.sleep
    )


def controller(
    name: str, *, acts: int = 2, by_age: bool = False, leaves: bool = True
) -> Callable[[ModelFS], str]:
    """Takes the lock and acts: each act is what may happen once after the acts that it saw."""

    def act(fs: ModelFS) -> str:
        try:
            held = lock_on(fs, name, knows=not by_age).acquire(by_age=by_age)
        except (LockHeldError, LockUnknownError) as error:
            return type(error).__name__
        fs.note("holds", held.generation, name)
        did = []
        try:
            for _ in range(acts):
                number = len([file for file in fs.listdir(ACTS) if not file.endswith(".tmp")]) + 1
                held.check()
                data = f"{held.generation} {held.holder.nonce}\n".encode()
                if put_if_absent(fs, f"{ACTS}/{number}", data):
                    fs.note("acted", number, held.generation, name)
                    did.append(number)
        except (LockLostError, LockUnknownError) as error:
            return f"{did} {type(error).__name__}"
        except OSError:
            return f"{did} unknown"
        if leaves:
            held.release()
        return str(did)

    return act


def one_owner(end: End) -> str:
    """No generation has two owners, no act is done twice, and the file names who did it."""
    owners: dict[int, str] = {}
    acts: dict[int, tuple[int, str]] = {}
    for event in end.world.trace:
        if event[0] == "holds":
            _, number, name = event
            if owners.setdefault(number, name) != name:
                return f"generation {number} belongs to {owners[number]} and {name}"
        if event[0] == "acted":
            _, number, under, name = event
            if number in acts:
                return f"act {number} was done by {acts[number]} and {(under, name)}"
            acts[number] = (under, name)
            content = (end.world.content(f"{ACTS}/{number}") or b"").decode()
            if not content.startswith(f"{under} "):
                return f"act {number} of generation {under} says {content!r}"
    for name in end.world.children(FOLDER):
        if name.startswith("gen.") and not name.endswith(".tmp"):
            holder = read_holder(end.world.content(f"{FOLDER}/{name}") or b"")
            if holder is None or name != f"gen.{holder.generation}":
                return f"{name} holds {holder}"
    return the_next_one_can_take_it(end)


def the_next_one_can_take_it(end: End) -> str:
    fs = DirectFS(end.world, 90)
    determinism.current = determinism.Tokens("next")
    try:
        held = lock_on(fs, "next").acquire()  # nobody lives any more
        held.check()
    except (LockHeldError, LockUnknownError, LockLostError) as error:
        return f"nobody can take the lock any more: {error}"
    return ""


def dead_holder() -> World:
    """A lock whose owner died after it had acted once."""
    fs = DirectFS(empty_world(), 80)
    determinism.current = determinism.Tokens("dead")
    held = lock_on(fs, "dead").acquire()
    assert put_if_absent(fs, f"{ACTS}/1", f"{held.generation} x\n".encode())
    return fs.world


def two_contenders(start: World, **budget: Any) -> Scenario:
    """Two that want the lock at once, over an empty folder or a dead holder."""
    actors = (
        Actor("A", controller("A", acts=1), launch="A"),
        Actor("B", controller("B", acts=1), launch="B"),
    )
    return Scenario("two contenders", start, actors, Budget(**budget), one_owner)


def stalled_holder(**budget: Any) -> Scenario:
    """A holder that stands still at any point for as long as it likes, and one that follows it.

    The follower is told that nothing is known and has consent to go by age, so that it takes the
    lock from a living holder whenever it sees no beat.
    """
    actors = (
        Actor("A", controller("A", leaves=False), launch="A"),
        Actor("B", controller("B", by_age=True), launch="B"),
    )
    return Scenario("stalled holder", empty_world(), actors, Budget(**budget), one_owner)


def wrongly_judged(**budget: Any) -> Scenario:
    """Three over a dead holder, and the judge may be wrong once."""
    actors = (
        Actor("A", controller("A", acts=1), launch="A"),
        Actor("B", controller("B", acts=1, leaves=False), launch="B"),
        Actor("C", controller("C", acts=1), launch="C"),
    )
    return Scenario("three contenders", dead_holder(), actors, Budget(**budget), one_owner)


@pytest.mark.usefixtures("same_every_time")
@pytest.mark.parametrize(
    "budget",
    [
        {"crashes": 1, "preemptions": 2},
        {"crashes": 1, "lies": 1, "preemptions": 1},
        {"faults": 1, "verdicts": 1, "preemptions": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("start", [empty_world, dead_holder], ids=["free", "dead holder"])
def test_two_contenders_never_own_the_same_generation_nor_do_one_act_twice(
    start: Callable[[], World], budget: dict[str, int]
) -> None:
    report = explore(two_contenders(start(), **budget))
    assert report.exhausted
    assert report.ends > 10


@pytest.mark.usefixtures("same_every_time")
@pytest.mark.parametrize(
    "budget",
    [{"preemptions": 3}, {"crashes": 1, "preemptions": 2}, {"lies": 1, "preemptions": 1}],
    ids=str,
)
def test_a_holder_paused_at_any_point_past_its_time_does_nothing_that_its_follower_does(
    budget: dict[str, int],
) -> None:
    report = explore(stalled_holder(**budget))
    assert report.exhausted
    assert report.ends > 10


@pytest.mark.usefixtures("same_every_time")
@pytest.mark.parametrize("seed", range(3))
def test_long_random_schedules_never_make_two_owners(seed: int) -> None:
    walk_random_schedules(seed, 150)


def walk_random_schedules(seed: int, walks: int) -> int:
    """Three contenders, a dead holder, wrong judges, crashes, lies and faults; returns how many."""
    scenario = wrongly_judged(crashes=1, lies=2, verdicts=2, faults=1)
    explored = Explorer(scenario).walk(random.Random(seed), walks=walks)
    assert explored.walks == walks
    return explored.walks


@contextlib.contextmanager
def taken_by_replacing() -> Iterator[None]:
    """A lock that renames its record over whatever is there."""

    def replace(fs: FileSystem, path: str, data: bytes) -> bool:
        temporary = f"{path}.{determinism.current.draw()}.tmp"
        fs.create(temporary, data)
        fs.replace(temporary, path)
        return True

    with mock.patch.object(chain, "put_if_absent", replace):
        yield


@contextlib.contextmanager
def taken_by_removing() -> Iterator[None]:
    """The classic: whoever thinks the holder is dead removes its record and makes its own."""

    def take(self: GenerationLock, generation: int, after: str) -> Held:
        path = self.path("gen", 1)
        with contextlib.suppress(FileNotFoundError):
            self.fs.unlink(path)
        holder = Holder(
            schema="", generation=1, nonce=chain.new_launch_token(), purpose=self._purpose,
            host="", boot_id="", pid_namespace="", pid=1, start_ticks=1, interval_s=5.0,
            taken_at="", after=after,
        )  # fmt: skip
        data = write_holder(holder)
        try:
            self.fs.create(path, data)
        except FileExistsError:
            raise LockHeldError("lost") from None
        return Held(self, holder, data)

    with mock.patch.object(GenerationLock, "_take", take):
        yield


@contextlib.contextmanager
def believed_and_never_reread() -> Iterator[None]:
    """An owner that takes "exists" for its own success, and does not look what it took."""

    def believe(fs: FileSystem, path: str, data: bytes) -> bool:
        with contextlib.suppress(OSError):
            publishing.publish_new(fs, path, data)
        return True

    with (
        mock.patch.object(chain, "put_if_absent", believe),
        mock.patch.object(Held, "check", return_value=None),
    ):
        yield


@pytest.mark.usefixtures("same_every_time")
@pytest.mark.parametrize(
    "broken",
    [taken_by_replacing, taken_by_removing, believed_and_never_reread],
    ids=lambda broken: broken.__name__,
)
def test_the_exploration_finds_two_owners_where_a_rule_is_broken(
    broken: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    start = dead_holder()
    with broken(), pytest.raises(AssertionError, match="belongs to|says|holds"):
        explore(two_contenders(start, preemptions=2))


@pytest.mark.usefixtures("same_every_time")
def test_every_link_that_lies_about_a_success_is_seen_through() -> None:
    for code in (errno.EEXIST, errno.ENOENT, errno.EIO, errno.ESTALE):
        fs = DirectFS(empty_world(), 80)
        real = fs.link

        def lie(source: str, destination: str, code: int = code, real: Any = real) -> None:
            real(source, destination)
            raise OSError(code, os.strerror(code))

        with mock.patch.object(fs, "link", lie):
            assert lock_on(fs, "A").acquire().generation == 1


# --------------------------------------------------------------------------- on a real disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "lock"
    made.mkdir(mode=0o700)
    return made


def a_lock(folder: Path, **settings: Any) -> GenerationLock:
    clock = OwnClock()
    given = {"purpose": "renewal of /r", "clock": clock, "sleep": clock.sleep, **settings}
    return GenerationLock(str(folder), **given)


def gone(holder: Holder) -> bool:
    return False


def unknown(holder: Holder) -> None:
    return None


def test_a_free_lock_is_taken_and_a_released_one_at_once_again(folder: Path) -> None:
    clock = OwnClock()
    with a_lock(folder, clock=clock, sleep=clock.sleep).acquire() as first:
        first.check()
    second = a_lock(folder, clock=clock, sleep=clock.sleep).acquire()
    assert (first.generation, second.generation) == (1, 2)
    assert second.holder.after == "released"
    assert clock.now_s == 0
    assert sorted(file.name for file in folder.iterdir()) == [
        *("beat.1", "beat.2", "gen.1", "gen.2", "released.1"),
    ]
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


def test_a_living_holder_is_named_with_its_process_and_since_when(folder: Path) -> None:
    held = a_lock(folder).acquire()
    with pytest.raises(LockHeldError) as raised:
        a_lock(folder).acquire(by_age=True)
    assert raised.value.exit_code == 75
    assert f"process {os.getpid()} on {held.holder.host}" in raised.value.message
    assert held.holder.taken_at in raised.value.message
    assert "it lives" in raised.value.message
    held.check()


def test_a_holder_that_beats_keeps_the_lock_whatever_a_judge_says(folder: Path) -> None:
    held = a_lock(folder).acquire()
    clock = OwnClock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        held.beat()

    with pytest.raises(LockHeldError, match="seen at work"):
        a_lock(folder, judge=gone, clock=clock, sleep=sleep).acquire()


def test_a_silent_holder_of_which_nothing_is_known_keeps_the_lock_without_consent(
    folder: Path,
) -> None:
    held = a_lock(folder, interval_s=20.0).acquire()
    clock = OwnClock()
    mine = a_lock(folder, judge=unknown, clock=clock, sleep=clock.sleep)
    with pytest.raises(LockHeldError, match="silent for 60 s, but nothing says that it is gone"):
        mine.acquire()
    held.check()
    # The holder's interval counts, not the shorter one of whoever wants to follow.
    assert clock.now_s >= 60
    taken = mine.acquire(by_age=True)
    assert taken.holder.after == "silent for 60 s, taken by consent"
    with pytest.raises(LockLostError, match=r"generation 2 after 1\); nothing more is decided"):
        held.check()


def test_a_holder_that_is_gone_is_followed_only_after_three_silent_intervals(folder: Path) -> None:
    a_lock(folder).acquire()
    clock = OwnClock()
    taken = a_lock(folder, judge=gone, clock=clock, sleep=clock.sleep).acquire()
    assert taken.generation == 2
    assert 15 <= clock.now_s < 17


def test_a_lock_released_while_it_is_watched_is_taken(folder: Path) -> None:
    held = a_lock(folder).acquire()
    clock = OwnClock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        held.release()

    taken = a_lock(folder, judge=unknown, clock=clock, sleep=sleep).acquire()
    assert taken.holder.after == "released"


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", ["listdir", "read", "link", "create"])
def test_what_the_file_system_does_not_say_takes_nothing(
    folder: Path, operation: str, code: int
) -> None:
    a_lock(folder).acquire()
    before = sorted(file.name for file in folder.iterdir())
    fs = FileSystem()

    def fail(*arguments: Any, **keywords: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with mock.patch.object(fs, operation, fail), pytest.raises(LockUnknownError) as raised:
        a_lock(folder, judge=gone, fs=fs).acquire()
    assert raised.value.exit_code == 75
    assert [name for name in sorted(os.listdir(folder)) if not name.endswith(".tmp")] == before


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
def test_an_owner_that_cannot_reread_decides_nothing(folder: Path, code: int) -> None:
    fs = FileSystem()
    held = a_lock(folder, fs=fs).acquire()

    def fail(path: str) -> Any:
        raise OSError(code, os.strerror(code))

    with mock.patch.object(fs, "listdir", fail), pytest.raises(LockUnknownError, match="nothing"):
        held.check()
    held.check()


def test_a_lock_that_was_taken_and_could_not_be_reread_is_given_up_again(folder: Path) -> None:
    fs = FileSystem()
    lock = a_lock(folder, fs=fs)
    real, looks = fs.listdir, iter([True, False])

    def fail(path: str) -> list[str]:
        if next(looks):
            return real(path)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with mock.patch.object(fs, "listdir", fail), pytest.raises(LockUnknownError):
        lock.acquire()

    # By the very process, which lives: nobody has to wait for its end.
    assert lock.acquire().generation == 2


def test_a_process_that_was_not_told_that_it_took_the_lock_does_not_keep_itself_out(
    folder: Path,
) -> None:
    fs = FileSystem()

    def fail(path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with mock.patch.object(fs, "sync_folder", fail), pytest.raises(LockUnknownError):
        a_lock(folder, fs=fs).acquire()
    assert os.path.exists(folder / "gen.1")

    assert a_lock(folder, fs=fs).acquire().generation == 2


def test_an_owner_whose_release_was_not_written_may_take_the_lock_again(folder: Path) -> None:
    fs = FileSystem()
    held = a_lock(folder, fs=fs).acquire()

    def fail(path: str, data: bytes, **keywords: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with mock.patch.object(fs, "create", fail):
        assert not held.release()

    assert a_lock(folder, fs=fs).acquire().generation == 2


def test_an_owner_whose_folder_was_made_anew_is_not_the_owner_of_the_new_one(folder: Path) -> None:
    held = a_lock(folder).acquire()
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(LockUnknownError):
        held.check()
    heir = a_lock(folder).acquire()
    with pytest.raises(LockLostError):
        held.check()
    assert not held.release()
    with pytest.raises(LockHeldError):
        a_lock(folder).acquire()
    heir.check()


def test_without_hard_links_a_record_is_made_where_there_is_none(folder: Path) -> None:
    fs = FileSystem()

    def refuse(source: str, destination: str) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    with mock.patch.object(fs, "link", refuse):
        held = a_lock(folder, fs=fs).acquire()
        assert put_if_absent(fs, str(folder / "gen.1"), b"other") is False
        held.check()
        held.release()
        assert a_lock(folder, fs=fs).acquire().generation == 2


def test_a_record_that_was_cut_short_is_no_proof_of_anything(folder: Path) -> None:
    (folder / "gen.1").write_bytes(b'{"schema":"fleetcraft.lo')
    with pytest.raises(LockHeldError, match="unreadable"):
        a_lock(folder, judge=gone).acquire()
    assert a_lock(folder, judge=gone).acquire(by_age=True).generation == 2


def test_a_node_of_one_name_in_two_clusters_is_two_nodes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "alpha")
    holder = a_lock(folder).acquire().holder
    fields = {name: getattr(holder, name) for name in holder.__struct_fields__}
    there = JobRun(job="5", cluster="alpha")
    dead = Holder(**{**fields, "run": there, "boot_id": "another boot"})
    assert lives_here(dead) is False
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "beta")
    assert lives_here(dead) is None


def test_old_generations_are_forgotten_and_numbers_only_grow(folder: Path) -> None:
    for number in range(1, 50):
        with a_lock(folder).acquire() as held:
            assert held.generation == number
    kept = sorted(int(name.split(".")[1]) for name in os.listdir(folder) if name[:3] == "gen")
    assert kept == list(range(18, 50))


@pytest.mark.parametrize(
    ("change", "lives"),
    [
        ({}, True),
        ({"start_ticks": 1}, False),
        ({"boot_id": "another boot"}, False),
        ({"host": "another host"}, None),
        ({"pid_namespace": "pid:[1]"}, None),
        ({"boot_id": ""}, None),
    ],
    ids=str,
)
def test_a_process_is_judged_by_boot_pid_and_start(
    folder: Path, change: dict[str, Any], lives: bool | None
) -> None:
    holder = a_lock(folder).acquire().holder
    fields = {name: getattr(holder, name) for name in holder.__struct_fields__}
    assert lives_here(Holder(**{**fields, **change})) is lives


# ------------------------------------------------------------------------- real processes

# Takes the lock, acts each time it reads a line, and says what became of it.
OWNER = """
import sys
from fleetcraft.errors import FleetError
from fleetcraft.files import FileSystem
from fleetcraft.locks import GenerationLock, put_if_absent

folder = sys.argv[1]
lock = GenerationLock(f"{folder}/lock", purpose="a test", interval_s=0.2)
try:
    with lock.acquire(by_age="--by-age" in sys.argv) as held:
        print("holds", held.generation, flush=True)
        for line in sys.stdin:
            held.check()
            data = f"{held.holder.nonce}".encode()
            done = put_if_absent(FileSystem(), f"{folder}/acts/{line.strip()}", data)
            print("acted" if done else "too late", flush=True)
except FleetError as error:
    print(type(error).__name__, error.exit_code, flush=True)
"""


class Owner:
    """A process that wants the lock."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(folder), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPO)},
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def asked_to_act(self, number: int) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return self.says()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Owner]]:
    for name in ("lock", "acts"):
        (tmp_path / name).mkdir(mode=0o700)
    owners: list[Owner] = []

    def start_one(*options: str) -> Owner:
        owners.append(Owner(tmp_path, *options))
        return owners[-1]

    yield start_one
    for owner in owners:
        owner.end()


def test_a_killed_owner_is_followed_on_the_same_machine(start: Callable[..., Owner]) -> None:
    first = start()
    assert first.says() == "holds 1"
    assert first.asked_to_act(1) == "acted"
    first.send(signal.SIGKILL)
    first.process.wait()
    second = start()
    assert second.says() == "holds 2"
    assert second.asked_to_act(1) == "too late"
    assert second.asked_to_act(2) == "acted"


def test_a_stopped_owner_is_not_gone_and_keeps_the_lock(start: Callable[..., Owner]) -> None:
    first = start()
    assert first.says() == "holds 1"
    first.send(signal.SIGSTOP)
    assert start().says() == "LockHeldError 75"
    assert start("--by-age").says() == "LockHeldError 75"
    first.send(signal.SIGCONT)
    assert first.asked_to_act(1) == "acted"


def test_an_owner_stopped_past_its_time_acts_no_more_when_another_has_followed(
    start: Callable[..., Owner], tmp_path: Path
) -> None:
    # Arrange: the second process is told by nothing that the first one lives.
    first = start()
    assert first.says() == "holds 1"
    assert first.asked_to_act(1) == "acted"
    first.send(signal.SIGSTOP)
    record = (tmp_path / "lock/gen.1").read_bytes()
    elsewhere = record.replace(f'"host":"{chain.this_host().host}"'.encode(), b'"host":"other"')
    (tmp_path / "lock/gen.1").write_bytes(elsewhere)
    # Act
    assert start().says() == "LockHeldError 75"
    second = start("--by-age")
    assert second.says() == "holds 2"
    (tmp_path / "lock/gen.1").write_bytes(record)
    assert second.asked_to_act(2) == "acted"
    first.send(signal.SIGCONT)
    # Assert
    assert first.asked_to_act(3) == "LockLostError 75"
    assert second.asked_to_act(3) == "acted"
    assert not first.process.wait()


def test_of_many_that_start_at_once_one_owns_the_lock(start: Callable[..., Owner]) -> None:
    said = sorted(owner.says() for owner in [start() for _ in range(5)])
    assert said == ["LockHeldError 75"] * 4 + ["holds 1"]


def test_the_beat_of_an_owner_can_be_seen(folder: Path) -> None:
    with GenerationLock(str(folder), purpose="a test", interval_s=0.02).acquire():
        path = folder / "beat.1"
        first = path.read_bytes()
        give_up_at = time.monotonic() + 30
        while path.read_bytes() == first:
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
