"""Manifests, archives, bags and what verifying them found, as text and as JSON.

Invariant: every verdict stands beside its level, and what it does not prove stands below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from fleetcraft.evidence.files.archive import Archived
from fleetcraft.evidence.files.bag import Bagged
from fleetcraft.evidence.files.manifest import Manifest
from fleetcraft.evidence.files.verifying import Verdict, Verification, in_words
from fleetcraft.view.text import Paint, left_out, one_line, plural, table

_COLOURS = {Verdict.VERIFIED: "good", Verdict.REFUTED: "bad", Verdict.UNVERIFIABLE: "warn"}
_MOST_IN_JSON = 10_000
_WAYS = {
    "cached": "through the page cache",
    "advised": "after the page cache was advised to forget them",
    "direct": "with direct reads, past the page cache",
}


# -------------------------------------------------------------------------------------- freeze


def manifest_shape(
    manifest: Manifest, *, folder: str, files: Mapping[str, bool], unmatched: list[str]
) -> dict[str, Any]:
    """The JSON value of ``evidence freeze``."""
    return {
        "schema": "fleetcraft.evidence_freeze/1",
        "name": manifest.name,
        "folder": folder,
        "root_sha256": manifest.root_sha256,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "kinds": _kinds(manifest),
        "with_producer": _with_producer(manifest),
        "written": [path for path, new in files.items() if new],
        "already_there": [path for path, new in files.items() if not new],
        "left_out": list(manifest.policy.left_out),
        "unmatched_globs": unmatched,
    }


def render_manifest(
    manifest: Manifest, *, folder: str, files: Mapping[str, bool], unmatched: list[str]
) -> str:
    """The text of ``evidence freeze``."""
    lines = [
        f"frozen: {one_line(folder)} as {manifest.name}: {plural(len(manifest.files), 'file')}, "
        f"{plural(manifest.bytes, 'byte')}",
        f"root sha256 {manifest.root_sha256}",
        table([[str(count), kind] for kind, count in _kinds(manifest).items()]),
        f"producer known of {_with_producer(manifest)} of {len(manifest.files)}",
    ]
    lines += [
        f"manifest: {one_line(path)}{'' if new else ' (it was there, with the same files)'}"
        for path, new in files.items()
    ]
    lines += [f"left out: {one_line(path)}" for path in manifest.policy.left_out]
    lines += [f"no file matches --kind {one_line(glob)}" for glob in unmatched]
    return "\n".join(line for line in lines if line)


def _kinds(manifest: Manifest) -> dict[str, int]:
    counts = Counter(entry.kind.value for entry in manifest.files)
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def _with_producer(manifest: Manifest) -> int:
    empty = type(manifest.producer)()
    return sum(entry.producer != empty for entry in manifest.files)


# -------------------------------------------------------------------------------------- verify


def verification_shape(found: Verification, *, target: str, kind: str) -> dict[str, Any]:
    """The JSON value of ``evidence verify``."""
    return {
        "schema": "fleetcraft.evidence_verification/1",
        "target": target,
        "target_kind": kind,
        "verdict": found.verdict.value,
        "level": found.level.value,
        **_facts(found),
        "by_change": dict(Counter(each.change.value for each in found.differences)),
        "differences": [msgspec.to_builtins(each) for each in found.differences[:_MOST_IN_JSON]],
        "unread": [msgspec.to_builtins(each) for each in found.unread[:_MOST_IN_JSON]],
        "left_out": max(0, len(found.differences) - _MOST_IN_JSON)
        + max(0, len(found.unread) - _MOST_IN_JSON),
    }


def _facts(found: Verification) -> dict[str, Any]:
    return {
        "name": found.name,
        "root_sha256": found.root_sha256,
        "files": found.files,
        "bytes": found.bytes,
        "counts": found.counts,
        "how": found.how,
        "file_system": found.place.type,
        "not_checked": list(found.not_checked),
    }


def render_verification(
    found: Verification, *, target: str, kind: str, limit: int, paint: Paint
) -> str:
    """The text of ``evidence verify``."""
    verdict = paint(_COLOURS[found.verdict], found.verdict.value)
    lines = [
        f"{verdict} at level {found.level.value}: {kind} {one_line(target)}: "
        f"{plural(found.files, 'file')}, {plural(found.bytes, 'byte')}"
    ]
    if found.root_sha256:
        lines.append(f"root sha256 {found.root_sha256}")
    lines.append(_levels(found.counts, found.files))
    lines += _ways(found.how)
    lines += [f"  {one_line(in_words(each))}" for each in found.differences[:limit]]
    lines += left_out(max(0, len(found.differences) - limit), "more differences")
    lines += [
        f"  cannot be read: {one_line(each.path)}: {one_line(each.reason)}"
        for each in found.unread[:limit]
    ]
    lines += left_out(max(0, len(found.unread) - limit), "more that cannot be read")
    lines += [f"not checked: {one_line(each)}" for each in found.not_checked]
    return "\n".join(lines)


def _levels(counts: Mapping[str, int], files: int) -> str:
    return "agree: " + ", ".join(f"{level} {count} of {files}" for level, count in counts.items())


def _ways(how: Mapping[str, int]) -> list[str]:
    return [f"read {_WAYS[way]}: {plural(count, 'file')}" for way, count in how.items()]


# --------------------------------------------------------------------------------- archive, bag


def archive_shape(done: Archived, *, kept: str) -> dict[str, Any]:
    """The JSON value of ``evidence archive``."""
    receipt = done.receipt
    return {
        "schema": "fleetcraft.evidence_archive/1",
        "archive": done.folder,
        "already": done.already,
        "verdict": Verdict.VERIFIED.value,
        "level": "reread",
        "name": receipt.name,
        "root_sha256": receipt.root_sha256,
        "files": receipt.files,
        "bytes": receipt.bytes,
        "counts": receipt.counts,
        "how": receipt.how,
        "file_system": receipt.place.type,
        "not_checked": list(receipt.not_checked),
        "at": receipt.at,
        "receipt_kept": kept,
        "left_over": list(done.left_over),
    }


def render_archive(done: Archived, *, kept: str) -> str:
    """The text of ``evidence archive``."""
    receipt = done.receipt
    did = "already archived, and verified again" if done.already else "archived"
    lines = [
        f"{did}: {one_line(done.folder)}: {plural(receipt.files, 'file')}, "
        f"{plural(receipt.bytes, 'byte')}, verified at level reread",
        f"root sha256 {receipt.root_sha256}",
        _levels(receipt.counts, receipt.files),
        *_ways(receipt.how),
        f"file system: {receipt.place.type or 'not known'}",
    ]
    lines += [f"not checked: {one_line(each)}" for each in receipt.not_checked]
    lines += [f"receipt: {one_line(kept)}"] if kept else []
    lines += _left_over(done.left_over)
    return "\n".join(lines)


def bag_shape(done: Bagged) -> dict[str, Any]:
    """The JSON value of ``evidence export``."""
    return {
        "schema": "fleetcraft.evidence_export/1",
        "bag": done.folder,
        "already": done.already,
        "verdict": done.verification.verdict.value,
        "level": done.verification.level.value,
        **_facts(done.verification),
        "left_over": list(done.left_over),
    }


def render_bag(done: Bagged) -> str:
    """The text of ``evidence export``."""
    found = done.verification
    did = "already exported, and verified again" if done.already else "exported"
    lines = [
        f"{did}: {one_line(done.folder)}: {plural(found.files, 'file')}, "
        f"{plural(found.bytes, 'byte')}, verified at level {found.level.value}",
        f"root sha256 {found.root_sha256}",
        _levels(found.counts, found.files),
        *_ways(found.how),
        *(f"not checked: {one_line(each)}" for each in found.not_checked),
        *_left_over(done.left_over),
    ]
    return "\n".join(lines)


def _left_over(paths: tuple[str, ...]) -> list[str]:
    # Another call may be filling it at this moment.
    return [
        f"beside it: {one_line(path)}, of a call that still runs or was cut short; remove it once "
        "none runs"
        for path in paths
    ]
