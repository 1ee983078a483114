"""Receipts: what was proved of an archive when it was made, and the text of that.

Not here: the proof. Invariant: a receipt of which any byte was changed is refused, not read.
"""

from __future__ import annotations

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError
from fleetcraft.evidence.files.copying import Place
from fleetcraft.evidence.files.manifest import Manifest, fleetcraft_version
from fleetcraft.evidence.files.verifying import Verification
from fleetcraft.evidence.records import Producer, producer_here
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token, sha256_hex

RECEIPT_SCHEMA = "fleetcraft.receipt/1"


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was proved of one archive when it was made.

    Attributes:
        schema: `RECEIPT_SCHEMA`.
        name: The manifest's name.
        root_sha256: Its root digest.
        files: How many.
        bytes: Their sizes together.
        counts: For each level, how many files of the destination agreed at it.
        how: How many of them were read again in which way: ``direct`` or ``advised``.
        place: The destination's file system.
        not_checked: What that does not prove.
        at: When, UTC.
        producer: Who made the archive.
        version: Of fleetcraft.
        nonce: Tells this archive from every other one.
        document_sha256: Over the receipt's own text, with this field empty.
    """

    schema: str = RECEIPT_SCHEMA
    name: str
    root_sha256: str
    files: int
    bytes: int
    counts: dict[str, int]
    how: dict[str, int]
    place: Place = Place()
    not_checked: tuple[str, ...] = ()
    at: str = ""
    producer: Producer = Producer()
    version: str = ""
    nonce: str
    document_sha256: str = ""


def make_receipt(manifest: Manifest, found: Verification) -> Receipt:
    """A new receipt over a verification that agrees in everything."""
    return Receipt(
        name=manifest.name,
        root_sha256=manifest.root_sha256,
        files=len(manifest.files),
        bytes=manifest.bytes,
        counts=found.counts,
        how=found.how,
        place=found.place,
        not_checked=found.not_checked,
        at=timestamp(),
        producer=producer_here(),
        version=fleetcraft_version(),
        nonce=new_launch_token(),
    )


def write_receipt(receipt: Receipt) -> bytes:
    """The text of a receipt's file."""
    bare = msgspec.structs.replace(receipt, document_sha256="")
    digest = sha256_hex(_encoded(bare))
    return _encoded(msgspec.structs.replace(receipt, document_sha256=digest))


def _encoded(receipt: Receipt) -> bytes:
    return msgspec.json.format(msgspec.json.encode(receipt), indent=1) + b"\n"


def read_receipt(path: str, fs: FileSystem | None = None) -> Receipt:
    """Reads a receipt, and refuses one that is not exactly what was written.

    Raises:
        DataError: It is not there, is no receipt, or was changed.
    """
    try:
        data = (fs or FileSystem()).read(path)
        receipt = msgspec.json.decode(data, type=Receipt)
    except OSError as error:
        raise _bad_receipt(path, error.strerror or "it cannot be read") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _bad_receipt(path, f"it is no receipt, or was changed ({error})") from error
    if receipt.schema != RECEIPT_SCHEMA:
        raise _bad_receipt(path, f"its schema is {receipt.schema!r}")
    if write_receipt(receipt) != data:
        raise _bad_receipt(path, "its text is not the one that was written")
    return receipt


def _bad_receipt(path: str, reason: str) -> DataError:
    return DataError(
        f"cannot use the receipt {path}: {reason}; nothing was concluded",
        hint="fleetcraft evidence verify looks at the archive itself",
        path=path,
        reason=reason,
    )
