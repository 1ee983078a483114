"""Whether a Matroska file is there to its last byte: its elements walked, none of them decoded.

What is in the elements is libav's. Invariant: only an element that ends beyond the end of the file
counts as cut off; bytes that are no element are not judged.
"""

from __future__ import annotations

import os

# Source: RFC 9559, 5.1, and RFC 8794, 5 and 6: an id keeps its length marker, a size does not, and
# a size of ones alone is not known.
_SEGMENT = 0x18538067
_CLUSTER = 0x1F43B675
_MOST_ID_BYTES = 4
_MOST_HEAD_BYTES = 12


def missing_bytes(path: str) -> int:
    """How many bytes the last element lacks; 0 where all are whole.

    A writer that was interrupted leaves such an element: it is written before its length is.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        place = 0
        while place < end:
            file.seek(place)
            found = _head(file.read(_MOST_HEAD_BYTES))
            if found is None:
                return 0
            name, head_bytes, body_bytes = found
            place += head_bytes
            if name == _SEGMENT and body_bytes is not None:
                if place + body_bytes > end:
                    return place + body_bytes - end
                end = place + body_bytes
            elif body_bytes is not None:
                place += body_bytes
            elif name not in (_SEGMENT, _CLUSTER):
                return 0
    return place - end


def _head(data: bytes) -> tuple[int, int, int | None] | None:
    """Id, length of the head, and size of the body; None where there is no element."""
    id_bytes = _length(data[:1])
    size_bytes = _length(data[id_bytes : id_bytes + 1])
    head_bytes = id_bytes + size_bytes
    if not 0 < id_bytes <= _MOST_ID_BYTES or not size_bytes:
        return None
    unknown = (1 << 7 * size_bytes) - 1
    size = int.from_bytes(data[id_bytes:head_bytes], "big") & unknown
    body = None if size == unknown else size
    return int.from_bytes(data[:id_bytes], "big"), head_bytes, body


def _length(first: bytes) -> int:
    """Of the number that begins with this byte: zeros before its first one, and one."""
    return 9 - first[0].bit_length() if first and first[0] else 0
