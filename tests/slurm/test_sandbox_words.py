"""What the sandbox answers to words that are off, to --help, and where Slurm is missing.

Not here: anything that starts a cluster.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import SANDBOX, sandbox


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["start"], "no folder"),
        (["start", "a", "--dir", "b"], "two folders"),
        (["strat", "--dir", "D"], "did you mean start?"),
        (["start", "--dir", "D", "--nodes", "0"], "--nodes is 0, 1 to 64 expected"),
        (["start", "--dir", "D", "--nodes", "x"], "invalid int value"),
        (["start", "--dir", "D", "--node", "4"], "--node"),
        (["start", "--dir", "D", "--gpus-per-node", "two"], "--gpus-per-node is 'two'"),
        (["start", "--dir", "D", "--gpus-per-node=-1"], "--gpus-per-node is -1"),
        (
            ["start", "--dir", "D", "--nodes", "4", "--gpus-per-node", "1,2"],
            "2 numbers for 4 nodes",
        ),
        (["start", "--dir", "D", "--set", "KillWait"], "'KillWait' is no line"),
        (["start", "--dir", "D", "--set", "slurmctldport=1"], "chooses that itself"),
        (["start", "--dir", "D", "--grp-node-minutes", "5"], "without accounting"),
        (["start", "--dir", "/etc"], "holds other things than a sandbox"),
        (["start", "--dir", "/etc/passwd"], "is not a folder"),
        (["kill-node", "--dir", "D"], "node"),
        ([], "Verbs"),
    ],
)
def test_words_that_are_off_get_a_sentence_and_code_2(
    words: list[str], told: str, tmp_path: Path
) -> None:
    done = sandbox(*words, cwd=tmp_path)

    assert done.returncode == 2
    assert done.stdout == ""
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "D").exists()


@pytest.mark.parametrize(
    "words", [["--help"], ["start", "--help"], ["kill-node", "-h"], ["stop-controller", "-h"]]
)
def test_help_is_data_and_teaches_the_call(words: list[str]) -> None:
    done = sandbox(*words)

    assert (done.returncode, done.stderr) == (0, "")
    assert "--dir" in done.stdout
    assert "Exit codes" in done.stdout


def test_without_slurm_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import runpy, sys; sys.path.insert(0, sys.argv[1]);"
        "from sandbox_parts import programs; programs.SYSTEM_PATH = '/nonexistent';"
        "sys.argv = ['sandbox', 'start', '--dir', sys.argv[2]];"
        "runpy.run_path(sys.path[0] + '/sandbox', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, SANDBOX.parent, tmp_path / "D"],
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 3
    assert "no munged on this machine" in done.stderr
    assert "apt-get install slurmctld slurmd slurm-client munge" in done.stderr
    assert not (tmp_path / "D").exists()
