"""What another user or an accident may have put into a spool: refused, and nobody is held up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.errors import SpoolError, UnsafeSpoolError
from fleetcraft.layout import State
from fleetcraft.spool.check import check
from fleetcraft.spool.claims import claim
from fleetcraft.spool.control import Canceller
from fleetcraft.spool.promotion import Promoter
from fleetcraft.spool.store import Spool
from fleetcraft.spool.tree import SpoolTree
from tests.spool.acts import new_owner, publish, run, state_of

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def test_a_missing_spool_is_refused_with_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match="no spool at") as refused:
        Spool(str(tmp_path / "none"))
    assert "init" in refused.value.hint


@pytest.mark.parametrize("folder", ["", "pending", "pending/first", "running", "names", "tmp"])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_refused(tree: SpoolTree, folder: str, mode: int) -> None:
    os.chmod(f"{tree.paths.root}/{folder}", mode)
    with pytest.raises(UnsafeSpoolError, match="others can write it"):
        tree.check_safe()


def test_a_spool_that_anybody_could_put_another_in_place_of_is_refused(tree: SpoolTree) -> None:
    parent = os.path.dirname(tree.paths.root)
    os.chmod(parent, 0o777)
    with pytest.raises(UnsafeSpoolError, match="another spool in its place"):
        tree.check_safe()
    os.chmod(parent, 0o1777)
    assert tree.check_safe() is tree


def test_a_folder_that_others_can_only_read_is_fine(tree: SpoolTree) -> None:
    os.chmod(tree.paths.root, 0o755)
    assert tree.check_safe() is tree


def test_a_folder_that_is_a_link_is_refused(tree: SpoolTree) -> None:
    os.rmdir(tree.paths.done)
    os.symlink(tree.paths.failed, tree.paths.done)
    with pytest.raises(UnsafeSpoolError, match="no folder"):
        tree.check_safe()


@needs_root
def test_a_folder_of_another_user_is_refused(tree: SpoolTree) -> None:
    os.chown(tree.paths.pending, 12345, -1)
    with pytest.raises(UnsafeSpoolError, match="user 12345"):
        tree.check_safe()


def by_mode(path: str) -> None:
    os.chmod(path, 0o722)


def by_owner(path: str) -> None:
    os.chown(path, 12345, -1)


def by_link(path: str) -> None:
    os.rename(path, f"{path}.real")
    os.symlink(f"{path}.real", path)


def by_fifo(path: str) -> None:
    os.unlink(path)
    os.mkfifo(path)


def by_folder(path: str) -> None:
    os.unlink(path)
    os.mkdir(path)


SPOILERS = [
    by_mode,
    pytest.param(by_owner, marks=needs_root),
    by_link,
    by_fifo,
    by_folder,
]


@pytest.mark.parametrize("spoil", SPOILERS)
def test_a_record_that_is_not_ours_alone_is_not_claimed_for_good(
    tree: SpoolTree, spoil: Callable[[str], None]
) -> None:
    publish(tree, "t")
    path = tree.find("t").path
    spoil(path)
    with pytest.raises((UnsafeSpoolError, OSError)):
        claim(tree, "t", path, new_owner())
    assert os.path.lexists(path)
    assert tree.claims() == []


@pytest.mark.parametrize("spoil", SPOILERS)
def test_check_finds_it_and_other_tasks_go_on(
    tree: SpoolTree, spoil: Callable[[str], None]
) -> None:
    publish(tree, "t")
    publish(tree, "u")
    spoil(tree.find("t").path)
    report = check(tree)
    assert ("unreadable_record", "t") in {(fault.kind, fault.name) for fault in report.faults}
    run(tree, "u")
    assert state_of(tree, "u") is State.DONE


@pytest.mark.parametrize("spoil", SPOILERS)
def test_a_waiting_one_is_passed_over(tree: SpoolTree, spoil: Callable[[str], None]) -> None:
    publish(tree, "a")
    publish(tree, "t", after=("a",))
    publish(tree, "u", after=("a",))
    spoil(tree.find("t").path)
    run(tree, "a")
    assert Promoter(tree).refresh() == ["u"]


@pytest.mark.parametrize("spoil", SPOILERS)
def test_cancelling_it_fails_and_leaves_no_claim_that_nobody_can_judge(
    tree: SpoolTree, spoil: Callable[[str], None]
) -> None:
    publish(tree, "t")
    spoil(tree.find("t").path)
    with pytest.raises((UnsafeSpoolError, OSError)), Canceller(tree) as canceller:
        canceller.cancel("t")
    leases = {file.removesuffix(".json") for file in os.listdir(tree.paths.workers)}
    assert {owner.lease_name for _, owner in tree.claims()} <= leases


def test_strange_files_are_nobodys_tasks(tree: SpoolTree) -> None:
    for file in ("pending/README", "running/t.sh", "done/.nfs0001", "logs/what"):
        (Path(tree.paths.root) / file).touch(mode=0o600)
    report = check(tree)
    assert sorted(fault.name for fault in report.faults) == ["README", "t.sh"]
    assert sorted(notice.name for notice in report.notices) == [".nfs0001", "what"]
    assert tree.records(tree.paths.pending) == []
    assert tree.claims() == []
