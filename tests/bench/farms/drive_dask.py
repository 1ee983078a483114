"""dask.distributed: a scheduler and one-thread worker processes on loopback, one call a command.

drive_dask.py ORDER.json run|waits
"""

from __future__ import annotations

import json
import subprocess
import sys
import time


def run(command: str, number: int) -> int:
    return subprocess.run(["bash", "-c", command], check=True).returncode + 0 * number


def main() -> None:
    with open(sys.argv[1]) as file:
        order = json.load(file)
    from distributed import Client, LocalCluster

    began = time.perf_counter()
    with (
        LocalCluster(
            n_workers=order["slots"], threads_per_worker=1, dashboard_address=None,
            host="127.0.0.1", local_directory=order["folder"],
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        started = time.perf_counter()
        if sys.argv[2] == "waits":
            for number, command in enumerate(order["commands"]):
                time.sleep(order["pause_s"])
                asked = f"echo {time.time()} >> {order['folder']}/asked; {command}"
                client.submit(run, asked, number, pure=False).result()
            return
        commands = order["commands"]
        futures = client.map(run, commands, range(len(commands)), pure=False)
        enqueued = time.perf_counter()
        client.gather(futures)
    with open(order["times"], "w") as file:
        json.dump({"start_s": started - began, "enqueue_s": enqueued - started}, file)


if __name__ == "__main__":
    main()
