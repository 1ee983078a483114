"""Files that a cycle has written: is there anything in them that can be used?

How they are written is elsewhere. Invariant: nothing is decided from a file's name alone; a video
is decoded to its last frame.
"""

from __future__ import annotations

import os

from fleetcraft.calibration.trial.participants import PARTICIPANTS_FOLDER

VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm"})


def what_is_wrong(path: str) -> str:
    """Looks at one file.

    Args:
        path: The file.

    Returns:
        Why it cannot be used, to follow its name in a sentence; empty when it can.
    """
    try:
        size = os.stat(path).st_size
    except OSError as error:
        return f"is missing ({error.strerror})"
    if size == 0:
        return "has 0 bytes"
    if os.path.splitext(path)[1].lower() not in VIDEO_SUFFIXES:
        return ""
    return _undecodable(path)


def empty_files(folder: str) -> list[str]:
    """Files with 0 bytes below a folder, in order; what participants print is none of them."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != PARTICIPANTS_FOLDER)
        paths = (os.path.join(place, name) for name in sorted(names))
        found += [path for path in paths if os.lstat(path).st_size == 0]
    return found


def _undecodable(path: str) -> str:
    from fleetcraft.video import Verdict, check_video  # PyAV is an extra: only a video needs it

    checked = check_video(path)
    if checked.verdict is Verdict.WHOLE and checked.frames:
        return ""
    return f"cannot be decoded: {'; '.join(checked.reasons) or 'it has no frames'}"
