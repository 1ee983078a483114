"""The audit of a trajectory queue, and what a requeue did, as text and as JSON.

Invariant: what could not be read is said beside every answer, and lists say what they leave out.
"""

from __future__ import annotations

from typing import Any

from fleetcraft.rollouts.audit import Audit
from fleetcraft.rollouts.recovery import Recovered
from fleetcraft.rollouts.requeue import Requeued
from fleetcraft.view.text import Paint, left_out, one_line, plural, printable, table

_WORDS = {True: ("good", "proved"), False: ("bad", "not so"), None: ("warn", "unknown")}
_WIDTH = 200


def audit_shape(found: Audit, *, path: str) -> dict[str, Any]:
    """The JSON value of ``rollouts audit``."""
    return {
        "schema": "fleetcraft.rollouts_audit/1",
        "path": path,
        "ok": found.ok,
        "version": found.version,
        "duplicates": found.duplicates,
        "trained_twice": found.trained_twice,
        "committed": found.committed,
        "pending": found.pending,
        "claimed": found.claimed,
        "unfiled": found.unfiled,
        "quarantined": sum(found.quarantined.values()),
        "quarantined_by_reason": {key.value: n for key, n in sorted(found.quarantined.items())},
        "unexplained": found.unexplained,
        "half_published": found.half_published,
        "missing": found.missing,
        "verified": found.verified,
        "files_verified": found.files_verified,
        "gpu_s": {
            "committed": found.gpu_s,
            "rolled_back": found.rolled_back_gpu_s,
            "quarantined": found.quarantined_gpu_s,
        },
        "rolled_back": found.rolled_back,
        "unmeasured": {
            "rolled_back": found.rolled_back_unmeasured,
            "quarantined": found.quarantined_unmeasured,
        },
        "prompt_lengths": [
            {
                "tokens": each.bucket,
                "committed": each.committed,
                "discarded": each.discarded,
                "discarded_fraction": each.discarded_fraction,
            }
            for each in found.buckets
        ],
        "problems": list(found.problems),
        "unknown": list(found.unknown),
    }


def render_audit(
    found: Audit, *, path: str, paint: Paint, limit: int, width: int | None = None
) -> str:
    """The text of ``rollouts audit``."""
    kind, word = _WORDS[found.ok]
    lines = [f"{paint(kind, word)}: {printable(path)}: {_sentence(found)}"]
    lines.append(table(_rows(found), width=width))
    if any(each.discarded for each in found.buckets):
        lines.append("prompt length, tokens: trained on, discarded for lag")
        lines.append(table(_buckets(found)))
    lines += _listed("problem", found.problems, limit)
    lines += _listed("unknown", found.unknown, limit)
    return "\n".join(lines)


def _sentence(found: Audit) -> str:
    if found.ok is None:
        return "something could not be read, so nothing is proved"
    if found.ok:
        return "no record was trained on twice, and none was lost"
    return plural(len(found.problems), "problem")


def _rows(found: Audit) -> list[list[str]]:
    reasons = ", ".join(f"{n} {key.value}" for key, n in sorted(found.quarantined.items()))
    rows = [
        ["committed", str(found.committed), f"in {plural(found.version, 'version')}"],
        ["verified", str(found.verified), "of these: digest, identity, lag"],
        *(
            [["files", str(found.files_verified), "beside records: SHA-256"]]
            if found.files_verified
            else []
        ),
        ["pending", str(found.pending), ""],
        ["claimed", str(found.claimed), "by transactions without a commit"],
        ["quarantined", str(sum(found.quarantined.values())), reasons],
        ["duplicates", str(found.duplicates), f"{found.trained_twice} trained on"],
        ["missing", "-" if found.missing is None else str(found.missing), "published, and nowhere"],
    ]
    if found.unfiled:
        rows.append(["unfiled", str(found.unfiled), "committed; the next trainer files them"])
    if found.half_published:
        rows.append(["half published", str(found.half_published), "their streams complete them"])
    rows.append(["GPU hours", f"{found.gpu_s / 3600:.2f}", "of commits"])
    if found.rolled_back:
        rows.append(
            ["", _hours(found.rolled_back_gpu_s, found.rolled_back - found.rolled_back_unmeasured),
             f"of {plural(found.rolled_back, 'transaction')} rolled back"
             + _unmeasured(found.rolled_back_unmeasured)]
        )  # fmt: skip
    refused = sum(found.quarantined.values())
    if refused:
        rows.append(
            ["", _hours(found.quarantined_gpu_s, refused - found.quarantined_unmeasured),
             "of refused records" + _unmeasured(found.quarantined_unmeasured)]
        )  # fmt: skip
    return rows


def _hours(gpu_s: float, measured: int) -> str:
    return f"{gpu_s / 3600:.2f}" if measured else "-"


def _unmeasured(count: int) -> str:
    return f", {count} not measured" if count else ""


def _buckets(found: Audit) -> list[list[str]]:
    return [
        [one_line(each.bucket, 64), str(each.committed), str(each.discarded)]
        for each in found.buckets
    ]


def _listed(word: str, sentences: tuple[str, ...], limit: int) -> list[str]:
    lines = [f"{word}: {one_line(text, _WIDTH)}" for text in sentences[:limit]]
    return lines + left_out(max(0, len(sentences) - limit))


def requeue_shape(done: Requeued, *, path: str) -> dict[str, Any]:
    """The JSON value of ``rollouts requeue``."""
    return {
        "schema": "fleetcraft.rollouts_requeued/1",
        "path": path,
        "dry_run": done.dry_run,
        "requeued": [each.name for each in done.requeued],
        "refused": [{"name": each.name, "why": each.why} for each in done.refused],
        "recovered": None if done.recovered is None else _recovered_shape(done.recovered),
    }


def _recovered_shape(found: Recovered) -> dict[str, Any]:
    return {
        "redone": list(found.redone),
        "undone": list(found.undone),
        "returned": found.returned,
        "quarantined": [each.name for each in found.refused],
        "checkpoints_to_quarantine": [
            {
                "version": each.version,
                "checkpoint": each.checkpoint,
                "sha256": each.checkpoint_sha256,
            }
            for each in found.prepared
        ],
        "reservations_released": found.released,
        "problems": list(found.problems),
    }


def render_requeue(done: Requeued, *, path: str, limit: int) -> str:
    """The text of ``rollouts requeue``."""
    verb = "would be put back" if done.dry_run else "put back"
    lines = [] if done.recovered is None else _recovered(done.recovered, limit, done.dry_run)
    if done.recovered is None or done.requeued or done.refused:
        lines.append(f"{printable(path)}: {plural(len(done.requeued), 'record')} {verb}")
    lines += [f"  {one_line(each.name)}" for each in done.requeued[:limit]]
    lines += left_out(max(0, len(done.requeued) - limit))
    lines += [
        f"left: {one_line(f'{each.name}: {each.why}', _WIDTH)}" for each in done.refused[:limit]
    ]
    return "\n".join(lines + left_out(max(0, len(done.refused) - limit)))


def _recovered(found: Recovered, limit: int, dry_run: bool) -> list[str]:
    if dry_run:
        return [
            f"open transactions: {len(found.redone)} would be filed, "
            f"{len(found.undone)} would be undone"
        ]
    lines = [
        f"transactions: {len(found.redone)} filed, {len(found.undone)} undone; "
        f"{plural(found.returned, 'record')} back to pending, {len(found.refused)} to quarantine"
    ]
    for each in found.prepared[:limit]:
        lines.append(f"no commit names this checkpoint: {one_line(each.checkpoint, _WIDTH)}")
    if found.released:
        lines.append(f"reservations of producers that are gone: {sum(found.released.values())}")
    return lines + _listed("problem", found.problems, limit)
