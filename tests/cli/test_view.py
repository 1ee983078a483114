"""Text for people: columns, safe characters, and the tally of a run."""

from __future__ import annotations

import io
from typing import Any

from fleetcraft.view.run import Tally, event_line
from fleetcraft.view.text import Paint, one_line, printable, table

PLAIN = Paint(False)


def test_a_table_without_a_width_cuts_nothing() -> None:
    rows = [["a" * 180, "x" * 500], ["b", "y"]]
    first, second = table(rows).splitlines()
    assert first == f"  {'a' * 180}  {'x' * 500}"
    assert second == f"  b{' ' * 179}  y"


def test_only_the_last_column_gives_way_to_a_width() -> None:
    (line,) = table([["a" * 60, "x" * 100]], width=80).splitlines()
    assert line.startswith(f"  {'a' * 60}  xxx")
    assert line.endswith("…")
    assert len(line) == 80


def test_rows_of_different_lengths_and_none_at_all_are_tables() -> None:
    assert table([]) == ""
    assert table([["a", "b", "c"], ["d"]]) == "  a  b  c\n  d"


def test_text_is_made_harmless_but_stays_readable() -> None:
    assert printable("a\x1b[2J\x07\x9b\x7f\tb\nnaïve ☃") == "a\\x1b[2J\\x07\\x9b\\x7f\tb\nnaïve ☃"
    assert one_line("a\nb\tc") == "a\\nb c"
    assert one_line("abcdef", 4) == "abc…"


def test_colour_asks_the_stream_and_the_user() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert Paint.for_stream(Terminal(), {"TERM": "xterm"})("bad", "x") == "\x1b[31mx\x1b[0m"
    assert Paint.for_stream(Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})("bad", "x") == "x"
    assert Paint.for_stream(Terminal(), {"TERM": "dumb"})("bad", "x") == "x"
    assert Paint.for_stream(io.StringIO(), {"TERM": "xterm"})("bad", "x") == "x"


def event(kind: str, task: str = "", **more: Any) -> dict[str, Any]:
    return {"event": kind, "task": task, "worker": 0, **more}


def end(task: str, outcome: str, to: str) -> dict[str, Any]:
    return event(
        "end", task, outcome=outcome, to=to, attempt=1, exit_code=3, wall_s=1.5, log="/l", reason=""
    )


def test_a_tally_counts_each_task_once_and_grows_with_new_ones() -> None:
    tally = Tally(total=2)
    for task in ("a", "b", "c"):
        tally.take(event("start", task))
    assert (tally.total, len(tally.running)) == (3, 3)
    tally.take(end("a", "completed", "done"))
    tally.take(end("b", "failed", "failed"))
    tally.take(end("c", "failed", "pending"))
    tally.take(event("note", text="hello"))
    assert tally.line() == "2 of 3 tasks, 1 failed, 1 put back"
    assert [failure["task"] for failure in tally.failures] == ["b"]


def test_an_event_is_a_line_with_what_is_needed_next() -> None:
    line = event_line(end("a", "failed", "pending"), PLAIN)
    assert line == "a attempt 1: failed, exit code 3 in 1.50 s, put back, log /l"
    assert event_line(event("start", "a"), PLAIN) is None
    assert event_line(event("note", text="a\x1b"), PLAIN) == "worker 0: a\\x1b"
