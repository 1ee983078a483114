"""What a node says of itself, from trees of files as kernels and Slurm make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetcraft.telemetry.logger.host import HostReader, HostReading, find_cgroup_file

MEMINFO = "MemTotal:       16777216 kB\nMemFree:  100 kB\nMemAvailable:   12582912 kB\n"
V2_MOUNT = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
SLURM_V2 = "/system.slice/slurmstepd.scope/job_123"
SLURM_V1 = "/slurm/uid_1000/job_123"


def tree(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def test_memory_and_load_are_those_of_the_kernel(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/meminfo": MEMINFO, "proc/loadavg": "1.25 0.9 0.8 2/345 6789\n"})
    assert HostReader(root).read() == HostReading(
        mem_used_mib=4096.0, mem_total_mib=16384.0, cgroup_mem_mib=None, load=1.25
    )


def test_what_cannot_be_read_is_none_and_is_read_once_it_can(tmp_path: Path) -> None:
    reader = HostReader(str(tmp_path))
    assert reader.read() == HostReading()
    tree(tmp_path, {"proc/meminfo": "MemTotal: 2048 kB\n", "proc/loadavg": "nonsense"})
    assert reader.read() == HostReading(mem_total_mib=2.0)
    reader.close()


@pytest.mark.parametrize(
    ("memberships", "mounts", "file"),
    [
        (f"0::{SLURM_V2}/step_0/user/task_0\n", V2_MOUNT, f"{SLURM_V2}/memory.current"),
        (
            "0::/user.slice/session-3.scope\n",
            V2_MOUNT,
            "/user.slice/session-3.scope/memory.current",
        ),
        (
            f"5:cpu:/\n4:memory:{SLURM_V1}/step_batch\n0::/\n",
            V1_MOUNT.format(root="/"),
            f"/memory{SLURM_V1}/memory.usage_in_bytes",
        ),
        # a container that sees only its own part of the hierarchy
        ("4:memory:/box/7\n", V1_MOUNT.format(root="/box/7"), "/memory/memory.usage_in_bytes"),
    ],
)
def test_the_jobs_own_control_group_is_found(
    tmp_path: Path, memberships: str, mounts: str, file: str
) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": memberships,
            "proc/self/mountinfo": f"broken line\n{mounts}",
            f"sys/fs/cgroup{file}": "3145728\n",
        },
    )
    assert find_cgroup_file(root) == f"{root}/sys/fs/cgroup{file}"
    assert HostReader(root).read().cgroup_mem_mib == 3.0


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": V2_MOUNT},  # no such file
        {"proc/self/cgroup": "4:memory:/a\n", "proc/self/mountinfo": V1_MOUNT.format(root="/b")},
        {"proc/self/cgroup": "\n\x00::\n", "proc/self/mountinfo": " - \n"},
    ],
)
def test_without_a_control_group_that_can_be_read_the_cell_is_empty(
    tmp_path: Path, files: dict[str, str]
) -> None:
    root = tree(tmp_path, files)
    assert find_cgroup_file(root) == ""
    assert HostReader(root).read().cgroup_mem_mib is None


def test_this_machine_says_something() -> None:
    reader = HostReader()
    reading = reader.read()
    reader.close()
    assert reading.mem_total_mib
    assert reading.load is not None
    assert reading.mem_used_mib is None or 0 < reading.mem_used_mib < reading.mem_total_mib
