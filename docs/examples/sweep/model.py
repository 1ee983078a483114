"""A tiny video flow model: noise in, a looping clip of drifting light out.

The denoiser is exact, not trained. Each prompt is a Gaussian process over space and time, and for
a Gaussian process the best denoiser has a closed form: a Wiener filter in the Fourier domain. So
the model needs no weights file, while sampling, step counts, seeds and batches behave as in a
large model. Invariant: a sample depends on its own seed, prompt and steps, never on its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

# One thread: a fleet runs several tasks on a node, and the result must not depend on the node.
torch.set_num_threads(1)

FRAMES, HEIGHT, WIDTH, FPS = 24, 64, 96, 12
CHANNELS = 3


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What one prompt looks like.

    Attributes:
        drift: Velocity of the pattern (x, y) in pixels per frame.
        cycles: How often the pattern repeats across the width.
        calm: Over how many frames the pattern keeps its shape while it drifts.
        palette: Colours from dark to light, as RRGGBB.
        glow: Colour of the threads of light.
    """

    drift: tuple[float, float]
    cycles: float
    calm: float
    palette: tuple[str, str, str, str, str]
    glow: str


SCENES = {
    "aurora": Scene(
        drift=(1.6, 0.2),
        cycles=2.0,
        calm=28,
        palette=("050b24", "0b2f4f", "0f7a6c", "4bd694", "d8ffc8"),
        glow="b8fff0",
    ),
    "ember": Scene(
        drift=(0.2, -1.3),
        cycles=3.0,
        calm=20,
        palette=("12040a", "4a0d18", "a32a1c", "ef7d2d", "ffe08a"),
        glow="fff1c0",
    ),
    "lagoon": Scene(
        drift=(-1.0, 0.5),
        cycles=2.5,
        calm=26,
        palette=("031a3a", "064b7a", "128fb3", "6fd3cf", "f3f7d4"),
        glow="ffffff",
    ),
    "orchid": Scene(
        drift=(0.6, 0.9),
        cycles=1.8,
        calm=34,
        palette=("160a33", "4b1d73", "a8328f", "ec7fa9", "ffe3d8"),
        glow="ffd9f7",
    ),
}


def _rgb(code: str) -> list[float]:
    return [int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)]


def _spectrum(scene: Scene) -> Tensor:
    """Power of a drifting texture at every frequency, [T, H, W // 2 + 1], with mean 1.

    A texture that moves rigidly has its power on the plane ft = -(vx fx + vy fy); its changes of
    shape widen that plane. Source: Watson and Ahumada, "Model of human visual-motion sensing"
    (1985).
    """
    ft = torch.fft.fftfreq(FRAMES)[:, None, None]
    fy = torch.fft.fftfreq(HEIGHT)[None, :, None]
    fx = torch.fft.rfftfreq(WIDTH)[None, None, :]
    radius = torch.sqrt(fx**2 + fy**2).clamp_min(1e-6)
    octaves = torch.log2(radius * WIDTH / scene.cycles)
    # The distance is taken around the circle of temporal frequencies, so that a clip loops.
    off_plane = ft + scene.drift[0] * fx + scene.drift[1] * fy
    off_plane = (off_plane + 0.5) % 1.0 - 0.5
    power = torch.exp(-0.5 * (octaves / 0.6) ** 2) / radius**2
    power = power * torch.exp(-0.5 * (off_plane * scene.calm) ** 2)
    return power / power.mean()


class Denoiser(nn.Module):
    """The exact posterior mean of a clean latent, given a noisy one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("spectra", torch.stack([_spectrum(s) for s in SCENES.values()]))

    def forward(self, noisy: Tensor, time: float, scene: Tensor) -> Tensor:
        """Estimates the clean latent.

        Args:
            noisy: (1 - time) * clean + time * noise, [B, C, T, H, W].
            time: 1 is pure noise, 0 is clean.
            scene: Index of each sample's scene, [B].

        Returns:
            The clean latent's posterior mean, [B, C, T, H, W].
        """
        power = self.spectra[scene][:, None]
        gain = (1 - time) * power / ((1 - time) ** 2 * power + time**2)
        waves = torch.fft.rfftn(noisy, dim=(-3, -2, -1)) * gain
        return torch.fft.irfftn(waves, s=noisy.shape[-3:], dim=(-3, -2, -1))


class Decoder(nn.Module):
    """Latent to RGB: every pixel attends to the colours of its scene's palette."""

    def __init__(self) -> None:
        super().__init__()
        palettes = [[_rgb(code) for code in scene.palette] for scene in SCENES.values()]
        self.register_buffer("palettes", torch.tensor(palettes))
        self.register_buffer("glows", torch.tensor([_rgb(s.glow) for s in SCENES.values()]))
        self.register_buffer("keys", torch.linspace(-1.7, 1.7, 5))

    def forward(self, latent: Tensor, scene: Tensor) -> Tensor:
        """Decodes a latent [B, C, T, H, W] to RGB in [0, 1], [B, T, H, W, 3]."""
        tone, light, thread = latent.unbind(dim=1)
        attention = torch.softmax(-3 * (tone[..., None] - self.keys) ** 2, dim=-1)
        color = torch.einsum("bthwk,bkc->bthwc", attention, self.palettes[scene])
        color = color * (0.65 + 0.35 * torch.tanh(light))[..., None]
        # Threads of light lie where the third channel changes its sign.
        strength = 0.55 * torch.exp(-((thread / 0.16) ** 2)) * torch.sigmoid(2 * light + 1)
        glow = self.glows[scene][:, None, None, None]
        return (color + strength[..., None] * (glow - color)).clamp(0, 1)


class FlowModel(nn.Module):
    """Denoiser, decoder and an Euler sampler of the flow from noise to a clip."""

    def __init__(self) -> None:
        super().__init__()
        self.denoiser = Denoiser()
        self.decoder = Decoder()

    @torch.inference_mode()
    def sample(self, seeds: Sequence[int], prompts: Sequence[str], steps: int) -> Tensor:
        """Samples one clip for each seed.

        Args:
            seeds: One per clip, B in all.
            prompts: Names of scenes, one per clip.
            steps: Euler steps, at least 1; more steps bring more contrast and detail.

        Returns:
            RGB in [0, 1], [B, T, H, W, 3].
        """
        names = list(SCENES)
        scene = torch.tensor([names.index(prompt) for prompt in prompts])
        latent = initial_noise(seeds)
        times = torch.linspace(1, 0, steps + 1).tolist()
        for time, following in pairwise(times):
            clean = self.denoiser(latent, time, scene)
            latent = latent + (following - time) * (latent - clean) / time
        return self.decoder(latent, scene)


def initial_noise(seeds: Sequence[int]) -> Tensor:
    """Noise [B, C, T, H, W]; each sample has its own generator, so batches do not matter."""
    shape = (CHANNELS, FRAMES, HEIGHT, WIDTH)
    return torch.stack(
        [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    )


def prompt_for(seed: int, prompts: Sequence[str] = tuple(SCENES)) -> str:
    """The prompt that a seed gets from a list, by turns."""
    return prompts[seed % len(prompts)]
