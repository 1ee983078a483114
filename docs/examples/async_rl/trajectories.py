"""What producers and the trainer share: the queue's settings, and the policy of a version."""

from __future__ import annotations

import torch
from policy import Policy
from update import Batch, group_advantages

from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Record, Settings
from fleetcraft.training.checkpoint.records import Kind
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.training.checkpoint.torch_state import load_state

SETTINGS = Settings(
    run="count", batch=64, group=4, lock_interval_s=1.0, required_values=("actions", "log_probs")
)


def open_queue(folder: str) -> RolloutQueue:
    """The queue of this run; made by whoever comes first."""
    return RolloutQueue.create(folder, SETTINGS)


def load_policy(policy: Policy, store: CheckpointStore, version: int) -> None:
    """Gives a policy the weights of a version; version 0 is what it was initialized with."""
    if version == 0:
        policy.load_state_dict(Policy().state_dict())
        return
    manifest = next(each for each in store.committed() if each.step == version)
    load_state(store, manifest, kind=Kind.WEIGHTS, model=policy, by="a producer")


def batch_of(records: tuple[Record, ...]) -> Batch:
    """The records of one transaction as tensors, with the advantages of their whole groups."""
    rewards = torch.tensor([record.scalars["reward"] for record in records])
    return Batch(
        prompts=torch.tensor([int(record.prompt) for record in records]),
        actions=torch.tensor([record.values["actions"] for record in records]).long(),
        log_probs=torch.tensor([record.values["log_probs"] for record in records]),
        advantages=group_advantages(rewards, [record.group for record in records]),
    )
