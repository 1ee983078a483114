"""Estimated MFU of families: reported calls, the time of their tasks, the peaks of their GPUs."""

from __future__ import annotations

import msgspec
import pytest

from fleetcraft.identity import Owner
from fleetcraft.telemetry.forwards import Call
from fleetcraft.telemetry.queue import Presence, Run
from fleetcraft.telemetry.reading.sources import Gpu
from fleetcraft.telemetry.windows.family_mfu import FamilyMfu, Mfu, add_up, mfu_of
from fleetcraft.telemetry.windows.series import SourceFacts

PEAK = 312e12
SPAN = (1000.0, 1300.0)
A100 = "NVIDIA A100-SXM4-80GB"


def facts(*names: str, node: str = "n1") -> SourceFacts:
    gpus = tuple(Gpu(index=i, uuid=f"GPU-{node}{i}", name=name) for i, name in enumerate(names))
    return SourceFacts(path=f"{node}.csv", node=node, gpus=gpus)


def run(
    claim: str = "t-1",
    *,
    family: str = "train",
    gpus: tuple[str, ...] = ("GPU-n10",),
    start_s: float = 0.0,
    end_s: float | None = None,
) -> Run:
    return Run(
        spool="inner",
        task=claim,
        family=family,
        host="n1",
        job="7",
        lease="7.0.t",
        claim=claim,
        slot=0,
        gpus=gpus,
        start_s=start_s,
        end_s=end_s,
    )


def call(flop: float, claim: str = "t-1", at_s: float = 1100.0, **named: object) -> Call:
    owner = Owner("7", "0", "0", claim)
    return Call(owner=owner, at_s=at_s, forwards=10, flop=flop, **named)  # type: ignore[arg-type]


def mfu(
    calls: list[Call],
    runs: list[Run],
    sources: list[SourceFacts],
    workers: list[Presence] | None = None,
) -> Mfu:
    return mfu_of(add_up(calls, *SPAN), runs, workers or [], sources, SPAN)


def only(found: Mfu) -> FamilyMfu:
    (family,) = found.families
    return family


@pytest.mark.parametrize(("slots", "job", "gpu_s"), [(1, "7", 600), (2, "7", None), (1, "8", None)])
def test_a_task_with_the_whole_node_has_the_gpus_that_the_logger_of_its_job_saw(
    slots: int, job: str, gpu_s: float | None
) -> None:
    worker = Presence(
        spool="outer", host="n1", job="7", lease="7.0.t", start_s=0, slots=slots, gpus=0
    )
    logged = msgspec.structs.replace(facts(A100, A100), job=job)
    family = only(mfu([call(600 * PEAK * 0.4)], [run(gpus=())], [logged], [worker]))
    assert family.gpu_s == gpu_s
    assert family.mfu == (None if gpu_s is None else pytest.approx(0.4))


def test_flops_over_seconds_times_gpus_times_peak() -> None:
    family = only(mfu([call(300 * PEAK * 0.25), call(300 * PEAK * 0.15)], [run()], [facts(A100)]))
    assert family.mfu == pytest.approx(0.4)
    assert family.gpu_s == 300
    assert family.forwards == 20
    (device,) = family.devices
    assert (device.name, device.peak_flop_per_s) == (A100, PEAK)
    assert device.peak_source


def test_only_the_part_of_a_run_and_the_calls_that_lie_in_the_window_count() -> None:
    calls = [call(50 * PEAK), call(1e18, at_s=1000.0), call(1e18, at_s=1300.5)]
    family = only(mfu(calls, [run(start_s=1050.0, end_s=1150.0)], [facts(A100)]))
    assert family.gpu_s == 100
    assert family.mfu == pytest.approx(0.5)


def test_a_run_whose_end_nobody_told_has_not_outlived_its_worker() -> None:
    worker = Presence(
        spool="inner", host="n1", job="7", lease="7.0.t", start_s=0, seen_s=1035.0, interval_s=5.0
    )
    runs = [run("t-1"), run("t-2", gpus=("GPU-n11",))]
    found = mfu([call(25 * PEAK, at_s=1030.0)], runs, [facts(A100, A100)], [worker])
    assert only(found).gpu_s == 50
    assert only(found).mfu == pytest.approx(0.5)
    assert only(found).gpu_s_without_reports == 50


def test_time_without_reports_is_stated_and_not_folded_in() -> None:
    runs = [run("t-1"), run("t-2", gpus=("GPU-n11",), end_s=1200.0)]
    family = only(mfu([call(150 * PEAK)], runs, [facts(A100, A100)]))
    assert family.mfu == pytest.approx(0.5)
    assert (family.runs, family.runs_reporting) == (2, 1)
    assert family.gpu_s_without_reports == 200


@pytest.mark.parametrize("name", ["NVIDIA GB10", "NVIDIA H100", "Graphics Device"])
def test_an_unknown_part_gives_no_number_and_says_which(name: str) -> None:
    family = only(mfu([call(1e15)], [run()], [facts(name)]))
    assert family.mfu is None
    assert name in family.reason


def test_no_sidecar_gives_no_number() -> None:
    family = only(mfu([call(1e15)], [run()], []))
    assert family.mfu is None
    assert "no sidecar names" in family.reason


def test_one_unknown_gpu_among_known_ones_gives_no_number() -> None:
    runs = [run("t-1"), run("t-2", gpus=("GPU-n11",))]
    calls = [call(1e15), call(1e15, "t-2")]
    assert only(mfu(calls, runs, [facts(A100, "Odd")])).mfu is None


def test_a_task_with_a_whole_node_has_all_its_workers_gpus() -> None:
    worker = Presence(spool="outer", host="n1", job="7", lease="7.0.t", start_s=0, slots=1, gpus=4)
    found = mfu([call(300 * 4 * PEAK * 0.5)], [run(gpus=())], [facts(A100, A100)], [worker])
    assert only(found).mfu == pytest.approx(0.5)
    assert only(found).gpu_s == 1200


def test_a_task_whose_gpus_nobody_knows_gives_no_number() -> None:
    family = only(mfu([call(1e15)], [run(gpus=())], [facts(A100)]))
    assert family.mfu is None
    assert family.gpu_s is None
    assert family.runs_of_unknown_gpus == 1


def test_what_a_report_itself_names_wins() -> None:
    calls = [call(300 * PEAK, family="named", gpus=("GPU-n10", "GPU-n11"))]
    family = only(mfu(calls, [run()], [facts(A100, A100)]))
    assert (family.family, family.mfu, family.gpu_s) == ("named", pytest.approx(0.5), 600)


def test_calls_of_no_known_task_count_for_no_family() -> None:
    found = mfu([call(5.0, "x-9")], [run()], [facts(A100)])
    assert found.families == ()
    assert (found.unmatched_calls, found.unmatched_flop) == (1, 5.0)


def test_families_are_kept_apart_and_one_without_reports_is_not_there() -> None:
    runs = [run("t-1"), run("t-2", family="score"), run("t-3", family="quiet")]
    found = mfu([call(1e15), call(2e15, "t-2", training=False)], runs, [facts(A100)])
    assert [(f.family, f.flop, f.training) for f in found.families] == [
        *(("score", 2e15, False), ("train", 1e15, None)),
    ]


def test_a_task_that_ran_for_no_time_in_the_window_gives_no_number() -> None:
    family = only(mfu([call(1e15)], [run(start_s=900.0, end_s=950.0)], [facts(A100)]))
    assert family.mfu is None
    assert "no time" in family.reason
