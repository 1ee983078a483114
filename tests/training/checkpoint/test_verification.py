"""Levels by name: what each finds, and that what cannot be read makes nothing broken."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft.errors import UsageError
from fleetcraft.layout.checkpoints import CONTINUED, LOADED
from fleetcraft.training.checkpoint.records import CheckpointUnknownError, How, Level
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.checkpoint.verification import digest_file
from tests.training.checkpoint.stores import Interrupted, os_error, save

REPO = Path(__file__).resolve().parents[3]
NOBODY = 65534


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def test_levels_are_proved_in_order_and_the_first_that_fails_ends_it(
    store: CheckpointStore,
) -> None:
    manifest = save(store, 1)
    verdict = store.verify(manifest, Level.CONTINUED)
    assert verdict.answer is False
    assert not verdict.broken
    assert verdict.proved == (Level.MARKER, Level.SIZES, Level.HASHES)
    assert verdict.reasons == ("no later step says that it went on from it",)


def test_one_byte_short_is_found_by_its_size(store: CheckpointStore) -> None:
    manifest = save(store, 1)
    file = Path(manifest.folder, manifest.files[0].path)
    os.truncate(file, manifest.files[0].size_bytes - 1)
    assert store.verify(manifest, Level.MARKER).answer is True
    verdict = store.verify(manifest, Level.SIZES)
    assert (verdict.answer, verdict.broken, verdict.proved) == (False, True, (Level.MARKER,))
    assert "has 41 bytes, expected 42" in verdict.reasons[0]


def test_shards_of_equal_size_that_are_swapped_are_found_by_their_hashes(
    store: CheckpointStore,
) -> None:
    manifest = save(store, 1)
    one, other = (Path(manifest.folder, manifest.files[i].path) for i in (0, 1))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    assert store.verify(manifest, Level.SIZES).answer is True
    verdict = store.verify(manifest, Level.HASHES)
    assert (verdict.answer, verdict.broken) == (False, True)
    assert len(verdict.reasons) == 2


def test_a_link_in_place_of_a_shard_is_no_shard(store: CheckpointStore, tmp_path: Path) -> None:
    manifest = save(store, 1)
    file = Path(manifest.folder, manifest.files[0].path)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert "is no regular file" in store.verify(manifest, Level.SIZES).reasons[0]
    with pytest.raises(OSError, match="symbolic link"):
        digest_file(str(file))


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_shard_that_cannot_be_read_is_unknown_and_not_broken(tmp_path: Path, code: int) -> None:
    folder = tmp_path / "checkpoints"
    manifest = save(CheckpointStore(folder), 1)
    sizes = CheckpointStore(folder, fs=Interrupted(0, os_error(code), only="lstat"))
    verdict = sizes.verify(manifest, Level.HASHES)
    assert (verdict.answer, verdict.broken, verdict.proved) == (None, False, (Level.MARKER,))

    def unreadable(path: str) -> tuple[int, str]:
        if path.endswith("optimizer.bin"):
            raise OSError(code, os.strerror(code))
        return digest_file(path)

    store = CheckpointStore(folder, digest=unreadable)
    verdict = store.verify(manifest, Level.HASHES)
    assert (verdict.answer, verdict.broken) == (None, False)
    assert verdict.reasons == (f"rank-00000/optimizer.bin cannot be read: {os.strerror(code)}",)
    with pytest.raises(CheckpointUnknownError, match="optimizer.bin cannot be read"):
        store.newest(level=Level.HASHES)


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_user_without_read_permission_on_one_shard_learns_that_it_is_unknown() -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="fleet-checkpoint-") as base:
        folder = f"{base}/checkpoints"
        save(CheckpointStore(folder), 1)
        manifest = CheckpointStore(folder).committed()[0]
        os.chmod(base, 0o755)
        for place, _, files in os.walk(folder):
            os.chmod(place, 0o755)
            for name in files:
                os.chmod(f"{place}/{name}", 0o644)
        os.chmod(f"{manifest.folder}/{manifest.files[0].path}", 0o600)
        program = (
            "import sys, os\n"
            "from fleetcraft.training.checkpoint.store import CheckpointStore\n"
            "from fleetcraft.training.checkpoint.records import Level\n"
            f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
            "store = CheckpointStore(sys.argv[1])\n"
            "verdict = store.verify(store.committed()[0], Level.HASHES)\n"
            "print(verdict.answer, verdict.broken, verdict.reasons[0])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, folder],
            env={**os.environ, "PYTHONPATH": str(REPO)},
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    assert done.stdout.startswith("None False ")
    assert "Permission denied" in done.stdout


def test_the_next_save_of_the_same_process_says_that_it_went_on(store: CheckpointStore) -> None:
    first = save(store, 1)
    second = save(store, 2)
    assert second.continued_from is not None
    assert second.continued_from.step == 1
    assert store.verify(first, Level.CONTINUED).proved == (
        Level.MARKER, Level.SIZES, Level.HASHES, Level.CONTINUED,
    )  # fmt: skip
    assert store.verify(first, Level.LOADED).answer is False
    assert store.verify(second, Level.CONTINUED).answer is False


def test_a_checkpoint_that_was_loaded_and_went_on_proves_every_level(
    store: CheckpointStore,
) -> None:
    first = save(store, 1)
    later = CheckpointStore(store.paths.folder)
    later.loaded(first, "test")
    assert later.verify(first, Level.LOADED).answer is True
    save(later, 2)
    verdict = later.verify(first, Level.CONTINUED)
    assert verdict.proved == tuple(Level)
    os.unlink(f"{first.folder}/{LOADED}")
    assert later.verify(first, Level.LOADED).answer is True


def test_the_first_note_stands(store: CheckpointStore) -> None:
    first = save(store, 1)
    note = store.continued(first, 2, "one", how=How.LOADED)
    assert store.continued(first, 5, "other") == note
    with pytest.raises(UsageError, match="step 1 is not after"):
        store.continued(first, 1, "one")


def test_a_note_that_was_copied_from_another_checkpoint_says_nothing(
    store: CheckpointStore,
) -> None:
    first, second = save(store, 1), save(store, 2)
    shutil.copy(f"{first.folder}/{CONTINUED}", second.folder)
    assert store.verify(second, Level.CONTINUED).answer is False


def test_a_note_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    store = CheckpointStore(folder)
    first = save(store, 1)
    save(store, 2)

    class Unreadable(Interrupted):
        def read(self, path: str) -> bytes:
            if path.endswith(CONTINUED):
                raise OSError(errno.EIO, "Input/output error")
            return super().read(path)

    verdict = CheckpointStore(folder, fs=Unreadable()).verify(first, Level.CONTINUED)
    assert verdict.answer is None


def test_loading_now_proves_the_level_without_a_note(store: CheckpointStore) -> None:
    first = save(store, 1)
    assert store.verify(first, Level.LOADED, loads=lambda manifest: "").answer is True
    refused = store.verify(first, Level.LOADED, loads=lambda manifest: "it is cut short")
    assert (refused.answer, refused.reasons) == (False, ("it is cut short",))
