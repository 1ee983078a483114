from __future__ import annotations

import gc
import json
import os
from typing import Any

import pytest
import torch

from fleetcraft.calibration.records import Failure
from fleetcraft.calibration.trial.context import Context
from fleetcraft.calibration.trial.journal import JournalWriter
from fleetcraft.calibration.trial.meters import ByteMeter
from fleetcraft.calibration.trial.orders import Pass
from fleetcraft.errors import UsageError
from fleetcraft.video import read_video


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    """Collecting garbage, which each phase does, then costs what a trial pays and not pytest's."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def lines(tmp_path):
    """What the journal of ``ctx`` says so far."""

    def read() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]

    return read


@pytest.fixture
def meter():
    meter = ByteMeter("cpu")
    with meter.cycle():
        yield meter


@pytest.fixture
def ctx(tmp_path, meter):
    journal = JournalWriter(str(tmp_path / "journal"))
    yield Context(
        batch=2,
        folder=str(tmp_path / "out"),
        pass_name=Pass.MEMORY,
        journal=journal,
        meter=meter,
    )
    journal.close()


# ------------------------------------------------------------------------------ phases


def test_a_phase_is_told_before_it_begins_and_measured_when_it_ends(ctx, lines):
    with ctx.phase("decode"):
        (begun,) = lines()
        pixels = ctx.own("pixels", torch.zeros(1024))

    assert (begun["event"], begun["phase"], begun["pass"]) == ("phase_begin", "decode", "memory")
    ended = lines()[-1]
    assert ended["event"] == "phase_end"
    assert ended["peak_bytes"] == ended["live_end_bytes"] == pixels.nbytes
    assert [(one["name"], one["bytes"]) for one in ended["owners"]] == [("pixels", 4096)]
    assert ended["rss_peak_bytes"] > pixels.nbytes
    assert "wall_s" not in ended


def test_phases_do_not_nest_in_either_form(ctx):
    with pytest.raises(UsageError, match="'b' begins inside phase 'a'"), ctx.phase("a"):
        ctx.begin("b")


def test_an_end_without_a_beginning_is_a_mistake(ctx):
    with pytest.raises(UsageError, match=r"ctx.end\(\) without a phase"):
        ctx.end()


def test_a_phase_that_raises_keeps_what_is_known_and_lets_another_begin(ctx, lines):
    def fail() -> None:
        latents = ctx.own("latents", torch.zeros(1024))
        raise ValueError(latents.shape)

    with pytest.raises(ValueError, match="1024"), ctx.phase("decode"):
        fail()
    with ctx.phase("score"):
        pass

    interrupted = lines()[1]
    assert interrupted["interrupted"] is True
    assert interrupted["owners"][0]["name"] == "latents"
    assert lines()[-1]["phase"] == "score"


def test_what_an_inference_phase_retains_for_a_backward_pass_is_found(ctx):
    weight = torch.ones(64, 64, requires_grad=True)

    with ctx.phase("denoise", grad=False):
        kept = (torch.ones(64, 64) @ weight).sin()

    (finding,) = ctx.findings
    assert finding.failure is Failure.AUTOGRAD_RETAINED
    assert finding.phase == "denoise"
    assert finding.bytes is not None
    assert finding.bytes >= kept.nbytes
    assert "without torch.no_grad()" in finding.message


def test_the_same_under_no_grad_is_nothing(ctx):
    weight = torch.ones(64, 64, requires_grad=True)

    with ctx.phase("denoise", grad=False), torch.no_grad():
        kept = (torch.ones(64, 64) @ weight).sin()

    assert kept.shape == (64, 64)
    assert ctx.findings == []


def test_an_owner_that_outlives_the_phase_that_releases_it_is_found_with_its_bytes(ctx, lines):
    with ctx.phase("probe", releases=("probe.kv",)):
        cache = ctx.own("probe.kv", [torch.zeros(1000), torch.zeros(24)])

    (finding,) = ctx.findings
    assert finding.failure is Failure.OWNER_OUTLIVED
    assert (finding.phase, finding.owner, finding.bytes) == ("probe", "probe.kv", 4096)
    assert lines()[-1]["held_bytes"] == {"probe.kv": 4096}
    del cache


def test_registering_an_owner_does_not_keep_it(ctx):
    with ctx.phase("probe", releases=("probe.kv",)):
        cache = ctx.own("probe.kv", [torch.zeros(1024)])
        del cache

    assert ctx.findings == []


def test_releasing_what_was_never_registered_is_a_mistake_with_the_near_name(ctx):
    ctx.begin("probe", releases=("probe.kw",))
    ctx.own("probe.kv", torch.zeros(1))

    with pytest.raises(UsageError, match="never registered") as raised:
        ctx.end()

    assert raised.value.hint == "did you mean 'probe.kv'?"


def test_what_a_scope_makes_and_nobody_claims_has_its_name(ctx, lines):
    with ctx.phase("decode"), ctx.scope("vae"):
        pixels = torch.zeros(1024)

    assert lines()[-1]["owners"][0]["name"] == "unowned:vae"
    assert pixels.nbytes == 4096


def test_a_cycle_that_leaves_a_phase_open_is_a_mistake(ctx):
    ctx.begin("load")

    with pytest.raises(UsageError, match="ended inside phase 'load'"):
        ctx.finish()


# ------------------------------------------------------------------------------ noise


@pytest.mark.parametrize("shape", [(3,), (17,), (4, 33), (2, 16, 8)])
@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_a_sample_draws_the_same_bits_in_any_batch_also_later(shape, batch):
    together, draws = Context(batch=batch, seed=7), 3
    rows = [together.noise(shape) for _ in range(draws)]

    for sample in range(batch):
        alone = Context(batch=1, seed=7)
        for draw in range(draws):
            assert torch.equal(rows[draw][sample], alone.noise_for([sample], shape)[0])


def test_noise_is_that_of_torch_with_the_samples_own_generator():
    drawn = Context(seed=3).noise_for([5], (4, 33))[0]

    assert torch.equal(drawn, torch.randn(4, 33, generator=Context(seed=3).generator(5)))


def test_samples_and_seeds_differ():
    first = Context(batch=2, seed=0).noise((32,))
    other_seed = Context(batch=2, seed=1).noise((32,))

    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other_seed[0])


def test_a_sample_starts_from_a_seed_that_stays_the_same_for_ever():
    assert Context(seed=0).generator(0).initial_seed() == 3065247057545751466


def test_another_type_is_the_same_noise_rounded():
    full = Context().noise((32,))
    half = Context().noise((32,), dtype=torch.bfloat16)

    assert half.dtype is torch.bfloat16
    assert torch.equal(half, full.to(torch.bfloat16))


def test_a_variant_starts_its_noise_anew_and_tells_nobody(ctx, lines):
    first = ctx.noise((32,))

    other = ctx.variant(batch=1)
    with other.phase("denoise"):
        again = other.noise((32,))

    assert torch.equal(again[0], first[0])
    assert ctx.variant(device="meta").noise((32,)).device.type == "meta"
    assert lines() == []


# ------------------------------------------------------------------------------ files


def test_one_video_a_sample_is_written_and_can_be_read(ctx):
    with ctx.phase("write"):
        one, other = ctx.write_video(torch.rand(2, 3, 32, 48, 3), fps=8)
        (single,) = ctx.write_video(torch.rand(3, 32, 48, 3), name="single")

    assert read_video(one).frames.shape == read_video(other).frames.shape == (3, 32, 48, 3)
    assert single.endswith("/single.mp4")
    assert ctx.findings == []


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("none.mp4", None, "is missing"),
        ("empty.bin", b"", "has 0 bytes"),
        ("empty.mp4", b"", "has 0 bytes"),
        ("noise.mp4", b"no video at all" * 99, "cannot be decoded"),
    ],
)
def test_a_file_of_an_own_encoder_that_cannot_be_used_is_found(ctx, name, content, why):
    path = ctx.path(name)

    with ctx.phase("encode"):
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)
        ctx.wrote(path)

    (finding,) = ctx.findings
    assert finding.failure is Failure.OUTPUT_EMPTY
    assert (finding.phase, finding.owner) == ("encode", name)
    assert f"{path} {why}" in finding.message


def test_a_cut_video_is_found(ctx):
    with ctx.phase("write"):
        (path,) = ctx.write_video(torch.rand(8, 32, 48, 3))
        with open(path, "r+b") as file:
            file.truncate(600)

    assert [finding.failure for finding in ctx.findings] == [Failure.OUTPUT_EMPTY]


def test_an_empty_file_that_nobody_told_of_is_found_after_the_write_phase(ctx):
    with ctx.phase("write"), open(ctx.path("own.bin"), "wb"):
        pass

    (finding,) = ctx.findings
    assert finding.owner == "own.bin"


def test_what_is_saved_is_whole_or_not_there(ctx):
    with ctx.phase("save"):
        path = ctx.save({"a": torch.ones(3)}, "model.pt")
        with pytest.raises(AttributeError, match="local object"):
            ctx.save({"a": lambda: None}, "broken.pt")

    assert torch.equal(torch.load(path)["a"], torch.ones(3))
    assert os.listdir(ctx.folder) == ["model.pt"]


def test_in_a_preflight_nothing_is_written_and_nobody_started(tmp_path):
    ctx = Context(folder=str(tmp_path / "out"), pass_name=Pass.PREFLIGHT)

    paths = ctx.write_video(torch.empty(2, 3, 8, 8, 3, device="meta"))
    ctx.save({}, "model.pt")
    with ctx.participants({"a": ["/bin/false"]}) as group:
        assert group.statuses() == {}

    assert [path.rsplit("/", 1)[1] for path in paths] == ["sample-000.mp4", "sample-001.mp4"]
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------ watching


def test_progress_is_told_now_and_then_and_at_the_end(ctx, lines):
    with ctx.phase("denoise"):
        for step in range(1, 1001):
            ctx.progress(step, 1000, "steps")

    told = [line for line in lines() if line["event"] == "progress"]
    assert told[0]["done"] == 1
    assert told[-1]["done"] == 1000
    assert len(told) < 1000


def test_a_block_without_participants_is_a_mistake(ctx):
    with pytest.raises(UsageError, match="no participants"):
        ctx.participants({})
