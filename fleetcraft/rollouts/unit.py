"""One sequence number of a stream: its seeds, its groups, and how its samples are published.

Not here: the room for it (`admission`) and the loop over units (`producer`). Invariant: seeds
depend on run, stream, sequence and sample alone, never on who holds the stream or when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fleetcraft.clock import timestamp
from fleetcraft.identity import sha256_hex
from fleetcraft.rollouts.admission import Reservation
from fleetcraft.rollouts.publishing import Duplicate, Published
from fleetcraft.rollouts.records import FileRef, Record

if TYPE_CHECKING:
    from fleetcraft.rollouts.producer import Producer


class Unit:
    """One sequence number of a stream, for whose samples there is room. Made by `Producer` alone.

    Attributes:
        stream: The stream.
        sequence: The sequence number; with the stream it determines the prompt.
        samples: The samples to make; fewer than usual where an earlier holder made some.
        version: The policy's version when the unit began.
        started_at: Wall clock, for people.
    """

    def __init__(
        self, producer: Producer, reservation: Reservation, *, samples: Sequence[int], version: int
    ) -> None:
        self.stream = producer.stream
        self.sequence = reservation.sequence
        self.samples = tuple(samples)
        self.version = version
        self.started_at = timestamp()
        self._producer = producer
        self._reservation = reservation
        self._ended_at: dict[int, str] = {}

    @property
    def prompt_seed(self) -> int:
        """A seed of 63 bits for the prompt: the same whoever holds the stream."""
        return self._seed("prompt")

    def seed(self, sample: int) -> int:
        """A seed of 63 bits for one sample: the same whoever holds the stream."""
        return self._seed(str(sample))

    def group(self, sample: int) -> str:
        """The group of one sample: samples of one prompt, as many as the queue's groups have."""
        size = self._producer.queue.settings.group
        return f"{self.stream}.{self.sequence:08d}.{sample // size:03d}"

    def publish(
        self,
        sample: int = 0,
        *,
        values: Mapping[str, Sequence[float]] | None = None,
        scalars: Mapping[str, float] | None = None,
        prompt: str = "",
        prompt_tokens: int = 0,
        files: Sequence[FileRef] = (),
        gpu_s: float = 0.0,
        facts: Mapping[str, str] | None = None,
        group: str = "",
        version: int | None = None,
        started_at: str = "",
    ) -> Published | Duplicate:
        """Publishes one sample durably; retries for as long as the producer's patience lasts.

        Args:
            sample: One of `samples`.
            values: Numbers by name, such as one log-probability a step.
            scalars: Single numbers by name, such as ``reward``.
            prompt: The prompt, or what names it.
            prompt_tokens: Its length.
            files: What lies beside the record; see `attachments.describe_file`.
            gpu_s: GPU-seconds that it cost.
            facts: Anything else, as text.
            group: Its group; `group` by default.
            version: The policy's version when its generation started; the unit's by default.
            started_at: When its generation started; the unit's beginning by default.

        Raises:
            UsageError: No room is reserved for it.
            DataError: It lacks a value that the queue requires.
            LockLostError: The stream has another holder; nothing was published.
            SpoolError: It is not known to be published; calling again is safe.
        """
        producer = self._producer
        record = Record(
            run=producer.queue.settings.run,
            stream=self.stream,
            sequence=self.sequence,
            sample=sample,
            group=group or self.group(sample),
            version=self.version if version is None else version,
            shape=producer.shape,
            slot=producer.lease.slot,
            logical_device=producer.logical_device,
            lease_generation=producer.lease.generation,
            lease_nonce=producer.lease.nonce,
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            values={key: list(numbers) for key, numbers in (values or {}).items()},
            scalars=dict(scalars or {}),
            files=tuple(files),
            started_at=started_at or self.started_at,
            # The first call's: the very same record is completed, another one is a duplicate.
            ended_at=self._ended_at.setdefault(sample, timestamp()),
            gpu_s=gpu_s,
            facts=dict(facts or {}),
        )
        return producer.send(record, self._reservation)

    def end(self) -> int:
        """Gives back the room of what was not published; returns for how many samples.

        Raises:
            OSError: It may still be reserved; ending again is safe.
        """
        left = len(self._reservation.samples)
        self._reservation.release()
        return left

    def _seed(self, what: str) -> int:
        run = self._producer.queue.settings.run
        text = f"{run}\n{self.stream}\n{self.sequence}\n{what}"
        return int(sha256_hex(text.encode())[:16], 16) >> 1
