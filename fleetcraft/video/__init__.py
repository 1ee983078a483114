"""Video files: 8-bit reading and writing with explicit colour conversion.

Names are resolved on first use, so that importing this package loads neither PyAV nor numpy.
Metrics and figures of videos do not live here. Invariant: colours are BT.709 by conversion, not
by tags alone, and nothing with more than 8 bits or HDR is ever flattened silently.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetcraft.video.encoder import EncoderRecord, EncoderSettings, read_encoder_record
    from fleetcraft.video.frames import as_uint8_frames
    from fleetcraft.video.reader import Video, VideoInfo, inspect_video, iter_frames, read_video
    from fleetcraft.video.writer import write_video

__all__ = [
    "EncoderRecord",
    "EncoderSettings",
    "Video",
    "VideoInfo",
    "as_uint8_frames",
    "inspect_video",
    "iter_frames",
    "read_encoder_record",
    "read_video",
    "write_video",
]

_HOME = {
    "EncoderRecord": "encoder",
    "EncoderSettings": "encoder",
    "read_encoder_record": "encoder",
    "as_uint8_frames": "frames",
    "Video": "reader",
    "VideoInfo": "reader",
    "inspect_video": "reader",
    "iter_frames": "reader",
    "read_video": "reader",
    "write_video": "writer",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
