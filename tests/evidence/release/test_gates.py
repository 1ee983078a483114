"""A gate passes only if every predicate was asked and holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fleetcraft import Spool
from fleetcraft.errors import DataError
from fleetcraft.evidence import append
from fleetcraft.evidence.files.archive import archive
from fleetcraft.evidence.files.manifest import make_manifest, write_manifest
from fleetcraft.evidence.release.cells import complete
from fleetcraft.evidence.release.finding import Surroundings
from fleetcraft.evidence.release.gate_file import read_gate_file
from fleetcraft.evidence.release.gates import (
    Decision,
    changed_inputs,
    decide,
    keep,
    read_decision,
    release,
)
from fleetcraft.evidence.release.grid import GridRefusedError, GridState, freeze, read_standing
from fleetcraft.evidence.release.grid_file import read_grid_file
from fleetcraft.identity import Owner, sha256_hex
from fleetcraft.layout import State
from fleetcraft.spool import claims
from fleetcraft.spool.record import HistoryLine, Outcome, OutputFact, destination
from tests.evidence.result_rows import fill, result, room


def _around(tmp_path: Path, **more: Any) -> Surroundings:
    spools = {
        "outer": str(tmp_path / "root" / "taskq"),
        "gpu": str(tmp_path / "root" / "taskq_gpu"),
    }
    return Surroundings(paths=room(tmp_path), base=str(tmp_path), spools=spools, **more)


def _decide(tmp_path: Path, text: str, around: Surroundings | None = None) -> Decision:
    path = tmp_path / "gate.yaml"
    path.write_text(f"name: out\n{text}")
    return decide(read_gate_file(str(path)), around or _around(tmp_path))


def _one(tmp_path: Path, predicate: str, around: Surroundings | None = None) -> tuple[Any, str]:
    """Verdict and words of a gate of one predicate."""
    [found] = _decide(tmp_path, f"mechanical:\n- {{{predicate}}}\n", around).predicates
    assert found.asked
    return found.finding.verdict, found.finding.found


# -- stages


def test_a_later_stage_is_not_asked_where_an_earlier_one_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("x")
    decision = _decide(
        tmp_path,
        "mechanical:\n- {check: files, files: [gone]}\n- {check: files, files: [here]}\n"
        "semantic:\n- {check: files, files: [here]}\n"
        "accounting:\n- {check: files, files: [here]}\n",
    )

    assert [each.asked for each in decision.predicates] == [True, True, False, False]
    assert [each.finding.verdict for each in decision.predicates] == [None, True, None, None]
    assert (decision.passed, decision.refuted) == (False, False)
    assert "not asked" in decision.predicates[3].finding.found


@pytest.mark.parametrize(
    ("check", "needs"),
    [
        ("check: manifest, manifest: gone", "gone"),
        ("check: archive, archive: gone", "gone"),
        ("check: files, files: [gone]", "gone"),
        ("check: grid_complete, grid: gone", "gone"),
        ("check: arms, set: gone", "gone"),
        ("check: encoder, set: gone", "gone"),
        ("check: outputs, set: gone", "gone"),
        ("check: tasks_done, tasks: [gone]", "taskq"),
        ("check: tasks_done, grid: gone", "taskq"),
        ("check: none_failed", "taskq"),
        ("check: training_end, run: gone", "cannot be looked at"),
        ("check: window, file: gone", "gone"),
        ("check: metric, set: gone, arm: a, metric: m, at_least: 1", "gone"),
        ("check: comparison, set: gone, a: a, b: b, metric: m, at_least: 1", "gone"),
        ("check: jobs_ended, set: gone", "gone"),
        ("check: gpu_hours, set: gone", "gone"),
    ],
)
def test_a_missing_input_is_unknown_for_every_check(tmp_path: Path, check: str, needs: str) -> None:
    verdict, found = _one(tmp_path, check)
    assert verdict is None
    assert needs in found or "No such file" in found


def test_without_a_scratch_tree_nothing_of_it_is_known(tmp_path: Path) -> None:
    nowhere = Surroundings(paths=None, base=str(tmp_path))
    assert _one(tmp_path, "check: arms, set: main", nowhere)[0] is None
    assert _one(tmp_path, "check: none_failed", nowhere)[0] is None


# -- files


def test_files_need_the_digest_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    right, wrong = sha256_hex(b"x"), "0" * 64
    assert _one(tmp_path, f"check: files, files: [{{path: a, sha256: '{right}'}}]")[0] is True
    verdict, found = _one(tmp_path, f"check: files, files: [{{path: a, sha256: '{wrong}'}}]")
    assert (verdict, found) == (False, f"a has sha256 {right[:12]}")


def test_a_manifest_is_verified_at_the_level_that_is_asked(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a").write_text("x")
    (tmp_path / "m.json").write_bytes(write_manifest(make_manifest(str(folder), name="m")))
    check = "check: manifest, manifest: m.json, folder: set, level"

    assert _one(tmp_path, f"{check}: hashed")[0] is True
    (folder / "a").write_text("y")
    assert _one(tmp_path, f"{check}: sized")[0] is True
    verdict, found = _one(tmp_path, f"{check}: hashed")
    assert (verdict, "changed 'a'" in found) == (False, True)


def test_a_manifest_or_archive_may_be_kept_under_a_name_or_lie_anywhere(tmp_path: Path) -> None:
    paths = room(tmp_path)
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a").write_text("x")
    manifest = make_manifest(str(folder), name="m")
    for place in (paths.folder, paths.manifests):
        os.mkdir(place, 0o700)
    Path(paths.manifest("m")).write_bytes(write_manifest(manifest))
    archive(manifest, str(folder), str(tmp_path / "archive"))

    assert _one(tmp_path, "check: manifest, manifest: m, folder: set")[0] is True
    verdict, found = _one(tmp_path, "check: archive, archive: archive, level: reread")
    assert (verdict, found) == (True, "verified at level reread: 1 files, 1 bytes")
    os.chmod(tmp_path / "archive" / "data" / "a", 0o600)
    (tmp_path / "archive" / "data" / "a").write_text("y")
    assert _one(tmp_path, "check: archive, archive: archive")[0] is False


def test_what_other_rooms_say_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text("{}")
    for verdict in (True, False, None):
        around = _around(
            tmp_path,
            window=lambda path, v=verdict: (v, path),
            training_end=lambda run, v=verdict: (v, run),
        )
        assert _one(tmp_path, "check: window, file: w.json", around)[0] is verdict
        assert _one(tmp_path, "check: training_end, run: wan", around) == (verdict, "wan")


# -- results


def test_arms_are_asked_for_what_they_mix_and_for_what_they_state(tmp_path: Path) -> None:
    paths = room(tmp_path)
    fill(paths, "s", result("a", 0, batch=1), result("a", 1, batch=4), result("b", 0))

    assert _one(tmp_path, "check: arms, set: s")[0] is False
    assert _one(tmp_path, "check: arms, set: s, arms: [b]")[0] is True
    verdict, found = _one(tmp_path, "check: arms, set: s, arms: [b], stated: [batch, timed]")
    assert (verdict, found) == (None, "1 records of b do not state batch")
    assert _one(tmp_path, "check: arms, set: s, arms: [b, c]")[0] is None
    assert _one(tmp_path, "check: arms, set: s, stated: [colour]")[0] is None


def test_one_encoder_for_all_arms_or_not(tmp_path: Path) -> None:
    paths = room(tmp_path)
    a, b = ({"encoder_sha256": letter * 64} for letter in "ab")
    fill(paths, "same", result("x", 0, **a), result("y", 0, **a))
    fill(paths, "other", result("x", 0, **a), result("y", 0, **b))
    fill(paths, "part", result("x", 0, **a), result("y", 0))

    answers = [
        _one(tmp_path, f"check: encoder, set: {name}")[0] for name in ("same", "other", "part")
    ]
    assert answers == [True, False, None]


def test_outputs_are_hashed_again(tmp_path: Path) -> None:
    room(tmp_path)
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"video")
    append("s", arm="a", seed=0, outputs=[clip], root=tmp_path / "root")

    assert _one(tmp_path, "check: outputs, set: s")[0] is True
    clip.write_bytes(b"vidae")
    assert _one(tmp_path, "check: outputs, set: s")[0] is False
    clip.unlink()
    assert _one(tmp_path, "check: outputs, set: s")[0] is None


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ("at_least: 0.5", True),
        ("at_least: 0.51", False),
        ("at_most: 0.5", True),
        ("at_least: 0.4, at_most: 0.6, over: each", False),
        ("at_least: 0.2, over: min", True),
        ("at_most: 0.7, over: max", False),
        ("at_least: 0.5, over: median", True),
    ],
)
def test_a_metric_is_held_against_bounds(tmp_path: Path, bounds: str, verdict: bool) -> None:
    fill(room(tmp_path), "s", *(result("a", n, n / 4 + 0.25) for n in range(3)))
    assert _one(tmp_path, f"check: metric, set: s, arm: a, metric: score, {bounds}")[0] is verdict


def test_a_metric_that_is_absent_in_one_record_or_of_a_mixed_arm_is_no_pass(
    tmp_path: Path,
) -> None:
    paths = room(tmp_path)
    fill(paths, "s", result("a", 0, 1.0), result("a", 1, None))
    fill(paths, "s", result("b", 0, 1.0, batch=1), result("b", 1, 1.0, batch=2))
    check = "check: metric, set: s, metric: score, at_least: 0, arm"

    assert _one(tmp_path, f"{check}: a") == (None, "score is absent in 1 of 2 records")
    assert _one(tmp_path, f"{check}: b")[0] is False


def test_a_comparison_is_held_by_its_whole_interval(tmp_path: Path) -> None:
    paths = room(tmp_path)
    fill(paths, "s", *(result("a", n, 1.0) for n in range(4)))
    fill(paths, "s", *(result("b", n, 1.0 + n / 10) for n in range(4)))
    check = "check: comparison, set: s, a: a, b: b, metric: score"

    assert _one(tmp_path, f"{check}, at_least: 0.99")[0] is True
    assert _one(tmp_path, f"{check}, at_least: 1.1")[0] is False
    assert _one(tmp_path, f"{check}, at_least: 1.1, on: estimate")[0] is True
    assert _one(tmp_path, f"{check.replace('a: a', 'a: s:a')}, at_most: 1.4")[0] is True
    fill(paths, "s", result("c", 0, 1.0))
    assert _one(tmp_path, f"{check.replace('b: b', 'b: c')}, at_least: 0.5")[0] is None


def test_timing_is_reported_of_timed_records_only(tmp_path: Path) -> None:
    paths = room(tmp_path)
    fill(paths, "s", *(result(arm, n, 1.0) for arm in "ab" for n in range(3)))
    fill(paths, "t", *(result(arm, n, 1.0, timed=True) for arm in "ab" for n in range(3)))
    for check in (
        "check: metric, arm: a, metric: score, at_least: 1, timed: true",
        "check: comparison, a: a, b: b, metric: score, at_least: 1, timed: true",
    ):
        verdict, found = _one(tmp_path, f"{check}, set: s")
        assert (verdict, "3 of 3 records of a are not timed" in found) == (False, True)
        assert _one(tmp_path, f"{check}, set: t")[0] is True


def test_records_that_were_changed_make_everything_about_the_set_unknown(tmp_path: Path) -> None:
    path = fill(room(tmp_path), "s", result("a", 0, 0.5), result("a", 1, 0.5))
    path.write_bytes(path.read_bytes().replace(b'"seed":1', b'"seed":2'))

    for check in ("arms", "encoder", "outputs"):
        verdict, found = _one(tmp_path, f"check: {check}, set: s")
        assert (verdict, "1 digest" in found) == (None, True)


# -- tasks


def _run(spool: Spool, name: str, outcome: Outcome, **facts: Any) -> None:
    """Runs a task as a worker would, and files it."""
    location = spool.tree.locate(name)
    assert location is not None
    held = claims.claim(spool.tree, name, location.path, Owner("1", "0", "0", f"abcdefgh-{name}"))
    assert held is not None
    line = HistoryLine(
        claim=held.owner.token,
        outcome=outcome,
        to=destination(held.record, outcome),
        attempt=1,
        **facts,
    )
    assert claims.close_own(spool.tree, held, line) is not None


def test_tasks_are_done_when_they_are_done_completed_and_have_their_outputs(
    tmp_path: Path,
) -> None:
    room(tmp_path)
    spool = Spool.create(str(tmp_path / "root" / "taskq"), project_dir=str(tmp_path))
    for name in ("a-1", "a-2", "b-1", "c-1"):
        spool.enqueue(name, "true")
    (tmp_path / "out").write_bytes(b"123")
    _run(spool, "a-1", Outcome.COMPLETED, outputs=(OutputFact(path="out", size_bytes=3),))

    assert _one(tmp_path, "check: tasks_done, tasks: ['a-1']")[0] is True
    assert _one(tmp_path, "check: tasks_done, tasks: ['a-*']") == (None, "a-2 is pending")
    assert _one(tmp_path, "check: none_failed")[0] is True

    (tmp_path / "out").write_bytes(b"12")
    assert _one(tmp_path, "check: tasks_done, tasks: ['a-1']")[0] is False
    (tmp_path / "out").unlink()
    assert _one(tmp_path, "check: tasks_done, tasks: ['a-1']")[0] is None

    _run(spool, "b-1", Outcome.FAILED)
    assert spool.show("b-1").state is State.FAILED
    assert _one(tmp_path, "check: tasks_done, tasks: ['b-*']") == (False, "b-1 failed")
    assert _one(tmp_path, "check: none_failed") == (False, "failed: b-1")
    assert _one(tmp_path, "check: none_failed, tasks: ['c-*']")[0] is True

    os.unlink(spool.show("c-1").path)
    assert _one(tmp_path, "check: none_failed, tasks: ['c-*']") == (None, "in no folder: c-1")


def test_tasks_of_a_grid_are_those_that_it_froze(tmp_path: Path) -> None:
    paths = room(tmp_path)
    spool = Spool.create(str(tmp_path / "root" / "taskq"), project_dir=str(tmp_path))
    spec = spool.spec("a", "true", lane="last")
    digest = spool.freeze_grid([spec])
    (tmp_path / "grid.yaml").write_text(f"name: g\narms: [x]\nseeds: [0]\ntasks: '{digest}'\n")
    freeze(paths, read_grid_file(str(tmp_path / "grid.yaml")), str(tmp_path))
    check = "check: tasks_done, grid: g"
    assert _one(tmp_path, check)[0] is None

    spool.enqueue_many([spec])
    _run(spool, "a", Outcome.COMPLETED)
    assert _one(tmp_path, check)[0] is True


# -- keeping and releasing


def _complete_grid(tmp_path: Path) -> None:
    paths = room(tmp_path)
    (tmp_path / "run.py").write_text("1")
    text = "name: g\narms: [a]\nseeds: [0, 1]\nscripts: [run.py]\n"
    (tmp_path / "grid.yaml").write_text(text)
    freeze(paths, read_grid_file(str(tmp_path / "grid.yaml")), str(tmp_path))
    for seed in (0, 1):
        append("g", arm="a", seed=seed, metrics={"m": 1.0}, root=tmp_path / "root")
    assert complete(paths, "g")[3]


_GATE = "mechanical:\n- {check: grid_complete, grid: g}\n- {check: files, files: [note.txt]}\n"


def test_a_pass_is_kept_once_and_releases_a_complete_grid(tmp_path: Path) -> None:
    _complete_grid(tmp_path)
    (tmp_path / "note.txt").write_text("n")
    around = _around(tmp_path)
    first, second = (_decide(tmp_path, _GATE) for _ in range(2))

    assert first.passed
    assert keep(first, around)
    assert keep(second, around)  # the same inputs
    assert read_decision(around, "out")[0].nonce == first.nonce
    standing, fresh = release(around, "g", "out")
    assert (standing.state, fresh) == (GridState.RELEASED, True)
    assert release(around, "g", "out")[1] is False


def test_a_pass_from_other_inputs_does_not_take_the_name(tmp_path: Path) -> None:
    _complete_grid(tmp_path)
    (tmp_path / "note.txt").write_text("n")
    assert keep(_decide(tmp_path, _GATE), _around(tmp_path))
    (tmp_path / "note.txt").write_text("another")

    assert not keep(_decide(tmp_path, _GATE), _around(tmp_path))


@pytest.mark.parametrize("change", ["file", "script", "result", "pass", "gone"])
def test_nothing_is_released_once_an_input_has_changed(tmp_path: Path, change: str) -> None:
    _complete_grid(tmp_path)
    (tmp_path / "note.txt").write_text("n")
    around = _around(tmp_path)
    decision = _decide(tmp_path, _GATE)
    assert keep(decision, around)
    assert list(changed_inputs(decision, around)) == []

    if change == "file":
        (tmp_path / "note.txt").write_text("m")
    elif change == "gone":
        (tmp_path / "note.txt").unlink()
    elif change == "script":
        (tmp_path / "run.py").write_text("2")
    elif change == "result":
        fill(around.room, "g", result("a", 5))
    else:
        path = Path(around.room.gate("out"))
        path.write_bytes(path.read_bytes().replace(b'"passed":true', b'"passed":True'))

    with pytest.raises(DataError, match="not released|was changed"):
        release(around, "g", "out")
    assert not Path(around.room.grid_state("g", GridState.RELEASED)).exists()


@pytest.mark.parametrize("change", ["output", "archive", "manifest", "window"])
def test_nothing_is_released_once_what_a_record_stands_for_has_changed(
    tmp_path: Path, change: str
) -> None:
    room(tmp_path)
    (tmp_path / "clip.mp4").write_bytes(b"video")
    append("s", arm="a", seed=0, outputs=[tmp_path / "clip.mp4"], root=tmp_path / "root")
    _complete_grid(tmp_path)
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a").write_text("x")
    manifest = make_manifest(str(folder), name="m")
    (tmp_path / "m.json").write_bytes(write_manifest(manifest))
    archive(manifest, str(folder), str(tmp_path / "archive"))
    (tmp_path / "w.json").write_text("{}")
    answers = [True]
    around = _around(tmp_path, window=lambda path: (answers[-1], "its sources differ"))
    gate = (
        "mechanical:\n- {check: grid_complete, grid: g}\n- {check: outputs, set: s, arms: [a]}\n"
        "- {check: archive, archive: archive}\n- {check: window, file: w.json}\n"
        "- {check: manifest, manifest: m.json, folder: set}\n"
    )
    decision = _decide(tmp_path, gate, around)
    assert keep(decision, around)
    assert list(changed_inputs(decision, around)) == []

    if change == "output":
        (tmp_path / "clip.mp4").write_bytes(b"vidae")
    elif change == "archive":
        os.chmod(tmp_path / "archive/data/a", 0o600)
        (tmp_path / "archive/data/a").write_text("y")
    elif change == "manifest":
        (folder / "a").write_text("y")
    else:
        answers.append(False)

    with pytest.raises(DataError, match="not released"):
        release(around, "g", "out")
    assert not Path(around.room.grid_state("g", GridState.RELEASED)).exists()


def test_a_manifest_that_does_not_say_where_its_files_are_is_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a").write_text("x")
    (tmp_path / "m.json").write_bytes(write_manifest(make_manifest(str(folder), name="m")))

    verdict, found = _one(tmp_path, "check: manifest, manifest: m.json")

    assert (verdict, "does not say where its files are" in found) == (None, True)


def test_a_gate_that_did_not_ask_for_the_grid_does_not_release_it(tmp_path: Path) -> None:
    _complete_grid(tmp_path)
    (tmp_path / "note.txt").write_text("n")
    around = _around(tmp_path)
    with pytest.raises(DataError, match="no pass of a gate 'out' is kept"):
        release(around, "g", "out")
    assert keep(_decide(tmp_path, "mechanical:\n- {check: files, files: [note.txt]}\n"), around)

    with pytest.raises(GridRefusedError, match="has no grid_complete of it"):
        release(around, "g", "out")


def test_results_beyond_those_that_completed_a_grid_fail_the_gate(tmp_path: Path) -> None:
    _complete_grid(tmp_path)
    paths = room(tmp_path)
    assert _one(tmp_path, "check: grid_complete, grid: g")[0] is True
    (tmp_path / "run.py").write_text("2")
    verdict, found = _one(tmp_path, "check: grid_complete, grid: g")
    assert (verdict, "run.py was edited" in found) == (False, True)
    (tmp_path / "run.py").write_text("1")
    fill(paths, "g", result("a", 1, grid_sha256=read_standing(paths, "g").grid.sha256))
    assert "more than one result: a/1" in _one(tmp_path, "check: grid_complete, grid: g")[1]
