"""Whether one consumed record is what its commit says: its bytes, identity, lag and files.

Not here: which records there must be (`audit`). Invariant: a fault is seen; what cannot be read
is an OSError, and no fault.
"""

from __future__ import annotations

from fleetcraft.rollouts.attachments import check_file
from fleetcraft.rollouts.lag import lag_of
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Commit, Member, Record, digest_of
from fleetcraft.rollouts.transaction.judging import load_record


def fault_of(queue: RolloutQueue, commit: Commit, member: Member, record: Record) -> str:
    """What is wrong with a record that a commit was trained on; empty when nothing is.

    Raises:
        OSError: Its identity cannot be read.
    """
    actual = digest_of(record)
    if not member.digest == record.digest == actual:
        return f"digest {actual[:12]!r}, the commit says {member.digest[:12]!r}"
    if record.identity != member.identity:
        return f"identity {record.identity}, the commit says {member.identity}"
    lag, allowed = lag_of(record.version, commit.parent), queue.settings.max_lag
    if not 0 <= lag <= allowed:
        return f"{lag} versions behind, at most {allowed} are allowed"
    return _bound_otherwise(queue, record)


def _bound_otherwise(queue: RolloutQueue, record: Record) -> str:
    path = queue.paths.ident_file(record.stream, record.sequence, record.sample)
    try:
        bound = load_record(queue, path).record
    except FileNotFoundError:
        return "its identity was never bound"
    if bound is None or bound.digest != record.digest:
        return "its identity is bound to another record"
    return ""


def files_of(queue: RolloutQueue, record: Record) -> str:
    """What is wrong with the files beside a record, every byte of them read; empty when nothing is.

    Raises:
        OSError: One of them cannot be read.
    """
    for file in record.files:
        found = check_file(queue.fs, queue.paths.folder, file, content=True)
        if found is not None:
            return found[1]
    return ""
