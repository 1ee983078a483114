"""Manifests and receipts under names of the scratch tree.

Invariant: a name stands for one root digest for ever; freezing the same files again under it is no
second manifest.
"""

from __future__ import annotations

import os

from fleetcraft.errors import DataError
from fleetcraft.evidence.files.manifest import Manifest, parse_manifest, write_manifest
from fleetcraft.evidence.files.receipts import Receipt, write_receipt
from fleetcraft.evidence.files.targets import placed
from fleetcraft.files import FileSystem
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.locks import put_if_absent
from fleetcraft.trust import require_private_folder

_MOST_RECEIPTS = 1000


def write_new(fs: FileSystem, path: str, manifest: Manifest, folder: str) -> tuple[Manifest, bool]:
    """Writes a manifest to a file that is not there, durably.

    Args:
        fs: The seam.
        path: The file.
        manifest: What to write.
        folder: The folder that it was made of.

    Returns:
        The manifest in the file, and whether this call wrote it. One that is there and has the same
        root digest stays.

    Raises:
        DataError: Something else is there.
        OSError: It was not written.
    """
    here = placed(manifest, path, folder)
    if put_if_absent(fs, path, write_manifest(here)):
        return here, True
    there = parse_manifest(fs.read(path), path)
    if there.root_sha256 == manifest.root_sha256:
        return there, False
    raise DataError(
        f"{path} is already there with other files: its root digest is "
        f"{there.root_sha256[:12]}…, and that of {folder} is {manifest.root_sha256[:12]}…; it was "
        "left as it is",
        hint="choose another --name or -o: what was frozen is never replaced",
        path=path,
        found=there.root_sha256,
        expected=manifest.root_sha256,
    )


def keep_manifest(
    paths: EvidencePaths, manifest: Manifest, folder: str, fs: FileSystem | None = None
) -> tuple[Manifest, bool]:
    """Keeps a manifest under its own name; see `write_new`."""
    for each in (paths.folder, paths.manifests):
        require_private_folder(each)
    return write_new(fs or FileSystem(), paths.manifest(manifest.name), manifest, folder)


def keep_receipt(
    paths: EvidencePaths, receipt: Receipt, fs: FileSystem | None = None
) -> tuple[str, bool]:
    """Keeps the receipt of an archive, under the manifest's name or that with a number behind it.

    Returns:
        Its path, and whether it holds this receipt: not after a thousand others.

    Raises:
        OSError: It was not written.
    """
    for each in (paths.folder, paths.receipts):
        require_private_folder(each)
    data = write_receipt(receipt)
    path = ""
    for number in range(1, _MOST_RECEIPTS):
        path = paths.receipt(receipt.name if number == 1 else f"{receipt.name}.{number}")
        if put_if_absent(fs or FileSystem(), path, data):
            return path, True
    return path, False


def relative_inside(path: str, folder: str) -> str:
    """A path relative to a folder that holds it; empty if it does not."""
    inside = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    root = os.path.realpath(folder)
    if f"{inside}/".startswith(f"{root}/"):
        return os.path.relpath(os.path.join(inside, os.path.basename(path)), root)
    return ""
