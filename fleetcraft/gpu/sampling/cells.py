"""A row of telemetry while its readings come in.

Invariant: a cell has a value or it has not, and in the second case the cause can be noted; a cause
never comes with a value.
"""

from __future__ import annotations

from typing import Any

from fleetcraft.gpu import causes
from fleetcraft.gpu.sampling.samples import Missing, Sample
from fleetcraft.gpu.status import Status


class Cells:
    """What was read so far.

    Args:
        values: What is known without reading, such as the GPU's names.

    Attributes:
        values: By column.
        missing: Empty cells with their causes.
        words: For the ``detail``.
        primary: The causes of utilization, memory and power, of which the worst is the row's.
    """

    __slots__ = ("missing", "primary", "values", "words")

    def __init__(self, **values: Any) -> None:
        self.values = values
        self.missing: list[Missing] = []
        self.words: list[str] = []
        self.primary: list[Status] = []

    def status(self) -> Status:
        """The worst cause among the primary ones."""
        # Nothing is missing without being noted, and in most rows nothing is.
        return causes.worst(self.primary) if self.missing else Status.OK

    def sample(self) -> Sample:
        """The row as it is now."""
        return Sample(
            status=self.status(),
            missing=tuple(self.missing),
            detail=" ".join(self.words),
            **self.values,
        )

    def lacks(self, status: Status, code: int, *columns: str) -> None:
        """Notes why some cells are empty."""
        self.missing.extend((column, status, code) for column in columns)
