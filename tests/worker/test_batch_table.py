"""Tasks of a family get the frozen batch, or stay pending where the table does not fit the node.

The Python of the tasks is played by a program that prints what `fleetcraft.calibration.stack`
would; the device is this machine's CPU, or a GPU of the driver rig.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.batch_table import Table, make_table, write_table
from fleetcraft.layout import Scratch
from fleetcraft.spool.store import Spool
from tests.batch_table.rows import ROW, changed
from tests.rig.build import NoCompiler
from tests.rig.rig import Rig
from tests.worker.harness import Running, Site, wait_until

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
CPU = "cpu Test 9000"
FITS = changed(
    ROW, device__name=CPU, device__mem_mib=None, stack__alloc="", stack__sdpa="flash", batch=4
)
SAY = 'echo "[${FLEET_BATCH-none} ${FLEET_BATCH_HASH-none} ${FLEET_BATCH_TABLE-none}]"'


@pytest.fixture(autouse=True)
def no_allocator_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)


def table_path(site: Site) -> str:
    return Scratch(str(site.root)).batch_table


def freeze(site: Site, **families: Any) -> Table:
    """Writes a table; ``__`` in a name stands for ``/``."""
    table = make_table({name.replace("__", "/"): row for name, row in families.items()})
    write_table(table_path(site), table)
    return table


def told_by(site: Site, text: str, name: str = "python") -> str:
    """The Python of the tasks: it prints this, and counts how often it was asked."""
    program = site.base / name
    program.write_text(f"#!/bin/sh\necho asked >> {site.base}/asked\ncat <<'END'\n{text}\nEND\n")
    program.chmod(0o700)
    return str(program)


def stack(**changes: Any) -> str:
    usual = {"device": CPU, "device_mem_mib": None, "torch": "2.13.0", "sdpa": "flash", "alloc": ""}
    return json.dumps({**usual, **changes})


def obeying(site: Site, text: str = "", **settings: Any) -> dict[str, Any]:
    python = told_by(site, text or stack())
    return {"batch_table": table_path(site), "batch_python": python, "env": NO_GPU, **settings}


def notes(worker: Running) -> str:
    return "\n".join(event["text"] for event in worker.events("note"))


@pytest.mark.parametrize("slots", ["1", "2"])
def test_a_task_of_a_frozen_family_gets_its_batch(site: Site, slots: str) -> None:
    table = freeze(site, demo__a=FITS)
    site.enqueue("plain", SAY, family="demo/a")
    site.enqueue("timed", SAY, family="demo/a", timed="true")
    site.enqueue("again", SAY, family="demo/a")
    site.enqueue("other", SAY, family="demo/b")
    site.enqueue("none", SAY)
    env = {**NO_GPU, "FLEET_BATCH": "9", "FLEET_BATCH_HASH": "x", "FLEET_BATCH_TABLE": "/x"}
    site.work(**obeying(site, slots=slots, env=env))
    place = table_path(site)
    assert site.log("plain") == site.log("again") == f"[4 {table.hash} {place}]\n"
    assert site.log("timed") == f"[1 {table.hash} {place}]\n"
    assert site.log("other") == site.log("none") == f"[none none {place}]\n"
    assert (site.base / "asked").read_text() == "asked\n"


def test_nothing_is_asked_where_no_row_is_wanted(site: Site) -> None:
    freeze(site, demo=FITS)
    site.enqueue("none", SAY)
    site.enqueue("other", SAY, family="unknown")
    worker = site.start(**obeying(site))
    worker.wait()
    assert site.state("none") == site.state("other") == "done"
    assert not (site.base / "asked").exists()
    assert notes(worker) == notes(worker).replace("passed over", "")


def test_without_a_table_a_family_is_a_word(site: Site) -> None:
    site.enqueue("one", SAY, family="demo")
    site.work(env={"FLEET_BATCH": "9", "FLEET_BATCH_TABLE": "/x"})
    assert site.log("one") == "[none none none]\n"


WRONG = {
    "device.name": {"device__name": "cpu Other"},
    "device.mem_mib": {"device__mem_mib": 97871},
    "stack.torch": {"stack__torch": "2.12.0"},
    "stack.sdpa": {"stack__sdpa": "math"},
    "stack.alloc": {"stack__alloc": "expandable_segments:True"},
}


@pytest.mark.parametrize("require", [False, True])
def test_a_row_for_something_else_leaves_its_tasks_pending_and_names_the_field_once(
    site: Site, require: bool
) -> None:
    rows = {f"f{n}": changed(FITS, **change) for n, change in enumerate(WRONG.values())}
    freeze(site, **rows)
    tasks = [(f"{family}-{n}", family) for family in rows for n in range(2)]
    for name, family in tasks:
        site.enqueue(name, "touch ran", family=family)
    site.enqueue("plain", "true")
    worker = site.start(**obeying(site, batch_require=require))
    worker.wait()
    assert {site.state(name) for name, _ in tasks} == {"pending"}
    assert site.state("plain") == "done"
    said = notes(worker)
    assert [field for field in WRONG if said.count(f"{field}: ") != 1] == []
    assert not site.file("ran").exists()


def test_the_workers_own_allocator_settings_are_those_of_its_tasks(site: Site) -> None:
    freeze(site, demo=changed(FITS, stack__alloc="expandable_segments:True"))
    site.enqueue("one", SAY, family="demo")
    env = {**NO_GPU, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    site.work(**obeying(site, env=env))
    assert site.log("one").startswith("[4 ")


def test_a_gpu_that_differs_is_named(site: Site) -> None:
    try:
        rig = Rig(site.base, settings={"gpu.0.name": "NVIDIA GH200 480GB"})
    except NoCompiler as missing:
        pytest.skip(str(missing))
    with rig:
        rig.set("count", 1)
        rig.set("gpus", 1)
        rig.set("gpu.0.mem_total_mib", 97871)
        row = changed(FITS, device__name="NVIDIA GH200 480GB", device__mem_mib=97871)
        freeze(site, right=row, small=changed(row, device__mem_mib=97870), cpu=FITS)
        for family in ("right", "small", "cpu"):
            site.enqueue(family, SAY, family=family)
        worker = site.start(**obeying(site, env=rig.env()))
        worker.wait()
    assert site.log("right").startswith("[4 ")
    assert site.state("small") == site.state("cpu") == "pending"
    assert "device.mem_mib: found 97871, frozen for 97870" in notes(worker)
    assert f"device.name: found 'NVIDIA GH200 480GB', frozen for {CPU!r}" in notes(worker)


@pytest.mark.parametrize("require", [False, True])
def test_an_edited_table_gives_nobody_a_batch_until_it_is_right_again(
    site: Site, require: bool
) -> None:
    freeze(site, demo=FITS)
    path = Path(table_path(site))
    right = path.read_text()
    path.write_text(right.replace("batch: 4", "batch: 8"))
    site.enqueue("one", SAY, family="demo")
    site.enqueue("other", SAY, family="unknown")
    worker = site.start(**obeying(site, batch_require=require, idle_s=60.0))
    wait_until(lambda: "hash" in notes(worker), "a note that names the hash")
    assert site.state("one") == site.state("other") == "pending"
    path.write_text(right)
    site.await_state("one", "done")
    if require:
        wait_until(lambda: "family 'unknown'" in notes(worker), "a note that names the family")
    else:
        site.await_state("other", "done")
    worker.signal(signal.SIGTERM)
    worker.wait()
    assert site.log("one").startswith("[4 ")
    assert site.state("other") == ("pending" if require else "done")


def test_a_row_that_is_frozen_later_lets_waiting_tasks_go(site: Site) -> None:
    site.enqueue("one", SAY, family="demo")
    worker = site.start(**obeying(site, batch_require=True, idle_s=60.0))
    wait_until(lambda: "no batch table" in notes(worker), "a note that there is no table")
    freeze(site, demo=changed(FITS, stack__sdpa="math"))
    wait_until(lambda: "stack.sdpa: found 'flash'" in notes(worker), "a note of the stack")
    table = freeze(site, demo=FITS)
    site.await_state("one", "done")
    worker.signal(signal.SIGTERM)
    worker.wait()
    assert site.log("one") == f"[4 {table.hash} {table_path(site)}]\n"


def test_a_missing_row_stays_pending_only_where_the_project_requires_one(site: Site) -> None:
    freeze(site, demo__a=FITS)
    site.enqueue("one", SAY, family="demo")
    worker = site.start(**obeying(site, batch_require=True))
    worker.wait()
    assert site.state("one") == "pending"
    assert "family 'demo' has no row" in notes(worker)
    site.work(**obeying(site))
    assert site.log("one").startswith("[none none ")


def test_a_run_ends_though_tasks_are_passed_over(site: Site) -> None:
    freeze(site, demo=changed(FITS, device__name="cpu Other"))
    site.enqueue("one", SAY, family="demo")
    site.enqueue("two", SAY)
    report = site.drain(workers=2, **obeying(site))
    assert (report["done"], report["left"]) == (1, {"waiting": 0, "pending": 1, "running": 0})


# -- what cannot be known


NO_TORCH = json.dumps({"torch": "", "device": CPU, "error": "No module named 'torch'"})


def test_without_torch_to_ask_the_stack_is_left_to_the_task(site: Site) -> None:
    freeze(site, demo=changed(FITS, stack__torch="2.0.0", stack__sdpa="cudnn"))
    site.enqueue("one", SAY, family="demo")
    worker = site.start(**obeying(site, NO_TORCH))
    worker.wait()
    assert site.log("one").startswith("[4 ")
    assert "compared by the tasks alone" in notes(worker)


def test_where_a_row_is_required_a_stack_that_cannot_be_asked_is_no_match(site: Site) -> None:
    freeze(site, demo=FITS)
    site.enqueue("one", SAY, family="demo")
    worker = site.start(**obeying(site, NO_TORCH, batch_require=True))
    worker.wait()
    assert site.state("one") == "pending"
    assert "stack.torch: cannot be checked" in notes(worker)


def test_a_python_that_is_not_there_is_named_and_the_run_ends(site: Site) -> None:
    freeze(site, demo=FITS)
    site.enqueue("one", SAY, family="demo")
    nowhere = str(site.base / "nowhere")
    worker = site.start(workers=1, **obeying(site, batch_python=nowhere))
    assert worker.report()["left"]["pending"] == 1
    assert "cannot be checked" in notes(worker)
    assert nowhere in notes(worker)


def test_a_failed_question_is_asked_again(site: Site) -> None:
    freeze(site, demo=FITS)
    site.enqueue("one", SAY, family="demo")
    once = site.base / "once"
    program = site.base / "moody"
    program.write_text(f"#!/bin/sh\n[ -e {once} ] || {{ touch {once}; echo broken >&2; exit 3; }}\n"
                       f"cat <<'END'\n{stack()}\nEND\n")  # fmt: skip
    program.chmod(0o700)
    worker = site.start(**obeying(site, batch_python=str(program), idle_s=30.0))
    site.await_state("one", "done")
    worker.signal(signal.SIGTERM)
    worker.wait()
    assert "ended with status 3: broken" in notes(worker)


def test_a_worker_that_is_told_to_leave_stops_asking(site: Site) -> None:
    freeze(site, demo=FITS)
    site.enqueue("one", SAY, family="demo")
    program = site.base / "stuck"
    program.write_text(f"#!/bin/sh\necho $$ > {site.base}/pid\nexec sleep 600\n")
    program.chmod(0o700)
    worker = site.start(**obeying(site, batch_python=str(program)))
    pid_file = site.base / "pid"
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip(), "it asks")
    pid = int(pid_file.read_text())
    worker.signal(signal.SIGTERM)
    worker.wait()
    assert not Path(f"/proc/{pid}").exists()
    assert site.state("one") == "pending"


# -- batches by hand


@pytest.mark.parametrize("name", ["FLEET_BATCH", "FLEET_BATCH_TABLE", "FLEET_BATCH_HASH"])
def test_an_env_file_that_sets_a_batch_fails_the_launch(site: Site, name: str) -> None:
    site.file("hand.env").write_text(f"{name}=8\n")
    site.enqueue("one", "touch ran", env_file="hand.env")
    site.work()
    assert site.outcomes("one") == ["launch_failed"]
    assert "sets the batch by hand" in site.last("one").reason
    assert name in site.last("one").reason
    assert not site.file("ran").exists()


def test_an_env_file_that_changes_the_allocator_fails_the_launch(site: Site) -> None:
    freeze(site, demo=FITS)
    site.file("fine.env").write_text("A=1\n")
    site.file("alloc.env").write_text("PYTORCH_CUDA_ALLOC_CONF=backend:native\n")
    site.enqueue("fine", SAY, family="demo", env_file="fine.env")
    site.enqueue("one", "touch ran", family="demo", env_file="alloc.env")
    site.enqueue("free", "true", env_file="alloc.env")
    site.work(**obeying(site))
    assert site.log("fine").startswith("[4 ")
    assert site.outcomes("one") == ["launch_failed"]
    assert "stack.alloc" in site.last("one").reason
    assert site.state("free") == "done"


# -- packs


def test_in_a_pack_the_same_table_rules(site: Site) -> None:
    table = freeze(site, demo=FITS, other=changed(FITS, stack__sdpa="math"))
    elsewhere = site.base / "elsewhere.yaml"
    Path(table_path(site)).rename(elsewhere)
    inner = Spool.create(Scratch(str(site.root)).inner, project_dir=str(site.project))
    inner.enqueue("in", SAY, family="demo")
    inner.enqueue("out", SAY, family="other")
    pack = f"{sys.executable} -m fleetcraft worker --spool gpu --idle 0.3"
    site.enqueue("pack", pack, timed="true")
    site.work(**obeying(site, batch_table=str(elsewhere)))
    assert site.state("pack") == "done"
    log = Path(inner.tree.paths.log("in", 1)).read_text()
    assert log == f"[4 {table.hash} {elsewhere}]\n"
    assert inner.show("out").state.value == "pending"
    assert "stack.sdpa: found 'flash', frozen for 'math'" in site.log("pack")
