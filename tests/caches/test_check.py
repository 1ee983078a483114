"""Each conflict has a code: what raises it, what just does not, and that it names the cure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fleetcraft.caches.ask import Asked
from fleetcraft.caches.check import Surroundings, check, unknowns
from fleetcraft.caches.records import (
    Code,
    Conflict,
    Effective,
    FileSystemFacts,
    Peer,
    Role,
    Severity,
)
from fleetcraft.caches.resolve import resolve
from fleetcraft.caches.scope import CacheSettings, Scope, effective_for, environment_for

HOME = "/home/me"
SETTINGS = CacheSettings(root="/scratch/me/caches")
SCOPE = Scope(node="n1", run="a", attempt="1", slot="n1-0")
LOCAL = FileSystemFacts(type="ext4", mount="/", network=False, executable=True)
LUSTRE = FileSystemFacts(type="lustre", mount="/scratch", network=True, executable=True)


def of_tasks(environ: dict[str, str], settings: CacheSettings | None = SETTINGS) -> Any:
    """Effective paths and environment of a task, each on a local disk that can be written."""
    environ = {"HOME": HOME, **environ}
    if settings is None:
        found, given = resolve(environ), environ
    else:
        found = effective_for(SCOPE, environ, settings)
        given = {**environ, **environment_for(SCOPE, environ, settings)}
    seen = tuple(
        msgspec.structs.replace(one, filesystem=LOCAL, exists=True, writable=True) for one in found
    )
    return seen, given


def judge(
    environ: dict[str, str] | None = None,
    settings: CacheSettings | None = SETTINGS,
    *,
    change: dict[Role, dict[str, Any]] | None = None,
    **around: Any,
) -> tuple[Conflict, ...]:
    seen, given = of_tasks(environ or {}, settings)
    seen = tuple(msgspec.structs.replace(one, **(change or {}).get(one.role, {})) for one in seen)
    return check(seen, Surroundings(environ=given, settings=settings, **around))


def only(conflicts: tuple[Conflict, ...]) -> Conflict:
    assert len(conflicts) == 1, conflicts
    assert conflicts[0].hint
    return conflicts[0]


def test_a_task_of_a_plain_project_has_no_conflict() -> None:
    assert judge() == ()


# -- names


def test_two_names_of_the_hub_that_differ_are_an_error() -> None:
    found = only(judge({"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b"}))
    assert (found.code, found.severity, found.role) == (
        Code.NAMES_DIFFER, Severity.ERROR, Role.HUB,
    )  # fmt: skip
    assert "/a" in found.text
    assert "/b" in found.text


@pytest.mark.parametrize("other", ["/a", "/a/", "/x/../a"])
def test_two_names_that_mean_one_path_are_none(other: str) -> None:
    assert judge({"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": other}) == ()


def test_hf_home_beside_a_hub_of_its_own_is_none() -> None:
    assert judge({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}) == ()


def test_transformers_cache_that_is_not_the_hub_is_a_conflict() -> None:
    found = only(judge({"TRANSFORMERS_CACHE": "/t"}))
    assert (found.code, found.role) == (Code.TRANSFORMERS_DIFFERS, Role.TRANSFORMERS)
    hub = f"{SETTINGS.root}/huggingface/hub"
    assert judge({"TRANSFORMERS_CACHE": hub}) == ()


def test_a_setting_that_the_environment_overrules_is_told() -> None:
    pinned = CacheSettings(root=SETTINGS.root, hub="/pinned")
    found = only(judge({"HF_HUB_CACHE": "/a"}, pinned))
    assert (found.code, found.severity) == (Code.SETTING_OVERRULED, Severity.WARNING)
    assert "HF_HUB_CACHE" in found.text
    assert judge({"HF_HOME": "/a"}, pinned) == ()


def test_a_relative_path_is_an_error_for_every_process_means_another() -> None:
    found = judge({"HF_HOME": "caches/hf"})
    assert {one.code for one in found} == {Code.NOT_ABSOLUTE}
    assert Role.HUB in {one.role for one in found}
    bare = judge({"HF_HUB_CACHE": ""}, None)
    assert (Code.NOT_ABSOLUTE, Role.HUB) in {(one.code, one.role) for one in bare}


# -- offline


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_downloads_that_are_possible_although_declared_offline(variable: str) -> None:
    offline = CacheSettings(root=SETTINGS.root, offline=True)
    found = only(judge({variable: "0"}, offline, offline=True))
    assert (found.code, found.severity) == (Code.DOWNLOADS_POSSIBLE, Severity.ERROR)
    assert f"{variable}=0" in found.text


def test_offline_that_nobody_exports_is_a_conflict() -> None:
    found = judge({}, None, offline=True)
    assert [one.role for one in found if one.code is Code.DOWNLOADS_POSSIBLE] == [
        Role.HUB,
        Role.DATASETS,
    ]


def test_offline_in_the_hubs_own_variable_holds_for_datasets_too() -> None:
    assert judge({"HF_HUB_OFFLINE": "on"}) == ()
    found = only(judge({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "no"}))
    assert (found.code, found.role) == (Code.DOWNLOADS_POSSIBLE, Role.DATASETS)


def test_a_hub_that_is_not_there_is_an_error_only_where_nothing_is_downloaded() -> None:
    offline = CacheSettings(root=SETTINGS.root, offline=True)
    absent = {Role.HUB: {"exists": False}}
    found = only(judge({}, offline, offline=True, change=absent))
    assert found.code is Code.MISSING
    assert found.hint.endswith("or fleetcraft caches fill REPO -- hf download REPO")
    assert f"--to {found.path}," in found.hint
    assert judge(change=absent) == ()


# -- places


def test_a_root_that_cannot_be_written_is_an_error() -> None:
    found = only(judge(change={Role.HUB: {"writable": False}}))
    assert (found.code, found.severity) == (Code.READ_ONLY, Severity.ERROR)
    assert "is read-only" in found.text
    absent = only(judge(change={Role.DATASETS: {"writable": False, "exists": False}}))
    assert "cannot be made" in absent.text
    assert "fill it first" in absent.hint


@pytest.mark.parametrize(
    ("environ", "cure"),
    [({}, "set caches.local to"), ({"TRITON_CACHE_DIR": "/mine"}, "set TRITON_CACHE_DIR to")],
)
def test_nobody_is_told_to_fill_what_compilers_generate(environ: dict[str, str], cure: str) -> None:
    judged = judge(environ, change={Role.TRITON: {"writable": False}})
    [found] = [one for one in judged if one.code is Code.READ_ONLY]
    assert found.hint.startswith(cure)


def test_a_complete_hub_may_be_read_only_where_nothing_is_downloaded() -> None:
    offline = CacheSettings(root=SETTINGS.root, offline=True)
    shut = {Role.HUB: {"writable": False}, Role.TRANSFORMERS: {"writable": False}}
    assert judge({}, offline, offline=True, change=shut) == ()


def test_what_lies_below_hf_home_on_a_quota_is_told_once() -> None:
    home = msgspec.structs.replace(LOCAL, quota=True)
    roles = (Role.HF_HOME, Role.HUB, Role.DATASETS, Role.TRANSFORMERS, Role.XET)
    found = only(
        judge({"HF_HOME": f"{HOME}/hf"}, change={role: {"filesystem": home} for role in roles})
    )
    assert (found.code, found.severity) == (Code.ON_QUOTA, Severity.WARNING)
    assert "hub, datasets, transformers, xet lie at /home/me/hf (by HF_HOME)" in found.text


def test_models_in_persistent_storage_are_in_the_wrong_place() -> None:
    work = msgspec.structs.replace(LOCAL, work=True)
    found = only(judge(change={Role.DATASETS: {"filesystem": work}}))
    assert (found.code, found.role) == (Code.WRONG_PLACE, Role.DATASETS)


@pytest.mark.parametrize(
    ("role", "severity"), [(Role.TRITON, Severity.ERROR), (Role.INDUCTOR, Severity.WARNING)]
)
def test_generated_sources_on_a_shared_file_system(role: Role, severity: Severity) -> None:
    found = only(judge(change={role: {"filesystem": LUSTRE}}))
    assert (found.code, found.severity, found.role) == (
        Code.GENERATED_ON_NETWORK, severity, role,
    )  # fmt: skip
    assert "lustre" in found.text


def test_a_mount_without_exec_cannot_hold_what_triton_builds() -> None:
    noexec = msgspec.structs.replace(LOCAL, mount="/tmp", executable=False)
    found = only(judge(change={Role.TRITON: {"filesystem": noexec}}))
    assert (found.code, found.severity) == (Code.GENERATED_NOT_EXECUTABLE, Severity.ERROR)


def test_a_file_system_of_unknown_type_is_unknown_and_no_conflict() -> None:
    odd = FileSystemFacts(type="fuse.strange", mount="/odd")
    seen, _ = of_tasks({})
    seen = tuple(
        msgspec.structs.replace(one, filesystem=odd) if one.role is Role.TRITON else one
        for one in seen
    )
    assert judge(change={Role.TRITON: {"filesystem": odd}}) == ()
    [said] = unknowns(seen, None)
    assert "fuse.strange" in said


# -- who shares what


def test_one_folder_of_sources_for_all_attempts_is_a_conflict() -> None:
    found = only(judge({"TRITON_CACHE_DIR": "/mine"}))
    assert (found.code, found.path) == (Code.GENERATED_SHARED, "/mine")
    assert Code.GENERATED_SHARED in {one.code for one in judge({}, None)}


def test_graphs_with_users_at_the_same_time_are_a_conflict() -> None:
    fixed = {"TORCHINDUCTOR_CACHE_DIR": "/graphs"}
    assert judge(fixed) == ()  # one slot: its tasks follow one another
    assert only(judge(fixed, several=True)).code is Code.INDUCTOR_OVERLAP
    two = [_peer("w1", "n1", inductor="/graphs"), _peer("w2", "n1", inductor="/graphs")]
    found = only(judge(peers=two))
    assert found.code is Code.INDUCTOR_OVERLAP
    assert "w1, w2" in found.text
    apart = [_peer("w1", "n1", inductor="/graphs"), _peer("w2", "n2", inductor="/graphs")]
    assert judge(peers=apart) == ()


def _peer(name: str, host: str, *, hub: str = "/hub", job: str = "41", inductor: str = "") -> Peer:
    roles = {"hub": hub, "hf_home": "/hf"} | ({"inductor": inductor} if inductor else {})
    return Peer(name=name, host=host, job=job, digest=hub, roles=roles)


def test_a_variable_that_one_worker_lacks_is_found_and_the_odd_one_named_first() -> None:
    peers = [_peer(f"w{n}", f"n{n}") for n in range(5)] + [_peer("w9", "n9", hub="/other")]
    found = only(judge(peers=peers))
    assert (found.code, found.severity, found.role) == (
        Code.WORKERS_DIFFER, Severity.ERROR, Role.HUB,
    )  # fmt: skip
    assert "hub is /other on n9; /hub on n0, n1, n2, n3 and 1 more" in found.text


def test_workers_of_different_jobs_may_differ() -> None:
    assert judge(peers=[_peer("a", "n1"), _peer("b", "n2", hub="/other", job="42")]) == ()


def test_digests_that_differ_are_a_conflict_even_if_the_paths_told_do_not() -> None:
    one = _peer("a", "n1")
    other = msgspec.structs.replace(_peer("b", "n2"), digest="other")
    assert only(judge(peers=[one, other])).code is Code.WORKERS_DIFFER


# -- asked


def _asked(**paths: str) -> Asked:
    return Asked(python="py", answered=True, paths={Role(k): v for k, v in paths.items()})


def test_a_library_that_says_another_path_than_was_computed_is_an_error() -> None:
    found = only(judge(asked=_asked(hub="/elsewhere")))
    assert (found.code, found.severity, found.path) == (
        Code.ASKED_DIFFERS, Severity.ERROR, "/elsewhere",
    )  # fmt: skip
    assert judge(asked=_asked(hub=f"{SETTINGS.root}/huggingface/hub")) == ()


def test_no_answer_is_unknown_and_no_conflict() -> None:
    silent = Asked(python="py", answered=False, why="it did not answer within 2 s")
    assert judge(asked=silent) == ()
    assert "did not answer within 2 s" in unknowns((), silent)[0]
    broken = Asked(python="py", answered=True, problems={"transformers": "ImportError: x"})
    assert "ImportError: x" in unknowns((), broken)[0]


def test_what_cannot_be_looked_at_is_unknown() -> None:
    dead = Effective(role=Role.HUB, path="/dead", filesystem=LUSTRE)
    assert "/dead" in unknowns([dead], None)[0]


def test_errors_come_first() -> None:
    found = judge({"TRANSFORMERS_CACHE": "/t", "HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b"})
    assert [one.severity for one in found] == [Severity.ERROR, Severity.WARNING]
