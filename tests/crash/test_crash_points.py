"""Every operation of the spool, ended by SIGKILL or failing at each of its file operations in turn.

Real processes on a real file system; a second process then recovers, repairs, gives the command
again and proves that nothing is lost and nothing finished runs twice. It disturbs at our own
`FileSystem`, which is coarser than the crash matrix (`test_matrix`) and several times as fast: so
every step is tried in each run of the tests, and the matrix's only in part. Not here:
interleavings, which tests/explore has.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.crash import disturbing
from tests.crash.disturbing import explained, folder_in_memory
from tests.crash.protocols.spool import PROTOCOLS

ERRNOS = ("EIO", "ENOSPC", "EACCES", "ESTALE", "EDQUOT")  # two for each; the matrix has all
NAMES = [protocol.name for protocol in PROTOCOLS]
# Fewest file operations of ours that an act consists of, counted when this was written: a guard
# against a harness that no longer reaches the code.
FEWEST_STEPS = {
    "spool: batch enqueue": 14, "spool: finish, completed": 15, "spool: recover": 8,
    "spool: cancel a waiting one": 18, "spool: retry": 8,
}  # fmt: skip
FEWEST = 4


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as made:
        yield made


disturbed = partial(disturbing.disturbed, "tests.crash.server")


@pytest.mark.parametrize("operation", NAMES)
def test_nothing_is_lost_when_a_process_is_killed_at_any_file_operation(
    operation: str, folder: Path
) -> None:
    report = disturbed(folder, operation, [["kill before"], ["kill after"]])
    assert report["count"] == 0, explained(report)
    assert report["points"] >= 2 * FEWEST_STEPS.get(operation, FEWEST)


@pytest.mark.parametrize("operation", NAMES)
def test_nothing_is_lost_when_any_file_operation_fails(operation: str, folder: Path) -> None:
    turn = NAMES.index(operation)
    codes = [ERRNOS[turn % len(ERRNOS)], ERRNOS[(turn + 2) % len(ERRNOS)]]
    report = disturbed(folder, operation, [["raise", code] for code in codes])
    assert report["count"] == 0, explained(report)
    # Closing a file is not made to fail.
    assert report["points"] >= len(codes) * (FEWEST_STEPS.get(operation, FEWEST) - 3)


@pytest.mark.parametrize("operation", NAMES)
def test_nothing_is_lost_when_everything_fails_from_some_file_operation_on(
    operation: str, folder: Path
) -> None:
    code = ("ESTALE", "ENOSPC")[NAMES.index(operation) % 2]
    report = disturbed(folder, operation, [["from", code]])
    assert report["count"] == 0, explained(report)
    assert report["points"] >= FEWEST_STEPS.get(operation, FEWEST) - 2


@pytest.mark.parametrize("operation", NAMES)
def test_nothing_is_lost_when_a_rename_or_link_is_done_and_reported_as_failed(
    operation: str, folder: Path
) -> None:
    report = disturbed(folder, operation, [["lie", "ENOENT"], ["lie", "EIO"], ["lie", "EEXIST"]])
    assert report["count"] == 0, explained(report)
    assert report["points"] >= 3


@pytest.mark.parametrize(
    ("operation", "how", "broken"),
    [
        ("spool: cancel a pending one", ["raise", "EIO"], "withdraw_the_lease_of_an_open_claim"),
        ("spool: roll forward", ["kill before"], "run_without_a_last_look"),
    ],
)
def test_the_crash_points_show_a_broken_rule(
    operation: str, how: list[str], broken: str, folder: Path
) -> None:
    report = disturbed(folder, operation, [how], broken)
    assert report["count"] > 0
