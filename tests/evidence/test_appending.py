"""An appended result holds what this process can find out, and nothing that it cannot."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import fleetcraft.evidence
from fleetcraft import Spool
from fleetcraft.errors import ConfigError, DataError, UsageError
from fleetcraft.evidence import append
from fleetcraft.evidence.release.cells import complete
from fleetcraft.evidence.release.grid import freeze
from fleetcraft.evidence.release.grid_file import read_grid_file
from fleetcraft.evidence.results.sets import read_set
from fleetcraft.identity import sha256_hex
from fleetcraft.layout.evidence import EvidencePaths


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    monkeypatch.chdir(tmp_path)
    return made


def _append(root: Path, **more: Any) -> Any:
    given = {"arm": "full", "seed": 3, "metrics": {"score": 0.7}, **more}
    return append("main", root=root, **given)


def test_outputs_are_hashed_and_found_from_the_folder_of_the_set(root: Path) -> None:
    Path("clip.mp4").write_bytes(b"video")

    made = _append(root, outputs=["clip.mp4"])

    [output] = made.outputs
    assert (output.size_bytes, output.sha256) == (5, sha256_hex(b"video"))
    found = read_set(f"{root}/evidence", "main")
    assert found.results == [made]
    assert Path(found.folder, output.path).read_bytes() == b"video"
    assert not os.path.isabs(output.path)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused_and_said_to_be_left_out(root: Path, value: float) -> None:
    with pytest.raises(UsageError, match="metric score") as told:
        _append(root, metrics={"score": value})
    assert "absent, not zero" in told.value.hint
    assert not (root / "evidence").exists()


@pytest.mark.parametrize(
    "given",
    [
        {"arm": "a b"},
        {"metrics": {"a/b": 1.0}},
        {"metrics": {"a": True}},
        {"metrics": {"a": "1"}},
        {"seed": 1.5},
        {"seed": True},
        {"seed": 1 << 70},
        {"batch": 0},
        {"candidate": "a\nb"},
        {"candidate": "x" * 201},
    ],
)
def test_what_is_off_is_refused_before_anything_is_written(
    root: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        _append(root, **given)
    assert not (root / "evidence").exists()


def test_an_output_that_is_missing_empty_or_a_link_is_refused(root: Path) -> None:
    Path("empty").touch()
    Path("file").write_text("x")
    Path("link").symlink_to("file")

    for name, said in (("gone", "cannot read"), ("empty", "is empty"), ("link", "symbolic link")):
        with pytest.raises(DataError, match=said):
            _append(root, outputs=[name])
    assert not (root / "evidence").exists()


def test_no_scratch_tree_is_made_by_the_way(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no scratch tree"):
        _append(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_inside_a_task_the_worker_and_the_record_say_the_rest(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool.create(f"{root}/taskq")
    spool.enqueue("wan-3", "true", timed=True, family="wan/480p")
    record = spool.show("wan-3").record
    for name, value in {
        "FLEET_ROOT": str(root),
        "FLEET_SPOOL": f"{root}/taskq",
        "FLEET_TASK": "wan-3",
        "FLEET_ATTEMPT": "2",
        "FLEET_OWNER": "41.0.1.abcdefgh-7",
        "FLEET_FAMILY": "wan/480p",
        "FLEET_BATCH": "4",
        "FLEET_BATCH_HASH": "sha256:" + "a" * 64,
        "FLEET_GPUS": "GPU-1,GPU-2",
        "SLURM_JOB_ID": "41",
        "SLURM_STEP_ID": "0",
    }.items():
        monkeypatch.setenv(name, value)

    made = append("main", arm="full", seed=1, metrics={"fps": 11})

    who = made.producer
    assert (who.task, who.spool, who.attempt, who.job) == ("wan-3", "taskq", 2, "41")
    assert (who.owner, who.gpus) == ("41.0.1.abcdefgh-7", ("GPU-1", "GPU-2"))
    assert (made.batch, made.batch_table_sha256, made.family) == (4, "a" * 64, "wan/480p")
    assert made.command_identity == record.identity
    assert made.timed is True
    assert made.metrics == {"fps": 11.0}
    [file] = read_set(f"{root}/evidence", "main").files
    assert file.path == "41.0.1.abcdefgh-7.jsonl"


def test_what_the_caller_says_wins(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_BATCH", "4")
    monkeypatch.setenv("FLEET_FAMILY", "wan")

    made = _append(root, batch=1, family="hunyuan", timed=True, device="H200")

    assert (made.batch, made.family, made.timed, made.device) == (1, "hunyuan", True, "H200")


def test_outside_a_task_nothing_is_made_up(root: Path) -> None:
    made = _append(root)

    assert (made.batch, made.stack, made.device, made.encoder) == (None, {}, "", "")
    assert (made.command_identity, made.producer.task, made.timed) == ("", "", False)


def test_the_encoder_record_beside_an_output_is_taken(root: Path) -> None:
    from fleetcraft.video.encoder import EncoderRecord, EncoderSettings

    record = EncoderRecord(
        settings=EncoderSettings(qp=12),
        encoder_version="core 164",
        encoder_options=None,
        libavcodec="61",
        libswscale="8",
        pyav="18",
        converter=(),
    )
    Path("clip.mp4").write_bytes(b"video")
    Path("clip.mp4.encoder.json").write_bytes(record.to_json())

    beside = _append(root, outputs=["clip.mp4"])
    named = _append(root, encoder="clip.mp4.encoder.json")

    assert beside.encoder_sha256 == named.encoder_sha256 == sha256_hex(record.to_json())
    assert beside.encoder == "libx264 yuv420p medium qp=12"


def test_outputs_of_two_encoders_are_no_one_result(root: Path) -> None:
    for number in (1, 2):
        Path(f"{number}.mp4").write_bytes(b"v")
        Path(f"{number}.mp4.encoder.json").write_text(f'{{"crf": {number}}}')

    with pytest.raises(DataError, match="different encoder records"):
        _append(root, outputs=["1.mp4", "2.mp4"])
    for text in ("", "[]", "{}", "no"):
        Path("odd.json").write_text(text)
        with pytest.raises(DataError):
            _append(root, encoder="odd.json")


def test_versions_are_those_of_libraries_that_are_loaded(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = types.ModuleType("torch")
    torch.__version__ = "2.13.0+cu130"  # type: ignore[attr-defined]
    torch.version = types.SimpleNamespace(cuda="13.0")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "diffusers", raising=False)  # of another test, that is

    made = _append(root, stack={"mine": "7"})

    assert made.stack["torch"] == "2.13.0+cu130"
    assert (made.stack["cuda"], made.stack["mine"]) == ("13.0", "7")
    assert "diffusers" not in made.stack
    assert made.stack_sha256
    assert made.device == ""  # torch has no cuda that is in use


def test_a_rerun_keeps_the_grid_of_what_it_repeats_while_its_scripts_are_the_same(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("gen.py").write_text("1")
    Path("grid.yaml").write_text("name: main\narms: [full]\nseeds: [3]\nscripts: [gen.py]\n")
    paths = EvidencePaths(f"{root}/evidence")
    grid = freeze(paths, read_grid_file("grid.yaml"), ".")[0].grid
    first = _append(root, grid_sha256=grid.sha256)
    assert complete(paths, "main")[3]
    monkeypatch.setenv("FLEET_RERUN_OF", "gen")

    again = _append(root, grid_sha256=grid.sha256, seed=4)
    assert (again.grid, again.grid_sha256) == (first.grid, first.grid_sha256)
    with pytest.raises(DataError, match="it was run for grid 111111111111, and frozen is"):
        _append(root, grid_sha256="1" * 64)
    Path("gen.py").write_text("2")
    assert (_append(root).grid, _append(root).grid_sha256) == ("", "")
    assert read_set(paths.folder, "main").results == [first]


def test_a_rerun_appends_beside_what_it_repeats(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _append(root)
    monkeypatch.setenv("FLEET_RERUN_OF", "gen-3")
    again = _append(root)
    assert read_set(f"{root}/evidence", "main").results == [first]
    assert read_set(f"{root}/evidence", "main.rerun").results == [again]


def test_a_set_whose_reruns_would_have_no_name_is_refused_at_once(root: Path) -> None:
    with pytest.raises(UsageError, match="the set of its reruns"):
        append("s" * 60, arm="full", seed=1, root=root)
    assert append("s" * 58, arm="full", seed=1, root=root).seed == 1


def test_scalars_and_versions_of_libraries_are_taken_as_they_come(root: Path) -> None:
    import numpy as np

    class Version(str):
        """As torch.__version__ is."""

    made = _append(root, metrics={"score": np.float32(0.5)}, stack={"torch": Version("2.13.0")})
    assert made.metrics == {"score": 0.5}
    assert made.stack["torch"] == "2.13.0"


def test_appending_loads_no_heavy_library() -> None:
    code = (
        "import sys, fleetcraft.evidence; fleetcraft.evidence.append;"
        "print([m for m in ('torch', 'numpy', 'pandas', 'av', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_package_names_what_it_offers() -> None:
    assert fleetcraft.evidence.stamp is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fleetcraft.evidence.nothing
