"""A JSON text with the digest and the length of exactly its bytes, in one line that is JSON itself.

What a line says is not known here. Invariant: `unseal` gives a text only if its digest holds, and
calls a line torn only if it can be the beginning of a whole one.
"""

from __future__ import annotations

import re

from fleetcraft.identity import sha256_hex

_HEAD = b'{"sha256":"'
_SIZE = b'","bytes":'
_BODY = b',"record":'
_SIZE_WIDTH = 10
_FRAME = re.compile(
    re.escape(_HEAD) + rb"([0-9a-f]{64})" + re.escape(_SIZE) + rb"( *[0-9]+)" + re.escape(_BODY)
)
_FRAME_LENGTH = len(_HEAD) + 64 + len(_SIZE) + _SIZE_WIDTH + len(_BODY)


def seal(body: bytes) -> bytes:
    """One line, with its newline, that holds a JSON text, its digest and its length."""
    size = b"%*d" % (_SIZE_WIDTH, len(body))
    return _HEAD + sha256_hex(body).encode() + _SIZE + size + _BODY + body + b"}\n"


def unseal(line: bytes) -> tuple[bytes, str]:
    """Takes a line apart.

    Args:
        line: Without its newline.

    Returns:
        The JSON text and an empty reason, or nothing and the reason: ``torn`` for what can be the
        beginning of a whole line, ``digest`` for everything else.
    """
    frame = _FRAME.match(line)
    if frame is None or frame.end() != _FRAME_LENGTH:
        return b"", "torn" if _begins_a_frame(line) else "digest"
    body = line[_FRAME_LENGTH:-1]
    # A line that ends with its frame holds nothing yet, also where nothing is what it is to hold.
    holds = len(line) > _FRAME_LENGTH and sha256_hex(body).encode() == frame[1]
    whole = _FRAME_LENGTH + int(frame[2]) + 1
    if holds and len(line) == whole and line.endswith(b"}"):
        return body, ""
    # Where the digest holds, it is the length that was changed.
    return b"", "torn" if len(line) < whole and not holds else "digest"


def _begins_a_frame(line: bytes) -> bool:
    """Whether a line is a frame that was cut short."""
    sample = _HEAD + b"0" * 64 + _SIZE + b" " * (_SIZE_WIDTH - 1) + b"0" + _BODY
    if len(line) >= _FRAME_LENGTH:
        return False
    return _FRAME.fullmatch(line + sample[len(line) :]) is not None


def digest_of(line: bytes) -> str:
    """The digest that a whole line carries."""
    return line[len(_HEAD) : len(_HEAD) + 64].decode("ascii")
