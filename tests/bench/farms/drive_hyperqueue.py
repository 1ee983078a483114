"""HyperQueue through its Python package: a server and a worker in this process, one job.

drive_hyperqueue.py ORDER.json quiet|files|waits
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    with open(sys.argv[1]) as file:
        order = json.load(file)
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig

    began = time.perf_counter()
    quiet = {"stdout": None, "stderr": None} if sys.argv[2] != "files" else {}
    with LocalCluster(worker_config=WorkerConfig(cores=order["slots"])) as cluster:
        client = cluster.client()

        def submit(commands: list[str]) -> object:
            job = Job(default_workdir=order["folder"])
            for command in commands:
                job.program(["bash", "-c", command], **quiet)
            return client.submit(job)

        started = time.perf_counter()
        if sys.argv[2] == "waits":
            for command in order["commands"]:
                time.sleep(order["pause_s"])
                # The command notes when it starts; this is when it was asked for.
                client.wait_for_jobs([submit([f"echo {time.time()} >> asked; {command}"])])
            return
        submitted = submit(order["commands"]) if order["commands"] else None
        enqueued = time.perf_counter()
        if submitted is not None:
            client.wait_for_jobs([submitted])
    with open(order["times"], "w") as file:
        json.dump({"start_s": started - began, "enqueue_s": enqueued - started}, file)


if __name__ == "__main__":
    main()
