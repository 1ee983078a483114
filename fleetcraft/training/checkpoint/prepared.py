"""Checkpoints that are committed here but not yet named as current by somebody's ledger.

A trainer that commits policy versions saves first and names the checkpoint in its commit after;
killed in between, it leaves a checkpoint of steps that never counted. Invariant: one that the
ledger does not name is never the newest, and what the ledger cannot tell is left alone.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetcraft.training.checkpoint.listing import unknown
from fleetcraft.training.checkpoint.records import Kind, Level, Manifest
from fleetcraft.training.checkpoint.store import CheckpointStore

Allowed = Callable[[Manifest], bool | None]
"""Whether a ledger names a checkpoint, by `Manifest.sha256`; None when it cannot tell."""


def newest_allowed(
    store: CheckpointStore,
    allowed: Allowed,
    *,
    kind: Kind | None = None,
    level: Level = Level.SIZES,
) -> Manifest | None:
    """The newest checkpoint that a ledger names and that holds up to a level.

    Raises:
        CheckpointUnknownError: A newer one could be it, and that cannot be told now.
    """
    for manifest in reversed(store.committed()):
        if kind is not None and manifest.kind is not kind:
            continue
        named = allowed(manifest)
        verdict = store.verify(manifest, level) if named is not False else None
        if named is None or (verdict is not None and verdict.answer is None):
            why = "; ".join(verdict.reasons) if verdict else ""
            raise unknown(manifest.folder, OSError(0, why or "the ledger does not tell"))
        if verdict is not None and verdict.answer:
            return manifest
    return None


def prepared(store: CheckpointStore, allowed: Allowed) -> tuple[Manifest, ...]:
    """Checkpoints that the ledger does not name, oldest first.

    Raises:
        CheckpointUnknownError: Whether something is a checkpoint cannot be told.
    """
    return tuple(m for m in store.committed() if allowed(m) is False)


def quarantine_uncommitted(
    store: CheckpointStore,
    allowed: Allowed,
    *,
    why: str = "saved, but no commit names it",
    check: Callable[[], object] = lambda: None,
) -> tuple[Manifest, ...]:
    """Takes every checkpoint out of use that the ledger does not name, and keeps it.

    Call it under the trainer's lock, before training goes on: a checkpoint that this very trainer
    has saved and not yet committed would go too.

    Args:
        store: The folder of checkpoints.
        allowed: What the ledger says, read under the same lock.
        why: Recorded beside it.
        check: Called before each; `Held.check` of the trainer's lock.
    """
    moved = []
    for manifest in prepared(store, allowed):
        check()
        store.quarantine(manifest, why=why)
        moved.append(manifest)
    return tuple(moved)
