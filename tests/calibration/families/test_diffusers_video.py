from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

pytest.importorskip("diffusers", reason="diffusers is not installed: pip install .[diffusers]")

from fleetcraft.calibration.checks.run import run_checks
from fleetcraft.calibration.family import Family
from fleetcraft.calibration.records import Failure, Verdict
from fleetcraft.calibration.trial.context import Context
from fleetcraft.errors import ConfigError, UsageError
from fleetcraft.video import read_video
from tests.calibration.families import tiny_pipelines as tiny

HERE = Path(__file__).parent
INFER = ("load", "denoise", "decode", "score", "write")


class Phases(Context):
    """A context that notes the phases it is taken through."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.seen: list[str] = []

    def begin(self, name: str, **named: Any) -> None:
        self.seen.append(name)
        super().begin(name, **named)


@pytest.mark.parametrize(("made", "size"), [(tiny.wan_infer, 16), (tiny.ltx_infer, 32)])
def test_a_real_pipeline_runs_whole_and_leaves_one_readable_clip_a_sample(
    made: Family, size: int, tmp_path: Path
) -> None:
    ctx = Phases(batch=2, folder=str(tmp_path))

    made.cycle(ctx, 2)

    assert tuple(ctx.seen) == INFER == made.required_phases
    clips = sorted(tmp_path.rglob("*.mp4"))
    assert [read_video(clip).frames.shape for clip in clips] == [(9, size, size, 3)] * 2
    assert ctx.findings == []


def test_training_adds_two_steps_that_move_the_weights(tmp_path: Path) -> None:
    ctx = Phases(batch=1, folder=str(tmp_path))

    tiny.wan_train.cycle(ctx, 1)

    assert tuple(ctx.seen) == tiny.wan_train.required_phases
    assert ctx.seen[4:9] == ["backward1", "step1", "backward2", "step2", "save"]
    (saved,) = [path for path in tmp_path.rglob("*transformer*") if path.is_file()]
    trained = torch.load(saved, weights_only=True)
    fresh = tiny.build_wan().transformer.state_dict()
    assert any(not torch.equal(trained[name], fresh[name]) for name in fresh)


@pytest.mark.parametrize("made", [tiny.wan_infer, tiny.ltx_infer])
def test_noise_and_latents_of_a_sample_do_not_depend_on_its_batch(made: Family) -> None:
    found = run_checks(made, Context(batch=2))

    assert [(check.name, check.ok) for check in found] == [("noise", True), ("parity", True)], found


def test_a_generator_shared_by_the_batch_is_found() -> None:
    def shared(ctx: Context, samples: Any) -> Any:
        return {**tiny.wan_inputs(ctx, samples), "generator": ctx.generator(samples[0])}

    family = tiny.wan(inputs=shared, parity_tolerance=1e-5)
    noise, parity = run_checks(family, Context(batch=2))

    assert noise.failure is Failure.NOISE_SHARED
    assert parity.failure is Failure.SEMANTICS_CHANGED


def test_tiling_and_offload_are_part_of_the_identity() -> None:
    plain = tiny.wan()
    hashes = {
        tiny.wan(msgspec.structs.replace(tiny.WAN, **change)).identity_hash
        for change in (
            {"vae_tiling": True},
            {"vae_slicing": True},
            {"offload": "model"},
            {"dtype": "bfloat16"},
            {"steps": 3},
        )
    }

    assert len(hashes | {plain.identity_hash}) == 6
    assert tiny.wan().identity_hash == plain.identity_hash


def test_tiling_is_switched_on_where_it_is_declared(tmp_path: Path) -> None:
    calls: list[str] = []

    def build() -> Any:
        pipe = tiny.build_wan()
        pipe.vae.enable_tiling = lambda: calls.append("tiling")
        return pipe

    family = tiny.wan(msgspec.structs.replace(tiny.WAN, vae_tiling=True), build=build)
    family.cycle(Context(batch=1, folder=str(tmp_path)), 1)

    assert calls == ["tiling"]


def test_offload_without_an_accelerator_is_refused_with_its_field(tmp_path: Path) -> None:
    family = tiny.wan(msgspec.structs.replace(tiny.WAN, offload="model"))

    with pytest.raises(ConfigError, match="needs an accelerator") as caught:
        family.cycle(Context(batch=1, folder=str(tmp_path)), 1)

    assert caught.value.field == "offload"


def test_an_unknown_offload_is_refused_when_the_family_is_declared() -> None:
    with pytest.raises(UsageError, match="offload is 'disk'"):
        tiny.wan(msgspec.structs.replace(tiny.WAN, offload="disk"))


@pytest.mark.timeout(240)
def test_the_whole_harness_measures_the_real_wan_classes(tmp_path: Path) -> None:
    from fleetcraft.calibration.sweep.run import calibrate
    from fleetcraft.layout import Scratch

    name = f"{HERE / 'tiny_pipelines.py'}:wan_train"
    found = calibrate(name, scratch=Scratch(str(tmp_path)), batches=(1, 2), device="cpu")

    assert [trial.verdict for trial in found.trials] == [Verdict.OK, Verdict.OK], found.trials
    for trial in found.trials:
        assert not trial.missing_phases
        for phase in trial.phases:
            assert sum(owner.bytes for owner in phase.owners) == phase.peak_bytes
        for phase in ("denoise", "decode", "score"):
            assert trial.phase_named(phase).autograd_bytes == 0
        assert "pixels" in {owner.name for owner in trial.phase_named("decode").owners}
        owners = {owner.name for owner in trial.phase_named("step2").owners}
        assert {"transformer", "transformer.grad", "optimizer", "vae"} <= owners
