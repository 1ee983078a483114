"""Records on disk: whole, private, read back with suspicion."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import msgspec
import pytest

from fleetcraft.calibration.records import (
    MIB,
    Calibration,
    Choice,
    Failure,
    OwnerBytes,
    PhaseRecord,
    Prediction,
    Verdict,
)
from fleetcraft.calibration.sweep.store import (
    new_run_folder,
    newest,
    read_calibration,
    read_trial,
    run_folders,
    to_json,
    trial_record,
    write_calibration,
    write_trial,
)
from fleetcraft.errors import ConfigError, DataError, FleetError, UnsafeSpoolError
from fleetcraft.layout import Scratch, calibration_record
from tests.calibration.sweep.families import failed, skipped, trial

KEY = "wan21-1.3b/480p"


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(str(tmp_path))


def calibration(folder: str = "", family: str = KEY) -> Calibration:
    phase = PhaseRecord(
        name="decode",
        walls_s=(3.0, 1.0, 2.0),
        peak_bytes=int(3 * MIB),
        live_end_bytes=int(MIB),
        autograd_bytes=0,
        owners=(
            OwnerBytes(name="pixels", bytes=int(2 * MIB), live_end_bytes=int(MIB)),
            OwnerBytes(name="model", bytes=int(MIB)),
        ),
        held_bytes={"probe.kv": int(MIB)},
    )
    return Calibration(
        family=family,
        identity="sha256:1",
        identity_fields={"key": family},
        kind="infer",
        device="cpu",
        semantics="independent",
        trials=(trial(1, phases=(phase,)), failed(2), skipped(4, Failure.SMALLER_FAILED)),
        predictions=(Prediction(batch=1, peak_bytes=int(3 * MIB), phase="decode"),),
        choice=Choice(batch=1, reason="next_failed"),
        device_budget_bytes=int(100 * MIB),
        folder=folder,
    )


def test_a_record_comes_back_as_it_was_written(scratch):
    folder = new_run_folder(scratch, KEY)
    written = calibration(folder)

    write_calibration(folder, written)

    assert read_calibration(folder) == written
    assert read_calibration(calibration_record(folder)) == written
    assert newest(scratch, KEY) == written


def test_a_trial_is_written_over_the_earlier_one_of_its_batch(scratch):
    folder = new_run_folder(scratch, KEY)

    write_trial(folder, trial(4))
    path = write_trial(folder, failed(4, Failure.SOAK_RISING))

    assert path == trial_record(folder, 4)
    assert read_trial(path).failure is Failure.SOAK_RISING
    assert json.loads(Path(path).read_bytes())["class"] == "soak_rising"
    assert os.listdir(folder) == ["trial-004.json"]


def test_everything_is_private(scratch):
    os.umask(0)
    folder = new_run_folder(scratch, KEY)
    files = [write_trial(folder, trial(1)), write_calibration(folder, calibration())]

    folders = [scratch.calibration, scratch.family_folder(KEY), folder]
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in folders} == {0o700}
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in files} == {0o600}


def test_a_failed_write_leaves_the_record_as_it_was_and_nothing_beside_it(scratch, monkeypatch):
    folder = new_run_folder(scratch, KEY)
    write_calibration(folder, calibration())
    before = Path(calibration_record(folder)).read_bytes()

    def full(temporary: str, final: str) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr("fleetcraft.calibration.sweep.store.replace_atomically", full)
    with pytest.raises(OSError, match="no space"):
        write_calibration(folder, calibration(folder="other"))

    assert Path(calibration_record(folder)).read_bytes() == before
    assert os.listdir(folder) == ["calibration.json"]


def test_folders_of_runs_are_new_each_time_and_sort_by_time(scratch):
    made = [new_run_folder(scratch, KEY) for _ in range(5)]

    assert len(set(made)) == 5
    assert sorted(run_folders(scratch, KEY), reverse=True) == list(run_folders(scratch, KEY))
    stamps = [Path(folder).name.partition("-")[0] for folder in made]
    assert stamps == sorted(stamps)
    assert all(len(stamp) == len("20261130T020000.123Z") for stamp in stamps)


def test_without_a_scratch_tree_nothing_is_made(tmp_path):
    with pytest.raises(ConfigError, match="no scratch tree"):
        new_run_folder(Scratch(str(tmp_path / "gone")), KEY)

    assert os.listdir(tmp_path) == []


def test_a_folder_that_others_can_write_is_refused(scratch):
    os.mkdir(scratch.calibration)
    os.chmod(scratch.calibration, 0o777)

    with pytest.raises(UnsafeSpoolError):
        new_run_folder(scratch, KEY)


# ----------------------------------------------------------------------------------- reading


def stored(scratch: Scratch, **changes: object) -> Path:
    folder = new_run_folder(scratch, KEY)
    path = Path(write_calibration(folder, calibration(folder)))
    if changes:
        path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
    return path


@pytest.mark.parametrize("changes", [
    {"schema": "fleetcraft.calibration/2"},
    {"schema": "fleetcraft.trial/1"},
    {"schema": 1},
    {"trials": [{"batch": "one"}]},
    {"trials": None},
    {"choice": {"batch": 1.5}},
])  # fmt: skip
def test_another_schema_or_wrong_values_are_refused(scratch, changes):
    path = stored(scratch, **changes)

    with pytest.raises(DataError, match="nothing of it was used") as refusal:
        read_calibration(str(path))

    assert refusal.value.facts["path"] == str(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b'{"schema": "x"}', b"null"])
def test_what_is_no_record_is_refused(scratch, content):
    path = stored(scratch)
    path.write_bytes(content)

    with pytest.raises(DataError):
        read_calibration(str(path))


def test_a_record_that_others_can_write_is_refused(scratch):
    path = stored(scratch)
    path.chmod(0o620)

    with pytest.raises(DataError, match="others can write it .mode 0620"):
        read_calibration(str(path))


def test_a_record_of_another_user_is_refused(scratch, monkeypatch):
    path = stored(scratch)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    with pytest.raises(DataError, match="this is user 12345"):
        read_calibration(str(path))


def test_a_link_to_a_record_is_refused(scratch, tmp_path):
    path = stored(scratch)
    link = tmp_path / "link.json"
    link.symlink_to(path)

    with pytest.raises(DataError):
        read_calibration(str(link))


def test_a_pipe_in_place_of_a_record_holds_nobody(scratch):
    path = stored(scratch)
    path.unlink()
    os.mkfifo(path)

    with pytest.raises(DataError):
        read_calibration(str(path))


def test_the_newest_whole_run_is_found_and_an_interrupted_one_passed_over(scratch):
    stored(scratch)
    whole = stored(scratch)
    interrupted = new_run_folder(scratch, KEY)
    write_trial(interrupted, trial(1))

    assert newest(scratch, KEY).folder == str(whole.parent)
    assert read_trial(trial_record(interrupted, 1)) == trial(1)


def test_a_run_with_a_fault_is_no_newer_calibration_unless_there_is_no_other(scratch):
    faulty = stored(scratch, fault="stall")
    assert newest(scratch, KEY).folder == str(faulty.parent)

    whole = stored(scratch)
    stored(scratch, fault="stall")

    assert newest(scratch, KEY).folder == str(whole.parent)


def test_a_file_among_the_folders_of_runs_is_no_run(scratch):
    whole = stored(scratch)
    (whole.parent.parent / "notes.txt").write_text("mine")

    assert newest(scratch, KEY).folder == str(whole.parent)


def test_a_newest_run_that_cannot_be_read_is_not_passed_over_for_an_older_one(scratch):
    stored(scratch)
    stored(scratch).write_bytes(b"{")

    with pytest.raises(DataError):
        newest(scratch, KEY)


def test_a_record_that_was_put_into_another_family_is_refused(scratch):
    folder = new_run_folder(scratch, KEY)
    write_calibration(folder, calibration(folder, family="another"))

    with pytest.raises(DataError, match="of family 'another'"):
        newest(scratch, KEY)


def test_no_run_is_an_answer_not_a_fault(scratch):
    with pytest.raises(FleetError, match="no whole calibration") as answer:
        newest(scratch, KEY)

    assert answer.value.exit_code == 1


# ---------------------------------------------------------------------------------- printing


def test_the_json_has_mib_and_medians_beside_the_bytes():
    value = to_json(calibration())

    assert value["schema"] == "fleetcraft.calibration/1"
    assert value["ok"] is False
    assert value["device_budget_mib"] == 100
    assert value["host_budget_mib"] is None
    assert value["predictions"][0]["peak_mib"] == 3
    first, second, third = value["trials"]
    assert (first["verdict"], first["class"], first["peak_mib"]) == ("ok", None, 3)
    assert (second["verdict"], second["class"], second["phase"]) == (
        "failed", "device_oom.capacity", "backward2",
    )  # fmt: skip
    assert (third["verdict"], third["class"], third["phases"]) == ("skipped", "smaller_failed", [])
    assert third["peak_mib"] is None
    (phase,) = first["phases"]
    assert (phase["name"], phase["wall_s"], phase["peak_mib"]) == ("decode", 2.0, 3)
    assert (phase["live_end_mib"], phase["autograd_mib"]) == (1, 0)
    assert [(one["name"], one["mib"]) for one in phase["owners"]] == [("pixels", 2), ("model", 1)]
    assert phase["held_mib"] == {"probe.kv": 1}


def test_what_was_not_measured_is_null_in_the_json():
    bare = msgspec.structs.replace(
        calibration(), trials=(trial(1, phases=(PhaseRecord(name="a"),)),)
    )

    (phase,) = to_json(bare)["trials"][0]["phases"]

    names = ("wall_s", "peak_mib", "live_end_mib", "autograd_mib", "rss_peak_mib", "residual_mib")
    assert {phase[name] for name in names} == {None}
    assert to_json(bare)["trials"][0]["verdict"] == Verdict.OK
    json.dumps(to_json(bare), allow_nan=False)
