"""Parsl's high-throughput executor on loopback: one bash app a command, remembered as they end.

drive_parsl.py ORDER.json run|waits
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    with open(sys.argv[1]) as file:
        order = json.load(file)
    os.chdir(order["folder"])
    import parsl
    from parsl.app.app import bash_app
    from parsl.config import Config
    from parsl.dataflow.memoization import BasicMemoizer
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    began = time.perf_counter()
    executor = HighThroughputExecutor(
        label="here", address="127.0.0.1", loopback_address="127.0.0.1",
        max_workers_per_node=order["slots"], cores_per_worker=1e-6, encrypted=False,
        heartbeat_period=2, heartbeat_threshold=10,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )  # fmt: skip
    # The checkpoints of earlier runs in this folder are read by themselves.
    config = Config(
        executors=[executor], retries=2, usage_tracking=0, run_dir="runinfo",
        memoizer=BasicMemoizer(checkpoint_mode="task_exit"), initialize_logging=False,
    )  # fmt: skip
    with parsl.load(config):

        @bash_app(cache=True)
        def run(command: str, number: int) -> str:
            return command

        started = time.perf_counter()
        if sys.argv[2] == "waits":
            run("true", -1).result()  # its workers are there now
            for number, command in enumerate(order["commands"]):
                time.sleep(order["pause_s"])
                run(f"echo {time.time()} >> asked; {command}", number).result()
            return
        futures = [run(command, number) for number, command in enumerate(order["commands"])]
        enqueued = time.perf_counter()
        for future in futures:
            future.result()
    with open(order["times"], "w") as file:
        json.dump({"start_s": started - began, "enqueue_s": enqueued - started}, file)


if __name__ == "__main__":
    main()
