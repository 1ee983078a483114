"""The span of time that reported forward calls are about, and the families' MFU in it.

Reads nothing; the arithmetic is `family_mfu`'s. Invariant: the span covers whole runs unless it is
given, so that the time of a call's run is never cut at its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleetcraft.telemetry.forwards import Forwards
from fleetcraft.telemetry.queue import Queue
from fleetcraft.telemetry.reading.sources import Source
from fleetcraft.telemetry.windows.family_mfu import Mfu, add_up, mfu_of
from fleetcraft.telemetry.windows.series import SourceFacts


def families_of(
    forwards: Forwards,
    queue: Queue,
    sources: Sequence[Source],
    *,
    since_s: float | None = None,
    until_s: float | None = None,
) -> tuple[Mfu, tuple[float, float]]:
    """The MFU of each family that reported, and from when until when.

    Args:
        forwards: What tasks reported.
        queue: Their runs.
        sources: Files whose sidecars name the GPUs.
        since_s: Start, seconds since 1970; the first start of a run that reported if None.
        until_s: End; the last end of such a run, or the last report, if None.
    """
    claims = {str(call.owner).rpartition(".")[2] for call in forwards.calls}
    runs = [run for run in queue.runs if run.claim in claims]
    times = [call.at_s for call in forwards.calls]
    ends = [run.end_s for run in runs if run.end_s is not None]
    start_s = min([run.start_s for run in runs] + times, default=0.0)
    end_s = max(ends + times, default=start_s)
    span_s = (start_s if since_s is None else since_s, end_s if until_s is None else until_s)
    named = [
        SourceFacts(path=source.name, node=source.node, gpus=source.sidecar.gpus)
        for source in sources
        if source.sidecar is not None
    ]
    mfu = mfu_of(
        add_up(forwards.calls, *span_s),
        queue.runs,
        queue.workers,
        named,
        span_s,
        rejected_lines=sum(forwards.rejected.values()),
    )
    return mfu, span_s
