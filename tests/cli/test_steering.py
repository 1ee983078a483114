"""``fleetcraft retry cancel drain stop resume recover promote check``."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from fleetcraft.layout import State
from fleetcraft.spool.control import Canceller, CancelResult
from tests.cli.conftest import Fleet, environment

Put = Callable[..., None]


def test_retry_puts_a_failed_task_back(fleet: Fleet, put: Put) -> None:
    put("a", "exit 1")
    fleet("run")
    assert fleet.ok("retry", "a", "--dry-run").out.startswith("would put back 1 task")
    assert fleet.state("a") == "failed"
    value = fleet.ok("retry", "a", "--json").json
    assert value["retried"] == [{"name": "a", "state": "pending"}]
    assert fleet.state("a") == "pending"


def test_retry_of_all_failed_puts_every_one_back(fleet: Fleet, put: Put) -> None:
    assert fleet.ok("retry", "--failed").out == "nothing has failed; nothing was changed\n"
    for name in ("a", "b"):
        put(name, "exit 1")
    put("c")
    fleet("run")
    value = fleet.ok("retry", "--failed", "--dry-run", "--json").json
    assert (value["count"], value["dry_run"]) == (2, True)
    assert fleet.ok("retry", "--failed").out == "put back 2 tasks\n  a (pending)\n  b (pending)\n"


def test_a_task_cancelled_while_it_waited_waits_again(fleet: Fleet, put: Put) -> None:
    put("a", "true", "--after", "b")
    fleet.ok("cancel", "a")
    assert fleet.ok("retry", "a").out == "put back 1 task\n  a (waiting)\n"


def test_retry_of_a_task_that_has_not_failed_is_refused(fleet: Fleet, put: Put) -> None:
    put("a")
    for dry in ([], ["--dry-run"]):
        error = fleet("retry", "a", "--json", *dry).error
        assert error["exit_code"] == 5
        assert "task 'a' has not failed: it is pending" in error["message"]


def test_retry_of_several_does_what_it_can_and_tells_the_rest(fleet: Fleet, put: Put) -> None:
    put("a", "exit 1")
    put("b")
    fleet("run")
    called = fleet("retry", "a", "b", "nobody", "--json")
    assert called.code == 5
    assert [item["name"] for item in called.json["retried"]] == ["a"]
    assert called.error["message"].startswith("2 of 3 tasks could not be put back: task 'b' has")


@pytest.mark.parametrize("words", [[], ["a", "--failed"]])
def test_retry_wants_either_names_or_all(fleet: Fleet, words: list[str]) -> None:
    assert fleet("retry", *words, "--json").error["exit_code"] == 2


def test_cancel_ends_a_task_before_it_runs(fleet: Fleet, put: Put) -> None:
    put("a")
    put("b", "true", "--after", "a")
    assert fleet.ok("cancel", "a", "b", "--dry-run").out == (
        "a: pending; would be ended\nb: waiting; would be ended\n"
    )
    value = fleet.ok("cancel", "a", "b", "--json").json
    assert [(task["name"], task["cancelled"]) for task in value["tasks"]] == [
        ("a", True), ("b", True),
    ]  # fmt: skip
    assert (fleet.state("a"), fleet.state("b")) == ("failed", "failed")
    assert fleet.ok("check", "--json").json["ok"]


def test_cancel_of_an_ended_task_changes_nothing(fleet: Fleet, put: Put) -> None:
    put("a")
    fleet.ok("run")
    called = fleet.ok("cancel", "a")
    assert called.out == "a: has ended already (done); nothing was changed\n"


def test_cancel_with_wait_sees_a_running_task_end(fleet: Fleet, put: Put) -> None:
    put("a", "sleep 60")
    words = fleet.command("worker", "--heartbeat", "0.2", "--grace", "1", "--idle", "60")
    with subprocess.Popen(words, env=environment(), stderr=subprocess.DEVNULL) as process:
        try:
            await_running(fleet, "a")
            assert "its worker would be asked" in fleet.ok("cancel", "a", "--dry-run").out
            value = fleet.ok("cancel", "a", "--wait", "30", "--json").json
        finally:
            process.terminate()
    (task,) = value["tasks"]
    assert (task["state"], task["cancelled"], task["requested"]) == ("failed", True, True)
    assert fleet.ok("show", "a", "--json").json["attempts"][0]["outcome"] == "cancelled"


def await_running(fleet: Fleet, name: str) -> None:
    deadline = time.monotonic() + 30
    while fleet.state(name) != "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_cancel_of_a_running_task_is_a_request(
    fleet: Fleet, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("a")

    def ask(_: Canceller, name: str) -> CancelResult:
        return CancelResult(name=name, state=State.RUNNING, requested=True)

    monkeypatch.setattr(Canceller, "cancel", ask)
    called = fleet.ok("cancel", "a")
    assert called.out.startswith("a: running; its worker was asked to stop it")
    assert "recover ends its tasks" in called.out
    waited = fleet("cancel", "a", "--wait", "0.3", "--json")
    assert waited.code == 75
    assert waited.error["type"] == "TryAgainLaterError"


def test_cancel_of_several_tells_what_it_could_not_do(fleet: Fleet, put: Put) -> None:
    put("a")
    called = fleet("cancel", "a", "nobody")
    assert called.code == 5
    assert called.out == "a: cancelled\n"
    assert "1 of 2 tasks could not be cancelled: no task named 'nobody'" in called.err


def test_a_list_of_cancelled_tasks_is_bounded(fleet: Fleet) -> None:
    lines = b"".join(b"true\n" for _ in range(103))
    fleet.ok("enqueue", "--stdin", "-n", "t-{n}", stdin=lines)
    names = [f"t-{n}" for n in range(1, 104)]
    shown = fleet.ok("cancel", "--dry-run", *names).out.splitlines()
    assert len(shown) == 101
    assert shown[-1] == "  ... and 3 more"


@pytest.mark.parametrize(("verb", "marker"), [("drain", "DRAIN"), ("stop", "STOP")])
def test_a_marker_says_who_wrote_it_and_keeps_workers_from_starting(
    fleet: Fleet, verb: str, marker: str
) -> None:
    value = fleet.ok(verb, "--reason", "lunch", "--json").json
    assert (value["marker"], value["existed"]) == (marker, False)
    assert value["said"].endswith(": lunch")
    again = fleet.ok(verb, "--reason", "dinner")
    assert again.out.startswith(f"{marker} stood already, written by ")
    assert ": lunch" in again.out
    for words in (["run"], ["worker"]):
        error = fleet(*words, "--json").error
        assert (error["exit_code"], error["facts"]["marker"]) == (5, marker)
        assert error["hint"].endswith("resume removes it")
    assert fleet.ok("resume", "--json").json["removed"] == [marker]
    assert fleet.ok("resume").out == "there was no DRAIN and no STOP; nothing was changed\n"
    fleet.ok("run")


def test_promote_names_what_is_ready(fleet: Fleet, put: Put) -> None:
    put("a", "true", "--after-file", "ready.txt")
    assert fleet.ok("promote").out == "promoted 0 tasks\n"
    (fleet.root.parent / "ready.txt").write_text("")
    value = fleet.ok("promote", "--json").json
    assert (value["count"], value["promoted"], value["left_out"]) == (1, ["a"], 0)
    assert fleet.state("a") == "pending"


def test_recover_puts_back_what_a_dead_worker_held(fleet: Fleet, put: Put) -> None:
    put("a", "sleep 60")
    with subprocess.Popen(
        fleet.command("worker"), env=environment(), stderr=subprocess.DEVNULL
    ) as process:
        await_running(fleet, "a")
        alive = fleet.ok("recover", "--json").json
        process.send_signal(signal.SIGKILL)
    assert (alive["recovered"], alive["alive"]) == (0, 1)

    would = fleet.ok("recover", "--dry-run", "--json").json
    assert (would["would_recover"], would["recovered"]) == (1, 0)
    assert "would recover 1 task; nothing was changed" in fleet.ok("recover", "--dry-run").out
    assert fleet.state("a") == "running"

    value = fleet.ok("recover", "--json").json
    assert value["schema"] == "fleetcraft.recover/1"
    assert (value["recovered"], value["rolled_forward"], value["unknown"]) == (1, 0, 0)
    assert (value["items"][0]["task"], value["items"][0]["to"]) == ("a", "pending")
    assert fleet.state("a") == "pending"
    assert fleet.ok("check", "--json").json["ok"]


def test_recover_is_exit_4_when_a_scheduler_had_to_be_asked(
    fleet: Fleet, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")  # whether it is installed or not
    put("a")
    os.rename(fleet.spool / "pending/a.sh", fleet.spool / "running/a.sh.8812.0.0.abcdefgh-1")
    called = fleet("recover", "--json")
    assert called.code == 4
    assert (called.json["unknown"], called.json["recovered"]) == (1, 0)
    assert "Slurm gave no answer about job 8812" in called.json["reason"]
    text = fleet("recover")
    assert (text.code, "left 1 task alone" in text.out) == (4, True)
    assert fleet.state("a") == "running"


def test_recover_leaves_an_unknown_owner_of_another_machine_alone(fleet: Fleet, put: Put) -> None:
    put("a")
    claim = fleet.spool / "running/a.sh.L0123456789ab.0.0.abcdefgh-1"
    os.rename(fleet.spool / "pending/a.sh", claim)
    value = fleet.ok("recover", "--json").json
    assert (value["unknown"], value["unanswered"]) == (1, 0)
    assert claim.exists()


def test_check_is_exit_1_with_the_faults(fleet: Fleet, put: Put) -> None:
    put("a")
    value = fleet.ok("check", "--json").json
    assert (value["ok"], value["faults"], value["tasks"]) == (True, [], 1)
    (fleet.spool / "names/a").unlink()
    called = fleet("check", "--json")
    assert called.code == 1
    assert called.json["ok"] is False
    assert called.json["faults"][0]["kind"] == "name_missing"
    assert called.err == ""
    assert "name_missing" in fleet("check").out


def test_check_repairs_what_is_safe_and_says_so_before(fleet: Fleet, put: Put) -> None:
    put("a")
    (fleet.spool / "names/a").unlink()
    dry = fleet("check", "--repair", "--dry-run", "--json")
    assert dry.code == 1
    assert [fault["kind"] for fault in dry.json["would_repair"]] == ["name_missing"]
    assert not (fleet.spool / "names/a").exists()
    assert "would be repaired" in fleet("check", "--repair", "--dry-run").out
    value = fleet.ok("check", "--repair", "--json").json
    assert [fault["kind"] for fault in value["repaired"]] == ["name_missing"]
    assert fleet.ok("check").out == "1 task examined: nothing is wrong\n"


def test_lists_of_check_are_bounded(fleet: Fleet) -> None:
    for number in range(5):
        (fleet.spool / f"done/stray{number}").write_text("")
    value = fleet("check", "--json", "--limit", "2").json
    assert (len(value["faults"]), value["faults_left_out"]) == (2, 3)
    assert "  ... and 3 more" in fleet("check", "--limit", "2").out
