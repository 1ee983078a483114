"""Results on the command line: appended, listed, compared, gated and released."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click
import pytest

from fleetcraft import Spool
from fleetcraft.cli.evidence import COMMANDS, evidence_command
from fleetcraft.evidence.sealed import seal
from tests.cli.conftest import Fleet


def _append(fleet: Fleet, arm: str, seed: int, score: float, *more: str, name: str = "s") -> None:
    fleet.ok(
        "evidence", "append", "--set", name, "--arm", arm, "--seed", str(seed),
        "--metric", f"score={score}", *more,
    )  # fmt: skip


@pytest.fixture
def two_arms(fleet: Fleet) -> Fleet:
    for seed in range(4):
        _append(fleet, "full", seed, 0.5)
        _append(fleet, "cached", seed, 0.5 + seed / 100)
    return fleet


def test_a_result_is_appended_and_listed(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes(b"video")

    made = fleet.ok(
        "evidence", "append", "--set", "s", "--arm", "full", "--seed", "3", "--metric",
        "score=0.71", "--metric", "fps=11", "--output", "clip.mp4", "--timed", "--batch", "1",
        "--stack", "torch=2.13.0", "--attention", "cudnn", "--device", "H200", "--json",
    ).json  # fmt: skip

    assert (made["schema"], made["set"], made["timed"]) == ("fleetcraft.result/1", "s", True)
    assert made["metrics"] == {"score": 0.71, "fps": 11.0}
    assert made["outputs"][0]["size_bytes"] == 5
    listed = fleet.ok("evidence", "results", "s", "--json").json
    assert (listed["records"], listed["rejects"]) == (1, {})
    assert listed["arms"][0]["metrics"]["score"]["mean"] == 0.71
    assert listed["results"][0]["nonce"] == made["nonce"]
    assert fleet.ok("evidence", "results", "--json").json["sets"] == [
        {"set": "s", "records": 1, "rejects": 0}
    ]
    text = fleet.ok("evidence", "results", "s").out
    assert "full: 1 record, 1 seed, timed" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--metric", "score"], "no NAME=VALUE"),
        (["--metric", "score=high"], "expected a number"),
        (["--metric", "score=nan"], "metric score is nan"),
        (["--metric", "a=1", "--metric", "a=2"], "given twice"),
        (["--grid-sha256", "abc"], "64 hex digits"),
        (["--set", "a/b"], "no name"),
        (["--arm", ""], "no name"),
    ],
)
def test_a_call_that_is_off_appends_nothing(fleet: Fleet, words: list[str], said: str) -> None:
    called = fleet(
        "evidence", "append", "--set", "s", "--arm", "a", "--seed", "1", *words, "--json"
    )
    assert (called.code, said in called.error["message"]) == (2, True)
    assert fleet.ok("evidence", "results").out == "no result sets\n"


def test_without_a_scratch_tree_nothing_is_appended(bare_fleet: Fleet) -> None:
    called = bare_fleet("evidence", "append", "--set", "s", "--arm", "a", "--seed", "1")
    assert (called.code, "no scratch tree" in called.err) == (3, True)


def test_arms_are_compared_pair_by_pair(two_arms: Fleet) -> None:
    made = two_arms.ok("evidence", "compare", "full", "cached", "--metric", "score", "--json").json

    assert (made["pairs"], made["how"], made["a"]["set"]) == (4, "ratio", "s")
    assert made["low"] < made["estimate"] < made["high"]
    text = two_arms.ok("evidence", "compare", "full", "cached", "--metric", "score").out
    assert text.startswith("score, cached / full: 1.0")
    apart = two_arms.ok(
        "evidence", "compare", "full", "cached", "--metric", "score", "--difference", "--json",
        "--limit", "1",
    ).json  # fmt: skip
    assert (len(apart["values"]), apart["values_left_out"]) == (1, 3)
    assert apart["estimate"] == pytest.approx(0.015)


def test_a_comparison_is_written_the_same_every_time_with_its_origin(
    two_arms: Fleet, tmp_path: Path
) -> None:
    words = ("evidence", "compare", "full", "cached", "--metric", "score", "-o", "c.json")
    seen = []
    for _ in range(2):
        two_arms.ok(*words)
        seen.append([(tmp_path / name).read_bytes() for name in ("c.json", "c.json.origin.json")])

    assert seen[0] == seen[1]
    assert json.loads(seen[0][0])["schema"] == "fleetcraft.comparison/1"
    origin = json.loads(seen[0][1])
    assert len(origin["sources"]) == 1
    assert all((tmp_path / each["path"]).is_file() for each in origin["sources"])
    assert sorted(os.listdir(tmp_path)) == ["c.json", "c.json.origin.json", "it's a root"]


def test_a_comparison_replaces_nothing_but_a_comparison(two_arms: Fleet, tmp_path: Path) -> None:
    words = ("evidence", "compare", "full", "cached", "--metric", "score", "-o")
    (tmp_path / "notes.txt").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    for name in ("notes.txt", "pipe", "."):
        called = two_arms(*words, name)
        assert (called.code, "it is no comparison" in called.err) == (2, True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    called = two_arms(*words, "nowhere/c.json")
    assert (called.code, "nothing was written" in called.err) == (5, True)
    assert not list(tmp_path.glob("*.tmp"))


def test_mixed_arms_are_refused_with_1_and_what_is_not_known_with_7(two_arms: Fleet) -> None:
    compare = ("evidence", "compare", "full", "cached", "--metric", "score")
    assert two_arms(*compare[:-1], "fps").code == 7
    assert two_arms("evidence", "compare", "full", "nobody", "--metric", "score").code == 7
    _append(two_arms, "cached", 9, 0.5, "--batch", "4")
    called = two_arms(*compare, "--json")
    assert (called.code, called.error["facts"]["certain"]) == (7, False)
    assert two_arms("evidence", "results", "s").code == 7

    _append(two_arms, "cached", 10, 0.5, "--batch", "1")
    called = two_arms(*compare, "--json")
    assert (called.code, "mixes batched" in called.error["message"]) == (1, True)
    called = two_arms("evidence", "results", "s", "--arm", "cached")
    assert (called.code, "mixed  batched" in called.out) == (1, True)
    assert two_arms("evidence", "results", "s", "--arm", "full").code == 0


def test_of_several_sets_one_must_be_named(two_arms: Fleet) -> None:
    _append(two_arms, "full", 0, 0.6, name="again")
    called = two_arms("evidence", "compare", "full", "cached", "--metric", "score")
    assert (called.code, "again, s" in called.err) == (2, True)

    rerun = ("evidence", "compare", "s:full", "again:full", "--metric", "score", "--json")
    assert two_arms.ok(*rerun).json["pairs"] == 1


def test_a_changed_record_is_never_compared(two_arms: Fleet) -> None:
    [first, *_] = sorted((two_arms.root / "evidence" / "results" / "s").iterdir())
    data = bytearray(first.read_bytes())
    data[-20] ^= 1
    first.write_bytes(data)

    called = two_arms("evidence", "compare", "full", "cached", "--metric", "score")
    assert (called.code, "cannot be trusted" in called.err) == (7, True)
    called = two_arms("evidence", "results", "s")
    assert (called.code, "1 not used: changed since" in called.out) == (7, True)


def test_hostile_text_of_a_record_is_printed_harmlessly(fleet: Fleet) -> None:
    folder = fleet.root / "evidence" / "results" / "s"
    _append(fleet, "full", 0, 0.5)
    body = json.dumps(
        {
            "schema": "fleetcraft.result/1", "arm": "a\x1b[31m\nb", "seed": 0, "timed": True,
            "metrics": {"m\x1b]0;x\x07": 1.0}, "device": "d\x1b[2J",
        }
    )  # fmt: skip
    (folder / "x\x1b.jsonl").write_bytes(seal(body.encode()) + b"torn")

    out = fleet("evidence", "results", "s").out

    assert "\x1b" not in out
    assert "a\\x1b[31m\\nb: 1 record" in out


_GRID = "name: g\narms: [full]\nseeds: [0, 1]\nscripts: [run.py]\n"
_GATE = """\
name: out
mechanical:
- {check: grid_complete, grid: g}
semantic:
- {check: metric, set: g, arm: full, metric: score, at_least: 0.4}
"""


def test_a_grid_is_led_from_its_file_to_release(fleet: Fleet, tmp_path: Path) -> None:
    Path("run.py").write_text("1")
    Path("grid.yaml").write_text(_GRID)
    Path("gate.yaml").write_text(_GATE)
    grid = ("evidence", "grid")

    assert fleet.ok(*grid, "show", "grid.yaml", "--json").json["state"] == "DRAFT"
    assert fleet(*grid, "start", "g").code == 1
    frozen = fleet.ok(*grid, "freeze", "grid.yaml", "--json").json
    assert (frozen["state"], frozen["result"], frozen["cells"]) == ("FROZEN", "done", 2)
    assert fleet.ok(*grid, "freeze", "grid.yaml", "--json").json["result"] == "already"
    assert fleet.ok(*grid, "start", "g", "--json").json["state"] == "RUNNING"
    _append(fleet, "full", 0, 0.5, name="g")
    called = fleet(*grid, "complete", "g", "--json")
    assert (called.code, called.json["missing_cells"]) == (1, ["full/1"])
    assert fleet("evidence", "gate", "gate.yaml").code == 1

    _append(fleet, "full", 1, 0.5, "--grid-sha256", frozen["grid_sha256"], name="g")
    assert fleet.ok(*grid, "complete", "g", "--json").json["state"] == "COMPLETE"
    assert fleet(*grid, "release", "g", "--gate", "out").code == 7
    gate = fleet.ok("evidence", "gate", "gate.yaml", "--json").json
    assert (gate["passed"], gate["kept"]) == (True, True)
    assert [each["verdict"] for each in gate["predicates"]] == ["yes", "yes"]
    released = fleet.ok(*grid, "release", "g", "--gate", "out", "--json").json
    assert (released["state"], len(released["states"])) == ("RELEASED", 4)
    assert "2 of 2 cells" in fleet.ok(*grid, "show", "g").out


def test_a_script_that_was_edited_after_the_freeze_is_named_at_every_door(fleet: Fleet) -> None:
    Path("run.py").write_text("1")
    Path("grid.yaml").write_text(_GRID)
    Path("gate.yaml").write_text(_GATE)
    fleet.ok("evidence", "grid", "freeze", "grid.yaml")
    for seed in (0, 1):
        _append(fleet, "full", seed, 0.5, name="g")
    Path("run.py").write_text("2")

    appended = fleet("evidence", "append", "--set", "g", "--arm", "full", "--seed", "0")
    assert (appended.code, "run.py was edited" in appended.err) == (7, True)
    assert fleet("evidence", "grid", "complete", "g").code == 1
    called = fleet("evidence", "gate", "gate.yaml")
    assert (called.code, "run.py was edited" in called.out) == (1, True)
    assert "not asked metric" in called.out


def test_a_gate_says_unknown_with_7_and_keeps_nothing(fleet: Fleet) -> None:
    Path("gate.yaml").write_text("name: out\nmechanical:\n- {check: files, files: [gone]}\n")

    called = fleet("evidence", "gate", "gate.yaml", "--json")

    assert (called.code, called.json["passed"], called.json["kept"]) == (7, False, None)
    assert called.json["predicates"][0]["verdict"] == "unknown"
    assert not (fleet.root / "evidence" / "gates").exists()
    Path("gate.yaml").write_text("name: out\nmechanical:\n- {check: fils}\n")
    assert fleet("evidence", "gate", "gate.yaml").code == 3


def test_a_gate_needs_no_scratch_tree_where_it_asks_for_none(bare_fleet: Fleet) -> None:
    Path("here").write_text("x")
    Path("gate.yaml").write_text("name: out\nmechanical:\n- {check: files, files: [here]}\n")

    called = bare_fleet.bare("evidence", "gate", "gate.yaml", "--json")

    assert (called.code, called.json["passed"], called.json["kept"]) == (0, True, None)


def test_another_pass_under_a_name_is_not_replaced(fleet: Fleet) -> None:
    Path("here").write_text("x")
    Path("gate.yaml").write_text("name: out\nmechanical:\n- {check: files, files: [here]}\n")
    fleet.ok("evidence", "gate", "gate.yaml")
    fleet.ok("evidence", "gate", "gate.yaml")
    Path("here").write_text("y")

    called = fleet("evidence", "gate", "gate.yaml")

    assert (called.code, "another pass of 'out' is kept" in called.err) == (7, True)


def test_what_a_gate_can_ask_is_listed(fleet: Fleet) -> None:
    rows = fleet.ok("evidence", "gate", "--checks", "--json").json["checks"]
    assert {"grid_complete", "jobs_ended", "outputs"} <= {row["check"] for row in rows}
    assert "comparison: " in fleet.ok("evidence", "gate", "--checks").out
    assert fleet("evidence", "gate").code == 2


def test_a_gate_asks_telemetry_and_training_through_their_own_verifiers(fleet: Fleet) -> None:
    Path("w.json").write_text('{"schema_version": 99}')
    Path("gate.yaml").write_text(
        "name: out\nmechanical:\n- {check: window, file: w.json}\n"
        "- {check: training_end, run: wan-1}\n"
    )

    found = fleet("evidence", "gate", "gate.yaml", "--json").json["predicates"]

    assert [each["verdict"] for each in found] == ["unknown", "unknown"]
    assert "unverifiable" in found[0]["found"]
    assert "declares no end" in found[1]["found"]


def test_a_task_that_appends_leaves_the_whole_way_back_to_its_log(fleet: Fleet) -> None:
    call = f"{sys.executable} -m fleetcraft evidence append --set s --seed 1 --metric score=0.5"
    for arm in ("full", "cached"):
        fleet.ok("enqueue", "-n", arm, "--timed", f"echo x > {arm}.txt; {call} --arm {arm} "
                 f"--output {arm}.txt")  # fmt: skip
    done = fleet.process("run", "--workers", "1")
    assert done.returncode == 0, done.stderr

    results = fleet.ok("evidence", "results", "s", "--json").json["results"]

    assert [each["producer"]["task"] for each in results] == ["cached", "full"]
    assert all(each["timed"] for each in results)
    identity = Spool(str(fleet.spool)).show("full").record.identity
    [full] = [each for each in results if each["arm"] == "full"]
    assert full["command_identity"] == identity
    assert (full["producer"]["attempt"], full["producer"]["spool"]) == (1, "taskq")
    fleet.ok("evidence", "compare", "full", "cached", "--metric", "score", "-o", "c.json")
    Path("gate.yaml").write_text(
        "name: out\nmechanical:\n- {check: tasks_done, tasks: [full, cached]}\n"
        "- {check: outputs, set: s}\n- {check: none_failed}\n"
    )
    assert fleet.ok("evidence", "gate", "gate.yaml").out.startswith("gate out passes")
    assert fleet("evidence", "trace", "c.json").code == 0


@pytest.mark.parametrize("name", ["append", "results", "compare", "grid", "gate"])
def test_the_table_says_the_first_line_of_each_ones_help(fleet: Fleet, name: str) -> None:
    command = evidence_command.get_command(click.Context(evidence_command), name)
    assert command is not None
    assert (command.help or "").partition("\n")[0] == COMMANDS[name][1]
    out = fleet.bare("evidence", name, "--help").out
    assert "Examples:" in out
    assert f"fleetcraft evidence {name}" in out


def test_the_files_that_the_help_shows_can_be_read(fleet: Fleet) -> None:
    def shown(*words: str) -> str:
        block = fleet.bare("evidence", *words, "--help").out.split(".yaml:\n")[1]
        return "".join(line[2:] for line in block.partition("\n\n")[0].splitlines(keepends=True))

    for name in ("run.py", "score.py"):
        Path(name).write_text(name)
    Path("grid.yaml").write_text(shown("grid", "freeze"))
    Path("gate.yaml").write_text(shown("gate"))

    assert fleet.ok("evidence", "grid", "freeze", "grid.yaml", "--json").json["cells"] == 2000
    called = fleet("evidence", "gate", "gate.yaml", "--json")
    assert (called.code, len(called.json["predicates"])) == (7, 6)
