"""Texts in names, options and environments: durations, names of files, owners, shapes."""

from __future__ import annotations

import re

from hypothesis import strategies as st

from fleetcraft import layout, units
from fleetcraft.clock import parse_timestamp
from fleetcraft.errors import UsageError
from fleetcraft.fleet.launch.plan import parse_walltime_s
from fleetcraft.fleet.shapes import parse_lanes, parse_shape, read_mark, read_renewal_name
from fleetcraft.identity import Owner, this_job_run
from fleetcraft.layout import checkpoints as checkpoint_names
from fleetcraft.layout import rollouts as rollout_names
from fleetcraft.spool import names
from tests.fuzz.strategies import texts
from tests.fuzz.target import Target
from tests.spool.strategies import owners, task_names

_DURATIONS = (
    "90s",
    "1.5h",
    "2d",
    "00:40:00",
    "1-12:00",
    "2-03:04:05",
    "05:00",
    "999999999d",
    "0.000000001s",
)
_CLAIMS = ("gen-1.sh.8812.0.0.k3x9q2ab-4", "a.sh.b.sh.L0123456789ab.0.1.k3x9q2ab-1", "x.sh.1.2.3.")


def duration(text: str) -> None:
    seconds = units.parse_duration_s(text)
    assert 1 <= seconds <= units.MAX_DURATION_S, f"{seconds} s is out of range"
    assert units.parse_duration_s(units.format_clock(seconds)) == seconds


def walltime(text: str) -> None:
    assert 1 <= parse_walltime_s(text) <= units.MAX_DURATION_S


def clock_round_trip(seconds: int) -> None:
    assert units.parse_duration_s(units.format_clock(seconds)) == seconds


def claim_name(text: str) -> None:
    found = layout.parse_claim(text)
    if found is not None:
        assert f"{found[0]}.sh.{found[1]}" == text, "what was read is written otherwise"


def claim_round_trip(both: tuple[str, Owner]) -> None:
    assert layout.parse_claim(f"{both[0]}.sh.{both[1]}") == both


def log_name(text: str) -> None:
    text = text[:255]  # what a file system allows
    found = layout.parse_log(text)
    if found is not None:
        name, attempt = found
        assert attempt >= 0
        # Another spelling of a number would be a second name for one attempt.
        assert layout.SpoolPaths("/s").log(name, attempt) == f"/s/logs/{text}", "read otherwise"


def telemetry_name(text: str) -> None:
    found = layout.parse_telemetry_file(text)
    if found is not None:
        assert layout.telemetry_file(*found) == text


def checkpoint_name(text: str) -> None:
    step = checkpoint_names.parse_step(text)
    assert step is None or checkpoint_names.step_name(step) == text
    checkpoint_names.parse_unfinished(text)
    checkpoint_names.parse_agreement(text)
    checkpoint_names.parse_rank_done(text)


def rollout_name(text: str) -> None:
    for parse in (
        rollout_names.parse_rollout,
        rollout_names.parse_half,
        rollout_names.parse_reservation,
        rollout_names.parse_ident,
        rollout_names.parse_beat,
        rollout_names.parse_transaction,
        rollout_names.parse_paper,
        rollout_names.parse_commit,
        rollout_names.parse_refused_name,
    ):
        parse(text)
    found = rollout_names.parse_rollout(text)
    assert found is None or str(found) == text or found.file == text


def job_run(values: tuple[str, str, str]) -> None:
    start, restarts, count = values
    this_job_run(
        {
            "SLURM_JOB_ID": "1",
            "FLEET_JOB_ID": "1",
            "FLEET_JOB_START": start,
            "FLEET_JOB_RESTARTS": restarts,
            "SLURM_RESTART_COUNT": count,
        }
    )


def task_name(text: str) -> None:
    assert names.check_name(text) == text
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text)
    assert len(text) <= names.NAME_MAX_BYTES


def dependency(text: str) -> None:
    names.check_dependency(text)
    names.matches(text, ["a", "enc-1", "enc-2", text], but="a")


def shape(text: str) -> None:
    found = parse_shape(text)
    again = parse_shape(str(found))
    assert again == found, f"{found} is read as {again}"
    parse_lanes([text, text])


def mark(text: str) -> None:
    found = read_mark(text)
    if found is not None:
        assert read_mark(str(found)) == found
    read_renewal_name(text)


_NUMBERS = texts("0", "3", "1732998785", "1" * 30, most=2)
TARGETS = (
    Target(name="names: duration", values=texts(*_DURATIONS), act=duration, raises=(UsageError,)),
    Target(
        name="names: duration, written and read",
        values=st.integers(1, units.MAX_DURATION_S),
        act=clock_round_trip,
    ),
    Target(
        name="names: walltime",
        values=texts(*_DURATIONS, "90", "2-03", "999999999"),
        act=walltime,
        raises=(UsageError,),
    ),
    Target(
        name="names: time stamp",
        values=texts("2026-11-29T20:33:05.123Z", "2026-W01-1", "20261129", "2026-11-29 20:33"),
        act=parse_timestamp,
    ),
    Target(name="names: claim", values=texts(*_CLAIMS), act=claim_name),
    Target(
        name="names: claim, written and read",
        values=st.tuples(task_names(), owners()),
        act=claim_round_trip,
    ),
    Target(name="names: owner", values=texts("8812.0.0.k3x9q2ab-4", "a.b.c.d"), act=Owner.parse),
    Target(name="names: log", values=texts("gen-1.1.log", "a.b.12.log", "a.01.log"), act=log_name),
    Target(
        name="names: telemetry file",
        values=texts("c1_job8812_20261129T203305Z.csv", "a_jobb_job1_20261129T203305Z.csv"),
        act=telemetry_name,
    ),
    Target(
        name="names: checkpoint",
        values=texts(*("step-00000100", "step-100", "rank-00003.done.json", "step-1.3.k3x9.tmp")),
        act=checkpoint_name,
    ),
    Target(
        name="names: rollout",
        values=texts(
            "v3.abc.00000001.00000000.roll",
            "v00000003.k3x9q2ab.00000007.0000.json",
            "v7.json",
            "k3x9q2ab.7.2.1.reservation",
            "7.0",
            "tx-7.1.k3x9q2ab",
            "v1-e2-abcd.prepared",
        ),
        act=rollout_name,
    ),
    Target(
        name="names: job of the environment",
        values=st.tuples(_NUMBERS, _NUMBERS, _NUMBERS),
        act=job_run,
    ),
    Target(
        name="names: task",
        values=texts("gen-00017", "a.sh.1.2.3.4", "x" * 180, "x" * 181, "-a", ".a"),
        act=task_name,
        raises=(UsageError,),
    ),
    Target(
        name="names: dependency",
        values=texts("enc-*", "a?c", "x[0-9]*", "[", "[!a]", "**********************a", "gen-1"),
        act=dependency,
        raises=(UsageError,),
    ),
    Target(
        name="names: lane of a renewal",
        values=texts("8x12:00:00", "4x90m@gpu/4", "1x1-00:00:00@a/gpu", "999999999x1s"),
        act=shape,
        raises=(UsageError,),
    ),
    Target(
        name="names: mark of a job",
        values=texts(
            "fleetcraft root=0123456789ab lane=8x43200s@gpu+2 intent=k3x9q2ab",
            "fleet-0123456789ab-k3x9q2ab",
            "site: x fleetcraft root=0123456789ab",
        ),
        act=mark,
    ),
)
