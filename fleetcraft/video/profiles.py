"""Encoder settings by name, frozen: a profile never changes, a better one gets a new name.

Invariant: every field is spelled here, so that a new default elsewhere changes no profile.
"""

from __future__ import annotations

from difflib import get_close_matches

from fleetcraft.errors import UsageError
from fleetcraft.video.encoder import EncoderSettings

PROFILES = {
    "h264-sdr-v1": EncoderSettings(
        codec="libx264",
        pix_fmt="yuv420p",
        qp=12,
        crf=None,
        preset="medium",
        threads=1,
        x264_params="",
        x265_params="",
    ),
    "hevc-hdr10-v1": EncoderSettings(
        codec="libx265",
        pix_fmt="yuv420p10le",
        qp=12,
        crf=None,
        preset="medium",
        threads=1,
        x264_params="",
        x265_params="",
    ),
}
"""Name to settings: 8-bit BT.709 with x264, and 10-bit BT.2020 PQ with x265."""


def encoder_profile(name: str) -> EncoderSettings:
    """The settings of a named profile.

    Args:
        name: As in ``h264-sdr-v1``.

    Raises:
        UsageError: If there is none of that name.
    """
    if name in PROFILES:
        return PROFILES[name]
    near = get_close_matches(str(name), PROFILES, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(PROFILES)}"
    raise UsageError(f"no encoder profile {name!r}", hint=hint, profile=str(name), near=near)
