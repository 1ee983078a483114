"""``calibrate run``: what is typed reaches the sweep, what it found is told, and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from fleetcraft.calibration.records import (
    Calibration,
    Check,
    Choice,
    Failure,
    Flops,
    OwnerBytes,
)
from fleetcraft.calibration.sweep import run as sweep_run
from fleetcraft.cli.calibrate import COMMANDS, calibrate_command
from fleetcraft.view.calibration import render_calibration
from fleetcraft.view.calibration_progress import LineProgress, LiveProgress, Now, event_line
from fleetcraft.view.calibration_words import HINTS, REASONS
from fleetcraft.view.text import Paint
from tests.cli.conftest import REPO, Fleet, environment
from tests.plots.made_calibration import (
    MIB,
    budget_run,
    failed_trial,
    made_calibration,
    made_phase,
    made_trial,
    skipped_trial,
    soaked,
    store_run,
)

Given = dict[str, Any]


@pytest.fixture
def swept(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Callable[[Calibration], Given]:
    """Puts a record in the place of the sweep's; what the sweep was asked."""

    def put(run: Calibration) -> Given:
        asked: Given = {}

        def calibrate(name: str, **words: Any) -> Calibration:
            asked.update(words, name=name)
            words["on_event"]({"event": "trial_begin", "batch": 1})
            words["on_event"]({"event": "trial_end", "batch": 1, "verdict": "ok"})
            folder = store_run(fleet.root, run)
            return sweep_run.store.read_calibration(folder)

        monkeypatch.setattr(sweep_run, "calibrate", calibrate)
        return asked

    return put


def said(run: Calibration, **words: Any) -> str:
    return render_calibration(run, paint=Paint(False), **words)


# ------------------------------------------------------------------------------- a real, whole run


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """One batch of the demo, untimed so that tests beside it need not wait for their turn."""
    root = tmp_path_factory.mktemp("real")
    words = [
        sys.executable, "-c", _CALL, "--root", str(root), "calibrate", "run", "demo",
        "--batches", "1", "--cycles", "0", "--soak", "0", "--threads", "1", "--json",
    ]  # fmt: skip
    done = subprocess.run(
        words, env=environment(OMP_WAIT_POLICY="PASSIVE"), cwd=REPO, capture_output=True,
        text=True, check=False, timeout=280,
    )  # fmt: skip
    return done, root


_CALL = """
import sys
from fleetcraft.cli.main import main
code = main(sys.argv[1:])
sys.stderr.write(f"torch here: {'torch' in sys.modules}\\n")
sys.exit(code)
"""


@pytest.mark.timeout(300)
def test_the_demo_runs_whole_and_its_json_has_what_others_read(
    real: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, _ = real
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["schema"] == "fleetcraft.calibration/1"
    (trial,) = value["trials"]
    assert (trial["batch"], trial["verdict"], trial["class"]) == (1, "ok", None)
    assert [phase["name"] for phase in trial["phases"]] == [
        "load", "denoise", "decode", "score", "backward1", "step1", "backward2", "step2", "probe",
        "save", "write",
    ]  # fmt: skip
    for phase in trial["phases"]:
        assert {"wall_s", "peak_mib", "live_end_mib", "autograd_mib", "owners"} <= set(phase)
        assert sum(owner["bytes"] for owner in phase["owners"]) == phase["peak_bytes"]


def test_the_process_that_judges_never_loads_torch(
    real: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    assert "torch here: False" in real[0].stderr


def test_the_figure_lies_in_the_run_s_folder(
    real: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    value = json.loads(real[0].stdout)
    assert [os.path.basename(path) for path in value["figure"]] == ["peaks.png", "peaks.svg"]
    assert all(os.path.dirname(path) == value["folder"] for path in value["figure"])
    assert all(os.path.getsize(path) for path in value["figure"])
    assert value["no_figure"] == ""


def test_progress_is_a_line_for_each_trial_where_there_is_no_terminal(
    real: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    lines = real[0].stderr.splitlines()
    assert any(line.startswith("batch 1 ok, peak ") for line in lines)
    assert "\x1b" not in real[0].stderr


# ------------------------------------------------------------------------------------- arguments


def test_what_is_typed_reaches_the_sweep(
    fleet: Fleet, swept: Callable[[Calibration], Given]
) -> None:
    asked = swept(made_calibration())
    fleet.ok(
        "calibrate", "run", "demo", "--batches", "1, 2,4", "--device", "cpu",
        "--device-budget-mib", "40.5", "--host-budget-mib", "900", "--fault", "stall",
        "--cycles", "5", "--soak", "6", "--seed", "7", "--threads", "2", "--sdpa", "math",
        "--patience", "8", "--no-figure", "--json",
    )  # fmt: skip
    assert asked.pop("scratch").root == str(fleet.root)
    del asked["on_event"]
    assert asked == {
        "name": "demo", "batches": (1, 2, 4), "device": "cpu",
        "device_budget_bytes": int(40.5 * MIB), "host_budget_bytes": 900 * MIB, "fault": "stall",
        "timed_cycles": 5, "soak_cycles": 6, "seed": 7, "threads": 2, "sdpa": "math",
        "patience_s": 8.0,
    }  # fmt: skip


def test_without_options_the_sweep_decides(
    fleet: Fleet, swept: Callable[[Calibration], Given]
) -> None:
    asked = swept(made_calibration())
    fleet.ok("calibrate", "run", "demo", "--no-figure")
    assert (asked["batches"], asked["device"], asked["device_budget_bytes"]) == (None, "auto", None)
    assert (asked["timed_cycles"], asked["soak_cycles"], asked["patience_s"]) == (3, 4, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batches", "1,two"], "'1,two' is no list of batches"),
        (["--batches", "0"], "'0' is no list of batches"),
        (["--batches", ""], "'' is no list of batches"),
        (["--device", "gpu"], "no device 'gpu'; nothing was done"),
        (["--device", "cuda:x"], "no device 'cuda:x'"),
        (["--sdpa", "fast"], "no attention backend 'fast'; nothing was tried"),
        (["--device-budget-mib", "0"], "0"),
    ],
)
def test_words_that_mean_nothing_are_refused_before_anything_is_made(
    fleet: Fleet, words: list[str], message: str
) -> None:
    called = fleet("calibrate", "run", "demo", *words)
    assert called.code == 2
    assert message in called.err
    assert not (fleet.root / "calibration").exists()


def test_an_unknown_fault_is_answered_with_near_ones_and_the_list(fleet: Fleet) -> None:
    error = fleet("calibrate", "run", "demo", "--fault", "leek_probe_kv", "--json").error
    assert error["exit_code"] == 2
    assert error["message"] == "family 'demo' has no fault 'leek_probe_kv'; nothing was tried"
    assert error["hint"].startswith("did you mean leak_probe_kv? faults of demo: ")
    assert {"stall", "step2_only", "partial_rank"} <= set(error["facts"]["known"])


def test_the_help_lists_families_and_faults(fleet: Fleet) -> None:
    out = fleet.bare("calibrate", "run", "--help").out
    assert "Families built in:\n  demo\n" in out
    assert "  leak_probe_kv: the probe's KV cache" in out


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_an_example_and_the_first_line_of_the_list(
    fleet: Fleet, command: str
) -> None:
    out = fleet.bare("calibrate", command, "--help").out
    assert f"Examples:\n  fleetcraft calibrate {command}" in out
    found = calibrate_command.get_command(click.Context(calibrate_command), command)
    assert found is not None
    assert (found.help or "").partition("\n")[0] == COMMANDS[command][1]
    assert COMMANDS[command][1] in fleet.bare("calibrate", "--help").out


def test_an_unknown_family_is_a_usage_error(fleet: Fleet) -> None:
    called = fleet("calibrate", "run", "demoo", "--json")
    assert called.error["hint"] == "did you mean 'demo'?"
    assert called.code == 2


def test_without_torch_it_says_what_to_install(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetcraft.cli.calibrate import asking

    monkeypatch.setattr(asking, "find_spec", lambda name: None)
    called = fleet("calibrate", "run", "demo", "--json")
    assert called.code == 3
    assert "torch is not installed" in called.error["message"]
    assert called.error["hint"] == "pip install 'fleetcraft[torch]'"


# ------------------------------------------------------------------------------ codes and figures


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (made_calibration(), 0),
        (made_calibration(made_trial(1), skipped_trial(8)), 0),
        (budget_run(), 1),
    ],
)
def test_it_exits_with_1_when_a_trial_failed_and_0_when_all_were_ok_or_skipped(
    fleet: Fleet, swept: Callable[[Calibration], Given], run: Calibration, code: int
) -> None:
    swept(run)
    called = fleet("calibrate", "run", "demo", "--no-figure", "--json")
    assert called.code == code
    assert called.json["ok"] is (code == 0)
    assert called.json["no_figure"] == "not asked for"


def test_a_figure_that_cannot_be_drawn_changes_no_exit_code(
    fleet: Fleet, swept: Callable[[Calibration], Given]
) -> None:
    swept(made_calibration(skipped_trial(8)))
    called = fleet("calibrate", "run", "demo")
    assert called.code == 0
    assert "no figure: nothing to draw of toy" in called.err


# ---------------------------------------------------------------------------------------- report


def test_a_batch_is_a_line_with_rate_spread_peak_owner_and_verdict() -> None:
    text = said(budget_run())
    (first,) = [line for line in text.splitlines() if line.startswith("  1* ")]
    words = [word for word in first.split("  ") if word.strip()]
    assert [word.strip() for word in words] == [
        "1*", "ok", "3.20 (3.11-3.27)", "171.0 MiB", "backward2", "730.0 MiB", "autograd 88.0 MiB",
    ]  # fmt: skip
    assert "~857.0 MiB" in text
    assert "skipped: device_oom.predicted in backward2" in text


def test_a_failure_is_told_with_its_numbers_and_what_to_do() -> None:
    text = said(budget_run())
    assert (
        "batch 2 failed: device_oom.capacity in backward2 (autograd): the request of 12.5 MiB"
    ) in text
    assert "hint: cached bytes would not have sufficed" in text
    assert "journal: batch-002/journal.jsonl" in text


def test_every_class_has_a_hint_and_every_reason_of_a_choice_has_words() -> None:
    assert set(HINTS) == set(Failure)
    assert {"scales", "compute_saturated", "first_failed", "largest_tried"} <= set(REASONS)


def test_the_phases_are_those_of_the_chosen_batch_else_of_the_first_that_failed() -> None:
    assert "phases of batch 2 (wall: median of 3 timed cycles" in said(made_calibration())
    failed = failed_trial(1)
    none = made_calibration(failed, choice=Choice(batch=None))
    assert "phases of batch 1 (not timed;" in said(none)


def test_an_owner_that_outlives_its_phase_of_birth_is_flagged_there_and_only_there() -> None:
    lines = said(made_calibration()).splitlines()
    (probe,) = [line for line in lines if line.startswith("  probe ")]
    assert "probe.kv 20.0 MiB (alive after)" in probe
    assert sum("alive after" in line for line in lines) == 1


def test_a_small_owner_that_stays_is_named_although_it_is_folded() -> None:
    owners = (
        *(OwnerBytes(name=f"big{n}", bytes=30 * MIB, born_in="decode") for n in range(3)),
        OwnerBytes(
            name="late", bytes=2 * MIB, live_end_bytes=9 * MIB, born_in="decode", alive_after=True
        ),
        OwnerBytes(name="gone", bytes=0, born_in="decode"),
    )
    phase = made_phase("decode", 1, owners=owners, peak_bytes=92 * MIB)
    text = said(made_calibration(made_trial(2, phases=(phase,))))
    assert "and 1 more 2.0 MiB (alive after: late 9.0 MiB)" in text
    assert "gone" not in text


def test_what_was_not_measured_is_an_empty_cell_and_never_zero() -> None:
    phase = made_phase(
        "decode", 1, peak_bytes=None, live_end_bytes=None, autograd_bytes=None, owners=(),
        walls_s=(), rss_peak_bytes=None,
    )  # fmt: skip
    trial = made_trial(2, phases=(phase,), samples_per_s=None, cycle_walls_s=())
    (line,) = [text for text in said(made_calibration(trial)).splitlines() if "decode" in text]
    assert line.strip() == "decode"
    (batch,) = [text for text in said(made_calibration(trial)).splitlines() if "2*" in text]
    assert batch.split() == ["2*", "ok"]


def test_notes_tell_of_checks_soak_smoke_overhead_flops_and_warnings() -> None:
    checks = (
        Check(name="noise", ok=True),
        Check(name="mask", ok=None, detail="no mask here"),
        Check(name="decisions", ok=False, detail="sample 1 decides otherwise"),
    )
    first = soaked(made_trial(1, checks=checks, missing_phases=("save",)))
    run = made_calibration(
        first,
        flops=Flops(analytic_flop=2e12, counted_flop=1e12, disagreement_fraction=-0.5),
        warnings=("the machine was shared",),
    )
    text = said(run, files=["/x/peaks.png"])
    for words in (
        "checks that hold: noise (batch 1)",
        "check mask of batch 1 could not be run: no mask here",
        "check decisions of batch 1: no: sample 1 decides otherwise",
        "soak at batch 1: 4 cycles, 25.0 MiB live after the first, 25.0 MiB after the last",
        "batch 1 is only a smoke test: it did not run save, and cannot be frozen",
        "tracking costs +8.4 % CPU time (batch 1)",
        "analytic 2.00 TFLOP, counted 1.00 TFLOP (-50.0 %)",
        "warning: the machine was shared",
        "figure: /x/peaks.png",
    ):
        assert words in text


def test_no_text_of_a_record_reaches_the_terminal_raw() -> None:
    bad = "a\x1b[31m\nb"
    owner = OwnerBytes(name=bad, bytes=MIB)
    phase = made_phase("load", 1, name=bad, owners=(owner,), peak_bytes=MIB, held_bytes={bad: 1})
    trial = failed_trial(
        1, phases=(phase,), detail=bad, owner=bad, participants={bad: bad}, journal=bad,
        checks=(Check(name=bad, ok=False, detail=bad),),
    )  # fmt: skip
    text = said(made_calibration(trial, family=bad, warnings=(bad,), folder=bad), files=[bad])
    assert "\x1b" not in text


def test_participants_are_told_one_by_one() -> None:
    trial = failed_trial(
        1, failure=Failure.PARTIAL, participants={"drafter0": "alive", "drafter1": "dead (exit 1)"}
    )
    text = said(made_calibration(trial))
    assert "participants: drafter0 alive, drafter1 dead (exit 1)" in text


# -------------------------------------------------------------------------------------- progress


def line_of(event: Mapping[str, Any]) -> str:
    return event_line(event, Paint(False))


def test_a_trial_is_one_line_with_what_counts() -> None:
    assert line_of(
        {"event": "trial_end", "batch": 2, "verdict": "failed", "class": "host_oom",
         "phase": "decode", "owner": "pixels", "wall_s": 12.0}
    ) == "batch 2 failed: host_oom in decode (pixels), took 12.0 s"  # fmt: skip
    assert line_of(
        {"event": "trial_end", "batch": 1, "verdict": "ok", "class": None, "phase": "decode",
         "samples_per_s": 4.0, "peak_bytes": 3 * MIB}
    ) == "batch 1 ok, 4.00 samples/s, peak 3.0 MiB in decode"  # fmt: skip


def test_what_the_preflight_predicts_or_why_not_is_a_line() -> None:
    found = [{"batch": 1, "peak_bytes": 2 * MIB}, {"batch": 2, "peak_bytes": None}]
    assert line_of({"event": "preflight_end", "predictions": found}) == (
        "preflight predicts peaks: batch 1 2.0 MiB"
    )
    assert line_of({"event": "preflight_end", "problem": "no fake conv"}) == (
        "preflight: no prediction: no fake conv"
    )


@pytest.mark.parametrize("event", [{}, {"event": "new"}, {"event": "trial_end"}, {"event": None}])
def test_events_that_are_not_known_or_not_whole_are_no_error(event: dict[str, Any]) -> None:
    line_of(event)
    Now().take(event)


def test_what_runs_now_is_batch_pass_phase_and_how_far() -> None:
    now = Now()
    for event in (
        {"event": "trial_begin", "batch": 2},
        {"event": "pass_begin", "pass": "memory"},
        {"event": "phase_begin", "phase": "decode"},
        {"event": "progress", "done": 3, "total": 50},
    ):
        now.take(event)
    assert now.words() == "batch 2: memory, decode, 3 of 50"
    now.take({"event": "soak_begin", "batch": 2})
    assert now.words() == "soak: batch 2"


def test_a_soak_s_line_is_told_from_its_trial_s(capsys: pytest.CaptureFixture[str]) -> None:
    with LineProgress() as progress:
        for kind in ("trial", "soak"):
            progress.show({"event": f"{kind}_begin", "batch": 2})
            progress.show({"event": "trial_end", "batch": 2, "verdict": "ok", "wall_s": 3.0})
    assert capsys.readouterr().err.splitlines() == [
        "batch 2 ok, took 3.00 s",
        "soak: batch 2 ok",
    ]


def test_on_a_terminal_the_lines_stand_above_what_runs_now(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LiveProgress() as progress:
        progress.show({"event": "trial_begin", "batch": 1})
        progress.show({"event": "phase_begin", "phase": "[bold]x"})
        progress.show({"event": "trial_end", "batch": 1, "verdict": "ok"})
    assert "batch 1 ok" in capsys.readouterr().err


def test_what_a_familys_file_prints_is_no_part_of_the_answer(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "chatty_family.py"
    file.write_text("import os\nprint('hello')\nos.system('echo from a child')\n")
    called = fleet.process("calibrate", "run", f"{file}:cycle", "--json")
    assert called.returncode == 2
    assert called.stdout == ""
    assert "hello" in called.stderr
    assert "from a child" in called.stderr
