"""``fleetcraft video``: exit codes, the two forms of its answers, and what is shown of a name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fleetcraft.cli.video import COMMANDS
from fleetcraft.cli.video.check import check_command
from fleetcraft.cli.video.probe import probe_command
from fleetcraft.video import EncoderSettings, repeats, write_hdr10_video, write_video
from fleetcraft.view.video import CheckProgress
from tests.cli.conftest import Fleet
from tests.video.clips import encode_raw, smooth_clip, smooth_codes

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    folder = tmp_path / "clips"
    folder.mkdir()
    write_video(folder / "a.mp4", smooth_clip(6), fps=24)
    write_video(folder / "b.mp4", smooth_clip(6), fps=24, encoder=EncoderSettings(qp=30))
    write_hdr10_video(folder / "hdr.mp4", smooth_codes(6), fps=24, bits=10)
    encode_raw(folder / "plain.mp4", smooth_clip(6))
    (folder / "zero.mp4").touch()
    return folder


@pytest.fixture
def cut(clips: Path) -> Path:
    content = (clips / "a.mp4").read_bytes()
    path = clips / "cut.mkv"
    write_video(path, smooth_clip(24), fps=24)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 4])
    return path


@pytest.mark.parametrize(("name", "command"), [("probe", probe_command), ("check", check_command)])
def test_help_begins_as_the_table_says_and_shows_examples(
    fleet: Fleet, name: str, command: object
) -> None:
    assert (getattr(command, "help", "") or "").partition("\n")[0] == COMMANDS[name][1]
    called = fleet.bare("video", name, "--help")
    assert called.code == 0
    assert f"Examples:\n  fleetcraft video {name}" in called.out
    assert COMMANDS[name][1] in fleet.bare("video", "--help").out


def test_help_loads_neither_pyav_nor_numpy() -> None:
    script = """
import sys
from fleetcraft.cli.main import main
for words in (["video", "--help"], ["video", "probe", "--help"], ["video", "check", "--help"]):
    main(words)
print(sorted({"av", "numpy", "torch"} & set(sys.modules)), file=sys.stderr)
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert result.stderr.strip() == "[]"


def test_probe_describes_hdr_and_plain_files_before_decoding(fleet: Fleet, clips: Path) -> None:
    names = [str(clips / name) for name in ("a.mp4", "hdr.mp4", "plain.mp4")]
    called = fleet.bare("video", "probe", *names, "--json")
    assert (called.code, called.err) == (0, "")
    assert called.json["schema"] == "fleetcraft.video_probe/1"
    plain, hdr, foreign = called.json["files"]
    assert [item["path"] for item in called.json["files"]] == names
    assert (plain["video"]["bits"], plain["video"]["is_hdr"]) == (8, False)
    assert plain["encoder_record"]["record"]["settings"]["qp"] == 12
    assert (hdr["video"]["bits"], hdr["video"]["is_hdr"], hdr["video"]["fps"]) == (10, True, 24.0)
    colours = [hdr["video"][key] for key in ("primaries", "transfer", "matrix", "range")]
    assert colours == ["bt2020", "smpte2084", "bt2020nc", "limited"]
    assert (foreign["encoder_record"]["state"], foreign["encoder_record"]["record"]) == (
        "missing",
        None,
    )

    text = fleet.bare("video", "probe", *names).out
    assert "10 bits, HDR, wide gamut, yuv420p10le" in text
    assert "matching: libx264 qp 12 medium, x264 core" in text
    assert "matrix bt709 (assumed)" in text


def test_probe_ends_with_7_where_a_file_cannot_be_read_and_shows_the_others(
    fleet: Fleet, clips: Path
) -> None:
    names = [str(clips / name) for name in ("zero.mp4", "a.mp4", "nowhere.mp4")]
    called = fleet.bare("video", "probe", *names, "--json")
    assert (called.code, called.json["unreadable"]) == (7, 2)
    zero, good, missing = called.json["files"]
    assert (zero["readable"], zero["size_bytes"], zero["video"]) == (False, 0, None)
    assert (missing["readable"], missing["size_bytes"]) == (False, None)
    assert good["readable"]
    text = fleet.bare("video", "probe", *names).out
    assert "the file is empty (0 bytes)" in text
    assert "h264 in" in text


def test_check_of_whole_files(fleet: Fleet, clips: Path) -> None:
    names = [str(clips / name) for name in ("a.mp4", "hdr.mp4", "plain.mp4")]
    called = fleet.bare("video", "check", *names, "--json")
    assert (called.code, called.err) == (0, "")
    found = called.json
    assert (found["schema"], found["whole"], found["broken"]) == ("fleetcraft.video_check/1", 3, 0)
    assert [item["frames"] for item in found["files"]] == [6, 6, 6]
    assert [item["frames_promised"] for item in found["files"]] == [6, 6, 6]
    states = [item["encoder_record"]["state"] for item in found["files"]]
    assert states == ["matching", "matching", "missing"]
    text = fleet.bare("video", "check", *names).out
    assert "a.mp4: whole: 6 frames of 6 promised, 8 bits; encoder record matching" in text
    assert "3 of 3 files whole" in text


def test_a_truncated_file_is_a_no_and_an_unreadable_one_is_7(
    fleet: Fleet, clips: Path, cut: Path
) -> None:
    called = fleet.bare("video", "check", str(cut), str(clips / "a.mp4"), "--json")
    assert called.code == 1
    broken = called.json["files"][0]
    assert broken["verdict"] == "broken"
    assert "truncated" in " ".join(broken["reasons"])
    assert 0 < broken["frames"] < 24

    called = fleet.bare("video", "check", str(cut), str(clips / "zero.mp4"), "--json")
    assert called.code == 7
    zero = called.json["files"][1]
    assert (zero["verdict"], zero["frames"], zero["size_bytes"]) == ("unreadable", None, 0)
    assert "0 bytes" in zero["reasons"][0]


def test_a_black_clip_is_a_fact_and_no_failure(fleet: Fleet, tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", np.zeros((3, 32, 32, 3), np.uint8), fps=24)
    called = fleet.bare("video", "check", str(tmp_path / "a.mp4"), "--json")
    assert (called.code, called.json["files"][0]["black"]) == (0, "all")
    assert "all black" in fleet.bare("video", "check", str(tmp_path / "a.mp4")).out


def test_files_of_other_encoders_are_refused_with_the_fields(fleet: Fleet, clips: Path) -> None:
    words = ("video", "check", str(clips / "b.mp4"), "--against", str(clips / "a.mp4"))
    called = fleet.bare(*words, "--json")
    assert called.code == 1
    (pair,) = called.json["compared"]
    assert pair["encoders"] == "different"
    assert {item["field"] for item in pair["differences"]} == {"settings.qp", "encoder_options"}
    assert pair["psnr_db"] > 25
    text = fleet.bare(*words).out
    assert "not comparable: encoders differ: settings.qp 30 against 12" in text
    assert "PSNR" in text


def test_files_of_one_encoder_compare_and_one_without_record_cannot_be(
    fleet: Fleet, clips: Path
) -> None:
    write_video(clips / "again.mp4", smooth_clip(6), fps=24)
    called = fleet.bare(
        "video", "check", str(clips / "again.mp4"), "--against", str(clips / "a.mp4"), "--json"
    )
    assert called.code == 0
    (pair,) = called.json["compared"]
    assert (pair["encoders"], pair["pictures_equal"], pair["psnr_db"]) == ("same", True, None)

    called = fleet.bare(
        "video", "check", str(clips / "a.mp4"), "--against", str(clips / "plain.mp4"), "--json"
    )
    assert (called.code, called.json["compared"][0]["encoders"]) == (7, "unknown")
    assert "no encoder record" in called.json["compared"][0]["reasons"][0]


def test_an_encoder_is_tried_out_and_its_hashes_are_shown(fleet: Fleet) -> None:
    called = fleet.bare("video", "check", "--encoder", "h264-sdr-v1", "--runs", "3", "--json")
    assert called.code == 0
    (tried,) = called.json["encoders"]
    assert (tried["profile"], tried["repeats"]) == ("h264-sdr-v1", True)
    assert (tried["runs"], tried["bitstreams"], len(set(tried["sha256"]))) == (3, 1, 1)
    assert tried["settings"]["qp"] == 12
    assert (
        "repeats: 1 bitstream in 2 encodings"
        in fleet.bare("video", "check", "--encoder", "h264-sdr-v1").out
    )


def test_an_encoder_that_does_not_repeat_is_a_no(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def drifting(path: Path, clip: object, **rest: object) -> object:
        calls.append(path)
        drifted = np.clip(np.asarray(clip) + len(calls) / 64, 0, 1)
        return write_video(path, drifted, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(repeats, "write_video", drifting)
    called = fleet.bare("video", "check", "--encoder", "h264-sdr-v1")
    assert called.code == 1
    assert "does not repeat: 2 bitstreams in 2 encodings" in called.out


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["check"], "no file to check", "--encoder h264-sdr-v1"),
        (["check", "--encoder", "h264-sdr"], "no encoder profile", "did you mean h264-sdr-v1?"),
        (["check", "--against", "a.mp4"], "no file to check", "fleetcraft video check FILE"),
        (["probe"], "'FILE...'", "fleetcraft video probe --help"),
        (["prob"], "no command 'prob' in video", "did you mean probe?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_are_two_lines_and_exit_2(
    fleet: Fleet, words: list[str], message: str, hint: str
) -> None:
    called = fleet.bare("video", *words)
    assert (called.code, called.out) == (2, "")
    first, second = called.err.splitlines()
    assert message in first
    assert hint in second


def test_a_list_for_people_is_bounded_and_says_so(fleet: Fleet, clips: Path) -> None:
    names = [str(clips / "a.mp4")] * 3
    for command in ("probe", "check"):
        text = fleet.bare("video", command, *names, "--limit", "1").out
        assert "... and 2 files" in text
        assert text.count("a.mp4") == 1
        assert (
            len(fleet.bare("video", command, *names, "--limit", "1", "--json").json["files"]) == 3
        )


def test_an_escape_in_a_name_reaches_no_terminal(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m.mp4"
    write_video(path, smooth_clip(3), fps=24)
    for command in ("probe", "check"):
        called = fleet.bare("video", command, str(path))
        assert called.code == 0
        assert "\x1b" not in called.out
        assert "\\x1b[31m.mp4" in called.out


def test_progress_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    for on in (False, True):
        progress = CheckProgress(on)
        show = progress.of("a.mp4")
        for frames in range(1, 61):
            show(frames)
        progress.close()
        written = capsys.readouterr().err
        assert ("a.mp4: 50 frames" in written) == on
        assert written.endswith("\x1b[K") == on


def test_without_pyav_it_says_what_to_install() -> None:
    script = """
import sys
sys.modules["av"] = None
from fleetcraft.cli.main import main
raise SystemExit(main(["video", "probe", "a.mp4"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert result.returncode == 3
    assert "fleetcraft[video]" in result.stderr


@pytest.mark.parametrize("command", ["probe", "check"])
def test_pipes_and_names_of_no_file_are_answers_and_hold_nobody(
    fleet: Fleet, clips: Path, command: str
) -> None:
    os.mkfifo(clips / "pipe.mp4")
    called = fleet.bare("video", command, str(clips / "pipe.mp4"), ".", "/", "")
    assert called.code == 7
    assert "pipe.mp4' is no file but a pipe or a socket" in called.out
    assert called.out.count("unreadable") == 4


def test_a_pipe_in_the_place_of_an_encoder_record_holds_nobody(fleet: Fleet, clips: Path) -> None:
    os.mkfifo(clips / "plain.mp4.encoder.json")
    called = fleet.bare("video", "check", str(clips / "plain.mp4"))
    assert called.code == 1
    assert "its encoder record cannot be read" in called.out
