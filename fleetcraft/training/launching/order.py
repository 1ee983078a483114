"""What a keeper is told: its order on disk, the order to stop, and the variables of its command.

Records only. Invariant: an order holds what the supervisor adds to the environment, never the
whole of it, which may hold secrets.
"""

from __future__ import annotations

import msgspec

from fleetcraft.caches.scope import CacheSettings

ORDER_SCHEMA = "fleetcraft.train-order/1"
STOP_SCHEMA = "fleetcraft.train-stop/1"

NONCE = "FLEET_LAUNCH_NONCE"
"""Every process of a launch has it in its environment: by it leftovers are found."""
NODE = "FLEET_LAUNCH_NODE"
"""The node whose keeper started a process: several nodes may be one machine."""
RUN = "FLEET_RUN"
EPOCH = "FLEET_EPOCH"
PROGRESS = "FLEET_PROGRESS"
"""The folder where ranks report their progress."""
BUILT = "FLEET_TRAIN_BUILT"
"""The folder where ranks tell what they have built."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun writes the first error of a node. Source: torch.distributed.elastic, "Error
Propagation"."""
NODE_RANK = "FLEET_NODE_RANK"
NODE_COUNT = "FLEET_NODE_COUNT"
FIRST_NODE = "FLEET_FIRST_NODE"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What every keeper of one launch does.

    Attributes:
        schema: `ORDER_SCHEMA`.
        run: The run's name.
        epoch: Its number.
        generation: Of the lock that decided it.
        nonce: Of the launch.
        attempt: The folder of the attempt; every other path follows from it.
        command: The command's words; no shell.
        environment: What is added to the keeper's own environment.
        directory: Where the command runs; where the keeper was started if empty.
        nodes: On how many nodes it runs.
        step_name: Name of the Slurm step; empty for a keeper without one.
        port: For the ranks' first meeting, where there are several nodes.
        grace_s: Between TERM and KILL.
        kill_wait_s: How long the keeper waits for what it has killed.
        look_s: Seconds between two looks for an order to stop.
        caches: What the project says of caches; None tells the command nothing about them.
    """

    schema: str
    run: str
    epoch: int
    generation: int
    nonce: str
    attempt: str
    command: tuple[str, ...]
    environment: dict[str, str] = {}
    directory: str = ""
    nodes: int = 1
    step_name: str = ""
    port: int = 0
    grace_s: float = 60.0
    kill_wait_s: float = 10.0
    look_s: float = 1.0
    caches: CacheSettings | None = None


class StopOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order to stop a launch, or never to begin it. Once there, it stays.

    Attributes:
        schema: `STOP_SCHEMA`.
        by: Who orders it, for people.
        at: Wall clock, for people.
        why: For people.
        nonce: Of this order.
        grace_s: Between TERM and KILL; that of the launch's order if None.
    """

    schema: str
    by: str
    at: str
    why: str
    nonce: str
    grace_s: float | None = None
