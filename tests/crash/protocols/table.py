"""The frozen batch table: the first one, and one in the place of another.

Not here: what makes a row, which tests/calibration has. Invariant that is proved: a reader finds
the table before or the table after, each whole and with its right hash, the one before is kept,
and what was cut short is refused by what workers read with.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fleetcraft.batch_table import Table, make_table, read_table, write_table, writing
from fleetcraft.batch_table.watching import TableWatch
from fleetcraft.batch_table.writing import history_path, to_yaml
from fleetcraft.calibration.freezing import freeze
from fleetcraft.calibration.records import Calibration
from fleetcraft.calibration.sweep.store import read_calibration
from fleetcraft.errors import DataError
from fleetcraft.layout import calibration_record
from tests.batch_table.rows import FAMILY, ROW
from tests.calibration.test_freezing import calibration
from tests.crash.protocol import Place, Protocol

BEFORE = make_table({FAMILY: ROW})
CUTS = (0, -1)


def _path(place: Place) -> str:
    return f"{place.root}/calibration/batch-table.yaml"


def _run(place: Place) -> Calibration:
    return read_calibration(calibration_record(f"{place.root}/run"))


def _measured(place: Place) -> None:
    (place.root / "calibration").mkdir(mode=0o700)
    (place.root / "run").mkdir(mode=0o700)
    calibration(place.root / "run")


def _with_one_before(place: Place) -> None:
    _measured(place)
    write_table(_path(place), BEFORE)


def _freeze(place: Place) -> None:
    table, _ = freeze([_run(place)], _path(place))
    place.say("frozen", table.hash)


def _prove(before: Table | None) -> Callable[[Place], None]:
    def prove(place: Place) -> None:
        now = _read(place)
        promised = [words[1] for words in place.said()]
        if promised:
            assert now is not None, "a promised table is gone"
            assert now.hash == promised[0], "another table than the promised one is there"
        elif before is not None:
            assert now is not None, "the table before is gone"
        if now is not None and now != before:
            assert set(now.families) == {"mine/1", *(before.families if before else ())}
            _the_one_before_is_kept(place, before)
        after, _ = freeze([_run(place)], _path(place))
        assert Path(_path(place)).read_bytes() == to_yaml(after).encode(), "it is not there"
        if now is None or now == before:
            _the_one_before_is_kept(place, before)
        _what_is_cut_is_refused(place, after)
        folder = os.listdir(os.path.dirname(_path(place)))
        assert len(folder) <= 3, f"more is left than a table, its history and half a file: {folder}"

    return prove


def _read(place: Place) -> Table | None:
    """As a worker sees it."""
    return TableWatch(_path(place)).look()


def _the_one_before_is_kept(place: Place, before: Table | None) -> None:
    if before is not None:
        assert read_table(history_path(_path(place), before.hash)) == before


def _what_is_cut_is_refused(place: Place, table: Table) -> None:
    data = to_yaml(table).encode()
    cut = place.root / "cut.yaml"
    for size in CUTS:
        cut.write_bytes(data[:size] if size >= 0 else data[: len(data) // 2])
        cut.chmod(0o600)
        try:
            TableWatch(str(cut)).look()
        except DataError:
            continue
        raise AssertionError(f"a table that was cut at {size} was obeyed")


def _written_in_place() -> None:
    def replace(path: str, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(fd, data[:64])
        os.write(fd, data[64:])
        os.close(fd)

    writing._replace = replace


def _history_by_moving() -> None:
    def keep(path: str, table_hash: str) -> str:
        kept = history_path(path, table_hash)
        Path(path).rename(kept)
        return kept

    writing._keep = keep


PROTOCOLS = (
    Protocol(
        "table: the first freeze", _measured, _freeze, _prove(None), 30,
        mutations=(("it is written in place", _written_in_place),),
    ),
    Protocol(
        "table: freeze another", _with_one_before, _freeze, _prove(BEFORE), 40,
        mutations=(
            ("it is written in place", _written_in_place),
            ("the one before is moved away first", _history_by_moving),
        ),
    ),
)  # fmt: skip
