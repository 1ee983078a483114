"""A tiny policy: a recurrent model that answers a prompt with a sequence of actions.

Small enough for a CPU in milliseconds, and whole: it samples with per-step log-probabilities, and
computes them again for given actions. The task: count up from the prompt, modulo the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 8
STEPS = 12
HIDDEN = 24


class Policy(nn.Module):
    """Prompts [B] in, a distribution over the next action at each of `STEPS` steps out."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Embedding(VOCABULARY, HIDDEN)
            self.cell = nn.GRUCell(HIDDEN, HIDDEN)
            self.head = nn.Linear(HIDDEN, VOCABULARY)

    def log_probs(self, prompts: Tensor, actions: Tensor) -> Tensor:
        """Log-probability of each action [B, STEPS], given the prompt and the actions before it."""
        state = prompts.new_zeros((len(prompts), HIDDEN), dtype=self.head.weight.dtype)
        inputs = torch.cat([prompts[:, None], actions[:, :-1]], dim=1)
        steps = []
        for step in range(STEPS):
            state = self.cell(self.embed(inputs[:, step]), state)
            logits = self.head(state).log_softmax(dim=-1)
            steps.append(logits.gather(1, actions[:, step : step + 1]))
        return torch.cat(steps, dim=1)

    @torch.no_grad()
    def sample(self, prompt: int, generator: torch.Generator) -> tuple[list[int], list[float]]:
        """One answer and its per-step log-probabilities.

        One sample at a time with a generator of its own: what it draws depends on its seed alone,
        so a unit that is made again after a kill is the same to the last bit.
        """
        state = torch.zeros((1, HIDDEN))
        token = torch.tensor([prompt])
        actions, log_probs = [], []
        for _ in range(STEPS):
            state = self.cell(self.embed(token), state)
            logits = self.head(state).log_softmax(dim=-1)
            token = torch.multinomial(logits.exp()[0], 1, generator=generator)
            actions.append(int(token))
            log_probs.append(float(logits[0, token]))
        return actions, log_probs


def reward(prompt: int, actions: list[int]) -> float:
    """Share of steps that count up from the prompt."""
    right = sum(action == (prompt + 1 + step) % VOCABULARY for step, action in enumerate(actions))
    return right / len(actions)
