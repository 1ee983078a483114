"""The judge of a soak says so when something is wrong: each test makes up one thing that is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.soak import judge as judging
from tests.soak.evidence import Evidence, Run, Task, read, read_record
from tests.soak.flatness import descriptors_flat, memory_flat
from tests.soak.judge import judge
from tests.soak.page import page

BEGAN = 1_800_000_000.0


def at(second: float) -> str:
    return datetime.fromtimestamp(BEGAN + second, UTC).isoformat()


def line(claim: str, outcome: str, to: str, second: float, **more: Any) -> dict[str, Any]:
    told = {"claim": claim, "outcome": outcome, "to": to, "attempt": 1, "ended_at": at(second)}
    return {**told, "owner": f"7.0.0.{claim}", **more}


def task(
    name: str, state: str, *lines: dict[str, Any], spool: str = "outer", **directives: str
) -> Task:
    spelled = {key.replace("_", "-"): value for key, value in directives.items()}
    return Task(name=name, spool=spool, state=state, directives=spelled, lines=list(lines))


def run(
    name: str, claim: str, begin: float, end: float | None, code: int | None = 0, **more: Any
) -> Run:
    return Run(
        task=name,
        owner=f"7.0.0.{claim}",
        began=BEGAN + begin,
        ended=None if end is None else BEGAN + end,
        end=code if end is not None else None,
        **{"attempt": 1, "node": "n1", **more},
    )


def story() -> Evidence:
    """Four tasks that went well, with what may happen to any: a loss, a failure, a cancellation."""
    tasks = [
        task("plain", "done", line("a-1", "completed", "done", 2)),
        task(
            "lost-once",
            "done",
            line("a-2", "lost", "pending", 9),
            line("b-1", "completed", "done", 12, attempt=2),
        ),
        task("fails", "failed", line("a-3", "failed", "failed", 5), retries="0"),
        task("blocked", "waiting", after="fails"),
    ]
    runs = [
        run("plain", "a-1", 1, 1.9),
        run("lost-once", "a-2", 3, None),
        run("lost-once", "b-1", 10, 11, attempt=2),
        run("fails", "a-3", 4, 4.9, 3),
    ]
    found = Evidence(
        enqueued={one.name: ("outer", "plain") for one in tasks},
        tasks={one.name: [one] for one in tasks},
        facts={
            "drained": True,
            "left_processes": [],
            "strange_calls": [],
            "checks": {"outer": {"faults": []}},
        },
        samples=life([27_000.0] * 60),
    )
    for one in runs:
        found.runs.setdefault(one.task, []).append(one)
        found.logs[f"outer/{one.task}.{one.attempt}"] = one.owner
    found.journals["outer/7.0.a"] = [
        {"event": kind, "claim": claim} for claim in ("a-1", "a-2") for kind in ("start", "end")
    ]
    return found


def life(
    values: list[float], *, what: str = "rss_kib", kind: str = "worker"
) -> list[dict[str, Any]]:
    """Samples of one process, one every three seconds."""
    return [
        {"at": 3.0 * number, "life": "1.1", "kind": kind, "rss_kib": 27_000, "fds": 9, what: value}
        for number, value in enumerate(values)
    ]


def against(found: Evidence, check: Callable[[Evidence], Any]) -> list[str]:
    return list(check(found))


def test_a_story_in_which_all_is_well_holds() -> None:
    judgement = judge(story())

    assert [one.line() for one in judgement.verdicts if one.holds is not True] == []
    assert judgement.tallies["tasks that ran more than once"] == 1


def change_state(name: str, state: str) -> Callable[[Evidence], None]:
    def change(found: Evidence) -> None:
        found.tasks[name][0].state = state

    return change


def change_line(name: str, place: int, **changes: Any) -> Callable[[Evidence], None]:
    def change(found: Evidence) -> None:
        found.tasks[name][0].lines[place].update(changes)

    return change


def change_run(name: str, place: int, **changes: Any) -> Callable[[Evidence], None]:
    def change(found: Evidence) -> None:
        found.runs[name][place] = replace(found.runs[name][place], **changes)

    return change


def also(name: str, one: Run) -> Callable[[Evidence], None]:
    def change(found: Evidence) -> None:
        found.runs[name].append(one)

    return change


def gone(found: Evidence) -> None:
    del found.tasks["plain"]


def in_two_places(found: Evidence) -> None:
    found.tasks["plain"].append(replace_task(found.tasks["plain"][0], state="pending"))


def replace_task(one: Task, **changes: Any) -> Task:
    return replace(one, **changes)


def stranger(found: Evidence) -> None:
    del found.enqueued["plain"]


def unblocked(found: Evidence) -> None:
    found.tasks["blocked"][0].directives["after"] = "plain"


def ready_at_last(found: Evidence) -> None:
    found.tasks["blocked"][0].directives = {"after-file": "ready/1"}
    found.ready.add("ready/1")


def without_log(found: Evidence) -> None:
    del found.logs["outer/plain.1"]


def log_of_another(found: Evidence) -> None:
    found.logs["outer/plain.1"] = "7.0.0.zz-9"


def given_up(found: Evidence) -> None:
    found.tasks["fails"][0].directives["retries"] = "2"


def tried_too_often(found: Evidence) -> None:
    found.tasks["fails"][0].lines.insert(0, line("z-1", "failed", "pending", 1))
    found.tasks["fails"][0].lines[1]["attempt"] = 2


def started_twice_in_journals(found: Evidence) -> None:
    found.journals["outer/7.1.b"] = [{"event": "start", "claim": "a-1"}]


def torn_inside(found: Evidence) -> None:
    found.torn_inside["outer/7.0.a"] = 1


def beside_a_timed_one(found: Evidence) -> None:
    found.tasks["plain"][0].directives["timed"] = "true"
    found.runs["fails"][0] = replace(found.runs["fails"][0], began=BEGAN + 1.5)


def damaged(found: Evidence) -> None:
    found.tasks["plain"][0].damaged = 1


def fact(name: str, value: Any) -> Callable[[Evidence], None]:
    def change(found: Evidence) -> None:
        found.facts[name] = value

    return change


def without_facts(found: Evidence) -> None:
    found.facts.clear()


WRONGS: list[tuple[str, Callable[[Evidence], None], Callable[[Evidence], Any], str]] = [
    ("a lost task", gone, judging.lost, "plain was enqueued and is nowhere"),
    ("a task in two states", in_two_places, judging.lost, "plain is in done and pending"),
    ("a stranger", stranger, judging.lost, "nobody enqueued it"),
    ("a note that cannot be read", lambda f: setattr(f, "bad_notes", 1), judging.lost, "1 notes"),
    (
        "a completion without a run",
        lambda f: f.runs.pop("plain"),
        judging.outcomes,
        "completed, and the task noted no start",
    ),
    (
        "a completion that the task denies",
        change_run("plain", 0, end=3),
        judging.outcomes,
        "completed, and the task ended with 3",
    ),
    (
        "a completion of a task that was cut short",
        change_run("plain", 0, end=None, ended=None),
        judging.outcomes,
        "completed, and the task noted no end",
    ),
    (
        "a failure of a task that did well",
        change_run("fails", 0, end=0),
        judging.outcomes,
        "failed, and the task ended with 0",
    ),
    ("a damaged record", damaged, judging.outcomes, "1 lines that cannot be read"),
    ("a done that is none", change_state("fails", "done"), judging.outcomes, "fails is done"),
    ("a failure that is none", change_state("plain", "failed"), judging.outcomes, "has failed"),
    (
        "an attempt with another number",
        change_line("plain", 0, attempt=2),
        judging.outcomes,
        "attempt 1",
    ),
    (
        "a run of which nothing is known",
        also("plain", run("plain", "c-9", 0.1, 0.2)),
        judging.twice,
        "of which its history says nothing",
    ),
    (
        "one claim that was started twice",
        change_run("plain", 0, starts=2),
        judging.twice,
        "started 2 times",
    ),
    (
        "a run after the end",
        change_line("lost-once", 0, outcome="completed"),
        judging.twice,
        "was completed by a-2 and ran again",
    ),
    (
        "a run that began before the one before it was closed",
        change_run("lost-once", 1, began=BEGAN + 8),
        judging.twice,
        "began before a-2 was closed",
    ),
    (
        "attempts that do not grow",
        change_line("lost-once", 1, attempt=1),
        judging.twice,
        "numbered [1, 1]",
    ),
    ("a task that was given up", given_up, judging.retries, "after 1 of 3 failures"),
    ("a task that was tried too often", tried_too_often, judging.retries, "tried again"),
    ("a claim that stays", change_state("plain", "running"), judging.stuck, "left in running"),
    ("a task nobody took", change_state("plain", "pending"), judging.stuck, "left in pending"),
    ("a task that waits for what is done", unblocked, judging.stuck, "blocked waits"),
    ("a task that waits for what is there", ready_at_last, judging.stuck, "blocked waits"),
    ("a drain that did not end", fact("drained", False), judging.stuck, "not drained in time"),
    ("a process", fact("left_processes", ["task 1"]), judging.left_over, "task 1"),
    (
        "a fault of check",
        fact("checks", {"outer": {"faults": [{"kind": "in_two_states"}]}}),
        judging.check_clean,
        "in_two_states",
    ),
    (
        "a check that did not answer",
        fact("checks", {"outer": {}}),
        judging.check_clean,
        "no report",
    ),
    ("an attempt without a log", without_log, judging.logs, "plain.1 has no log"),
    ("the log of another", log_of_another, judging.logs, "is of 7.0.0.zz-9"),
    ("a journal that is torn inside", torn_inside, judging.journals, "before the last"),
    ("two starts of a claim", started_twice_in_journals, judging.journals, "2 events 'start'"),
    ("company for a timed task", beside_a_timed_one, judging.alone, "plain ran beside fails"),
    ("a strange call", fact("strange_calls", ["check: -6"]), judging.strange, "check: -6"),
    ("a traceback", lambda f: f.tracebacks.append("x.log"), judging.strange, "in x.log"),
    ("nobody who looked for processes", without_facts, judging.left_over, "nobody looked"),
    ("nobody who asked check", without_facts, judging.check_clean, "nobody asked"),
]


@pytest.mark.parametrize(
    ("change", "check", "told"), [wrong[1:] for wrong in WRONGS], ids=[wrong[0] for wrong in WRONGS]
)
def test_what_is_wrong_is_told(
    change: Callable[[Evidence], None], check: Callable[[Evidence], Any], told: str
) -> None:
    found = story()
    change(found)

    said = against(found, check)

    assert any(told in sentence for sentence in said), said
    assert not judge(found).holds


def test_a_task_that_runs_on_while_its_next_attempt_runs_is_counted_and_is_no_fault() -> None:
    found = story()
    found.runs["lost-once"][0] = replace(found.runs["lost-once"][0], ended=BEGAN + 11, end=0)

    judgement = judge(found)

    assert judgement.holds
    assert judgement.tallies["runs that went on beside their own next attempt"] == 1


def test_memory_that_grows_is_told_and_memory_that_wavers_is_not() -> None:
    grows = memory_flat(life([27_000 + 100.0 * n for n in range(60)]))
    wavers = memory_flat(life([27_000 + (n % 7) * 150.0 for n in range(60)]))
    warms_up = memory_flat(life([20_000.0 + min(n, 6) * 1_000 for n in range(60)]))

    assert (grows.holds, wavers.holds, warms_up.holds) == (False, True, True)
    assert "grew by" in grows.examples[0]


def test_one_late_import_is_no_leak_and_two_such_steps_are() -> None:
    once = memory_flat(life([27_000 + 3_700.0 * (n >= 30) for n in range(60)]))
    twice = memory_flat(life([27_000 + 3_700.0 * ((n >= 30) + (n >= 35)) for n in range(60)]))
    at_once = memory_flat(life([27_000 + 9_000.0 * (n >= 30) for n in range(60)]))
    behind_one = memory_flat(life([27_000 + 60.0 * n + 3_700.0 * (n >= 30) for n in range(60)]))

    assert (once.holds, twice.holds, at_once.holds) == (True, False, False)
    assert behind_one.holds is False


def test_a_little_growth_of_one_life_is_chance_and_that_of_all_is_a_leak() -> None:
    creeping = life([27_000 + 15.0 * n for n in range(60)])
    flat = life([27_000.0] * 60)
    lives = [[{**one, "life": f"{n}"} for one in creeping] for n in range(5)]
    rest = [[{**one, "life": f"flat {n}"} for one in flat] for n in range(5)]

    all_creep = memory_flat([one for samples in lives for one in samples])
    one_creeps = memory_flat([*lives[0], *(one for samples in rest for one in samples)])

    assert (all_creep.holds, one_creeps.holds) == (False, True)
    assert "the median of 5 lives grew" in all_creep.examples[0]


def test_descriptors_that_are_not_closed_are_told() -> None:
    leaks = descriptors_flat(life([9 + n // 5 for n in range(60)], what="fds"))
    flat = descriptors_flat(life([9 + n % 3 for n in range(60)], what="fds"))

    assert (leaks.holds, flat.holds) == (False, True)


def test_lives_that_were_too_short_prove_nothing() -> None:
    short = memory_flat(life([27_000.0] * 5))

    assert short.holds is None
    assert "not looked at" in short.line()


def test_a_keeper_is_judged_and_a_launcher_is_not() -> None:
    growing = [27_000 + 100.0 * n for n in range(60)]

    assert memory_flat(life(growing, kind="keeper")).holds is False
    assert memory_flat(life(growing, kind="launcher")).holds is None


def test_the_evidence_is_read_from_files_as_fleetcraft_and_tasks_write_them(tmp_path: Path) -> None:
    spool = tmp_path / "root" / "taskq"
    for folder in ("done", "running", "pending/first", "logs", "workers"):
        (spool / folder).mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "enqueued").write_text("outer plain a\nouter plain b.sh.c\n")
    (tmp_path / "facts.json").write_text("{}")
    history = json.dumps(line("x-1", "completed", "done", 2))
    late = json.dumps(line("x-1", "lost", "pending", 3))
    (spool / "done" / "a.sh").write_text(
        f"#!/usr/bin/env bash\n#FLEET name: a\n#FLEET retries: 2\ntrue\nexit\n"
        f"#FLEET-RUN {history}\n#FLEET-RUN {late}\n#FLEET-RUN {{torn\n"
    )
    (spool / "pending" / "first" / "b.sh").write_text("#!/usr/bin/env bash\n#FLEET name: b\n")
    (spool / "running" / "c.sh.7.0.0.x-2").write_text("#!/usr/bin/env bash\n#FLEET name: c\n")
    (spool / "logs" / "a.1.log").write_text("7.0.0.x-1\nmore\n")
    (spool / "workers" / "7.0.x.jsonl").write_text(
        '{"event":"arrive"}\n{torn\n{"event":"leave"}\n{"e'
    )
    (tmp_path / "notes" / "n1").write_text(
        "a 1 7.0.0.x-1 99 1800000001.5 start\na 1 7.0.0.x-1 99 1800000002.5 0\nhalf a li\n"
    )

    found = read(tmp_path)

    assert {name: places[0].state for name, places in found.tasks.items()} == {
        "a": "done",
        "b": "pending",
        "c": "running",
    }
    assert [told["outcome"] for told in found.tasks["a"][0].lines] == ["completed"]
    assert found.tasks["a"][0].damaged == 1
    assert (found.runs["a"][0].end, found.runs["a"][0].token) == (0, "x-1")
    assert found.bad_notes == 1
    assert found.logs == {"outer/a.1": "7.0.0.x-1"}
    assert (found.torn, found.torn_inside) == ({"outer/7.0.x": 2}, {"outer/7.0.x": 1})


def test_only_the_first_line_of_a_claim_counts() -> None:
    first, second = line("x-1", "lost", "pending", 1), line("x-1", "completed", "done", 2)
    text = "".join(f"#FLEET-RUN {json.dumps(one)}\n" for one in (first, second))

    found = read_record(text.encode(), spool="outer", state="pending")

    assert [told["outcome"] for told in found.lines] == ["lost"]


def test_the_page_shows_what_does_not_hold_beside_what_does() -> None:
    found = story()
    gone(found)
    judgement = {**asdict(judge(found)), "holds": False}
    facts = {"took_s": 60.0, "packs": 1, "launches": 2, "seed": 3, "vain": {}, "notes": []}
    facts["done"] = {"kill a node": 2}

    text = page({"CPU": "2 cores"}, facts, judgement, nodes=8)

    rows = [row for row in text.splitlines() if row.startswith("| ")]
    assert any("in exactly one state" in row and "| **no** | 1 |" in row for row in rows)
    assert "| check is clean | yes | 0 |  |" in rows
    assert "| kill a node | 2 |" in rows
    assert "| outer | 2 | 1 | 1 | 0 | 0 |" not in rows
    assert "| outer | 1 | 1 | 1 | 0 | 0 |" in rows
