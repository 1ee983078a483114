"""A training of a few seconds that can be killed at any step and goes on exactly.

Two gloo ranks fit a small model to a target. Each step is reported, each tenth is saved at a
completed boundary, and a new start continues from the newest EXACT checkpoint. What it lacks of a
real training is size.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from fleetcraft import progress_phase, report_progress
from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.records import Kind, Level, Part
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.checkpoint.torch_state import load_state, save_state

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
BATCH, WIDTH = 32, 8
ABORTED = 3


def save(store: CheckpointStore, step: int, model: nn.Module, optimizer: torch.optim.Optimizer,
         sampler: torch.Generator) -> None:  # fmt: skip
    """One completed save boundary of all ranks."""
    with (
        progress_phase("save"),
        store.save(step, rank=RANK, world_size=WORLD_SIZE, protocol=PLAIN_RUN) as saving,
    ):
        equal = (Part.WEIGHTS, Part.OPTIMIZER)
        save_state(
            saving, model=model, optimizer=optimizer, sampler={"rng": sampler.get_state()},
            dataset_digest="drawn", rank0_only=equal,
        )  # fmt: skip
        saving.none(Part.SCHEDULER, "the learning rate is constant")
        saving.none(Part.RNG_WORKERS, "no loader workers")


def main() -> int:
    """Trains to the wanted step; 3 when ABORT stands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds a step, to be seen")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if WORLD_SIZE > 1:
        dist.init_process_group("gloo")
    with progress_phase("load"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, WIDTH))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        sampler = torch.Generator().manual_seed(RANK)
        store = CheckpointStore(os.environ.get("FLEET_CHECKPOINTS", "checkpoints"))
        newest = store.newest(kind=Kind.EXACT, level=Level.HASHES)  # a broken one is passed over
        if newest:
            state = load_state(
                store, newest, rank=RANK, world_size=WORLD_SIZE, model=model, optimizer=optimizer
            )
            sampler.set_state(state[Part.SAMPLER]["rng"])
    for step in range(newest.step + 1 if newest else 1, asked.steps + 1):
        batch = torch.randn(BATCH, WIDTH, generator=sampler)
        loss = (model(batch) - batch.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            if WORLD_SIZE > 1 and parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= WORLD_SIZE
        optimizer.step()
        time.sleep(asked.pause)
        report_progress(step, tokens=BATCH * WIDTH, loss=loss.item())
        leaving = must_leave()
        if step % 10 == 0 or step == asked.steps or leaving:
            save(store, step, model, optimizer, sampler)
        if leaving:
            return ABORTED
    return 0


def must_leave() -> bool:
    """Whether ABORT stands, as rank 0 sees it: all ranks leave after the same step."""
    marker = os.environ.get("FLEET_ABORT_FILE", "")
    seen = torch.tensor(int(bool(marker) and Path(marker).exists()))
    if WORLD_SIZE > 1:
        dist.broadcast(seen, src=0)
    return bool(seen)


if __name__ == "__main__":
    raise SystemExit(main())
