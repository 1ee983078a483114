"""Sharded state beside torch.distributed.checkpoint: our manifest around its shards.

One process here; two ranks over gloo are started once.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fleetcraft.training.checkpoint.distributed import (
    load_distributed,
    read_metadata,
    save_distributed,
)
from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.records import CheckpointError, Kind, Level, Part
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.checkpoint.torch_state import save_state
from tests.training.checkpoint.stores import Evil

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def state(value: float) -> dict[str, Any]:
    return {
        "model": {"w": torch.full((4, 3), value), "b": torch.full((3,), value)},
        "optimizer": {"lr": value, "names": ["w", "b"], "m": torch.full((4,), value)},
    }


def saved(store: CheckpointStore, value: float = 2.5) -> None:
    with store.save(1, protocol=PLAIN_RUN) as saving:
        save_distributed(saving, state(value))
        save_state(saving, sampler={"frontier": 3}, dataset_digest="abc")
        saving.none(Part.SCHEDULER, "constant rate")


def test_shards_and_metadata_are_in_the_manifest_and_come_back(store: CheckpointStore) -> None:
    saved(store)
    manifest = store.newest(Kind.EXACT, Level.HASHES)
    assert manifest is not None
    paths = [file.path for file in manifest.files]
    assert "shared/dcp/.metadata" in paths
    assert "shared/dcp/__0_0.distcp" in paths
    into = state(0.0)
    load_distributed(store, manifest, into)
    assert torch.equal(into["model"]["w"], torch.full((4, 3), 2.5))
    assert (into["optimizer"]["lr"], into["optimizer"]["names"]) == (2.5, ["w", "b"])


def test_a_shard_that_changed_is_refused_before_anything_is_loaded(
    store: CheckpointStore,
) -> None:
    saved(store)
    (manifest,) = store.committed()
    shard = Path(manifest.folder, "shared/dcp/__0_0.distcp")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    into = state(0.0)
    with pytest.raises(CheckpointError, match=r"__0_0.distcp has other content"):
        load_distributed(store, manifest, into)
    assert torch.equal(into["model"]["w"], torch.zeros(4, 3))


def test_metadata_that_names_anything_else_runs_nothing(tmp_path: Path) -> None:
    bad = tmp_path / ".metadata"
    bad.write_bytes(pickle.dumps(Evil(tmp_path / "run")))
    with pytest.raises(CheckpointError, match=r"mkdir, which is not on the list"):
        read_metadata(str(bad))
    bad.write_bytes(b"no pickle")
    with pytest.raises(CheckpointError):
        read_metadata(str(bad))
    assert not (tmp_path / "run").exists()


def test_a_value_that_is_no_plain_data_is_not_built(store: CheckpointStore, tmp_path: Path) -> None:
    with store.save(1, protocol=PLAIN_RUN) as saving:
        save_distributed(saving, {"w": torch.ones(2), "evil": Evil(tmp_path / "run")})
    (manifest,) = store.committed()
    with pytest.raises(CheckpointError, match="Weights only load failed"):
        load_distributed(store, manifest, {"w": torch.zeros(2), "evil": 1})
    assert not (tmp_path / "run").exists()


_RANKS = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, distribute_tensor, Shard
from fleetcraft.training.checkpoint.distributed import load_distributed, save_distributed
from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.records import Part
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.checkpoint.torch_state import save_state
child = os.fork()  # loading torch is what costs here, so it is loaded once for both ranks
rank, world = int(child == 0), 2
dist.init_process_group("gloo", rank=rank, world_size=world)
mesh = DeviceMesh("cpu", list(range(world)))
whole = torch.arange(8.0).reshape(4, 2)
state = {"w": distribute_tensor(whole, mesh, [Shard(0)])}
store = CheckpointStore(sys.argv[1])
with store.save(5, rank=rank, world_size=world, protocol=PLAIN_RUN, wait_s=60) as saving:
    save_distributed(saving, state)
    save_state(saving, sampler={"frontier": rank}, dataset_digest="abc")
    saving.none(Part.SCHEDULER, "constant rate")
dist.barrier()
(manifest,) = store.committed()
into = {"w": distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])}
load_distributed(store, manifest, into)
assert torch.equal(into["w"].full_tensor(), whole)
dist.destroy_process_group()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_two_ranks_over_gloo_save_one_exact_checkpoint_that_one_rank_can_reshard(
    store: CheckpointStore,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-c", _RANKS, store.paths.folder],
        cwd=REPO,
        env={
            **os.environ, "PYTHONPATH": str(REPO), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "FLEET_LAUNCH_NONCE": "launch-1", "OMP_NUM_THREADS": "1",
        },
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    manifest = store.newest(Kind.EXACT, Level.HASHES)
    assert manifest is not None
    assert {file.path for file in manifest.files} >= {
        "shared/dcp/__0_0.distcp",
        "shared/dcp/__1_0.distcp",
    }
    into = {"w": torch.zeros(4, 2)}
    load_distributed(store, manifest, into)
    assert torch.equal(into["w"], torch.arange(8.0).reshape(4, 2))
