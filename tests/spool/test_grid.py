"""Frozen grids: the same tasks give the same digest, and lane last takes nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.errors import DataError, FleetError, SpoolError, UnsafeSpoolError, UsageError
from fleetcraft.spool import grid
from fleetcraft.spool.store import Spool
from fleetcraft.spool.tree import SpoolTree


@pytest.fixture
def spool(tree: SpoolTree, tmp_path: Path) -> Spool:
    return Spool(tree.paths.root, project_dir=str(tmp_path), fs=tree.fs)


@pytest.fixture
def panel(spool: Spool) -> list[Any]:
    names = [f"panel-{n}" for n in range(3)]
    return [spool.spec(name, f"echo {name}", lane="last", timeout_s=60) for name in names]


def binding(spool: Spool) -> Path:
    return Path(spool.tree.paths.last_grid)


def test_the_digest_is_the_sha256_of_the_file_and_does_not_depend_on_the_order(
    spool: Spool, panel: list[Any]
) -> None:
    digest = spool.freeze_grid(panel)
    assert spool.freeze_grid(panel[::-1]) == digest
    path = Path(spool.tree.paths.grid(digest))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    assert json.loads(path.read_text())["schema"] == "fleetcraft.grid/1"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert os.listdir(spool.tree.paths.tmp) == []
    assert spool.freeze_grid(panel[:2]) != digest


def test_freezing_enqueues_nothing_and_binds_nothing(spool: Spool, panel: list[Any]) -> None:
    spool.freeze_grid(panel)
    assert sum(spool.counts().values()) == 0
    spool.enqueue("anything", "true", lane="last")


def test_a_grid_holds_tasks_of_lane_last_and_no_name_twice(spool: Spool, panel: list[Any]) -> None:
    with pytest.raises(UsageError, match="of lane last, and 'x' is of lane plain"):
        spool.freeze_grid([*panel, spool.spec("x", "true")])
    with pytest.raises(UsageError, match="two tasks are called 'panel-0'"):
        spool.freeze_grid([*panel, panel[0]])
    with pytest.raises(UsageError, match="is empty"):
        spool.freeze_grid([spool.spec("x", " ", lane="last")])
    assert not os.path.exists(spool.tree.paths.grids)


def test_only_what_was_declared_enters_the_lane(spool: Spool, panel: list[Any]) -> None:
    spool.bind_grid(spool.freeze_grid(panel))
    assert spool.enqueue_many(panel).enqueued == 3
    with pytest.raises(SpoolError, match="declares no task of this name") as caught:
        spool.enqueue("invented", "true", lane="last")
    assert (caught.value.exit_code, caught.value.field) == (5, "name")
    assert caught.value.setting == "pack.last_grid"
    # The other lanes are as they were.
    spool.enqueue("plain", "true")
    spool.enqueue("first", "true", lane="first")


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"command": "echo panel-0 # tuned"}, "command"),
        ({"timeout_s": 61}, "directive 'timeout'"),
        ({"retries": 1}, "directive 'retries'"),
        ({"project_dir": "/elsewhere"}, "project directory"),
    ],
)
def test_a_refusal_names_the_field_that_differs(
    spool: Spool, panel: list[Any], changed: dict[str, Any], field: str
) -> None:
    spool.bind_grid(spool.freeze_grid(panel))
    given = {"command": "echo panel-0", "timeout_s": 60, **changed}
    with pytest.raises(SpoolError, match=f"its {field} is not the one") as caught:
        spool.enqueue("panel-0", lane="last", **given)
    assert caught.value.field == field
    assert sum(spool.counts().values()) == 0


def test_a_batch_with_one_undeclared_task_is_refused_whole(spool: Spool, panel: list[Any]) -> None:
    spool.bind_grid(spool.freeze_grid(panel[:1]))
    with pytest.raises(SpoolError, match=r"'panel-1' in lane last.*\(1 more are refused\)"):
        spool.enqueue_many([spool.spec("plain", "true"), *panel])
    assert sum(spool.counts().values()) == 0


def test_a_task_that_waits_for_others_is_judged_when_it_is_enqueued(
    spool: Spool, panel: list[Any]
) -> None:
    spool.bind_grid(spool.freeze_grid(panel))
    with pytest.raises(SpoolError, match="declares no task"):
        spool.enqueue("later", "true", lane="last", after=("x",))


def test_bytes_that_are_no_text_can_be_declared(spool: Spool) -> None:
    odd = os.fsdecode(b"/proj\xffect")
    task = spool.spec("odd", "echo \udcfe", lane="last", project_dir=odd, outputs=("ü",))
    spool.bind_grid(spool.freeze_grid([task]))
    assert spool.enqueue_many([task]).enqueued == 1
    with pytest.raises(SpoolError, match="its command is not"):
        spool.enqueue("odd", "echo \udcfd", lane="last", project_dir=odd, outputs=("ü",))


# -- the binding


def test_a_lane_is_bound_once_and_to_another_grid_only_when_that_is_said(
    spool: Spool, panel: list[Any]
) -> None:
    old, new = spool.freeze_grid(panel), spool.freeze_grid(panel[:1])
    assert spool.bind_grid(old) is True
    assert spool.bind_grid(old) is False
    with pytest.raises(SpoolError, match=f"bound to the frozen grid {old}"):
        spool.bind_grid(new)
    with pytest.raises(SpoolError, match="nothing was changed"):
        spool.bind_grid(new, instead_of=new)
    assert binding(spool).read_text() == f"{old}\n"
    assert spool.bind_grid(new, instead_of=old) is True
    assert binding(spool).read_text() == f"{new}\n"
    assert os.listdir(spool.tree.paths.tmp) == []


def test_a_lane_is_bound_only_to_a_grid_that_is_there_and_whole(
    spool: Spool, panel: list[Any]
) -> None:
    with pytest.raises(SpoolError, match="has no frozen grid"):
        spool.bind_grid("0" * 64)
    digest = spool.freeze_grid(panel)
    path = Path(spool.tree.paths.grid(digest))
    path.write_bytes(path.read_bytes().replace(b"panel-0", b"panel-9"))
    with pytest.raises(DataError, match="was changed: its sha256 is"):
        spool.bind_grid(digest)
    assert not binding(spool).exists()


def test_of_two_that_bind_at_once_one_is_refused(spool: Spool, panel: list[Any]) -> None:
    digests = [spool.freeze_grid(panel[:n]) for n in (1, 2, 3)]
    answers: list[object] = []
    start = threading.Barrier(len(digests))

    def bind(digest: str) -> None:
        start.wait()
        try:
            answers.append(spool.bind_grid(digest))
        except FleetError as error:
            answers.append(type(error).__name__)

    threads = [threading.Thread(target=bind, args=(digest,)) for digest in digests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answers)) == ["SpoolError", "SpoolError", "True"]


@pytest.mark.parametrize("text", ["", "abc\n", "g" * 64, "0" * 63])
def test_a_binding_that_cannot_be_read_admits_nothing(
    spool: Spool, panel: list[Any], text: str
) -> None:
    spool.freeze_grid(panel)
    binding(spool).write_text(text)
    binding(spool).chmod(0o600)
    with pytest.raises(DataError, match="admits nothing"):
        spool.enqueue_many(panel)
    assert "is not known" in grid.LastLane(spool.tree).objection(spool_record(spool))


def test_a_binding_that_others_can_write_is_refused(spool: Spool, panel: list[Any]) -> None:
    spool.bind_grid(spool.freeze_grid(panel))
    binding(spool).chmod(0o622)
    with pytest.raises(UnsafeSpoolError):
        spool.enqueue_many(panel)
    assert "others can write it" in grid.LastLane(spool.tree).objection(spool_record(spool))


def spool_record(spool: Spool) -> Any:
    spool.enqueue("record", "true", if_absent=True)
    return spool.show("record").record


# -- the project's setting


def test_the_setting_governs_a_lane_that_is_not_bound_yet(spool: Spool, panel: list[Any]) -> None:
    digest = spool.freeze_grid(panel)
    grid.refuse_undeclared(spool.tree, panel, configured=digest)
    with pytest.raises(SpoolError, match="declares no task"):
        grid.refuse_undeclared(
            spool.tree, [spool.spec("x", "true", lane="last")], configured=digest
        )


def test_a_setting_that_differs_from_the_binding_is_told_and_nothing_is_admitted(
    spool: Spool, panel: list[Any]
) -> None:
    bound, wanted = spool.freeze_grid(panel), spool.freeze_grid(panel[:1])
    spool.bind_grid(bound)
    with pytest.raises(SpoolError, match="pack.last_grid is") as caught:
        grid.refuse_undeclared(spool.tree, panel[:1], configured=wanted)
    assert (caught.value.found, caught.value.expected) == (bound, wanted)
    assert caught.value.hint.startswith("fleetcraft grid bind")
