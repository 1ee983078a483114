"""One worker, or one local fleet, as a process of its own: what the tests start, signal and kill.

Told what to do by one JSON argument; prints every event and at last the report as JSON lines.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from fleetcraft.errors import FleetError
from fleetcraft.worker.local_fleet import run_local
from fleetcraft.worker.loop import run_worker
from fleetcraft.worker.settings import WorkerSettings


def tell(event: Mapping[str, object]) -> None:
    print(json.dumps(dict(event)), flush=True)


def main() -> int:
    task: dict[str, Any] = json.loads(sys.argv[1])
    settings = msgspec.convert(task["settings"], WorkerSettings)
    try:
        if workers := task["workers"]:
            report: Any = run_local(settings, workers, tell)
        else:
            report = run_worker(settings, tell)
    except FleetError as error:
        tell({"event": "refused", "text": error.message, "hint": error.hint})
        return error.exit_code
    tell({"event": "report", **dataclasses.asdict(report)})
    return int(report.exit_code)


if __name__ == "__main__":
    sys.exit(main())
