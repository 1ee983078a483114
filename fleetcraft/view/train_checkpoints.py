"""Checkpoints and completion claims as JSON and as text.

Records in, words out; no folder is looked at here. Invariant: a level is named only where it was
proved, and a checkpoint that nobody verified is said to be committed, no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fleetcraft.training.checkpoint.records import Fault, Kind, Manifest, Sight, Verdict
from fleetcraft.training.checkpoint.resuming import RunClaim
from fleetcraft.training.checkpoint.retention import Retired
from fleetcraft.units import format_bytes
from fleetcraft.view.text import Paint, joined, left_out, one_line, plural, table

CHECKPOINTS_SCHEMA = "fleetcraft.train-checkpoints/1"
CLAIMS_SCHEMA = "fleetcraft.train-claims/1"
_TITLES = ("step", "kind", "ranks", "size", "saved", "verified")


def checkpoints_shape(
    folder: str, sight: Sight, verdicts: Mapping[int, Verdict], retired: Retired | None
) -> dict[str, Any]:
    """What ``train checkpoints --json`` prints.

    Args:
        folder: As it was given, absolute.
        sight: Everything in it.
        verdicts: By step, for those that were verified.
        retired: What ``--retire`` did.
    """
    # What cannot be looked at could be newer, so then nothing is known to be the newest.
    known = () if sight.unknown else sight.committed
    exact = [manifest.step for manifest in known if manifest.kind is Kind.EXACT]
    return {
        "schema": CHECKPOINTS_SCHEMA,
        "folder": folder,
        "newest": known[-1].step if known else None,
        "newest_exact": exact[-1] if exact else None,
        "checkpoints": [_manifest(m, verdicts.get(m.step)) for m in sight.committed],
        "faults": [_fault(fault) for fault in sight.faults],
        "unknown": [_fault(fault) for fault in sight.unknown],
        "unfinished": [
            {
                "path": pending.path,
                "step": pending.step,
                "generation": pending.generation,
                "complete": pending.complete,
            }
            for pending in sight.pending
        ],
        "quarantined": list(sight.quarantined),
        "retiring": list(sight.retiring),
        "retired": None if retired is None else _retired(retired),
    }


def _manifest(manifest: Manifest, verdict: Verdict | None) -> dict[str, Any]:
    origin = manifest.continued_from
    return {
        "step": manifest.step,
        "kind": manifest.kind.value,
        "missing": list(manifest.missing),
        "world_size": manifest.world_size,
        "generation": manifest.generation,
        "files": len(manifest.files),
        "size_bytes": manifest.size_bytes,
        "at": manifest.at,
        "folder": manifest.folder,
        "sha256": manifest.sha256,
        "continued_from": origin.step if origin else None,
        "verified": None
        if verdict is None
        else {
            "level": verdict.level.value,
            "answer": verdict.answer,
            "broken": verdict.broken,
            "proved": [level.value for level in verdict.proved],
            "reasons": list(verdict.reasons),
        },
    }


def _fault(fault: Fault) -> dict[str, str]:
    return {"path": fault.path, "why": fault.why}


def _retired(retired: Retired) -> dict[str, Any]:
    return {
        "steps": list(retired.steps),
        "size_bytes": retired.size_bytes,
        "anchor": retired.anchor,
        "why": retired.why,
        "abandoned": retired.abandoned,
    }


class Shown(NamedTuple):
    """How much is shown, and how.

    ``limit`` is entries a list, ``width`` where text may be cut, ``dry_run`` whether what was
    retired was not.
    """

    limit: int
    paint: Paint
    width: int | None
    dry_run: bool = False


def render_checkpoints(
    folder: str,
    sight: Sight,
    verdicts: Mapping[int, Verdict],
    retired: Retired | None,
    how: Shown,
) -> str:
    """The same as text; of a list that is long, the newest."""
    shown = sight.committed[max(0, len(sight.committed) - how.limit) :]
    listed = [f"{one_line(folder)}: {plural(len(sight.committed), 'checkpoint')}"]
    if shown:
        rows = [_row(manifest, verdicts.get(manifest.step)) for manifest in reversed(shown)]
        listed.append(table([_TITLES, *rows], width=how.width))
    listed += left_out(len(sight.committed) - len(shown), "older")
    return joined(
        [
            "\n".join(listed),
            _lines(sight.faults, how.limit, how.paint("bad", "no checkpoint")),
            _lines(sight.unknown, how.limit, how.paint("warn", "cannot be looked at")),
            _rest(sight),
            "" if retired is None else _retired_text(retired, dry_run=how.dry_run),
        ]
    )


def _row(manifest: Manifest, verdict: Verdict | None) -> tuple[str, ...]:
    kind = manifest.kind.value
    return (
        str(manifest.step),
        kind,
        str(manifest.world_size),
        format_bytes(manifest.size_bytes),
        one_line(manifest.at[:19]),
        one_line(f"{_verified(verdict)}{_missing(manifest)}"),
    )


def _verified(verdict: Verdict | None) -> str:
    if verdict is None:
        return "marker"
    proved = verdict.proved[-1].value if verdict.proved else "nothing"
    if verdict.answer:
        return proved
    state = "UNKNOWN" if verdict.answer is None else "BROKEN" if verdict.broken else "not proved"
    return f"{proved}; {verdict.level.value}: {state}: {'; '.join(verdict.reasons)}"


def _missing(manifest: Manifest) -> str:
    return f" (missing for EXACT: {', '.join(manifest.missing)})" if manifest.missing else ""


def _lines(faults: Sequence[Fault], limit: int, title: str) -> str:
    if not faults:
        return ""
    lines = [f"  {one_line(fault.path)}: {one_line(fault.why, 300)}" for fault in faults[:limit]]
    return "\n".join([f"{title}:", *lines, *left_out(len(faults) - len(lines))])


def _rest(sight: Sight) -> str:
    whole = sum(pending.complete for pending in sight.pending)
    parts = []
    if sight.pending:
        named = ", ".join(f"step {pending.step}" for pending in sight.pending[:5])
        more = f" and {len(sight.pending) - 5} more" if len(sight.pending) > 5 else ""
        whole_text = f"; {whole} whole, to be published when training starts" if whole else ""
        parts.append(
            f"{plural(len(sight.pending), 'save')} not committed ({named}{more}){whole_text}"
        )
    if sight.quarantined:
        parts.append(f"{len(sight.quarantined)} in quarantine")
    if sight.retiring:
        parts.append(f"{plural(len(sight.retiring), 'deletion')} cut short")
    return "\n".join(parts)


def _retired_text(retired: Retired, *, dry_run: bool) -> str:
    text = _retired_steps(retired, dry_run=dry_run)
    if retired.abandoned:
        verb = "would delete" if dry_run else "deleted"
        text += f"\n{verb} {plural(retired.abandoned, 'save')} that could not be committed any more"
    return text


def _retired_steps(retired: Retired, *, dry_run: bool) -> str:
    if not retired.steps:
        return f"no checkpoint is retired: {one_line(retired.why)}"
    verb = "would retire" if dry_run else "retired"
    shown = ", ".join(map(str, retired.steps[:10]))
    more = f" and {len(retired.steps) - 10} more" if len(retired.steps) > 10 else ""
    text = (
        f"{verb} step {shown}{more} ({format_bytes(retired.size_bytes)}), behind step "
        f"{retired.anchor}, whose hashes hold and which went on"
    )
    return f"{text}\n{one_line(retired.why)}" if retired.why else text


def claims_shape(claims: Sequence[RunClaim], *, dry_run: bool) -> dict[str, Any]:
    """What ``train claims --json`` prints."""
    return {
        "schema": CLAIMS_SCHEMA,
        "dry_run": dry_run,
        "runs": [
            {
                "run": claim.run,
                "task": claim.task,
                "standing": claim.standing.value,
                "reason": claim.reason,
                "have": claim.have,
                "kind": claim.kind.value if claim.kind else None,
                "want": claim.want,
                "resume": claim.resume or None,
            }
            for claim in claims
        ],
    }


def render_claims(claims: Sequence[RunClaim], *, limit: int, width: int | None) -> str:
    """The same as text."""
    if not claims:
        return "no run is there"
    rows = []
    for claim in claims[:limit]:
        have = "-" if claim.have is None else f"{claim.have} {claim.kind}"
        want = "-" if claim.want is None else str(claim.want)
        rows.append(
            (
                one_line(claim.run),
                one_line(claim.task or "-"),
                claim.standing.value.replace("_", " "),
                have,
                want,
                one_line(claim.reason),
            )
        )
    text = table([("run", "task", "claim", "have", "want", "why"), *rows], width=width)
    return "\n".join([text, *left_out(len(claims) - len(rows))])
