"""Packs: an outer task that has its node alone and gives each of its GPUs a slot.

The outer workers, the packs, their keepers and tasks are all real processes; a node is what
SLURMD_NODENAME says, and its GPUs are the entries of CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.fleet.bridges import pack_command
from fleetcraft.identity import this_host
from fleetcraft.spool.store import Spool
from fleetcraft.worker.pack import is_pack
from fleetcraft.worker.survivors import stop_survivors
from tests.worker.harness import (
    ESCAPED,
    Running,
    Site,
    children,
    command_line,
    processes_with,
    python,
    wait_until,
)

NODES = {"n1": "4", "n2": "0,1", "n3": "GPU-aa,GPU-bb,GPU-cc"}
SPAN = """
from=$(cut -d' ' -f1 /proc/uptime); sleep {seconds}
echo "$SLURMD_NODENAME {kind} $from $(cut -d' ' -f1 /proc/uptime)" >> spans
"""


class Packs:
    """A site with an inner spool and packs that drain it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.inner = Spool.create(str(site.root / "taskq_gpu"), project_dir=str(site.project))

    def pack(self, name: str, *, idle_s: float = 0.5, timed: bool = True, wrap: str = "") -> None:
        program = [sys.executable, "-m", "fleetcraft"]
        command = pack_command(program, str(self.site.root), self.inner.root, idle_s=idle_s)
        if wrap:
            command = wrap.format(command=command.removeprefix("exec "))
        self.site.enqueue(name, command, timed=timed, lane="last")

    def gpu_tasks(self, command: str, *names: str, **directives: Any) -> None:
        specs = [self.inner.spec(name, command, **directives) for name in names]
        self.inner.enqueue_many(specs)

    def outer_worker(self, host: str = "n1", gpus: str = "0,1", **settings: Any) -> Running:
        env = {
            "SLURMD_NODENAME": host,
            "CUDA_VISIBLE_DEVICES": gpus,
            "FLEET_WORKER_HEARTBEAT_S": "1",  # of the pack
        }
        return self.site.start(env=env, **settings)

    def outcomes(self, name: str) -> list[str]:
        return [line.outcome.value for line in self.inner.show(name).record.history]

    def last(self, name: str) -> Any:
        return self.inner.show(name).record.history[-1]


@pytest.fixture
def packs(site: Site) -> Iterator[Packs]:
    yield Packs(site)
    for host in NODES:
        _forget_gate(site, host)


def _gate_file(site: Site, host: str, kind: str) -> str:
    key = hashlib.sha256(f"{os.path.realpath(site.root)}\n{host}".encode()).hexdigest()[:24]
    return f"/dev/shm/fleetcraft-{os.geteuid()}/{key}.{kind}"


def _forget_gate(site: Site, host: str) -> None:
    for kind in ("turnstile", "room"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_gate_file(site, host, kind))


def processes_of(site: Site, task: str) -> set[int]:
    """Processes of a task; another test may have one of the same name at this moment."""
    mine = processes_with("FLEET_ROOT", str(site.root))
    return set(mine).intersection(processes_with("FLEET_TASK", task))


def somebody_waits_for_the_node(site: Site) -> bool:
    with open(_gate_file(site, "n1", "turnstile"), "rb") as turnstile:
        try:
            fcntl.flock(turnstile, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def spans(site: Site) -> list[tuple[str, str, float, float]]:
    words = [line.split() for line in site.lines("spans")]
    return [(host, kind, float(begin), float(end)) for host, kind, begin, end in words]


def kinds_that_shared_a_node(site: Site) -> set[tuple[str, str]]:
    shared = set()
    for one, other in itertools.combinations(spans(site), 2):
        # A hundredth is what /proc/uptime counts in.
        if one[0] == other[0] and one[2] < other[3] - 0.011 and other[2] < one[3] - 0.011:
            shared.add(tuple(sorted((one[1], other[1]))))
    return shared  # type: ignore[return-value]


# -- slots and GPUs


def test_each_gpu_of_mixed_nodes_gets_one_slot_and_each_slot_one_stream(packs: Packs) -> None:
    site = packs.site
    # So long that every slot of every pack has to take one.
    command = (
        'echo "$FLEET_PHYSICAL_SLOT|$CUDA_VISIBLE_DEVICES|$FLEET_STREAM|$FLEET_OUTER_OWNER" >> ran'
        "; touch begun-$FLEET_TASK; until [ $(ls begun-* | wc -l) = 6 ]; do sleep 0.02; done"
    )
    packs.gpu_tasks(command, *(f"t{n}" for n in range(6)))
    for number, host in enumerate(NODES):
        packs.pack(f"pack-{number}")
        packs.outer_worker(host, NODES[host], idle_s=2.0)
    for worker in site.started:
        assert worker.wait() == 0, worker.said()
    assert packs.inner.counts()["done"] == 6
    ran = [line.split("|") for line in site.lines("ran")]
    expected = {f"{host}/{gpu}" for host, gpus in NODES.items() for gpu in gpus.split(",")}
    assert {physical for physical, *_ in ran} == expected
    # The task sees its own GPU alone, as cuda:0.
    assert all(physical.endswith(f"/{visible}") for physical, visible, *_ in ran)
    assert len({stream for _, _, stream, _ in ran}) == 6
    assert {outer for *_, outer in ran} == {site.last(f"pack-{n}").owner for n in range(3)}


def test_streams_differ_from_pack_to_pack_on_the_same_gpu(packs: Packs) -> None:
    packs.gpu_tasks("echo $FLEET_PHYSICAL_SLOT $FLEET_STREAM >> streams", "a", "b")
    for number in range(2):
        packs.pack(f"pack-{number}", idle_s=0.2)
    worker = packs.outer_worker(gpus="7")
    worker.wait()
    packs.gpu_tasks("echo $FLEET_PHYSICAL_SLOT $FLEET_STREAM >> streams", "c")
    packs.pack("pack-2", idle_s=0.2)
    packs.outer_worker(gpus="7").wait()
    found = {tuple(line.split()) for line in packs.site.lines("streams")}
    assert {slot for slot, _ in found} == {"n1/7"}
    assert len(found) == 2


def test_a_long_task_does_not_strand_the_other_slots(packs: Packs) -> None:
    packs.gpu_tasks("until [ $(ls short-* | wc -l) = 5 ]; do sleep 0.02; done", "a-long")
    packs.gpu_tasks("touch short-$FLEET_TASK", *(f"b{n}" for n in range(5)))
    packs.pack("pack")
    packs.outer_worker().wait()
    assert packs.inner.counts()["done"] == 6


def test_a_pack_that_finds_no_work_leaves_and_another_task_gets_the_node(packs: Packs) -> None:
    packs.pack("pack-surplus", idle_s=0.3)
    packs.site.enqueue("after", "touch after", lane="last")
    worker = packs.outer_worker(gpus="0,1,2")
    assert worker.wait() == 0
    assert packs.site.outcomes("pack-surplus") == ["completed"]
    assert "nothing to claim for 0.3 s" in packs.site.log("pack-surplus")


# -- the node alone


def test_with_one_slot_whole_nodes_and_packs_take_turns(packs: Packs) -> None:
    site = packs.site
    packs.gpu_tasks(SPAN.format(kind="gpu", seconds=0.2), *(f"g{n}" for n in range(8)))
    for n in range(4):
        site.enqueue(f"node-{n}", SPAN.format(kind="node", seconds=0.2))
        packs.pack(f"pack-{n}", idle_s=0.2)
    workers = [packs.outer_worker(host, idle_s=1.0) for host in ("n1", "n2")]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert len(spans(site)) == 12
    assert ("gpu", "gpu") in kinds_that_shared_a_node(site)
    assert not any("node" in pair for pair in kinds_that_shared_a_node(site))


@pytest.mark.parametrize("timed", [True, False], ids=["timed", "made by hand"])
def test_with_several_outer_slots_a_pack_still_has_its_node_alone(
    packs: Packs, timed: bool
) -> None:
    site = packs.site
    packs.gpu_tasks(SPAN.format(kind="gpu", seconds=0.3), *(f"g{n}" for n in range(6)))
    # In the middle of the others, which run beside one another.
    for n in range(7):
        site.enqueue(f"node-{n}", SPAN.format(kind="node", seconds=0.3))
    for n in (2, 3):
        program = [sys.executable, "-m", "fleetcraft"]
        command = pack_command(program, str(site.root), packs.inner.root, idle_s=0.3)
        site.enqueue(f"node-{n}-pack", command, timed=timed)
    worker = packs.outer_worker(slots="3", idle_s=1.5)
    assert worker.wait() == 0, worker.said()
    assert site.counts()["failed"] == 0
    shared = kinds_that_shared_a_node(site)
    assert ("node", "node") in shared
    assert ("gpu", "gpu") in shared
    assert ("gpu", "node") not in shared
    assert packs.inner.counts()["done"] == 6


def test_a_pack_made_by_hand_gives_way_to_who_waits_for_the_node_already(packs: Packs) -> None:
    site = packs.site
    site.enqueue("a-long", "touch long; until [ -e go ]; do sleep 0.02; done")
    # It starts beside the long one, and when it wants the node alone another one waits for that.
    wait = "touch pack; until [ -e waited-for ]; do sleep 0.02; done; exec {command}"
    packs.pack("b-pack", timed=False, wrap=wait)
    worker = packs.outer_worker(slots="3", idle_s=0.2)
    wait_until(site.file("pack").exists, "both run")
    site.enqueue("c-timed", "touch alone", timed=True)
    wait_until(lambda: somebody_waits_for_the_node(site), "the timed one is next")
    site.file("waited-for").touch()
    wait_until(lambda: site.outcomes("b-pack"), "the pack has given way")
    assert site.outcomes("b-pack") == ["interrupted"]
    assert not site.file("alone").exists()
    site.file("go").touch()
    worker.wait()
    packs.outer_worker(idle_s=3.0).wait()
    assert site.outcomes("c-timed") == ["completed"]
    assert site.outcomes("b-pack") == ["interrupted", "completed"]


# -- the end of a pack


def escape(file: str, *, wiped: bool) -> str:
    """Leaves a process that ignores TERM, twice forked away, with or without its environment."""
    code = f"env -i {python(ESCAPED)} {file}" if wiped else f"{python(ESCAPED)} {file}"
    return f"{code}\nuntil [ -s {file} ]; do sleep 0.02; done"


def escaping(
    packs: Packs,
    count: int,
    *,
    kinds: tuple[str, ...] = ("known", "wiped"),
    then: str = "exec sleep 60",
) -> list[int]:
    """Enqueues tasks that let processes escape and run on; gives the escaped pids."""
    for n in range(count):
        files = [f"escaped-{n}-{kind}" for kind in kinds]
        text = "\n".join(escape(file, wiped=file.endswith("wiped")) for file in files)
        packs.gpu_tasks(f"[ $FLEET_ATTEMPT = 1 ] || exit 0\n{text}\n{then}", f"t{n}")
    files = [f"escaped-{n}-{kind}" for n in range(count) for kind in kinds]
    return [int(packs.site.await_lines(file)[0]) for file in files]


# A process that ends gives up its memory, and with it its command line, before its files, which
# hold the gate; until it is a zombie its state says that it runs, on a busy machine for long.
LOOK = """
for pid in {pids}; do
  [ -z "$(tr -d '\\0' 2> /dev/null < /proc/$pid/cmdline)" ] || echo $pid >> seen_alive
done
touch looked
"""


def runs(pid: int) -> bool:
    """Whether it could still do anything; see above."""
    return bool(command_line(pid))


def test_nothing_of_a_pack_is_left_when_it_is_killed(packs: Packs) -> None:
    site = packs.site
    packs.pack("pack", idle_s=60.0)
    worker = packs.outer_worker(grace_s=1.0)
    escaped = escaping(packs, 2)
    [pack] = children(worker.pid)
    assert b"fleetcraft" in command_line(pack)
    keepers = children(pack)
    # The next task of the node looks whether anything is left as soon as it gets it.
    site.enqueue("z-next", LOOK.format(pids=" ".join(map(str, escaped))), lane="last")
    os.kill(pack, signal.SIGKILL)
    wait_until(site.file("looked").exists, "the node was given on")
    worker.wait()
    assert not any(map(runs, [*escaped, *keepers]))
    assert site.lines("seen_alive") == []
    assert site.outcomes("pack") == ["failed"]
    assert site.last("pack").signal == signal.SIGKILL


def test_nothing_of_a_pack_is_left_when_one_of_its_keepers_was_killed(packs: Packs) -> None:
    site = packs.site
    packs.pack("pack", idle_s=1.0)
    worker = packs.outer_worker(grace_s=1.0)
    # What has wiped its environment too is not known to be the slot's, but to be the pack's.
    escaped = escaping(packs, 2, kinds=("wiped",), then="until [ -e go ]; do sleep 0.05; done")
    [pack] = children(worker.pid)
    site.enqueue("z-next", LOOK.format(pids=" ".join(map(str, escaped))), lane="last")
    os.kill(children(pack)[0], signal.SIGKILL)
    wait_until(lambda: "lost" in packs.outcomes("t0") + packs.outcomes("t1"), "its task is lost")
    site.file("go").touch()
    assert worker.wait() == 0
    assert not any(map(runs, escaped))
    assert site.lines("seen_alive") == []
    assert packs.inner.counts()["done"] == 2


@pytest.mark.parametrize("pack_too", [False, True], ids=["outer worker", "and the pack"])
def test_the_node_stays_shut_until_nothing_is_left_of_a_pack_without_its_worker(
    packs: Packs, pack_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")  # where recovery is done below
    site = packs.site
    packs.pack("pack", idle_s=60.0)
    worker = packs.outer_worker(grace_s=1.0)
    escaped = escaping(packs, 2)
    [pack] = children(worker.pid)
    site.enqueue("a-next", LOOK.format(pids=" ".join(map(str, escaped))))
    worker.kill()
    if pack_too:
        os.kill(pack, signal.SIGKILL)
    # The next worker of the node is there at once; what holds it back is the gate.
    heir = packs.outer_worker(idle_s=3.0, grace_s=1.0)
    wait_until(site.file("looked").exists, "the node was given on")
    assert site.lines("seen_alive") == []
    assert not any(map(runs, escaped))
    heir.signal(signal.SIGTERM)
    heir.wait()
    for spool in (site.spool, packs.inner):
        spool.recover(stop_survivors=stop_survivors)
        assert spool.counts()["running"] == 0
    assert site.outcomes("pack")[0] == "lost"


def test_a_pack_whose_worker_is_gone_puts_its_tasks_back_and_leaves(packs: Packs) -> None:
    # Nobody else is there to recover anything.
    packs.pack("pack", idle_s=60.0, wrap="{command}; touch went-on; exec true")
    worker = packs.outer_worker()
    packs.gpu_tasks("touch begun-$FLEET_TASK; exec sleep 60", "t0", "t1")
    wait_until(packs.site.file("begun-t1").exists, "it runs")
    worker.kill()
    wait_until(packs.site.file("went-on").exists, "the pack has left")
    wait_until(lambda: not processes_of(packs.site, "pack"), "and its shell")
    assert packs.outcomes("t0") == packs.outcomes("t1") == ["interrupted"]
    assert "the worker around this pack is gone" in packs.last("t0").reason
    assert packs.inner.counts()["pending"] == 2


def test_a_pack_whose_claim_was_taken_leaves(packs: Packs) -> None:
    packs.pack("pack", idle_s=60.0)
    # So long between heartbeats that the outer worker does not see it itself.
    worker = packs.outer_worker(heartbeat_s=300.0)
    packs.gpu_tasks("touch begun; exec sleep 60", "t0")
    wait_until(packs.site.file("begun").exists, "it runs")
    [claim] = Path(packs.site.spool.tree.paths.running).iterdir()
    claim.rename(
        packs.site.spool.tree.paths.finished_record("pack", packs.site.spool.show("pack").state)
    )
    wait_until(lambda: packs.outcomes("t0"), "the task was put back")
    assert packs.outcomes("t0") == ["interrupted"]
    assert "was taken from the worker around it" in packs.last("t0").reason
    worker.signal(signal.SIGTERM)
    worker.wait()


@pytest.mark.parametrize("gpus", ["0", "0,1,2"], ids=["one slot", "keepers"])
def test_tasks_of_a_pack_that_is_stopped_were_interrupted_and_did_not_fail(
    packs: Packs, gpus: str
) -> None:
    # The outer worker ends every process of the pack with one TERM, and all with one KILL later.
    packs.pack("pack", idle_s=60.0)
    worker = packs.outer_worker(gpus=gpus, grace_s=3.0)
    packs.gpu_tasks("touch begun-$FLEET_TASK; exec sleep 60", "mild")
    count = len(gpus.split(","))
    if count > 1:
        stubborn = "trap '' TERM; touch begun-$FLEET_TASK; while true; do sleep 0.1; done"
        packs.gpu_tasks(stubborn, "stubborn")
    names = ["mild", "stubborn"][:count]
    wait_until(lambda: all(packs.site.file(f"begun-{n}").exists() for n in names), "they run")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 143
    assert packs.site.outcomes("pack") == ["interrupted"]
    assert {name: packs.outcomes(name) for name in names} == {n: ["interrupted"] for n in names}
    assert packs.inner.counts()["pending"] == len(names)
    assert packs.inner.check().ok


# -- what a pack inherits


def test_a_pack_claims_nothing_for_which_its_worker_has_no_time_left(packs: Packs) -> None:
    packs.gpu_tasks("touch long", "a-long", time_s=3600)
    packs.gpu_tasks("echo $FLEET_WALLTIME_S >> left", "b-short", time_s=60)
    packs.pack("pack", idle_s=0.3)
    worker = packs.outer_worker(walltime_s=600.0)
    assert worker.wait() == 0
    assert packs.inner.counts()["pending"] == 1
    assert not packs.site.file("long").exists()
    assert 0 < int(packs.site.lines("left")[0]) <= 600


def test_timed_tasks_of_the_inner_spool_are_left_to_whole_nodes(packs: Packs) -> None:
    packs.gpu_tasks("touch timed", "a-timed", timed=True)
    packs.pack("pack", idle_s=0.3)
    packs.outer_worker().wait()
    assert packs.site.outcomes("pack") == ["completed"]
    assert packs.inner.counts()["pending"] == 1


@pytest.mark.parametrize(
    ("owner", "job", "expected"),
    [
        ("8812.0.0.abcdefgh-1", "8812", True),
        ("8812.0.0.abcdefgh-1", "8813", False),  # a job submitted from inside a task
        ("8812.0.0.abcdefgh-1", None, False),
        ("L0.0.0.abcdefgh-1", None, True),
        ("L0.0.0.abcdefgh-1", "8812", False),  # submitted by a task of a machine without Slurm jobs
        (f"{this_host().local_job}.0.0.abcdefgh-1", "8812", True),
        ("", None, False),
        ("strange", "8812", False),
    ],
)
def test_an_environment_that_came_from_another_job_makes_no_pack(
    owner: str, job: str | None, expected: bool
) -> None:
    environ = {"FLEET_OWNER": owner, "FLEET_ROOT": "/scratch/me"}
    if job is not None:
        environ["SLURM_JOB_ID"] = job
    assert is_pack("/scratch/me", environ) is expected
    assert not is_pack("/scratch/other", environ)


# -- lane last


def test_a_worker_runs_nothing_from_a_bound_lane_last_that_is_not_declared(site: Site) -> None:
    declared = site.spool.spec("a-declared", "touch declared", lane="last")
    site.spool.enqueue("b-before", "touch before", lane="last")
    site.spool.bind_grid(site.spool.freeze_grid([declared]))
    site.enqueue("a-declared", "touch declared", lane="last")
    site.enqueue("c-plain", "touch plain")
    # Put there by hand: a record that says nothing of the lane, and a declared name's other text.
    Path(site.spool.show("c-plain").path).rename(
        Path(site.spool.tree.paths.pending) / "last/c-plain.sh"
    )
    worker = site.start()
    report = worker.report()
    assert report["exit_code"] == 0
    assert site.state("a-declared") == "done"
    assert site.state("b-before") == site.state("c-plain") == "pending"
    assert not site.file("before").exists()
    assert not site.file("plain").exists()
    said = " ".join(event["text"] for event in worker.events("note"))
    assert "'b-before' is passed over: it is in lane last, but the frozen grid" in said
    assert shlex.split("declares no task of this name")[0] in said


def test_a_worker_runs_nothing_from_lane_last_when_the_grid_was_changed(site: Site) -> None:
    digest = site.spool.freeze_grid([site.spool.spec("a", "touch ran", lane="last")])
    site.spool.bind_grid(digest)
    site.enqueue("a", "touch ran", lane="last")
    site.enqueue("b-plain", "true")
    path = Path(site.spool.tree.paths.grid(digest))
    path.write_bytes(path.read_bytes() + b"\n")
    worker = site.start()
    worker.report()
    assert site.state("a") == "pending"
    assert site.state("b-plain") == "done"
    assert "was changed" in worker.events("note")[0]["text"]


def test_a_worker_goes_by_the_grid_that_binds_lane_last_now(site: Site) -> None:
    site.spool.enqueue("b", "true", lane="last")
    first, second = (
        site.spool.freeze_grid([site.spool.spec(name, "true", lane="last")]) for name in "ab"
    )
    site.spool.bind_grid(first)
    worker = site.start(idle_s=60.0)
    wait_until(lambda: worker.events("note"), "it has passed the task over")
    site.spool.bind_grid(second, instead_of=first)
    wait_until(lambda: site.state("b") == "done", "it is run after all", limit_s=20.0)
    worker.signal(signal.SIGTERM)
    worker.wait()
