"""A disk that is full or read-only: a small mount of its own holds the spool."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.spool.record import compose
from tests.worker.harness import Site, wait_until

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    """A site whose scratch tree lies on four MiB; its tasks run elsewhere."""
    base = tmp_path / "base"
    scratch = base / "scratch"
    scratch.mkdir(parents=True)
    options = "size=4m,nr_inodes=300,mode=0700"
    try:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(scratch)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("there is no mount program here")
    if made.returncode != 0:
        pytest.skip(f"no tmpfs may be mounted here: {made.stderr.strip()}")
    site = Site(base)
    try:
        yield site
    finally:
        left = site.close()
        subprocess.run(["umount", "--lazy", str(scratch)], check=True)
    assert not left


# Fills the mount to the last byte.
FILL = "cat /dev/zero > $FLEET_ROOT/filler 2> /dev/null; touch filled; "


def enqueue_padded(site: Site, name: str, command: str, **directives: object) -> None:
    """Enqueues a task whose record ends where a page does: no history line fits."""
    bare = site.spool.spec(name, command, **directives)
    missing = -(len(compose(bare, "0" * 12)) + 2) % PAGE
    site.enqueue(name, f"{command}\n#{'p' * missing}", **directives)
    assert Path(site.spool.show(name).path).stat().st_size % PAGE == 0


def free(site: Site) -> None:
    (site.root / "filler").unlink()


def test_a_completed_task_is_done_although_its_history_cannot_be_written(small: Site) -> None:
    enqueue_padded(small, "a-filler", FILL + "exit 0")
    small.enqueue("b-next", "touch ran")
    worker = small.start(idle_s=60.0)
    assert worker.wait() == 9
    assert small.state("a-filler") == "done"
    assert small.history("a-filler") == ()
    assert small.state("b-next") == "pending"
    assert not small.file("ran").exists()
    assert "could not be written" in worker.report()["reason"]
    free(small)
    small.work()
    assert small.state("b-next") == "done"
    assert small.faults() == []


def test_a_failed_task_stays_in_running_and_is_recovered_when_there_is_space(small: Site) -> None:
    enqueue_padded(small, "a-filler", FILL + "exit 1", retries=3)
    small.enqueue("b-next", "touch ran")
    worker = small.start(idle_s=60.0)
    assert worker.wait() == 9
    assert small.state("a-filler") == "running"
    assert not small.file("ran").exists()
    full = small.spool.recover()
    assert (full.recovered, full.unknown) == (0, 1)
    assert "No space left" in full.reason
    free(small)
    assert small.spool.recover().recovered == 1
    assert small.outcomes("a-filler") == ["lost"]
    assert small.state("a-filler") == "pending"
    assert small.faults() == []


def test_a_fleet_on_a_full_disk_ends_and_says_why(small: Site) -> None:
    enqueue_padded(small, "a-filler", FILL + "exit 1")
    fleet = small.start(workers=2)
    wait_until(small.file("filled").exists, "it is full")
    report = fleet.report(110)
    assert report["exit_code"] == 1
    assert any("free space" in reason or "could not" in reason for reason in report["stopped"])
    free(small)
    small.spool.recover()
    assert small.counts()["running"] == 0
    assert small.faults() == []


def make_files(folder: Path) -> None:
    for number in itertools.count():
        (folder / f"{number}").touch()


def test_when_no_log_can_be_made_nothing_is_run_and_the_task_stays_pending(small: Site) -> None:
    # Out of inodes, so that not even an empty log can be made.
    worker = small.start(idle_s=60.0, heartbeat_s=300.0)
    wait_until(lambda: small.spool.status().workers, "it has arrived")
    many = small.root / "many"
    many.mkdir()
    with pytest.raises(OSError, match="No space"):
        make_files(many)
    for name in ("0", "1"):  # what the record and its link in names/ take
        (many / name).unlink()
    small.enqueue("task", "touch ran")
    assert worker.wait() == 9
    assert "no log can be made" in worker.report()["reason"]
    assert small.state("task") == "pending"
    assert small.history("task") == ()
    assert not small.file("ran").exists()
    shutil.rmtree(many)
    small.work()
    assert small.outcomes("task") == ["completed"]


def test_a_read_only_spool_is_refused_in_a_sentence(small: Site) -> None:
    small.enqueue("task", "touch ran")
    subprocess.run(["mount", "-o", "remount,ro", str(small.root)], check=True)
    for worker in (small.start(), small.start(workers=2)):
        code = worker.wait()
        assert code == (5 if worker is small.started[0] else 1)
        assert any("Read-only" in event["text"] for event in worker.events("refused")), (
            worker.said()
        )
        assert "Traceback" not in worker.errors()
    subprocess.run(["mount", "-o", "remount,rw", str(small.root)], check=True)
    small.work()
    assert small.state("task") == "done"
