"""All that a whole small project leaves behind: who may read and write it, and no secret in it.

The project is made once under the umask that allows everything and once under the one that allows
nothing to others; see `made`.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import REPO, environment
from tests.security.made import SAID, SECRET

# It is made once, by tens of processes, some of which load torch.
pytestmark = [pytest.mark.xdist_group("security-made"), pytest.mark.timeout(600)]

THE_USERS_OWN = (
    "said.json", "project/env", "project/run.yaml", "project/ps.txt", "project/out.txt",
    "project/score.svg", "project/set/", "shared/scratch/telemetry/vm", "rank-00000/",
    "tmp/torchinductor_",
)  # fmt: skip
"""Written by the test itself, by tasks and trainers, or by torch: their own modes are theirs."""


@dataclass(frozen=True)
class Made:
    """A project, and what its calls said."""

    base: Path
    said: list[tuple[list[str], int, str]]

    def ours(self) -> Iterator[tuple[str, os.stat_result]]:
        """Everything that the toolkit made."""
        telemetry = f"shared/scratch/telemetry/{os.uname().nodename}"
        for path in sorted(self.base.rglob("*")):
            name = str(path.relative_to(self.base))
            if not any(own in name for own in (*THE_USERS_OWN, telemetry)):
                yield name, path.lstat()


def made_under(umask: str, base: Path, *more: str) -> Made:
    (base / "tmp").mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.made", str(base), umask, *more],
        cwd=REPO,
        env=environment(TMPDIR=str(base / "tmp")),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Made(base, json.loads((base / SAID).read_text()))


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made_under("000", tmp_path_factory.mktemp("lenient"), "heavy")


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made_under("077", tmp_path_factory.mktemp("strict"))


def writable_by_others(made: Made) -> list[str]:
    return [
        f"{stat.filemode(facts.st_mode)} {name}"
        for name, facts in made.ours()
        if not stat.S_ISLNK(facts.st_mode) and facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ]


def test_nothing_is_writable_by_others_whatever_the_umask(lenient: Made, strict: Made) -> None:
    assert writable_by_others(strict) == []
    # Folders of a hub cache may be a group's, where the umask lets it write: they are shared.
    left = [line for line in writable_by_others(lenient) if "shared/scratch/caches" not in line]
    assert left == []
    everybody = [line for line in writable_by_others(lenient) if line[8] == "w"]
    assert everybody == []


def test_the_scratch_tree_and_its_rooms_are_for_their_user_alone(lenient: Made) -> None:
    root = lenient.base / "shared/scratch"
    private = ["", "taskq", "taskq/names", "taskq/tmp", "taskq/logs", "taskq/workers", "taskq_gpu",
               "telemetry", "trajq", "trajq/deep/wan", "calibration", "runs", "runs/distill",
               "evidence"]  # fmt: skip
    modes = {name: oct(stat.S_IMODE((root / name).stat().st_mode)) for name in private}
    assert modes == dict.fromkeys(private, "0o700")
    # Above it, too, what was made: anybody could else put another root in its place.
    assert oct(stat.S_IMODE(root.parent.stat().st_mode)) == "0o700"


def test_others_can_read_only_what_is_made_to_be_given_away(lenient: Made) -> None:
    given = ("project/bag", "project/archive", "project/figures", "project/given",
             "project/comparison", ".origin.json", "shared/scratch/caches")  # fmt: skip
    readable = [
        f"{stat.filemode(facts.st_mode)} {name}"
        for name, facts in lenient.ours()
        if facts.st_mode & (stat.S_IRGRP | stat.S_IROTH)
        and not stat.S_ISLNK(facts.st_mode)
        and not any(word in name for word in given)
    ]
    assert readable == []


def test_nothing_is_left_in_folders_that_all_users_share(lenient: Made, strict: Made) -> None:
    for made in (lenient, strict):
        left = [n for n in os.listdir(made.base / "tmp") if not n.startswith("torchinductor_")]
        assert left in ([], [f"fleetcraft-{os.geteuid()}"])


def test_no_secret_of_the_environment_is_in_any_file_or_output(lenient: Made, strict: Made) -> None:
    for made in (lenient, strict):
        files = [
            str(path.relative_to(made.base))
            for path in made.base.rglob("*")
            if path.is_file() and SECRET.encode() in path.read_bytes()
        ]
        assert files == ["project/env"]
        assert [words for words, _, said in made.said if SECRET in said] == []


def test_no_secret_is_on_a_command_line_that_others_can_see(lenient: Made) -> None:
    own = own_processes((lenient.base / "project/ps.txt").read_text())
    assert len(own) > 2, own  # the worker and the task were there to be seen
    assert [line for line in own if SECRET in line] == []


def own_processes(listed: str) -> list[str]:
    """Command lines of those that the project's own process has started, and its own."""
    task, *lines = listed.splitlines()
    processes = {pid: (parent, args) for pid, parent, args in (ln.split(None, 2) for ln in lines)}
    top = task.strip()
    while "tests.security.made" not in processes[top][1]:
        top = processes[top][0]
    own = [top]
    for pid in own:
        own += [child for child, (parent, _) in processes.items() if parent == pid]
    return [processes[pid][1] for pid in own]


def test_no_call_ends_in_a_traceback_under_either_umask(lenient: Made, strict: Made) -> None:
    for made in (lenient, strict):
        assert [words for words, code, said in made.said if "Traceback" in said or code == 70] == []
