"""What hypothesis draws for the tests of the spool: names, texts, paths, tasks, history, garbage.

Texts are what bytes become under surrogateescape, so that they can hold anything a file name or a
command line can.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fleetcraft.errors import UsageError
from fleetcraft.identity import Owner
from fleetcraft.layout import Lane
from fleetcraft.spool.directives import TaskSpec, check_spec
from fleetcraft.spool.record import HistoryLine, Outcome
from fleetcraft.units import MAX_DURATION_S

_PART = st.from_regex(r"[A-Za-z0-9_-]{1,9}", fullmatch=True)


def task_names(max_size: int = 40) -> st.SearchStrategy[str]:
    """Task names, among them those that look like records, claims and logs themselves."""
    plain = st.from_regex(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{max_size - 8}}}", fullmatch=True)
    tricky = st.sampled_from([".sh", ".sh.", ".sh.1.2.3.4", ".1.log", ".", "..", "-"])
    return st.one_of(plain, st.builds(lambda name, end: name + end, plain, tricky))


def owners() -> st.SearchStrategy[Owner]:
    return st.builds(Owner, job=_PART, rank=_PART, slot=_PART, token=_PART)


def raw_text(*, without: bytes = b"\0", max_size: int = 60) -> st.SearchStrategy[str]:
    """Text that any bytes can stand behind, but these."""
    return st.one_of(
        st.binary(max_size=max_size).map(lambda raw: _decoded(raw.translate(None, without))),
        st.text(max_size=max_size).map(
            lambda text: _decoded(text.encode("utf-8", "replace").translate(None, without))
        ),
        st.text(alphabet="'\"\\`$#(){} \n\tab;&|<>*~-", max_size=max_size).map(
            lambda text: _decoded(text.encode().translate(None, without))
        ),
    )


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def words() -> st.SearchStrategy[str]:
    return st.from_regex(r"[A-Za-z0-9_.:/-]{1,12}", fullmatch=True)


def dependencies() -> st.SearchStrategy[str]:
    return st.one_of(task_names(), st.sampled_from(["enc-*", "a?c", "x[0-9]*", "*"]))


def task_specs(**fixed: Any) -> st.SearchStrategy[TaskSpec]:
    """Tasks that the enqueue accepts."""
    paths = st.lists(raw_text(without=b"\0\n"), max_size=3).map(tuple)
    durations = st.one_of(st.none(), st.integers(1, MAX_DURATION_S))
    fields: dict[str, Any] = {
        "name": task_names(),
        "command": raw_text(max_size=120),
        "project_dir": raw_text(without=b"\0\n"),
        "family": st.one_of(st.just(""), words(), raw_text()),
        "timed": st.booleans(),
        "time_s": durations,
        "timeout_s": durations,
        "retries": st.integers(0, 1000),
        "after": st.lists(dependencies(), max_size=3).map(tuple),
        "after_files": paths,
        "outputs": paths,
        "lane": st.sampled_from(Lane),
        "slot": st.one_of(st.just(""), words()),
        "env_file": raw_text(without=b"\0\n"),
        "login": st.booleans(),
    }
    fields |= {name: st.just(value) for name, value in fixed.items()}
    return st.builds(TaskSpec, **fields).filter(is_accepted)


def is_accepted(spec: TaskSpec) -> bool:
    try:
        check_spec(spec)
    except UsageError:
        return False
    return True


def history_lines() -> st.SearchStrategy[HistoryLine]:
    return st.builds(
        HistoryLine,
        claim=st.sampled_from(["a-1", "a-2", "b-1"]),
        outcome=st.sampled_from(Outcome),
        to=st.sampled_from(["pending", "done", "failed"]),
        attempt=st.integers(0, 9),
        exit_code=st.one_of(st.none(), st.integers(0, 255)),
        wall_s=st.one_of(st.none(), st.floats(0, 1e6)),
        reason=st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace").decode()),
    )


def header_lines() -> st.SearchStrategy[str]:
    """Directives, right and wrong."""
    keys = st.sampled_from(
        ["name", "id", "family", "timed", "time", "timeout", "retries", "after", "after-file",
         "outputs", "lane", "slot", "env-file", "login", "colour", ""]
    )  # fmt: skip
    values = st.one_of(
        raw_text(without=b"\n"),
        st.from_regex(r"\d{1,9}(:\d{1,3}){0,3}[smhd]?", fullmatch=True),
        st.sampled_from(["true", "first", "9" * 400 + "h", "9" * 5000, "'open", "t", "a*"]),
    )
    return st.builds(lambda key, value: f"#FLEET {key}: {value}", keys, values)


def near_records() -> st.SearchStrategy[bytes]:
    """Bytes that resemble a record more or less."""
    ends = st.sampled_from(
        [b"exit\n", b"exit\n#FLEET-RUN {}\n", b'exit\n#FLEET-RUN {"claim":"a-1"', b"\n#FLEET-RUN ",
         b"exit\n#FLEE", b"exit\n#FLEET-RUN " + b"[" * 5000, b""]
    )  # fmt: skip
    first = st.sampled_from([b"#!/usr/bin/env bash\n", b"#!", b"", b"\xff\n"])
    heads = st.lists(header_lines(), max_size=6).map(
        lambda lines: "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    )
    bodies = st.one_of(
        st.binary(max_size=80),
        st.sampled_from(["'open", "", "''", "a b", "'a' b"]).map(
            lambda text: f"cd -- {text} || exit 1\n".encode()
        ),
    )
    return st.builds(lambda a, b, c, d: a + b + c + d, first, heads, bodies, ends)
