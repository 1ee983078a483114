"""The trainer: 64 records, one update, one checkpoint, one commit; then the next version.

Runs alone (`python train.py …`) or as several ranks (`torchrun --nproc-per-node=3 train.py …`).
Rank 0 owns the queue's lock; every rank gets the whole batch and works on its share. Killed at any
moment and started again, it goes on from the last version that was committed: a checkpoint that no
commit names is put aside, and a batch that was not committed is taken again.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from policy import STEPS, Policy
from trajectories import SETTINGS, batch_of, open_queue
from update import Batch, Updated, update

from fleetcraft import progress_phase, report_progress
from fleetcraft.identity import new_launch_token
from fleetcraft.rollouts.trainer import RolloutTrainer
from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.prepared import newest_allowed, quarantine_uncommitted
from fleetcraft.training.checkpoint.records import Kind, Manifest, Part
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.checkpoint.torch_state import load_state, save_state

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
STOP = 0
GO = 1


class Run:
    """The policy, its optimizer, and where they are saved; the same on every rank."""

    def __init__(self, checkpoints: str) -> None:
        self.policy = Policy()
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=3e-2)
        self.store = CheckpointStore(checkpoints)

    def load(self, version: int) -> None:
        """Resumes exactly from a version; 0 is the beginning."""
        if version:
            manifest = next(each for each in self.store.committed() if each.step == version)
            load_state(
                self.store, manifest, rank=RANK, world_size=WORLD_SIZE,
                model=self.policy, optimizer=self.optimizer, by=f"rank {RANK}",
            )  # fmt: skip

    def save(self, version: int, nonce: str) -> Manifest | None:
        """A completed save boundary; rank 0 returns its manifest."""
        with (
            progress_phase("save"),
            self.store.save(
                version, rank=RANK, world_size=WORLD_SIZE, nonce=nonce, protocol=PLAIN_RUN
            ) as saving,
        ):
            both = (Part.WEIGHTS, Part.OPTIMIZER)
            save_state(saving, model=self.policy, optimizer=self.optimizer, rank0_only=both)
            saving.none(Part.SCHEDULER, "the learning rate is constant")
            saving.none(Part.SAMPLER, "the queue's ledger is the cursor")
            saving.none(Part.DATASET, "records are sampled")
            saving.none(Part.RNG_WORKERS, "no loader workers")
        return saving.manifest

    def update(self, version: int, batch: Batch) -> Updated:
        """One step, reported as progress."""
        done = update(self.policy, self.optimizer, batch, rank=RANK, world_size=WORLD_SIZE)
        report_progress(version, tokens=done.unmasked + done.masked, loss=done.loss)
        return done


def lead(run: Run, queue_folder: str, versions: int) -> int:
    """Rank 0: owns the queue, and tells the others what to do."""
    with RolloutTrainer(open_queue(queue_folder), gpus=0) as trainer:
        ledger = trainer.ledger

        def is_named(manifest: Manifest) -> bool:
            return ledger.names_checkpoint(manifest.sha256)

        quarantine_uncommitted(run.store, is_named, check=trainer.held.check)
        newest = newest_allowed(run.store, is_named, kind=Kind.EXACT)
        version = newest.step if newest else 0
        if version != ledger.version:
            sys.exit(f"version {ledger.version} is committed, and its checkpoint is not there")
        tell(version)
        run.load(version)
        for batch in trainer.batches(limit=max(0, versions - version), poll_s=0.1):
            data = batch_of(batch.records)
            batch.computed()
            nonce = new_launch_token()
            tell(GO, batch.version, nonce)
            done = run.update(batch.version, share(data))
            manifest = run.save(batch.version, nonce)
            assert manifest is not None
            batch.commit(
                manifest.folder, manifest.sha256,
                scalars={"loss": done.loss, "masked": done.masked},
            )  # fmt: skip
            rewards = sum(record.scalars["reward"] for record in batch.records)
            print(
                f"version {batch.version}: reward {rewards / len(batch.records):.3f}, "
                f"{done.masked} of {done.masked + done.unmasked} steps masked",
                flush=True,
            )
        tell(STOP, 0, "")
        return trainer.exit_code


def follow(run: Run) -> None:
    """The other ranks: what rank 0 says."""
    (version,) = hear(1)
    run.load(version)
    while True:
        order, version, *letters = hear(10)
        if order == STOP:
            return
        run.update(version, share(None))
        run.save(version, bytes(letters).decode())


def tell(*words: int | str) -> None:
    """Sends numbers to all ranks, a text as its bytes."""
    numbers: list[int] = []
    for word in words:
        numbers += word.encode().ljust(8, b"0")[:8] if isinstance(word, str) else [word]
    if WORLD_SIZE > 1:
        dist.broadcast(torch.tensor(numbers), src=0)


def hear(count: int) -> list[int]:
    """What `tell` sends."""
    numbers = torch.zeros(count, dtype=torch.long)
    dist.broadcast(numbers, src=0)
    return [int(number) for number in numbers]


def share(batch: Batch | None) -> Batch:
    """The whole batch on every rank: numbers only, so nothing is unpickled."""
    count = SETTINGS.batch
    got = batch or Batch(
        prompts=torch.zeros(count, dtype=torch.long),
        actions=torch.zeros((count, STEPS), dtype=torch.long),
        log_probs=torch.zeros((count, STEPS)),
        advantages=torch.zeros(count),
    )
    if WORLD_SIZE > 1:
        for tensor in (got.prompts, got.actions, got.log_probs, got.advantages):
            dist.broadcast(tensor, src=0)
    return got


def main() -> int:
    """Trains until the wanted version is committed, or an ABORT stands (exit code 3)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--versions", type=int, default=8)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if WORLD_SIZE > 1:
        dist.init_process_group("gloo")
    try:
        run = Run(asked.checkpoints)
        if RANK == 0:
            return lead(run, asked.queue, asked.versions)
        follow(run)
        return 0
    finally:
        if WORLD_SIZE > 1:
            dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
