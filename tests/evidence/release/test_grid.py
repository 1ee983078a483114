"""A grid is declared, frozen, filled and released in order, and each step is put once."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.errors import ConfigError, DataError
from fleetcraft.evidence import append
from fleetcraft.evidence.release.cells import completeness
from fleetcraft.evidence.release.grid import (
    Grid,
    GridRefusedError,
    GridState,
    Standing,
    advance,
    changed_scripts,
    freeze,
    read_standing,
)
from fleetcraft.evidence.release.grid_file import read_grid_file
from fleetcraft.evidence.results.sets import read_set
from fleetcraft.files import FileSystem
from fleetcraft.layout.evidence import EvidencePaths
from tests.evidence.result_rows import result, room

_GRID = """\
name: g
arms: [full, cached]
seeds: [0, 1]
scripts: [run.py]
endpoints: [score]
"""


def _write(tmp_path: Path, text: str = _GRID) -> str:
    folder = tmp_path / "project"
    folder.mkdir(exist_ok=True)
    (folder / "run.py").write_text("print(1)\n")
    (folder / "grid.yaml").write_text(text)
    return str(folder / "grid.yaml")


def _freeze(tmp_path: Path, text: str = _GRID, **more: Any) -> tuple[EvidencePaths, Standing]:
    paths, path = room(tmp_path), _write(tmp_path, text)
    standing, _ = freeze(paths, read_grid_file(path), str(tmp_path / "project"), **more)
    return paths, standing


def _result(tmp_path: Path, arm: str, seed: int, **more: Any) -> Any:
    given = {"metrics": {"score": 0.5}, **more}
    return append("g", arm=arm, seed=seed, root=tmp_path / "root", **given)


def _fill(tmp_path: Path) -> None:
    for arm in ("full", "cached"):
        for seed in (0, 1):
            _result(tmp_path, arm, seed)


# -- declaring


def test_a_grid_file_becomes_cells(tmp_path: Path) -> None:
    text = "name: g\narms: [a]\nseeds: {first: 3, last: 5}\ncandidates: [x, y]\n"
    grid = read_grid_file(_write(tmp_path, text))

    assert list(grid.cells()) == [("a", c, s) for c in ("x", "y") for s in (3, 4, 5)]
    assert grid.size == 6


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("name: g\narms: [a]\n", 1, "no seeds"),
        ("name: g\narms: [a]\nseeds: [1]\nsedes: [2]\n", 4, "no 'sedes'"),
        ("name: g\nname: h\narms: [a]\nseeds: [1]\n", 2, "stands twice, first in line 1"),
        ("name: a b\narms: [a]\nseeds: [1]\n", 1, "no name"),
        ("name: g\narms: [a, a]\nseeds: [1]\n", 2, "'a' 2 times"),
        ("name: g\narms: []\nseeds: [1]\n", 2, "arms is empty"),
        ("name: g\narms: [a]\nseeds: [x]\n", 3, "expected a whole number"),
        ("name: g\narms: [a]\nseeds: {first: 5, last: 3}\n", 3, "from 5 to 3"),
        ("name: g\narms: [a]\nseeds: [1]\nscripts: [gone.py]\n", 4, "cannot read the script"),
        ("name: g\narms: [a]\nseeds: [1]\nscripts: [/etc/passwd]\n", 4, "is absolute"),
        ("name: g\narms: [a]\nseeds: [1]\ntasks: abc\n", 4, "expected the sha256"),
        ("name: g\narms: [a]\nseeds: !!python/name:os.system [1]\n", 3, "has a tag"),
        ("name: 7\narms: [a]\nseeds: [1]\n", 1, "expected text"),
        ("- a\n", 1, "a grid is a list"),
        ("name: [\n", 2, "not YAML"),
        ("", 1, "a grid is nothing"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"line {line}: .*{said}"):
        read_grid_file(_write(tmp_path, text))


def test_the_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    one = read_grid_file(_write(tmp_path))
    (tmp_path / "other").mkdir()
    other = read_grid_file(_write(tmp_path / "other", f"# a word\n{_GRID}"))
    (tmp_path / "other" / "project" / "run.py").write_text("print(2)\n")
    edited = read_grid_file(str(tmp_path / "other" / "project" / "grid.yaml"))

    assert one.sha256 == other.sha256 != edited.sha256


# -- freezing


def test_a_grid_is_frozen_once_and_the_same_may_be_frozen_again(tmp_path: Path) -> None:
    paths, standing = _freeze(tmp_path)
    again, fresh = freeze(paths, standing.grid, str(tmp_path / "project"))

    assert (standing.state, fresh) == (GridState.FROZEN, False)
    assert again.digest(GridState.FROZEN) == standing.digest(GridState.FROZEN)


def test_another_grid_of_the_name_is_refused_and_the_field_named(tmp_path: Path) -> None:
    paths, standing = _freeze(tmp_path)
    path = _write(tmp_path, _GRID.replace("[0, 1]", "[0, 1, 2]"))

    with pytest.raises(GridRefusedError, match="frozen already with other seeds"):
        freeze(paths, read_grid_file(path), str(tmp_path / "project"))
    assert read_standing(paths, "g").grid == standing.grid


def test_states_follow_one_another_and_none_is_skipped(tmp_path: Path) -> None:
    paths, _ = _freeze(tmp_path)
    with pytest.raises(GridRefusedError, match="is FROZEN"):
        advance(paths, "g", GridState.COMPLETE)
    with pytest.raises(GridRefusedError, match="no grid 'other' is frozen"):
        advance(paths, "other", GridState.RUNNING)

    for state in (GridState.RUNNING, GridState.COMPLETE, GridState.RELEASED):
        standing, fresh = advance(paths, "g", state)
        assert (standing.state, fresh) == (state, True)
        assert advance(paths, "g", state)[1] is False


@pytest.mark.parametrize("state", [GridState.FROZEN, GridState.RUNNING])
def test_a_record_of_a_state_that_was_changed_is_not_trusted(
    tmp_path: Path, state: GridState
) -> None:
    paths, _ = _freeze(tmp_path)
    advance(paths, "g", GridState.RUNNING)
    path = Path(paths.grid_state("g", state))
    data = path.read_bytes()
    for place in range(0, len(data) - 1, 7):
        flipped = bytearray(data)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(DataError, match="cannot be trusted"):
            read_standing(paths, "g")
    path.unlink()
    if state is GridState.FROZEN:
        with pytest.raises(DataError, match="cannot be trusted"):
            read_standing(paths, "g")


def test_a_state_of_another_grid_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    paths, _ = _freeze(tmp_path)
    advance(paths, "g", GridState.RUNNING)
    other, _ = _freeze(tmp_path / "b", _GRID.replace("[0, 1]", "[0, 1, 2]"))
    shutil.copy(paths.grid_state("g", GridState.RUNNING), other.grid_state("g", GridState.RUNNING))

    with pytest.raises(DataError, match="does not follow"):
        read_standing(other, "g")


class _LyingFS(FileSystem):
    """Links, and reports that as failed."""

    def link(self, source: str, destination: str) -> None:
        super().link(source, destination)
        raise OSError(errno.EIO, "lost")


class _FullFS(FileSystem):
    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        raise OSError(errno.ENOSPC, "no space")


def test_a_freeze_that_was_reported_as_failed_has_happened(tmp_path: Path) -> None:
    _, standing = _freeze(tmp_path, fs=_LyingFS())
    assert standing.state is GridState.FROZEN


def test_a_full_disk_freezes_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space"):
        _freeze(tmp_path, fs=_FullFS())
    assert read_standing(room(tmp_path), "g").state is GridState.DRAFT


class _Stop(Exception):
    """The process ends here."""


class _StoppingFS(FileSystem):
    """Ends at its k-th operation."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.left = k

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name in ("create", "link", "sync_folder", "unlink"):
            self.left -= 1
            if self.left < 0:
                raise _Stop
        return value


@pytest.mark.parametrize("k", range(4))
def test_a_crash_anywhere_leaves_a_state_whole_or_absent(tmp_path: Path, k: int) -> None:
    with pytest.raises(_Stop):
        _freeze(tmp_path, fs=_StoppingFS(k))
    paths = room(tmp_path)
    assert read_standing(paths, "g").state in (GridState.DRAFT, GridState.FROZEN)

    _freeze(tmp_path)
    with pytest.raises(_Stop):
        advance(paths, "g", GridState.RUNNING, fs=_StoppingFS(k))
    assert advance(paths, "g", GridState.RUNNING)[0].state is GridState.RUNNING


# -- the door


def test_the_first_result_starts_the_grid_and_carries_its_digest(tmp_path: Path) -> None:
    paths, standing = _freeze(tmp_path)

    made = _result(tmp_path, "full", 0)

    assert (made.grid, made.grid_sha256) == ("g", standing.grid.sha256)
    assert read_standing(paths, "g").state is GridState.RUNNING


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"arm": "other"}, "declares no arm 'other'"),
        ({"seed": 2}, "declares no seed 2"),
        ({"candidate": "x"}, "declares no candidate 'x'"),
        ({"metrics": {"fps": 1.0}}, "it has no 'score'"),
        ({"grid_sha256": "0" * 64}, "run for grid 000000000000"),
    ],
)
def test_a_result_of_no_cell_or_another_grid_is_refused_not_merged(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    paths, _ = _freeze(tmp_path)

    with pytest.raises(DataError, match=said):
        _result(tmp_path, **{"arm": "full", "seed": 0, **given})

    assert not Path(paths.result_set("g")).exists()


def test_a_task_that_was_enqueued_for_another_grid_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _freeze(tmp_path)
    monkeypatch.setenv("FLEET_GRID", "1" * 64)
    with pytest.raises(DataError, match="run for grid 111111111111"):
        _result(tmp_path, "full", 0)
    with pytest.raises(DataError, match="no grid is frozen"):
        append("free", arm="full", seed=0, root=tmp_path / "root")


def test_an_edited_script_is_refused_by_name_and_taken_again_when_it_is_as_it_was(
    tmp_path: Path,
) -> None:
    paths, _ = _freeze(tmp_path)
    script = tmp_path / "project" / "run.py"
    script.write_text("print(2)\n")
    with pytest.raises(DataError, match=r"frozen script run\.py was edited"):
        _result(tmp_path, "full", 0)
    script.unlink()
    assert changed_scripts(read_standing(paths, "g")) == ["run.py is gone"]

    script.write_text("print(1)\n")
    _result(tmp_path, "full", 0)


def test_scripts_are_found_through_links_and_after_both_have_moved(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    _freeze(whole)
    moved = tmp_path / "moved"
    whole.rename(moved)
    (tmp_path / "link").symlink_to(moved)

    assert changed_scripts(read_standing(room(moved), "g")) == []
    assert changed_scripts(read_standing(room(tmp_path / "link"), "g")) == []


def test_a_complete_grid_takes_no_more(tmp_path: Path) -> None:
    paths, _ = _freeze(tmp_path)
    _fill(tmp_path)
    advance(paths, "g", GridState.COMPLETE)

    with pytest.raises(DataError, match="COMPLETE and takes no more"):
        _result(tmp_path, "full", 0)


# -- completeness


def _grid(tmp_path: Path) -> Grid:
    return read_grid_file(_write(tmp_path))


def test_every_cell_needs_exactly_one_result(tmp_path: Path) -> None:
    paths, standing = _freeze(tmp_path)
    _fill(tmp_path)
    rows = [(row.result, row.sha256) for row in read_set(paths.folder, "g").rows]

    assert completeness(standing.grid, rows).complete
    lacking = completeness(standing.grid, rows[1:])
    assert (lacking.complete, lacking.missing) == (False, ("full/0",))
    doubled = completeness(standing.grid, [*rows, rows[0]])
    assert (doubled.complete, doubled.doubled, doubled.filled) == (False, ("full/0",), 3)


def test_results_that_do_not_count_are_counted_by_why(tmp_path: Path) -> None:
    grid = _grid(tmp_path)
    ours = {"grid_sha256": grid.sha256}
    rows = [
        result("full", 0, **ours),
        result("full", 1),
        result("full", 1, grid_sha256="0" * 64),
        result("full", 7, **ours),
        result("cached", 0, None, **ours),
    ]

    found = completeness(grid, ((row, row.nonce) for row in rows))

    assert (found.filled, found.foreign, found.undeclared, found.without_endpoint) == (1, 2, 1, 1)
    assert found.missing == ("full/1", "cached/0", "cached/1")


def test_scripts_are_found_where_a_link_lies_deeper_than_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir(mode=0o700)
    code = tmp_path / "home/me/project"
    code.mkdir(parents=True)
    (code / "scratch").symlink_to(tmp_path / "scratch")
    grid = read_grid_file(_write(code.parent))

    standing, _ = freeze(EvidencePaths(str(code / "scratch/evidence")), grid, str(code))

    assert changed_scripts(standing) == []
    assert standing.base == str(code)
