"""Updates a policy a few times from one stale batch, alone or as one of several gloo ranks.

A program of test_async_rl.py: its argument is where rank 0 writes the weights and what it did.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "async_rl"))

from policy import VOCABULARY, Policy, reward
from update import Batch, group_advantages, update

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


def stale_batch() -> Batch:
    """64 records of 16 groups, sampled by a policy that is not the one that is updated."""
    prompts, actions, log_probs, rewards, groups = [], [], [], [], []
    sampler = Policy(seed=1)
    with torch.no_grad():
        sampler.head.weight.mul_(3)  # surer of itself, so that some steps have to be masked
    for number in range(64):
        generator = torch.Generator().manual_seed(number)
        prompt = number // 4 % VOCABULARY
        answer, logs = sampler.sample(prompt, generator)
        prompts.append(prompt)
        actions.append(answer)
        log_probs.append(logs)
        rewards.append(reward(prompt, answer))
        groups.append(str(number // 4))
    return Batch(
        prompts=torch.tensor(prompts),
        actions=torch.tensor(actions),
        log_probs=torch.tensor(log_probs),
        advantages=group_advantages(torch.tensor(rewards), groups),
    )


def main() -> None:
    """Six updates."""
    torch.set_num_threads(1)
    # In float32 the order of a sum moves weights by 2e-6 on one CPU and 4e-6 on another: Adam
    # divides by the root of a gradient's square, however small that is.
    torch.set_default_dtype(torch.float64)
    if WORLD_SIZE > 1:
        dist.init_process_group("gloo")
    batch, policy = stale_batch(), Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    done = [update(policy, optimizer, batch, rank=RANK, world_size=WORLD_SIZE) for _ in range(6)]
    if RANK == 0:
        torch.save(policy.state_dict(), f"{sys.argv[1]}.pt")
        told = {
            "share": [len(batch.share(rank, 3).prompts) for rank in range(3)],
            "masked": [each.masked for each in done],
            "unmasked": [each.unmasked for each in done],
            "loss": [each.loss for each in done],
        }
        Path(f"{sys.argv[1]}.json").write_text(json.dumps(told))
    if WORLD_SIZE > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
