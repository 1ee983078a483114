"""Any video pipeline of diffusers as a family: its own call, split into phases where it decodes.

The pipeline runs as its users run it; only the call of ``vae.decode`` is watched, which is where
denoising ends and decoding begins. Scoring and training are the caller's functions. Invariant: what
changes memory, speed or pixels (sizes, steps, dtype, tiling, slicing, offload) is in the identity,
and each sample has a generator of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from fleetcraft.calibration.family import (
    DiT,
    Family,
    Independent,
    NoiseCheck,
    Semantics,
    Unknown,
    family,
)
from fleetcraft.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from fleetcraft.calibration.trial.context import Context

OFFLOADS = ("none", "model", "sequential")
_TRAINED = ("backward1", "step1", "backward2", "step2", "save")


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """How a pipeline's denoiser is trained, for families that measure training too.

    Attributes:
        loss: ``loss(pipe, ctx, batch, latents)`` returns a scalar that can be differentiated.
        optimizer: ``optimizer(parameters)`` returns a torch optimizer.
    """

    loss: Callable[[Any, Context, int, torch.Tensor], torch.Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What of a pipeline's call and memory savers is part of its identity.

    Attributes:
        height: Of a frame, pixels.
        width: Of a frame, pixels.
        frames: Of one clip.
        steps: Denoising steps.
        guidance: Classifier-free guidance scale.
        dtype: As in ``bfloat16``.
        vae_tiling: Whether the VAE decodes in tiles.
        vae_slicing: Whether it decodes one sample of the batch at a time.
        offload: ``none``, or ``model`` or ``sequential`` CPU offload.
        fps: Of what is written.
    """

    height: int
    width: int
    frames: int
    steps: int
    guidance: float = 5.0
    dtype: str = "float32"
    vae_tiling: bool = False
    vae_slicing: bool = False
    offload: str = "none"
    fps: float = 16.0


def video_family(
    key: str,
    *,
    build: Callable[[], Any],
    settings: Settings,
    model: str,
    revision: str,
    inputs: Callable[[Context, Sequence[int]], Mapping[str, Any]],
    score: Callable[[torch.Tensor], Any] | None = None,
    training: Training | None = None,
    parity_tolerance: float | None = None,
    parity_steps: int = 2,
    flops: DiT | None = None,
    count_flops: Callable[[Context], Any] | None = None,
    encoder: str = "h264-sdr-v1",
    patience_s: float = 600.0,
) -> Family:
    """Declares a pipeline as a family.

    Args:
        key: The family's key, such as ``wan21-1.3b/480p/81f/50step``.
        build: Makes the pipeline, weights loaded, on the CPU.
        settings: Its call and its memory savers.
        model: Name of the weights, part of the identity.
        revision: Of the weights, part of the identity.
        inputs: ``inputs(ctx, samples)`` gives further arguments of the call for these sample
            numbers, such as ``prompt_embeds`` [len(samples), L, D] or a list of prompts.
        score: ``score(frames)`` is given float frames [B, T, C, H, W] in [0, 1].
        training: Adds two backward passes and optimizer steps on ``pipe.transformer``.
        parity_tolerance: Largest difference of latents in a batch and alone; None leaves the
            semantics unknown, and with it batch one.
        parity_steps: Denoising steps of the parity test.
        flops: What one sample costs.
        count_flops: Runs one sample's forwards, to be counted.
        encoder: Profile of what is written.
        patience_s: Silence of the first batch that counts as a stall.

    Raises:
        UsageError: A setting that is none.
    """
    if settings.offload not in OFFLOADS:
        raise UsageError(
            f"family {key!r}: offload is {settings.offload!r}, expected one of "
            f"{', '.join(OFFLOADS)}",
            field="offload",
        )
    runner = _Runner(build, settings, inputs)
    requires = ["load", "denoise", "decode"]
    requires += ["score"] if score is not None else []
    requires += _TRAINED if training is not None else []
    semantics: Semantics = Unknown()
    if parity_tolerance is not None:
        semantics = Independent(
            parity=lambda ctx, samples: runner.latents(ctx, samples, parity_steps),
            tolerance=parity_tolerance,
        )

    @family(
        key,
        kind="train" if training is not None else "infer",
        requires=(*requires, "write"),
        semantics=semantics,
        identity={
            "model": model,
            "revision": revision,
            "encoder": encoder,
            **msgspec.structs.asdict(settings),
        },
        checks=(NoiseCheck(draw=runner.first_noise),),
        flops=flops,
        count_flops=count_flops,
        patience_s=patience_s,
    )
    def cycle(ctx: Context, batch: int) -> None:
        with ctx.phase("load"):
            pipe = runner.load(ctx)
            for name in ("transformer", "unet", "text_encoder", "vae"):
                if getattr(pipe, name, None) is not None:
                    ctx.own(name, getattr(pipe, name))
        pixels, latents = runner.frames(ctx, pipe, batch)
        if score is not None:
            with ctx.phase("score", grad=False), torch.no_grad():
                score(pixels)
        if training is not None:
            _train(ctx, pipe, training, batch, latents)
        with ctx.phase("write"):
            clips = pixels.permute(0, 1, 3, 4, 2).clamp(0, 1)
            ctx.write_video(clips, encoder=encoder, fps=settings.fps)

    return cycle


def _train(ctx: Context, pipe: Any, training: Training, batch: int, latents: torch.Tensor) -> None:
    weights = [weight for weight in pipe.transformer.parameters() if weight.requires_grad]
    optimizer = ctx.own("optimizer", training.optimizer(weights))
    for step in (1, 2):
        with ctx.phase(f"backward{step}"):
            training.loss(pipe, ctx, batch, latents).backward()  # type: ignore[no-untyped-call]
        with ctx.phase(f"step{step}"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    with ctx.phase("save"):
        ctx.save(pipe.transformer.state_dict(), "transformer")


class _Captured(Exception):
    """The denoiser was called: its input is known, and the rest of the call is not wanted."""


class _Runner:
    """Builds the pipeline and calls it."""

    def __init__(
        self,
        build: Callable[[], Any],
        settings: Settings,
        inputs: Callable[[Context, Sequence[int]], Mapping[str, Any]],
    ) -> None:
        self._build = build
        self._settings = settings
        self._inputs = inputs

    def load(self, ctx: Context) -> Any:
        """The pipeline with its memory savers, on the trial's device.

        Raises:
            ConfigError: It cannot do what the settings say.
        """
        settings = self._settings
        pipe = self._build()
        pipe.set_progress_bar_config(disable=True)
        if settings.vae_tiling:
            _switch_on(pipe, "enable_tiling", "vae_tiling")
        if settings.vae_slicing:
            _switch_on(pipe, "enable_slicing", "vae_slicing")
        if settings.offload == "none":
            return pipe.to(ctx.device)
        if str(ctx.device).startswith("cpu"):
            raise ConfigError(
                f"offload={settings.offload!r} needs an accelerator, and this trial runs on "
                f"{ctx.device}; nothing was measured",
                hint="calibrate on the kind of GPU that the family will run on",
                field="offload",
            )
        move = "enable_model_cpu_offload" if settings.offload == "model" else None
        getattr(pipe, move or "enable_sequential_cpu_offload")(device=ctx.device)
        return pipe

    def frames(self, ctx: Context, pipe: Any, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs phases denoise and decode; pixels [B, T, C, H, W] in [0, 1], and latents."""
        seen: list[torch.Tensor] = []
        ctx.begin("denoise", grad=False)
        with _at_decode(pipe.vae, ctx, seen):
            made = pipe(**self._call(ctx, pipe, range(batch)), output_type="pt")
        ctx.own("pixels", made.frames)  # while their phase is open, so that it names them
        ctx.end()
        if not seen:
            raise ConfigError(
                f"{type(pipe).__name__} never called vae.decode, so it has no phase decode",
                hint="write the family's cycle by hand: see docs/calibration.md",
            )
        return made.frames, seen[0]

    def latents(self, ctx: Context, samples: Sequence[int], steps: int) -> torch.Tensor:
        """Denoised latents of these samples [len(samples), ...], for the parity test."""
        pipe = self.load(ctx)
        call = {**self._call(ctx, pipe, samples), "num_inference_steps": steps}
        made: torch.Tensor = pipe(**call, output_type="latent").frames
        return made

    def first_noise(self, ctx: Context, samples: Sequence[int]) -> torch.Tensor:
        """What the denoiser is given first: the initial noise of each sample."""
        pipe = self.load(ctx)
        seen: list[torch.Tensor] = []

        def capture(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            noise = named["hidden_states"] if "hidden_states" in named else args[0]
            # Guidance may stack the batch on itself; the first rows are the samples.
            seen.append(noise[: len(samples)].detach().clone())
            raise _Captured

        denoiser = getattr(pipe, "transformer", None) or pipe.unet
        hook = denoiser.register_forward_pre_hook(capture, with_kwargs=True)
        try:
            pipe(**self._call(ctx, pipe, samples), output_type="latent")
        except _Captured:
            pass
        finally:
            hook.remove()
        return seen[0]

    def _call(self, ctx: Context, pipe: Any, samples: Sequence[int]) -> dict[str, Any]:
        settings = self._settings
        call = {
            "height": settings.height,
            "width": settings.width,
            "num_frames": settings.frames,
            "num_inference_steps": settings.steps,
            "guidance_scale": settings.guidance,
            "generator": [ctx.generator(sample) for sample in samples],
            **self._inputs(ctx, samples),
        }
        if "callback_on_step_end" in inspect.signature(pipe.__call__).parameters:
            call["callback_on_step_end"] = _progress(ctx, settings.steps)
        return call


def _progress(ctx: Context, steps: int) -> Callable[..., dict[str, Any]]:
    def tell(pipe: Any, step: int, timestep: Any, given: dict[str, Any]) -> dict[str, Any]:
        ctx.progress(step + 1, steps)
        return given

    return tell


def _switch_on(pipe: Any, method: str, field: str) -> None:
    if not hasattr(pipe.vae, method):
        raise ConfigError(
            f"{type(pipe.vae).__name__} has no {method}, so {field} cannot be true",
            field=field,
        )
    getattr(pipe.vae, method)()


@contextmanager
def _at_decode(vae: Any, ctx: Context, seen: list[torch.Tensor]) -> Iterator[None]:
    """Ends phase denoise and begins decode at the first call of ``vae.decode``."""
    decode = vae.decode

    def watched(latents: torch.Tensor, *args: Any, **named: Any) -> Any:
        if not seen:
            seen.append(latents.detach())
            ctx.end()
            ctx.begin("decode", grad=False)
        return decode(latents, *args, **named)

    vae.decode = watched
    try:
        yield
    finally:
        del vae.decode  # the method of the class again
