"""A task that the kernel kills for memory, in a real memory cgroup."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.harness import Site, python

LIMIT_MIB = 160
EAT = python("data = [bytearray(b'x' * (1 << 20)) for _ in range(2000)]")


def own_memory_cgroup() -> tuple[Path, str]:
    """The folder of this process's memory cgroup, and the name of the file that limits one."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path(f"/sys/fs/cgroup/memory{path.rstrip('/')}"), "memory.limit_in_bytes"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            return Path(f"/sys/fs/cgroup{path.rstrip('/')}"), "memory.max"
    pytest.skip("this process is in no memory cgroup")


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    parent, limit = own_memory_cgroup()
    group = parent / f"fleetcraft-test-{os.getpid()}-{tmp_path.name[-8:]}"
    try:
        group.mkdir()
        (group / limit).write_text(str(LIMIT_MIB << 20))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no limited memory cgroup can be made here: {error}")
    yield group
    group.rmdir()


def enter(group: Path) -> list[str]:
    """A command that runs another one inside the cgroup."""
    return ["bash", "-c", f'echo $$ > {shlex.quote(str(group))}/cgroup.procs && exec "$@"', "bash"]


def test_a_task_that_the_kernel_killed_for_memory_is_out_of_memory(
    site: Site, small_memory: Path
) -> None:
    site.enqueue("a-eats", f"exec {EAT}", retries=1)
    site.enqueue("b-eats-inside", f"{EAT}; exit $?")  # 137, as bash says it
    site.enqueue("c-killed", "kill -9 $$")
    site.enqueue("d-good", "true")
    site.work(wrap=enter(small_memory))
    assert site.outcomes("a-eats") == ["out_of_memory", "out_of_memory"]
    assert "host memory" in site.last("a-eats").reason
    assert site.last("a-eats").signal == 9
    assert site.outcomes("b-eats-inside") == ["out_of_memory"]
    assert site.last("b-eats-inside").exit_code == 137
    assert site.outcomes("c-killed") == ["failed"]
    assert site.outcomes("d-good") == ["completed"]


def test_a_task_that_fails_by_itself_beside_an_out_of_memory_is_a_plain_failure(
    site: Site, small_memory: Path
) -> None:
    site.enqueue("handled", f"{EAT} || exit 4")
    site.work(wrap=enter(small_memory))
    assert (site.last("handled").outcome, site.last("handled").exit_code) == ("failed", 4)
