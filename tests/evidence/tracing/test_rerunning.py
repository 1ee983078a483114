"""Running a result again: what is compared, when nothing is enqueued, what the new task says."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetcraft import Spool
from fleetcraft.batch_table import Device, Peak, Row, Stack, make_table, write_table
from fleetcraft.errors import DataError, NameTakenError, NoSuchTaskError, UsageError
from fleetcraft.evidence import append
from fleetcraft.evidence.results.sets import Result
from fleetcraft.evidence.tracing.rerunning import (
    Subject,
    find_subject,
    run_again,
    standing,
    task_again,
    writes_over,
)
from fleetcraft.evidence.tracing.sameness import (
    Check,
    Sameness,
    ask_versions,
    compare_with_here,
    python_of,
)
from fleetcraft.layout import Scratch

HERE = {"python": platform.python_version(), "msgspec": msgspec.__version__}
Put = Callable[..., Result]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    (tmp_path / "project").mkdir()
    spool = Spool.create(str(tmp_path / "taskq"), project_dir=str(tmp_path / "project"))
    spool.enqueue("gen", f"{sys.executable} gen.py 1", timeout_s=60, after=("other-*",))
    return spool


@pytest.fixture
def put(spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Appends a result as the task of that name would."""

    def append_as(task: str = "gen", **given: Any) -> Result:
        monkeypatch.chdir(tmp_path / "project")
        monkeypatch.setenv("FLEET_SPOOL", spool.root)
        monkeypatch.setenv("FLEET_ROOT", str(tmp_path))
        if task:
            monkeypatch.setenv("FLEET_TASK", task)
        words = {"arm": "full", "seed": 1, "stack": HERE, "root": tmp_path, **given}
        result = append("sweep", **words)
        for name in ("FLEET_SPOOL", "FLEET_ROOT", "FLEET_TASK", "FLEET_BATCH_HASH"):
            monkeypatch.delenv(name, raising=False)
        return result

    return append_as


def found(spool: Spool, asked: str = "gen") -> Subject:
    scratch = Scratch(os.path.dirname(spool.root))
    return find_subject(asked, scratch=scratch, trees=[spool.tree])


def compared(spool: Spool, asked: str = "gen", **words: Any) -> dict[str, Check]:
    subject = found(spool, asked)
    evidence = Scratch(os.path.dirname(spool.root)).evidence
    checks = compare_with_here(subject.made, subject.record, evidence=evidence, **words)
    return {check.what: check for check in checks}


def verdicts(checks: dict[str, Check]) -> dict[str, str]:
    return {what: check.verdict.value for what, check in checks.items()}


# ----------------------------------------------------------------------------------- what it is


def test_a_result_is_found_by_its_task_its_place_and_its_nonce(spool: Spool, put: Put) -> None:
    nonce = put(candidate="a/b").nonce
    for asked in ("gen", "sweep:a/b/full/1", f"sweep:{nonce}", nonce):
        subject = found(spool, asked)
        assert (subject.name, len(subject.made)) == ("gen", 1)


def test_a_task_has_all_of_its_results(spool: Spool, put: Put) -> None:
    for seed in (1, 2):
        put(seed=seed)
    put(task="another", seed=3)
    assert sorted(one.result.seed for one in found(spool).made) == [1, 2]


def test_a_name_of_two_results_is_refused_with_their_nonces(spool: Spool, put: Put) -> None:
    nonces = [put(metrics={"score": value}).nonce for value in (1.0, 2.0)]
    with pytest.raises(UsageError, match="2 results") as refused:
        found(spool, "sweep:full/1")
    assert all(nonce in refused.value.hint for nonce in nonces)


def test_the_result_of_a_rerun_does_not_take_the_name_of_the_first(spool: Spool, put: Put) -> None:
    first = put()
    run_again(found(spool), task_again(found(spool), ()))
    put(task="gen.rerun-1")
    (one,) = found(spool, "sweep:full/1").made
    assert one.result.nonce == first.nonce


def test_an_unknown_result_names_near_ones(spool: Spool, put: Put) -> None:
    put()
    with pytest.raises(DataError) as refused:
        found(spool, "sweep:fall/1")
    assert "sweep:full/1" in refused.value.hint


def test_an_unknown_task_names_near_ones(spool: Spool) -> None:
    with pytest.raises(NoSuchTaskError) as refused:
        found(spool, "genn")
    assert "gen" in refused.value.hint


def test_a_result_that_no_task_made_cannot_be_run_again(spool: Spool, put: Put) -> None:
    put(task="")
    with pytest.raises(DataError, match="no task made"):
        found(spool, "sweep:full/1")


# ------------------------------------------------------------------------------ what is compared


def test_the_same_stack_is_the_same(spool: Spool, put: Put) -> None:
    put()
    checks = compared(spool)
    assert verdicts(checks) == {
        "command": "same",
        "stack.msgspec": "same",
        "stack.python": "same",
        "code": "unrecorded",
    }
    assert standing(tuple(checks.values())) is Sameness.SAME


def test_a_project_that_has_moved_away_differs(spool: Spool, put: Put, tmp_path: Path) -> None:
    put()
    os.chdir(tmp_path)
    (tmp_path / "project").rename(tmp_path / "elsewhere")
    assert verdicts(compared(spool))["project"] == "differs"


def test_another_version_differs(spool: Spool, put: Put) -> None:
    put(stack={**HERE, "msgspec": "0.0.1"})
    checks = compared(spool)
    assert checks["stack.msgspec"].verdict is Sameness.DIFFERS
    assert (checks["stack.msgspec"].recorded, checks["stack.msgspec"].found) == (
        "0.0.1",
        msgspec.__version__,
    )
    assert standing(tuple(checks.values())) is Sameness.DIFFERS


def test_a_library_that_is_not_there_differs(spool: Spool, put: Put) -> None:
    put(stack={"no-such-library-at-all": "1.0"})
    check = compared(spool)["stack.no-such-library-at-all"]
    assert (check.verdict, check.found) == (Sameness.DIFFERS, "not there")


def test_results_that_do_not_agree_on_a_version_differ(spool: Spool, put: Put) -> None:
    put()
    put(seed=2, stack={**HERE, "msgspec": "0.0.1"})
    assert compared(spool)["stack.msgspec"].verdict is Sameness.DIFFERS


def test_without_recorded_versions_nothing_is_known(spool: Spool, put: Put) -> None:
    put(stack={})
    checks = compared(spool)
    assert checks["stack"].verdict is Sameness.UNRECORDED
    assert standing(tuple(checks.values())) is Sameness.UNKNOWN


def test_a_task_without_results_is_unknown(spool: Spool) -> None:
    assert standing(tuple(compared(spool).values())) is Sameness.UNKNOWN


def test_a_python_that_does_not_answer_makes_versions_unknown(
    spool: Spool, put: Put, tmp_path: Path
) -> None:
    put()
    checks = compared(spool, python=str(tmp_path / "no-python"))
    assert checks["stack.python"].verdict is Sameness.UNKNOWN
    assert standing(tuple(checks.values())) is Sameness.UNKNOWN


def test_a_python_that_hangs_is_stopped(tmp_path: Path) -> None:
    slow = tmp_path / "slow-python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    versions, problem = ask_versions(str(slow), ["python"], limit_s=0.2)
    assert versions is None
    assert "did not answer within 0.2 s" in problem


def test_asking_for_versions_imports_no_torch() -> None:
    # What would be imported is seen from what Python says of its imports.
    asked = "from fleetcraft.evidence.tracing.sameness import _ASK; print(_ASK)"
    program = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-I", "-c", program, '["torch", "cuda", "msgspec"]'],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert set(json.loads(done.stdout)) == {"torch", "cuda", "msgspec"}
    assert "| torch" not in done.stderr
    assert "msgspec" not in done.stderr


def test_a_version_without_its_build_is_that_version(spool: Spool, put: Put) -> None:
    torch = ask_versions(sys.executable, ["torch"])[0]
    if not torch or not torch["torch"]:
        pytest.skip("no torch is installed")
    put(stack={"torch": torch["torch"].partition("+")[0]})
    assert compared(spool)["stack.torch"].verdict is Sameness.SAME


def test_the_python_of_a_command_is_the_one_that_is_asked(spool: Spool, tmp_path: Path) -> None:
    mine = tmp_path / "project/env/bin/python3"
    mine.parent.mkdir(parents=True)
    mine.symlink_to(sys.executable)
    spool.enqueue("by-path", "CUDA_VISIBLE_DEVICES=0 env/bin/python3 -u gen.py")
    spool.enqueue("by-none", "echo 'unclosed \" quote'")
    assert python_of(found(spool, "by-path").record) == str(mine)
    assert python_of(found(spool, "by-none").record) == sys.executable


def test_the_command_of_another_record_differs(spool: Spool, put: Put, tmp_path: Path) -> None:
    put()
    record = Path(spool.tree.find("gen").path)
    subject = found(spool, "sweep:full/1")
    record.write_bytes(record.read_bytes().replace(b"gen.py 1", b"gen.py 2"))
    record.chmod(0o700)
    checks = compare_with_here(
        subject.made, spool.tree.read(str(record)), evidence=str(tmp_path / "evidence")
    )
    assert checks[0].verdict is Sameness.DIFFERS


def row(batch: int) -> Row:
    return Row(
        identity="sha256:" + "0" * 64,
        device=Device(name="cpu x"),
        stack=Stack(torch="2.13.0", sdpa="math"),
        batch=batch,
        reason="largest",
        peak=Peak(),
    )


@pytest.mark.parametrize(
    ("batch", "expected"), [(8, ("batch", "same")), (16, ("batch.wan", "differs"))]
)
def test_the_batch_is_compared_with_the_table_of_now(
    spool: Spool, put: Put, monkeypatch: pytest.MonkeyPatch, batch: int, expected: tuple[str, str]
) -> None:
    path = f"{os.path.dirname(spool.root)}/batch-table.yaml"
    monkeypatch.setenv("FLEET_BATCH_HASH", make_table({"wan": row(8)}).hash)
    put(batch=8, family="wan")
    write_table(path, make_table({"wan": row(batch)}))
    assert expected in verdicts(compared(spool, batch_table=path)).items()


def test_a_table_frozen_anew_with_the_same_batch_is_the_same(
    spool: Spool, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "batch-table.yaml")
    monkeypatch.setenv("FLEET_BATCH_HASH", make_table({"wan": row(8)}).hash)
    put(batch=8, family="wan")
    write_table(path, make_table({"wan": row(8), "other": row(2)}))
    check = compared(spool, batch_table=path)["batch.wan"]
    assert (check.verdict, check.detail) == (Sameness.SAME, "the table was frozen anew")


def test_a_table_that_is_not_there_makes_the_batch_unknown(
    spool: Spool, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_BATCH_HASH", make_table({"wan": row(8)}).hash)
    put(batch=8, family="wan")
    checks = compared(spool, batch_table=str(tmp_path / "none.yaml"))
    assert checks["batch"].verdict is Sameness.UNKNOWN


def test_code_is_compared_by_the_files_that_the_command_names(
    spool: Spool, put: Put, tmp_path: Path
) -> None:
    script = tmp_path / "project/gen.py"
    script.write_text("print(1)\n")
    put(code_sha256=hashlib.sha256(script.read_bytes()).hexdigest())
    assert verdicts(compared(spool))["code"] == "same"
    script.write_text("print(2)\n")
    assert verdicts(compared(spool))["code"] == "unknown"
    assert verdicts(compared(spool, code=[str(script)]))["code"] == "differs"


def test_an_encoder_is_compared_by_its_record(spool: Spool, put: Put, tmp_path: Path) -> None:
    clip = tmp_path / "project/clip.mp4"
    clip.write_bytes(b"video")
    beside = Path(f"{clip}.encoder.json")
    beside.write_text('{"pyav": "0.0.1"}')
    put(outputs=["clip.mp4"])
    assert verdicts(compared(spool))["encoder"] == "differs"
    assert verdicts(compared(spool, encoder=str(beside)))["encoder"] == "same"
    beside.rename(tmp_path / "elsewhere.json")
    assert verdicts(compared(spool))["encoder"] == "unknown"


# ------------------------------------------------------------------------------------ running it


def test_the_new_task_says_what_it_repeats(spool: Spool, put: Put) -> None:
    put()
    subject = found(spool)
    spec = task_again(subject, ())
    assert spec.name == "gen.rerun-1"
    assert spec.command.split("\n")[-2:] == [
        "export FLEET_RERUN_OF=gen",
        f"{sys.executable} gen.py 1",
    ]
    assert (spec.timeout_s, spec.after) == (60, ())
    run_again(subject, spec)
    assert spool.show("gen.rerun-1").record.spec == spec
    assert task_again(subject, ()).name == "gen.rerun-2"


def test_the_reason_stands_in_the_record(spool: Spool, put: Put) -> None:
    put(stack={**HERE, "msgspec": "0.0.1"})
    checks = tuple(compared(spool).values())
    spec = task_again(found(spool), checks, reason="it only parses faster")
    assert "# although stack.msgspec differs: it only parses faster" in spec.command.split("\n")


@pytest.mark.parametrize("reason", ["two\nlines", "\x1b[31mred", "   "])
def test_a_reason_that_is_no_line_is_refused(spool: Spool, reason: str) -> None:
    with pytest.raises(UsageError):
        task_again(found(spool), (), reason=reason)


def test_a_name_that_is_taken_is_refused(spool: Spool) -> None:
    subject = found(spool)
    with pytest.raises(NameTakenError):
        run_again(subject, task_again(subject, (), name="gen"))


def test_what_it_would_write_over_is_named(spool: Spool, put: Put, tmp_path: Path) -> None:
    (tmp_path / "project/clip.bin").write_text("x")
    put(outputs=["clip.bin"])
    assert writes_over(found(spool)) == ["clip.bin"]
