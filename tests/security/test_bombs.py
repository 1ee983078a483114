"""Small inputs that ask for much: aliases, depth, digits, dates, and patterns that go back.

Growth is compared between a size and twice that size, in the processor's time; no absolute time is
measured. Not here: changed bytes of every parser (`tests/fuzz`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.diagnosis.device_oom import parse_device_oom
from fleetcraft.diagnosis.process_limits import process_limit_words
from fleetcraft.errors import FleetError
from fleetcraft.evidence.declared import read_declared
from fleetcraft.spool.names import matches
from fleetcraft.training.diagnosing.lines import read_piece
from fleetcraft.training.plan.run_file import read_run_file
from tests.cli.conftest import Fleet

LAUGHS = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40)
)
"""Nine to the power of forty values, in forty lines."""
BOMBS = {
    "aliases": LAUGHS,
    "merges": "a0: &a0 {x: y}\n"
    + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 40)),
    "itself": "a: &a [*a]\n",
    "deep": "run: " + "[" * 1200 + "]" * 1200,
    "python object": 'run: !!python/object/apply:os.system ["touch was-run"]\n',
    "python name": "run: !!python/name:os.system\n",
    "python module": "run: !!python/module:os\n",
    "own tag": "run: !evil x\n",
    "binary": "run: !!binary aGVsbG8=\n",
    "digits": f"run: {'9' * 100_000}\n",
    "sexagesimal": f"run: {':'.join(['59'] * 20_000)}\n",
    "float": "run: 1e999999999\n",
    "date": "run: 9999999-99-99\n",
    "documents": "run: a\n---\nrun: b\n",
    "control": "run: a\x1b[2J\n",
    "key twice": "run: a\nrun: b\n",
    "no text": "\udcff\udcfe",
    "directive": "%YAML 9.9\n---\nrun: a\n",
}


PLAIN = ("sexagesimal", "float", "date")
"""What a reader of plain values may take, which asks for no keys of its own."""


def read_table(path: str) -> object:
    from fleetcraft.batch_table import read_table

    return read_table(path)


def read_settings(path: str) -> object:
    from fleetcraft.config.yaml_file import read_settings_file

    return read_settings_file(path)


@pytest.mark.parametrize("read", [read_settings, read_run_file, read_declared, read_table])
@pytest.mark.parametrize("name", BOMBS)
def test_yaml_that_asks_for_much_or_for_code_is_refused_or_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, read: Callable[[str], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.yaml"
    path.write_bytes(BOMBS[name].encode("utf-8", "surrogateescape"))
    if read is read_declared and name in PLAIN:
        read(str(path))
    else:
        with pytest.raises(FleetError, match="a.yaml"):
            read(str(path))
    assert not (tmp_path / "was-run").exists()


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "place",
    ["evidence/results/s/x.jsonl", "telemetry/n1_job7_20270115T070000Z.json",
     "taskq/workers/1.0.abcdefgh.json", "taskq/workers/1.0.abcdefgh.jsonl", "taskq/DRAIN",
     "taskq/cancel/a", "runs/r/status.json", "runs/r/events.jsonl",
     "evidence/manifests/m.json"],
)  # fmt: skip
@pytest.mark.parametrize(
    "text",
    [
        f'{{"schema": {DEEP}',
        f"{DEEP}{']' * 100_000}",
        '{"counter": 1e999}',
        f'{{"pid": {"9" * 5000}}}',
        "null",
        "\0" * 99,
    ],
)
def test_json_of_any_depth_and_size_surprises_no_command(
    fleet: Fleet, place: str, text: str
) -> None:
    path = fleet.root / place
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text + "\n")
    path.chmod(0o600)
    verbs = {
        "evidence": [("evidence", "results", "s"), ("evidence", "verify", "m")],
        "telemetry": [("telemetry", "inspect")],
        "taskq": [("status",), ("check",), ("recover",)],
        "runs": [("train", "status")],
    }
    for words in verbs[place.partition("/")[0]]:
        called = fleet(*words)
        assert "Traceback" not in called.err, (words, called.err)
        assert called.code in (0, 1, 2, 5, 7), (words, called.err)


def grows_like_its_size(run: Callable[[int], object], size: int) -> None:
    """Twice as much takes at most a few times as long; what goes back takes millions of times."""

    def cost_s(count: int) -> float:
        before = time.process_time()
        run(count)
        return time.process_time() - before

    once = max(cost_s(size), 0.002)
    assert cost_s(2 * size) < 12 * once + 0.05


@pytest.mark.parametrize(
    "pattern", ["*a*a*a*a*a*a*a*a*a*a*a*a*a*b", "a*" * 40 + "b", "[a-z]*" * 20 + "_"]
)
def test_globs_with_many_stars_do_not_go_back_for_ever(pattern: str) -> None:
    grows_like_its_size(lambda count: matches(pattern, ["a" * 150] * count, but=""), 50)


LONG_LINES = {
    "spaces": " ",
    "digits": "9",
    "brackets": "[",
    "quotes": '"',
    "rank": "[rank0]: ",
    "cuda": "CUDA out of memory. Tried to allocate ",
    "error": "Error: ",
    "colons": "a:",
    "nccl": "NCCL WARN ",
    "time": "2026-01-01 00:00:00,",
    "path": '  File "/a/b.py", line 1, in ',
    "escapes": "\x1b[31m",
    "words": "aaaa.bbbb.",
    "backslash": "\\",
}


@pytest.mark.parametrize("name", LONG_LINES)
def test_looking_for_causes_in_a_log_grows_like_the_log(name: str) -> None:
    piece = LONG_LINES[name]

    def look(count: int) -> None:
        text = piece * count  # one line without an end
        many = "\n".join([piece * 20] * (count // 20))  # many that begin alike
        for each in (text, many, f"Traceback (most recent call last):\n{many}"):
            parse_device_oom(each)
            process_limit_words(each)
            data = each.encode()
            read_piece(data, len(data), final=True)

    grows_like_its_size(look, 60_000 // len(piece))


def test_times_and_counts_beyond_all_calendars_are_refused(fleet: Fleet) -> None:
    for words in (
        ("--time", "99999999999999999999:00:00"), ("--time", "-1"), ("--timeout", "1e400"),
        ("--retries", "9" * 5000), ("--retries", "-1"), ("--timeout", "nan"), ("--time", "٣"),
    ):  # fmt: skip
        called = fleet("enqueue", "-n", "a", *words, "true")
        assert (called.code, "Traceback" in called.err) == (2, False), (words, called.err)
    assert fleet.names() == []


@pytest.mark.parametrize(
    "field",
    ['"started_at":"9999-12-31T23:59:59.999999Z"', '"ended_at":"0001-01-01T00:00:00Z"',
     '"ended_at":"99999-01-01T00:00:00Z"', '"wall_s":1e308', '"wall_s":-1e308', '"cpu_s":1e999',
     '"max_rss_bytes":999999999999999999999999', '"exit_code":-999999999999', '"signal":99999',
     '"attempt":999999999999999999', '"attempt":-5'],
)  # fmt: skip
def test_history_with_impossible_numbers_surprises_nobody(fleet: Fleet, field: str) -> None:
    fleet.ok("enqueue", "-n", "a", "exit 3")
    fleet("run")
    path = fleet.spool / "failed" / "a.sh"
    head, _, line = path.read_text().rpartition("#FLEET-RUN ")
    value = json.loads(line)
    key, _, number = field.partition(":")
    text = json.dumps({**value, json.loads(key): "HERE"}).replace('"HERE"', number)
    path.write_text(f"{head}#FLEET-RUN {text}\n")
    for words in (("status",), ("show", "a"), ("check",), ("report", "-o", "r.html"),
                  ("retry", "a")):  # fmt: skip
        called = fleet(*words)
        assert "Traceback" not in called.err, (words, called.err)
