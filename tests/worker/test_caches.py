"""What tasks of real workers are told about caches, what is left of it, and what workers report."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.caches.records import digest
from fleetcraft.caches.resolve import resolve
from tests.worker.harness import Site, wait_until

SHOW = "env | grep -E '^(HF_|TRANSFORMERS_|TRITON_|TORCH)' | sort"
COMPILE = 'mkdir -p "$TRITON_CACHE_DIR/k" && echo s > "$TRITON_CACHE_DIR/k/source" && '
CLEAN = {name: "" for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "TORCH_HOME")}


def told(site: Site, name: str, attempt: int = 1) -> dict[str, str]:
    pairs = (line.partition("=") for line in site.log(name, attempt).splitlines())
    return {key: text for key, sign, text in pairs if sign}


def caches(site: Site, **more: object) -> dict[str, Any]:
    return {"root": str(site.root / "caches"), "local": str(site.base / "local"), **more}


def left(site: Site) -> list[Path]:
    """Files and folders of generated sources that are still there."""
    folder = site.base / "local"
    return sorted(path for path in folder.rglob("*") if "triton" in path.parts)


def test_every_task_is_told_where_models_and_generated_sources_go(site: Site) -> None:
    (site.base / "local").mkdir()
    site.enqueue("a", SHOW)
    site.work(caches=caches(site), env={**CLEAN, "SLURMD_NODENAME": "n7"})
    found = told(site, "a")
    huggingface = f"{site.root}/caches/huggingface"
    assert found["HF_HOME"] == huggingface
    assert found["HF_HUB_CACHE"] == found["TRANSFORMERS_CACHE"] == f"{huggingface}/hub"
    assert found["HF_DATASETS_CACHE"] == f"{huggingface}/datasets"
    local = f"{site.base}/local/fleetcraft-{os.geteuid()}/caches/task"
    assert found["TRITON_CACHE_DIR"].startswith(f"{local}/triton/n7/a/1.")
    assert found["TORCHINDUCTOR_CACHE_DIR"] == f"{local}/inductor/n7-0"


def test_a_worker_without_a_say_tells_nothing(site: Site) -> None:
    site.enqueue("a", SHOW)
    site.work(env={"HF_HOME": "/k", "PATH": os.environ["PATH"]})
    assert told(site, "a").get("TRITON_CACHE_DIR") == os.environ.get("TRITON_CACHE_DIR")
    assert "HF_HUB_CACHE" not in told(site, "a")


def test_what_the_user_has_set_is_exported_as_it_is_meant(site: Site) -> None:
    (site.base / "local").mkdir()
    site.enqueue("a", SHOW)
    env = {**CLEAN, "HF_HOME": "$WHERE/hf", "WHERE": "/known", "TRITON_CACHE_DIR": "/mine"}
    site.work(caches=caches(site), env=env)
    found = told(site, "a")
    assert (found["HF_HOME"], found["HF_HUB_CACHE"]) == ("/known/hf", "/known/hf/hub")
    assert found["TRITON_CACHE_DIR"] == "/mine"


def test_an_env_file_that_moves_a_cache_moves_what_follows_from_it(site: Site) -> None:
    (site.base / "local").mkdir()
    file = site.file("task.env")
    file.write_text("HF_HOME=/of/task\nTORCHINDUCTOR_CACHE_DIR=/graphs\n")
    file.chmod(0o600)
    site.enqueue("a", SHOW, env_file="task.env")
    site.enqueue("b", SHOW)
    site.work(caches=caches(site), env=CLEAN)
    found = told(site, "a")
    assert found["HF_HUB_CACHE"] == "/of/task/hub"
    assert found["TORCHINDUCTOR_CACHE_DIR"] == "/graphs"
    assert "/triton/" in found["TRITON_CACHE_DIR"]
    assert told(site, "b")["HF_HUB_CACHE"] == f"{site.root}/caches/huggingface/hub"


@pytest.mark.parametrize("slots", ["1", "2"])
def test_attempts_share_no_sources_and_a_slots_tasks_share_its_graphs(
    site: Site, slots: str
) -> None:
    (site.base / "local").mkdir()
    command = f"{COMPILE} echo $TRITON_CACHE_DIR $TORCHINDUCTOR_CACHE_DIR >> out; sleep 0.2"
    site.enqueue_all({f"t{n}": command for n in range(4)})
    site.work(caches=caches(site), slots=slots, env=CLEAN)
    lines = [line.split() for line in site.lines("out")]
    assert len({line[0] for line in lines}) == 4
    assert len({line[1] for line in lines}) == int(slots)


def test_two_attempts_of_a_task_share_no_sources(site: Site) -> None:
    (site.base / "local").mkdir()
    command = f'{COMPILE} echo "$TRITON_CACHE_DIR" >> out; exit 1'
    site.enqueue("a", command, retries=1)
    site.work(caches=caches(site), env=CLEAN)
    first, second = site.lines("out")
    assert first != second


@pytest.mark.parametrize(("slots", "end"), [("1", "true"), ("1", "exit 3"), ("2", "kill -9 $$")])
def test_what_an_attempt_has_compiled_goes_when_it_has_ended(
    site: Site, slots: str, end: str
) -> None:
    kept = site.base / "kept"
    kept.mkdir()
    (kept / "weights").write_text("precious")
    (site.base / "local").mkdir()
    site.enqueue("a", f'{COMPILE} ln -s {kept} "$TRITON_CACHE_DIR/link"; touch made; {end}')
    site.work(caches=caches(site), slots=slots, env=CLEAN)
    assert site.file("made").exists()
    assert [path.name for path in left(site) if "a" in path.parts] == []
    assert (kept / "weights").read_text() == "precious"


def test_a_folder_that_the_user_has_set_is_not_removed(site: Site) -> None:
    (site.base / "local").mkdir()
    mine = site.base / "mine"
    site.enqueue("a", f"{COMPILE} true")
    site.work(caches=caches(site), env={**CLEAN, "TRITON_CACHE_DIR": str(mine)})
    assert (mine / "k" / "source").exists()


def test_two_workers_of_a_node_never_share_a_place_of_graphs_and_a_later_one_takes_it_again(
    site: Site,
) -> None:
    (site.base / "local").mkdir()
    command = "echo $TORCHINDUCTOR_CACHE_DIR >> out; until test -e go; do sleep 0.05; done"
    site.enqueue_all({"a": command, "b": command})
    site.start(caches=caches(site), env=CLEAN)
    site.start(caches=caches(site), env=CLEAN)
    lines = site.await_lines("out", 2)
    assert len(set(lines)) == 2
    site.file("go").touch()
    for worker in site.started:
        worker.wait()
    site.enqueue("c", command)
    site.work(caches=caches(site), env=CLEAN)
    assert site.lines("out")[2] == min(lines)


def test_a_killed_worker_gives_its_place_up(site: Site) -> None:
    (site.base / "local").mkdir()
    env = {**CLEAN, "SLURMD_NODENAME": "n7"}
    worker = site.start(caches=caches(site), idle_s=60.0, env=env)
    wait_until(site.journals, "it has arrived")
    folder = site.base / "local" / f"fleetcraft-{os.geteuid()}" / "caches/task/inductor"
    with (folder / "n7-0.lock").open("rb") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        worker.signal(signal.SIGKILL)
        worker.wait()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_local_folder_of_somebody_else_is_not_used(site: Site) -> None:
    local = site.base / "local" / f"fleetcraft-{os.geteuid()}"
    local.mkdir(parents=True)
    local.chmod(0o777)
    site.enqueue("a", SHOW)
    site.work(caches=caches(site), env=CLEAN)
    found = told(site, "a")
    assert "TRITON_CACHE_DIR" not in found
    assert found["HF_HOME"] == f"{site.root}/caches/huggingface"
    notes = [event["text"] for event in site.journals() if event["event"] == "note"]
    assert any("compilers keep their own cache folders" in text for text in notes)


def test_nothing_is_made_for_a_task_that_compiles_nothing(site: Site) -> None:
    (site.base / "local").mkdir()
    site.enqueue_all({f"t{n}": "true" for n in range(3)})
    site.work(caches=caches(site), env=CLEAN)
    assert left(site) == []
    assert not (site.root / "caches").exists()


def test_a_worker_reports_the_digest_of_what_its_tasks_use(site: Site) -> None:
    (site.base / "local").mkdir()
    site.enqueue("a", "env -0 > seen")
    site.work(caches=caches(site), env=CLEAN)
    [arrive] = [event for event in site.journals() if event["event"] == "arrive"]
    pairs = site.file("seen").read_text().rstrip("\0").split("\0")
    environ = dict(pair.split("=", 1) for pair in pairs)
    found = resolve(environ)
    assert arrive["caches"]["digest"] == digest(found)
    shared = {one.role.value: one.path for one in found}
    assert arrive["caches"]["roles"].items() <= shared.items()
    assert "triton" not in arrive["caches"]["roles"]


def test_a_member_of_a_local_fleet_is_told_too(site: Site) -> None:
    (site.base / "local").mkdir()
    site.enqueue("a", SHOW)
    site.drain(caches=caches(site, offline=True), env=CLEAN)
    assert told(site, "a")["HF_HUB_OFFLINE"] == "1"
