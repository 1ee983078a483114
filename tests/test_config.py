"""Where settings come from, and what is said when one is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft.config import Config, load
from fleetcraft.errors import ConfigError, UsageError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write(project: Path, text: str) -> Path:
    path = project / "fleet.yaml"
    path.write_text(text)
    return path


def refused(environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load({}, environ or {})
    assert caught.value.exit_code == 3
    return caught.value


def test_every_layer_wins_over_the_next(project: Path) -> None:
    (project / "site.yaml").write_text("worker:\n  slots: 2\n")
    write(project, "site: site.yaml\nworker:\n  slots: 3\n")
    environ = {"FLEET_WORKER_SLOTS": "4"}

    assert load({"worker.slots": "5"}, environ).text("worker.slots") == "5"
    assert load({}, environ).text("worker.slots") == "4"
    assert load({}, {}).text("worker.slots") == "3"
    write(project, "site: site.yaml\n")
    assert load({}, {}).text("worker.slots") == "2"
    write(project, "")
    assert load({}, {}).text("worker.slots") == "1"


def test_every_value_knows_where_it_came_from(project: Path) -> None:
    (project / "site.yaml").write_text("worker:\n  slots: 2\n")
    path = write(project, "site: site.yaml\nworker:\n  idle_s: 60\n")
    values = load({"root": "/r"}, {"PROJECT": str(project), "FLEET_WORKER_GRACE_S": "1"}).values

    assert values["root"].source == "--root"
    assert values["project_dir"].source == "environment PROJECT"
    assert values["worker.grace_s"].source == "environment FLEET_WORKER_GRACE_S"
    assert values["worker.idle_s"].source == f"{path}:3"
    assert values["worker.slots"].source == f"site profile {project / 'site.yaml'}:2"
    assert values["worker.heartbeat_s"].source == "default"
    assert values["spool.dir"].source == "derived from root"


@pytest.mark.parametrize(
    ("variable", "text", "setting", "value"),
    [
        ("PROJECT_SCRATCH", "/r", "root", "/r"),
        ("FLEET_ROOT", "/r", "root", "/r"),
        ("SPOOL_DIR", "/r/q", "spool.dir", "/r/q"),
        ("GPU_SPOOL_DIR", "/r/g", "spool.gpu_dir", "/r/g"),
        ("FLEET_SPOOL_GPU_DIR", "/r/g", "spool.gpu_dir", "/r/g"),
        ("MAX_IDLE_MIN", "2.5", "worker.idle_s", 150.0),
        ("FLEET_WORKER_IDLE_S", "90", "worker.idle_s", 90.0),
        ("FLEET_WORKER_IDLE_S", "00:30:00", "worker.idle_s", 1800.0),
        ("FLEET_WORKER_NODE_FAILURES", "3", "worker.node_failures", 3),
        ("FLEET_WORKER_SLOTS", "gpu", "worker.slots", "gpu"),
    ],
)
def test_a_variable_sets_its_setting(
    project: Path, variable: str, text: str, setting: str, value: object
) -> None:
    assert load({}, {variable: text}).values[setting].value == value


def test_the_full_name_of_a_variable_wins_over_the_short_one(project: Path) -> None:
    config = load({}, {"MAX_IDLE_MIN": "1", "FLEET_WORKER_IDLE_S": "5", "PROJECT_SCRATCH": "/a"})
    assert config.seconds("worker.idle_s") == 5
    assert load({}, {"PROJECT_SCRATCH": "/a", "FLEET_ROOT": "/b"}).root == "/b"


def test_an_empty_variable_is_an_unset_one(project: Path) -> None:
    assert load({}, {"MAX_IDLE_MIN": "", "PROJECT": ""}).seconds("worker.idle_s") == 1800


def test_without_a_root_the_parent_of_a_spool_is_it(project: Path) -> None:
    assert load({}, {"SPOOL_DIR": "/s/me/q"}).root == "/s/me"
    assert load({}, {"GPU_SPOOL_DIR": "/s/me/g"}).spool_dir("gpu") == "/s/me/g"
    assert load({}, {"GPU_SPOOL_DIR": "/s/me/g"}).spool_dir() == "/s/me/taskq"


def test_a_root_given_as_a_flag_means_its_own_spools(project: Path) -> None:
    write(project, "spool:\n  gpu_dir: /elsewhere/g\n")
    config = load({"root": "/r"}, {"SPOOL_DIR": "/x/q", "FLEET_SPOOL": "/y/q", "FLEET_ROOT": "/y"})
    assert config.spool_dir() == "/r/taskq"
    assert config.spool_dir("outer") == "/r/taskq"
    assert config.spool_dir("gpu") == "/r/taskq_gpu"


def test_inside_a_task_the_spool_is_that_of_the_task(project: Path) -> None:
    environ = {"FLEET_ROOT": "/r", "FLEET_SPOOL": "/r/taskq_gpu", "SPOOL_DIR": "/r/taskq"}
    config = load({}, environ)
    assert config.spool_dir() == "/r/taskq_gpu"
    assert config.spool_dir("outer") == "/r/taskq"
    assert config.spool_dir("gpu") == "/r/taskq_gpu"


def test_no_root_anywhere_says_what_to_do(project: Path) -> None:
    config = load({}, {})
    with pytest.raises(ConfigError, match="nothing says where the scratch tree is") as caught:
        config.spool_dir()
    assert "fleetcraft --root DIR init" in caught.value.hint


def test_paths_of_a_file_are_relative_to_the_file_and_others_to_the_current_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, "root: ../scratch\n")
    monkeypatch.chdir(tmp_path)
    assert load({"project_dir": "project"}, {}).root == str(tmp_path / "scratch")
    assert load({"root": "other"}, {}).root == str(tmp_path / "other")


def test_a_path_may_name_the_home_folder_and_variables(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SOMEWHERE", "/big disk")
    write(project, "root: ~/fleet\nspool:\n  dir: $SOMEWHERE/q\n")
    config = load({}, {})
    assert (config.root, config.spool_dir()) == ("/home/me/fleet", "/big disk/q")
    write(project, "\nroot: ${NOT_SET_ANYWHERE}/x\n")
    assert "line 2: root is '${NOT_SET_ANYWHERE}/x', which names a variable" in refused().message


def test_an_unknown_key_is_named_with_its_line_and_a_near_one(project: Path) -> None:
    path = write(project, "root: /r\nworker:\n  slots: 2\n  idle: 60\n")
    error = refused()
    assert error.message == f"{path} line 4: unknown setting 'worker.idle'"
    assert error.hint == "did you mean 'worker.idle_s'?"
    assert (error.line, error.key, error.path) == (4, "worker.idle", str(path))


def test_a_key_like_no_other_lists_those_that_there_are(project: Path) -> None:
    write(project, "zzz: 1\n")
    assert "known: root, site, spool.dir" in refused().hint


def test_a_setting_outside_its_section_is_found_for_the_user(project: Path) -> None:
    write(project, "idle_s: 5\n")
    assert refused().hint == "did you mean 'worker.idle_s'?"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("idle_s: soon", "the text 'soon'"),
        ("idle_s: [1]", "a list"),
        ("idle_s: {a: 1}", "a mapping"),
        ("idle_s:", "nothing"),
        ("idle_s: true", "the true"),
        ("idle_s: -1", "the number -1"),
        ("idle_s: .nan", "the number .nan"),
        ("idle_s: .inf", "the number .inf"),
        ("heartbeat_s: 0", "the number 0"),
        ("node_failures: 2.5", "the number 2.5"),
        ("node_failures: 0", "the number 0"),
        ("slots: many", "the text 'many'"),
        ("slots: 0", "the number 0"),
    ],
)
def test_a_wrong_value_names_line_found_and_expected(project: Path, line: str, found: str) -> None:
    path = write(project, f"worker:\n  {line}\n")
    error = refused()
    key = f"worker.{line.partition(':')[0]}"
    assert error.message.startswith(f"{path} line 2: {key} is {found}, expected ")
    assert (error.key, error.line, error.found) == (key, 2, found)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90.5", 90.5),
        ("90s", 90),
        ("00:30:00", 1800),
        ("1:30:00", 5400),
        ("1_000", 1000),
    ],
)
def test_seconds_may_be_written_as_a_duration(project: Path, text: str, seconds: float) -> None:
    write(project, f"worker:\n  idle_s: {text}\n")
    assert load({}, {}).seconds("worker.idle_s") == seconds


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("root: /a\nroot: /b\n", "line 2: 'root' stands twice, first in line 1"),
        ("worker: {slots: 1}\nworker: {slots: 2}\n", "line 2: 'worker' stands twice"),
        ("worker: {slots: 1}\nworker.slots: 2\n", "line 2: 'worker.slots' stands twice"),
        ("- root\n", "line 1: the file is a list, expected 'key: value' lines"),
        ("worker: 5\n", "line 1: worker is the number 5, expected 'key: value' lines"),
        ("root: !!python/name:os.system\n", "line 1: root has a tag"),
        ("root: !env HOME\n", "line 1: root has a tag (!env)"),
        ("? [a]\n: 1\n", "line 1: a key is a list"),
        ("root: /a\n  bad: [\n", "line 2: not YAML"),
        ("root: /a\n---\nroot: /b\n", "line 2: not YAML"),
        ("root: \t@x\n", "line 1: not YAML"),
        ("<<: {root: /a}\n", "line 1: unknown setting '<<'"),
        ("root: 5\n", "line 1: root is the number 5, expected a path"),
        ("root: ~\n", "line 1: root is nothing, expected a path"),
        ("project_dir: /a\n", "line 1: 'project_dir' cannot be set here"),
        ("spool: {of_task: /a}\n", "line 1: 'spool.of_task' cannot be set here"),
        ("[" * 1000, "line 1: not YAML"),
        ("# " + "x" * (1 << 20), "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_wrong_says_where(project: Path, text: str, problem: str) -> None:
    write(project, text)
    assert problem in refused().message


def test_bytes_that_are_no_text_are_named_by_their_line(project: Path) -> None:
    (project / "fleet.yaml").write_bytes(b"root: /a\n# caf\xe9\n")
    assert "line 2: not UTF-8 text" in refused().message


def test_a_settings_file_that_cannot_be_read_is_an_error(project: Path) -> None:
    (project / "fleet.yaml").mkdir()
    assert "cannot read" in refused().message
    (project / "fleet.yaml").rmdir()
    (project / "fleet.yaml").symlink_to("nowhere")
    assert "cannot read" in refused().message


def test_a_settings_file_that_is_a_pipe_holds_nobody(project: Path) -> None:
    os.mkfifo(project / "fleet.yaml")
    with pytest.raises(ConfigError, match="it is no regular file"):
        load({}, {})


def test_a_file_of_comments_and_empty_sections_sets_nothing(project: Path) -> None:
    write(project, "# all is default\nworker:\n#  slots: 2\n")
    assert load({}, {}).text("worker.slots") == "1"


def test_a_project_folder_that_is_not_there_is_an_error(project: Path) -> None:
    with pytest.raises(ConfigError, match="no project directory at '/nowhere'"):
        load({"project_dir": "/nowhere"}, {})


def test_a_variable_with_a_wrong_value_is_named(project: Path) -> None:
    assert refused({"MAX_IDLE_MIN": "soon"}).message.startswith("MAX_IDLE_MIN: worker.idle_s is")


def test_a_flag_with_a_wrong_value_is_a_usage_error(project: Path) -> None:
    with pytest.raises(UsageError, match="--idle: worker.idle_s is 'soon', expected seconds"):
        load({"worker.idle_s": "soon"}, {})
    with pytest.raises(UsageError, match="--slots"):
        load({"worker.slots": "-1"}, {})


def test_a_site_is_a_path_or_a_name_that_exists(project: Path) -> None:
    assert "no site profile 'atlantis'" in refused({"FLEET_SITE": "atlantis"}).message
    assert "does not exist" in refused({"FLEET_SITE": "./atlantis.yaml"}).message
    (project / "here.yaml").write_text("site: other\n")
    assert "'site' cannot be set here: a profile" in refused({"FLEET_SITE": "here.yaml"}).message


def test_a_site_profile_in_infra_is_found_by_its_name(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetcraft.config import yaml_file

    (tmp_path / "vista.yaml").write_text("worker:\n  slots: gpu\n")
    monkeypatch.setattr(yaml_file, "_sites_folder", lambda: str(tmp_path))
    assert load({}, {"FLEET_SITE": "vista"}).text("worker.slots") == "gpu"
    assert refused({"FLEET_SITE": "vysta"}).hint == "did you mean 'vista'?"


def test_yaml_is_loaded_only_where_there_is_a_file(project: Path) -> None:
    code = "import sys; from fleetcraft.config import load; load({}); print('yaml' in sys.modules)"
    repo = Path(__file__).resolve().parents[1]

    def loaded() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(repo)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert loaded() == "False"
    write(project, "root: /r\n")
    assert loaded() == "True"


def test_the_current_folder_is_the_project_unless_one_is_named(project: Path) -> None:
    config: Config = load({}, {})
    assert config.project_dir == str(project)


# -- what is on or off


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("yes", True), ("1", True), ("TRUE", True), ("Yes", True),
        ("false", False), ("no", False), ("0", False), ("No", False),
    ],
)  # fmt: skip
def test_a_flag_is_said_alike_in_a_file_and_in_a_variable(
    project: Path, text: str, value: bool
) -> None:
    assert load({}, {"FLEET_BATCH_REQUIRE": text}).flag("batch.require") is value
    write(project, f"batch:\n  require: {text}\n")
    assert load({}, {}).flag("batch.require") is value


@pytest.mark.parametrize("text", ["maybe", "2", "on", "off", "1.0", "truth", "null", "[]"])
def test_anything_else_is_no_flag(project: Path, text: str) -> None:
    assert "expected true or false" in refused({"FLEET_BATCH_REQUIRE": text}).message
    path = write(project, f"batch:\n  require: {text}\n")
    error = refused()
    assert f"{path} line 2: batch.require is" in error.message
    assert "expected true or false" in error.message


def test_a_quoted_word_is_no_flag_in_a_file(project: Path) -> None:
    write(project, 'batch:\n  require: "true"\n')
    assert "the text 'true', expected true or false" in refused().message


def test_a_flag_in_a_file_can_be_turned_off_by_a_variable(project: Path) -> None:
    write(project, "batch:\n  require: true\n")
    config = load({}, {"FLEET_BATCH_REQUIRE": "no"})
    assert config.flag("batch.require") is False
    assert config.values["batch.require"].source == "environment FLEET_BATCH_REQUIRE"
    assert load({}, {"FLEET_BATCH_REQUIRE": ""}).flag("batch.require") is True


def test_the_batch_table_is_in_the_tree_unless_something_else_is_said(project: Path) -> None:
    derived = "/r/calibration/batch-table.yaml"
    assert load({"root": "/r"}, {}).text("batch.table") == derived
    assert load({"root": "/r"}, {"FLEET_BATCH_TABLE": "/x/t.yaml"}).text("batch.table") == derived
    assert load({}, {"FLEET_ROOT": "/r", "FLEET_BATCH_TABLE": "/t"}).text("batch.table") == "/t"
    write(project, "root: /r\nbatch:\n  table: tables/mine.yaml\n  python: venv/bin/python\n")
    config = load({}, {})
    assert config.text("batch.table") == str(project / "tables/mine.yaml")
    assert config.text("batch.python") == str(project / "venv/bin/python")
    assert config.flag("batch.require") is False
