"""The control groups of a trial, real ones where this machine lets them be written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.calibration.trial import cgroup
from fleetcraft.calibration.trial.cgroup import MEMORY, PIDS, Counters, Place, TrialGroup
from fleetcraft.identity import process_id

MIB = 1 << 20


@pytest.fixture
def group() -> Iterator[TrialGroup]:
    made = cgroup.make_group(memory_bytes=64 * MIB, pids=4)
    try:
        if missing := {MEMORY, PIDS} - set(made.places):
            pytest.skip(f"no {' and '.join(sorted(missing))} cgroup can be written: {made.refused}")
        yield made
    finally:
        made.remove()


def run_inside(group: TrialGroup, program: str) -> int:
    """Runs a program that has moved itself into the group."""
    enter = f"for path in {group.entrances!r}: open(path, 'w').write('0')\n"
    return subprocess.run(
        [sys.executable, "-c", enter + program], check=False, timeout=60, capture_output=True
    ).returncode


# ------------------------------------------------------------------------------ real groups


def test_a_kill_for_memory_moves_the_counter_of_the_groups_own(group: TrialGroup) -> None:
    before = cgroup.read_counters(group.places)
    code = run_inside(group, f"held = [bytearray(b'x') * {8 * MIB} for _ in range(32)]")
    after = cgroup.read_counters(group.places)
    assert code == -9
    assert cgroup.moved(before.oom_kills, after.oom_kills) == 1
    assert after.memory_limit_bytes == 64 * MIB
    assert after.memory_peak_bytes == 64 * MIB
    assert after.reclaims


def test_a_refused_thread_moves_the_counter_of_refusals(group: TrialGroup) -> None:
    program = (
        "import threading\nstop = threading.Event()\n"
        "try:\n for _ in range(9): threading.Thread(target=stop.wait, daemon=True).start()\n"
        "except RuntimeError: pass\nstop.set()"
    )
    assert run_inside(group, program) == 0
    assert cgroup.read_counters(group.places).pids_refused


def test_what_ends_well_moves_nothing(group: TrialGroup) -> None:
    assert run_inside(group, "pass") == 0
    after = cgroup.read_counters(group.places)
    assert (after.oom_kills, after.pids_refused) == (0, 0)
    assert after.memory_peak_bytes


def test_removing_a_group_ends_what_is_still_inside(group: TrialGroup) -> None:
    sleeper = subprocess.Popen(["sleep", "600"])
    for entrance in group.entrances:
        Path(entrance).write_text(str(sleeper.pid))
    assert group.remove()
    assert sleeper.wait(timeout=30) == -9
    assert not any(os.path.exists(folder) for folder in group.folders)
    assert group.remove()


def test_a_group_that_a_killed_parent_left_is_removed_by_the_next_one(group: TrialGroup) -> None:
    program = (
        "import os, signal; from fleetcraft.calibration.trial.cgroup import make_group; "
        "print(*make_group().folders, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    left = killed.stdout.split()
    assert len(left) == 2
    assert all(os.path.isdir(folder) for folder in left)
    cgroup.make_group().remove()
    assert not any(os.path.exists(folder) for folder in left)
    assert all(os.path.isdir(folder) for folder in group.folders)  # its maker lives


def test_the_peak_begins_anew_where_the_kernel_can(group: TrialGroup) -> None:
    assert not cgroup.is_trials_own(cgroup.own_places())
    assert cgroup.is_trials_own(group.places)
    run_inside(group, f"held = bytearray(b'x') * {16 * MIB}")
    first = cgroup.memory_peak_bytes(group.places)
    if not cgroup.reset_memory_peak(group.places):
        pytest.skip("version 2 keeps the peak of a group for its life")
    second = cgroup.memory_peak_bytes(group.places)
    assert first is not None
    assert second is not None
    assert second < first - 8 * MIB


def test_this_process_is_listed_where_it_is_said_to_be() -> None:
    places = cgroup.own_places()
    if not places:
        pytest.skip("no memory or pids cgroup of this process can be seen")
    for place in places.values():
        assert str(os.getpid()) in Path(place.folder, "cgroup.procs").read_text().split()


# ------------------------------------------------------------------------------ trees on paper


def tell(proc: Path, groups: str, mounts: str) -> str:
    proc.mkdir()
    (proc / "cgroup").write_text(groups)
    (proc / "mountinfo").write_text(mounts)
    return str(proc)


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


V1_MOUNTS = (
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "39 31 0:36 / /sys/fs/cgroup/pids rw,relatime shared:7 - cgroup cgroup rw,pids\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
SLURM = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0"


def test_a_step_of_slurm_is_found_in_version_1(tmp_path: Path) -> None:
    proc = tell(
        tmp_path / "proc", "8:pids:/slurm/job_7\n4:memory:/slurm/job_7/step_0\n0::/x\n", V1_MOUNTS
    )
    assert cgroup.own_places(proc, "/root") == {
        PIDS: Place(version=1, folder="/root/sys/fs/cgroup/pids/slurm/job_7"),
        MEMORY: Place(version=1, folder="/root/sys/fs/cgroup/memory/slurm/job_7/step_0"),
    }


def test_a_step_of_slurm_is_found_in_version_2_with_the_controllers_that_it_has(
    tmp_path: Path,
) -> None:
    tree(tmp_path / "root", {f"sys/fs/cgroup/{SLURM}/cgroup.controllers": "cpu memory\n"})
    proc = tell(tmp_path / "proc", f"0::/{SLURM}\n", V2_MOUNT)
    places = cgroup.own_places(proc, str(tmp_path / "root"))
    assert places == {MEMORY: Place(version=2, folder=f"{tmp_path}/root/sys/fs/cgroup/{SLURM}")}


def test_a_container_sees_only_its_part_of_the_tree(tmp_path: Path) -> None:
    mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    proc = tell(tmp_path / "proc", "4:memory:/docker/abc/inner\n", mounts)
    assert cgroup.own_places(proc) == {
        MEMORY: Place(version=1, folder="/sys/fs/cgroup/memory/inner")
    }
    other = tell(tmp_path / "other", "4:memory:/docker/abcdef\n", mounts)
    assert cgroup.own_places(other) == {}


@given(st.text(), st.text())
def test_what_the_kernel_says_never_breaks_the_reading(
    tmp_path_factory: pytest.TempPathFactory, groups: str, mounts: str
) -> None:
    folder = tmp_path_factory.mktemp("proc")
    proc = tell(folder / "proc", groups.replace("\r", ""), mounts.replace("\r", ""))
    cgroup.own_places(proc, "/nowhere")


def test_a_process_that_is_gone_is_nowhere() -> None:
    assert cgroup.own_places("/proc/0") == {}


V1_FILES = {
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "memory.failcnt": "116\n",
    "memory.max_usage_in_bytes": "943718400\n",
    "memory.limit_in_bytes": "943718400\n",
    "pids.events": "max 5\n",
}
V2_FILES = {
    "memory.events": "low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n",
    "memory.peak": "52428800\n",
    "memory.max": "max\n",
    "pids.events": "max 0\n",
}


@pytest.mark.parametrize(
    ("version", "files", "expected"),
    [
        (1, V1_FILES, Counters(oom_kills=3, pids_refused=5, memory_peak_bytes=943718400,
                               memory_limit_bytes=943718400, reclaims=116)),
        (2, V2_FILES, Counters(oom_kills=1, pids_refused=0, memory_peak_bytes=52428800,
                               memory_limit_bytes=None, reclaims=12)),
        (1, {"memory.oom_control": "oom_kill_disable 0\n"}, Counters()),  # before Linux 4.13
        (2, {"memory.events": "oom_kill many\n", "memory.peak": ""}, Counters()),
    ],
)  # fmt: skip
def test_counts_are_read_from_both_versions_and_absent_ones_are_unknown(
    tmp_path: Path, version: int, files: dict[str, str], expected: Counters
) -> None:
    tree(tmp_path, files)
    place = Place(version=version, folder=str(tmp_path))
    assert cgroup.read_counters({MEMORY: place, PIDS: place}) == expected
    assert cgroup.read_counters({}) == Counters()
    assert cgroup.moved(None, 1) is None
    assert cgroup.moved(1, None) is None


def test_the_smallest_limit_above_a_process_binds_it(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {
            "job/memory.max": f"{500 * MIB}\n",
            "job/step/memory.max": "max\n",
            "job/step/task/memory.max": f"{900 * MIB}\n",
        },
    )
    place = Place(version=2, folder=f"{tmp_path}/job/step/task")
    assert cgroup.host_limit_bytes({MEMORY: place}) == 500 * MIB
    assert cgroup.host_limit_bytes({}) is None


@pytest.fixture
def version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which new folders get files, as the kernel makes them for version 2."""
    own = tmp_path / "own"
    tree(own, {"cgroup.controllers": "memory pids", "cgroup.subtree_control": ""})
    mkdir, rmdir = os.mkdir, os.rmdir

    def make(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        enabled = (own / "cgroup.subtree_control").read_text()
        tree(Path(path), {
            "cgroup.procs": "", "cgroup.controllers": enabled, "memory.max": "max",
            "memory.swap.max": "max", "pids.max": "max",
        })  # fmt: skip

    def remove(path: str) -> None:
        for name in os.listdir(path):
            os.unlink(f"{path}/{name}")
        rmdir(path)

    monkeypatch.setattr(cgroup.os, "mkdir", make)
    monkeypatch.setattr(cgroup.os, "rmdir", remove)
    return own


def test_a_group_of_version_2_is_one_folder_with_both_limits(version_2: Path) -> None:
    (version_2 / "cgroup.subtree_control").write_text("memory pids")
    place = Place(version=2, folder=str(version_2))
    made = cgroup.make_group(memory_bytes=MIB, pids=7, places={MEMORY: place, PIDS: place})
    assert set(made.places) == {MEMORY, PIDS}
    (folder,) = made.folders
    read = {name: Path(folder, name).read_text() for name in ("memory.max", "pids.max")}
    assert read == {"memory.max": str(MIB), "pids.max": "7"}
    assert Path(folder, "memory.swap.max").read_text() == "0"
    assert made.remove()
    assert not os.path.exists(folder)


def test_controllers_are_asked_for_where_the_parent_may_give_them(version_2: Path) -> None:
    place = Place(version=2, folder=str(version_2))
    cgroup.make_group(places={MEMORY: place}).remove()
    assert (version_2 / "cgroup.subtree_control").read_text() == "+memory"


def test_a_limit_that_cannot_be_set_is_told_and_leaves_no_group(
    version_2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the kernel answers where processes are in the parent itself.
    def refuse(path: str, text: str) -> None:
        raise OSError(16, "Device or resource busy", path)

    monkeypatch.setattr(cgroup, "_write", refuse)
    place = Place(version=2, folder=str(version_2))
    made = cgroup.make_group(memory_bytes=MIB, places={MEMORY: place})
    assert made.places == {}
    assert "busy" in made.refused[MEMORY]
    assert "no pids cgroup" in made.refused[PIDS]
    assert sorted(path.name for path in version_2.iterdir()) == [
        "cgroup.controllers", "cgroup.subtree_control",
    ]  # fmt: skip


def test_only_groups_of_dead_makers_with_our_name_are_removed(tmp_path: Path) -> None:
    me = process_id(os.getpid())
    assert me is not None
    mine = f"fleetcraft-trial-{me.pid}-{me.start_ticks}-1"
    earlier = f"fleetcraft-trial-{me.pid}-{me.start_ticks - 1}-1"  # the pid was used before
    for name in (mine, earlier, "fleetcraft-trial-x", "user.slice"):
        (tmp_path / name).mkdir()
    assert cgroup.remove_leftovers(str(tmp_path)) == 1
    assert sorted(os.listdir(tmp_path)) == sorted([mine, "fleetcraft-trial-x", "user.slice"])
