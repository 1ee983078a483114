"""A fleetcraft worker that waits, and tasks that are published now and then.

drive_fleetcraft.py ORDER.json ROOT FLEETCRAFT ...
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main() -> None:
    order_path, root, *prefix = sys.argv[1:]
    with open(order_path) as file:
        order = json.load(file)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)).rsplit("/tests/", 1)[0])
    from fleetcraft import Spool

    spool = Spool(f"{root}/taskq", project_dir=order["folder"])
    worker = subprocess.Popen([*prefix, "--root", root, "worker", "--idle", "60"])
    try:
        for number, command in enumerate(order["commands"]):
            time.sleep(order["pause_s"])
            name = f"late-{number}"
            spool.enqueue(name, f"echo {time.time()} >> asked; {command}")
            while not os.path.exists(f"{root}/taskq/done/{name}.sh"):
                time.sleep(0.05)
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
