"""A small fleet on a FUSE mount in trouble: a sample of ``python -m tests.crash.mounts``.

Not here: what single rules do (`test_passthrough`).
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.crash.mounts import greeting
from tests.crash.mounts.fleet_work import Fleet
from tests.crash.mounts.judging import judge
from tests.crash.mounts.mounting import CannotMountError, mounted, why_no_fuse
from tests.crash.mounts.trial import put_through
from tests.crash.mounts.troubles import BY_NAME, TROUBLES

pytestmark = pytest.mark.timeout(240)
needs_fuse = pytest.mark.skipif(bool(why_no_fuse()), reason=why_no_fuse() or "-")


@needs_fuse
def test_nothing_is_lost_or_run_twice_on_a_mount_in_trouble(tmp_path: Path) -> None:
    trouble = BY_NAME["neither, and two clients"]
    try:
        outcome = put_through(trouble, tmp_path, tasks=6, weather_s=8.0, kills=1)
    except CannotMountError as error:
        pytest.skip(str(error))
    assert outcome.faults == []
    assert outcome.judgement.completed == outcome.judgement.enqueued == 14
    assert outcome.fired >= outcome.trouble.least


@needs_fuse
@pytest.mark.parametrize(
    "kind",
    [kind for kind in greeting.KINDS if kind.doctor is None],
    ids=lambda kind: str(kind.name),
)
def test_init_makes_a_spool_only_where_the_protocol_holds(
    kind: greeting.Kind, tmp_path: Path
) -> None:
    try:
        said = greeting.greet(kind, tmp_path)
    except CannotMountError as error:
        pytest.skip(str(error))
    assert said.fault == ""
    left = [path for path in (tmp_path / "backing").rglob(".probe-*") if kind.init == 0]
    assert left == [], "the probe is taken away, whatever was reported of its moves"


@needs_fuse
def test_the_doctor_finds_that_there_are_no_hard_links_and_init_says_what_follows(
    tmp_path: Path,
) -> None:
    kind = next(kind for kind in greeting.KINDS if kind.name == "no hard links (EPERM)")
    try:
        said = greeting.greet(kind, tmp_path)
    except CannotMountError as error:
        pytest.skip(str(error))
    assert said.fault == ""


@needs_fuse
def test_a_worker_whose_file_system_dies_leaves_with_its_own_code_and_a_sentence(
    tmp_path: Path,
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    with mounted(tmp_path) as mount:
        fleet = Fleet([mount.folder / "tree"], notes, seed=0)
        fleet.insist(0, "init")
        fleet.enqueue(0, "a", 30)
        # It is patient between two tasks, for so long as it would be idle.
        process = fleet.start(0, "worker", "--heartbeat", "0.5", "--idle", "1")
        while not (notes / "ran").exists():
            time.sleep(0.02)
        os.kill(mount.pid, signal.SIGKILL)
        code = fleet.await_end(process, "worker")
    assert fleet.said.faults == []
    assert code == 9, fleet.said.sentences


# ---------------------------------------------------------------- the judge, without a mount


def spool_of(folder: Path, **records: str) -> Path:
    """A spool's folders; records by ``place__name``, with the history lines that they have."""
    for place in ("waiting", "pending/first", "pending/last", "running", "done", "failed", "names"):
        (folder / place).mkdir(parents=True)
    for where, history in records.items():
        place, _, name = where.partition("__")
        suffix = ".L1.0.0.x-9" if place == "running" else ""
        (folder / place / f"{name}.sh{suffix}").write_text(f"#!/usr/bin/env bash\n{history}")
        (folder / "names" / name).write_text("")
    return folder


def line(claim: str, attempt: int, outcome: str = "completed") -> str:
    return f"#FLEET-RUN {json.dumps({'claim': claim, 'attempt': attempt, 'outcome': outcome})}\n"


def test_the_judge_sees_what_is_lost_doubled_stuck_and_run_twice(tmp_path: Path) -> None:
    spool = spool_of(
        tmp_path / "spool",
        done__good=line("x-1", 1, "lost") + line("x-2", 2),
        done__again=line("x-3", 1) + line("x-4", 2),
        done__unknown=line("x-6", 2),
        done__two=line("x-7", 1),
        failed__two=line("x-7", 1),
        running__stuck="",
    )
    ran = tmp_path / "ran"
    ran.write_text(
        "good 1 L1.0.0.x-1\ngood 2 L1.0.0.x-2\nagain 1 L1.0.0.x-3\nagain 2 L1.0.0.x-4\n"
        "unknown 1 L1.0.0.x-5\nunknown 1 L1.0.0.x-8\nunknown 2 L1.0.0.x-6\n"
    )
    judged = judge(spool, ran, {"good", "again", "unknown", "two", "stuck", "lost"})
    assert judged.lost == ["lost is in no folder"]
    assert judged.doubled == ["two is in done, failed"]
    assert judged.stuck == ["stuck is in running, last not run"]
    assert [found.split()[0] for found in judged.twice] == ["again", "unknown", "unknown"]
    assert not judged.holds
    assert judge(spool, ran, {"good"}).completed == 1


def test_a_completed_run_without_a_line_is_no_second_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    ran.write_text("full 1 L1.0.0.x-1\n")
    assert judge(spool_of(tmp_path / "spool", done__full=""), ran, {"full"}).holds


def test_every_trouble_has_a_name_of_its_own_and_says_what_it_stands_for() -> None:
    assert len(BY_NAME) == len(TROUBLES)
    assert all(trouble.means for trouble in TROUBLES)
