"""How far a record is behind the policy, and which lengths of prompt that costs.

Pure numbers. Not here: when it is asked (`transaction`). Invariant: lag is a difference of two
versions that are on disk, so no restart can lose or raise it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

_FIRST_BUCKET_TOKENS = 64


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts of one range of lengths: how many records were trained on, and discarded for lag.

    Attributes:
        bucket: Its name: ``up to 64``, ``65 to 128``, ..., or ``not told``.
        committed: Records that were trained on.
        discarded: Records that were too far behind.
    """

    bucket: str
    committed: int
    discarded: int

    @property
    def discarded_fraction(self) -> float | None:
        """Discarded over both; None when there is neither."""
        both = self.committed + self.discarded
        return self.discarded / both if both else None


def lag_of(record_version: int, policy_version: int) -> int:
    """Versions that a record is behind: the queue's time is in it.

    Args:
        record_version: The policy's version when the record's generation started.
        policy_version: The policy's version when the commit that would use it starts.

    Returns:
        0 for a record of the current policy; negative for one that claims to be of a later one.

    Source: ROLLOUTS.md, Lag; the definition is prime-rl's (pull request 3313).
    """
    return policy_version - record_version


def is_too_old(record_version: int, policy_version: int, max_lag: int) -> bool:
    """Whether a record is further behind than allowed; exactly ``max_lag`` is allowed."""
    return lag_of(record_version, policy_version) > max_lag


def bucket_of(prompt_tokens: int) -> str:
    """The bucket of a prompt's length: powers of two from 64 tokens on.

    A length of 0 is one that was not told.
    """
    if prompt_tokens <= 0:
        return "not told"
    low, high = 0, _FIRST_BUCKET_TOKENS
    while prompt_tokens > high:
        low, high = high, high * 2
    return f"up to {high}" if low == 0 else f"{low + 1} to {high}"


def tabulate(committed: Iterable[str], discarded: Iterable[str]) -> tuple[Bucket, ...]:
    """Counts by bucket, short prompts first and those of unknown length last.

    A bucket whose share of discards is above the others' shows that the training data drifts away
    from prompts of that length. Source: tinker-cookbook pull request 822.
    """
    kept, lost = _count(committed), _count(discarded)
    return tuple(
        Bucket(bucket=name, committed=kept.get(name, 0), discarded=lost.get(name, 0))
        for name in sorted(kept.keys() | lost.keys(), key=_upper_tokens)
    )


def _count(names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found


def _upper_tokens(bucket: str) -> float:
    last = bucket.rpartition(" ")[2]
    return float(last) if last.isdecimal() else float("inf")
