"""What the commands about model files say: mirrored, filled, set aside, near the purge.

Records in, text and JSON out; no folder is looked at here. Invariant: what was not proved is never
worded as proved.
"""

from __future__ import annotations

from typing import Any

from fleetcraft.caches.filling import FillReport
from fleetcraft.caches.mirror import MirrorReport
from fleetcraft.caches.purge import IdleFile, PurgeReport
from fleetcraft.caches.quarantine import Quarantined, User
from fleetcraft.caches.staging import Published
from fleetcraft.units import format_bytes
from fleetcraft.view.text import Paint, left_out, one_line, plural, table

_SHOWN = 20


# -- mirror


def render_mirror(report: MirrorReport, *, paint: Paint) -> str:
    """What a mirror has come to, as text."""
    repo = one_line(str(report.repo))
    what = f"{repo}, commit {report.commit[:12]}{_refs(report.refs)}"
    size = f"{plural(report.files, 'file')}, {format_bytes(report.bytes)}"
    if report.published is None:
        blobs = f"{plural(report.to_copy, 'blob')}, {format_bytes(report.to_copy_bytes)}"
        copies = f"would copy {blobs}" if report.to_copy else "everything is there"
        lines = [f"{what}: {size}; {copies}"]
    else:
        lines = [f"{paint('good', 'mirrored')} {what}: {size}", f"  {_published(report.published)}"]
    lines += [f"  from  {one_line(report.hub_from)}", f"  to    {one_line(report.folder)}"]
    return "\n".join(lines + _absent(report.absent))


def mirror_shape(report: MirrorReport) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "schema": "fleetcraft.cache_mirror/1",
        "repo": report.repo.name,
        "repo_type": report.repo.type.value,
        "commit": report.commit,
        "refs": list(report.refs),
        "hub_from": report.hub_from,
        "hub_to": report.hub_to,
        "folder": report.folder,
        "files": report.files,
        "bytes": report.bytes,
        "absent": list(report.absent),
        "to_copy": report.to_copy,
        "to_copy_bytes": report.to_copy_bytes,
        **_published_shape(report.published),
    }


# -- fill


def render_fill(report: FillReport, *, paint: Paint) -> str:
    """What a fill has come to, as text."""
    size = f"{plural(report.files, 'file')}, {format_bytes(report.bytes)}"
    how = {
        "sized": "was verified before; names and sizes are as they were then",
        "reread": "every file was read back and proved",
    }.get(report.level, report.level)
    begin = paint("good", "filled" if report.ran else "already there")
    lines = [
        f"{begin} {one_line(str(report.repo))}, commit {report.commit[:12]}: {size}",
        f"  {how}{'; nothing was downloaded' if not report.ran else ''}",
    ]
    if report.published is not None:
        lines.append(f"  {_published(report.published)}")
    if report.others:
        lines.append(f"  also published: {one_line(', '.join(report.others))}")
    lines += [f"  not published: {one_line(text)}" for text in report.left_out]
    lines.append(f"  in    {one_line(report.folder)}")
    return "\n".join(lines + _absent(report.absent))


def fill_shape(report: FillReport) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "schema": "fleetcraft.cache_fill/1",
        "repo": report.repo.name,
        "repo_type": report.repo.type.value,
        "commit": report.commit,
        "hub": report.hub,
        "folder": report.folder,
        "files": report.files,
        "bytes": report.bytes,
        "absent": list(report.absent),
        "ran": report.ran,
        "waited": report.waited,
        "level": report.level,
        "others": list(report.others),
        "left_out": list(report.left_out),
        **_published_shape(report.published),
    }


# -- quarantine


def render_quarantine(record: Quarantined, *, moved: bool, paint: Paint) -> str:
    """What was set aside, and who must fetch it again, as text."""
    begin = paint("warn", "set aside" if moved else "would set aside")
    proof = record.proof
    lines = [
        f"{begin} {one_line(record.file)} of {one_line(str(record.repo))}",
        f"  found     {proof.verdict.value}{f': {one_line(proof.detail)}' if proof.detail else ''}",
    ]
    if proof.expected:
        lines.append(f"  expected  {proof.expected}")
    if proof.found:
        lines.append(f"  its bytes {proof.found}")
    if record.owner:
        lines.append(f"  owner     {one_line(record.owner)}")
    if moved:
        where = record.aside or "there were no bytes of this hub to keep; its links are removed"
        lines.append(f"  now in    {one_line(where)}")
    lines.append(f"used by {plural(len(record.users), 'snapshot')}; to be fetched again:")
    for user in record.users[:_SHOWN]:
        lines.append(f"  {user.repo.name}@{user.commit[:12]}{_refs(user.refs)}")
        lines.append(f"    {one_line(user.fetch)}")
    return "\n".join(lines + left_out(max(0, len(record.users) - _SHOWN)))


def quarantine_shape(record: Quarantined, *, moved: bool) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "schema": record.schema,
        "id": record.id,
        "moved": moved,
        "hub": record.hub,
        "repo": record.repo.name,
        "repo_type": record.repo.type.value,
        "file": record.file,
        "blob": record.blob,
        "verdict": record.proof.verdict.value,
        "expected": record.proof.expected or None,
        "found": record.proof.found or None,
        "size_bytes": record.proof.size_bytes,
        "detail": record.proof.detail,
        "reason": record.reason,
        "owner": record.owner or None,
        "aside": record.aside or None,
        "users": [_user_shape(user) for user in record.users],
        "at": record.at,
    }


def _user_shape(user: User) -> dict[str, Any]:
    return {
        "repo": user.repo.name,
        "repo_type": user.repo.type.value,
        "commit": user.commit,
        "refs": list(user.refs),
        "paths": list(user.paths),
        "fetch": user.fetch,
    }


# -- near the purge


def render_purge(
    report: PurgeReport, what: str, *, paint: Paint, limit: int | None = _SHOWN
) -> str:
    """Files that scratch will soon remove, as text; those that records refer to first.

    What could not be looked at is for the caller to say.

    Args:
        report: What was found.
        what: What these files are of, in one word.
        paint: Colours.
        limit: So many files at most; None for all that the report has.
    """
    head = (
        f"{what}: {plural(report.near_files, 'file')} of {report.looked_at} idle for "
        f"{report.warn_days:g} days or more, {format_bytes(report.near_bytes)}; "
        f"scratch removes files after {report.purge_days:g}"
    )
    rows = [
        (
            _left(item),
            f"idle {item.idle_days:.1f} d",
            format_bytes(item.size_bytes),
            f"{one_line(item.path)}{_referred(item.referred_by)}",
        )
        for item in report.near[:limit]
    ]
    lines = [paint("warn", head) if report.near_files else head]
    if rows:
        lines.append(table(rows))
    lines += left_out(max(0, report.near_files - len(rows)))
    gone = report.gone[:limit]
    lines += [
        f"  {paint('bad', 'gone')} {one_line(item.path)}{_referred(item.referred_by)}"
        for item in gone
    ]
    lines += left_out(len(report.gone) - len(gone), "more that are gone")
    if report.atime_kept is False:
        lines.append("  the mount does not note when files are read: the age is since their change")
    return "\n".join(lines)


def purge_shape(report: PurgeReport, *, limit: int = 1000) -> dict[str, Any]:
    """The same as JSON, with the counts of what its bounded lists leave out."""
    near, gone, unknown = report.near[:limit], report.gone[:limit], report.unknown[:limit]
    return {
        "purge_days": report.purge_days,
        "warn_days": report.warn_days,
        "looked_at": report.looked_at,
        "near_files": report.near_files,
        "near_bytes": report.near_bytes,
        "near": [
            {
                "path": item.path,
                "size_bytes": item.size_bytes,
                "idle_days": item.idle_days,
                "left_days": item.left_days,
                "newest": item.newest,
                "referred_by": list(item.referred_by),
            }
            for item in near
        ],
        "near_left_out": report.near_files - len(near),
        "gone": [{"path": item.path, "referred_by": list(item.referred_by)} for item in gone],
        "gone_files": len(report.gone),
        "gone_left_out": len(report.gone) - len(gone),
        "unknown": list(unknown),
        "unknown_left_out": len(report.unknown) - len(unknown),
        "atime_kept": report.atime_kept,
    }


def _left(item: IdleFile) -> str:
    return f"{item.left_days:.1f} d left" if item.left_days > 0 else "due"


def _referred(records: tuple[str, ...]) -> str:
    if not records:
        return ""
    more = f" and {len(records) - 1} more" if len(records) > 1 else ""
    return f"  <- {one_line(records[0])}{more}"


# -- shared


def _published(done: Published) -> str:
    parts = [
        f"{plural(done.copied, 'blob')} new ({format_bytes(done.copied_bytes)})",
        f"{done.already} already there",
        f"{done.proved} proved by name from reread bytes",
    ]
    if done.compared:
        parts.append(f"{done.compared} without such a name, equal to the source")
    return ", ".join(parts)


def _published_shape(done: Published | None) -> dict[str, Any]:
    if done is None:
        return {"copied": None, "copied_bytes": None, "already": None, "proved": None,
                "compared": None}  # fmt: skip
    return {
        "copied": done.copied,
        "copied_bytes": done.copied_bytes,
        "already": done.already,
        "proved": done.proved,
        "compared": done.compared,
    }


def _refs(refs: tuple[str, ...]) -> str:
    return f" ({one_line(', '.join(refs))})" if refs else ""


def _absent(absent: tuple[str, ...]) -> list[str]:
    if not absent:
        return []
    shown = one_line(", ".join(absent[:3]))
    more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
    return [f"  never fetched: {plural(len(absent), 'file')} of the commit ({shown}{more})"]
