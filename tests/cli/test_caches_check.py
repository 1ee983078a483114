"""``fleetcraft caches check``: 0 without a conflict, 1 with one, 7 where something is unknown."""

from __future__ import annotations

import json
import subprocess
from datetime import timedelta

import pytest

from fleetcraft.caches import purge
from fleetcraft.caches.roles import VARIABLES
from fleetcraft.clock import now_at
from tests.cli.conftest import Fleet, environment
from tests.worker.harness import wait_until


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")


def test_a_plain_project_has_no_conflict(fleet: Fleet) -> None:
    said = fleet.ok("caches", "check", "--json").json
    assert said["answer"] == "no_conflict"
    assert said["conflicts"] == []
    assert fleet.ok("caches", "check").out == "no conflict\n"


def test_a_conflict_has_its_code_its_sentence_and_its_cure(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/tmp/a")
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", "/tmp/b")
    called = fleet("caches", "check", "--json")
    assert called.code == 1
    [conflict] = called.json["conflicts"]
    assert (conflict["code"], conflict["severity"], conflict["role"]) == (
        "names_differ", "error", "hub",
    )  # fmt: skip
    assert conflict["hint"]
    text = fleet("caches", "check").out
    assert "error names_differ: HUGGINGFACE_HUB_CACHE says /tmp/b" in text
    assert text.endswith("1 error\n")


def test_what_could_not_be_told_is_no_yes(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_BATCH_PYTHON", "/nowhere/python")
    called = fleet("caches", "check", "--ask", "--json")
    assert (called.code, called.json["answer"]) == (7, "unknown")


def test_more_conflicts_than_the_limit_are_counted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", "relative")
    called = fleet("caches", "check", "--limit", "1")
    assert called.out.count("not_absolute") == 1
    assert "more (--limit 0 shows all)" in called.out
    assert fleet("caches", "check", "--limit", "0").out.count("not_absolute") > 2


def test_a_file_system_that_says_it_is_offline_but_is_not_told_so(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fleet.root / "caches/huggingface/hub").mkdir(parents=True)
    monkeypatch.setenv("FLEET_CACHES_OFFLINE", "true")
    assert fleet("caches", "check").code == 0
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert "downloads_possible" in fleet("caches", "check").out


def test_a_variable_that_is_unset_in_one_worker_only_is_found(fleet: Fleet) -> None:
    """Two real workers of one job stay; one of them has been started without the variable."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, extra in enumerate(({"HF_HOME": "/known"}, {})):
            settings = environment(
                SLURM_JOB_ID="41", SLURMD_NODENAME=f"n{number}", HOME="/home/me", **extra
            )
            words = fleet.command("worker", "--idle", "60", "--rank", str(number))
            processes.append(
                subprocess.Popen(
                    words, env=settings, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
                )
            )
        wait_for_arrivals(fleet, 2)
        called = fleet("caches", "check", "--json")
        [conflict] = [one for one in called.json["conflicts"] if one["code"] == "workers_differ"]
        assert called.code == 1
        assert "/known on n0" in conflict["text"]
        assert len(called.json["workers"]) == 2
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def wait_for_arrivals(fleet: Fleet, count: int) -> None:
    def arrived() -> bool:
        journals = list((fleet.spool / "workers").glob("*.jsonl"))
        return sum(b"\n" in path.read_bytes() for path in journals) == count

    wait_until(arrived, f"{count} workers have arrived")


def test_a_snapshot_that_lacks_shards_is_named(fleet: Fleet) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = fleet.root / "caches/huggingface/hub/models--org--name"
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs/main").write_text(commit)
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (repo / "snapshots" / commit / "model.safetensors.index.json").write_text(json.dumps(index))
    called = fleet("caches", "check")
    assert called.code == 1
    assert "snapshot_incomplete" in called.out
    assert "model-00001-of-00001.safetensors" in called.out


def test_files_near_their_purge_are_listed_and_bounded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"clip-{number}.mp4" for number in range(3)]
    (fleet.root / "out").mkdir()
    for name in names:
        (fleet.root / "out" / name).write_bytes(b"x")
    manifests = fleet.root / "evidence/manifests"
    manifests.mkdir(parents=True)
    files = [{"path": name} for name in [*names, "lost.mp4"]]
    manifest = {"folder": str(fleet.root / "out"), "files": files}
    (manifests / "m.json").write_text(json.dumps(manifest))
    # The time of a change cannot be set, so it is the clock that goes on.
    later = now_at() + timedelta(days=8)
    monkeypatch.setattr(purge, "now_at", lambda: later)
    monkeypatch.setenv("FLEET_STORAGE_PURGE_DAYS", "10")

    said = fleet("caches", "check", "--json").json["purge"]["evidence"]
    text = fleet("caches", "check", "--limit", "2").out

    assert sorted(item["path"].rpartition("/")[2] for item in said["near"]) == names
    assert [item["path"] for item in said["gone"]] == [str(fleet.root / "out/lost.mp4")]
    assert "evidence: 3 files of 3 idle for 7 days or more" in text
    assert "... and 1 more\n" in text
    assert f"gone {fleet.root}/out/lost.mp4" in text
