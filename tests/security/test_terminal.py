"""Text of files on its way to a terminal: no escape, no turned text, no line that is not ours.

Every file of a small tree has hostile text in each of its fields in turn, and the verbs that read
it are called. Not here: the HTML page (`tests/report`), figures (`tests/plots`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.cli import output
from fleetcraft.errors import FleetError
from fleetcraft.view.text import Paint, harmless, one_line, printable
from tests.cli.conftest import Fleet

LINK = "\x1b]8;;http://example.org\x07"
CLIPBOARD = "\x1b]52;c;cm0gLXJmIC8=\x07"
ATTACKS = {
    "clear": "\x1b[2J\x1b[H",
    "title": "\x1b]0;taken\x07",
    "link": LINK,
    "clipboard": CLIPBOARD,
    "device": '\x1bP$q"p\x1b\\',
    "c1": "\x9b2J\x9d0;taken\x9c",
    "bell": "\x07",
    "backspace": "rm\x08\x08",
    "return": "safe\rhidden",
    "bidi": "\u202egnp.exe\u202c",
    "isolate": "\u2066\u2067x\u2069",
    "mark": "\u200f\u061c",
    "line": "\u2028\u2029",
    "nul": "\x00",
    "delete": "\x7f",
}
HOSTILE = "".join(ATTACKS.values()) + "\nFORGED: a line\n"
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]"
)
VERBS = [
    ("status",), ("check",), ("show", "bad"), ("show", "next"), ("recover",), ("top", "--once"),
    ("evidence", "results", "sweep"), ("telemetry", "inspect"),
]  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_text_is_made_harmless_and_nothing_is_lost_of_it(name: str) -> None:
    for how in (printable, one_line, harmless):
        shown = how(f"before {ATTACKS[name]} after")
        assert not UNSAFE.search(shown)
        assert shown.startswith("before ")
        assert shown.endswith(" after")


def test_text_of_any_language_stays_as_it_is() -> None:
    text = "Größe שלום 中文 ∆ → 👩\u200d🔬 naïve"
    assert printable(text) == one_line(text) == harmless(text) == text


def test_our_own_colours_pass_the_last_door_and_no_other_escape_does() -> None:
    paint = Paint(True)
    ours = "".join(paint(kind, "x") for kind in ("bad", "good", "warn", "quiet", "strong"))
    assert harmless(ours) == ours
    assert harmless("\x1b[5m\x1b[31;1m\x1b[38;5;1m") == "\\x1b[5m\\x1b[31;1m\\x1b[38;5;1m"


@pytest.mark.parametrize("name", ATTACKS)
def test_the_doors_of_the_command_line_let_nothing_through(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text = f"a{ATTACKS[name]}b"
    output.print_text(text)
    output.note(text)
    output.show_error(FleetError(text, hint=text), as_json=False)
    said = capsys.readouterr()
    assert not UNSAFE.search(said.out + said.err)


def test_text_in_an_error_begins_no_line_that_could_pass_for_ours(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.show_error(FleetError("no 'a\nhint: rm -rf'", hint="b\nerror: c"), as_json=False)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "  hint", "hint", "  error"]


@pytest.fixture
def tree(fleet: Fleet) -> Fleet:
    """Done, failed, waiting and pending tasks, a worker's traces, a marker, a result, a sidecar."""
    fleet.ok("enqueue", "-n", "bad", "--family", "f", "exit 3")
    fleet("run")
    fleet.ok("enqueue", "-n", "next", "--after", "bad", "true")
    fleet.ok("drain")
    fleet.ok("evidence", "append", "--set", "sweep", "--arm", "a", "--seed", "1")
    from tests.telemetry.trees import inventory, lines, write_file

    said = {"interval_s": 30, "gpus": inventory(0), "end_reason": "x"}
    write_file(fleet.root / "telemetry", "n1", lines(1_700_000_000.0, 3), sidecar=said)
    return fleet


def files_of(fleet: Fleet) -> list[Path]:
    return [
        path
        for path in sorted(fleet.root.rglob("*"))
        if path.is_file() and path.suffix in (".json", ".jsonl", ".sh", "") and path.stat().st_size
    ]


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to every text of a JSON value, and to one number beside them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*before, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:1]):
            yield from places(inner, (*before, number))
    elif isinstance(value, str) and before[-1:] != ("schema",):
        yield before


def with_hostile(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The content again, with hostile text at the end of one field; every field in turn."""
    lines = data.decode().split("\n")
    seen = set()
    for number, line in enumerate(lines):
        head, brace, rest = line.partition("{")
        try:
            value = json.loads(brace + rest)
        except ValueError:
            continue
        for place in places(value):
            if place in seen:
                continue
            seen.add(place)
            changed = json.loads(brace + rest)
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] += HOSTILE
            new = [*lines[:number], head + json.dumps(changed), *lines[number + 1 :]]
            yield ".".join(map(str, place)), "\n".join(new).encode()


def wrong(fleet: Fleet, words: tuple[str, ...]) -> list[str]:
    """What is not well with the text of a call."""
    called = fleet(*words)
    said = called.out + called.err
    found = {
        "traceback": "Traceback" in said,
        "escape": UNSAFE.search(said),
        "forged line": any(line.startswith("FORGED") for line in said.splitlines()),
    }
    return [name for name, is_so in found.items() if is_so]


def test_no_field_of_any_file_reaches_a_terminal_as_it_stands(tree: Fleet) -> None:
    changed, found = 0, []
    for path in files_of(tree):
        mode, data = path.stat().st_mode, path.read_bytes()
        for place, hostile in with_hostile(data):
            path.write_bytes(hostile)
            changed += 1
            room = path.relative_to(tree.root).parts[0]
            for words in VERBS:
                inside = words[0] in ("telemetry", "top") if room == "telemetry" else True
                inside = words[0] == "evidence" if room == "evidence" else inside
                if inside and (words[0] != "evidence" or room == "evidence"):
                    found += [(path.name, place, words, what) for what in wrong(tree, words)]
        path.write_bytes(data)
        path.chmod(mode)
    assert found == []
    assert changed > 60


def test_names_of_files_that_nobody_would_give_are_shown_harmlessly(tree: Fleet) -> None:
    name = ("".join(ATTACKS.values()) + "\nFORGED").replace("\0", "").replace("/", "")
    odd = [name, "-rf", "..sh", "\udcff\udcfe", "x" * 250, " ", "a\nb"]
    for folder in (
        "taskq/pending",
        "taskq/done",
        "taskq/names",
        "taskq/workers",
        "taskq/cancel",
        "taskq/running",
        "taskq/logs",
        "taskq/tmp",
        "telemetry",
        "evidence/results",
    ):
        for each in odd:
            (tree.root / folder / f"{each[:245]}.sh").touch(mode=0o600)
    for words in VERBS:
        assert wrong(tree, words) == [], words
        called = tree("--json", *words)
        value = called.out or called.err
        assert value.count("\n") == 1
        json.loads(value)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", "../x", "-rf", "", ".", "a/b", "x" * 181,
                                  "a\0b", "\u202ea", "á"])  # fmt: skip
def test_no_task_can_have_such_a_name(fleet: Fleet, name: str) -> None:
    called = fleet("enqueue", f"--name={name}", "true")
    assert called.code == 2
    assert not UNSAFE.search(called.err)
    assert fleet.names() == []


def test_a_directive_with_escapes_is_shown_harmlessly(fleet: Fleet) -> None:
    for number, option in enumerate(("--family", "--after-file", "--outputs", "--env-file")):
        called = fleet("enqueue", "-n", f"t{number}", option, f"a{LINK}b", "true")
        assert not UNSAFE.search(called.err)
    fleet("enqueue", "-n", "c", f"echo '{CLIPBOARD}'")
    for words in (("status",), ("show", "c"), ("show", "t1"), ("check",), ("run",)):
        called = fleet(*words)
        assert not UNSAFE.search(called.out + called.err), words


def test_a_log_is_harmless_on_a_terminal(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.ok("enqueue", "-n", "a", "echo x")
    fleet.ok("run")
    log = fleet.spool / "logs" / "a.1.log"
    log.write_bytes(HOSTILE.encode() + b"\xff\xfe\x9b2J\n")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True, raising=False)
    called = fleet("logs", "a")
    assert called.out
    assert not UNSAFE.search(called.out)
