"""A writer that is killed at any point leaves the old file or the new one, whole, and no lie.

Every point of the writing is a call of the real code; the process kills itself just before one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft.errors import DataError
from fleetcraft.video import (
    EncoderSettings,
    RecordState,
    Verdict,
    check_video,
    read_encoder_record,
    write_video,
)
from tests.video.clips import smooth_clip

REPOSITORY = Path(__file__).parents[2]

_WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
import numpy as np
from fleetcraft.video import EncoderSettings, encoding, write_hdr10_video, write_video, writer
from tests.video.clips import smooth_clip, smooth_codes

path, point, which = sys.argv[1], sys.argv[2], int(sys.argv[3])
calls = 0

def dying(real):
    def call(*args, **rest):
        global calls
        calls += 1
        if calls == which:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **rest)
    return call

homes = {
    "convert": (writer, "yuv_from_rgb"),
    "read back": (encoding, "check_written"),
    "note": (encoding, "_write_note"),
    "forget record": (Path, "unlink"),
    "publish": (encoding, "replace_atomically"),
}
home, name = homes[point]
setattr(home, name, dying(getattr(home, name)))
if sys.argv[4] == "hdr10":
    write_hdr10_video(path, smooth_codes(12), fps=24, bits=10)
else:
    write_video(path, smooth_clip(12), fps=24, encoder=EncoderSettings(qp=20))
"""
POINTS = [
    ("convert", 1),
    ("convert", 7),
    ("read back", 1),
    ("note", 1),
    ("forget record", 1),
    ("publish", 1),
    ("publish", 2),
]


def write_and_die(path: Path, point: str, which: int, kind: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", _WRITE_AND_DIE, str(path), point, str(which), kind],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        timeout=60,
        check=False,
    ).returncode


@pytest.mark.parametrize("kind", ["sdr", "hdr10"])
@pytest.mark.parametrize(("point", "which"), POINTS, ids=str)
def test_a_writer_that_is_killed_leaves_nothing_or_a_whole_file(
    tmp_path: Path, point: str, which: int, kind: str
) -> None:
    path = tmp_path / "a.mp4"
    assert write_and_die(path, point, which, kind) == -signal.SIGKILL
    published = (point, which) == ("publish", 2)
    assert path.exists() == published
    assert not (tmp_path / "a.mp4.encoder.json").exists()
    if published:
        found = check_video(path)
        assert (found.verdict, found.frames) == (Verdict.WHOLE, 12)
        assert found.record.state is RecordState.MISSING


@pytest.mark.parametrize(("point", "which"), POINTS, ids=str)
def test_a_killed_writer_never_leaves_an_old_record_beside_a_new_video(
    tmp_path: Path, point: str, which: int
) -> None:
    path = tmp_path / "a.mp4"
    old = write_video(path, smooth_clip(5), fps=24, encoder=EncoderSettings(qp=30))
    assert write_and_die(path, point, which, "sdr") == -signal.SIGKILL
    found = check_video(path)
    assert found.verdict is Verdict.WHOLE
    if point != "publish":
        assert (found.frames, read_encoder_record(path)) == (5, old)
    else:
        assert found.frames == (5 if which == 1 else 12)
        with pytest.raises(DataError, match="no encoder record"):
            read_encoder_record(path)


def test_after_a_crash_the_next_writer_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    assert write_and_die(path, "publish", 1, "sdr") == -signal.SIGKILL
    record = write_video(path, smooth_clip(4), fps=24)
    found = check_video(path)
    assert (found.verdict, found.frames, found.record.record) == (Verdict.WHOLE, 4, record)
