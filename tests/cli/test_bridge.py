"""``bridge``: what it says it saw, what it publishes, and what makes it refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fleetcraft.spool import leases
from fleetcraft.spool.tree import SpoolTree
from tests.cli.conftest import Fleet, environment

REPO = Path(__file__).resolve().parents[2]


def node(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, host: str, gpus: int) -> None:
    """A worker that was heard just now."""
    monkeypatch.setenv("SLURMD_NODENAME", host)
    tree = SpoolTree(str(fleet.spool))
    leases.publish(tree, leases.new_lease(rank="0", interval_s=30.0, gpus=gpus))


def work(fleet: Fleet, count: int) -> None:
    lines = "".join(f"echo {n}\n" for n in range(count)).encode()
    fleet.ok("enqueue", "--spool", "gpu", "--stdin", "-n", "g-{n}", stdin=lines)


def test_a_mixed_fleet_gets_a_pack_for_each_free_gpu(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(fleet, 20)
    for host, gpus in (("n1", 1), ("n2", 2), ("n3", 3)):
        node(fleet, monkeypatch, host, gpus)
    dry = fleet.ok("bridge", "--dry-run", "--json").json
    assert (dry["schema"], dry["dry_run"], dry["add"]) == ("fleetcraft.bridge/1", True, 6)
    assert (dry["published"], dry["names"], fleet.names()) == (0, [], [])
    done = fleet.ok("bridge", "--json").json
    assert (done["free_gpus"], done["pending"], done["published"]) == (6, 12, 6)
    assert sorted(done["names"]) == fleet.names()
    assert {entry["host"]: entry["state"] for entry in done["nodes"]} == {
        "n1": "free",
        "n2": "free",
        "n3": "free",
    }
    again = fleet.ok("bridge", "--json").json
    assert (again["published"], len(again["waiting"])) == (0, 6)
    assert again["reason"] == "no more GPUs are seen free"


def test_it_prints_what_it_saw_and_why_it_added_no_more(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(fleet, 1)
    node(fleet, monkeypatch, "n1", 2)
    node(fleet, monkeypatch, "n2", 0)
    lines = fleet.ok("bridge").out.splitlines()
    assert lines[0] == "  n1: 2 GPUs free (its worker waits for work)"
    assert lines[1].startswith("  n2: GPUs not known unknown")
    assert lines[2] == ("2 GPUs free, 0 packs (0 running, 0 waiting), 1 single-GPU task pending")
    assert lines[3] == "published 1 pack; no more single-GPU tasks are pending"


def test_the_record_starts_this_very_program_by_its_absolute_path(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(fleet, 1)
    node(fleet, monkeypatch, "n1", 1)
    [name] = fleet.ok("bridge", "--json").json["names"]
    record = fleet.record(name)
    assert "#FLEET timed: true\n#FLEET lane: last\n" in record
    [line] = [line for line in record.splitlines() if line.startswith("exec ")]
    program = line.split()[1]
    assert program.startswith("/")
    assert line.endswith("worker --spool gpu --slots gpu --idle 60")
    done = subprocess.run(
        ["bash", "-c", line + " --help"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=environment(),
    )
    assert done.stdout.startswith("Usage: "), done.stderr
    assert program in (sys.executable, str(Path(sys.executable).parent / "fleetcraft"))


@pytest.mark.parametrize("spool", ["outer", "gpu"])
def test_while_a_marker_stands_no_pack_is_published(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, spool: str
) -> None:
    work(fleet, 3)
    node(fleet, monkeypatch, "n1", 2)
    fleet.ok("drain", "--spool", spool)
    told = fleet.ok("bridge", "--json").json
    assert told["published"] == 0
    assert told["reason"].startswith(f"DRAIN stands in the {'inner' if spool == 'gpu' else spool}")


def test_the_cap_is_a_setting(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    work(fleet, 9)
    node(fleet, monkeypatch, "n1", 8)
    monkeypatch.setenv("FLEET_PACK_BRIDGES", "2")
    told = fleet.ok("bridge", "--json").json
    assert (told["published"], told["reason"]) == (2, "the cap of 2 is reached")


def test_the_projects_grid_is_bound_before_the_first_pack_can_take_anything(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ("enqueue", "--spool", "gpu", "--lane", "last", "-n", "panel", "true")
    fleet.ok(*call[:-2], "other", "true")  # before there was a grid
    digest = fleet.ok(*call, "--freeze-grid").out.strip()
    node(fleet, monkeypatch, "n1", 2)
    monkeypatch.setenv("FLEET_PACK_LAST_GRID", "0" * 64)
    assert fleet("bridge").code == 5
    monkeypatch.setenv("FLEET_PACK_LAST_GRID", digest)
    # Invented work counts for nothing.
    assert fleet.ok("bridge", "--json").json["pending"] == 0
    monkeypatch.delenv("FLEET_PACK_LAST_GRID")
    fleet.ok(*call)
    assert fleet.ok("bridge", "--json").json["pending"] == 1


def test_without_an_inner_spool_it_refuses(fleet: Fleet) -> None:
    (fleet.root / "taskq_gpu/pending/last").rmdir()
    assert fleet("bridge").code == 5
