"""``fleetcraft evidence trace`` and ``stamp``: a whole project by its commands, and its answers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetcraft.identity import this_host
from tests.cli.conftest import Called, Fleet
from tests.telemetry.trees import lines, write_file

FLEET = f"{sys.executable} -m fleetcraft"


@pytest.fixture
def figure(fleet: Fleet, tmp_path: Path) -> Path:
    """A stamped figure that rests on a file of numbers."""
    (tmp_path / "numbers.csv").write_text("a\n1\n")
    path = tmp_path / "score.svg"
    path.write_text("<svg/>\n")
    fleet.ok("evidence", "stamp", str(path), str(tmp_path / "numbers.csv"), "--by", "plot.py")
    return path


def nodes(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Every node of a trace, parents first."""
    found: list[dict[str, Any]] = []
    stack = [value["root"]]
    while stack:
        found.append(node := stack.pop())
        stack.extend(reversed(node["children"]))
    return found


def trace(fleet: Fleet, *words: object) -> Called:
    return fleet("evidence", "trace", *map(str, words))


def test_a_project_is_traced_from_its_figure_to_its_logs_by_commands_alone(
    fleet: Fleet, tmp_path: Path
) -> None:
    for arm, score in (("full", 0.5), ("cached", 0.6)):
        put = f"{FLEET} evidence append --set sweep --arm {arm}"
        words = f"--seed 1 --metric score={score} --output {arm}.txt"
        fleet.ok("enqueue", "-n", f"gen-{arm}", f"echo {arm} > {arm}.txt && {put} {words}")
    fleet.ok("run")
    node = this_host().host
    write_file(fleet.root / "telemetry", node, lines(time.time() - 290, 30, 10.0))
    fleet.ok("telemetry", "summary", "--window", "600", "--freeze", "window.json")
    words = ("compare", "full", "cached", "--metric", "score", "-o", "comparison.json")
    fleet.ok("evidence", *words)
    (tmp_path / "score.svg").write_text("<svg/>\n")
    fleet.ok("evidence", "stamp", "score.svg", "comparison.json", "window.json", "--by", "plot")

    called = trace(fleet, "score.svg", "--json")

    assert called.code == 0, called.out + called.err
    value = called.json
    assert value["schema"] == "fleetcraft.trace/1"
    assert value["verdict"] == "verified"
    found = nodes(value)
    names = {(one["kind"], os.path.basename(one["name"])) for one in found}
    assert {
        ("figure", "score.svg"),
        ("summary", "comparison.json"),
        ("summary", "window.json"),
        ("telemetry", f"{node}_job7_20270115T070000Z.csv"),
        ("task", "gen-full"),
        ("task", "gen-cached"),
        ("log", "gen-full.1.log"),
        ("log", "gen-cached.1.log"),
    } <= names
    assert value["counts"] == {
        "changed": 0, "missing": 0, "unknown": 0, "unrecorded": 0, "verified": len(found),
    }  # fmt: skip
    assert sum(value["levels"].values()) == len(found)
    again = trace(fleet, "score.svg", "--recompute")
    assert (again.code, "computed again from " in again.out) == (0, True)
    _forge(tmp_path / "window.json")
    assert trace(fleet, "window.json").code == 1
    (tmp_path / "window.json.origin.json").unlink()
    assert trace(fleet, "window.json").code == 0
    forged = trace(fleet, "window.json", "--recompute")
    assert (forged.code, "computed again, summary" in forged.out) == (1, True)


def _forge(window: Path) -> None:
    """Another figure in a frozen window, with a digest that fits."""
    value = json.loads(window.read_bytes())
    del value["digest"]
    value["summary"]["sentence"] = "all GPUs were busy"
    data = msgspec.json.encode(value, order="deterministic")
    value["digest"] = hashlib.sha256(data).hexdigest()
    window.chmod(0o600)
    window.write_bytes(msgspec.json.encode(value))


def test_a_trace_is_a_tree_for_people(fleet: Fleet, tmp_path: Path) -> None:
    fleet.ok("enqueue", "-n", "gen", "echo x > x.txt && " + _append("gen", "x.txt"))
    fleet.ok("run")
    text = trace(fleet, "x.txt").out
    assert "└─ verified log gen.1.log  listed; found; its bytes were never recorded" in text
    assert text.splitlines()[-1] == "verified: 4 things, down to 1 task and 1 log"


def _append(arm: str, output: str) -> str:
    return f"{FLEET} evidence append --set s --arm {arm} --seed 1 --metric m=1 --output {output}"


def test_what_was_archived_and_purged_is_traced_in_the_archive(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.ok("enqueue", "-n", "gen", "echo x > x.txt && " + _append("gen", "x.txt"))
    fleet.ok("run")
    (tmp_path / "a.svg").write_text("<svg/>")
    fleet.ok("evidence", "stamp", "a.svg", "--set", "s")
    fleet.ok("evidence", "freeze", str(fleet.root), "-o", "whole.json")
    fleet.ok("evidence", "archive", "whole.json", "kept")
    shutil.rmtree(fleet.root)

    assert fleet.bare("evidence", "trace", "a.svg").code == 7
    called = fleet.bare("evidence", "trace", "a.svg", "--archive", "kept", "--json")

    assert called.code == 0, called.out
    places = {one["kind"]: one["place"] for one in nodes(called.json)}
    assert {places["task"], places["log"]} == {"archive kept"}


def test_what_changed_makes_the_answer_no(fleet: Fleet, figure: Path) -> None:
    (figure.parent / "numbers.csv").write_text("a\n2\n")
    called = trace(fleet, figure, "--json")
    assert (called.code, called.json["verdict"]) == (1, "changed")
    child = called.json["root"]["children"][0]
    assert child["expected_sha256"] != child["found_sha256"]
    assert "changed table numbers.csv" in trace(fleet, figure).out


def test_what_is_gone_cannot_be_verified(fleet: Fleet, figure: Path) -> None:
    (figure.parent / "numbers.csv").unlink()
    called = trace(fleet, figure, "--json")
    assert (called.code, called.json["verdict"]) == (7, "missing")


def test_a_figure_without_an_origin_cannot_be_verified(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "bare.svg").write_text("<svg/>")
    called = trace(fleet, "bare.svg")
    assert called.code == 7
    assert "unrecorded figure bare.svg" in called.out


def test_a_file_that_is_not_there_is_told(fleet: Fleet) -> None:
    called = trace(fleet, "none.svg", "--json")
    assert called.code == 7
    assert "no such file" in called.error["message"]


def test_what_was_meant_is_named_where_nothing_can_be_traced(fleet: Fleet, figure: Path) -> None:
    called = trace(fleet, figure.parent / "scor.svg", "--json")
    assert (called.code, "score.svg" in called.error["hint"]) == (7, True)
    called = trace(fleet, figure.parent, "--json")
    assert (called.code, "evidence verify" in called.error["hint"]) == (7, True)


def test_an_archive_that_is_no_folder_is_a_usage_error(fleet: Fleet, figure: Path) -> None:
    assert trace(fleet, figure, "--archive", "nowhere").code == 2


def test_a_trace_needs_no_scratch_tree(
    fleet: Fleet, figure: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(figure.parent)
    assert fleet.bare("evidence", "trace", "score.svg").code == 0


def test_names_do_no_harm_on_a_terminal(fleet: Fleet, tmp_path: Path) -> None:
    odd = tmp_path / "x\x1b[2J\n.csv"
    odd.write_text("1")
    (tmp_path / "a.svg").write_text("<svg/>")
    said = fleet.ok("evidence", "stamp", "a.svg", str(odd), "--by", "\x1b[31m").out
    assert "\x1b" not in said
    text = trace(fleet, "a.svg").out
    assert "\x1b" not in text
    assert "\\x1b[2J\\n.csv" in text


# ---------------------------------------------------------------------------------------- stamp


def test_a_stamp_is_one_json_value_and_one_file(fleet: Fleet, figure: Path) -> None:
    words = ("stamp", str(figure), f"code={figure.parent / 'numbers.csv'}", "--json")
    value = fleet.ok("evidence", *words).json
    assert value["schema"] == "fleetcraft.stamp/1"
    assert value["origin_file"] == f"{figure}.origin.json"
    assert json.loads(Path(value["origin_file"]).read_bytes())["schema"] == "fleetcraft.origin/1"
    (source,) = value["origin"]["sources"]
    assert (source["path"], source["kind"]) == ("numbers.csv", "code")


def test_a_result_set_can_be_a_source(fleet: Fleet, figure: Path) -> None:
    fleet.ok("evidence", "append", "--set", "s", "--arm", "a", "--seed", "1", "--metric", "m=1")
    value = fleet.ok("evidence", "stamp", str(figure), "--set", "s", "--json").json
    (source,) = value["origin"]["sources"]
    assert source["kind"] == "results"
    assert "/evidence/results/s/" in f"/{source['path']}"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("score.svg", "score.svg"), 2),
        (("score.svg", "none.csv"), 7),
        (("none.svg",), 7),
        (("score.svg", "--kind", "picture"), 2),
    ],
)
def test_what_cannot_be_stamped_is_told_and_not_written(
    fleet: Fleet, figure: Path, words: tuple[str, ...], code: int
) -> None:
    before = sorted(os.listdir(figure.parent))
    assert fleet("evidence", "stamp", *words).code == code
    assert sorted(os.listdir(figure.parent)) == before


def test_neither_command_loads_what_it_does_not_need(fleet: Fleet, figure: Path) -> None:
    import subprocess

    from tests.cli.conftest import environment

    program = (
        "import sys; from fleetcraft.cli.main import main; "
        f"code = main(['evidence', 'trace', {str(figure)!r}]); "
        "print([name for name in ('torch', 'numpy', 'pandas', 'matplotlib', 'rich', 'av') "
        "if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]"), done.stderr
