"""Predicates of a gate over files: manifests, archives, single files, and what others verify.

Invariant: a file that is not there or cannot be read leaves a predicate unknown; only content that
was read and differs makes it false.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fleetcraft.errors import DataError
from fleetcraft.evidence.digests import hash_file
from fleetcraft.evidence.files.archive import DATA, MANIFEST_FILE, RECEIPT_FILE, verify_archive
from fleetcraft.evidence.files.manifest import Manifest, read_manifest
from fleetcraft.evidence.files.targets import Target, TargetKind, folder_of, require_files
from fleetcraft.evidence.files.verifying import Verdict, Verification, in_words, verify
from fleetcraft.evidence.records import NAME, Level
from fleetcraft.evidence.release.finding import Finding, Input, InputKind, Surroundings, some, worst

_ANSWERS = {Verdict.VERIFIED: True, Verdict.REFUTED: False, Verdict.UNVERIFIABLE: None}


def check_manifest(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """The files of a manifest are as it says."""
    path = around.path(given["manifest"])
    if not os.path.exists(path) and NAME.fullmatch(given["manifest"]) and around.paths:
        path = around.paths.manifest(given["manifest"])
    manifest = read_manifest(path)
    there = Target(
        kind=TargetKind.MANIFEST,
        path=path,
        manifest=manifest,
        folder=around.path(given["folder"]) if "folder" in given else folder_of(manifest, path),
    )
    _, folder = require_files(there)
    level = Level(given.get("level", Level.HASHED))
    inputs = (around.file_input(path), _payload(around, manifest, path, folder, level))
    return _concluded(verify(manifest, folder, level), level, inputs)


def check_archive(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """An archive is as its own manifest says, and has its receipt."""
    folder = around.path(given["archive"])
    level = Level(given.get("level", Level.HASHED))
    found = verify_archive(folder, level)
    records = [f"{folder}/{name}" for name in (MANIFEST_FILE, RECEIPT_FILE)]
    inputs = [around.file_input(path) for path in records if os.path.exists(path)]
    manifest = read_manifest(records[0])
    inputs.append(_payload(around, manifest, records[0], f"{folder}/{DATA}", level))
    return _concluded(found, level, tuple(inputs))


def _payload(
    around: Surroundings, manifest: Manifest, path: str, folder: str, level: Level
) -> Input:
    return Input(
        kind=InputKind.PAYLOAD,
        name=around.kept_name(path),
        sha256=manifest.root_sha256,
        folder=around.kept_name(folder),
        level=level,
    )


def payload_digest(given: Input, around: Surroundings) -> str:
    """The root digest of a payload that still verifies at its level.

    Raises:
        DataError: It does not; the message says why.
    """
    manifest = read_manifest(os.path.join(around.kept_from, given.name))
    found = verify(manifest, os.path.join(around.kept_from, given.folder), given.level)
    if found.verdict is not Verdict.VERIFIED:
        raise DataError(_in_words(found))
    return manifest.root_sha256


def _concluded(found: Verification, level: Level, inputs: tuple[Input, ...]) -> Finding:
    return Finding(
        verdict=_ANSWERS[found.verdict],
        found=_in_words(found),
        expected=f"verified at level {level}",
        inputs=inputs,
    )


def _in_words(found: Verification) -> str:
    words = some([in_words(each) for each in found.differences])
    unread = some([f"{each.path}: {each.reason}" for each in found.unread])
    said = f"{found.verdict} at level {found.level}: {found.files} files, {found.bytes} bytes"
    return "; ".join(filter(None, (said, words, unread)))


def check_files(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """Files are there, with the digests that are given."""
    verdicts: list[bool | None] = []
    inputs, wrong = [], []
    for name, digest in given["files"]:
        try:
            there = around.file_input(around.path(name))
        except OSError as error:
            verdicts.append(None)
            wrong.append(f"{name}: {error.strerror or error}")
            continue
        inputs.append(there)
        verdicts.append(digest in ("", there.sha256))
        if not verdicts[-1]:
            wrong.append(f"{name} has sha256 {there.sha256[:12]}")
    return Finding(
        verdict=worst(verdicts),
        found=some(wrong) or f"{len(inputs)} there, at level hashed",
        expected=some([f"{name} {digest[:12]}".rstrip() for name, digest in given["files"]]),
        inputs=tuple(inputs),
    )


def check_window(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """A frozen window of telemetry verifies."""
    path = around.path(given["file"])
    there = around.file_input(path)
    behind = Input(kind=InputKind.WINDOW, name=there.name, sha256=there.sha256)
    verdict, found = around.window(path)
    return Finding(verdict=verdict, found=found, expected="verified", inputs=(there, behind))


def window_digest(given: Input, around: Surroundings) -> str:
    """The digest of a window that still verifies.

    Raises:
        DataError: It does not; the message says why.
        OSError: It cannot be read.
    """
    path = os.path.join(around.kept_from, given.name)
    verdict, found = around.window(path)
    if verdict is not True:
        raise DataError(found)
    return hash_file(path)[1]


def check_training_end(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """A training run has reached the end that it declares."""
    if not given["run"].isprintable() or "/" in given["run"]:
        raise DataError(f"no run is called {given['run']!r}")
    verdict, found = around.training_end(given["run"])
    return Finding(verdict=verdict, found=found, expected="its declared end is reached")
