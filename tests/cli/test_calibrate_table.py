"""``calibrate freeze``, ``show`` and ``diff``: from runs on disk to the table, and to words."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from matplotlib.image import imread

from fleetcraft.batch_table import read_table
from fleetcraft.calibration.freezing import row_of
from fleetcraft.calibration.records import Calibration, Choice
from fleetcraft.calibration.sweep.store import read_calibration
from fleetcraft.cli.calibrate.standing import changes_of, standing_of
from fleetcraft.clock import timestamp
from fleetcraft.layout import Scratch
from fleetcraft.view.calibration_table import age_words
from tests.cli.conftest import Fleet
from tests.plots.made_calibration import (
    budget_run,
    freezable,
    made_calibration,
    made_environment,
    made_trial,
    soaked,
    store_run,
)

LATER = "20260718T060000.000Z-bbbbbbbb"


def table_of(fleet: Fleet) -> Path:
    return fleet.root / "calibration" / "batch-table.yaml"


def at_batch_1() -> Calibration:
    """A later run of the same family with another choice."""
    choice = Choice(batch=1, reason="headroom", next_batch=2)
    return made_calibration(soaked(made_trial(1)), choice=choice, ended_at="2026-07-18T06:00:21Z")


# ---------------------------------------------------------------------------------------- freeze


def test_freezing_writes_the_newest_run_of_every_family(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    store_run(fleet.root, at_batch_1(), LATER)
    store_run(fleet.root, freezable(family="other/one"))
    value = fleet.ok("calibrate", "freeze", "--json").json
    assert value["schema"] == "fleetcraft.calibrate_freeze/1"
    assert [(each["family"], each["batch"]) for each in value["frozen"]] == [
        ("other/one", 2), ("toy", 1),
    ]  # fmt: skip
    found = read_table(str(table_of(fleet)))
    assert found.hash == value["hash"]
    assert {key: row.batch for key, row in found.families.items()} == {"other/one": 2, "toy": 1}
    assert (value["written"], value["before_hash"], value["kept_as"]) == (True, None, None)


def test_a_dry_run_says_the_same_and_writes_nothing(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    value = fleet.ok("calibrate", "freeze", "--dry-run", "--json").json
    assert (value["dry_run"], value["written"]) == (True, False)
    assert not table_of(fleet).exists()
    said = fleet.ok("calibrate", "freeze", "--dry-run").out
    assert "toy: would be frozen at batch 2 (a larger one is not faster beyond noise)" in said
    assert fleet.ok("calibrate", "freeze", "--json").json["hash"] == value["hash"]


def test_what_a_freeze_changes_is_told_and_the_table_before_is_kept(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    before = fleet.ok("calibrate", "freeze", "--json").json["hash"]
    store_run(fleet.root, at_batch_1(), LATER)
    called = fleet.ok("calibrate", "freeze")
    assert "toy: batch: 2 -> 1" in called.out
    assert "toy: reason: compute_saturated -> headroom" in called.out
    kept = table_of(fleet).with_name(f"batch-table.{before[7:19]}.yaml")
    assert f"the table before: {kept}" in called.out
    assert read_table(str(kept)).hash == before


def test_freezing_the_same_again_changes_nothing(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    fleet.ok("calibrate", "freeze")
    facts = table_of(fleet).stat()
    called = fleet.ok("calibrate", "freeze")
    assert "no row says anything else than before; the table stays as it is" in called.out
    assert table_of(fleet).stat().st_ino == facts.st_ino


def test_rows_of_families_that_were_not_meant_stay(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    store_run(fleet.root, freezable(family="other/one"))
    fleet.ok("calibrate", "freeze", "other/one")
    fleet.ok("calibrate", "freeze", "toy")
    assert set(read_table(str(table_of(fleet))).families) == {"toy", "other/one"}


def test_one_that_cannot_be_frozen_is_told_and_does_not_hold_up_the_others(fleet: Fleet) -> None:
    store_run(fleet.root, freezable(fault="stall"))
    store_run(fleet.root, freezable(family="other/one"))
    called = fleet("calibrate", "freeze", "--json")
    assert called.code == 1
    (refused,) = called.json["refused"]
    assert (refused["family"], refused["field"]) == ("toy", "fault")
    assert "it ran with the fault 'stall'" in refused["reason"]
    assert set(read_table(str(table_of(fleet))).families) == {"other/one"}


def test_one_that_was_named_and_cannot_be_frozen_writes_nothing(fleet: Fleet) -> None:
    store_run(fleet.root, made_calibration())
    store_run(fleet.root, freezable(family="other/one"))
    called = fleet("calibrate", "freeze", "other/one", "toy", "--json")
    assert called.code == 7
    assert called.error["facts"]["field"] == "soak"
    assert not table_of(fleet).exists()


def test_a_run_under_a_budget_needs_a_word(fleet: Fleet) -> None:
    run = budget_run()
    first = soaked(run.trials[0])
    store_run(fleet.root, msgspec.structs.replace(run, trials=(first, *run.trials[1:])))
    assert fleet("calibrate", "freeze", "toy", "--json").error["facts"]["field"] == "budget"
    assert fleet.ok("calibrate", "freeze", "toy", "--emulated", "--json").json["written"]


def test_a_run_can_be_named_by_its_folder(fleet: Fleet) -> None:
    older = store_run(fleet.root, freezable())
    store_run(fleet.root, at_batch_1(), LATER)
    value = fleet.ok("calibrate", "freeze", "--run", older, "--json").json
    assert [(each["batch"], each["run"]) for each in value["frozen"]] == [(2, older)]
    called = fleet("calibrate", "freeze", "other/one", "--run", older)
    assert called.code == 2
    assert "is of family 'toy', not of 'other/one'; nothing was frozen" in called.err


def test_a_family_of_which_no_run_is_whole_is_told(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    os.makedirs(fleet.root / "calibration" / "torn@one" / LATER / "batch-001")
    value = fleet.ok("calibrate", "freeze", "--json").json
    assert value["no_whole_run"] == ["torn/one"]
    assert "torn/one: none of its runs is whole" in fleet.ok("calibrate", "show").out


def test_nothing_calibrated_is_answered_with_no(fleet: Fleet) -> None:
    called = fleet("calibrate", "freeze", "--json")
    assert called.code == 1
    assert "nothing was calibrated" in called.error["message"]


def test_an_edited_table_is_not_written_over(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    fleet.ok("calibrate", "freeze")
    edited = table_of(fleet).read_text().replace("batch: 2", "batch: 8", 1)
    table_of(fleet).write_text(edited)
    called = fleet("calibrate", "freeze", "--json")
    assert called.code == 7
    assert called.error["facts"]["field"] == "hash"
    assert table_of(fleet).read_text() == edited


# ------------------------------------------------------------------------------------------ show


def test_the_table_shows_each_row_with_batch_reason_peak_device_stack_and_age(
    fleet: Fleet,
) -> None:
    store_run(fleet.root, freezable(ended_at=timestamp()))
    fleet.ok("calibrate", "freeze")
    out = fleet.ok("calibrate", "show").out
    (line,) = [text for text in out.splitlines() if text.startswith("  toy ")]
    assert [cell.strip() for cell in line.split("  ") if cell.strip()] == [
        "toy", "2", "1", "269 MiB", "backward2", "autograd", "860 MiB", "cpu Made Up", "2.13.0",
        "flash", "0 min", "a larger one is not faster beyond noise",
    ]  # fmt: skip


def test_the_json_of_the_table_has_its_rows_and_the_age_of_their_evidence(fleet: Fleet) -> None:
    folder = store_run(fleet.root, freezable())
    store_run(fleet.root, at_batch_1(), LATER)
    store_run(fleet.root, freezable(family="other/one"))
    fleet.ok("calibrate", "freeze", "--run", folder)
    value = fleet.ok("calibrate", "show", "--json").json
    assert value["schema"] == "fleetcraft.batch_table_view/1"
    (row,) = value["families"]
    assert row["row"]["batch"] == 2
    assert row["row"]["device"] == {"name": "cpu Made Up", "mem_mib": None}
    assert row["evidence_at"] == "2026-07-17T06:00:21Z"
    assert row["evidence_age_s"] > 0
    assert [each["family"] for each in value["not_frozen"]] == ["other/one"]


def test_a_newer_run_that_says_otherwise_is_told_field_by_field(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    fleet.ok("calibrate", "freeze")
    assert "differs" not in fleet.ok("calibrate", "show").out
    store_run(fleet.root, at_batch_1(), LATER)
    out = fleet.ok("calibrate", "show").out
    assert "toy: a newer run (2026-07-18T06:00:21Z) differs:\n  batch: 2 -> 1" in out
    (row,) = fleet.ok("calibrate", "show", "--json").json["families"]
    assert (row["differs"], row["newest_is_frozen"]) == (True, False)
    assert {"family": "toy", "field": "batch", "before": 2, "after": 1} in row["changes"]


def test_a_newer_run_that_says_the_same_differs_in_nothing(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    fleet.ok("calibrate", "freeze")
    store_run(fleet.root, freezable(), LATER)
    (row,) = fleet.ok("calibrate", "show", "--json").json["families"]
    assert (row["differs"], row["newest_is_frozen"], row["changes"]) == (False, False, [])


def test_without_a_table_it_says_so_and_lists_what_could_be_frozen(fleet: Fleet) -> None:
    assert "no frozen table at" in fleet.ok("calibrate", "show").out
    store_run(fleet.root, freezable())
    out = fleet.ok("calibrate", "show").out
    assert "toy is calibrated and not frozen" in out
    assert fleet.ok("calibrate", "show", "--json").json["hash"] is None


def test_an_edited_table_is_refused_with_the_field(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    fleet.ok("calibrate", "freeze")
    table_of(fleet).write_text(table_of(fleet).read_text().replace("batch: 2", "batch: 8", 1))
    called = fleet("calibrate", "show", "--json")
    assert called.code == 7
    assert called.error["facts"]["field"] == "hash"


def test_a_family_shows_its_newest_run_and_how_that_stands_to_its_row(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    fleet.ok("calibrate", "freeze")
    store_run(fleet.root, at_batch_1(), LATER)
    text = fleet.ok("calibrate", "show", "--run", store_of(fleet, LATER)).out
    assert text.startswith("toy: batch 1 was chosen: a larger one leaves too little device memory")
    assert (
        "frozen: batch 2 (a larger one is not faster beyond noise), cpu Made Up, torch 2.13.0"
        in text
    )
    assert "toy: a newer run (2026-07-18T06:00:21Z) differs" in text


def store_of(fleet: Fleet, name: str) -> str:
    return Scratch(str(fleet.root)).calibration_run("toy", name)


def test_the_json_of_a_run_is_that_of_calibrate_run_with_what_is_frozen(fleet: Fleet) -> None:
    store_run(fleet.root, freezable(family="my/family"))
    value = fleet.ok("calibrate", "show", "my/family", "--json").json
    assert value["schema"] == "fleetcraft.calibration/1"
    assert [trial["batch"] for trial in value["trials"]] == [1, 2, 4]
    assert value["frozen"]["row"] is None
    assert value["frozen"]["newest_can_be_frozen"] is True
    fleet.ok("calibrate", "freeze")
    again = fleet.ok("calibrate", "show", "my/family", "--json").json
    assert again["frozen"]["row"]["batch"] == 2
    assert again["frozen"]["newest_is_frozen"] is True


def test_a_row_whose_runs_are_elsewhere_is_shown_alone(fleet: Fleet, tmp_path: Path) -> None:
    store_run(fleet.root, freezable(family="my/family"))
    fleet.ok("calibrate", "freeze")
    os.rename(fleet.root / "calibration" / "my@family", tmp_path / "away")
    out = fleet.ok("calibrate", "show", "my/family").out
    assert "not here" in out
    value = fleet.ok("calibrate", "show", "my/family", "--json").json
    assert value["families"][0]["evidence_age_s"] is None


def test_a_family_of_which_nothing_is_known_is_answered_with_no_and_near_keys(
    fleet: Fleet,
) -> None:
    store_run(fleet.root, freezable(family="my/family"))
    called = fleet("calibrate", "show", "my/famly", "--json")
    assert called.code == 1
    assert called.error["hint"] == "did you mean my/family?"


def test_the_key_of_a_family_in_a_file_is_learnt_from_the_file(
    fleet: Fleet, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from fleetcraft.calibration import family\n"
        "print('noise on stdout')\n"
        "@family(key='my/family')\n"
        "def cycle(ctx, batch): pass\n"
    )
    store_run(fleet.root, freezable(family="my/family"))
    value = fleet.ok("calibrate", "show", f"{file}:cycle", "--json").json
    assert value["family"] == "my/family"
    assert fleet("calibrate", "show", f"{file}:nothing", "--json").code == 2
    file.write_text("import no_such_module_anywhere\n")
    called = fleet("calibrate", "show", f"{file}:cycle", "--json")
    assert called.code == 3
    assert "no_such_module_anywhere" in called.error["message"]


def test_a_damaged_record_is_a_problem_of_its_family_and_hides_no_other(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    folder = store_run(fleet.root, freezable(family="other/one"))
    fleet.ok("calibrate", "freeze")
    Path(folder, "calibration.json").write_text("{}")
    out = fleet.ok("calibrate", "show").out
    assert "other/one: its runs could not be read" in out
    assert "\n  toy " in out
    assert fleet("calibrate", "show", "other/one").code == 7


def test_a_figure_is_drawn_again_into_a_folder_or_under_a_name(
    fleet: Fleet, tmp_path: Path
) -> None:
    store_run(fleet.root, freezable(family="my/family"))
    value = fleet.ok(
        "calibrate", "show", "my/family", "--figure", str(tmp_path / "new" / "mine.png"), "--json"
    ).json
    assert value["figure"] == [str(tmp_path / "new" / f"mine.{kind}") for kind in ("png", "svg")]
    assert imread(value["figure"][0]).shape[1] > 1500
    origin = json.loads(Path(f"{value['figure'][0]}.origin.json").read_bytes())
    (source,) = origin["sources"]
    assert (os.path.basename(source["path"]), source["kind"]) == ("calibration.json", "summary")
    called = fleet("calibrate", "show", "--figure", str(tmp_path))
    assert called.code == 2
    assert "a figure is of one family or run" in called.err


@pytest.mark.parametrize(
    ("age_s", "said"),
    [(None, ""), (0, "0 min"), (7199, "119 min"), (7200, "2 h"), (172799, "47 h"), (172800, "2 d")],
)
def test_an_age_is_one_number(age_s: float | None, said: str) -> None:
    assert age_words(age_s) == said


def test_newer_evidence_alone_is_no_difference(fleet: Fleet) -> None:
    first = row_of(read_calibration(store_run(fleet.root, freezable())))
    second = row_of(read_calibration(store_run(fleet.root, freezable(), LATER)))
    assert first.evidence != second.evidence
    assert changes_of("toy", first, second) == ()
    standing = standing_of(Scratch(str(fleet.root)), "toy", first)
    assert standing.evidence_at == "2026-07-17T06:00:21Z"
    assert not standing.differs


# ------------------------------------------------------------------------------------------ diff


def test_equal_tables_say_nothing_and_exit_with_0(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    fleet.ok("calibrate", "freeze")
    called = fleet("calibrate", "diff", str(table_of(fleet)))
    assert (called.code, called.out, called.err) == (0, "", "")
    value = fleet("calibrate", "diff", str(table_of(fleet)), "--json").json
    assert (value["schema"], value["same"]) == ("fleetcraft.batch_table_diff/1", True)


def test_tables_that_differ_exit_with_1_and_name_family_and_field(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    before = fleet.ok("calibrate", "freeze", "--json").json["hash"]
    place = made_environment(device="cpu Another")
    moved = made_calibration(
        soaked(made_trial(1, environment=place)), choice=Choice(batch=1, reason="headroom")
    )
    store_run(fleet.root, moved, LATER)
    store_run(fleet.root, freezable(family="other/one"))
    fleet.ok("calibrate", "freeze")
    name = f"batch-table.{before[7:19]}.yaml"
    called = fleet("calibrate", "diff", name)
    assert called.code == 1
    lines = called.out.splitlines()
    assert "toy: device.name: cpu Made Up -> cpu Another" in lines
    assert "other/one: added, batch 2 on cpu Made Up" in lines
    value = fleet("calibrate", "diff", name, "--json").json
    assert (value["a_hash"], value["same"]) == (before, False)
    back = fleet("calibrate", "diff", str(table_of(fleet)), str(table_of(fleet).with_name(name)))
    assert "other/one: removed, batch 2 on cpu Made Up" in back.out


def test_a_table_that_is_not_there_or_was_edited_is_bad_data(fleet: Fleet) -> None:
    store_run(fleet.root, freezable())
    fleet.ok("calibrate", "freeze")
    assert fleet("calibrate", "diff", "nowhere.yaml").code == 7
    edited = table_of(fleet).with_name("edited.yaml")
    edited.write_text(table_of(fleet).read_text().replace("flash", "math"))
    called = fleet("calibrate", "diff", str(edited), "--json")
    assert called.code == 7
    assert called.error["facts"]["field"] == "hash"
