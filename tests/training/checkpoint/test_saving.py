"""A save: ranks that agree, one rename that publishes, and every way in which it is cut short."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fleetcraft.errors import UsageError
from fleetcraft.layout.checkpoints import MANIFEST, record_of
from fleetcraft.training.checkpoint.agreement import SaveTimeoutError, launch_of
from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.records import (
    CheckpointError,
    CheckpointUnknownError,
    Kind,
    Level,
    Part,
    SaveFencedError,
    SaveTakenError,
    Topology,
)
from fleetcraft.training.checkpoint.saving import Saving
from fleetcraft.training.checkpoint.store import CheckpointStore
from tests.training.checkpoint.stores import (
    Crash,
    Interrupted,
    copies,
    fill,
    os_error,
    save,
)

REPO = Path(__file__).resolve().parents[3]
LOST_ANSWERS = ("rename_new", "link", "make_folder", "create")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def of_ranks(store: CheckpointStore, step: int, count: int, nonce: str = "abcd") -> list[Saving]:
    return [
        store.save(step, rank=rank, world_size=count, nonce=nonce, protocol=PLAIN_RUN, wait_s=0)
        for rank in range(count)
    ]


def test_a_save_is_committed_whole_and_exact(store: CheckpointStore) -> None:
    manifest = save(store, 30)
    assert (manifest.kind, manifest.missing, manifest.step) == (Kind.EXACT, (), 30)
    assert manifest.folder == store.paths.step(30)
    assert store.committed() == (manifest,)
    assert store.newest() == manifest
    assert store.newest_validated_step() == 30
    assert store.verify(manifest, Level.HASHES).proved == (Level.MARKER, Level.SIZES, Level.HASHES)
    assert not store.look().pending


def test_a_folder_that_is_not_there_holds_no_checkpoint(store: CheckpointStore) -> None:
    assert store.committed() == ()
    assert store.newest() is None


def test_four_ranks_in_threads_agree_on_one_nonce_and_commit(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_LAUNCH_NONCE", "launch-1")
    failed: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            own = CheckpointStore(store.paths.folder)
            for step in (1, 2):
                with own.save(step, rank=rank, world_size=4, protocol=PLAIN_RUN, wait_s=60) as it:
                    fill(it)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [(m.step, m.world_size, m.kind) for m in store.committed()] == [
        (1, 4, Kind.EXACT),
        (2, 4, Kind.EXACT),
    ]


def all_ranks_save(store: CheckpointStore, steps: Sequence[int]) -> None:
    """Two ranks, one after the other, as they must not wait for one another here."""
    ranks = [CheckpointStore(store.paths.folder) for _ in range(2)]
    for step in steps:
        saves = [
            own.save(step, rank=rank, world_size=2, protocol=PLAIN_RUN, wait_s=0)
            for rank, own in enumerate(ranks)
        ]
        for saving in reversed(saves):
            fill(saving)
            saving.done()
        saves[0].commit()


def test_agreements_go_when_their_step_is_committed_and_those_of_dead_launches_too(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_LAUNCH_NONCE", "launch-1")
    store.save(1, rank=0, world_size=2)  # this launch is killed in the middle of it
    Path(f"{store.paths.agreement(1, 0, '0' * 16, 1)}.0123456789ab.tmp").touch()
    monkeypatch.setenv("FLEET_LAUNCH_NONCE", "launch-2")
    assert len(os.listdir(store.paths.saving)) == 2

    all_ranks_save(store, [1, 2])

    assert os.listdir(store.paths.saving) == []
    assert [manifest.step for manifest in store.committed()] == [1, 2]


def test_an_agreement_that_somebody_may_wait_for_stays(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_LAUNCH_NONCE", "launch-1")
    early = store.save(1, rank=0, world_size=2, protocol=PLAIN_RUN, wait_s=0)
    fill(early)
    early.done()
    later = [store.paths.agreement(9, 0, "0" * 16, 1), store.paths.agreement(1, 7, "0" * 16, 1)]
    for path in later:
        Path(path).write_text("abcdefgh\n")

    all_ranks_save(store, [2])  # while step 1 is still written in the background
    late = CheckpointStore(store.paths.folder).save(
        1, rank=1, world_size=2, protocol=PLAIN_RUN, wait_s=0
    )
    fill(late)
    late.done()

    assert early.commit().step == 1
    assert sorted(os.listdir(store.paths.saving)) == sorted(map(os.path.basename, later))


def test_the_generation_is_what_the_supervisor_says(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert save(store, 1).generation == 0
    monkeypatch.setenv("FLEET_GENERATION", "12")
    assert save(store, 2).generation == 12
    assert save(store, 3, generation=40).generation == 40
    for text in ("twelve", "-1", "1" * 40):
        monkeypatch.setenv("FLEET_GENERATION", text)
        with pytest.raises(UsageError, match="FLEET_GENERATION is"):
            store.save(4)


@pytest.mark.parametrize("committed", [True, False])
def test_a_late_zombie_commits_nothing_once_its_successor_saves(
    store: CheckpointStore, *, committed: bool
) -> None:
    zombie = CheckpointStore(store.paths.folder)
    save(zombie, 1, generation=1)
    begun = zombie.save(3, generation=1, protocol=PLAIN_RUN)
    fill(begun)
    if committed:
        save(store, 2, generation=2)
    else:
        store.save(2, generation=2)

    begun.done()
    with pytest.raises(SaveFencedError, match="of generation 2") as caught:
        begun.commit()

    assert (caught.value.facts["generation"], caught.value.facts["later"]) == (1, 2)
    assert [manifest.step for manifest in store.committed()] == ([1, 2] if committed else [1])


def test_what_lay_there_before_does_not_fence_a_run_whose_lock_begins_anew(
    store: CheckpointStore,
) -> None:
    save(store, 5, but=Part.OPTIMIZER, generation=8)
    store.save(6, generation=8)

    anew = CheckpointStore(store.paths.folder)
    save(anew, 4, generation=1)
    by_hand = CheckpointStore(store.paths.folder)
    by_hand.look()
    save(store, 7, generation=9)
    save(by_hand, 8)

    assert [manifest.step for manifest in store.committed()] == [4, 5, 7, 8]


def test_a_folder_that_cannot_be_listed_fences_nothing_off_and_commits_nothing(
    tmp_path: Path,
) -> None:
    fs = Interrupted(-1, os_error(errno.EIO), only="listdir")
    store = CheckpointStore(tmp_path / "checkpoints", fs=fs)
    saving = store.save(1, generation=1, protocol=PLAIN_RUN)
    fill(saving)
    saving.done()
    fs.at = fs.count + 1  # after the look at the ranks' records
    with pytest.raises(OSError, match="Input/output error"):
        saving.commit()
    assert saving.commit().step == 1


def test_ranks_without_a_name_of_their_launch_are_refused_rather_than_mixed(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(UsageError, match="nothing names this launch"):
        store.save(1, rank=0, world_size=2)


def test_a_later_launch_does_not_take_the_nonce_of_a_save_that_an_earlier_one_began() -> None:
    first = launch_of({"FLEET_LAUNCH_NONCE": "a", "TORCHELASTIC_RESTART_COUNT": "0"})
    again = launch_of({"FLEET_LAUNCH_NONCE": "a", "TORCHELASTIC_RESTART_COUNT": "1"})
    other = launch_of({"FLEET_LAUNCH_NONCE": "b", "TORCHELASTIC_RESTART_COUNT": "0"})
    assert len({first, again, other}) == 3


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_the_death_of_any_one_rank_leaves_nothing_committed(
    store: CheckpointStore, dead: int
) -> None:
    before = save(store, 1)
    saves = of_ranks(store, 2, 3)
    for saving in saves:
        fill(saving)
        if saving.rank != dead:
            saving.done()
    with pytest.raises(SaveTimeoutError, match=f"rank {dead} is not done"):
        saves[0].commit()
    assert store.newest() == before
    assert [pending.complete for pending in store.look().pending] == [False]


def test_ranks_of_two_saves_do_not_mix(store: CheckpointStore) -> None:
    ours, theirs = of_ranks(store, 2, 2, "abcd"), of_ranks(store, 2, 2, "efgh")
    for saving in (ours[0], theirs[1]):
        fill(saving)
        saving.done()
    shutil.copy(f"{theirs[1].folder}/rank-00001.done.json", ours[0].folder)
    with pytest.raises(CheckpointError, match="rank 1 has nonce efgh, expected abcd"):
        ours[0].commit()
    assert store.committed() == ()


def test_a_rank_that_counts_other_ranks_stops_the_commit(store: CheckpointStore) -> None:
    ours = of_ranks(store, 2, 2)[0]
    odd = store.save(2, rank=1, world_size=3, nonce="abcd", protocol=PLAIN_RUN)
    for saving in (ours, odd):
        fill(saving)
        saving.done()
    with pytest.raises(CheckpointError, match="rank 1 has world size 3, expected 2"):
        ours.commit()


def test_a_rank_with_another_topology_stops_the_commit(store: CheckpointStore) -> None:
    ours = of_ranks(store, 2, 2)[0]
    odd = store.save(2, rank=1, world_size=2, nonce="abcd", topology={"facts": {"mesh": "2x1"}})
    for saving in (ours, odd):
        fill(saving)
        saving.done()
    with pytest.raises(CheckpointError, match="another topology"):
        ours.commit()


def test_a_shard_that_lost_one_byte_before_the_commit_is_not_committed(
    store: CheckpointStore,
) -> None:
    saves = of_ranks(store, 2, 2)
    for saving in saves:
        fill(saving)
        saving.done()
    shard = Path(saves[1].path("weights.bin"))
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(CheckpointError, match="weights.bin has 41 bytes, expected 42"):
        saves[0].commit()
    assert store.committed() == ()


def test_a_file_that_belongs_to_no_part_is_refused(store: CheckpointStore) -> None:
    saving = store.save(1)
    fill(saving)
    Path(saving.path("sub/stray.bin")).write_text("x")
    with pytest.raises(UsageError, match="sub/stray.bin of step 1 belongs to no part"):
        saving.done()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a//b", ""])
def test_a_file_name_stays_below_the_checkpoint(store: CheckpointStore, name: str) -> None:
    with pytest.raises(UsageError, match="no plain path"):
        store.save(1).path(name)


def test_two_processes_that_are_the_same_rank_are_noticed(store: CheckpointStore) -> None:
    first, second = (store.save(1, world_size=2, nonce="abcd") for _ in range(2))
    fill(first)
    fill(second)
    first.done()
    with pytest.raises(UsageError, match="two processes save as rank 0"):
        second.done()


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["datasync", "close"])
def test_an_error_that_comes_only_when_the_last_shard_is_forced_or_closed_stops_the_save(
    tmp_path: Path, operation: str, code: int
) -> None:
    fs = Interrupted(only=operation, error=os_error(code))
    store = CheckpointStore(tmp_path / "checkpoints", fs=fs)
    save(store, 1)
    fs.at = fs.count + 4  # five files a save
    with pytest.raises(OSError, match=os.strerror(code)), store.save(2) as saving:
        fill(saving)
    assert [manifest.step for manifest in store.committed()] == [1]


@pytest.fixture
def small_mount(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(folder)]
    try:
        made = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount program here")
    if made.returncode != 0:
        pytest.skip(f"no tmpfs may be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _overfill(store: CheckpointStore) -> None:
    with store.save(2) as saving:
        fill(saving)
        Path(saving.path("last.bin")).write_bytes(b"x" * (1 << 20))


def test_a_disk_that_is_full_at_the_last_shard_keeps_the_checkpoint_before(
    small_mount: Path,
) -> None:
    store = CheckpointStore(small_mount / "checkpoints")
    first = save(store, 1)
    with pytest.raises(OSError, match="No space left") as caught:
        _overfill(store)
    assert caught.value.errno == errno.ENOSPC
    assert store.newest(Kind.EXACT, Level.HASHES) == first
    assert store.clear_abandoned(1) == 1  # which makes room for the next
    save(store, 3)
    assert store.newest_validated_step() == 3


def test_a_late_zombie_cannot_replace_what_its_successor_has_saved(store: CheckpointStore) -> None:
    zombie = store.save(5, generation=1, protocol=PLAIN_RUN)
    fill(zombie, text="late")
    zombie.done()
    theirs = save(CheckpointStore(store.paths.folder), 5, generation=2)
    with pytest.raises(SaveFencedError):
        zombie.commit()
    assert store.newest() == theirs


def test_a_save_that_was_committed_by_its_successor_counts_as_committed_by_its_rank_0(
    store: CheckpointStore,
) -> None:
    saving = store.save(5, protocol=PLAIN_RUN)
    fill(saving)
    saving.done()

    def overtaken() -> None:
        """Paused right before the rename, while another process completes the save."""
        assert len(CheckpointStore(store.paths.folder).complete()) == 1

    manifest = saving.commit(check=overtaken)
    assert store.committed() == (manifest,)


def test_a_second_call_of_done_and_commit_after_an_error_goes_on_where_the_first_ended(
    tmp_path: Path,
) -> None:
    counted = Interrupted()
    _saved_with(tmp_path / "counted", counted)
    for at in range(0, counted.count, 2):
        fs = Interrupted(at, os_error(errno.EIO), performed=at % 4 == 0)
        folder = tmp_path / f"at-{at}"
        try:
            store = CheckpointStore(folder, fs=fs)
            saving = store.save(7, protocol=PLAIN_RUN)
            fill(saving)
        except OSError:
            continue
        for _ in range(2):
            try:
                saving.done()
                saving.commit()
                break
            except (OSError, CheckpointUnknownError):
                pass
        assert saving.manifest is not None, fs.last
        assert CheckpointStore(folder).newest(level=Level.HASHES) == saving.manifest


def _saved_with(folder: Path, fs: Interrupted) -> None:
    store = CheckpointStore(folder, fs=fs)
    with store.save(7, protocol=PLAIN_RUN) as saving:
        fill(saving)


def test_a_kill_at_any_file_operation_leaves_the_old_checkpoint_or_the_whole_new_one(
    tmp_path: Path,
) -> None:
    template = tmp_path / "template"
    save(CheckpointStore(template), 1)
    ended = {"old": 0, "new": 0, "completed": 0}
    with copies() as copy:
        counted = Interrupted()
        _second_save(copy(template), counted)
        assert counted.count > 40
        for at in range(counted.count):
            after = CheckpointStore(copy(template))
            with pytest.raises(Crash):
                _second_save(Path(after.paths.folder), Interrupted(at, performed=at % 2 == 0))
            newest = after.newest(Kind.EXACT, Level.HASHES)
            assert newest is not None
            assert newest.step in (1, 2)
            ended["completed"] += len(after.complete())
            ended["new" if newest.step == 2 else "old"] += 1
            save(after, 3)
            assert after.newest_validated_step() == 3
            assert not after.look().faults
    assert all(ended.values()), ended


def _second_save(folder: Path, fs: Interrupted) -> None:
    """And the note about the first that follows it."""
    store = CheckpointStore(folder, fs=fs)
    store.previous = CheckpointStore(folder).newest()
    with store.save(2, protocol=PLAIN_RUN) as saving:
        fill(saving)


@pytest.mark.parametrize("operation", LOST_ANSWERS)
def test_an_operation_that_is_done_but_reported_as_failed_costs_at_most_a_second_call(
    tmp_path: Path, operation: str
) -> None:
    counted = Interrupted(only=operation)
    _saved_with(tmp_path / "counted", counted)
    for at in range(counted.count):
        fs = Interrupted(at, os_error(errno.EIO), performed=True, only=operation)
        folder = tmp_path / f"at-{at}"
        try:
            _saved_with(folder, fs)
        except OSError:
            _saved_with(folder, Interrupted())
        assert CheckpointStore(folder).newest(level=Level.HASHES) is not None


def test_a_committed_checkpoint_is_kept_and_the_second_save_of_its_step_is_not_published(
    store: CheckpointStore,
) -> None:
    first = save(store, 5)
    with pytest.raises(SaveTakenError, match="step 5 is committed already") as caught:
        save(store, 5, text="other")
    assert os.path.isdir(str(caught.value.folder))
    assert store.newest() == first


def test_an_exact_save_takes_the_place_of_weights_which_go_to_quarantine(
    store: CheckpointStore,
) -> None:
    assert save(store, 5, but=Part.OPTIMIZER).kind is Kind.WEIGHTS
    exact = save(store, 5)
    assert store.committed() == (exact,)
    (moved,) = store.look().quarantined
    why = json.loads(Path(f"{moved}.json").read_text())["why"]
    assert "exact save of this step came" in why


def test_a_broken_checkpoint_makes_way_for_a_new_save_of_its_step(store: CheckpointStore) -> None:
    broken = save(store, 5)
    Path(broken.folder, broken.files[0].path).unlink()
    again = save(store, 5)
    assert store.newest(Kind.EXACT, Level.HASHES) == again
    assert len(store.look().quarantined) == 1


def test_a_checkpoint_whose_hashes_do_not_hold_makes_way_too(store: CheckpointStore) -> None:
    old = save(store, 2, text="x")
    name = old.files[0].path
    shard = Path(old.folder, name)
    shard.write_text(shard.read_text().replace("x", "y"))

    new = save(store, 2, text="z")

    assert store.newest(level=Level.HASHES) == new
    (kept,) = store.look().quarantined
    assert f"{name} has other content" in Path(record_of(kept)).read_text()


def test_a_folder_without_marker_is_a_fault_and_no_checkpoint(store: CheckpointStore) -> None:
    first = save(store, 1)
    os.mkdir(store.paths.step(2))
    assert store.newest() == first
    (fault,) = store.look().faults
    assert fault.path == store.paths.step(2)
    assert "no marker" in fault.why


def test_a_marker_copied_without_its_shards_is_passed_over(store: CheckpointStore) -> None:
    first, second = save(store, 1), save(store, 2)
    shutil.rmtree(f"{second.folder}/rank-00000")
    assert store.newest() == first
    assert store.verify(second, Level.SIZES).broken


def test_a_checkpoint_copied_elsewhere_keeps_its_marker_and_verifies(
    store: CheckpointStore, tmp_path: Path
) -> None:
    save(store, 4)
    shutil.copytree(store.paths.folder, tmp_path / "copy")
    copied = CheckpointStore(tmp_path / "copy").newest(Kind.EXACT, Level.HASHES)
    assert copied is not None
    assert copied.step == 4


def test_a_marker_under_the_name_of_another_step_is_a_fault(store: CheckpointStore) -> None:
    first = save(store, 4)
    shutil.copytree(first.folder, store.paths.step(9))
    assert store.newest() == first
    assert store.look().faults[0].why == "its marker is that of step 4"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m["ranks"][0]["files"][0].update(path="../../etc/passwd"), "not below its fol"),
        (lambda m: m["ranks"][0]["files"].append(m["ranks"][0]["files"][0]), "twice"),
        (lambda m: m.update(world_size=2), "ranks are not 0 to 1"),
        (lambda m: m.update(schema="fleetcraft.checkpoint/9"), "expected 'fleetcraft.checkpoint/1"),
        (lambda m: m.pop("nonce"), "cannot be read"),
    ],
)
def test_a_marker_that_cannot_be_believed_is_a_fault(
    store: CheckpointStore, change: object, why: str
) -> None:
    manifest = save(store, 4)
    marker = Path(manifest.folder, MANIFEST)
    content = json.loads(marker.read_text())
    change(content)  # type: ignore[operator]
    marker.write_text(json.dumps(content))
    assert store.committed() == ()
    assert why in store.look().faults[0].why


def test_what_cannot_be_read_is_unknown_and_never_an_older_newest(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    save(CheckpointStore(folder), 1)
    newest = save(CheckpointStore(folder), 2)

    class Unreadable(Interrupted):
        def read(self, path: str) -> bytes:
            if path == f"{newest.folder}/{MANIFEST}":
                raise OSError(errno.EACCES, "Permission denied")
            return super().read(path)

    store = CheckpointStore(folder, fs=Unreadable())
    with pytest.raises(CheckpointUnknownError, match="nothing was concluded"):
        store.newest()
    assert [fault.path for fault in store.look().unknown] == [newest.folder]
    listing = CheckpointStore(folder, fs=Interrupted(0, os_error(errno.EIO), only="listdir"))
    with pytest.raises(CheckpointUnknownError):
        listing.newest()


def test_a_whole_save_whose_rank_0_was_killed_before_the_rename_is_completed(
    store: CheckpointStore,
) -> None:
    killed = CheckpointStore(store.paths.folder, fs=Interrupted(0, only="rename_new"))
    with pytest.raises(Crash):
        save(killed, 8)
    assert store.newest() is None
    (published,) = store.complete()
    assert published.folder == store.paths.step(8)
    assert store.newest(Kind.EXACT, Level.HASHES) == published
    assert store.complete() == ()


def test_a_commit_asks_who_decides_right_before_it_publishes(store: CheckpointStore) -> None:
    saving = store.save(3)
    fill(saving)
    saving.done()

    def lost() -> None:
        raise UsageError("the lock was lost")

    with pytest.raises(UsageError, match="the lock was lost"):
        saving.commit(check=lost)
    assert store.committed() == ()


def test_abandoned_saves_of_earlier_generations_are_cleared_and_whole_ones_kept(
    store: CheckpointStore,
) -> None:
    old, new = store.save(3, generation=1), store.save(3, generation=2)
    for saving in (old, new):
        fill(saving)
    killed = CheckpointStore(store.paths.folder, fs=Interrupted(0, only="rename_new"))
    with pytest.raises(Crash):
        save(killed, 4, generation=1)
    assert store.clear_abandoned(2) == 1
    assert {(p.step, p.generation) for p in store.look().pending} == {(3, 2), (4, 1)}
    save(store, 4, generation=2)
    assert store.clear_abandoned(2) == 1  # its step is committed now
    with pytest.raises(FileNotFoundError):
        old.done()


def test_the_public_names_are_there_and_loading_them_loads_no_torch() -> None:
    program = (
        "import sys\n"
        "from fleetcraft.training import checkpoint\n"
        "for name in checkpoint.__all__:\n"
        "    assert getattr(checkpoint, name)\n"
        "assert not {'torch', 'numpy', 'click', 'rich'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=REPO)


def test_a_topology_with_an_unknown_key_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(UsageError, match="devise"):
        store.save(1, topology={"devise": "cuda"})
    with pytest.raises(UsageError, match="no protocol state is called 'crtic'"):
        store.save(1, protocol={"crtic": False})
    assert store.save(1, topology=Topology(device="cuda")).topology.device == "cuda"
