"""``fleetcraft init`` and ``fleetcraft config show``."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
import yaml

from fleetcraft.config import SETTINGS, load
from tests.cli.conftest import Fleet


def test_init_makes_both_spools_private_and_nothing_else(bare_fleet: Fleet, tmp_path: Path) -> None:
    called = bare_fleet.ok("init")
    assert [path.name for path in tmp_path.iterdir()] == [bare_fleet.root.name]
    assert sorted(path.name for path in bare_fleet.root.iterdir()) == ["taskq", "taskq_gpu"]
    for path in (bare_fleet.root, *bare_fleet.root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert path.is_dir()
    assert "enqueue -n hello 'echo hello'" in called.out.splitlines()[-1]


def test_init_again_changes_nothing_and_says_so(fleet: Fleet) -> None:
    fleet.ok("enqueue", "-n", "a", "true")
    called = fleet.ok("init")
    assert "was there already" in called.out
    assert fleet.ok("init", "--json").json["made"] == []
    assert fleet.names() == ["a"]


def test_init_tells_what_it_made_as_json(bare_fleet: Fleet) -> None:
    value = bare_fleet.ok("init", "--json").json
    assert value["schema"] == "fleetcraft.init/1"
    assert (value["root"], value["spool"]) == (str(bare_fleet.root), str(bare_fleet.spool))
    assert str(bare_fleet.spool / "pending/first") in value["made"]
    assert value["hard_links"] is True


def test_a_settings_file_is_written_only_where_a_project_is_named(
    bare_fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("PROJECT", str(project))
    bare_fleet.ok("init")
    assert list(project.iterdir()) == []

    value = bare_fleet.ok("--project-dir", str(project), "init", "--json").json
    assert value["settings_file"] == str(project / "fleet.yaml")
    assert yaml.safe_load((project / "fleet.yaml").read_text()) == {"root": str(bare_fleet.root)}
    assert bare_fleet.bare("status").code == 0


def test_the_settings_that_init_writes_are_all_valid_once_uncommented(
    bare_fleet: Fleet, tmp_path: Path
) -> None:
    bare_fleet.ok("--project-dir", str(tmp_path), "init")
    path = tmp_path / "fleet.yaml"
    lines = path.read_text().splitlines()[2:]
    set_ones = [line for line in lines if not line.split("  # ")[0].rstrip().endswith(": #")]
    kept = [line.removeprefix("# ") for line in set_ones]
    without_default = [s.name for s in SETTINGS if s.default is None]
    unset = tuple(f"{name.rpartition('.')[2]}:" for name in without_default)
    path.write_text("\n".join(line for line in kept if not line.strip().startswith(unset)) + "\n")
    config = load({"project_dir": str(tmp_path)}, {})
    assert config.values["worker.idle_s"].source == f"{path}:{kept_line(path, 'idle_s')}"
    assert config.seconds("worker.idle_s") == 1800


def kept_line(path: Path, key: str) -> int:
    lines = path.read_text().splitlines()
    return 1 + next(n for n, line in enumerate(lines) if line.strip().startswith(key))


def test_a_settings_file_that_is_there_is_left_alone(bare_fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("# mine\n")
    value = bare_fleet.ok("--project-dir", str(tmp_path), "init", "--json").json
    assert value["settings_file"] is None
    assert (tmp_path / "fleet.yaml").read_text() == "# mine\n"


def test_a_root_that_is_a_file_is_refused(bare_fleet: Fleet) -> None:
    bare_fleet.root.write_text("")
    error = bare_fleet("init", "--json").error
    assert error["exit_code"] == 5
    assert "it is no folder" in error["message"]


def test_a_root_that_everybody_can_write_is_refused_and_nothing_is_made(
    bare_fleet: Fleet,
) -> None:
    bare_fleet.root.mkdir()
    bare_fleet.root.chmod(0o777)
    called = bare_fleet("init")
    assert called.code == 5
    assert "put another spool in its place" in called.err
    assert list(bare_fleet.root.iterdir()) == []


def test_init_without_a_root_is_a_configuration_error(bare_fleet: Fleet) -> None:
    called = bare_fleet.bare("init")
    assert called.code == 3
    assert "fleetcraft --root DIR init" in called.err


def test_config_show_tells_every_value_and_its_source(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_IDLE_MIN", "2")
    value = fleet.ok("config", "show", "--json").json
    assert value["schema"] == "fleetcraft.config/1"
    settings = {item["name"]: item for item in value["settings"]}
    assert settings["root"]["value"] == str(fleet.root)
    assert settings["root"]["source"] == "--root"
    assert settings["worker.idle_s"]["value"] == 120
    assert settings["worker.idle_s"]["environment"] == ["FLEET_WORKER_IDLE_S", "MAX_IDLE_MIN"]
    assert settings["worker.drain_margin_s"]["value"] is None
    text = fleet.ok("config", "show").out
    assert re.search(r"^worker\.idle_s +120 +environment MAX_IDLE_MIN$", text, re.MULTILINE)


def test_config_show_needs_no_root_and_names_what_is_wrong(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.bare("config", "show").code == 0
    (tmp_path / "fleet.yaml").write_text("rot: /a\n")
    error = fleet.bare("config", "show", "--json").error
    assert (error["exit_code"], error["facts"]["line"]) == (3, 1)
    assert error["hint"] == "did you mean 'root'?"
