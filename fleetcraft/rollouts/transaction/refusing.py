"""The errors of a transaction, each with its message.

Not here: errors of the lock and of the ledger, which pass through as they are.
"""

from __future__ import annotations

from fleetcraft.errors import FleetError, TryAgainLaterError
from fleetcraft.layout.rollouts import TransactionName
from fleetcraft.rollouts.transaction.records import TransactionState


class TransactionError(FleetError):
    """A step that this transaction is not ready for; nothing was done."""

    def __init__(self, name: TransactionName, state: TransactionState, step: str) -> None:
        super().__init__(
            f"batch {name} cannot be {step}: it is {state.value}; nothing was done",
            hint="the order is computed(), prepared(), commit(); or undo()",
            transaction=str(name),
            state=state.value,
        )


class CommitConflictError(TryAgainLaterError):
    """Another trainer made this version: what was computed here belongs to no policy."""

    def __init__(self, name: TransactionName, found: str) -> None:
        super().__init__(
            f"version {name.version} cannot be committed by {name}: {found}; "
            "what was computed belongs to no policy",
            hint="start the trainer again from the newest commit's checkpoint",
            version=name.version,
            transaction=str(name),
        )


class CommitUnknownError(TryAgainLaterError):
    """Whether the version was committed is not known; nothing was undone."""

    def __init__(self, name: TransactionName, error: OSError | None) -> None:
        super().__init__(
            f"cannot tell whether version {name.version} was committed: {error}; "
            "nothing was undone",
            hint="commit again, or start the trainer again: its recovery finds out",
            version=name.version,
            transaction=str(name),
        )
