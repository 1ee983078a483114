"""Free ports on the loopback, for one cluster at a time.

Not here: what listens on them.
Invariant: two starts on one machine never choose at once, whoever they belong to.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from .fault import CONFIGURATION, Fault

# An abstract socket name lives as long as its holder and is shared by all who share the ports
# (it belongs to the network namespace), so it is the lock that leaves no file behind.
TURN = "\0fleetcraft-slurm-sandbox-ports"
TURN_PATIENCE_S = 180.0
LOWEST = 20_000
LISTENING = "0A"  # Source: linux/net/tcp_states.h, TCP_LISTEN
FIRST_EPHEMERAL = 32_768  # Linux hands out those above to clients, at any moment


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Holds the right to choose ports and to take them: until the daemons listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        give_up_at = time.monotonic() + TURN_PATIENCE_S
        while time.monotonic() < give_up_at:  # afterwards without: a bind test is still made
            with contextlib.suppress(OSError):
                lock.bind(TURN)
                break
            time.sleep(0.1)
        yield


def free_block(count: int) -> int:
    """The first of `count` neighbouring ports that nobody listens on.

    Raises:
        Fault: None was found in many tries.
    """
    for _ in range(200):
        first = random.randrange(LOWEST, FIRST_EPHEMERAL - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise Fault(
        CONFIGURATION,
        f"no {count} free ports side by side between {LOWEST} and {FIRST_EPHEMERAL}",
        "look at what listens with: ss -ltn",
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the daemons do: a port that an earlier cluster has just left is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def is_taken(port: int) -> bool:
    """Whether somebody listens on a port. A connection would say so too, but daemons log those."""
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return True  # cannot be seen here: the client that asks next has its own patience
    fields = (line.split() for line in lines)
    return any(int(row[1].rpartition(":")[2], 16) == port and row[3] == LISTENING for row in fields)
