"""What a file says of itself: its name, its first and its last bytes.

Nothing is read here. Invariant: one file is of one kind wherever it is asked, and what nobody knows
is ``other``.
"""

from __future__ import annotations

import os
import re

from fleetcraft.evidence.records import Kind
from fleetcraft.layout import parse_telemetry_file

LOOK_BYTES = 4096
"""How much of a file's beginning and of its end is looked at."""
BATCH_TABLE_MARK = b"fleetcraft.batch-table/"
"""By it a frozen batch table is told from other tables."""
RESULT_MARK = b"fleetcraft.result/"
"""By it a file of result records is told from other results."""
_KINDS: dict[str, Kind] = {
    **dict.fromkeys((".png", ".svg", ".pdf", ".jpg", ".jpeg", ".eps", ".webp"), Kind.FIGURE),
    **dict.fromkeys((".mp4", ".mkv", ".webm", ".mov", ".avi", ".gif"), Kind.VIDEO),
    **dict.fromkeys((".log", ".out", ".err"), Kind.LOG),
    **dict.fromkeys((".py", ".sh", ".bash", ".sbatch", ".ipynb", ".patch"), Kind.CODE),
    **dict.fromkeys((".c", ".cpp", ".cu", ".rs"), Kind.CODE),
    **dict.fromkeys((".yaml", ".yml", ".toml", ".ini", ".cfg"), Kind.CONFIG),
    **dict.fromkeys((".safetensors", ".pt", ".pth", ".ckpt", ".distcp"), Kind.CHECKPOINT),
    **dict.fromkeys((".csv", ".tsv", ".parquet"), Kind.TABLE),
}
_SCHEMAS: dict[str, Kind] = {
    "batch-table": Kind.TABLE,
    "calibration": Kind.SUMMARY,
    "checkpoint": Kind.CHECKPOINT,
    "checkpoint-note": Kind.CHECKPOINT,
    "checkpoint-rank": Kind.CHECKPOINT,
    "comparison": Kind.SUMMARY,
    "encoder": Kind.CONFIG,
    "evidence-grid-state": Kind.MANIFEST,
    "gate": Kind.MANIFEST,
    "manifest": Kind.MANIFEST,
    "origin": Kind.MANIFEST,
    "receipt": Kind.MANIFEST,
    "result": Kind.RESULTS,
    "rollout": Kind.RESULTS,
    "telemetry_file": Kind.TELEMETRY,
    "telemetry_summary": Kind.SUMMARY,
    "train-event": Kind.JOURNAL,
}
"""What records with a schema ``fleetcraft.<word>/<n>`` are."""
_SCHEMA = re.compile(rb"\bfleetcraft\.([a-z_-]+)/\d")
_TELEMETRY_HEAD = b"timestamp,mem_used_mib,mem_total_mib,util_pct,power_w"
_WINDOW = re.compile(rb'"kind"\s*:\s*"gpu_telemetry_window"')
_EVENT = re.compile(rb'^\{"event"\s*:', re.MULTILINE)
_TASK_HEAD = re.compile(rb"^#FLEET name: ", re.MULTILINE)


def kind_by_looks(path: str, head: bytes, tail: bytes = b"") -> Kind:
    """What a file says of itself: known schemas and headers, then its suffix.

    Args:
        path: Its name.
        head: Its first `LOOK_BYTES`.
        tail: Its last, where a record of calibration has its schema; empty if not known.
    """
    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1].lower()
    if parse_telemetry_file(name) is not None:
        return Kind.TELEMETRY
    if suffix in (".json", ".jsonl", ".yaml", ".yml", ""):
        found = _by_content(head, tail)
        if found is not None:
            return found
    if suffix == ".csv" and head.startswith(_TELEMETRY_HEAD):
        return Kind.TELEMETRY
    if suffix in (".sh", "") and head.startswith(b"#!") and _TASK_HEAD.search(head):
        return Kind.TASK
    return kind_by_name(name)


def kind_by_name(name: str) -> Kind:
    """What a file is by its suffix alone; ``other`` where that does not say it."""
    return _KINDS.get(os.path.splitext(name)[1].lower(), Kind.OTHER)


def _by_content(head: bytes, tail: bytes) -> Kind | None:
    if _WINDOW.search(head) or _WINDOW.search(tail):
        return Kind.SUMMARY
    for part in (head, tail):
        for found in _SCHEMA.finditer(part):
            kind = _SCHEMAS.get(found[1].decode())
            if kind is not None:
                return kind
    return Kind.JOURNAL if _EVENT.search(head) else None
