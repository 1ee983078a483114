"""The launcher of a fleet as a process of its own, with short pauses; its events are JSON lines.

Not here: what is right. Called with a plan as JSON; its srun is whatever PATH has.
"""

from __future__ import annotations

import json
import sys

from fleetcraft.fleet.allocation import beside, lookout, node_worker, roster
from fleetcraft.fleet.allocation import launcher as allocation
from fleetcraft.fleet.recovery import FleetRecovery
from fleetcraft.slurm.polls import Polls
from fleetcraft.spool.tree import SpoolTree

SHORT = {
    (node_worker, "_FIRST_PAUSE_S"): 0.1,
    (roster, "_ASK_AGAIN_S"): 0.3,
    (roster, "_AWAY_LOOK_S"): 0.3,
    (beside, "_MARKER_PATIENCE_S"): 0.3,
    (beside, "_LOOK_S"): 0.1,
    (lookout, "_RETRY_S"): 0.3,
    (allocation, "_WALLTIME_PATIENCE_S"): 1.0,
    (allocation, "_ONE_PRESS_S"): 0.1,
}


def tell(event: object) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    for (module, name), value in SHORT.items():
        assert hasattr(module, name)
        setattr(module, name, value)
    given = json.loads(sys.argv[1])
    tree = SpoolTree(given.pop("spool"))
    plan = roster.AllocationPlan(
        **{**given, "nodes": tuple(given["nodes"]), "worker": tuple(given["worker"])}, tree=tree
    )
    polls = Polls(interval_s=0.05)
    recovery = FleetRecovery([tree], polls, stop_survivors=None, note=lambda text: None)
    report = allocation.Allocation(
        plan, polls, recover=recovery.run, recover_every_s=0.5, on_event=tell
    ).run()
    tell(
        {
            "event": "report",
            "exit_code": report.exit_code,
            "beside": report.beside,
            "nodes": {
                node.name: {"over": node.over, "in_order": node.in_order, "starts": node.starts}
                for node in report.nodes
            },
        }
    )
    raise SystemExit(report.exit_code)


if __name__ == "__main__":
    main()
