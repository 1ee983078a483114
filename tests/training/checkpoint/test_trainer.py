"""An exact continuation is bit-identical after a kill at any step, on a real torch trainer.

And what is less than exact is refused where exact is asked for.
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fleetcraft.errors import UsageError
from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.records import CheckpointError, Kind, Level, Part
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.checkpoint.torch_state import (
    load_state,
    loads,
    restore_rng,
    rng_state,
    save_state,
)
from tests.training.checkpoint.stores import Crash, Evil, Interrupted
from tests.training.checkpoint.trainer import EVERY, Trainer

REPO = Path(__file__).resolve().parents[3]
STEPS = 11


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture(autouse=True)
def own_random_numbers() -> object:
    """What a test does to this process's generators is undone."""
    state = rng_state()
    yield
    restore_rng(state)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    kept = rng_state()
    trainer = Trainer(CheckpointStore(tmp_path_factory.mktemp("undisturbed")))
    trainer.train(STEPS)
    digest = trainer.digest()
    restore_rng(kept)
    return digest


@pytest.mark.parametrize("last", range(1, STEPS))
def test_a_run_that_ends_after_any_step_goes_on_bit_for_bit(
    store: CheckpointStore, undisturbed: str, last: int
) -> None:
    Trainer(store).train(last)
    random.seed(last)
    torch.manual_seed(last)
    again = Trainer(store, seed=100 + last)
    assert again.resume() == last // EVERY * EVERY if last >= EVERY else again.resume() == 0
    if last < EVERY:  # nothing was saved: the run begins anew
        again = Trainer(store)
    again.train(STEPS)
    assert again.digest() == undisturbed


def test_a_process_that_is_killed_between_step_and_save_goes_on_bit_for_bit(
    store: CheckpointStore, undisturbed: str
) -> None:
    killed = subprocess.Popen(
        [sys.executable, "-m", "tests.training.checkpoint.trainer", store.paths.folder,
         str(STEPS), "--pause-at", "6"],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert killed.stdout is not None
    assert killed.stdout.readline() == "resumed 0\n"
    assert killed.stdout.readline() == "paused 6\n"
    killed.kill()
    killed.communicate(timeout=60)
    assert store.newest_validated_step() == 4
    again = Trainer(store)
    assert again.resume() == 4
    again.train(STEPS)
    assert again.digest() == undisturbed


def test_a_kill_at_file_operations_of_the_saves_goes_on_bit_for_bit(
    tmp_path: Path, undisturbed: str
) -> None:
    counted = Interrupted()
    Trainer(CheckpointStore(tmp_path / "counted", fs=counted)).train(4)
    for at in range(3, counted.count, 19):
        folder = tmp_path / f"at-{at}"
        with pytest.raises(Crash):
            Trainer(CheckpointStore(folder, fs=Interrupted(at, performed=at % 2 == 0))).train(4)
        again = Trainer(CheckpointStore(folder))
        again.store.complete()
        again.resume()
        again.train(STEPS)
        assert again.digest() == undisturbed


def test_the_test_notices_when_one_generator_is_not_restored(
    store: CheckpointStore, undisturbed: str
) -> None:
    Trainer(store).train(6)
    again = Trainer(store)
    again.resume()
    torch.manual_seed(1)
    again.train(STEPS)
    assert again.digest() != undisturbed


def test_a_resumed_run_marks_the_checkpoint_as_loaded_and_continued(
    store: CheckpointStore,
) -> None:
    Trainer(store).train(2)
    again = Trainer(store)
    again.resume()
    first = store.committed()[0]
    assert store.verify(first, Level.LOADED).answer is True
    assert store.verify(first, Level.CONTINUED).answer is False
    again.train(4)
    assert store.verify(first, Level.CONTINUED).proved == tuple(Level)
    assert store.verify(first, Level.LOADED, loads=loads).answer is True


def test_a_save_without_optimizer_is_weights_and_exact_refuses_it(store: CheckpointStore) -> None:
    trainer = Trainer(store)
    trainer.train_one()
    trainer.save(optimizer=False)
    (manifest,) = store.committed()
    assert (manifest.kind, manifest.missing) == (Kind.WEIGHTS, ("optimizer",))
    with pytest.raises(CheckpointError, match="WEIGHTS, expected EXACT; missing: optimizer"):
        load_state(store, manifest)
    other = Trainer(store, seed=1)
    other.resume(Kind.WEIGHTS)
    assert torch.equal(other.model[0].weight, trainer.model[0].weight)


def test_another_number_of_ranks_is_refused_for_exact(store: CheckpointStore) -> None:
    trainer = Trainer(store)
    trainer.train(2)
    with pytest.raises(CheckpointError, match="saved by 1 ranks, and there are 2"):
        load_state(store, store.committed()[0], rank=0, world_size=2)
    weights = load_state(store, store.committed()[0], rank=1, world_size=2, kind=Kind.WEIGHTS)
    assert set(weights) == {Part.WEIGHTS}


def test_each_rank_gets_its_own_random_numbers_and_what_ranks_share(
    store: CheckpointStore,
) -> None:
    saves = [
        store.save(1, rank=rank, world_size=2, nonce="abcd", protocol=PLAIN_RUN)
        for rank in range(2)
    ]
    for saving in saves:
        torch.manual_seed(saving.rank)
        save_state(
            saving,
            model={"w": torch.ones(2)},
            optimizer={"m": torch.zeros(2)},
            sampler={"frontier": 10 + saving.rank},
            dataset_digest="abc",
            rank0_only=(Part.WEIGHTS, Part.OPTIMIZER),
        )
        saving.none(Part.SCHEDULER, "constant rate")
        saving.done()
    manifest = saves[0].commit()
    assert manifest.kind is Kind.EXACT
    assert manifest.ranks[1].facts["sampler_frontier"] == 11
    digests = {rank.facts["rng_cpu_sha256"] for rank in manifest.ranks}
    assert len(digests) == 2
    state = load_state(store, manifest, rank=1, world_size=2)
    assert state[Part.SAMPLER] == {"frontier": 11}
    assert torch.equal(state[Part.WEIGHTS]["w"], torch.ones(2))
    assert torch.initial_seed() == 1


def test_numpy_is_restored_where_it_is_loaded() -> None:
    numpy = pytest.importorskip("numpy")
    numpy.random.seed(3)
    state = rng_state()
    drawn = numpy.random.rand(3).tolist()
    numpy.random.seed(4)
    restore_rng(state)
    assert numpy.random.rand(3).tolist() == drawn


def test_what_cannot_be_loaded_safely_is_refused_when_it_is_saved(
    store: CheckpointStore, tmp_path: Path
) -> None:
    saving = store.save(1)
    with pytest.raises(UsageError, match="the weights of step 1 could not be loaded safely"):
        save_state(saving, model={"w": Evil(tmp_path / "run")})
    assert not (tmp_path / "run").exists()


def test_a_shard_that_was_exchanged_for_a_pickle_runs_nothing(
    store: CheckpointStore, tmp_path: Path
) -> None:
    trainer = Trainer(store)
    trainer.train(2)
    (manifest,) = store.committed()
    Path(manifest.folder, "rank-00000/weights.pt").write_bytes(pickle.dumps(Evil(tmp_path / "run")))
    assert trainer.resume() == 0  # passed over: it is none
    with pytest.raises(CheckpointError, match="does not hold up to hashes"):
        load_state(store, manifest)
    with pytest.raises(CheckpointError):
        load_state(store, manifest, level=Level.MARKER)
    assert loads(manifest)
    assert not (tmp_path / "run").exists()
