"""Enqueueing: what a taken name means, what was cut short, batches, and mounts without links."""

from __future__ import annotations

import errno
import os

import pytest

from fleetcraft.errors import NameTakenError, SpoolError, UsageError
from fleetcraft.layout import Lane, State
from fleetcraft.spool import enqueue as publishing
from fleetcraft.spool.check import check
from fleetcraft.spool.enqueue import Published, complete_publication, enqueue, enqueue_batch
from fleetcraft.spool.record import Outcome
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.tree import SpoolTree
from tests.quick_fs import QuickFS
from tests.spool.acts import publish, record_of, run, spec, state_of


class WithoutLinks(QuickFS):
    """A mount without hard links."""

    def link(self, source: str, destination: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", source)


class StopsBeforePublishing(QuickFS):
    """A process that ends after it has taken its names."""

    def rename_new(self, source: str, destination: str) -> None:
        if "/tmp/" in source and "/names/" not in destination:
            raise KeyboardInterrupt
        super().rename_new(source, destination)


class WithoutLinksStopping(WithoutLinks, StopsBeforePublishing):
    """Both."""


@pytest.fixture(params=[QuickFS, WithoutLinks], ids=["links", "no_links"])
def any_tree(request: pytest.FixtureRequest, tree: SpoolTree) -> SpoolTree:
    """A spool on a mount with and without hard links."""
    return SpoolTree(tree.paths.root, request.param())


def cut_short(tree: SpoolTree, *names: str) -> None:
    links = isinstance(tree.fs, WithoutLinks)
    stopping = WithoutLinksStopping() if links else StopsBeforePublishing()
    with pytest.raises(KeyboardInterrupt):
        enqueue_batch(SpoolTree(tree.paths.root, stopping), [spec(name) for name in names])


@pytest.mark.parametrize("lane", Lane)
def test_a_task_is_published_into_its_lane(any_tree: SpoolTree, lane: Lane) -> None:
    assert enqueue(any_tree, spec("t", lane=lane)) is Published.ENQUEUED
    location = any_tree.find("t")
    assert (location.state, location.lane) == (State.PENDING, lane)
    assert os.listdir(any_tree.paths.tmp) == []
    assert check(any_tree).ok


def test_a_record_is_private_and_executable(tree: SpoolTree) -> None:
    publish(tree, "t")
    assert os.stat(tree.find("t").path).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("directive", [{"after": ("x",)}, {"after_files": ("f",)}])
def test_a_task_with_dependencies_waits(
    any_tree: SpoolTree, directive: dict[str, tuple[str]]
) -> None:
    enqueue(any_tree, spec("t", **directive))
    assert state_of(any_tree, "t") is State.WAITING


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(None, "pending"), (Outcome.COMPLETED, "done"), (Outcome.FAILED, "failed")],
)
def test_the_same_task_again_is_already_there_in_whatever_state(
    any_tree: SpoolTree, outcome: Outcome | None, state: str
) -> None:
    enqueue(any_tree, spec("t"))
    if outcome is not None:
        run(any_tree, "t", outcome)
    assert enqueue(any_tree, spec("t"), if_absent=True) is Published.ALREADY_THERE
    with pytest.raises(NameTakenError) as refused:
        enqueue(any_tree, spec("t"))
    assert (refused.value.same, refused.value.state) == (True, state)
    assert ("retry" in refused.value.hint) == (state == "failed")
    assert os.listdir(any_tree.paths.tmp) == []


@pytest.mark.parametrize("if_absent", [False, True])
def test_another_task_of_that_name_is_refused(any_tree: SpoolTree, if_absent: bool) -> None:
    enqueue(any_tree, spec("t", "echo one"))
    with pytest.raises(NameTakenError) as refused:
        enqueue(any_tree, spec("t", "echo two"), if_absent=if_absent)
    assert refused.value.same is False
    assert record_of(any_tree, "t").spec.command == "echo one"
    assert os.listdir(any_tree.paths.tmp) == []


def test_the_same_task_completes_an_enqueue_that_was_cut_short(any_tree: SpoolTree) -> None:
    cut_short(any_tree, "t")
    assert any_tree.locate("t") is None
    assert enqueue(any_tree, spec("t")) is Published.COMPLETED
    assert state_of(any_tree, "t") is State.PENDING
    assert check(any_tree).ok


def test_another_task_completes_it_too_and_is_then_refused(any_tree: SpoolTree) -> None:
    cut_short(any_tree, "t")
    with pytest.raises(NameTakenError):
        enqueue(any_tree, spec("t", "false"))
    assert record_of(any_tree, "t").spec.command == "true"


def test_completing_what_is_published_does_nothing(any_tree: SpoolTree) -> None:
    enqueue(any_tree, spec("t"))
    assert complete_publication(any_tree, "t") is False
    run(any_tree, "t")
    assert complete_publication(any_tree, "t") is False
    assert state_of(any_tree, "t") is State.DONE


def test_a_batch_is_published_whole_and_again_it_is_already_there(any_tree: SpoolTree) -> None:
    tasks = [spec(f"t{number}") for number in range(5)]
    report = enqueue_batch(any_tree, tasks)
    assert (report.enqueued, report.completed, report.already_there) == (5, 0, 0)
    again = enqueue_batch(any_tree, tasks, if_absent=True)
    assert (again.enqueued, again.completed, again.already_there) == (0, 0, 5)
    assert check(any_tree).ok


def test_a_batch_that_was_cut_short_is_completed_and_gets_the_rest(any_tree: SpoolTree) -> None:
    cut_short(any_tree, "t0", "t1")
    report = enqueue_batch(any_tree, [spec(f"t{number}") for number in range(4)], if_absent=True)
    assert (report.enqueued, report.completed, report.already_there) == (2, 2, 0)
    assert check(any_tree).ok


def test_nothing_of_a_batch_is_visible_before_all_of_its_names_are_taken(tree: SpoolTree) -> None:
    cut_short(tree, "gen", "enc-1")
    seen: list[tuple[int, int]] = []

    class Watching(QuickFS):
        def link(self, source: str, destination: str) -> None:
            super().link(source, destination)
            visible = os.listdir(tree.paths.pending) + os.listdir(tree.paths.waiting)
            seen.append((len(os.listdir(tree.paths.names)), len(visible) - 2))

    batch = [spec("enc-1"), spec("gen"), spec("enc-2"), spec("enc-3")]
    enqueue_batch(SpoolTree(tree.paths.root, Watching()), batch, if_absent=True)
    assert seen == [(3, 0), (4, 0)]


def test_one_taken_name_keeps_a_whole_batch_out(tree: SpoolTree) -> None:
    publish(tree, "t1", "something else")
    with pytest.raises(NameTakenError):
        enqueue_batch(tree, [spec("t0"), spec("t1"), spec("t2")])
    assert sorted(os.listdir(tree.paths.names)) == ["t1"]
    assert os.listdir(tree.paths.tmp) == []


def test_a_name_taken_meanwhile_is_reported_and_the_others_are_enqueued(
    tree: SpoolTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = publishing._sorted_out

    def late(*arguments: object, **keywords: object) -> object:
        sorted_out = real(*arguments, **keywords)  # type: ignore[arg-type]
        publish(tree, "t1", "something else")
        return sorted_out

    monkeypatch.setattr(publishing, "_sorted_out", late)
    with pytest.raises(SpoolError, match="1 of the names were taken") as refused:
        enqueue_batch(tree, [spec("t0"), spec("t1"), spec("t2")])
    assert refused.value.taken == ["t1"]
    assert record_of(tree, "t1").spec.command == "something else"
    assert state_of(tree, "t0") is state_of(tree, "t2") is State.PENDING
    assert os.listdir(tree.paths.tmp) == []


def test_a_batch_with_two_tasks_of_one_name_is_refused(tree: SpoolTree) -> None:
    with pytest.raises(UsageError, match="two tasks"):
        enqueue_batch(tree, [spec("t"), spec("t", "false")])
    assert os.listdir(tree.paths.names) == []


def test_a_batch_with_one_bad_task_is_refused_whole(tree: SpoolTree) -> None:
    with pytest.raises(UsageError):
        enqueue_batch(tree, [spec("t0"), spec("t1", "echo 'open")])
    assert os.listdir(tree.paths.names) == []


def test_a_batch_tells_of_its_progress(tree: SpoolTree) -> None:
    told: list[int] = []
    enqueue_batch(tree, [spec(f"t{number}") for number in range(1001)], progress=told.append)
    assert told == [1000, 1001]


def test_setting_up_says_whether_there_are_hard_links(tree: SpoolTree) -> None:
    without = SpoolTree(tree.paths.root, WithoutLinks())
    assert set_up(without).hard_links is False
    report = set_up(tree)
    assert report.hard_links is True
    assert report.made == ()
    assert not any(files for _, _, files in os.walk(tree.paths.root))


def test_a_mount_that_cannot_rename_between_folders_is_refused(tree: SpoolTree) -> None:
    class Quota(QuickFS):
        def rename_new(self, source: str, destination: str) -> None:
            if "/done/" in destination:
                raise OSError(errno.EXDEV, "Invalid cross-device link", source, None, destination)
            super().rename_new(source, destination)

    with pytest.raises(SpoolError, match="Invalid cross-device link"):
        set_up(SpoolTree(tree.paths.root, Quota()))
    assert not any(files for _, _, files in os.walk(tree.paths.root))


def test_a_full_disk_is_an_error_that_says_so_and_leaves_no_task(tree: SpoolTree) -> None:
    class Full(QuickFS):
        def link(self, source: str, destination: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", source)

    with pytest.raises(SpoolError, match="No space left") as refused:
        enqueue(SpoolTree(tree.paths.root, Full()), spec("t"))
    assert "enqueue the same again" in refused.value.hint
    assert os.listdir(tree.paths.names) == []
    assert enqueue(tree, spec("t")) is Published.ENQUEUED


class FailsAt(QuickFS):
    """Fails at the n-th call of one method, and performs it or not."""

    def __init__(self, method: str, at: int, *, performed: bool = False) -> None:
        super().__init__()
        self._method = method
        self._left = at
        self._performed = performed

    def _fails(self, method: str) -> bool:
        self._left -= method == self._method
        return method == self._method and self._left == 0

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        if self._fails("create"):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().create(path, data, mode=mode)

    def link(self, source: str, destination: str) -> None:
        if self._fails("link"):
            if self._performed:
                super().link(source, destination)
            raise OSError(errno.EIO, "Input/output error", source)
        super().link(source, destination)

    def exists(self, path: str) -> bool:
        if self._performed and self._left == 0 and "/names/" in path:
            raise OSError(errno.EIO, "Input/output error", path)
        return super().exists(path)


def test_a_batch_that_finds_the_disk_full_takes_no_room_itself(tree: SpoolTree) -> None:
    full = SpoolTree(tree.paths.root, FailsAt("create", 3))
    with pytest.raises(SpoolError, match="No space left"):
        enqueue_batch(full, [spec(name) for name in "abcd"])
    assert tree.fs.listdir(tree.paths.tmp) == []
    assert tree.fs.listdir(tree.paths.names) == []
    assert enqueue_batch(tree, [spec(name) for name in "abcd"]).enqueued == 4


@pytest.mark.parametrize("performed", [False, True])
def test_a_batch_that_is_cut_off_while_it_takes_names_keeps_what_may_have_one(
    tree: SpoolTree, performed: bool
) -> None:
    tasks = [spec(name) for name in "abcd"]
    ailing = SpoolTree(tree.paths.root, FailsAt("link", 2, performed=performed))
    if performed:  # found to be done when it is looked for
        assert enqueue_batch(ailing, tasks).enqueued == 4
        return
    with pytest.raises(SpoolError):
        enqueue_batch(ailing, tasks)
    assert tree.fs.listdir(tree.paths.names) == ["a"]
    assert len(tree.fs.listdir(tree.paths.tmp)) == 2, "a, and b whose link was reported as failed"
    report = enqueue_batch(tree, tasks, if_absent=True)
    assert report.enqueued + report.completed == 4


@pytest.mark.parametrize("performed", [False, True])
def test_a_probe_does_not_take_a_failure_for_a_mount_without_links(
    tree: SpoolTree, performed: bool
) -> None:
    ailing = SpoolTree(tree.paths.root, FailsAt("link", 1, performed=performed))
    ailing.fs.exists = tree.fs.exists  # type: ignore[method-assign]
    if performed:
        assert set_up(ailing).hard_links
    else:
        with pytest.raises(SpoolError, match="cannot hold a spool"):
            set_up(ailing)
    assert tree.fs.listdir(tree.paths.names) == tree.fs.listdir(tree.paths.tmp) == []


class Lies(QuickFS):
    """Reports every rename as failed that it has done."""

    def rename_new(self, source: str, destination: str) -> None:
        super().rename_new(source, destination)
        raise FileNotFoundError(errno.ENOENT, "No such file", source, None, destination)


def test_a_probe_believes_what_it_sees_and_leaves_nothing(tree: SpoolTree) -> None:
    assert set_up(SpoolTree(tree.paths.root, Lies())).hard_links
    for folder in tree.paths.folders():
        assert not [file for file in tree.fs.listdir(folder) if file.startswith(".probe-")]
