"""One policy update from one batch of stale records: lag correction, hard mask, one all-reduce.

Group advantages are computed over the whole batch before anybody takes a share of it. Each rank
adds up the losses of its chunks without dividing; gradients and the count of unmasked steps are
summed over all ranks in one all-reduce, and divided by that count. So 64 records over three ranks,
22, 21 and 21, give what one rank gives, the mask included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from policy import Policy
from torch import Tensor

CLIP = 0.2
MASK_LOG_RATIO = 0.7
"""A step whose probability has changed by more than exp(0.7), about twice, since it was sampled is
left out: its correction would be mostly noise."""
CHUNK = 8


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The records of one transaction as tensors; B records of T steps.

    Attributes:
        prompts: [B], integers.
        actions: [B, T], integers.
        log_probs: [B, T], of the policy that sampled them.
        advantages: [B], see `group_advantages`.
    """

    prompts: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor

    def share(self, rank: int, world_size: int) -> Batch:
        """The records of one rank; the first ranks take one more where they do not divide."""
        return Batch(
            prompts=self.prompts.tensor_split(world_size)[rank],
            actions=self.actions.tensor_split(world_size)[rank],
            log_probs=self.log_probs.tensor_split(world_size)[rank],
            advantages=self.advantages.tensor_split(world_size)[rank],
        )


@dataclass(frozen=True, kw_only=True)
class Updated:
    """What an update did: mean loss over unmasked steps, and how many steps were masked."""

    loss: float
    unmasked: int
    masked: int


def group_advantages(rewards: Tensor, groups: list[str]) -> Tensor:
    """Each reward [B] against the mean and spread of its group.

    A group in which all are equal teaches nothing: its advantages are zero.
    """
    advantages = torch.zeros_like(rewards)
    for group in dict.fromkeys(groups):
        mine = torch.tensor([name == group for name in groups])
        spread = rewards[mine].std(unbiased=False)
        advantages[mine] = (rewards[mine] - rewards[mine].mean()) / (spread + 1e-6)
    return advantages


def update(
    policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, *, rank: int, world_size: int
) -> Updated:
    """Moves the policy by one batch, the same on every rank.

    Args:
        policy: Equal on all ranks before, and so after.
        optimizer: Of its parameters.
        batch: The whole batch on every rank.
        rank: This process among the ranks.
        world_size: 1 needs no process group.
    """
    mine = batch.share(rank, world_size)
    optimizer.zero_grad(set_to_none=False)
    loss_sum, unmasked, steps = 0.0, 0, 0
    for start in range(0, len(mine.prompts), CHUNK):
        chunk = slice(start, start + CHUNK)
        loss, kept = _loss_sum(policy, mine, chunk)
        loss.backward()
        loss_sum += float(loss.detach())
        unmasked += int(kept.sum())
        steps += kept.numel()
    parameters = [each for each in policy.parameters() if each.requires_grad]
    flat = torch.cat(
        [_gradient(each).reshape(-1) for each in parameters]
        + [torch.tensor([loss_sum, unmasked, steps], dtype=parameters[0].dtype)]
    )
    if world_size > 1:
        dist.all_reduce(flat)  # the only one: gradients and the count they are divided by
    loss_sum, unmasked, steps = float(flat[-3]), int(flat[-2]), int(flat[-1])
    offset = 0
    for each in parameters:
        share = flat[offset : offset + each.numel()].view_as(each)
        each.grad = share / max(unmasked, 1)
        offset += each.numel()
    optimizer.step()
    return Updated(loss=loss_sum / max(unmasked, 1), unmasked=unmasked, masked=steps - unmasked)


def _loss_sum(policy: Policy, batch: Batch, chunk: slice) -> tuple[Tensor, Tensor]:
    """Clipped loss, summed over unmasked steps, and which steps [b, T] those are."""
    now = policy.log_probs(batch.prompts[chunk], batch.actions[chunk])
    log_ratio = now - batch.log_probs[chunk]
    kept = log_ratio.detach().abs() <= MASK_LOG_RATIO
    ratio = log_ratio.exp()
    advantages = batch.advantages[chunk, None]
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return -(gain * kept).sum(), kept


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
