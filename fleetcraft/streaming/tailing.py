"""Follows a file of lines from a place that can be written down.

Knows bytes, not what a line means. Invariant: a place stands for exactly the bytes before it: where
these are others now, the file is read anew from its beginning and that is counted.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fleetcraft.identity import sha256_hex
from fleetcraft.training.progress.reading import CHUNK_BYTES, MAX_LINE_BYTES, read_at

_SEAM_BYTES = 256


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """How far a file has been read.

    Attributes:
        offset_bytes: The end of the last whole line.
        seam_bytes: How many bytes before that are remembered,
        seam_sha256: and their digest.
        skipping: Whether the line that follows began before, and is too long.
    """

    offset_bytes: int = 0
    seam_bytes: int = 0
    seam_sha256: str = ""
    skipping: bool = False


class Tail:
    """One file.

    Attributes:
        place: Where it is.
        more: Whether the last look left something unread.
        replaced: How often it was found to be another file.
        too_long: Lines that were passed over for their length.
    """

    def __init__(
        self,
        path: str,
        place: Place | None = None,
        *,
        read: Callable[[str, int, int], tuple[bytes, int]] = read_at,
    ) -> None:
        self.place = place or Place()
        self.more = False
        self.replaced = 0
        self.too_long = 0
        self._path = path
        self._read = read

    def lines(self, limit_bytes: int = CHUNK_BYTES) -> list[bytes]:
        """The whole lines that are new, without their newlines; half a line waits for its end.

        Args:
            limit_bytes: Read at most this much.

        Raises:
            OSError: It cannot be read; its place stays.
        """
        place = self.place
        start = place.offset_bytes - place.seam_bytes
        data, size = self._read(self._path, start, limit_bytes + place.seam_bytes)
        seam, new = data[: place.seam_bytes], data[place.seam_bytes :]
        if size < place.offset_bytes or not _fits(seam, place, size):
            self.replaced += 1
            self.place = Place()
            return self.lines(limit_bytes)
        lines, taken, skipping = self._whole_lines(new, skipping=place.skipping)
        self.more = size > place.offset_bytes + len(new) and bool(taken)
        if taken:
            seen = (seam + new[:taken])[-_SEAM_BYTES:]
            self.place = Place(
                offset_bytes=place.offset_bytes + taken,
                seam_bytes=len(seen),
                seam_sha256=sha256_hex(seen),
                skipping=skipping,
            )
        return lines

    def _whole_lines(self, new: bytes, *, skipping: bool) -> tuple[list[bytes], int, bool]:
        end = new.rfind(b"\n") + 1
        if not end and len(new) >= MAX_LINE_BYTES:
            self.too_long += not skipping
            return [], len(new), True
        lines = new[:end].split(b"\n")[:-1]
        if skipping and lines:
            del lines[0]
            skipping = False
        short = [line for line in lines if len(line) <= MAX_LINE_BYTES]
        self.too_long += len(lines) - len(short)
        return [line for line in short if line and not line.isspace()], end, skipping


def _fits(seam: bytes, place: Place, size: int) -> bool:
    # Without anything new `read_at` gives no byte, so there is no seam to compare either.
    if size <= place.offset_bytes - place.seam_bytes:
        return size == place.offset_bytes
    return sha256_hex(seam) == place.seam_sha256 if place.seam_bytes else True
