"""Pipes, sparse gigabytes, links and folders in the place of files: nobody hangs, nothing grows.

Not here: what tests of one part already put there: checkpoints, queues, batch tables, barriers.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Fleet
from tests.telemetry.trees import inventory, lines, write_file

GIB = 1 << 30
LONGEST_S = 60
"""For one call that takes milliseconds: a hang is for ever."""


def a_pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def ten_gib_of_holes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * GIB)
    path.chmod(0o600)


def a_link_to_what_never_ends(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_socket(path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path)[-100:] if len(str(path)) < 100 else os.path.relpath(path))


class Hangs(BaseException):
    """A call took for ever; no error, which a command would turn into a sentence."""


SHAPES = [a_pipe, ten_gib_of_holes, a_link_to_what_never_ends, a_link_to_itself, a_folder, a_socket]
READING = [
    ("status",), ("check",), ("show", "bad"), ("show", "next"), ("logs", "bad"), ("recover",),
    ("promote",), ("cancel", "next"), ("retry", "bad"), ("top", "--once"), ("resume",),
]  # fmt: skip


@contextmanager
def bounded(what: object) -> Iterator[None]:
    """Fails when it takes for ever, or needs memory for what is not there."""

    def give_up(*_: object) -> None:
        raise Hangs(what)

    before = signal.signal(signal.SIGALRM, give_up)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    signal.alarm(LONGEST_S)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * GIB, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool with a task in every state, made once."""
    from fleetcraft.cli.main import main

    root = tmp_path_factory.mktemp("model") / "root"
    reach = ["--root", str(root)]
    assert main([*reach, "init"]) == 0
    assert main([*reach, "enqueue", "-n", "bad", "echo said; exit 3"]) == 0
    main([*reach, "run"])
    assert main([*reach, "enqueue", "-n", "next", "--after", "bad", "true"]) == 0
    assert main([*reach, "enqueue", "-n", "rest", "true"]) == 0
    assert main([*reach, "drain"]) == 0
    assert main([*reach, "evidence", "append", "--set", "s", "--arm", "a", "--seed", "1"]) == 0
    said = {"interval_s": 30, "gpus": inventory(0)}
    write_file(root / "telemetry", "n1", lines(1_700_000_000.0, 3), sidecar=said)
    return root


@pytest.fixture
def fleet(bare_fleet: Fleet, model: Path) -> Fleet:
    shutil.copytree(model, bare_fleet.root)
    bare_fleet.root.chmod(0o700)
    return bare_fleet


def spoil(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink(missing_ok=True)
    try:
        make(path)
    except OSError as error:
        pytest.skip(f"this file system has no such thing: {error}")


def calm(fleet: Fleet, words: tuple[str, ...]) -> None:
    """A call that may refuse, but neither hangs nor is surprised."""
    with bounded(words):
        called = fleet(*words)
    assert "Traceback" not in called.err, (words, called.err)
    assert called.code in (0, 1, 2, 3, 5, 7, 75), (words, called.err)


@pytest.mark.parametrize("make", SHAPES)
@pytest.mark.parametrize(
    "place",
    ["failed/bad.sh", "waiting/next.sh", "pending/rest.sh", "names/bad", "names/next", "DRAIN",
     "logs/bad.1.log", "workers/LEASE", "workers/JOURNAL", "cancel/next", "tmp/left"],
)  # fmt: skip
def test_nothing_in_a_spool_can_hold_a_command_up(
    fleet: Fleet, place: str, make: Callable[[Path], None]
) -> None:
    kinds = {"workers/LEASE": "*.json", "workers/JOURNAL": "*.jsonl"}
    found = sorted((fleet.spool / "workers").glob(kinds.get(place, "none")))
    spoil(found[0] if found else fleet.spool / place, make)
    for words in READING:
        calm(fleet, words)


@pytest.mark.parametrize("make", SHAPES)
def test_a_worker_passes_over_them_and_runs_what_is_well(
    fleet: Fleet, make: Callable[[Path], None]
) -> None:
    fleet.ok("resume")
    for place in ("pending/a.sh", "pending/z.sh", "waiting/y.sh"):
        spoil(fleet.spool / place, make)
    with bounded("run"):
        called = fleet("run")
    assert "Traceback" not in called.err
    assert (fleet.spool / "done" / "rest.sh").is_file()


@pytest.mark.parametrize("make", SHAPES)
def test_telemetry_evidence_and_settings_can_hold_nobody_up(
    fleet: Fleet, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    (csv,) = (fleet.root / "telemetry").glob("*.csv")
    spoil(csv.with_suffix(".json"), make)
    calm(fleet, ("telemetry", "inspect"))
    if make is not ten_gib_of_holes:  # which is read to its end, in pieces
        spoil(csv, make)
        for words in (("telemetry", "inspect"), ("telemetry", "summary"), ("top", "--once")):
            calm(fleet, words)
    (result,) = (fleet.root / "evidence/results/s").glob("*.jsonl")
    if make is not ten_gib_of_holes:
        spoil(result, make)
        calm(fleet, ("evidence", "results", "s"))
    odd = tmp_path / "odd"
    spoil(odd, make)
    for words in (
        ("train", "supervise", str(odd)), ("calibrate", "diff", str(odd), str(odd)),
        ("evidence", "gate", str(odd)), ("telemetry", "verify", str(odd)),
        ("barrier", "check", str(odd)), ("train", "checkpoints", str(odd)),
        ("rollouts", "status", str(odd)), ("evidence", "trace", str(odd)),
    ):  # fmt: skip
        if make is ten_gib_of_holes and words[1] in ("trace",):
            continue  # its bytes are hashed, all of them
        calm(fleet, words)
    spoil(tmp_path / "fleet.yaml", make)
    calm(fleet, ("status",))
    (tmp_path / "fleet.yaml").unlink() if make is not a_folder else (
        tmp_path / "fleet.yaml"
    ).rmdir()


@pytest.mark.parametrize("make", [a_pipe, a_folder, a_link_to_itself, a_socket])
def test_a_page_is_not_written_over_what_is_none(
    fleet: Fleet, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    spoil(tmp_path / "r.html", make)
    calm(fleet, ("report", "-o", str(tmp_path / "r.html")))
