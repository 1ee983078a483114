"""The one move: what it says when the destination is taken, the source gone, or the mount lies."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fleetcraft.errors import IntegrityError
from fleetcraft.files import FileSystem
from fleetcraft.layout import Lane, State
from fleetcraft.spool import claims
from fleetcraft.spool.claims import claim
from fleetcraft.spool.record import Outcome
from fleetcraft.spool.tree import SpoolTree
from tests.quick_fs import QuickFS
from tests.spool.acts import new_owner, publish, run, state_of


class WithoutFlags(QuickFS):
    """A mount whose rename knows no flags, as NFS."""

    def __init__(self) -> None:
        super().__init__()
        self._rename_flags_work = False


class Lying(QuickFS):
    """Does what it is asked and then reports an error, once."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def rename_new(self, source: str, destination: str) -> None:
        super().rename_new(source, destination)
        code, self.code = self.code, 0
        if code:
            raise OSError(code, os.strerror(code), source, None, destination)


@pytest.fixture(params=[QuickFS, WithoutFlags])
def files(request: pytest.FixtureRequest, tree: SpoolTree) -> SpoolTree:
    return SpoolTree(tree.paths.root, request.param())


def test_a_move_to_a_free_name_is_made(files: SpoolTree, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    assert files.move(str(tmp_path / "a"), str(tmp_path / "b")) is True
    assert (tmp_path / "b").read_text() == "a"
    assert not (tmp_path / "a").exists()


def test_a_source_that_is_gone_is_no_error(files: SpoolTree, tmp_path: Path) -> None:
    assert files.move(str(tmp_path / "a"), str(tmp_path / "b")) is False


def test_another_file_at_the_destination_is_a_fault_and_both_are_kept(
    files: SpoolTree, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(IntegrityError, match="both were kept"):
        files.move(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "a").read_text() == "a"
    assert (tmp_path / "b").read_text() == "b"


def test_a_stray_link_of_the_same_file_is_removed(files: SpoolTree, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    os.link(tmp_path / "a", tmp_path / "b")
    assert files.move(str(tmp_path / "a"), str(tmp_path / "b")) is True
    assert not (tmp_path / "a").exists()
    assert (tmp_path / "b").read_text() == "a"


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EEXIST])
def test_a_move_that_was_made_counts_whatever_was_reported(
    tree: SpoolTree, tmp_path: Path, code: int
) -> None:
    (tmp_path / "a").write_text("a")
    lying = SpoolTree(tree.paths.root, Lying(code))
    assert lying.move(str(tmp_path / "a"), str(tmp_path / "b")) is True


def test_a_move_that_failed_is_an_error_and_the_source_is_there(
    tree: SpoolTree, tmp_path: Path
) -> None:
    (tmp_path / "a").write_text("a")
    with pytest.raises(OSError, match="Not a directory"):
        tree.move(str(tmp_path / "a"), str(tmp_path / "a" / "b"))
    assert (tmp_path / "a").exists()


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EIO, errno.EEXIST])
def test_a_claim_that_was_made_is_held_whatever_was_reported(tree: SpoolTree, code: int) -> None:
    publish(tree, "t")
    lying = SpoolTree(tree.paths.root, Lying(code))
    held = claim(lying, "t", tree.find("t").path, new_owner())
    assert held is not None
    assert os.path.exists(held.path)


def test_the_second_of_two_claims_is_none(tree: SpoolTree) -> None:
    publish(tree, "t")
    path = tree.find("t").path
    assert claim(tree, "t", path, new_owner()) is not None
    assert claim(tree, "t", path, new_owner()) is None
    assert len(tree.claims()) == 1


def test_a_claim_whose_header_names_another_task_says_so(tree: SpoolTree) -> None:
    publish(tree, "t")
    os.rename(tree.find("t").path, tree.paths.pending_record("u", Lane.PLAIN))
    held = claim(tree, "u", tree.paths.pending_record("u", Lane.PLAIN), new_owner())
    assert held is not None
    assert "its header says 't'" in held.problem


def test_a_claim_with_an_unknown_directive_says_so_and_keeps_its_history(tree: SpoolTree) -> None:
    publish(tree, "t", retries=3)
    run(tree, "t", Outcome.FAILED)
    path = tree.find("t").path
    data = Path(path).read_bytes().replace(b"#FLEET retries", b"#FLEET retry")
    Path(path).write_bytes(data)
    held = claim(tree, "t", path, new_owner())
    assert held is not None
    assert "unknown directive 'retry'" in held.problem
    assert held.record.next_attempt == 2


def test_a_record_is_found_in_every_state(tree: SpoolTree) -> None:
    publish(tree, "w", after=("x",))
    publish(tree, "p")
    publish(tree, "d")
    publish(tree, "f")
    publish(tree, "r")
    run(tree, "d")
    run(tree, "f", Outcome.FAILED)
    claim(tree, "r", tree.find("r").path, new_owner())
    states = {name: state_of(tree, name) for name in "wpdfr"}
    assert states == {
        "w": State.WAITING, "p": State.PENDING, "d": State.DONE, "f": State.FAILED,
        "r": State.RUNNING,
    }  # fmt: skip


def test_a_write_that_was_made_counts_although_an_error_was_reported(tree: SpoolTree) -> None:
    class ReportsLate(QuickFS):
        told = 0

        def append(self, fd: int, data: bytes) -> None:
            super().append(fd, data)
            self.told += 1
            raise OSError(errno.EIO, "Input/output error")

    publish(tree, "t")
    fs = ReportsLate()
    closed = run(SpoolTree(tree.paths.root, fs), "t")
    assert closed is not None
    assert (closed.mine, closed.moved, fs.told) == (True, True, 1)
    assert len(tree.read(tree.find("t").path).history) == 1


def test_an_append_that_fails_is_tried_again(
    tree: SpoolTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailsTwice(QuickFS):
        left = 2

        def append(self, fd: int, data: bytes) -> None:
            if self.left:
                self.left -= 1
                os.write(fd, data[:7])  # torn
                raise OSError(errno.ENOSPC, "No space left on device")
            super().append(fd, data)

    monkeypatch.setattr(claims, "_APPEND_PAUSE_S", 0)
    publish(tree, "t")
    closed = run(SpoolTree(tree.paths.root, FailsTwice()), "t", Outcome.FAILED)
    assert closed is not None
    assert closed.moved
    record = tree.read(tree.find("t").path)
    assert [line.outcome for line in record.history] == [Outcome.FAILED]
    assert record.damaged == 2


def test_closing_needs_the_claim_to_be_there(tree: SpoolTree) -> None:
    publish(tree, "t")
    held = claim(tree, "t", tree.find("t").path, new_owner())
    assert held is not None
    assert claims.put_back(tree, held) is True
    assert claims.put_back(tree, held) is False
    assert claims.close_own(tree, held, _line(held)) is None
    assert not os.path.exists(held.path)


def test_a_line_that_holds_no_utf_8_closes_a_second_attempt_too(tree: SpoolTree) -> None:
    publish(tree, "t", retries=1)
    run(tree, "t", Outcome.FAILED)
    held = claim(tree, "t", tree.find("t").path, new_owner())
    assert held is not None
    closed = claims.close_own(tree, held, _line(held, reason="no file \udcff"))
    assert closed is not None
    assert (closed.mine, closed.moved) == (True, True)
    assert state_of(tree, "t") is State.FAILED


def _line(held: claims.Claim, reason: str = "") -> claims.HistoryLine:
    return claims.HistoryLine(
        claim=held.owner.token, outcome=Outcome.FAILED, to="failed", attempt=2, reason=reason
    )


def test_files_longer_than_one_read_are_read_whole(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"y" * 200_000)
    fs = FileSystem()
    data, facts = fs.read_with_facts(str(large))
    assert len(data) == len(fs.peek(str(large))) == facts.st_size == 200_000
    fd = fs.open_append(str(large))
    try:
        assert len(fs.read_from(fd, 10)) == 199_990
    finally:
        fs.close(fd)
