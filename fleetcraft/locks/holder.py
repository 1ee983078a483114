"""Who owns one generation of a lock, and whether that process lives.

Records and judgements; no lock is taken here. Invariant: only this machine's own word, or that of
a judge who was handed in, makes an owner gone.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fleetcraft.identity import (
    NO_JOB,
    HostId,
    JobRun,
    ProcessId,
    is_of_another_cluster,
    lives_at,
    this_host,
)


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who owns one generation: the content of ``gen.N``.

    Attributes:
        schema: ``fleetcraft.lock/1``.
        generation: N.
        nonce: Tells this owner from any other that may have tried for the same number.
        purpose: What it decides, for people.
        host: With ``boot_id`` and ``pid_namespace``, where its pid means something.
        boot_id: The boot of that host.
        pid_namespace: The namespace of its pid.
        pid: Its process.
        start_ticks: When that process began, in clock ticks after boot.
        interval_s: Seconds between its beats.
        taken_at: Wall clock, for people; never compared.
        after: How the generation before it ended.
        run: The Slurm job that it is part of.
    """

    schema: str
    generation: int
    nonce: str
    purpose: str
    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int
    interval_s: float
    taken_at: str
    after: str
    run: JobRun = NO_JOB

    def __str__(self) -> str:
        job = f", job {self.run.job}" if self.run.job else ""
        return f"process {self.pid} on {self.host}{job} since {self.taken_at}"


Judge = Callable[[Holder], bool | None]
"""Whether a holder lives: True, False (positively gone), or None for unknown."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Holder).decode


def lives_here(holder: Holder, here: HostId | None = None) -> bool | None:
    """Whether a holder's process lives, if this machine can tell; None when it cannot."""
    if is_of_another_cluster(holder.run.cluster):
        return None
    place = HostId(holder.host, holder.boot_id, holder.pid_namespace)
    return lives_at(place, ProcessId(holder.pid, holder.start_ticks), here or this_host())


def read_holder(content: bytes) -> Holder | None:
    """The owner that a ``gen.N`` names; None when it cannot be read."""
    try:
        return _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def write_holder(holder: Holder) -> bytes:
    """The content of its ``gen.N``."""
    return _encode(holder) + b"\n"
