"""``train diagnose``: the JSON that others read, the text, and logs that nobody trusts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetcraft.layout import Scratch
from fleetcraft.layout.runs import RunPaths
from fleetcraft.training.launching.epochs import Epochs
from fleetcraft.training.records import Crash, NodeEnd
from tests.cli.conftest import Fleet
from tests.training.diagnosing.corpus import elastic, steps, traceback
from tests.training.diagnosing.crashes import OOM_SEED
from tests.training.diagnosing.test_changes import epoch

_OOM = steps(690, 703) + traceback(OOM_SEED, "[rank1]: ")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(_OOM + elastic(1))
    return path


def test_the_json_has_the_fields_that_others_read(bare_fleet: Fleet, log: Path) -> None:
    found = bare_fleet.ok("train", "diagnose", str(log), "--json").json
    assert found["schema"] == "fleetcraft.train-diagnosis/1"
    assert (found["class"], found["episode_open"], found["step"]) == ("CUDA_OOM", True, 703)
    assert (found["ranks"], found["oom"]["cause"], found["changes"]) == ([1], "capacity", None)
    assert "do not change two at once" in found["advice"][0]
    first = found["evidence"][0]
    assert set(first) == {
        "source", "class", "role", "text", "path", "line", "byte", "at", "rank", "step",
    }  # fmt: skip
    assert (first["source"], first["path"], first["rank"]) == ("log", str(log), 1)
    assert log.read_text().splitlines()[first["line"] - 1].endswith(OOM_SEED)


def test_a_healthy_log_is_a_diagnosis_too(bare_fleet: Fleet, log: Path) -> None:
    log.write_text(steps(1, 9))
    found = bare_fleet.ok("train", "diagnose", str(log), "--json").json
    assert (found["class"], found["episode_open"], found["evidence"]) == ("NONE", False, [])
    assert "nothing says that it died" in bare_fleet.ok("train", "diagnose", str(log)).out


def test_a_crash_that_was_passed_is_over(bare_fleet: Fleet, log: Path) -> None:
    log.write_text(_OOM + steps(704, 720))
    found = bare_fleet.ok("train", "diagnose", str(log), "--json").json
    assert (found["class"], found["episode_open"], found["step"]) == ("CUDA_OOM", False, 720)
    assert "over, steps were completed after it" in bare_fleet.ok("train", "diagnose", str(log)).out


def test_the_text_shows_class_numbers_lines_and_advice(bare_fleet: Fleet, log: Path) -> None:
    text = bare_fleet.ok("train", "diagnose", str(log)).out
    for part in ("CUDA_OOM: open", "shortfall", "0.17 GiB", f"{log}:", "rank 1", "What to do:"):
        assert part in text


def test_quoted_lines_cannot_command_the_terminal(bare_fleet: Fleet, log: Path) -> None:
    log.write_bytes(
        b"step 1\nOSError: [Errno 28] No space left on device: '\x1b]0;x\x07\x1b[2J\x9b'\n"
    )
    called = bare_fleet.ok("train", "diagnose", str(log))
    assert "DISK_FULL" in called.out
    assert not set(called.out) & {"\x1b", "\x07", "\x9b"}


@pytest.mark.parametrize(
    ("words", "crash"),
    [
        (["--exit-code", "137"], "KILLED_UNCONFIRMED"),
        (["--signal", "KILL", "--oom-kills", "1"], "HOST_OOM"),
        (["--signal", "9", "--oom-kills", "0"], "KILLED_UNCONFIRMED"),
        (["--signal", "SIGSEGV"], "CODE_ERROR"),
        (["--slurm-state", "OUT_OF_MEMORY", "--slurm-exit", "0:125"], "HOST_OOM"),
        (["--slurm-state", "TIMEOUT"], "TIME_LIMIT"),
        ([], "NONE"),
    ],
)
def test_what_else_is_known_counts(
    bare_fleet: Fleet, log: Path, words: list[str], crash: str
) -> None:
    log.write_text(steps(1, 9))
    assert bare_fleet.ok("train", "diagnose", str(log), *words, "--json").json["class"] == crash


def test_an_error_file_alone_is_enough(bare_fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "3" / "error.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"message": {"message": "RuntimeError: x", "extraInfo": {}}}))
    found = bare_fleet.ok("train", "diagnose", "--error-file", str(path), "--json").json
    assert (found["class"], found["ranks"]) == ("CODE_ERROR", [3])


@pytest.mark.parametrize(
    "words", [["none.log"], ["."], [], ["--error-file", "none.json"], ["--run", "none"]]
)
def test_what_is_not_there_is_a_usage_error(fleet: Fleet, words: list[str]) -> None:
    called = fleet("train", "diagnose", *words, "--json")
    assert called.code == 2
    assert called.out == ""
    assert called.error["type"] == "UsageError"


def test_a_signal_that_is_none_is_a_usage_error(bare_fleet: Fleet, log: Path) -> None:
    assert bare_fleet("train", "diagnose", str(log), "--signal", "NOPE").code == 2


def test_a_log_that_cannot_be_read_is_no_diagnosis(bare_fleet: Fleet) -> None:
    called = bare_fleet("train", "diagnose", "/proc/self/mem", "--json")
    assert (called.code, called.error["type"]) == (7, "DataError")
    assert "Input/output error" in called.error["message"]


# -- runs of the supervisor


def _run(fleet: Fleet, **fields: Any) -> RunPaths:
    paths = RunPaths(Scratch(str(fleet.root)).run_folder("distill"))
    for number in (1, 2):
        for folder in (*paths.folders(), *paths.attempt(number).folders()):
            os.makedirs(folder, exist_ok=True)
    epochs = Epochs(paths)
    healthy = epoch(number=1, attempt=1, stack={"torch": "2.7.0"}, data={"mean_length": 100})
    assert epochs.publish(healthy)
    epochs.mark_healthy(1, generation=1)
    now = {"stack": {"torch": "2.8.0"}, "data": {"mean_length": 137}, **fields}
    assert epochs.publish(epoch(number=2, attempt=2, **now))
    return paths


def test_a_supervised_run_is_diagnosed_from_its_own_records(fleet: Fleet) -> None:
    paths = _run(fleet)
    attempt = paths.attempt(2)
    Path(attempt.log("node-03")).write_text(steps(690, 703))
    Path(paths.attempt(1).log("node-03")).write_text(_OOM)
    end = NodeEnd(node="node-03", nonce="n", signal=9, oom_kills=1)
    Path(attempt.ended("node-03")).write_bytes(msgspec.json.encode(end))
    found = fleet.ok("train", "diagnose", "--run", "distill", "--json").json
    assert found["class"] == Crash.HOST_OOM
    assert [one["text"] for one in found["changes"]] == [
        "torch: 2.7.0 to 2.8.0",
        "mean length: 100 to 137, up 37 percent",
    ]
    text = fleet.ok("train", "diagnose", "--run", paths.folder).out
    assert "Changed since the last healthy epoch:" in text
    assert "up 37 percent" in text


def test_lines_before_the_fence_of_an_adopted_log_do_not_count(fleet: Fleet, log: Path) -> None:
    from fleetcraft.training.diagnosing.fences import make_fence

    _run(fleet, fences=(make_fence(log),), log_paths=(str(log), str(log) + ".gone"))
    with log.open("a") as file:
        file.write(steps(651, 660))
    found = fleet.ok("train", "diagnose", "--run", "distill", "--json").json
    assert (found["class"], found["episode_open"], found["step"]) == ("NONE", False, 660)
    assert found["notes"] == [f"{log}.gone: not there"]
