"""The walk from a figure back to the log, on a project that really ran, and what breaks it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fleetcraft import Spool
from fleetcraft.batch_table import make_table, write_table
from fleetcraft.calibration.freezing import row_of
from fleetcraft.calibration.sweep.store import read_calibration
from fleetcraft.evidence import stamp
from fleetcraft.evidence.records import Kind, Level
from fleetcraft.evidence.results.comparing import Side, compare
from fleetcraft.evidence.results.sets import read_set
from fleetcraft.evidence.sealed import seal
from fleetcraft.evidence.tracing.nodes import Node, Standing, overall, walk
from fleetcraft.evidence.tracing.rooms import Roots
from fleetcraft.evidence.tracing.trace import trace
from fleetcraft.layout import Scratch, State
from fleetcraft.layout.evidence import origin_file
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.training.checkpoint.store import CheckpointStore
from fleetcraft.worker.local_fleet import run_local
from fleetcraft.worker.settings import WorkerSettings
from tests.evidence.project import ARMS, SEEDS, SET, Project, make_project
from tests.plots.made_calibration import freezable, store_run
from tests.training.checkpoint.stores import save


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project as it ran; tests work on copies of it."""
    return make_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def project(made: Project, tmp_path: Path) -> Project:
    """A copy of the whole tree elsewhere, with a figure that rests on all of it."""
    base = made.root.parent
    shutil.copytree(base, tmp_path / "moved")
    here = {name: tmp_path / "moved" / getattr(made, name).relative_to(base) for name in FIELDS}
    return Project(**here)


FIELDS = ("root", "folder", "telemetry", "window")


def compared(project: Project) -> Path:
    """The number that is reported, as a file, with its origin."""
    found = read_set(Scratch(str(project.root)).evidence, SET)
    sides = [Side(arm, found.arms()[arm], set=SET, set_sha256=found.sha256) for arm in ARMS]
    import msgspec

    path = project.folder / "comparison.json"
    path.write_bytes(msgspec.json.encode(compare(*sides, "score")))
    stamp(str(path), [str(one) for one in project.results], made_by="compare", kind=Kind.SUMMARY)
    return path


def drawn(project: Project) -> Path:
    figure = project.figure()
    stamp(str(figure), [str(compared(project)), str(project.window)], made_by="python plot.py")
    return figure


def traced(project: Project, path: Path, **words: object) -> Node:
    roots = Roots(scratch=str(project.root))
    return trace(str(path), roots=roots, **words)  # type: ignore[arg-type]


def one(node: Node, kind: Kind, name: str) -> Node:
    """The first node of a kind whose name ends so."""
    return next(n for n in walk(node) if n.kind is kind and n.name.endswith(name))


def results_of(project: Project, arm: str) -> Path:
    """The file in which the task of an arm wrote its results."""
    [path] = [one for one in project.results if f'"{arm}"'.encode() in one.read_bytes()]
    return path


def bad(node: Node) -> list[tuple[str, str]]:
    """Every node that does not stand, as kind and verdict."""
    return [(n.kind.value, n.verdict.value) for n in walk(node) if n.verdict != "verified"]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(data))


# --------------------------------------------------------------------------------- end to end


def test_a_reported_number_is_traced_to_the_logs_of_the_tasks_that_made_it(
    project: Project,
) -> None:
    figure = drawn(project)
    reported = json.loads((project.folder / "comparison.json").read_bytes())

    found = traced(project, figure)

    assert bad(found) == []
    assert (reported["pairs"], found.kind, found.level) == (3, Kind.FIGURE, Level.HASHED)
    comparison, window = found.children
    assert (comparison.name, window.name) == ("comparison.json", "window.json")
    assert {comparison.kind, window.kind} == {Kind.SUMMARY}
    # The window rests on a prefix of the telemetry file, and on the tasks that ran meanwhile.
    (telemetry,) = window.children
    frozen = json.loads(project.window.read_bytes())["sources"][0]
    assert telemetry.kind is Kind.TELEMETRY
    assert telemetry.found_sha256 == telemetry.expected_sha256 == frozen["sha256"]
    assert telemetry.expected_bytes == frozen["prefix_bytes"]
    assert sorted(n.name for n in telemetry.children) == ["gen-cached", "gen-full"]
    # Each pair of the comparison is a result record, and each record names its task.
    rows = [row for file in comparison.children for row in file.children]
    assert sorted(row.name for row in rows) == sorted(f"{a}/{s}" for a in ARMS for s in SEEDS)
    for row in rows:
        output, task = row.children
        assert (output.kind, output.level) == (Kind.OTHER, Level.HASHED)
        record = SpoolTree(str(project.spool)).read(str(project.spool / f"done/{task.name}.sh"))
        assert (task.kind, task.level) == (Kind.TASK, Level.HASHED)
        assert task.found_sha256 == task.expected_sha256 == record.identity
        assert task.detail.startswith("attempt 1: completed on ")
    # Every task has its log, which is there with what the task said.
    for arm in ARMS:
        log = one(found, Kind.LOG, f"gen-{arm}.1.log")
        text = (project.spool / "logs" / log.name).read_text()
        assert f"generating for {arm}" in text
        assert (log.level, log.found_bytes) == (Level.LISTED, len(text))


def test_a_trace_writes_nothing(project: Project) -> None:
    figure = drawn(project)
    before = {path: path.stat().st_mtime_ns for path in project.root.parent.rglob("*")}
    traced(project, figure)
    after = {path: path.stat().st_mtime_ns for path in project.root.parent.rglob("*")}
    assert after == before


def test_a_window_alone_is_traced_by_its_own_sources(project: Project) -> None:
    found = traced(project, project.window)
    assert overall(found) is Standing.VERIFIED
    assert found.level is Level.HASHED
    assert one(found, Kind.LOG, "gen-full.1.log").verdict is Standing.VERIFIED


def test_an_output_is_traced_by_the_result_that_names_its_hash(project: Project) -> None:
    found = traced(project, project.folder / "clip-full-2.bin")
    assert overall(found) is Standing.VERIFIED
    assert [child.name for child in found.children] == ["full/2"]
    assert one(found, Kind.TASK, "gen-full").level is Level.HASHED


def test_a_record_of_the_spool_is_traced_to_its_log(project: Project) -> None:
    found = traced(project, project.spool / "done/gen-full.sh")
    assert overall(found) is Standing.VERIFIED
    assert one(found, Kind.LOG, "gen-full.1.log")


def test_a_calibration_is_traced_to_the_journals_of_its_trials(tmp_path: Path) -> None:
    place = Path(store_run(tmp_path, freezable()))
    figure = place / "peaks.png"
    figure.write_bytes(b"png")
    stamp(str(figure), [str(place / "calibration.json")], made_by="calibrate")
    found = trace(str(figure), roots=Roots(scratch=str(tmp_path)))
    assert overall(found) is Standing.VERIFIED
    journals = [n for n in walk(found) if n.kind is Kind.JOURNAL]
    assert journals
    assert {n.level for n in journals} == {Level.HASHED}
    flip(next(place.rglob("journal.jsonl")), 3)
    found = trace(str(figure), roots=Roots(scratch=str(tmp_path)))
    assert {kind for kind, verdict in bad(found)} == {"journal"}


def test_a_calibration_is_traced_to_the_journals_of_its_soaks_too(tmp_path: Path) -> None:
    place = Path(store_run(tmp_path, freezable()))
    soak, record = place / "soak.jsonl", place / "calibration.json"
    soak.write_bytes(b'{"event": "end"}\n')
    value = json.loads(record.read_bytes())
    digest = hashlib.sha256(soak.read_bytes()).hexdigest()
    value["trials"][0]["evidence"] |= {
        "soak_journal": str(soak), "soak_journal_sha256": f"sha256:{digest}",
    }  # fmt: skip
    record.write_text(json.dumps(value))
    roots = Roots(scratch=str(tmp_path))
    figure = place / "peaks.png"
    figure.write_bytes(b"png")
    stamp(str(figure), [str(record)], made_by="calibrate")
    assert overall(trace(str(figure), roots=roots)) is Standing.VERIFIED
    flip(soak, 3)
    assert {kind for kind, _ in bad(trace(str(figure), roots=roots))} == {"journal"}


def test_a_calibration_stands_by_the_row_of_the_batch_table_that_names_it(tmp_path: Path) -> None:
    place = store_run(tmp_path, freezable())
    record, roots = str(Path(place) / "calibration.json"), Roots(scratch=str(tmp_path))
    assert trace(record, roots=roots).verdict is Standing.UNRECORDED
    run, table = read_calibration(place), Scratch(str(tmp_path)).batch_table
    write_table(table, make_table({run.family: row_of(run)}))
    found = trace(record, roots=roots)
    assert overall(found) is Standing.VERIFIED
    assert found.detail == f"the batch table's row of {run.family} names it by its hash"
    flip(Path(table), Path(table).read_bytes().index(b"batch:") + 7)
    assert trace(record, roots=roots).verdict is Standing.UNKNOWN


def test_a_table_of_other_programs_ends_a_trace(project: Project) -> None:
    table = project.folder / "table.csv"
    table.write_text("a,b\n")
    found = traced(project, _made_from(project, table))
    assert (overall(found), one(found, Kind.TABLE, "table.csv").detail) == (Standing.VERIFIED, "")


def _made_from(project: Project, table: Path) -> Path:
    figure = project.figure()
    stamp(str(figure), [(str(table), Kind.TABLE)], made_by="test")
    return figure


def test_a_table_that_has_grown_is_a_source_by_its_prefix_unless_it_was_frozen(
    project: Project,
) -> None:
    loose = project.folder / "losses.csv"
    loose.write_text("step,loss\n")
    frozen = Path(Scratch(str(project.root)).batch_table)
    frozen.parent.mkdir(exist_ok=True)
    write_table(str(frozen), make_table({}))
    figure = project.figure()
    stamp(str(figure), [str(loose), str(frozen)], made_by="test")
    assert overall(traced(project, figure)) is Standing.VERIFIED
    for path in (loose, frozen):
        path.chmod(0o600)
        with path.open("a") as file:
            file.write("1,2\n")
    assert bad(traced(project, figure)) == [("table", "changed")]


def test_a_checkpoint_is_traced_to_the_files_of_its_ranks(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    first, last = save(store, 10), save(store, 20)  # the later save names the earlier one
    for manifest, verdict in ((first, Standing.VERIFIED), (last, Standing.UNRECORDED)):
        found = trace(f"{manifest.folder}/COMMITTED.json")
        assert (found.verdict, found.kind) == (verdict, Kind.CHECKPOINT)
        assert len(found.children) == len(manifest.files)
        assert {child.verdict for child in found.children} == {Standing.VERIFIED}
    with (Path(first.folder) / first.files[0].path).open("ab") as file:
        file.write(b"more")
    assert bad(trace(f"{first.folder}/COMMITTED.json")) == [("checkpoint", "changed")]


def test_a_batch_table_is_traced_to_the_calibration_of_each_row(tmp_path: Path) -> None:
    place = store_run(tmp_path, freezable())
    path = Scratch(str(tmp_path)).batch_table
    run = read_calibration(place)
    write_table(path, make_table({run.family: row_of(run)}))
    found = trace(path, roots=Roots(scratch=str(tmp_path)))
    assert overall(found) is Standing.VERIFIED
    assert one(found, Kind.SUMMARY, "calibration.json").level is Level.HASHED
    shutil.rmtree(place)
    found = trace(path, roots=Roots(scratch=str(tmp_path)))
    assert (found.verdict, found.detail) == (
        Standing.MISSING,
        "1 rows whose calibration record is not here",
    )


# ----------------------------------------------------------------------------- what has changed


def test_a_source_that_has_only_grown_is_verified_by_its_prefix(project: Project) -> None:
    figure = drawn(project)
    with project.telemetry.open("a") as file:
        file.write("2027-01-15T08:00:00.000Z,,,,,\n")
    with project.results[0].open("a") as file:
        file.write("torn")
    found = traced(project, figure)
    assert bad(found) == []
    assert one(found, Kind.TELEMETRY, ".csv").detail == "grown by 30 bytes since"


def test_rows_after_the_prefix_are_no_part_of_the_number(project: Project) -> None:
    figure = drawn(project)
    file = project.results[0]
    data = file.read_bytes()
    file.write_bytes(data + data.replace(b'"seed":1', b'"seed":9'))  # untrusted, but later
    assert bad(traced(project, figure)) == []


@pytest.mark.parametrize(
    ("which", "offset", "kinds"),
    [
        ("telemetry", 900, {"telemetry"}),
        ("window", 2500, {"summary"}),
        ("results", 300, {"results"}),
        ("score.svg", 10, {"figure"}),
        ("comparison.json", 40, {"summary"}),
        ("clip-full-1.bin", 5, {"other"}),
    ],
)
def test_a_flipped_bit_is_found_where_it_is(
    project: Project, which: str, offset: int, kinds: set[str]
) -> None:
    figure = drawn(project)
    path = {
        "telemetry": project.telemetry,
        "window": project.window,
        "results": project.results[0],
    }.get(which, project.folder / which)
    flip(path, offset)
    found = traced(project, figure)
    assert overall(found) is Standing.CHANGED
    assert {kind for kind, verdict in bad(found) if verdict == "changed"} == kinds


def test_a_source_that_was_cut_is_changed(project: Project) -> None:
    figure = drawn(project)
    os.truncate(project.telemetry, 1000)
    node = one(traced(project, figure), Kind.TELEMETRY, ".csv")
    assert node.verdict is Standing.CHANGED
    assert node.detail.startswith("1000 bytes, recorded ")


def test_a_figure_is_not_appended_to(project: Project) -> None:
    figure = drawn(project)
    with figure.open("a") as file:
        file.write("<!-- later -->")
    found = traced(project, figure)
    assert (found.verdict, found.detail) == (Standing.CHANGED, "14 bytes more than recorded")


def test_an_output_to_which_something_was_appended_is_changed(project: Project) -> None:
    output = project.folder / "clip-full-1.bin"
    with output.open("a") as file:
        file.write("more\n")
    for hash_outputs in (True, False):
        found = traced(project, results_of(project, "full"), hash_outputs=hash_outputs)
        assert one(found, Kind.OTHER, "clip-full-1.bin").verdict is Standing.CHANGED


def test_a_file_that_grew_after_it_was_stamped_is_changed(project: Project) -> None:
    table = project.folder / "table.txt"
    table.write_text("score 1\n")
    stamp(str(table), [str(one) for one in project.results], made_by="test")
    assert traced(project, table).verdict is Standing.VERIFIED
    table.write_text("score 1\nscore 2\n")
    assert traced(project, table).verdict is Standing.CHANGED


def test_an_output_that_leads_nowhere_is_missing_by_size_too(project: Project) -> None:
    output = project.folder / "clip-full-1.bin"
    output.unlink()
    output.symlink_to("gone")
    found = traced(project, results_of(project, "full"), hash_outputs=False)
    assert one(found, Kind.OTHER, "clip-full-1.bin").verdict is Standing.MISSING


def test_a_record_with_another_command_is_not_the_task_that_ran(project: Project) -> None:
    figure = drawn(project)
    record = project.spool / "done/gen-full.sh"
    record.write_bytes(record.read_bytes().replace(b"gen.py full", b"gen.py best"))
    node = one(traced(project, figure), Kind.TASK, "gen-full")
    assert node.verdict is Standing.CHANGED
    assert node.found_sha256 != node.expected_sha256


def test_an_outcome_that_was_edited_is_changed(project: Project) -> None:
    record = project.spool / "done/gen-full.sh"
    record.write_bytes(record.read_bytes().replace(b'"completed"', b'"failed"', 1))
    node = one(traced(project, project.window), Kind.TASK, "gen-full")
    assert node.verdict is Standing.CHANGED
    assert "recorded as completed" in node.detail


def test_a_window_edited_by_hand_is_changed_though_nothing_recorded_it(project: Project) -> None:
    data = project.window.read_bytes()
    project.window.chmod(0o600)
    project.window.write_bytes(data.replace(b'"active_pct": 5', b'"active_pct": 4', 1))
    found = traced(project, project.window)
    assert overall(found) is Standing.CHANGED
    assert "its digest does not hold" in found.detail


# ------------------------------------------------------------------------- missing and unknown


def test_a_record_that_is_gone_is_missing(project: Project) -> None:
    figure = drawn(project)
    (project.spool / "done/gen-full.sh").unlink()
    found = traced(project, figure)
    assert overall(found) is Standing.MISSING
    assert set(bad(found)) == {("task", "missing")}


def test_a_log_that_is_gone_is_missing(project: Project) -> None:
    figure = drawn(project)
    (project.spool / "logs/gen-full.1.log").unlink()
    assert set(bad(traced(project, figure))) == {("log", "missing")}


def test_an_attempt_that_has_not_ended_is_unknown(project: Project) -> None:
    figure = drawn(project)
    record = project.spool / "done/gen-full.sh"
    head = record.read_bytes().partition(b"#FLEET-RUN ")[0]
    (project.spool / "running/gen-full.sh.L1.0.0.abcdefgh-1").write_bytes(head)
    record.unlink()
    node = one(traced(project, figure), Kind.TASK, "gen-full")
    assert (node.verdict, node.detail) == (Standing.UNKNOWN, "attempt 1 has not ended")


def test_a_record_that_cannot_be_read_is_unknown(project: Project) -> None:
    figure = drawn(project)
    (project.spool / "done/gen-full.sh").write_bytes(b"\0" * 100)
    node = one(traced(project, figure), Kind.TASK, "gen-full")
    assert node.verdict is Standing.UNKNOWN


def test_a_source_that_is_gone_is_missing_and_the_rest_is_still_walked(project: Project) -> None:
    figure = drawn(project)
    project.telemetry.unlink()
    found = traced(project, figure)
    assert ("telemetry", "missing") in bad(found)
    assert one(found, Kind.TELEMETRY, ".csv").children
    assert one(found, Kind.LOG, "gen-full.1.log").verdict is Standing.VERIFIED


def test_a_pipe_in_place_of_a_source_is_unknown_and_is_not_waited_for(project: Project) -> None:
    figure = drawn(project)
    project.telemetry.unlink()
    os.mkfifo(project.telemetry)
    assert ("telemetry", "unknown") in bad(traced(project, figure))


def test_a_figure_that_nobody_stamped_is_unrecorded(project: Project) -> None:
    found = traced(project, project.figure("bare.svg"))
    assert (found.verdict, found.children) == (Standing.UNRECORDED, ())


def test_a_figure_made_from_nothing_that_was_named_is_unrecorded(project: Project) -> None:
    figure = project.figure()
    stamp(str(figure), [], made_by="x")
    assert traced(project, figure).verdict is Standing.UNRECORDED


def test_an_origin_that_is_no_origin_is_unknown(project: Project) -> None:
    figure = drawn(project)
    Path(origin_file(str(figure))).write_text("{")
    found = traced(project, figure)
    assert found.verdict is Standing.UNKNOWN
    assert "is no origin" in found.detail


def test_an_origin_of_other_bytes_is_seen(project: Project) -> None:
    figure = drawn(project)
    stamp(str(project.window), [], made_by="x")
    beside = Path(origin_file(str(project.window)))
    beside.write_bytes(beside.read_bytes().replace(b'"sha256": "', b'"sha256": "0', 1))
    node = one(traced(project, figure), Kind.SUMMARY, "window.json")
    assert (node.verdict, node.detail) == (Standing.UNKNOWN, "its origin is of other bytes")


def test_files_that_name_each_other_do_not_hold_the_walk(project: Project) -> None:
    for name, other in (("a.csv", "b.csv"), ("b.csv", "a.csv")):
        for path in (name, other):
            (project.folder / path).touch()
        stamp(str(project.folder / name), [str(project.folder / other)], made_by="x")
    found = traced(project, project.folder / "a.csv")
    assert overall(found) is Standing.UNKNOWN
    assert found.children[0].children[0].detail == "its sources lead back to itself"


def test_a_long_chain_ends_at_a_limit(project: Project) -> None:
    for number in range(60):
        (project.folder / f"c{number}.csv").write_text(str(number))
    for number in range(59):
        stamp(
            str(project.folder / f"c{number}.csv"),
            [str(project.folder / f"c{number + 1}.csv")],
            made_by="x",
        )
    found = traced(project, project.folder / "c0.csv")
    assert overall(found) is Standing.UNKNOWN
    assert sum(1 for _ in walk(found)) < 50
    assert "files deep" in list(walk(found))[-1].detail


@pytest.mark.parametrize("path", ["/etc/hostname", "a\0b", ""])
def test_an_output_that_names_no_relative_path_is_not_looked_at(
    project: Project, path: str
) -> None:
    (file, *_) = project.results
    for other in project.results[1:]:
        other.unlink()
    lines = []
    for line in file.read_bytes().splitlines():
        record = json.loads(line)["record"]
        record["outputs"][0]["path"] = path
        lines.append(seal(json.dumps(record).encode()))
    file.write_bytes(b"".join(lines))
    assert ("other", "missing") in bad(traced(project, file))


def test_a_task_name_that_leads_out_of_the_spool_is_unknown(project: Project) -> None:
    figure = drawn(project)
    beside = Path(origin_file(str(figure)))
    value = json.loads(beside.read_bytes())
    value["producer"] = {"task": "../../evil", "spool": "../.."}
    beside.write_text(json.dumps(value))
    assert ("task", "unknown") in bad(traced(project, figure))


# ---------------------------------------------------------------------------- where things are


def test_a_figure_that_moved_alone_finds_its_sources_in_the_scratch_tree(
    project: Project, tmp_path: Path
) -> None:
    figure = project.figure()
    stamp(str(figure), [str(project.telemetry)], made_by="x")
    (tmp_path / "paper").mkdir()
    for path in (str(figure), origin_file(str(figure))):
        shutil.move(path, tmp_path / "paper")
    found = traced(project, tmp_path / "paper/score.svg")
    assert overall(found) is Standing.VERIFIED
    assert found.children[0].place == "the scratch tree"
    alone = trace(str(tmp_path / "paper/score.svg"))
    assert overall(alone) is Standing.MISSING


def test_what_was_purged_from_scratch_is_found_in_an_archive(
    project: Project, tmp_path: Path
) -> None:
    figure = drawn(project)
    archive = tmp_path / "archive"
    shutil.copytree(project.root, archive / "data/everything")
    shutil.rmtree(project.root)
    project.root.mkdir()
    gone = traced(project, figure)
    assert overall(gone) is Standing.MISSING
    roots = Roots(scratch=str(project.root), archives=(str(archive),))
    found = trace(str(figure), roots=roots)
    assert [n for n in walk(found) if n.verdict != "verified" and n.kind is not Kind.OTHER] == []
    assert one(found, Kind.TELEMETRY, ".csv").place == "archive archive"
    assert one(found, Kind.TASK, "gen-full").place == "archive archive"


def test_an_archive_is_preferred_to_a_file_of_the_same_name_with_other_bytes(
    project: Project, tmp_path: Path
) -> None:
    figure = drawn(project)
    (tmp_path / "archive").mkdir()
    shutil.copy(project.telemetry, tmp_path / "archive")
    flip(project.telemetry, 900)
    roots = Roots(scratch=str(project.root), archives=(str(tmp_path / "archive"),))
    found = trace(str(figure), roots=roots)
    assert overall(found) is Standing.VERIFIED
    node = one(found, Kind.TELEMETRY, ".csv")
    assert (node.place, node.detail) == ("archive archive", "other bytes where the record says")


def test_the_figure_itself_is_the_one_that_was_named(project: Project, tmp_path: Path) -> None:
    figure = drawn(project)
    (tmp_path / "archive").mkdir()
    shutil.copy(figure, tmp_path / "archive")
    figure.write_text("<svg>edited</svg>")
    roots = Roots(archives=(str(tmp_path / "archive"),))
    assert trace(str(figure), roots=roots).verdict is Standing.CHANGED


def test_a_task_of_the_same_name_in_the_other_spool_is_not_taken_for_it(project: Project) -> None:
    from fleetcraft import Spool

    figure = drawn(project)
    inner = Spool.create(Scratch(str(project.root)).inner, project_dir=str(project.folder))
    inner.enqueue("gen-full", "echo another")
    assert bad(traced(project, figure)) == []


# ------------------------------------------------------------------------------------- limits


def test_a_list_is_bounded_and_shows_the_worst(project: Project) -> None:
    figure = drawn(project)
    (project.folder / "clip-cached-3.bin").write_text("other")
    found = traced(project, figure, limit=1)
    assert overall(found) is Standing.CHANGED
    assert found.left_out == 1
    assert ("other", "changed") in bad(found)


def test_outputs_can_be_compared_by_size_alone(project: Project) -> None:
    figure = drawn(project)
    flip(project.folder / "clip-full-1.bin", 5)
    found = traced(project, figure, hash_outputs=False)
    assert bad(found) == []
    assert one(found, Kind.OTHER, "clip-full-1.bin").level is Level.SIZED


def test_a_failed_attempt_is_told_as_one(project: Project) -> None:
    tree = SpoolTree(str(project.spool))
    record = project.spool / "done/gen-full.sh"
    line = json.loads(record.read_bytes().partition(b"#FLEET-RUN ")[2].splitlines()[0])
    line |= {"outcome": "failed", "exit_code": 3, "to": "failed"}
    head = tree.read(str(record)).head
    target = tree.paths.finished_record("gen-full", State.FAILED)
    Path(target).write_bytes(head + b"#FLEET-RUN " + json.dumps(line).encode() + b"\n")
    record.unlink()
    node = one(traced(project, project.folder / "clip-full-1.bin"), Kind.TASK, "gen-full")
    assert node.detail.startswith("attempt 1: failed, exit code 3 on ")


def test_the_copy_of_a_project_is_the_project(project: Project, made: Project) -> None:
    assert replace(project, **{name: getattr(made, name) for name in FIELDS}) == made


# ------------------------------------------------------------------------- declared outputs


@pytest.fixture
def declared(tmp_path: Path) -> tuple[Path, Roots]:
    """A file that a task declared as its output and left behind; no result record names it."""
    root, folder = tmp_path / "scratch", tmp_path / "project"
    for made in (root, folder):
        made.mkdir(mode=0o700)
    scratch = Scratch(str(root))
    spool = Spool.create(scratch.outer, project_dir=str(folder))
    spool.enqueue("score", "seq 3 > scores.txt", outputs=("scores.txt",))
    spool.enqueue("other", "seq 4 > other.txt", outputs=("other.txt",))
    run_local(WorkerSettings(spool_dir=spool.root, root=str(root)), 1, lambda event: None)
    assert spool.counts()["done"] == 2
    return folder / "scores.txt", Roots(scratch=str(root))


def test_a_declared_output_leads_to_its_task_and_log(declared: tuple[Path, Roots]) -> None:
    path, roots = declared

    node = trace(str(path), roots=roots)

    [task] = node.children
    assert (node.verdict, task.name, task.verdict) == (
        Standing.VERIFIED,
        "score",
        Standing.VERIFIED,
    )
    assert [log.name for log in task.children] == ["score.1.log"]
    assert overall(node) is Standing.VERIFIED


def test_a_figure_made_from_a_declared_output_is_traced_to_the_log(
    declared: tuple[Path, Roots],
) -> None:
    path, roots = declared
    figure = path.with_name("score.svg")
    figure.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    stamp(str(figure), [str(path)], made_by="a test")

    node = trace(str(figure), roots=roots)

    assert [each.name for each in walk(node) if each.kind is Kind.LOG] == ["score.1.log"]
    assert overall(node) is Standing.VERIFIED


def test_a_file_that_no_task_left_so_is_nobodys_output(declared: tuple[Path, Roots]) -> None:
    path, roots = declared
    path.write_text("1\n2\n3\n4\n5\n")

    node = trace(str(path), roots=roots)

    assert node.children == ()
    assert node.verdict is Standing.UNRECORDED
