"""Noise of a trial: one generator a sample, so that a sample starts from the same noise anywhere.

Invariant: what a sample draws depends on the seed of the run, the sample's number and what it drew
before in its cycle, never on its batch, the device or the type of the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fleetcraft.identity import sha256_hex


class Noise:
    """The generators of one cycle.

    Args:
        seed: Of the run.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[int, torch.Generator] = {}

    def generator(self, sample: int) -> torch.Generator:
        """The generator of one sample, on the CPU, at wherever it has got to."""
        if sample not in self._generators:
            made = torch.Generator()
            made.manual_seed(sample_seed(self._seed, sample))
            self._generators[sample] = made
        return self._generators[sample]

    def restart(self) -> None:
        """Puts every generator to its start."""
        self._generators.clear()

    def normal(self, samples: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        """Normal noise, float32 on the CPU.

        Returns:
            [len(samples), *shape]; a row is bit-equal to what its sample draws alone.
        """
        drawn = torch.empty((len(samples), *shape), dtype=torch.float32, device="cpu")
        # Filled row by row: one draw for all would give a sample's numbers another order.
        for place, sample in enumerate(samples):
            drawn[place].normal_(generator=self.generator(sample))
        return drawn


def sample_seed(seed: int, sample: int) -> int:
    """The seed of one sample's generator: 63 bits of the sha256 of ``SEED/SAMPLE``."""
    return int(sha256_hex(f"{seed}/{sample}".encode())[:16], 16) >> 1
