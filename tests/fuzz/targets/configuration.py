"""What people write into files, variables and options: settings, site profiles, batch tables."""

from __future__ import annotations

import math
import os
from typing import Any

import msgspec
import yaml
from hypothesis import strategies as st

from fleetcraft import config
from fleetcraft.batch_table import reading as batch_table
from fleetcraft.batch_table.reading import hash_of
from fleetcraft.batch_table.records import SCHEMA, Row
from fleetcraft.caches import hub, indexes, mounts, resolve, snapshots
from fleetcraft.caches import quarantine as cache_quarantine
from fleetcraft.caches.ask import _read as read_asked
from fleetcraft.caches.filled import Filled, read_filled
from fleetcraft.caches.refs import read_ref, read_refs
from fleetcraft.calibration.records import Calibration, Trial
from fleetcraft.calibration.sweep import store
from fleetcraft.calibration.trial.reading import read_journal
from fleetcraft.calibration.trial.watching import _decoded
from fleetcraft.cli.caches.places import read_wait_s
from fleetcraft.config.yaml_file import read_settings_file, read_site_profile
from fleetcraft.doctor import quotas
from fleetcraft.errors import ConfigError, DataError, UsageError
from fleetcraft.fleet.guard import procfs
from fleetcraft.layout.caches import CachePaths
from fleetcraft.worker.slots import count_slots
from tests.fuzz import folders
from tests.fuzz.strategies import as_text, documents, json_of, sampled, texts, values_of
from tests.fuzz.target import Target

_DEEP = b"[" * 100_000


def settings_file(data: bytes) -> None:
    path = folders.write("project/fleet.yaml", data)
    for name, value in read_settings_file(path).items():
        assert name in config.BY_NAME
        assert value.source
        assert "\0" not in str(value.value), f"{name} holds a NUL, which no path can"
        if isinstance(value.value, float):
            assert math.isfinite(value.value)


def site_profile(data: bytes) -> None:
    read_site_profile(folders.write("site.yaml", data), "--site")


def variables(values: dict[str, str]) -> None:
    folders.fresh("project")
    clean = {name: text.replace("\0", "") for name, text in values.items()}
    config.load({}, {**clean, "FLEET_PROJECT_DIR": f"{folders.folder()}/project"})


def option(value: tuple[str, str]) -> None:
    name, text = value
    found = config.read_text(config.BY_NAME[name], text, "--option")
    assert found is not None
    if isinstance(found, float):
        assert math.isfinite(found)
        assert found >= config.BY_NAME[name].least


def table(data: bytes) -> None:
    batch_table.read_table(folders.write("batch-table.yaml", data))


def table_content(value: tuple[Any, bool]) -> None:
    """A table with a right hash over any content, as somebody else's program may write it."""
    content, with_families = value
    document: dict[str, Any] = {"families": content} if with_families else content
    try:
        digest = hash_of(document)
    except (TypeError, ValueError):
        return
    text = yaml.safe_dump({"schema": SCHEMA, "hash": digest, **document}, allow_unicode=True)
    batch_table.read_table(folders.write("batch-table.yaml", text.encode("utf-8", "replace")))


def slots(text: str) -> None:
    assert len(count_slots(text)) >= 1


def wait(text: str) -> None:
    assert read_wait_s(text) >= 0


# ------------------------------------------------------------------------------------- caches


def cache_variables(value: dict[str, str]) -> None:
    for found in resolve.resolve(value):
        assert isinstance(found.path, str)
        assert found.decided_by


def repo(text: str) -> None:
    found = hub.parse_repo(text)
    assert hub.parse_repo(found.folder) == found, f"{found.folder} is another repository"


def revision(text: str) -> None:
    assert hub.is_safe(hub.parse_revision(text))


def hub_cache(value: tuple[bytes, bytes, bytes]) -> None:
    ref, listing, index = value
    place = folders.fresh("hub")
    commit = "0123456789" * 4
    base = "hub/models--org--name"
    folders.write(f"{base}/refs/main", ref)
    folders.write(f"{base}/trees/{commit}.json", listing)
    folders.write(f"{base}/blobs/abc", index)
    folders.write(f"{base}/snapshots/{commit}/model.safetensors.index.json", index)
    found = hub.Repo(name="org/name", type=hub.RepoType.MODEL)
    paths = hub.RepoPaths(f"{place}/{found.folder}")
    folders.write(os.path.relpath(paths.tree(commit), folders.folder()), listing)
    read_ref(paths, "main")
    read_refs(paths)
    for snapshot in snapshots.read_repo(place, found):
        assert snapshot.commit
    snapshots.read_hub(place)


def index_file(data: bytes) -> None:
    path = folders.write("model.safetensors.index.json", data)
    for found in indexes.read_indexes({"model.safetensors.index.json": path}, frozenset({"a"})):
        assert found.fault or all(map(hub.is_safe, found.shards))


def kept_records(data: bytes) -> None:
    paths = CachePaths(folders.fresh("caches"))
    one = hub.Repo(name="org/name", type=hub.RepoType.MODEL)
    name = f"{os.path.relpath(paths.filled, folders.folder())}/{one.folder}@{'0' * 40}.x.json"
    folders.write(name, data)
    read_filled(paths, one, "0" * 40)
    record = cache_quarantine._record_file(paths, "one")
    folders.write(os.path.relpath(record, folders.folder()), data)
    cache_quarantine.read_quarantine(paths)


def asked(data: bytes) -> None:
    found = read_asked("python", data)
    assert found.answered or found.why


def mount_table(data: bytes) -> None:
    path = folders.write("proc/self/mountinfo", data)
    mounts.read_mounts(path)
    procfs.read_mounts(f"{folders.folder()}/proc")


def quota(text: str) -> None:
    found = quotas.parse_line(text, "home")
    if found is not None:
        assert found.used_kib >= 0
        assert found.limit_kib >= 0
        quotas.judge_quota(found)


# -------------------------------------------------------------------------------- calibration


def calibration(data: bytes) -> None:
    path = folders.write("calibration.json", data)
    store.read_calibration(path)


def trial(data: bytes) -> None:
    store.read_trial(folders.write("trial.json", data))


def trial_journal(data: bytes) -> None:
    found = read_journal(folders.write("journal.jsonl", data), ("load", "decode"))
    *lines, _ = data.split(b"\n")
    assert len(found.events) + found.bad_lines == sum(bool(line.strip()) for line in lines)
    assert found.smoke == bool(found.missing_phases)
    for line in lines:
        _decoded(line)


_SETTINGS = (
    b"root: /scratch/me\nspool:\n  dir: taskq\nworker:\n  idle: 30m\n  slots: 4\n"
    b"telemetry:\n  interval: 30\nsite: demo\n",
    b"worker: {idle: 1:30:00, drain_margin: .inf}\n",
    b"a: &x {b: *x}\n",
    b"root: !!binary aGk=\n",
    b"worker:\n  slots: 0x10\n  idle_s: 00:30:00\nsite: ../../etc/passwd\n",
    b"- a\n- b\n",
    b"root: ${HOME}/x\n",
    b"<<: {root: /x}\n",
    b"root: '\\0'\n",
    b'root: "\\0"\n',
    b"? {a: b}\n: c\n",
)
_TABLE = (
    b"schema: fleetcraft.batch_table/1\nhash: sha256:" + b"0" * 64 + b"\nfamilies:\n  wan-1.3b:\n"
    b"    identity: sha256:" + b"0" * 64 + b"\n    batch: 8\n"
    b"    timed_batch: 4\n    evidence: []\n",
    b"a: &a [*a]\n",
    b"schema: !!python/name:os.system\n",
    b"{a: 1, a: 2}\n",
    b"? [1]\n: 2\n",
)
_JOURNAL = (
    b'{"event":"begin","pass":"warm-up"}\n{"event":"pass_begin","pass":"plain"}\n'
    b'{"event":"phase_begin","phase":"load","cycle":0}\n{"event":"phase_end","phase":"load",'
    b'"cycle":0,"wall_s":1.5,"live_bytes":10,"peak_bytes":20}\n{"event":"cycle_end","cycle":0}\n'
    b'{"event":"participant","name":"a","state":"idle","how":"x"}\n{"event":"end","exit":0}\n',
    b'{"event":"environment","family":"demo","identity":"x","torch":"2.13"}\n{"event":"failed"}\n',
)
_MOUNTS = (
    b"22 1 0:21 / /proc rw,nosuid - proc proc rw\n36 35 98:0 /mnt1 /mnt\\0402 rw,noatime "
    b"master:1 - "
    b"ext3 /dev/root rw,errors=continue\n30 1 0:25 / /s\\777 rw shared:1 - nfs4 h:/x rw\n",
)
_VARIABLES = sorted({name for one in config.SETTINGS for name in one.variables})
_TEXTS = texts(
    "30m",
    "1.5",
    "4",
    "gpu",
    "/scratch/me",
    "true",
    "off",
    "00:30:00",
    "inf",
    "nan",
    "1e400",
    "9" * 5000,
    "~root/x",
    "",
)
_YAML_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 2**70),
        st.floats(),
        st.text(max_size=5),
        st.dates(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers()), inner, max_size=3),
    ),
    max_leaves=6,
)
_ROWS = st.dictionaries(
    st.sampled_from(["wan-1.3b", "a", "A b"]),
    st.one_of(values_of(Row).map(msgspec.to_builtins), _YAML_VALUES),
    max_size=2,
)


_CACHE_NAMES = (
    "HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "XDG_CACHE_HOME",
    "TORCH_HOME",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRANSFORMERS_CACHE",
    "TMPDIR",
    "USER",
    "HF_DATASETS_CACHE",
)
TARGETS = (
    Target(
        name="config: fleet.yaml",
        values=documents(*_SETTINGS),
        act=settings_file,
        raises=(ConfigError,),
    ),
    Target(
        name="config: site profile",
        values=documents(*_SETTINGS),
        act=site_profile,
        raises=(ConfigError,),
    ),
    Target(
        name="config: variables",
        values=st.dictionaries(st.sampled_from(_VARIABLES), _TEXTS, max_size=3),
        act=variables,
        raises=(ConfigError,),
    ),
    Target(
        name="config: option",
        values=st.tuples(st.sampled_from(sorted(config.BY_NAME)), _TEXTS),
        act=option,
        raises=(ConfigError,),
    ),
    Target(name="config: batch table", values=documents(*_TABLE), act=table, raises=(DataError,)),
    Target(
        name="config: batch table with a right hash",
        values=st.one_of(
            st.tuples(_ROWS, st.just(True)),
            st.tuples(
                st.dictionaries(st.text(max_size=4), _YAML_VALUES, max_size=3), st.just(False)
            ),
        ),
        act=table_content,
        raises=(DataError,),
    ),
    Target(
        name="config: slots",
        values=texts("4", "64", "9" * 5000, "\u0664", "0"),
        act=slots,
        raises=(UsageError,),
    ),
    Target(name="config: wait", values=texts("0s", "90s", "1h"), act=wait, raises=(UsageError,)),
    Target(
        name="caches: variables",
        values=st.dictionaries(
            st.sampled_from(_CACHE_NAMES),
            texts("/a", "~/b", "$HOME/x", "${HOME}", "$", "~nobody/x", ""),
            max_size=4,
        ),
        act=cache_variables,
    ),
    Target(
        name="caches: repository",
        values=texts("org/name", "models--org--name", "a.git"),
        act=repo,
        raises=(UsageError,),
    ),
    Target(
        name="caches: revision",
        values=texts("main", "refs/pr/1", "../x", "0" * 40),
        act=revision,
        raises=(UsageError,),
    ),
    Target(
        name="caches: hub",
        values=st.tuples(
            documents(b"0123456789" * 4, most=2),
            st.one_of(
                json_of(snapshots._Listing, _DEEP), sampled([b'{"format_version":1,"files":{}}'])
            ),
            json_of(indexes._Document),
        ),
        act=hub_cache,
        raises=(DataError,),
    ),
    Target(
        name="caches: index of weights",
        values=st.one_of(
            json_of(indexes._Document, _DEEP),
            documents(b'{"weight_map":{"a":"model-1.safetensors","b":"../x"}}'),
        ),
        act=index_file,
    ),
    Target(
        name="caches: records",
        values=st.one_of(json_of(Filled, _DEEP), json_of(cache_quarantine.Quarantined)),
        act=kept_records,
    ),
    Target(
        name="caches: answer of a Python",
        values=documents(b'[{"hub":"/h"},{"torch":"2.13"},{"x":"y"}]', _DEEP),
        act=asked,
    ),
    Target(name="doctor: mounts", values=documents(*_MOUNTS), act=mount_table),
    Target(
        name="doctor: quota",
        values=as_text(
            documents(
                b"/home 12345* 10000 20000 6days 10 0 0 -",
                b"  1 2 3 4 5 6",
                b"9" * 5000 + b" 2 3 4 5 6",
            )
        ),
        act=quota,
    ),
    Target(
        name="calibration: record",
        values=json_of(Calibration, _DEEP),
        act=calibration,
        raises=(DataError,),
    ),
    Target(name="calibration: trial", values=json_of(Trial, _DEEP), act=trial, raises=(DataError,)),
    Target(name="calibration: journal", values=documents(*_JOURNAL), act=trial_journal),
)
