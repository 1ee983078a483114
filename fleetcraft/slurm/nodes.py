"""The nodes of the cluster, as sinfo tells of them.

Not here: what a state means for work on it. Invariant: a node's state is what Slurm printed, taken
apart into a base state and flags; what was not understood stays a flag and is never dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetcraft.errors import NoAnswerError
from fleetcraft.slurm.polls import INTERVAL_S, PATIENCE_S, Polls
from fleetcraft.slurm.tables import LongTable, Row, count_or_none, text_or_none

_NODES = LongTable(
    program="sinfo",
    columns=(
        ("NodeList", "NODELIST"),
        ("PartitionName", "PARTITION"),
        ("StateLong", "STATE"),
        ("CPUs", "CPUS"),
        ("Memory", "MEMORY"),
        ("Gres", "GRES"),
        ("GresUsed", "GRES_USED"),
        ("Reason", "REASON"),
    ),
)
# Source: NODE STATE CODES of sinfo(1), versions 20.11 to 24.05.
_FLAG_BY_SIGN = {
    "*": "not_responding",
    "~": "powered_down",
    "#": "powering_up",
    "!": "power_down",
    "%": "powering_down",
    "$": "maintenance",
    "@": "reboot_requested",
    "^": "reboot_issued",
    "-": "planned",
    "+": "cloud",
}
_STATE = re.compile(r"([a-z_]+)((?:[*~#!%$@^+-]|\+[a-z_]+)*)", re.IGNORECASE)
_FLAG = re.compile(r"\+[a-z_]+|[*~#!%$@^+-]", re.IGNORECASE)
_GRES = re.compile(r"(?P<name>[A-Za-z_]\w*)(?::(?P<type>\w[\w.-]*))?:(?P<count>[0-9]{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node.

    Attributes:
        name: The node's name in Slurm, which need not be its host's name.
        state: Base state in lower case: ``idle``, ``mixed``, ``allocated``, ``down``,
            ``drained``, ``draining``, …; ``unknown`` where it could not be read.
        flags: ``not_responding``, ``powered_down``, … and others in Slurm's own words.
        partitions: Those that it is in, hidden ones among them.
        cpus: None when not told.
        memory_mib: None when not told.
        gres: Countable resources by name, with their type if they have one (``gpu:a100``);
            None when what Slurm printed could not be read.
        gres_used: How many of them are allocated, by the same names; None when not told.
        reason: Why it is down or drained, free text; None when there is no reason.
    """

    name: str
    state: str
    flags: frozenset[str]
    partitions: tuple[str, ...]
    cpus: int | None
    memory_mib: int | None
    gres: dict[str, int] | None
    gres_used: dict[str, int] | None
    reason: str | None

    @property
    def is_down(self) -> bool:
        """Whether Slurm says that nothing runs there: base state ``down``."""
        return self.state == "down"

    @property
    def gpus(self) -> int | None:
        """How many GPUs of any type it has; None when not told."""
        return gpus_in(self.gres)

    @property
    def gpus_used(self) -> int | None:
        """How many of its GPUs are allocated; None when not told."""
        return gpus_in(self.gres_used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """All nodes of the cluster.

    Attributes:
        age_s: Seconds since Slurm was asked.
        nodes: By name.
    """

    age_s: float
    nodes: dict[str, Node]


def node_states(
    polls: Polls,
    *,
    fresh: bool = False,
    max_age_s: float = INTERVAL_S,
    patience_s: float = PATIENCE_S,
) -> Nodes:
    """Lists the nodes of all partitions.

    Args:
        polls: Keeps polls apart.
        fresh: Only an answer that was asked for after this call.
        max_age_s: Oldest answer that will do, if not fresh.
        patience_s: How long this may take.

    Raises:
        SchedulerError: There is no answer. Nothing may be concluded from that.
    """
    argv = ["sinfo", "--local", "--all", "--exact", "--Node", "-O", _NODES.format]
    answer = polls.ask("sinfo", argv, fresh=fresh, max_age_s=max_age_s, patience_s=patience_s)
    rows: dict[str, list[Row]] = {}
    for row in _NODES.read(answer.text).rows:
        rows.setdefault(row["NodeList"], []).append(row)
    return Nodes(
        age_s=answer.age_s, nodes={name: _node(name, of_it) for name, of_it in rows.items()}
    )


def parse_state(text: str) -> tuple[str, frozenset[str]]:
    """Takes a state apart: ``down*``, ``idle~``, ``mixed+drain``, ``IDLE+CLOUD+POWERED_DOWN``.

    Returns:
        Base state and flags in lower case; ``unknown`` and the text as a flag if it is no state.
    """
    found = _STATE.fullmatch(text.strip())
    if found is None:
        return "unknown", frozenset({text.strip().lower()} - {""})
    flags = frozenset(_FLAG_BY_SIGN.get(flag, flag[1:].lower()) for flag in _FLAG.findall(found[2]))
    return found[1].lower(), flags


def parse_gres(text: str) -> dict[str, int] | None:
    """Reads ``gpu:a100:3(S:0-1),gpu:v100:1,shard:8`` or ``gpu:a100:2(IDX:0-1)``.

    Returns:
        Counts by name, or by ``name:type``; empty where there are none, None where it was not
        understood.
    """
    plain = re.sub(r"\([^()]*\)", "", text) if text.strip() != "(null)" else ""
    counts: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in plain.split(","))):
        found = _GRES.fullmatch(part)
        if found is None:
            return None
        name = found["name"] + (f":{found['type']}" if found["type"] else "")
        counts[name] = counts.get(name, 0) + int(found["count"])
    return counts


def gpus_in(counts: dict[str, int] | None) -> int | None:
    """GPUs of any type among counted resources; None where these are not known."""
    if counts is None:
        return None
    return sum(count for name, count in counts.items() if name.partition(":")[0] == "gpu")


def _node(name: str, rows: list[Row]) -> Node:
    """One node from its rows, one for each of its partitions."""
    if not name:
        raise NoAnswerError("sinfo", "it lists a node without a name")
    row = rows[0]
    state, flags = parse_state(row["StateLong"])
    partitions = {row["PartitionName"] for row in rows} - {""}
    return Node(
        name=name,
        state=state,
        flags=flags,
        partitions=tuple(sorted(partitions)),
        cpus=count_or_none(row["CPUs"]),
        memory_mib=count_or_none(row["Memory"]),
        gres=parse_gres(row["Gres"]),
        gres_used=parse_gres(row["GresUsed"]),
        reason=text_or_none(row["Reason"]),
    )
