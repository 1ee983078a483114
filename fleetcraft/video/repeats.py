"""Whether encoder settings give one bitstream for the same frames, on this machine: tried out.

Invariant: the answer is what was seen; nothing is concluded from the settings.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetcraft.errors import UsageError
from fleetcraft.video.encoder import EncoderSettings
from fleetcraft.video.writer import write_hdr10_video, write_video


@dataclass(frozen=True, kw_only=True)
class Repeatability:
    """What came of encoding one clip several times.

    Attributes:
        settings: What it was encoded with.
        encoder_version: The encoder's own words; None if it left none.
        frames: Length of the clip.
        height: Its height.
        width: Its width.
        sha256: Hash of each file, in the order of the encodings.
        sizes_bytes: Size of each file.
    """

    settings: EncoderSettings
    encoder_version: str | None
    frames: int
    height: int
    width: int
    sha256: tuple[str, ...]
    sizes_bytes: tuple[int, ...]

    @property
    def runs(self) -> int:
        """How often it was encoded."""
        return len(self.sha256)

    @property
    def bitstreams(self) -> int:
        """How many different files came out."""
        return len(set(self.sha256))

    @property
    def repeats(self) -> bool:
        """Whether one and the same file came out each time."""
        return self.bitstreams == 1


def repeatability(
    settings: EncoderSettings,
    *,
    runs: int = 2,
    frames: int = 24,
    height: int = 128,
    width: int = 192,
) -> Repeatability:
    """Encodes one moving clip several times and compares the files byte by byte.

    Args:
        settings: What to encode with.
        runs: How often, 2 or more.
        frames: Length of the clip.
        height: Its height, even.
        width: Its width, even.

    Raises:
        UsageError: If it would be encoded less than twice, or the clip would be empty.
        DataError: If encoding fails.
    """
    if runs < 2:
        raise UsageError(f"runs is {runs}, expected 2 or more", hint="one file repeats nothing")
    if min(frames, height, width) < 1:
        raise UsageError(f"a clip of {frames} frames, {width}x{height}, cannot be encoded")
    clip = moving_clip(frames, height, width)
    hashes, sizes, version = [], [], None
    with TemporaryDirectory(prefix="fleetcraft-encoder-") as folder:
        for run in range(runs):
            path = Path(folder) / f"{run}.mp4"
            write: Any = write_video if settings.bits == 8 else write_hdr10_video
            version = write(path, clip, fps=24, encoder=settings).encoder_version
            content = path.read_bytes()
            hashes.append(hashlib.sha256(content).hexdigest())
            sizes.append(len(content))
    return Repeatability(
        settings=settings,
        encoder_version=version,
        frames=frames,
        height=height,
        width=width,
        sha256=tuple(hashes),
        sizes_bytes=tuple(sizes),
    )


def moving_clip(frames: int, height: int, width: int) -> NDArray[np.float32]:
    """A clip with what gives an encoder choices: drifting waves, a moving edge and fixed noise.

    Args:
        frames: Length T.
        height: H.
        width: W.

    Returns:
        float32 [T, H, W, 3] in [0, 1]; the same for the same arguments.
    """
    y = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    x = np.linspace(0, 1, width, dtype=np.float32)[None, :]
    # Integers: their stream is the same in every version of numpy.
    noise = np.random.RandomState(0).randint(0, 24, (height, width, 3)).astype(np.float32) / 255
    clip = np.empty((frames, height, width, 3), np.float32)
    for t in range(frames):
        clip[t, ..., 0] = 0.45 + 0.4 * np.sin(6 * x + 0.3 * t + 2 * y)
        clip[t, ..., 1] = 0.45 + 0.4 * np.cos(5 * y - 0.2 * t)
        clip[t, ..., 2] = 0.3 + 0.3 * (x > (t % 16) / 16)
        clip[t] += np.roll(noise, 2 * t, axis=1)
    return np.clip(clip, 0, 1)
