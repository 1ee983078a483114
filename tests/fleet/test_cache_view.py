"""What a launch and ``caches check`` gather: paths of tasks, workers that live, files of caches."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from fleetcraft.caches.ask import Asked
from fleetcraft.caches.records import Code, Role, Severity, by_role
from fleetcraft.config import Config, load
from fleetcraft.errors import ConfigError
from fleetcraft.fleet.launch.cache_files import look_into_caches
from fleetcraft.fleet.launch.caches import (
    cache_peers,
    installed_versions,
    look_at_caches,
    quota_folders,
    task_environment,
)
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.spool import leases
from fleetcraft.spool.leases import Journal, Lease
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.tree import SpoolTree

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def config(root: Path, **environ: str) -> Config:
    return load({"root": str(root), "project_dir": str(root)}, environ)


@pytest.fixture
def tree(tmp_path: Path) -> SpoolTree:
    made = SpoolTree(str(tmp_path / "taskq"))
    set_up(made)
    return made


def arrive(tree: SpoolTree, *, host: str, hub: str, job: str = "41", **more: object) -> Lease:
    """A worker that has arrived and reported its caches."""
    lease = Lease(
        job=job, rank="0", launch=f"l{host}", host=host, boot_id="b", pid_namespace="p",
        pid=1, start_ticks=1, started_at="2026-01-01T00:00:00.000Z", interval_s=30.0, **more,  # type: ignore[arg-type]
    )  # fmt: skip
    leases.publish(tree, lease)
    journal = Journal(tree, lease.name)
    journal.write({"event": "note", "at": "2026-01-01T00:00:00.000Z", "text": "before it arrived"})
    caches = {"digest": hub, "roles": {"hub": hub}}
    journal.write({"event": "arrive", "at": "2026-01-01T00:00:00.000Z", "caches": caches})
    journal.close()
    return lease


def codes(found: object) -> set[Code]:
    return {one.code for one in found}  # type: ignore[attr-defined]


def test_a_worker_that_lacks_a_variable_is_found_by_what_it_reported(
    tree: SpoolTree, tmp_path: Path
) -> None:
    arrive(tree, host="n1", hub="/known")
    arrive(tree, host="n2", hub="/known")
    arrive(tree, host="n3", hub="/home/me/.cache/huggingface/hub")
    peers = cache_peers(tree)
    assert {peer.host for peer in peers} == {"n1", "n2", "n3"}
    found = look_at_caches(config(tmp_path), {"HOME": "/home/me"}, peers=peers).conflicts
    [conflict] = [one for one in found if one.code is Code.WORKERS_DIFFER]
    assert "/home/me/.cache/huggingface/hub on n3; /known on n1, n2" in conflict.text


def test_workers_that_left_are_silent_or_of_an_earlier_version_are_not_compared(
    tree: SpoolTree,
) -> None:
    arrive(tree, host="n1", hub="/gone", left_at="2026-01-01T00:00:00.000Z")
    silent = arrive(tree, host="n2", hub="/silent")
    long_ago = time.time() - 3600
    os.utime(tree.paths.lease(silent.name), (long_ago, long_ago))
    old = arrive(tree, host="n3", hub="/old")
    Path(tree.paths.journal(old.name)).write_text('{"event":"arrive","slots":1}\n')
    torn = arrive(tree, host="n4", hub="/torn")
    Path(tree.paths.journal(torn.name)).write_text('{"event":"arr')
    arrive(tree, host="n5", hub="/launcher", role="launcher")
    assert cache_peers(tree) == ()


def test_tasks_are_judged_and_what_a_bare_process_would_use_is_kept_beside(tmp_path: Path) -> None:
    view = look_at_caches(config(tmp_path), {"HOME": "/home/me"})
    assert view.tasks is not None
    assert by_role(view.tasks)[Role.HUB].path == f"{tmp_path}/caches/huggingface/hub"
    assert by_role(view.here)[Role.HUB].path == "/home/me/.cache/huggingface/hub"
    assert view.environ["HF_HUB_CACHE"] == f"{tmp_path}/caches/huggingface/hub"


def test_without_export_or_tree_the_bare_process_is_judged(tmp_path: Path) -> None:
    off = look_at_caches(config(tmp_path, FLEET_CACHES_EXPORT="false"), {"HOME": "/home/me"})
    assert off.tasks is None
    assert "caches.export is false" in off.note
    nowhere = look_at_caches(load({"project_dir": str(tmp_path)}, {}), {"HOME": "/home/me"})
    assert nowhere.tasks is None
    assert "no scratch tree" in nowhere.note
    assert Code.GENERATED_SHARED in codes(off.conflicts)


def test_a_home_with_a_quota_is_the_default_and_others_can_be_named(tmp_path: Path) -> None:
    assert quota_folders(config(tmp_path)) == ["~"]
    named = config(tmp_path, FLEET_STORAGE_QUOTA=f"'{tmp_path}/a b' /x")
    assert quota_folders(named) == [f"{tmp_path}/a b", "/x"]
    environ = {"HOME": "/home/me", "HF_HOME": f"{tmp_path}/a b/hf"}
    assert Code.ON_QUOTA in codes(look_at_caches(named, environ).conflicts)
    with pytest.raises(ConfigError, match="storage.quota cannot be split"):
        quota_folders(config(tmp_path, FLEET_STORAGE_QUOTA="'open"))


def test_who_has_the_scratch_tree_at_home_has_no_quota_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert quota_folders(config(tmp_path)) == []
    assert quota_folders(config(tmp_path, FLEET_STORAGE_QUOTA="~")) == ["~"]


def test_models_that_tasks_will_not_find_are_advice(tmp_path: Path) -> None:
    (tmp_path / "home/.cache/huggingface/hub/models--org--name").mkdir(parents=True)
    environ = {"HOME": str(tmp_path / "home")}
    found = look_at_caches(config(tmp_path), environ).conflicts
    [advice] = [one for one in found if one.code is Code.MODELS_ELSEWHERE]
    assert advice.severity is Severity.ADVICE
    assert "caches mirror" in advice.hint
    (tmp_path / "caches/huggingface/hub/models--org--name").mkdir(parents=True)
    assert Code.MODELS_ELSEWHERE not in codes(look_at_caches(config(tmp_path), environ).conflicts)


def test_what_was_asked_gives_the_versions_and_is_compared(tmp_path: Path) -> None:
    asked = Asked(
        python="py",
        answered=True,
        versions={"transformers": "4.40.0"},
        paths={Role.HUB: "/other"},
    )
    environ = {"HOME": "/home/me", "TRANSFORMERS_CACHE": "/t"}
    view = look_at_caches(config(tmp_path), environ, asked=asked)
    assert by_role(view.of_tasks)[Role.TRANSFORMERS].path == "/t"
    assert {Code.ASKED_DIFFERS, Code.TRANSFORMERS_DIFFERS} <= codes(view.conflicts)


def test_versions_of_another_python_are_not_guessed() -> None:
    assert installed_versions("/nowhere/python") == {}


def test_the_environment_of_a_task_is_this_one_with_the_exports(tmp_path: Path) -> None:
    found = task_environment(config(tmp_path), {"HOME": "/h", "ODD": "1"})
    assert found["ODD"] == "1"
    assert found["HF_HOME"] == f"{tmp_path}/caches/huggingface"
    off = config(tmp_path, FLEET_CACHES_EXPORT="no")
    assert task_environment(off, {"ODD": "1"}) == {"ODD": "1"}


# -- files


def model(hub: Path, *, shards: tuple[str, ...]) -> None:
    """A model whose index names two shards, with some of them there."""
    repo = hub / "models--org--name"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    index = {"metadata": {"total_size": 2}, "weight_map": dict(zip("ab", names, strict=True))}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in shards:
        (snapshot / name).write_bytes(b"x")


def test_a_snapshot_whose_index_names_absent_shards_is_a_conflict(tmp_path: Path) -> None:
    hub = tmp_path / "caches/huggingface/hub"
    model(hub, shards=("model-00001-of-00002.safetensors",))
    settings = config(tmp_path)
    view = look_into_caches(settings, look_at_caches(settings, {"HOME": "/home/me"}))
    [found] = [one for one in view.conflicts if one.code is Code.SNAPSHOT_INCOMPLETE]
    assert "model-00002-of-00002.safetensors" in found.text
    assert "org/name" in found.text
    assert found.hint.endswith("fleetcraft caches fill org/name -- hf download org/name")
    whole = hub / "models--org--name" / "snapshots" / COMMIT / "model-00002-of-00002.safetensors"
    whole.write_bytes(b"x")
    view = look_into_caches(settings, look_at_caches(settings, {"HOME": "/home/me"}))
    assert Code.SNAPSHOT_INCOMPLETE not in codes(view.conflicts)


def test_the_cure_of_another_kind_of_repository_and_of_an_old_commit_names_both(
    tmp_path: Path,
) -> None:
    hub = tmp_path / "caches/huggingface/hub"
    model(hub, shards=())
    (hub / "models--org--name").rename(hub / "datasets--org--name")
    (hub / "datasets--org--name/refs/main").unlink()
    settings = config(tmp_path)
    view = look_into_caches(settings, look_at_caches(settings, {"HOME": "/home/me"}))
    [found] = [one for one in view.conflicts if one.code is Code.SNAPSHOT_INCOMPLETE]
    which = f"org/name --repo-type dataset --revision {COMMIT}"
    assert found.hint.endswith(f"fleetcraft caches fill {which} -- hf download {which}")


def refer(root: Path, path: Path) -> None:
    """A manifest of the evidence room that names a file."""
    evidence = EvidencePaths(str(root / "evidence"))
    os.makedirs(evidence.manifests, exist_ok=True)
    manifest = {"folder": str(path.parent), "files": [{"path": path.name}]}
    Path(evidence.manifest("m")).write_text(json.dumps(manifest))


def test_files_near_their_purge_that_evidence_refers_to_are_a_conflict(tmp_path: Path) -> None:
    video = tmp_path / "runs" / "clip.mp4"
    video.parent.mkdir()
    video.write_bytes(b"x")
    refer(tmp_path, video)
    old = time.time() - 9 * 86400
    os.utime(video, (old, old))
    settings = config(tmp_path, FLEET_STORAGE_PURGE_DAYS="10")
    view = look_into_caches(settings, look_at_caches(settings, {"HOME": "/home/me"}))
    # The change time is new, so nothing is near; without the setting nothing is looked for.
    assert Code.NEAR_PURGE not in codes(view.conflicts)
    video.unlink()
    view = look_into_caches(settings, look_at_caches(settings, {"HOME": "/home/me"}))
    [gone] = [one for one in view.conflicts if one.code is Code.PURGED]
    assert gone.severity is Severity.ERROR
    assert str(video) in gone.text
    assert view.conflicts[0] is gone  # errors come first
    plain = config(tmp_path)
    view = look_into_caches(plain, look_at_caches(plain, {"HOME": "/home/me"}))
    assert Code.PURGED not in codes(view.conflicts)


def test_what_is_near_its_purge_names_the_first_file_and_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetcraft.caches import purge

    video = tmp_path / "clip.mp4"
    video.write_bytes(b"x")
    refer(tmp_path, video)
    later = purge.now_at().timestamp() + 9 * 86400

    class Later:
        def timestamp(self) -> float:
            return later

    monkeypatch.setattr(purge, "now_at", Later)
    settings = config(tmp_path, FLEET_STORAGE_PURGE_DAYS="10")
    view = look_into_caches(settings, look_at_caches(settings, {"HOME": "/home/me"}))
    [near] = [one for one in view.conflicts if one.code is Code.NEAR_PURGE]
    assert near.severity is Severity.WARNING
    assert str(video) in near.text
    assert "idle for 9.0 days" in near.text
