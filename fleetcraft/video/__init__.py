"""Video files: reading and writing with explicit colour conversion, in 8 bits and as HDR10.

Names are resolved on first use, so that importing this package loads neither PyAV nor numpy.
Metrics and figures of videos do not live here. Invariant: colours are converted, not only tagged,
and nothing with more than 8 bits or HDR is ever flattened silently.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetcraft.video.check import (
        Checked,
        Probed,
        RecordState,
        Verdict,
        check_video,
        probe_video,
    )
    from fleetcraft.video.comparison import (
        Agreement,
        Compared,
        Difference,
        Likeness,
        compare_frames,
        compare_videos,
        encoder_differences,
        require_same_encoder,
    )
    from fleetcraft.video.encoder import EncoderRecord, EncoderSettings, read_encoder_record
    from fleetcraft.video.frames import as_pq_frames, as_uint8_frames
    from fleetcraft.video.metadata import P3_D65_1000, ContentLight, MasteringDisplay
    from fleetcraft.video.profiles import PROFILES, encoder_profile
    from fleetcraft.video.reader import Video, VideoInfo, inspect_video, iter_frames, read_video
    from fleetcraft.video.repeats import Repeatability, moving_clip, repeatability
    from fleetcraft.video.tags import Deep
    from fleetcraft.video.writer import write_hdr10_video, write_video

__all__ = [
    "P3_D65_1000",
    "PROFILES",
    "Agreement",
    "Checked",
    "Compared",
    "ContentLight",
    "Deep",
    "Difference",
    "EncoderRecord",
    "EncoderSettings",
    "Likeness",
    "MasteringDisplay",
    "Probed",
    "RecordState",
    "Repeatability",
    "Verdict",
    "Video",
    "VideoInfo",
    "as_pq_frames",
    "as_uint8_frames",
    "check_video",
    "compare_frames",
    "compare_videos",
    "encoder_differences",
    "encoder_profile",
    "inspect_video",
    "iter_frames",
    "moving_clip",
    "probe_video",
    "read_encoder_record",
    "read_video",
    "repeatability",
    "require_same_encoder",
    "write_hdr10_video",
    "write_video",
]

_HOME = {
    "Checked": "check",
    "RecordState": "check",
    "Verdict": "check",
    "check_video": "check",
    "probe_video": "check",
    "Probed": "check",
    "Agreement": "comparison",
    "Compared": "comparison",
    "compare_videos": "comparison",
    "Difference": "comparison",
    "Likeness": "comparison",
    "compare_frames": "comparison",
    "encoder_differences": "comparison",
    "require_same_encoder": "comparison",
    "EncoderRecord": "encoder",
    "EncoderSettings": "encoder",
    "read_encoder_record": "encoder",
    "as_pq_frames": "frames",
    "as_uint8_frames": "frames",
    "ContentLight": "metadata",
    "MasteringDisplay": "metadata",
    "P3_D65_1000": "metadata",
    "PROFILES": "profiles",
    "encoder_profile": "profiles",
    "Video": "reader",
    "VideoInfo": "reader",
    "inspect_video": "reader",
    "iter_frames": "reader",
    "read_video": "reader",
    "Repeatability": "repeats",
    "moving_clip": "repeats",
    "repeatability": "repeats",
    "Deep": "tags",
    "write_hdr10_video": "writer",
    "write_video": "writer",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
