"""Predicates of a gate over files: manifests, archives, single files, and what others verify.

Invariant: a file that is not there or cannot be read leaves a predicate unknown; only content that
was read and differs makes it false.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fleetcraft.errors import DataError
from fleetcraft.evidence.files.archive import MANIFEST_FILE, RECEIPT_FILE, verify_archive
from fleetcraft.evidence.files.manifest import read_manifest
from fleetcraft.evidence.files.verifying import Verdict, Verification, in_words, verify
from fleetcraft.evidence.records import NAME, Level
from fleetcraft.evidence.release.finding import Finding, Input, Surroundings, some, worst

_ANSWERS = {Verdict.VERIFIED: True, Verdict.REFUTED: False, Verdict.UNVERIFIABLE: None}


def check_manifest(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """The files of a manifest are as it says."""
    path = around.path(given["manifest"])
    if not os.path.exists(path) and NAME.fullmatch(given["manifest"]) and around.paths:
        path = around.paths.manifest(given["manifest"])
    manifest = read_manifest(path)
    folder = os.path.join(os.path.dirname(path), manifest.folder)
    if "folder" in given:
        folder = around.path(given["folder"])
    level = Level(given.get("level", Level.HASHED))
    return _concluded(verify(manifest, folder, level), level, (around.file_input(path),))


def check_archive(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """An archive is as its own manifest says, and has its receipt."""
    folder = around.path(given["archive"])
    level = Level(given.get("level", Level.HASHED))
    found = verify_archive(folder, level)
    records = [f"{folder}/{name}" for name in (MANIFEST_FILE, RECEIPT_FILE)]
    inputs = tuple(around.file_input(path) for path in records if os.path.exists(path))
    return _concluded(found, level, inputs)


def _concluded(found: Verification, level: Level, inputs: tuple[Input, ...]) -> Finding:
    words = some([in_words(each) for each in found.differences])
    unread = some([f"{each.path}: {each.reason}" for each in found.unread])
    said = f"{found.verdict} at level {found.level}: {found.files} files, {found.bytes} bytes"
    return Finding(
        verdict=_ANSWERS[found.verdict],
        found="; ".join(filter(None, (said, words, unread))),
        expected=f"verified at level {level}",
        inputs=inputs,
    )


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
    verdict, found = around.window(path)
    return Finding(verdict=verdict, found=found, expected="verified", inputs=(there,))


def check_training_end(given: Mapping[str, Any], around: Surroundings) -> Finding:
    """A training run has reached the end that it declares."""
    if not given["run"].isprintable() or "/" in given["run"]:
        raise DataError(f"no run is called {given['run']!r}")
    verdict, found = around.training_end(given["run"])
    return Finding(verdict=verdict, found=found, expected="its declared end is reached")
