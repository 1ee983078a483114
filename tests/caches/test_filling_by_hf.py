"""A fill by the installed ``hf`` program, from a hub on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fleetcraft.caches.commanding import CommandFailedError
from fleetcraft.caches.filling import fill
from fleetcraft.caches.mirror import mirror
from fleetcraft.caches.quarantine import quarantine
from fleetcraft.caches.snapshots import read_snapshot
from fleetcraft.errors import DataError
from fleetcraft.layout.caches import CachePaths
from tests.caches.hub_caches import SHARDS, contents, flip_a_bit, sharded_model
from tests.caches.hub_server import Served, serving

REPO = "org/tiny"
HF = Path(sys.executable).with_name("hf")


def environment(served: Served, home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HF_ENDPOINT": served.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1",
        "PYTHONWARNINGS": "ignore",
    }


@pytest.mark.skipif(not HF.exists(), reason="huggingface_hub's program hf is not installed")
def test_a_real_download_is_proved_repaired_and_mirrored(tmp_path: Path) -> None:
    paths, hub = CachePaths(str(tmp_path / "caches")), tmp_path / "hub"
    command = [str(HF), "download", REPO]
    with serving(sharded_model()) as served:
        env = environment(served, tmp_path / "home")
        served.files[SHARDS[1]] = bytes(len(sharded_model()[SHARDS[1]]))
        with pytest.raises((DataError, CommandFailedError)) as refused:
            fill(paths, str(hub), REPO, command, environ=env)
        assert "corrupt" in str(refused.value)
        assert contents(hub) == {}

        served.files[SHARDS[1]] = sharded_model()[SHARDS[1]]
        served.fetched.clear()
        filled = fill(paths, str(hub), REPO, command, environ=env)
        assert (filled.ran, filled.files, served.fetched) == (True, 6, [SHARDS[1]])
        snapshot = read_snapshot(str(hub), REPO)
        assert (snapshot.listed, snapshot.absent, snapshot.unproved) == (True, (), ())

        flip_a_bit(Path(snapshot.folder) / SHARDS[0])
        quarantine(paths, str(hub), REPO, SHARDS[0])
        served.fetched.clear()
        repaired = fill(paths, str(hub), REPO, command, environ=env)
        assert (repaired.ran, served.fetched) == (True, [SHARDS[0]])

    mirror(str(hub), str(tmp_path / "other"), REPO)
    library = pytest.importorskip("huggingface_hub")
    found = library.snapshot_download(REPO, cache_dir=tmp_path / "other", local_files_only=True)
    assert (Path(found) / SHARDS[0]).read_bytes() == sharded_model()[SHARDS[0]]
