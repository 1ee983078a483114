"""``fleetcraft enqueue --family`` where a project requires a frozen batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fleetcraft.batch_table import make_table, write_table
from fleetcraft.layout import Scratch
from tests.batch_table.rows import ROW
from tests.cli.conftest import Fleet

FAMILIES = {"demo/tiny/8f": ROW, "wan": ROW}


@pytest.fixture
def strict(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """A project that requires a frozen row."""
    monkeypatch.setenv("FLEET_BATCH_REQUIRE", "true")
    return fleet


def table_of(fleet: Fleet) -> Path:
    path = Scratch(str(fleet.root)).batch_table
    write_table(path, make_table(FAMILIES))
    return Path(path)


def test_a_family_with_a_row_is_taken(strict: Fleet) -> None:
    table_of(strict)
    strict.ok("enqueue", "-n", "a", "--family", "wan", "true")
    strict.ok("enqueue", "-n", "b", "true")
    assert strict.ok("status", "--json").json["counts"]["pending"] == 2


def test_a_family_without_a_row_is_refused_with_the_next_command(strict: Fleet) -> None:
    table_of(strict)
    error = strict("enqueue", "-n", "a", "--family", "demo/tiny", "true", "--json").error
    assert (error["exit_code"], error["type"]) == (7, "BatchRefusedError")
    assert (error["facts"]["field"], error["facts"]["near"]) == ("family", ["demo/tiny/8f"])
    assert "nothing was enqueued" in error["message"]
    assert "fleetcraft calibrate run demo/tiny" in error["hint"].replace("'", "")
    assert "calibrate freeze" in error["hint"]
    assert strict.ok("status", "--json").json["counts"]["pending"] == 0


def test_without_any_table_nothing_of_a_family_is_taken(strict: Fleet) -> None:
    assert strict("enqueue", "-n", "a", "--family", "wan", "true").code == 7
    strict.ok("enqueue", "-n", "b", "true")


def test_an_edited_table_is_refused(strict: Fleet) -> None:
    path = table_of(strict)
    path.write_text(path.read_text().replace("batch: 4", "batch: 5"))
    error = strict("enqueue", "-n", "a", "--family", "wan", "true", "--json").error
    assert (error["exit_code"], error["facts"]["field"]) == (7, "hash")
    strict.ok("enqueue", "-n", "b", "true")


def test_a_project_that_requires_nothing_takes_any_family(fleet: Fleet) -> None:
    path = table_of(fleet)
    path.write_text("no table at all")
    fleet.ok("enqueue", "-n", "a", "--family", "unknown", "true")


def test_one_row_of_many_without_a_frozen_family_publishes_none(
    strict: Fleet, tmp_path: Path
) -> None:
    table_of(strict)
    rows = [{"name": f"t{n}", "command": "true", "family": "wan"} for n in range(3)]
    rows.append({"name": "last", "command": "true", "family": "wam"})
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words in ([], ["--dry-run"]):
        called = strict("enqueue", "--from", str(source), *words)
        assert called.code == 7
        assert "'last'" in called.err
    assert strict.ok("status", "--json").json["counts"]["pending"] == 0
    source.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    strict.ok("enqueue", "--from", str(source), "--dry-run")
    strict.ok("enqueue", "--from", str(source))


def test_a_sweep_may_take_its_family_from_a_column(strict: Fleet, tmp_path: Path) -> None:
    table_of(strict)
    source = tmp_path / "sweep.csv"
    words = ["enqueue", "--from", str(source), "-n", "s{n}", "--family", "{kind}", "true"]
    source.write_text("kind\nwan\ndemo/tiny/8f\nnone\n")
    assert strict(*words).code == 7
    source.write_text("kind\nwan\ndemo/tiny/8f\n")
    strict.ok(*words)


@pytest.mark.parametrize("name", ["FLEET_BATCH", "FLEET_BATCH_TABLE", "FLEET_BATCH_HASH"])
def test_an_env_file_that_sets_a_batch_is_refused(fleet: Fleet, tmp_path: Path, name: str) -> None:
    given = tmp_path / "task.env"
    given.write_text(f"A=1\nexport {name}=8\n")
    given.chmod(0o600)
    words = ["enqueue", "-n", "a", "--env-file", str(given), "true"]
    error = fleet(*words, "--json").error
    assert (error["exit_code"], error["facts"]["field"]) == (7, "batch")
    assert name in error["message"]
    given.write_text("A=1\n")
    fleet.ok(*words)


def test_an_env_file_that_is_yet_to_be_made_is_taken(fleet: Fleet, tmp_path: Path) -> None:
    fleet.ok("enqueue", "-n", "a", "--env-file", str(tmp_path / "later.env"), "true")


def test_a_task_without_a_family_loads_neither_yaml_nor_the_table(
    strict: Fleet, tmp_path: Path
) -> None:
    import subprocess

    table_of(strict)
    told = (
        "import sys; from fleetcraft.cli.main import main\n"
        "sys.argv[0] = 'fleetcraft'\n"
        "code = main()\n"
        "print(code or 0, 'yaml' in sys.modules, 'fleetcraft.batch_table' in sys.modules)"
    )
    for words, loaded in ((["true"], "False False"), (["--family", "wan", "true"], "True True")):
        name = f"task{len(words)}"
        call = ["--root", str(strict.root), "enqueue", "-n", name, *words]
        done = subprocess.run(
            [sys.executable, "-c", told, *call],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        assert done.stdout.splitlines()[-1] == f"0 {loaded}"
