"""Whether a frozen window holds: every change of it is refuted, and growth of sources is none."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetcraft.errors import DataError
from fleetcraft.telemetry.windows.freeze import digest_of, freeze
from fleetcraft.telemetry.windows.span import window_at
from fleetcraft.telemetry.windows.summary import summarize
from fleetcraft.telemetry.windows.verdicts import Verdict, Verification, same
from fleetcraft.telemetry.windows.verify import verify
from tests.telemetry.journals import Launch, depth, iso, make_spool
from tests.telemetry.trees import inventory, line, write_file

REPO = Path(__file__).resolve().parents[2]
WINDOWS = REPO.parent / "shared" / "telemetry" / "windows"
HELD = ("gpu_utilization_20260719_post_3x.json", "gpu_utilization_20260721_audit_recovery.json")
T = 1_800_000_000.0
archived = pytest.mark.skipif(not WINDOWS.is_dir(), reason="no archived windows beside this copy")
Value = dict[str, Any]


class Scene:
    """A small tree of telemetry and journals, and a window of it that was frozen."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "telemetry"
        inner = make_spool(root / "taskq_gpu")
        launch = Launch(inner, T - 9, slots=2, gpus=2)
        launch.write("arrive", T - 9, slots=2, gpus=2, slot_gpus=["GPU-0", "GPU-1"])
        claim = launch.run("one", T + 3, T + 200, family="wan")
        launch.write("depth", T + 290, **depth(pending=1))
        self.files = [
            write_file(
                self.folder,
                node,
                [
                    line(T + 30 * n, gpu_index=i, util_pct=10 * i + n, energy_j=9000 * n)
                    for n in range(11)
                    for i in range(2)
                ],
                sidecar={"interval_s": 30, "started_at": iso(T - 60), "gpus": inventory(0, 1)},
            )
            for node in ("n1", "n2")
        ]
        reports = self.folder / "forwards"
        reports.mkdir()
        text = json.dumps({"at": iso(T + 100), "forwards": 5, "flop": 1e16})
        (reports / f"7.0.0.{claim}.jsonl").write_text(f"{text}\n")
        self.path = root / "w.json"
        window = window_at(300, iso(T + 300), now_s=T)
        read = summarize(str(self.folder), window, spools={"inner": inner.paths.root}, keep=True)
        assert read.evidence is not None
        freeze(str(self.path), read.summary, read.evidence, read.folder)
        self.value: Value = json.loads(self.path.read_text())

    def verify(self, value: Value | None = None, *, seal: bool = False) -> Verification:
        """Verifies the window, or another in its place, with a digest that fits if asked."""
        if value is not None:
            if seal:
                value["digest"] = digest_of(value)
            self.path.write_text(json.dumps(value))
        return verify(str(self.path))

    def without_sources(self) -> None:
        for path in self.files:
            path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    root = tmp_path_factory.mktemp("scene")
    root.chmod(0o700)
    return Scene(root)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    tmp_path.chmod(0o700)
    return Scene(tmp_path)


def fields(found: Verification) -> str:
    return " ".join(difference.field for difference in found.differences)


# ------------------------------------------------------------------------------------------ holds


def test_a_window_holds_against_its_observations_and_its_sources(scene: Scene) -> None:
    found = scene.verify()
    assert (found.verdict, found.differences) == (Verdict.VERIFIED, [])
    assert (found.sources, found.sources_checked, found.observations) == ("checked", 2, 40)
    assert scene.value["summary"]["mfu"]["families"][0]["mfu"] > 0
    assert any("journals were not read again" in text for text in found.not_checked)


def test_files_that_have_only_grown_still_verify(scene: Scene) -> None:
    for path in scene.files:
        with path.open("a") as file:
            file.write(line(T + 31, util_pct=1) + line(T + 330) + "torn")
    found = scene.verify()
    assert (found.verdict, found.sources_checked) == (Verdict.VERIFIED, 2)


def test_a_sidecar_that_has_changed_since_is_no_difference(scene: Scene) -> None:
    path = scene.files[0].with_suffix(".json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "ended_at": iso(T + 900)}))
    assert scene.verify().verdict is Verdict.VERIFIED


def test_without_its_sources_it_says_that_they_were_not_found(scene: Scene) -> None:
    scene.without_sources()
    found = scene.verify()
    assert (found.verdict, found.sources) == (Verdict.VERIFIED, "not found")
    assert any(text.startswith("sources: not found") for text in found.not_checked)


def test_with_some_of_its_sources_it_says_which_were_not_found(scene: Scene) -> None:
    scene.files[0].unlink()
    found = scene.verify()
    assert (found.verdict, found.sources) == (Verdict.VERIFIED, "checked in part")
    assert f"source {scene.files[0].name}: not found" in found.not_checked


def test_sources_are_looked_for_where_the_call_says(scene: Scene, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    scene.folder.rename(moved)
    assert verify(str(scene.path)).sources == "not found"
    assert verify(str(scene.path), sources=str(moved)).sources == "checked"
    assert verify(str(scene.path), elsewhere=(str(moved),)).sources == "checked"


# ---------------------------------------------------------------------------------------- refuted


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b",90,", b",91,", 1),
        lambda data: data.replace(b",300,", b",299,", 1),
        lambda data: data[:-20],
        lambda data: data[: len(data) // 2] + data[len(data) // 2 + 1 :],
        lambda data: b"\n" + data,
    ],
)
def test_a_source_that_has_changed_is_refuted(
    scene: Scene, damage: Callable[[bytes], bytes]
) -> None:
    path = scene.files[1]
    data = path.read_bytes()
    changed = damage(data)
    if changed == data:
        changed = data.replace(b",10,", b",11,", 1)
    assert changed != data
    path.write_bytes(changed)
    found = scene.verify()
    assert found.verdict is Verdict.REFUTED
    assert f"source {path.name}" in fields(found)


def _observed(value: Value, column: str = "util_pct", series: int = 0) -> list[Any]:
    listed: list[Any] = value["observations"][series][column]
    return listed


def _set(value: Value, path: str, new: Any) -> None:
    *way, last = path.split("/")
    at: Any = value
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[int(last) if isinstance(at, list) else last] = new


def _get(value: Value, path: str) -> Any:
    at: Any = value
    for step in path.split("/"):
        at = at[int(step)] if isinstance(at, list) else at[step]
    return at


CHANGES: dict[str, Callable[[Value], None]] = {
    "one observation": lambda v: _observed(v).__setitem__(3, _observed(v)[3] + 1),
    "one observation that is gone from its column": lambda v: _observed(v).__setitem__(3, None),
    "one time": lambda v: _observed(v, "t_s").__setitem__(3, _observed(v, "t_s")[3] + 0.5),
    "one energy": lambda v: _observed(v, "energy_j").__setitem__(0, 1.0),
    "a column": lambda v: _set(v, "observations/1/power_w", 301.0),
    "a status": lambda v: _set(v, "observations/1/status", "lost"),
    "a whole series": lambda v: v["observations"].pop(),
    "a series twice": lambda v: v["observations"].append(copy.deepcopy(v["observations"][0])),
    "a mean by a millionth": lambda v: _set(
        v, "summary/fleet/mean_util_pct", _get(v, "summary/fleet/mean_util_pct") + 1e-6
    ),
    "a host's mean by a millionth": lambda v: _set(
        v, "summary/hosts/1/mean_util_pct", _get(v, "summary/hosts/1/mean_util_pct") - 1e-6
    ),
    "a GPU's share": lambda v: _set(v, "summary/gpus/0/active_fraction", 0.999999),
    "an energy": lambda v: _set(v, "summary/fleet/energy_kwh", 1.0),
    "a number of samples": lambda v: _set(v, "summary/fleet/samples", 41),
    "a number of GPUs": lambda v: _set(v, "summary/fleet/gpus_allocated", 8),
    "a state": lambda v: _set(v, "summary/gpus/0/state", "free_idle"),
    "the sentence": lambda v: _set(v, "summary/sentence", "4 GPUs allocated, 4 working"),
    "the start": lambda v: _set(v, "summary/start", "2027-01-15T08:00:01Z"),
    "a longer window": lambda v: _set(v, "window/seconds", 330.0),
    "a shorter window": lambda v: _set(v, "window/seconds", 200.0),
    "another end": lambda v: _set(v, "window/end_s", T + 360),
    "rows of a source": lambda v: _set(v, "sources/0/rows_in_window", 19),
    "the interval of a source": lambda v: _set(v, "sources/0/interval_s", 60.0),
    "the interval of a series": lambda v: _set(v, "observations/0/interval_s", 60.0),
    "what Slurm expected": lambda v: _set(v, "sources/1/expected_gpus", 2),
    "a depth": lambda v: _set(v, "queue/depths/0/pending", 0),
    "a run's outcome": lambda v: _set(v, "queue/runs/0/outcome", "failed"),
    "a worker's GPUs": lambda v: _set(v, "queue/workers/0/gpus", 1),
    "the queue": lambda v: _set(v, "queue", None),
    "reported FLOPs": lambda v: _set(v, "reported/0/flop", 2e16),
    "an MFU": lambda v: _set(v, "summary/mfu/families/0/mfu", 0.9),
}  # fmt: skip
SOURCE_CHANGES: dict[str, Callable[[Value], None]] = {
    "a hash": lambda v: _set(v, "sources/0/sha256", "0" * 64),
    "a length": lambda v: _set(v, "sources/0/prefix_bytes", 100),
    "counts of rows": lambda v: _set(v, "sources/1/kinds", {"gpu": 23}),
    "counts of rejected lines": lambda v: _set(v, "sources/1/rejected", {"sentence": 1}),
}


@pytest.mark.parametrize("what", [*CHANGES, *SOURCE_CHANGES])
@pytest.mark.parametrize("seal", [False, True])
def test_a_window_in_which_something_was_changed_is_refuted(
    scene: Scene, what: str, seal: bool
) -> None:
    value = copy.deepcopy(scene.value)
    {**CHANGES, **SOURCE_CHANGES}[what](value)
    assert value != scene.value
    found = scene.verify(value, seal=seal)
    assert found.verdict is Verdict.REFUTED
    assert found.differences
    assert ("digest" in fields(found)) is not seal


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_summary_is_refuted_by_its_observations_alone(scene: Scene, what: str) -> None:
    scene.without_sources()
    value = copy.deepcopy(scene.value)
    CHANGES[what](value)
    assert scene.verify(value, seal=True).verdict is Verdict.REFUTED


def test_one_row_that_was_dropped_from_every_column_is_refuted(scene: Scene) -> None:
    scene.without_sources()
    value = copy.deepcopy(scene.value)
    for column in ("t_s", "util_pct", "energy_j"):
        del value["observations"][0][column][4]
    found = scene.verify(value, seal=True)
    assert found.verdict is Verdict.REFUTED
    assert "rows_in_window" in fields(found)


def leaves(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict) and value:
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}/{key}")]
    if isinstance(value, list) and value:
        return [leaf for at, item in enumerate(value) for leaf in leaves(item, f"{path}/{at}")]
    return [path[1:]]


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + max(1, abs(value))  # adding 1 to 1e16 changes nothing
    return f"{value}x" if isinstance(value, str) else "x"


@given(data=st.data())
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_single_value_can_be_changed(frozen: Scene, data: st.DataObject) -> None:
    value = copy.deepcopy(frozen.value)
    leaf = data.draw(st.sampled_from(sorted(leaves(value))))
    _set(value, leaf, other(_get(value, leaf)))
    try:
        verdict = frozen.verify(value).verdict
    except DataError:
        return  # no window any more
    finally:
        frozen.path.write_text(json.dumps(frozen.value))
    assert verdict is not Verdict.VERIFIED


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8), st.just([]), st.just({}), st.lists(st.integers(), max_size=3),
)  # fmt: skip


@given(data=st.data(), new=anything, seal=st.booleans())
@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_stands_in_a_window_ends_in_a_verdict_or_one_error(
    frozen: Scene, data: st.DataObject, new: object, seal: bool
) -> None:
    value = copy.deepcopy(frozen.value)
    leaf = data.draw(st.sampled_from(sorted(leaves(value))))
    same_before = _get(value, leaf) == new
    _set(value, leaf, new)
    try:
        verdict = frozen.verify(value, seal=seal).verdict
    except DataError:
        return
    finally:
        frozen.path.write_text(json.dumps(frozen.value))
    assert seal or same_before or verdict is not Verdict.VERIFIED


@given(
    series=st.integers(0, 3),
    row=st.integers(0, 9),
    column=st.sampled_from(["util_pct", "energy_j", "t_s"]),
    by=st.floats(0.01, 1e6),
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_observation_can_be_changed_even_with_a_fitting_digest(
    frozen: Scene, series: int, row: int, column: str, by: float
) -> None:
    value = copy.deepcopy(frozen.value)
    value["observations"][series][column][row] += by
    try:
        verdict = frozen.verify(value, seal=True).verdict
    except DataError:
        return  # times that are not in order
    finally:
        frozen.path.write_text(json.dumps(frozen.value))
    assert verdict is Verdict.REFUTED


# --------------------------------------------------------------------------------------- no window


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "17", '"window"', "\0\1\2", "[" * 5000,
     '{"schema_version": 2, "hosts": {"a": {"observations": [{"timestamp": 5}]}}}',
     '{"schema_version": 2, "hosts": {"a": {"observations": [{"timestamp": "noon", '
     '"utilization_percent": 1, "memory_fraction": 1}]}}, "captured_at": "x", '
     '"window_seconds": 1, "summary": {}}'],
)  # fmt: skip
def test_what_is_no_window_is_said_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "w.json"
    path.write_text(text)
    with pytest.raises(DataError, match="cannot verify") as caught:
        verify(str(path))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["../secret.csv", "/etc/passwd", "a/b.csv", "..", ""])
def test_no_path_in_it_leads_out_of_its_folder(scene: Scene, name: str) -> None:
    value = copy.deepcopy(scene.value)
    value["sources"][0]["path"] = name
    with pytest.raises(DataError, match="outside its folder"):
        scene.verify(value, seal=True)


def test_nor_is_the_folder_that_it_names_an_absolute_path(scene: Scene) -> None:
    with pytest.raises(DataError, match="not told from its own"):
        scene.verify({**scene.value, "folder": "/etc"}, seal=True)


def test_sources_that_changed_are_found_out_when_the_window_lies_elsewhere(tmp_path: Path) -> None:
    file = write_file(tmp_path / "traces", "n1", [line(T + 30 * n) for n in range(11)])
    elsewhere = tmp_path / "evidence" / "w.json"
    elsewhere.parent.mkdir()
    read = summarize(str(file.parent), window_at(300, iso(T + 300), now_s=T), keep=True)
    assert read.evidence is not None
    freeze(str(elsewhere), read.summary, read.evidence, read.folder)
    assert verify(str(elsewhere)).sources == "checked"
    data = file.read_bytes()
    file.write_bytes(data[:-3] + b"x" + data[-2:])
    assert verify(str(elsewhere)).verdict is Verdict.REFUTED


@pytest.mark.parametrize(
    ("path", "new"),
    [("window/seconds", 0), ("window/end_s", 1e300), ("observations/0/interval_s", -1),
     ("observations/0/t_s", []), ("observations/0/sources", [9]), ("observations/0/host", "n9"),
     ("sources/0/node", "n9"), ("observations/0/util_pct", [1.0]), ("sources", "many")],
)  # fmt: skip
def test_what_does_not_fit_together_is_no_window(scene: Scene, path: str, new: object) -> None:
    value = copy.deepcopy(scene.value)
    _set(value, path, new)
    with pytest.raises(DataError):
        scene.verify(value, seal=True)


@pytest.mark.parametrize(
    ("path", "new"),
    [("observations/0/t_s", []), ("observations/0/host", "n9"), ("sources/0/node", "n9"),
     ("observations/0/t_s/1", 0.0), ("sources", "many"), ("folder", "/etc")],
)  # fmt: skip
def test_what_was_changed_by_hand_until_it_fits_no_more_is_refuted(
    scene: Scene, path: str, new: object
) -> None:
    value = copy.deepcopy(scene.value)
    _set(value, path, new)
    found = scene.verify(value)
    assert (found.verdict, fields(found)) == (Verdict.REFUTED, "digest")
    assert any(text.startswith("everything else: ") for text in found.not_checked)


@pytest.mark.parametrize("observations", [None, [], "absent"])
def test_a_window_whose_observations_are_gone_is_unverifiable(
    scene: Scene, observations: object
) -> None:
    value = copy.deepcopy(scene.value)
    value["observations"] = observations
    if observations == "absent":
        del value["observations"]
    found = scene.verify(value)
    assert found.verdict is Verdict.UNVERIFIABLE
    assert "without observations" in found.reason


@pytest.mark.parametrize("change", [{"schema_version": 9}, {"schema_version": 1}, {"kind": "x"}])
def test_a_form_that_is_not_known_is_unverifiable(scene: Scene, change: Value) -> None:
    assert scene.verify({**scene.value, **change}).verdict is Verdict.UNVERIFIABLE


def test_a_window_of_other_thresholds_is_unverifiable(scene: Scene) -> None:
    value = copy.deepcopy(scene.value)
    value["thresholds"]["active_pct"] = 10.0
    assert scene.verify(value, seal=True).verdict is Verdict.UNVERIFIABLE


# --------------------------------------------------------------------------------------- archived


@archived
@pytest.mark.parametrize("name", HELD)
def test_archived_windows_of_schema_2_hold_exactly(name: str) -> None:
    found = verify(str(WINDOWS / name))
    assert (found.verdict, found.differences) == (Verdict.VERIFIED, [])
    assert found.observations in (410, 470)
    assert any("sources: not found" in text for text in found.not_checked)


@archived
def test_an_archived_window_without_observations_is_unverifiable() -> None:
    found = verify(str(WINDOWS / "gpu_utilization_20260719_1437_1442.json"))
    assert found.verdict is Verdict.UNVERIFIABLE
    assert "without observations" in found.reason


ARCHIVED_CHANGES: dict[str, Callable[[Value, Value], None]] = {
    "a utilization": lambda v, h: h["observations"][0].update(utilization_percent=3.0),
    "a memory fraction": lambda v, h: h["observations"][0].update(memory_fraction=0.1),
    "a dropped row": lambda v, h: h["observations"].pop(),
    "a row twice": lambda v, h: h["observations"].append(h["observations"][-1]),
    "a row of another day": lambda v, h: h["observations"][0].update(
        timestamp="2026-07-18T00:00:00"
    ),
    "a host's mean": lambda v, h: h.update(
        mean_utilization_percent=h["mean_utilization_percent"] + 1e-6
    ),
    "a host's memory": lambda v, h: h.update(mean_memory_fraction=h["mean_memory_fraction"] - 1e-6),
    "a host's share": lambda v, h: h.update(active_fraction=0.5),
    "a host's samples": lambda v, h: h.update(samples=h["samples"] + 1),
    "a host's GPUs": lambda v, h: h.update(gpus_observed=h["gpus_observed"] + 1),
    "a host that is gone": lambda v, h: v["hosts"].pop(next(iter(v["hosts"]))),
    "the mean": lambda v, h: v["summary"].update(
        mean_utilization_percent=v["summary"]["mean_utilization_percent"] + 1e-6
    ),
    "the share": lambda v, h: v["summary"].update(active_fraction=0.85),
    "the memory": lambda v, h: v["summary"].update(mean_memory_fraction=0.75),
    "the samples": lambda v, h: v["summary"].update(samples=471),
    "the hosts": lambda v, h: v["summary"].update(hosts=19),
    "the GPUs": lambda v, h: v["summary"].update(gpus_observed=48),
    "the threshold": lambda v, h: v.update(active_threshold_percent=99.5),
    "a longer window": lambda v, h: v.update(window_seconds=600),
    "a shorter window": lambda v, h: v.update(window_seconds=240),
    "an earlier capture": lambda v, h: v.update(captured_at="2026-07-20T00:05:00-05:00"),
    "a later capture": lambda v, h: v.update(captured_at="2026-07-20T01:11:38-05:00"),
}  # fmt: skip


@archived
@pytest.mark.parametrize("what", ARCHIVED_CHANGES)
def test_a_change_of_an_archived_window_is_refuted(tmp_path: Path, what: str) -> None:
    value: Value = json.loads((WINDOWS / HELD[0]).read_text())
    ARCHIVED_CHANGES[what](value, value["hosts"]["host12"])
    path = tmp_path / "w.json"
    path.write_text(json.dumps(value))
    assert verify(str(path)).verdict is Verdict.REFUTED


def test_sources_of_an_archived_window_are_hashed_where_they_are(tmp_path: Path) -> None:
    import hashlib

    rows = [{"timestamp": "2026-07-20T00:11:30", "utilization_percent": 5.0,
             "memory_fraction": 0.5}]  # fmt: skip
    data = b"timestamp,util\nsome rows\n"
    host = {"observations": rows, "samples": 1, "active_fraction": 1, "gpus_observed": 1,
            "mean_utilization_percent": 5.0, "mean_memory_fraction": 0.5,
            "source": {"prefix_bytes": len(data), "prefix_sha256": hashlib.sha256(data)
                       .hexdigest()}}  # fmt: skip
    summary = {k: host[k] for k in host if k not in ("observations", "source")} | {"hosts": 1}
    value = {"schema_version": 2, "captured_at": "2026-07-20T00:11:38-05:00", "hosts": {"h": host},
             "summary": summary, "window_seconds": 300}  # fmt: skip
    path = tmp_path / "w.json"
    path.write_text(json.dumps(value))
    (tmp_path / "h.csv").write_bytes(data + b"more rows\n")
    held = verify(str(path), sources=str(tmp_path))
    assert (held.verdict, held.sources, held.sources_checked) == (Verdict.VERIFIED, "checked", 1)
    (tmp_path / "h.csv").write_bytes(b"other rows altogether, longer than before\n")
    assert verify(str(path), sources=str(tmp_path)).verdict is Verdict.REFUTED
    (tmp_path / "h.csv").unlink()
    assert verify(str(path), sources=str(tmp_path)).sources == "not found"


# -------------------------------------------------------------------------------------- tolerance


@pytest.mark.parametrize(
    ("found", "expected", "agree"),
    [(1.0, 1.0 + 1e-12, True), (50.0, 50.000001, False), (0.5, 0.500001, False), (1, 1.0, True),
     (1, 2, False), (True, 1, False), (None, 0, False), (0.0, None, False), ("a", "a", True),
     (float("nan"), float("nan"), False)],
)  # fmt: skip
def test_computed_numbers_agree_to_a_billionth_and_all_else_exactly(
    found: object, expected: object, agree: bool
) -> None:
    assert same(found, expected) is agree
