"""A producer: samples from the newest policy, and publishes each answer with its log-probabilities.

It can be killed at any moment and started again: the stream goes on where it was published to, and
every sample depends on its seed and its policy alone.
"""

from __future__ import annotations

import argparse
import signal
import threading

import torch
from policy import VOCABULARY, Policy, reward
from trajectories import load_policy, open_queue

from fleetcraft.rollouts.abort import abort_stands
from fleetcraft.rollouts.producer import Producer
from fleetcraft.training.checkpoint.store import CheckpointStore


def main() -> None:
    """Samples until it is told to leave, or has published all its units."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--stream", required=True, help="no other process may have it")
    parser.add_argument("--units", type=int, default=1 << 30, help="prompts, of 4 samples each")
    parser.add_argument(
        "--lockstep",
        type=int,
        default=0,
        metavar="N",
        help="every N units wait for one more version, and use the one before it: the run then "
        "comes out the same whatever was killed when",
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    queue, store = open_queue(asked.queue), CheckpointStore(asked.checkpoints)
    policy, loaded = Policy(), 0
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())

    def must_leave() -> bool:
        return leave.is_set() or abort_stands(queue)

    with Producer(queue, asked.stream, poll_s=0.2, stop=leave.is_set) as producer:
        for unit in producer:
            if unit.sequence >= asked.units:
                break
            version = unit.version
            if asked.lockstep:
                block = unit.sequence // asked.lockstep
                version = max(0, block - 1)
                while queue.version() < block and not must_leave():
                    leave.wait(0.05)
                if queue.version() < block:
                    break
            if version != loaded:
                load_policy(policy, store, version)
                loaded = version
            for sample in unit.samples:
                prompt = unit.prompt_seed % VOCABULARY
                generator = torch.Generator().manual_seed(unit.seed(sample))
                actions, log_probs = policy.sample(prompt, generator)
                unit.publish(
                    sample,
                    values={"actions": actions, "log_probs": log_probs},
                    scalars={"reward": reward(prompt, actions)},
                    prompt=str(prompt),
                    prompt_tokens=1,
                    version=version,
                )
    print(f"stream {asked.stream}: {producer.told.published} records published")


if __name__ == "__main__":
    main()
