"""What the spool reads: records, history, leases, journals, grids, barriers, markers, sweeps."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from hypothesis import strategies as st

from fleetcraft.errors import DataError, FleetError, SpoolError, UsageError
from fleetcraft.files import FileSystem
from fleetcraft.identity import sha256_hex
from fleetcraft.spool import barrier, control, grid, leases, sweep, syntax
from fleetcraft.spool.directives import TaskSpec, check_spec
from fleetcraft.spool.record import (
    HistoryLine,
    Outcome,
    closing_lines,
    compose,
    destination,
    parse,
    parse_history,
    write_history,
)
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.worker.environment import read_env_file
from tests.fuzz import folders
from tests.fuzz.strategies import documents, json_of, mixed, texts, values_of
from tests.fuzz.target import Target
from tests.spool.strategies import history_lines, near_records, raw_text, task_specs

_BASE = TaskSpec(name="", command="", project_dir="/p")
_ID = "7f3a9c0d12e4"


def record(data: bytes) -> None:
    read = parse(data)
    assert data.startswith(read.head), "the head is not the beginning of the record"
    assert read.identity
    assert read.next_attempt >= 1
    for outcome in Outcome:
        assert destination(read, outcome) in ("pending", "done", "failed")
    closing_lines(read)


def record_round_trip(spec: TaskSpec) -> None:
    read = parse(compose(spec, _ID))
    assert (read.id, read.spec) == (_ID, spec), f"written {spec}, read {read.spec}"
    assert read.history == ()
    assert not read.damaged


def flipped_record(value: tuple[TaskSpec, int, int]) -> None:
    """A changed record has another identity, unless the change is in its id line or is refused."""
    spec, place, bit = value
    data = compose(spec, _ID)
    at = place * len(data) >> 16
    changed = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    read = parse(changed)
    id_line = f"\n#FLEET id: {read.id}\n".encode("utf-8", "surrogateescape")
    same_but_id = changed.replace(id_line, b"\n") == data.replace(
        f"\n#FLEET id: {_ID}\n".encode(), b"\n"
    )
    if not same_but_id:
        assert read.identity != parse(data).identity, "the change is not seen"


def history(data: bytes) -> None:
    lines, damaged = parse_history(data)
    assert len(lines) + damaged == sum(bool(line) for line in data.split(b"\n"))


def history_round_trip(line: HistoryLine) -> None:
    assert parse_history(write_history(line)) == ((line,), 0)


def history_of_any_text(value: tuple[HistoryLine, str]) -> None:
    line = msgspec.structs.replace(value[0], reason=value[1], log=value[1])
    read, damaged = parse_history(write_history(line))
    assert (len(read), damaged) == (1, 0), "a line that was written cannot be read"
    assert (read[0].claim, read[0].to, read[0].outcome) == (line.claim, line.to, line.outcome)


def torn_history(value: tuple[TaskSpec, list[HistoryLine], int, list[HistoryLine]]) -> None:
    """A history line cut anywhere, and what is appended after it: all but that line is read."""
    spec, before, place, after = value
    whole = b"".join(map(write_history, before))
    torn = write_history(HistoryLine(claim="t-1", outcome=Outcome.LOST, to="pending"))
    stump = torn[: 1 + (place * (len(torn) - 2) >> 16)]
    rest = b"".join(map(write_history, after))
    data = compose(spec, _ID) + whole + stump + b"\n" + rest
    read = parse(data)
    assert read.spec == spec, f"the torn line {stump!r} became part of the task"
    assert list(read.history) == before + after, f"the torn line {stump!r} hides others"
    assert read.damaged == 1


def _tree() -> SpoolTree:
    tree = SpoolTree(folders.fresh("taskq"), FileSystem())
    for path in (tree.paths.workers, tree.paths.grids):
        os.mkdir(path, 0o700)
    return tree


def lease(data: bytes) -> None:
    tree = _tree()
    folders.write("taskq/workers/1.0.x.json", data)
    found = leases.read(tree, "1.0.x")
    if found is not None:
        leases.lives_here(found, leases.this_host())
    assert leases.read_all(tree) == ([found] if found is not None else [])


def lease_round_trip(value: leases.Lease) -> None:
    tree = _tree()
    folders.write("taskq/workers/1.0.x.json", msgspec.json.encode(value) + b"\n")
    assert leases.read(tree, "1.0.x") == value


def journal(data: bytes) -> None:
    tree = _tree()
    folders.write("taskq/workers/1.0.x.jsonl", data)
    events, damaged = leases.read_journal(tree, "1.0.x")
    assert all(isinstance(event, dict) for event in events)
    assert len(events) + damaged <= len(data.splitlines())


def frozen_grid(data: bytes) -> None:
    tree = _tree()
    digest = sha256_hex(data)
    folders.write(f"taskq/grids/{digest}.json", data)
    grid.read_grid(tree, digest)


def grid_binding(data: bytes) -> None:
    tree = _tree()
    folders.write("taskq/LAST_GRID", data)
    found = grid.bound_digest(tree)
    assert found
    assert grid.check_digest(found, "LAST_GRID") == found


def barrier_record(data: bytes) -> None:
    state = barrier.check(folders.write("barrier/atlas.marker", data))
    assert state.ready is not True or state.barrier is not None
    assert state.ready is True or state.reason


def marker(data: bytes) -> None:
    tree = _tree()
    folders.write("taskq/DRAIN", data)
    said = control.read_markers(tree)
    assert list(said) == ["DRAIN"]
    assert isinstance(said["DRAIN"], str)


def from_csv(value: tuple[str, str, str]) -> None:
    text, name, command = value
    for spec in sweep.from_csv(
        text.splitlines(keepends=True), name=name, command=command, base=_BASE
    ):
        _enqueueable(spec)


def from_jsonl(data: bytes) -> None:
    for spec in sweep.from_jsonl(data.split(b"\n"), name=None, command=None, base=_BASE):
        _enqueueable(spec)


def from_jsonl_template(value: tuple[bytes, str, str]) -> None:
    data, name, command = value
    for spec in sweep.from_jsonl(data.split(b"\n"), name=name, command=command, base=_BASE):
        _enqueueable(spec)


def from_lines(text: str) -> None:
    for spec in sweep.from_lines(text.splitlines(keepends=True), name="job-{n}", base=_BASE):
        _enqueueable(spec)


def _enqueueable(spec: TaskSpec) -> None:
    """What is accepted comes back from its record as it was."""
    assert parse(compose(check_spec(spec), _ID)).spec == spec


def template(value: tuple[str, dict[str, Any]]) -> None:
    text, row = value
    assert isinstance(sweep.expand(text, row, quote=True), str)
    assert isinstance(sweep.expand(text, row, quote=False), str)


def plainly_closed(text: str) -> None:
    # Whether bash agrees is tested in tests/spool; here that the pattern comes to an end.
    syntax._PLAINLY_CLOSED.fullmatch(text)


def env_file(data: bytes) -> None:
    path = folders.write("env", data)
    read = read_env_file(TaskSpec(name="a", command="true", project_dir="/p", env_file=path))
    for name, value in read.items():
        assert name, "a variable without a name"
        assert not set("=\0") & set(name), f"no variable: {name!r}"
        assert "\0" not in value, f"no value: {value!r}"


_RECORD = (
    b"#!/usr/bin/env bash\n#FLEET name: gen-00017\n#FLEET id: 7f3a9c0d12e4\n"
    b"#FLEET family: wan-1.3b\n#FLEET timed: true\n#FLEET time: 00:40:00\n#FLEET retries: 2\n"
    b"#FLEET after: gen-00001 enc-*\n#FLEET after-file: 'a b' ready/atlas.marker\n"
    b"#FLEET outputs: videos/00017.mp4\n#FLEET lane: first\ncd -- '/pro ject' || exit 1\n"
    b"python gen.py --seed 17\nexit\n"
    b'#FLEET-RUN {"claim":"k3x9q2ab-4","attempt":1,"outcome":"failed",'
    b'"exit_code":1,"to":"pending"}\n'
)
_TABLE = 'seed,steps,name\n1,10,a\n2,1e3,"b,c"\n3,,d\n'
_TEMPLATES = st.one_of(
    st.sampled_from(["gen-{seed:05d}", "{n}", "{seed}{steps:.3f}", "{{x}}", "a"]),
    texts("gen-{seed:05d}", "{n:>9999}", "{seed!r}", "{seed.__class__}", "{seed[0]}", "{n:{seed}}"),
)
_TASK = (
    b'{"name":"a-1","command":"echo hi","after":["b","c-*"],"timeout":"00:10:00","retries":2,'
    b'"outputs":"x y","lane":"first","timed":true}\n{"name":"a-2","command":"true"}\n'
)
_CLAIMED = (st.lists(history_lines(), max_size=3), st.lists(history_lines(), max_size=2))
TARGETS = (
    Target(
        name="spool: record",
        values=mixed(st.just(_RECORD), near_records(), task_specs().map(lambda s: compose(s, _ID))),
        act=record,
        raises=(DataError,),
    ),
    Target(name="spool: record, written and read", values=task_specs(), act=record_round_trip),
    Target(
        name="spool: record with one bit changed",
        values=st.tuples(task_specs(), st.integers(0, (1 << 16) - 1), st.integers(0, 7)),
        act=flipped_record,
        raises=(DataError,),
    ),
    Target(
        name="spool: history",
        values=mixed(json_of(HistoryLine).map(lambda one: b"#FLEET-RUN " + one + b"\n")),
        act=history,
    ),
    Target(
        name="spool: history, written and read",
        values=values_of(HistoryLine),
        act=history_round_trip,
    ),
    Target(
        name="spool: history of any text",
        values=st.tuples(history_lines(), raw_text(without=b"")),
        act=history_of_any_text,
    ),
    Target(
        name="spool: history line torn anywhere",
        values=st.tuples(
            task_specs(command="true"), _CLAIMED[0], st.integers(0, (1 << 16) - 1), _CLAIMED[1]
        ),
        act=torn_history,
    ),
    Target(name="spool: lease", values=json_of(leases.Lease), act=lease),
    Target(
        name="spool: lease, written and read", values=values_of(leases.Lease), act=lease_round_trip
    ),
    Target(
        name="spool: journal",
        values=documents(
            b'{"event":"start","task":"a","claim":"x-1","at":"2026"}\n{"event":"end"}\n'
        ),
        act=journal,
    ),
    Target(
        name="spool: frozen grid",
        values=json_of(grid._GridFile),
        act=frozen_grid,
        raises=(DataError,),
    ),
    Target(
        name="spool: grid that binds",
        values=documents(b"0123456789abcdef" * 4 + b"\n"),
        act=grid_binding,
        raises=(DataError,),
    ),
    Target(
        name="spool: barrier",
        values=json_of(barrier.Barrier),
        act=barrier_record,
        raises=(DataError, SpoolError),
    ),
    Target(
        name="spool: marker",
        values=documents(
            b'{"at":"2026-11-29T20:33:05.123Z","by":"me@c1","reason":"maintenance"}\n',
            b'"maintenance"',
            b"42",
            b"[1]",
            b"by hand",
            b"[" * 100_000,
        ),
        act=marker,
    ),
    Target(
        name="spool: table of a sweep",
        values=st.tuples(texts(_TABLE), _TEMPLATES, _TEMPLATES),
        act=from_csv,
        raises=(UsageError,),
    ),
    Target(
        name="spool: tasks as JSON lines",
        values=documents(_TASK, b"[" * 100_000),
        act=from_jsonl,
        raises=(UsageError,),
    ),
    Target(
        name="spool: JSON lines and templates",
        values=st.tuples(
            documents(b'{"seed":17,"steps":1e3,"name":"x"}\n{"seed":"5","steps":null}\n'),
            _TEMPLATES,
            _TEMPLATES,
        ),
        act=from_jsonl_template,
        raises=(UsageError,),
    ),
    Target(
        name="spool: commands in lines",
        values=texts("echo 1\necho 2\r\n\n  \npython x.py 'a'\n"),
        act=from_lines,
        raises=(UsageError,),
    ),
    Target(
        name="spool: template",
        values=st.tuples(
            _TEMPLATES,
            st.fixed_dictionaries(
                {"seed": texts("1", "0x1", "1e5", "a b", "9" * 5000), "steps": texts("2", "-1.5")}
            ).map(lambda row: {"n": 3, **row}),
        ),
        act=template,
        raises=(UsageError,),
    ),
    Target(
        name="spool: quotes of a command",
        values=texts(
            "echo 'it''s' \"a $x ${y} $(z)\" \\", '"' * 40 + "$" * 40, "a" * 30 + "'", most=6
        ),
        act=plainly_closed,
    ),
    Target(
        name="spool: file of variables",
        values=documents(b"A=1\n# note\nexport B='x y'\n\nC=\"q\"\n", b"PATH=/bin\r\n"),
        act=env_file,
        raises=(FleetError,),
    ),
)
