"""A watcher among many: its share of the waiting tasks, its pauses, and globs over much."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fleetcraft.errors import IntegrityError
from fleetcraft.layout import Lane, State
from fleetcraft.spool import control, globs, promotion
from fleetcraft.spool.enqueue import enqueue_batch
from fleetcraft.spool.promotion import Promoter
from fleetcraft.spool.tree import SpoolTree
from tests.quick_fs import QuickFS
from tests.spool.acts import publish, run, spec, state_of


def test_every_waiting_task_is_met_although_each_watcher_has_but_a_share(
    tree: SpoolTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "_LEAST_SHARE", 3)
    monkeypatch.setattr(promotion, "MAX_WATCHED", 3)
    publish(tree, "a")
    enqueue_batch(tree, [spec(f"t{n}", after=("a",)) for n in range(10)])
    promoter = Promoter(tree, index=40, count=64)
    promoter.refresh()
    assert len(promoter) == 3
    run(tree, "a")
    promoted = [name for _ in range(6) for name in promoter.refresh()]
    assert sorted(promoted) == [f"t{n}" for n in range(10)]


def test_a_thousand_watchers_do_not_look_a_thousand_times_as_often(tree: SpoolTree) -> None:
    one, many = Promoter(tree), Promoter(tree, 7, 1_000)
    assert (one.is_one_of_many, many.is_one_of_many) == (False, True)
    assert one.pause_s(0.0) == 2.0
    assert 1_000 / many.pause_s(0.0) <= 8
    assert one.pause_s(1.0) == 50.0


@pytest.mark.parametrize("few", [0, 100])
def test_a_glob_over_many_is_met_when_the_last_match_is_done(
    tree: SpoolTree, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    # By one listing of done/, or by a look at each match.
    monkeypatch.setattr(globs, "_FEW", few)
    enqueue_batch(tree, [spec(f"enc-{n}") for n in range(5)])
    publish(tree, "enc-t", after=("enc-*",))
    publish(tree, "u", after=("enc-[0-3]", "nobody-*"))
    promoter = Promoter(tree)
    for name in ("enc-0", "enc-4", "enc-1", "enc-3"):
        assert promoter.refresh() == []
        run(tree, name)
        assert promoter.finished(name) == []
    run(tree, "enc-2")
    assert [*promoter.finished("enc-2"), *promoter.refresh()] == ["enc-t"]
    assert state_of(tree, "u") is State.WAITING


class _Away(QuickFS):
    """A mount that does not tell of one path for a while."""

    path = ""

    def exists(self, path: str) -> bool:
        if self.path and path.endswith(self.path):
            raise OSError(errno.ESTALE, "Stale file handle", path)
        return super().exists(path)


@pytest.mark.parametrize("seen_before", [False, True])
def test_a_look_that_failed_keeps_no_task_waiting_for_ever(
    tree: SpoolTree, seen_before: bool
) -> None:
    publish(tree, "a")
    publish(tree, "b")
    publish(tree, "t", after=("a", "b"))
    fs = _Away()
    promoter = Promoter(SpoolTree(tree.paths.root, fs))
    if seen_before:
        promoter.refresh()
        run(tree, "a")
    fs.path = "/done/b.sh" if seen_before else "/done/a.sh"
    with pytest.raises(OSError, match="Stale"):
        promoter.refresh()
    fs.path = ""
    for name in ("b",) if seen_before else ("a", "b"):
        run(tree, name)
    assert promoter.refresh() == ["t"]


def test_a_task_whose_place_is_taken_hinders_no_other(tree: SpoolTree) -> None:
    publish(tree, "a")
    for name in ("t", "u", "v"):
        publish(tree, name, after=("a",))
    run(tree, "a")
    Path(tree.paths.pending_record("t", Lane.PLAIN)).write_text("another\n")
    with pytest.raises(IntegrityError):
        Promoter(tree).refresh()
    assert [state_of(tree, name) for name in ("u", "v")] == [State.PENDING] * 2


def test_promote_by_hand_meets_all_however_many_wait(
    tree: SpoolTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "_LEAST_SHARE", 3)
    monkeypatch.setattr(promotion, "MAX_WATCHED", 3)
    publish(tree, "a")
    enqueue_batch(tree, [spec(f"t{n}", after=("never",)) for n in range(8)])
    publish(tree, "u", after=("a",))
    run(tree, "a")
    assert control.promote(tree) == ["u"]


def test_a_glob_matches_no_leftover_of_the_file_system(tree: SpoolTree) -> None:
    publish(tree, "a")
    publish(tree, "t", after=("*",))
    Path(tree.paths.names, ".nfs0001").touch()
    run(tree, "a")
    assert Promoter(tree).refresh() == ["t"]
