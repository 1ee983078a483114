"""Nodes are read in every version's words; what is not understood is unknown, never idle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.errors import NoAnswerError, SchedulerError
from fleetcraft.slurm.nodes import Node, node_states, parse_gres, parse_state
from fleetcraft.slurm.polls import Polls
from tests.slurm.cluster import Cluster
from tests.slurm.fakes import FakePrograms, recorded


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    return FakePrograms(tmp_path, monkeypatch)


@pytest.fixture
def polls(tmp_path: Path) -> Polls:
    return Polls(str(tmp_path / "polls"), interval_s=0)


def nodes_of(version: str, name: str, fakes: FakePrograms, polls: Polls) -> dict[str, Node]:
    fakes.says("sinfo", recorded(version, name))
    return node_states(polls).nodes


def test_recorded_nodes_are_read(fakes: FakePrograms, polls: Polls) -> None:
    nodes = nodes_of("22.05", "sinfo-nodes", fakes, polls)

    assert nodes["n1"] == Node(
        name="n1",
        state="allocated",
        flags=frozenset(),
        partitions=("hid", "main"),
        cpus=2,
        memory_mib=1000,
        gres={"gpu:a100": 2},
        gres_used={"gpu:a100": 1},
        reason=None,
    )
    assert (nodes["n2"].state, nodes["n2"].gpus, nodes["n2"].gpus_used) == ("idle", 2, 0)


def test_a_recorded_dead_node_is_down_and_a_drained_one_is_not(
    fakes: FakePrograms, polls: Polls
) -> None:
    nodes = nodes_of("22.05", "sinfo-nodes-drained-and-down", fakes, polls)

    assert (nodes["n1"].is_down, nodes["n1"].flags) == (True, {"not_responding"})
    assert nodes["n1"].reason == "Not responding"
    assert (nodes["n2"].is_down, nodes["n2"].state) == (False, "drained")
    assert nodes["n2"].reason == "disk | bad"


def test_states_with_signs_are_taken_apart(fakes: FakePrograms, polls: Polls) -> None:
    nodes = nodes_of("21.08", "sinfo-nodes", fakes, polls)

    assert {name: (node.state, set(node.flags)) for name, node in nodes.items()} == {
        "c01": ("idle", {"powered_down"}),
        "c02": ("mixed", {"planned"}),
        "c03": ("allocated", {"powering_up"}),
        "c04": ("down", {"powering_down"}),
        "c05": ("reserved", set()),
        "c06": ("drained", {"not_responding"}),
        "c07": ("failing", {"not_responding"}),
        "c08": ("unknown", {"?"}),
    }
    assert nodes["c06"].gres == {"gpu:v100": 2, "gpu:a100": 2}
    assert (nodes["c06"].gpus, nodes["c06"].gpus_used) == (4, 1)
    assert (nodes["c07"].gres, nodes["c07"].gpus) == ({}, 0)


def test_newer_states_and_resources_are_read_or_unknown(fakes: FakePrograms, polls: Polls) -> None:
    nodes = nodes_of("24.05", "sinfo-nodes", fakes, polls)

    assert {name: (node.state, set(node.flags)) for name, node in nodes.items()} == {
        "gh001": ("allocated", set()),
        "gh002": ("mixed", {"drain"}),
        "gh003": ("idle", {"cloud", "powered_down"}),
        "gh004": ("blocked", set()),
        "gh005": ("idle", set()),
        "gh006": ("down", {"maintenance"}),
        "gh007": ("inval", set()),
    }
    assert nodes["gh001"].partitions == ("dev", "main")
    assert nodes["gh002"].gres == {"gpu:gh200": 1, "shard:gh200": 8}
    assert nodes["gh002"].gres_used == {"gpu:gh200": 1, "shard:gh200": 3}
    # Not understood is not "none".
    assert (nodes["gh005"].gres, nodes["gh005"].gpus, nodes["gh005"].gpus_used) == (None,) * 3
    assert (nodes["gh006"].cpus, nodes["gh006"].memory_mib) == (None, None)


@pytest.mark.parametrize(
    ("text", "state", "flags"),
    [
        ("down*", "down", {"not_responding"}),
        ("IDLE*+DRAIN", "idle", {"not_responding", "drain"}),
        ("idle@", "idle", {"reboot_requested"}),
        ("idle^", "idle", {"reboot_issued"}),
        ("completing!", "completing", {"power_down"}),
        ("power_up", "power_up", set()),
        ("", "unknown", set()),
        ("down *", "unknown", {"down *"}),
        ("idle;rm", "unknown", {"idle;rm"}),
    ],
)
def test_a_state_is_a_base_and_flags(text: str, state: str, flags: set[str]) -> None:
    assert parse_state(text) == (state, flags)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("(null)", {}),
        ("", {}),
        ("gpu:2", {"gpu": 2}),
        ("gpu:a100:3(S:0-1)", {"gpu:a100": 3}),
        ("gpu:nvidia_a100-sxm4-80gb:4(IDX:0,2-3)", {"gpu:nvidia_a100-sxm4-80gb": 4}),
        ("gpu:1g.5gb:7", {"gpu:1g.5gb": 7}),
        ("gpu:a100:1,gpu:a100:1", {"gpu:a100": 2}),
        ("gpu:a100:0(IDX:N/A),mps:100", {"gpu:a100": 0, "mps": 100}),
        ("gpu", None),
        ("gpu:2K", None),
        ("gpu:-1", None),
    ],
)
def test_resources_are_counted_or_not_known(text: str, counts: dict[str, int] | None) -> None:
    assert parse_gres(text) == counts


@pytest.mark.parametrize("body", ["", "exit 1", "echo 'NODELIST STATE'"])
def test_an_answer_that_is_none_is_never_a_cluster_without_nodes(
    body: str, fakes: FakePrograms, polls: Polls
) -> None:
    fakes.write("sinfo", body)

    with pytest.raises(SchedulerError):
        node_states(polls)


def test_a_node_without_a_name_makes_the_whole_no_answer(fakes: FakePrograms, polls: Polls) -> None:
    fakes.says("sinfo", recorded("22.05", "sinfo-nodes").replace("n2\x1f", "\x1f"))

    with pytest.raises(NoAnswerError, match="without a name"):
        node_states(polls)


def test_real_nodes_are_listed_and_a_drained_one_is_seen(
    cluster: Cluster, polls: Polls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(cluster.env))
    job_id = cluster.submit("--nodes=1", "--nodelist=n1", "--gres=gpu:1", script="sleep 600")
    cluster.wait_for_job(job_id, "RUNNING")
    can_drain = os.geteuid() == 0
    if can_drain:
        cluster.run("scontrol", "update", "nodename=n4", "state=drain", "reason=disk | bad")

    nodes = node_states(polls).nodes

    if can_drain:
        cluster.run("scontrol", "update", "nodename=n4", "state=resume")
        assert (nodes["n4"].state, nodes["n4"].reason) == ("drained", "disk | bad")
    assert sorted(nodes) == cluster.nodes
    assert (nodes["n1"].gpus, nodes["n1"].gpus_used) == (2, 1)
    assert nodes["n1"].state in ("mixed", "allocated")
    assert (nodes["n2"].state, nodes["n2"].gpus, nodes["n2"].gpus_used) == ("idle", 2, 0)
    assert nodes["n2"].reason is None
    assert "main" in nodes["n2"].partitions
    assert nodes["n2"].cpus is not None
    assert nodes["n2"].memory_mib is not None
