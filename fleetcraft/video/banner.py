"""An encoder's own words in its bitstream: which version it is and what options it ran with.

Invariant: what comes out says nothing about the clip or the CPU, so that the words of two files
are equal when their encoders and settings are.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_X264 = re.compile(rb"x264 - core ([^-]+?) - .*?options: ([ -~]+)", re.DOTALL)
_X265 = re.compile(rb"x265 \(build (\d+)\) - (.+?) - H\.265/HEVC.*?options: ([ -~]+)", re.DOTALL)
# x265 also lists the clip's size and rate, the vector units of the CPU, and the clip's metadata,
# which has fields of its own in the record.
_OF_THE_CLIP = ("cpuid=", "fps=", "input-res=", "total-frames=", "master-display=", "cll=")


class Banner(NamedTuple):
    """An encoder's own words.

    Attributes:
        version: Name and version.
        options: Every option, as the encoder writes them.
    """

    version: str
    options: str


def find_banner(data: bytes) -> Banner | None:
    """Looks for the words of x264 or x265.

    Args:
        data: A first packet, or the parameter sets in front of it.

    Returns:
        None where neither left any.
    """
    if (found := _X264.search(data)) is not None:
        return Banner(f"x264 core {found[1].decode('ascii')}", found[2].decode("ascii"))
    if (found := _X265.search(data)) is not None:
        version = f"x265 build {found[1].decode()} {found[2].decode('ascii', 'replace')}"
        return Banner(version, _settled(found[3].decode("ascii")))
    return None


def _settled(options: str) -> str:
    words = [word for word in options.split() if not word.startswith(_OF_THE_CLIP)]
    return " ".join(words)
