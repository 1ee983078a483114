"""What a person names when something is to be verified or copied: a manifest, an archive, a bag.

Looks, and changes nothing. Invariant: a path of a manifest is followed from the folder of its own
file, so both can be moved together.
"""

from __future__ import annotations

import os
from enum import StrEnum

import msgspec

from fleetcraft.errors import DataError, UsageError
from fleetcraft.evidence.files.archive import DATA, MANIFEST_FILE, is_archive, verify_archive
from fleetcraft.evidence.files.bag import OUR_MANIFEST, is_bag, verify_bag
from fleetcraft.evidence.files.manifest import Manifest, Progress, read_manifest
from fleetcraft.evidence.files.verifying import Verification, verify
from fleetcraft.evidence.records import NAME, Level
from fleetcraft.files import BulkFileSystem
from fleetcraft.layout.evidence import EvidencePaths


class TargetKind(StrEnum):
    """What a target is."""

    MANIFEST = "manifest"
    ARCHIVE = "archive"
    BAG = "bag"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest and its files.

    Attributes:
        kind: What was named.
        path: The manifest's file, or the folder of the archive or bag.
        manifest: The manifest; None for a bag that another program has made.
        folder: Where the files are; empty when the manifest does not say.
    """

    kind: TargetKind
    path: str
    manifest: Manifest | None
    folder: str = ""


def find_target(
    text: str, *, kept: EvidencePaths | None = None, folder: str | None = None
) -> Target:
    """What a text means: an archive, a bag, a manifest's file, or a name that was kept.

    Args:
        text: A path or a name. A folder that is neither archive nor bag gives way to a kept name.
        kept: Where names are kept; None where there is no scratch tree.
        folder: Where the files of a manifest are, if not where it says.

    Raises:
        DataError: There is no such thing, or it cannot be read.
        UsageError: ``folder`` was given for an archive or bag, which has its own; or a folder here
            and a kept name are called so and are not the same files.
    """
    path = os.path.abspath(text)
    own = _with_its_files(path)
    if own is not None:
        if folder is not None:
            raise UsageError(f"{text} has its own files; --folder is for manifests")
        _refuse_two(text, own, kept)
        return own
    if os.path.isfile(path):
        return _manifest(path, folder)
    if kept is not None and NAME.fullmatch(text) and os.path.exists(kept.manifest(text)):
        return _manifest(kept.manifest(text), folder)
    if os.path.isfile(f"{path}/{MANIFEST_FILE}"):
        return _manifest(f"{path}/{MANIFEST_FILE}", folder)
    raise _nothing(text, kept)


def _refuse_two(text: str, own: Target, kept: EvidencePaths | None) -> None:
    """Raises UsageError if a name stands for an archive here and for other files that were kept."""
    if kept is None or not NAME.fullmatch(text) or not os.path.exists(kept.manifest(text)):
        return
    named = read_manifest(kept.manifest(text)).root_sha256
    here = own.manifest.root_sha256 if own.manifest else ""
    if named != here:
        raise UsageError(
            f"{text!r} is the {own.kind} here and a kept manifest of other files; nothing was "
            "checked",
            hint=f"./{text} names the folder, {kept.manifest(text)} what was kept",
            target=text,
        )


def verify_target(
    target: Target,
    level: Level,
    *,
    fs: BulkFileSystem | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Verifies whatever was named.

    Raises:
        DataError: Its manifest cannot be used, or does not say where its files are.
        ConfigError: It is another program's bag, and the bagit library is not installed.
    """
    if target.kind is TargetKind.ARCHIVE:
        return verify_archive(target.path, level, fs=fs, progress=progress)
    if target.kind is TargetKind.BAG:
        return verify_bag(target.path, level, fs=fs, progress=progress)
    manifest, folder = require_files(target)
    return verify(manifest, folder, level, fs=fs, progress=progress)


def require_files(target: Target) -> tuple[Manifest, str]:
    """The manifest of a target, and the folder of its files.

    Raises:
        DataError: There is no manifest, or it does not say where its files are.
    """
    if target.manifest is None:
        raise DataError(
            f"{target.path} is a bag without a manifest of fleetcraft; nothing was copied",
            hint="freeze its data folder: fleetcraft evidence freeze BAG/data",
            path=target.path,
        )
    if not target.folder:
        raise DataError(
            f"the manifest {target.path} does not say where its files are; nothing was checked",
            hint="name their folder with --folder",
            path=target.path,
        )
    return target.manifest, target.folder


def placed(manifest: Manifest, manifest_path: str, folder: str) -> Manifest:
    """A manifest that says where its files are, seen from the file that it will be written to."""
    start = os.path.realpath(os.path.dirname(os.path.abspath(manifest_path)))
    return msgspec.structs.replace(
        manifest, folder=os.path.relpath(os.path.realpath(folder), start)
    )


def _with_its_files(path: str) -> Target | None:
    if is_bag(path):
        ours = f"{path}/{OUR_MANIFEST}"
        manifest = read_manifest(ours) if os.path.isfile(ours) else None
        return Target(kind=TargetKind.BAG, path=path, manifest=manifest, folder=f"{path}/{DATA}")
    if is_archive(path):
        manifest = read_manifest(f"{path}/{MANIFEST_FILE}")
        return Target(
            kind=TargetKind.ARCHIVE, path=path, manifest=manifest, folder=f"{path}/{DATA}"
        )
    return None


def _manifest(path: str, folder: str | None) -> Target:
    manifest = read_manifest(path)
    if folder is None:
        folder = folder_of(manifest, path)
    return Target(kind=TargetKind.MANIFEST, path=path, manifest=manifest, folder=folder)


def folder_of(manifest: Manifest, path: str) -> str:
    """Where a manifest that was read from a path says its files are; empty if it does not."""
    if not manifest.folder:
        return ""
    start = os.path.realpath(os.path.dirname(path))
    return os.path.normpath(os.path.join(start, manifest.folder))


def _nothing(text: str, kept: EvidencePaths | None) -> DataError:
    from difflib import get_close_matches

    names = kept_names(kept) if kept is not None else []
    near = get_close_matches(text, names, n=3)
    if os.path.isdir(text):
        reason = "is neither an archive nor a bag, and holds no manifest.json"
        hint = f"fleetcraft evidence freeze {text} makes its manifest"
    else:
        reason = "is no file, no folder and no kept manifest"
        hint = "name a manifest's file, an archive, a bag, or what evidence freeze --name has kept"
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    return DataError(f"{text!r} {reason}; nothing was checked", hint=hint, target=text, near=near)


def kept_names(kept: EvidencePaths) -> list[str]:
    """The names of kept manifests, in order."""
    try:
        names = os.listdir(kept.manifests)
    except OSError:
        return []
    suffix = os.path.basename(kept.manifest(""))
    return sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix))
