"""Named encoder profiles: frozen, refused by near name, and tried out rather than trusted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fleetcraft.errors import UsageError
from fleetcraft.video import (
    PROFILES,
    EncoderSettings,
    encoder_profile,
    moving_clip,
    repeatability,
    repeats,
    write_video,
)
from tests.video.clips import smooth_clip

FROZEN = {
    "h264-sdr-v1": {
        "codec": "libx264",
        "pix_fmt": "yuv420p",
        "qp": 12,
        "crf": None,
        "preset": "medium",
        "threads": 1,
        "x264_params": "",
        "x265_params": "",
    },
    "hevc-hdr10-v1": {
        "codec": "libx265",
        "pix_fmt": "yuv420p10le",
        "qp": 12,
        "crf": None,
        "preset": "medium",
        "threads": 1,
        "x264_params": "",
        "x265_params": "",
    },
}


def test_a_profile_never_changes() -> None:
    """Whoever wants other settings adds a profile; this table only grows."""
    assert {name: msgspec.to_builtins(found) for name, found in PROFILES.items()} == FROZEN
    assert encoder_profile("h264-sdr-v1").options == {"preset": "medium", "qp": "12"}
    assert encoder_profile("hevc-hdr10-v1").options == {
        "preset": "medium",
        "qp": "12",
        "x265-params": "log-level=none:pools=1:frame-threads=1:wpp=0:lookahead-slices=0:"
        "keyint=250:min-keyint=25",
    }


def test_the_default_of_the_writer_is_the_first_profile(tmp_path: Path) -> None:
    given = encoder_profile("h264-sdr-v1")
    assert write_video(tmp_path / "a.mp4", smooth_clip(3), fps=24).settings == given


@pytest.mark.parametrize(
    ("name", "hint"), [("h264-sdr", "did you mean h264-sdr-v1"), ("zzz", "there are h264-sdr-v1")]
)
def test_an_unknown_profile_is_refused_with_near_names(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match="no encoder profile") as caught:
        encoder_profile(name)
    assert hint in caught.value.hint


@pytest.mark.parametrize("name", list(PROFILES))
def test_every_profile_repeats_on_this_machine(name: str) -> None:
    tried = repeatability(encoder_profile(name), runs=3, frames=12)
    assert (tried.repeats, tried.bitstreams, tried.runs) == (True, 1, 3)
    assert len(tried.sha256[0]) == 64
    assert min(tried.sizes_bytes) > 1000


def test_what_came_out_is_reported_whatever_it_is() -> None:
    """x264 with CRF and macroblock tree repeats on some CPUs and not on others."""
    loose = EncoderSettings(qp=None, crf=18, x264_params="mbtree=1")
    tried = repeatability(loose, runs=4, frames=12)
    assert tried.bitstreams == len(set(tried.sha256))
    assert tried.repeats == (tried.bitstreams == 1)
    assert tried.settings == loose


def test_an_encoder_that_does_not_repeat_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def drifting(path: Path, clip: object, **rest: object) -> object:
        calls.append(path)
        drifted = np.clip(np.asarray(clip) + len(calls) / 64, 0, 1)
        return write_video(path, drifted, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(repeats, "write_video", drifting)
    tried = repeatability(encoder_profile("h264-sdr-v1"), runs=3, frames=4)
    assert (tried.repeats, tried.bitstreams) == (False, 3)


def test_the_clip_that_is_tried_moves_and_is_always_the_same() -> None:
    clip = moving_clip(4, 32, 48)
    assert clip.shape == (4, 32, 48, 3)
    assert (clip.min() >= 0, clip.max() <= 1) == (True, True)
    assert not np.allclose(clip[0], clip[1], atol=0.05)
    again = moving_clip(4, 32, 48)
    assert hashlib.sha256(clip.tobytes()).digest() == hashlib.sha256(again.tobytes()).digest()


@pytest.mark.parametrize("bad", [{"runs": 1}, {"frames": 0}, {"width": 0}], ids=str)
def test_nothing_is_said_about_less_than_two_files(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        repeatability(encoder_profile("h264-sdr-v1"), **bad)  # type: ignore[arg-type]
