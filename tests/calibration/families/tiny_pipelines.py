"""Real model classes of diffusers, tiny and with random weights, as families: no network is used.

Families at module level, so that a trial's process can load this file too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from diffusers import (
    AutoencoderKLLTXVideo,
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    WanPipeline,
    WanTransformer3DModel,
)

from fleetcraft.calibration.families.diffusers_video import Settings, Training, video_family

TEXT_TOKENS, TEXT_WIDTH = 8, 32
WAN = Settings(height=16, width=16, frames=9, steps=2, guidance=3.0)
LTX = Settings(height=32, width=32, frames=9, steps=2, guidance=3.0)


def build_wan() -> WanPipeline:
    torch.manual_seed(0)
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=TEXT_WIDTH,
        freq_dim=256,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    vae = AutoencoderKLWan(
        base_dim=3,
        z_dim=16,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )
    return WanPipeline(
        tokenizer=None,
        text_encoder=None,
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(),
    )


def build_ltx() -> LTXPipeline:
    torch.manual_seed(0)
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        patch_size=1,
        patch_size_t=1,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=TEXT_WIDTH,
        num_layers=1,
        caption_channels=TEXT_WIDTH,
    )
    vae = AutoencoderKLLTXVideo(
        in_channels=3,
        out_channels=3,
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4,
        upsample_factor=(1,) * 4,
        timestep_conditioning=False,
        patch_size=1,
        patch_size_t=1,
        encoder_causal=True,
        decoder_causal=False,
    )
    return LTXPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        transformer=transformer,
    )


def embeddings(samples: Sequence[int]) -> torch.Tensor:
    """What a text encoder would give: [len(samples), L, D], one text a sample."""
    return torch.stack(
        [
            torch.randn(TEXT_TOKENS, TEXT_WIDTH, generator=torch.Generator().manual_seed(9 + s))
            for s in samples
        ]
    )


def wan_inputs(ctx: Any, samples: Sequence[int]) -> Mapping[str, Any]:
    text = embeddings(samples).to(ctx.device)
    return {"prompt_embeds": text, "negative_prompt_embeds": torch.zeros_like(text)}


def ltx_inputs(ctx: Any, samples: Sequence[int]) -> Mapping[str, Any]:
    mask = torch.ones(len(samples), TEXT_TOKENS, device=ctx.device)
    return {
        **wan_inputs(ctx, samples),
        "prompt_attention_mask": mask,
        "negative_prompt_attention_mask": mask,
    }


def flow_loss(pipe: Any, ctx: Any, batch: int, latents: torch.Tensor) -> torch.Tensor:
    """Flow matching on the latents: the model predicts noise less data."""
    noise = ctx.noise(latents.shape[1:], batch)
    time = torch.full((batch,), 500.0, device=ctx.device)
    noisy = 0.5 * latents + 0.5 * noise
    text = embeddings(range(batch)).to(ctx.device)
    found = pipe.transformer(noisy, timestep=time, encoder_hidden_states=text, return_dict=False)
    return (found[0] - (noise - latents)).square().mean()


def brightness(frames: torch.Tensor) -> torch.Tensor:
    return frames.mean(dim=(1, 2, 3, 4))


def wan(settings: Settings = WAN, **more: Any) -> Any:
    named: dict[str, Any] = {
        "build": build_wan,
        "model": "tiny-wan",
        "revision": "random-0",
        "inputs": wan_inputs,
        "score": brightness,
    }
    return video_family("tiny-wan/16p/9f/2step", settings=settings, **{**named, **more})


wan_infer = wan(parity_tolerance=1e-5)
wan_train = wan(parity_tolerance=1e-5, training=Training(loss=flow_loss))
ltx_infer = video_family(
    "tiny-ltx/32p/9f/2step",
    build=build_ltx,
    settings=LTX,
    model="tiny-ltx",
    revision="random-0",
    inputs=ltx_inputs,
    score=brightness,
    parity_tolerance=1e-5,
)
