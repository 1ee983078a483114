"""``calibrate check``: each question is answered ok, no or not at all; the exit code says which."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetcraft.calibration.records import Choice, Environment
from fleetcraft.cli.calibrate.asking import ask
from fleetcraft.errors import DeviceError
from fleetcraft.view.calibration_check import Answer, Line, check_shape, exit_code, render_check
from fleetcraft.view.text import Paint
from tests.cli.conftest import Called, Fleet
from tests.plots.made_calibration import (
    made_calibration,
    made_environment,
    made_trial,
    soaked,
    store_run,
)

Ask = Callable[..., Called]
_MINE = """
from fleetcraft.calibration import MaskCheck, family

print("a file may print")

def attend(ctx, query, key, value, keep):
    from torch.nn.functional import scaled_dot_product_attention
    mask = keep[:, None, None, :] if {heed} else None
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)

@family(key="my/family", identity={{"model": "{model}"}}, checks=(MaskCheck(attend=attend),))
def cycle(ctx, batch):
    pass
"""


@pytest.fixture(scope="module")
def here() -> Environment:
    """What this machine has, as the child sees it."""
    answers = ask(parts=["stack"], device="cpu")
    assert answers.environment is not None, answers.no_stack
    return answers.environment


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has the child answer with another stack and family, without loading torch."""

    def answer(environment: Environment, *families: dict[str, str]) -> None:
        said = tmp_path / "answers.json"
        value = {"device": "cpu", "environment": environment, "families": families}
        said.write_bytes(msgspec.json.encode(value))
        monkeypatch.setenv("FLEET_BATCH_PYTHON", python_that(tmp_path, f"cat '{said}'"))

    return answer


@pytest.fixture
def check(fleet: Fleet) -> Ask:
    def call(*words: str) -> Called:
        return fleet("calibrate", "check", "--device", "cpu", *words, "--json")

    return call


def freeze(fleet: Fleet, environment: Environment, **changes: Any) -> None:
    trial = soaked(made_trial(1, environment=environment))
    run = made_calibration(trial, choice=Choice(batch=1, reason="headroom"), **changes)
    store_run(fleet.root, run)
    fleet.ok("calibrate", "freeze")


def mine(folder: Path, *, heed: bool = True, model: str = "one") -> str:
    file = folder / "mine.py"
    file.write_text(_MINE.format(heed=heed, model=model))
    return f"{file}:cycle"


def identity_of(family: str) -> str:
    return ask(families=[family], parts=["identity"]).families[0].identity


def answers(called: Called) -> dict[tuple[str, str], str]:
    return {(line["part"], line["subject"]): line["answer"] for line in called.json["checks"]}


def line_of(called: Called, part: str) -> dict[str, Any]:
    (line,) = [line for line in called.json["checks"] if line["part"] == part]
    return dict(line)


# ----------------------------------------------------------------------------------------- torch


def test_without_a_table_it_says_so_and_checks_masks_and_noise_all_the_same(check: Ask) -> None:
    called = check()
    assert called.code == 0
    assert called.json["schema"] == "fleetcraft.calibrate_check/1"
    assert called.json["ok"] is True
    assert line_of(called, "table")["answer"] == "none"
    assert line_of(called, "noise")["answer"] == "ok"
    backends = [line for line in called.json["checks"] if line["part"] == "sdpa"]
    assert "math" in {line["subject"] for line in backends}
    assert {(line["answer"], line["measured"]) for line in backends} == {("ok", 0.0)}
    assert not {line["subject"] for line in backends} & set(called.json["not_usable"])


def test_a_family_that_drops_its_mask_is_answered_with_no(check: Ask, tmp_path: Path) -> None:
    bad = check(mine(tmp_path, heed=False), "--only", "family")
    assert (bad.code, answers(bad)) == (1, {("family", "my/family mask"): "no"})
    line = line_of(bad, "family")
    assert (line["answer"], line["class"]) == ("no", "mask_dropped")
    assert line["measured"] > 1


# ----------------------------------------------------------------------------------------- table


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"device": "NVIDIA GH200 480GB", "device_mem_mib": 97871.0}, "device.name"),
        ({"device_mem_mib": 97871.0}, "device.mem_mib"),
        ({"torch": "1.0"}, "stack.torch"),
        ({"sdpa": "cudnn"}, "stack.sdpa"),
        ({"sdpa": ""}, "stack.sdpa"),
        ({"alloc": "expandable_segments:True"}, "stack.alloc"),
    ],
)
def test_another_device_or_stack_is_answered_with_no_and_its_field(
    fleet: Fleet,
    check: Ask,
    elsewhere: Callable[..., None],
    changes: dict[str, Any],
    field: str,
) -> None:
    freeze(fleet, made_environment())
    elsewhere(made_environment(**changes))
    called = check("--only", "table")
    assert called.code == 1
    assert (line_of(called, "row")["answer"], line_of(called, "row")["field"]) == ("no", field)


def test_a_stack_that_is_not_known_could_not_be_compared(
    fleet: Fleet, check: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(fleet, made_environment())
    python = python_that(tmp_path, """echo '{"no_stack": "the driver is away"}'""")
    monkeypatch.setenv("FLEET_BATCH_PYTHON", python)
    called = check("--only", "table")
    assert called.code == 7
    assert line_of(called, "row")["answer"] == "could not be run"
    assert "the driver is away" in line_of(called, "row")["detail"]


def test_without_rows_the_table_alone_starts_no_child(
    fleet: Fleet, check: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_BATCH_PYTHON", str(tmp_path / "no-such-python"))
    assert check("--only", "table").code == 0
    freeze(fleet, made_environment())
    path = fleet.root / "calibration" / "batch-table.yaml"
    path.write_text(path.read_text().replace("headroom", "headrooM"))
    called = check("--only", "table")
    assert called.code == 7
    assert line_of(called, "table")["field"] == "hash"


def test_a_family_that_was_frozen_here_as_it_is_may_be_used(
    fleet: Fleet, check: Ask, here: Environment, tmp_path: Path
) -> None:
    family = mine(tmp_path)
    freeze(fleet, here, family="my/family", identity=identity_of(family))
    called = check(family, "--only", "table")
    assert called.code == 0
    assert answers(called)["row", "my/family"] == "ok"
    assert "identity not compared" not in line_of(called, "row")["detail"]


def test_the_identity_of_a_family_at_hand_is_compared(
    fleet: Fleet, check: Ask, elsewhere: Callable[..., None], tmp_path: Path
) -> None:
    family = mine(tmp_path)
    freeze(fleet, made_environment(), family="my/family", identity=identity_of(family))
    changed = identity_of(mine(tmp_path, model="two"))
    elsewhere(made_environment(), {"name": family, "key": "my/family", "identity": changed})
    called = check(family, "--only", "table")
    assert called.code == 1
    assert line_of(called, "row")["field"] == "identity"


def test_a_row_whose_family_is_not_at_hand_is_compared_but_for_its_identity(
    fleet: Fleet, check: Ask, elsewhere: Callable[..., None]
) -> None:
    freeze(fleet, made_environment())
    elsewhere(made_environment())
    called = check("--only", "table")
    assert called.code == 0
    assert "identity not compared" in line_of(called, "row")["detail"]


def test_a_family_without_a_row_is_answered_with_no(
    fleet: Fleet, check: Ask, elsewhere: Callable[..., None]
) -> None:
    elsewhere(made_environment())
    assert line_of(check("other/one", "--only", "table"), "row")["field"] == "family"
    freeze(fleet, made_environment())
    called = check("other/one", "toy", "--only", "table")
    assert called.code == 1
    assert answers(called)["row", "other/one"] == "no"
    assert answers(called)["row", "toy"] == "ok"


# ---------------------------------------------------------------------------- what cannot be asked


def test_a_file_that_cannot_be_imported_could_not_be_checked(check: Ask, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("1 / 0\n")
    called = check(f"{file}:cycle", "--only", "family")
    assert called.code == 7
    line = line_of(called, "family")
    assert line["answer"] == "could not be run"
    assert "ZeroDivisionError" in line["detail"]


def test_words_that_mean_nothing_are_usage_errors(check: Ask, fleet: Fleet) -> None:
    assert fleet("calibrate", "check", "--device", "gpu").code == 2
    assert check("--only", "everything").code == 2


def test_a_family_that_is_none_is_a_usage_error(check: Ask, tmp_path: Path) -> None:
    called = check(str(tmp_path / "nowhere.py") + ":cycle")
    assert called.code == 2
    assert "no file" in called.error["message"]


def python_that(tmp_path: Path, script: str) -> str:
    """A Python in name: what it is told is ignored."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_child_that_dies_is_an_error_of_the_device_with_its_last_words(tmp_path: Path) -> None:
    python = python_that(tmp_path, "echo 'driver: cannot open' >&2; kill -SEGV $$")
    with pytest.raises(
        DeviceError, match="ended with signal 11 and gave no answer: driver: cannot"
    ):
        ask(parts=["stack"], python=python)


def test_a_python_without_torch_is_named_with_what_to_install(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = python_that(tmp_path, """echo '{"no_torch": "no module named torch"}'""")
    monkeypatch.setenv("FLEET_BATCH_PYTHON", python)
    called = fleet("calibrate", "check", "--json")
    assert called.code == 3
    assert f"torch is not installed for {python}" in called.error["message"]
    assert "pip install 'fleetcraft[torch]'" in called.error["hint"]
    os.unlink(python)
    assert fleet("calibrate", "check", "--json").code == 3


# ----------------------------------------------------------------------------------- exit and text


def made(answer: Answer, **words: Any) -> Line:
    return Line(part="row", subject="x", answer=answer, **words)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], 0),
        ([made(Answer.OK), made(Answer.NONE)], 0),
        ([made(Answer.OK), made(Answer.NO)], 1),
        ([made(Answer.NOT_RUN)], 7),
        ([made(Answer.NOT_RUN), made(Answer.NO)], 1),
        ([made(Answer.NO, is_bad_data=True), made(Answer.NO)], 7),
    ],
)
def test_the_exit_code_tells_no_from_not_known(lines: list[Line], code: int) -> None:
    assert exit_code(lines) == code


def test_the_text_has_a_line_for_each_check_and_a_sum() -> None:
    lines = [
        made(Answer.OK, detail="fine"), made(Answer.NO, detail="a\x1b[31m"),
        made(Answer.NOT_RUN, detail="no driver"),
    ]  # fmt: skip
    place = Environment(device="cpu Made Up", torch="2.13.0", sdpa="flash")
    text = render_check(lines, place, {"cudnn": "No viable backend"}, paint=Paint(False))
    assert text.splitlines() == [
        "cpu Made Up, torch 2.13.0, attention flash",
        "row  x  ok                fine",
        "row  x  no                a\\x1b[31m",
        "row  x  could not be run  no driver",
        "attention backend cudnn cannot run here: No viable backend",
        "1 check ok, 1 no, 1 could not be run",
    ]


def test_a_difference_that_is_not_finite_is_null_in_json() -> None:
    shape = check_shape([made(Answer.NO, measured=float("nan"))], "cpu", None, {})
    assert shape["checks"][0]["measured"] is None
