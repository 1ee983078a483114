"""What a process is told about caches: the user wins, and no two attempts share sources."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.caches.records import Role, by_role
from fleetcraft.caches.resolve import resolve
from fleetcraft.caches.scope import (
    CacheSettings,
    Purpose,
    Scope,
    effective_for,
    environment_for,
    is_ours,
    settings_from,
)
from fleetcraft.config import load

HOME = "/home/me"
ROOT = "/scratch/me/caches"
PLAIN = CacheSettings(root=ROOT)
SCOPE = Scope(node="n1", run="train-a", attempt="1", slot="n1-0")


def told(settings: CacheSettings = PLAIN, **environ: str) -> dict[str, str]:
    return environment_for(SCOPE, {"HOME": HOME, **environ}, settings)


def test_without_variables_everything_heavy_is_below_the_root_and_the_token_stays() -> None:
    found = told()
    assert found["HF_HOME"] == f"{ROOT}/huggingface"
    assert found["HF_HUB_CACHE"] == found["TRANSFORMERS_CACHE"] == f"{ROOT}/huggingface/hub"
    assert found["HF_DATASETS_CACHE"] == f"{ROOT}/huggingface/datasets"
    assert found["TORCH_HOME"] == f"{ROOT}/torch"
    assert found["HF_TOKEN_PATH"] == f"{HOME}/.cache/huggingface/token"


@pytest.mark.parametrize(
    ("environ", "hub", "home"),
    [
        ({"HF_HOME": "/k"}, "/k/hub", "/k"),
        ({"HF_HUB_CACHE": "/k/hub"}, "/k/hub", f"{ROOT}/huggingface"),
        ({"HUGGINGFACE_HUB_CACHE": "/k"}, "/k", f"{ROOT}/huggingface"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub", "/x/huggingface"),
        ({"XDG_CACHE_HOME": f"{HOME}/.cache"}, f"{ROOT}/huggingface/hub", f"{ROOT}/huggingface"),
        ({"HF_HOME": ""}, f"{ROOT}/huggingface/hub", f"{ROOT}/huggingface"),
    ],
)
def test_what_the_user_has_set_wins(environ: dict[str, str], hub: str, home: str) -> None:
    found = told(**environ)
    assert (found["HF_HUB_CACHE"], found["HF_HOME"]) == (hub, home)


def test_a_root_that_was_chosen_wins_over_xdg_and_not_over_hf_home() -> None:
    chosen = CacheSettings(root=ROOT, root_is_set=True)
    assert told(chosen, XDG_CACHE_HOME="/x")["HF_HOME"] == f"{ROOT}/huggingface"
    assert told(chosen, HF_HOME="/k")["HF_HOME"] == "/k"


def test_a_hub_of_the_settings_wins_over_hf_home_and_not_over_the_hubs_own_names() -> None:
    pinned = CacheSettings(root=ROOT, hub="/pinned")
    assert told(pinned, HF_HOME="/k")["HF_HUB_CACHE"] == "/pinned"
    assert told(pinned, HUGGINGFACE_HUB_CACHE="/own")["HF_HUB_CACHE"] == "/own"


def test_libraries_that_read_a_value_differently_are_told_one_path() -> None:
    environ = {"HOME": HOME, "HF_HOME": "$SCRATCH/hf", "SCRATCH": "/sc"}
    given_ = {**environ, **environment_for(SCOPE, environ, PLAIN)}
    assert by_role(resolve(given_))[Role.DATASETS].path == "/sc/hf/datasets"
    assert by_role(resolve(given_))[Role.HUB].path == "/sc/hf/hub"


def test_what_was_exported_once_stays_when_it_is_exported_again() -> None:
    environ = {"HOME": HOME, "HF_HOME": "/k"}
    first = environment_for(SCOPE, environ, PLAIN)
    again = environment_for(SCOPE, {**environ, **first}, PLAIN)
    assert again == first


def test_offline_is_told_in_every_librarys_words_unless_the_user_says_otherwise() -> None:
    offline = CacheSettings(root=ROOT, offline=True)
    found = told(offline, HF_DATASETS_OFFLINE="0")
    assert found["HF_HUB_OFFLINE"] == found["TRANSFORMERS_OFFLINE"] == "1"
    assert "HF_DATASETS_OFFLINE" not in found
    assert "HF_HUB_OFFLINE" not in told()


_NAMES = st.text("abc-._1", min_size=1, max_size=6)
_SCOPES = st.builds(
    Scope, node=_NAMES, run=_NAMES, attempt=_NAMES, slot=_NAMES, purpose=st.sampled_from(Purpose)
)


@given(st.lists(_SCOPES, min_size=2, max_size=6))
def test_no_two_of_node_run_and_attempt_share_generated_sources(scopes: list[Scope]) -> None:
    for one, other in itertools.combinations(scopes, 2):
        paths = [
            environment_for(scope, {"HOME": HOME}, PLAIN)["TRITON_CACHE_DIR"]
            for scope in (one, other)
        ]
        same = all(
            getattr(one, name) == getattr(other, name)
            for name in ("node", "run", "attempt", "purpose")
        )
        assert (paths[0] == paths[1]) is same


def test_training_and_evaluation_share_no_graphs() -> None:
    train = Scope(node="n1", run="a", attempt="1", slot="s", purpose=Purpose.TRAIN)
    task = Scope(node="n1", run="a", attempt="1", slot="s", purpose=Purpose.TASK)
    graphs = {
        environment_for(scope, {"HOME": HOME}, PLAIN)["TORCHINDUCTOR_CACHE_DIR"]
        for scope in (train, task)
    }
    assert len(graphs) == 2


def test_what_a_worker_has_set_for_its_task_is_no_choice_of_the_users() -> None:
    inner = told(**told(TMPDIR="/local"), TMPDIR="/local")
    other = environment_for(
        Scope(node="n1", run="inner", attempt="7", slot="x"),
        {"HOME": HOME, "TMPDIR": "/local", **inner},
        PLAIN,
    )
    assert other["TRITON_CACHE_DIR"].endswith("/n1/inner/7")
    assert other["TRITON_CACHE_DIR"].startswith("/local/")


def test_a_folder_that_the_user_has_chosen_for_sources_is_kept() -> None:
    found = told(TRITON_CACHE_DIR="/mine", TORCHINDUCTOR_CACHE_DIR="/graphs")
    assert (found["TRITON_CACHE_DIR"], found["TORCHINDUCTOR_CACHE_DIR"]) == ("/mine", "/graphs")
    assert told(TRITON_HOME="/n")["TRITON_CACHE_DIR"] == "/n/.triton/cache"
    assert not is_ours("/mine")


def test_who_decided_is_told_in_the_users_words() -> None:
    settings = CacheSettings(root=ROOT, hub="/pinned")
    found = by_role(effective_for(SCOPE, {"HOME": HOME, "TORCH_HOME": "/t"}, settings))
    assert found[Role.HUB].decided_by == "caches.hub"
    assert found[Role.HF_HOME].decided_by == "caches.root"
    assert found[Role.TORCH_HUB].decided_by == "TORCH_HOME"
    assert found[Role.TRITON].decided_by == "caches.local"


def test_the_settings_come_from_the_table(tmp_path: Path) -> None:
    flags = {"root": str(tmp_path), "project_dir": str(tmp_path)}
    plain = settings_from(load(flags, {}))
    assert plain == CacheSettings(root=f"{tmp_path}/caches")
    more = settings_from(load(flags, {"FLEET_CACHES_ROOT": "/c", "FLEET_CACHES_OFFLINE": "yes"}))
    assert more == CacheSettings(root="/c", root_is_set=True, offline=True)
    assert settings_from(load(flags, {"FLEET_CACHES_EXPORT": "no"})) is None
