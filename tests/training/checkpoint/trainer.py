"""A small real trainer on the CPU: a torch model with dropout, AdamW, a schedule and a sampler.

Run as a process: ``trainer FOLDER STEPS [--pause-at N]``; it resumes from the newest EXACT
checkpoint, saves every second step, and prints the digest of its whole state at the end. Not here:
what it must do.
"""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch

from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.records import Kind, Part
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.checkpoint.torch_state import load_state, rng_state, save_state

EVERY = 2


class Sampler:
    """Draws shuffled rows; knows its frontier and the shuffle it is in."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.order = list(range(rows))
        self.frontier = 0

    def take(self, count: int) -> list[int]:
        if self.frontier % self.rows == 0:
            random.shuffle(self.order)  # of Python's own generator, which must be restored
        at = self.frontier % self.rows
        self.frontier += count
        return self.order[at : at + count]

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self.order), "frontier": self.frontier}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.frontier = list(state["order"]), state["frontier"]


class Trainer:
    """The whole state of a run."""

    def __init__(self, store: CheckpointStore, *, seed: int = 7) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        random.seed(seed)
        self.store = store
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3)
        self.sampler = Sampler(8)
        self.data = torch.arange(32.0).reshape(8, 4) / 32
        self.step = 0

    def train(self, until: int) -> None:
        while self.step < until:
            self.train_one()
            if self.step % EVERY == 0:
                self.save()

    def train_one(self) -> None:
        rows = self.data[self.sampler.take(2)]
        loss = (self.model(rows) - rows.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1

    def save(self, *, optimizer: bool = True) -> None:
        with self.store.save(self.step, protocol=PLAIN_RUN) as saving:
            save_state(
                saving,
                model=self.model,
                optimizer=self.optimizer if optimizer else None,
                scheduler=self.scheduler,
                sampler=self.sampler,
                dataset_digest="rows of arange(32)",
            )

    def resume(self, kind: Kind = Kind.EXACT) -> int:
        manifest = self.store.newest(kind)
        if manifest is None:
            return 0
        state = load_state(
            self.store,
            manifest,
            kind=kind,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            sampler=self.sampler,
        )
        assert Part.WEIGHTS in state
        self.step = manifest.step
        return self.step

    def digest(self) -> str:
        """Of every bit that decides how it goes on."""
        rng = rng_state()
        whole = [
            self.step,
            {name: tensor.tolist() for name, tensor in self.model.state_dict().items()},
            [(k, sorted((n, torch.as_tensor(v).tolist()) for n, v in s.items()))
             for k, s in self.optimizer.state_dict()["state"].items()],
            self.scheduler.state_dict()["last_epoch"],
            self.sampler.state_dict(),
            rng["python"],
            rng["cpu"].tolist(),
        ]  # fmt: skip
        return hashlib.sha256(repr(whole).encode()).hexdigest()


def main() -> None:
    """Trains to a step, or stops before the save of one and waits to be killed."""
    folder, until = sys.argv[1], int(sys.argv[2])
    pause_at = int(sys.argv[4]) if len(sys.argv) > 3 else 0
    trainer = Trainer(CheckpointStore(folder))
    trainer.store.complete()
    trainer.resume()
    print("resumed", trainer.step, flush=True)
    if pause_at:
        trainer.train(pause_at - 1)
        trainer.train_one()
        print("paused", trainer.step, flush=True)
        sys.stdin.read()
    trainer.train(until)
    print("ended", trainer.step, trainer.digest(), flush=True)


if __name__ == "__main__":
    main()
