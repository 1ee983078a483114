"""The run file: what it takes, and what it refuses with its line."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.errors import ConfigError, UsageError
from fleetcraft.training.plan.records import Budget, RunPlan
from fleetcraft.training.plan.run_file import least_grace_s, plan_of_command, read_run_file
from fleetcraft.training.records import Knob

WHOLE = """\
run: drafter
command: [torchrun, --nproc-per-node, 8, train.py]
environment:
  OMP_NUM_THREADS: 1
directory: src
nodes: 6
gpus_per_node: 1
world_size: 6
grace_s: 90
inner_grace_s: 30s
warmup_s: 3m
verify_steps: 8
verify_save: true
look_s: 500ms
phases:
  load: 20m
  mining: 1h
progress:
  tokens_per_step: 32768
  accumulation: 4
  tokens_per_s: 21.5e+3
  stall_factor: 4
  stall_least_s: 00:02:00
  queues: [q_pre, q_hs]
ladder:
  shares_device_memory: true
  factor: 0.5
  knobs:
    - {name: max_anchors, value: 1024, floor: 256, quantum: 64, variable: MAX_ANCHORS}
    - {name: micro-batch, value: 4, floor: 1}
protected: [block_size]
budgets:
  total: {restarts: 5, within_s: 2h}
  classes: {CUDA_OOM: 6}
  each: 2
  backoff_s: [0, 10s]
data:
  samples: 1_095_082
  mean_length: 2826.0
  digest: sha256:ab
packages: [sglang, flashinfer]
built:
  shard_group_size: 6
  activation_checkpointing: {policy: true, critic: true}
checkpoints: out/ckpt
end:
  step: 37
  kind: EXACT
  payload: [final/model.bin]
"""


def write(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text)
    return str(path)


def refusal(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_run_file(write(folder, text))
    assert caught.value.exit_code == 3
    return caught.value


def minimal(extra: str) -> str:
    return f"run: a\ncommand: python train.py\n{extra}\n"


def test_every_key_of_a_run_file_reaches_the_plan(tmp_path: Path) -> None:
    plan = read_run_file(write(tmp_path, WHOLE))

    assert plan.run == "drafter"
    assert plan.command == ("torchrun", "--nproc-per-node", "8", "train.py")
    assert plan.environment == {"OMP_NUM_THREADS": "1"}
    assert plan.directory == str(tmp_path / "src")
    assert plan.checkpoints == str(tmp_path / "out/ckpt")
    assert (plan.nodes, plan.gpus_per_node, plan.world_size) == (6, 1, 6)
    assert (plan.grace_s, plan.inner_grace_s, plan.warmup_s) == (90, 30, 180)
    assert (plan.verify_steps, plan.verify_save, plan.look_s) == (8, True, 0.5)
    assert plan.progress.tokens_per_s == 21_500
    assert plan.progress.stall_least_s == 120
    assert plan.progress.queues == ("q_pre", "q_hs")
    assert plan.ladder.shares_device_memory
    assert plan.ladder.factor == 0.5
    assert plan.budgets.total == Budget(restarts=5, within_s=7200)
    assert plan.budgets.classes == {"CUDA_OOM": 6}
    assert plan.budgets.backoff_s == (0, 10)
    assert plan.data == {"samples": 1_095_082, "mean_length": 2826.0, "digest": "sha256:ab"}
    assert plan.built.activation_checkpointing == {"policy": True, "critic": True}
    assert plan.end is not None
    assert (plan.end.step, plan.end.payload) == (37, ("final/model.bin",))


def test_declared_phases_and_protected_names_come_on_top_of_the_defaults(tmp_path: Path) -> None:
    plan = read_run_file(write(tmp_path, WHOLE))

    default = RunPlan(run="", command=())
    assert plan.phases == {**default.phases, "load": 1200, "mining": 3600}
    assert plan.protected == (*default.protected, "block_size")


def test_a_knob_without_a_variable_gets_one_of_its_own(tmp_path: Path) -> None:
    plan = read_run_file(write(tmp_path, WHOLE))

    assert plan.ladder.knobs == (
        Knob(name="max_anchors", value=1024, floor=256, quantum=64, variable="MAX_ANCHORS"),
        Knob(name="micro-batch", value=4, floor=1, variable="FLEET_KNOB_MICRO_BATCH"),
    )


def test_what_is_not_declared_keeps_the_defaults_of_the_records(tmp_path: Path) -> None:
    plan = read_run_file(write(tmp_path, "run: a\ncommand: python 'my train.py'\nladder:\n"))

    assert plan == RunPlan(
        run="a", command=("python", "my train.py"), directory=str(tmp_path), phases=plan.phases
    )


@pytest.mark.parametrize(
    ("extra", "line", "words"),
    [
        ("warmup: 3m", 3, "unknown key 'warmup'"),
        ("progress:\n  tokens_per_stp: 1", 4, "unknown key 'progress.tokens_per_stp'"),
        ("nodes: 0", 3, "nodes is 0, expected a whole number, 1 or more"),
        ("nodes: '2'", 3, "nodes is the text '2'"),
        ("nodes: true", 3, "nodes is true"),
        ("nodes: 1_0x", 3, "nodes is the text"),
        ("verify_save: 1", 3, "expected true or false"),
        ("warmup_s: -3", 3, "warmup_s is -3, expected seconds"),
        ("warmup_s: .nan", 3, "warmup_s is .nan"),
        ("warmup_s: .inf", 3, "warmup_s is .inf"),
        ("look_s: 0", 3, "look_s is 0"),
        ("nodes: 010", 3, "nodes is 010"),
        ("progress: {tokens_per_s: '1e5'}", 3, "progress.tokens_per_s is the text '1e5'"),
        ("progress: {tokens_per_s: 1:30}", 3, "progress.tokens_per_s is 1:30"),
        ('directory: "a\\0b"', 3, "which is no text"),
        ('data: {"\\ud800": 1}', 3, "which is no text"),
        ("phases: {load: soon}", 3, "phases.load is the text 'soon'"),
        ("phases: {'a b': 3}", 3, "'a b' cannot be a name"),
        ("budgets:\n  classes: {OOM: 3}", 4, "unknown key 'budgets.classes.OOM'"),
        ("budgets: {total: {within_s: 3}}", 3, "budgets.total has no 'restarts'"),
        ("ladder: {factor: 1.0}", 3, "ladder.factor is 1.0"),
        ("ladder:\n  knobs:\n    - {name: k, value: 3}", 5, "ladder.knobs[1] has no 'floor'"),
        ("ladder: {knobs: [{name: k, value: 3, floor: 4}]}", 3, "floor 4 is above its value 3"),
        (
            "ladder: {knobs: [{name: k, value: 1000, floor: 64, quantum: 64}]}",
            3,
            "value 1000 is no multiple of its quantum 64",
        ),
        (
            "ladder: {knobs: [{name: k, value: 1024, floor: 100, quantum: 64}]}",
            3,
            "floor 100 is no multiple of its quantum 64",
        ),
        (
            "ladder: {knobs: [{name: k, value: 3, floor: 1}, {name: k, value: 3, floor: 1}]}",
            3,
            "has the name or the variable of another",
        ),
        (
            "ladder: {knobs: [{name: k, value: 3, floor: 1, variable: FLEET_RUN}]}",
            3,
            "FLEET_RUN is set by fleetcraft itself",
        ),
        (
            "ladder: {knobs: [{name: k, value: 3, floor: 1, variable: PYTORCH_ALLOC_CONF}]}",
            3,
            "PYTORCH_ALLOC_CONF is set by fleetcraft itself",
        ),
        ("environment: {FLEET_EPOCH: 3}", 3, "FLEET_EPOCH is set by fleetcraft itself"),
        ("environment: {'a-b': 3}", 3, "'a-b' cannot be the name of a variable"),
        ("end: {kind: exact}", 3, "expected EXACT, WEIGHTS"),
        ("end: {task: ../x}", 3, "cannot be the name of a task"),
        ("end: {kind: WEIGHTS}", 3, "declares neither step nor payload"),
        ("data:\n  a: 1\n  b: \a", 5, "the character #x07 cannot stand here"),
        ("end: {payload: [../x]}", 3, "'../x' is not a path inside the run's folder"),
        ("checkpoints: $NOT_SET_ANYWHERE/x", 3, "names a variable that is not set"),
        ("nodes: 1\nnodes: 2", 4, "'nodes' stands twice, first in line 3"),
        ("nodes: !!python/object:os.x {}", 3, "has a tag"),
        ("nodes: [1", 4, "not YAML"),
        ("grace_s: 30", 3, "grace_s is 30 s, and the command's inner grace is 30 s"),
        ("inner_grace_s: 56", 3, "must be 61 s or more"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(
    tmp_path: Path, extra: str, line: int, words: str
) -> None:
    error = refusal(tmp_path, minimal(extra))

    assert error.line == line, error.message
    assert f"run.yaml line {line}: " in error.message
    assert words in error.message


@pytest.mark.parametrize("name", ["world_size", "WORLD-SIZE", "global_batch", "token_budget"])
def test_a_protected_setting_is_no_knob(tmp_path: Path, name: str) -> None:
    error = refusal(tmp_path, minimal(f"ladder: {{knobs: [{{name: {name}, value: 8, floor: 1}}]}}"))

    assert "protected setting" in error.message


def test_a_protected_setting_is_no_knob_by_its_variable_either(tmp_path: Path) -> None:
    error = refusal(
        tmp_path,
        minimal("ladder: {knobs: [{name: w, value: 8, floor: 1, variable: WORLD_SIZE}]}"),
    )

    assert "protected setting 'world_size'" in error.message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 2), ("1.5s", 1.5), ("250ms", 0.25), ("1.5h", 5400), ("1-00:00:00", 86400),
     ("1:30", 90), ("1_000", 1000), ("1e2", 100), ("'3m'", 180)],
)  # fmt: skip
def test_times_are_seconds_or_durations(tmp_path: Path, text: str, seconds: float) -> None:
    assert read_run_file(write(tmp_path, minimal(f"look_s: {text}"))).look_s == seconds


def test_a_number_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    plan = read_run_file(write(tmp_path, minimal("progress: {tokens_per_s: 1e5}")))

    assert plan.progress.tokens_per_s == 100_000


def test_an_empty_word_of_a_command_is_kept(tmp_path: Path) -> None:
    plan = read_run_file(write(tmp_path, "run: a\ncommand: [x, '', 1]\n"))

    assert plan.command == ("x", "", "1")


@pytest.mark.parametrize(
    ("extra", "near"),
    [("budgets: {classes: {cuda_oom: 1}}", "CUDA_OOM"), ("end: {step: 1, kind: exact}", "EXACT")],
)
def test_a_name_in_other_capitals_is_suggested(tmp_path: Path, extra: str, near: str) -> None:
    assert refusal(tmp_path, minimal(extra)).hint == f"did you mean {near!r}?"


def test_text_that_is_nested_without_end_is_said_to_be_so(tmp_path: Path) -> None:
    error = refusal(tmp_path, minimal(f"data: {'[' * 1200}"))
    assert "nested too deeply" in error.message
    assert "\n" not in error.message


def test_a_near_name_is_suggested(tmp_path: Path) -> None:
    assert refusal(tmp_path, minimal("warmup: 3")).hint == "did you mean 'warmup_s'?"
    assert refusal(tmp_path, minimal("comand: x")).hint == "did you mean 'command'?"
    assert "known here: total" in refusal(tmp_path, minimal("budgets: {zzz: 1}")).hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("- a", "the file is a list"),
        ("run: a", "the key 'command' is missing"),
        ("command: x", "the key 'run' is missing"),
        ("run: a b\ncommand: x", "run is 'a b': names are"),
        ("run: a\ncommand: []", "the command names no program"),
        ('run: a\ncommand: "x \'y"', "cannot be split into words"),
        ("run: a\ncommand: ['', x]", "the command names no program"),
        ("run: ../a\ncommand: x", "names are"),
    ],
)
def test_a_file_without_what_a_run_needs_is_refused(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, text).message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read .*nowhere.yaml: No such file"):
        read_run_file(tmp_path / "nowhere.yaml")


@given(st.text(max_size=300))
def test_no_text_makes_the_reader_fail_otherwise_than_by_its_own_error(text: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", errors="surrogateescape") as file:
        file.write(text.encode("utf-8", "replace").decode())
        file.flush()
        with pytest.raises(ConfigError):
            read_run_file(file.name)


@given(
    st.dictionaries(
        st.sampled_from(["nodes", "look_s", "phases", "ladder", "budgets", "end", "data", "built"]),
        st.recursive(
            st.one_of(
                st.none(), st.booleans(), st.integers(-5, 10**20), st.floats(), st.text("ab~")
            ),
            lambda inner: st.one_of(
                st.lists(inner, max_size=2),
                st.dictionaries(
                    st.sampled_from(["knobs", "total", "step", "x"]), inner, max_size=2
                ),
            ),
            max_leaves=4,
        ),
        max_size=3,
    )
)
def test_any_shape_of_values_is_a_plan_or_a_refusal(values: dict[str, object]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"run": "a", "command": "x", **values}, file)
        file.flush()
        with contextlib.suppress(ConfigError):
            plan = read_run_file(file.name)
            assert plan.nodes >= 1
            assert plan.look_s > 0


def test_the_outer_grace_is_longer_than_the_inner_by_a_margin() -> None:
    assert least_grace_s(30.0) == 33.0
    assert least_grace_s(0.0) == 0.0


def test_a_command_alone_is_a_plan_with_defaults() -> None:
    plan = plan_of_command(["torchrun", "train.py"], run="quick")

    assert plan == RunPlan(run="quick", command=("torchrun", "train.py"), directory=os.getcwd())


def test_a_command_alone_needs_words_and_a_name() -> None:
    with pytest.raises(UsageError, match="no command"):
        plan_of_command([], run="quick")
    with pytest.raises(UsageError, match="bad run name"):
        plan_of_command(["x"], run="a/b")
