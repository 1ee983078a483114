"""Records that were dropped into the queue by hand: never run, filed or passed over, and why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.worker.harness import Site, wait_until

GOOD = "#!/usr/bin/env bash\n#FLEET name: {name}\n#FLEET id: 0123456789ab\n{more}touch ran\nexit\n"


def drop(site: Site, file: str, text: str | bytes, mode: int = 0o700) -> Path:
    path = Path(site.spool.tree.paths.pending) / file
    path.write_bytes(text if isinstance(text, bytes) else os.fsencode(text))
    path.chmod(mode)
    return path


def cd(site: Site) -> str:
    return f"cd -- {site.project} || exit 1\n"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("#FLEET tiemout: 00:01:00\n", "unknown directive 'tiemout' (did you mean 'timeout'?)"),
        ("#FLEET timeout: soon\n", "timeout"),
        ("#FLEET retries: -1\n", "retries"),
        ("#FLEET timed: yes\n", "timed"),
        ("#FLEET family: a\n#FLEET family: b\n", "twice"),
        ("#FLEET outputs: 'unpaired\n", "outputs"),
        ("#FLEET lane: middle\n", "lane"),
        ("#FLEET timed\n", "key: value"),
        (os.fsdecode(b"#FLEET \xff\xfe: true\n"), "unknown directive"),
        (os.fsdecode(b"#FLEET lane: \xff\xfe\n"), "lane"),
    ],
)
def test_a_bad_directive_ends_in_failed_and_says_which(site: Site, more: str, reason: str) -> None:
    drop(site, "bad.sh", GOOD.format(name="bad", more=more + cd(site)))
    site.work()
    text = Path(site.spool.tree.paths.failed, "bad.sh").read_text(errors="replace")
    assert '"outcome":"launch_failed"' in text
    assert "bad record" in text
    assert reason in text
    assert not site.file("ran").exists()


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\x00\xff\xfe" * 100, b"touch ran\n", b"#!/bin/bash\ntouch ran\n", b"#!\n" * 9],
)
def test_garbage_ends_in_failed_and_is_not_run(site: Site, garbage: bytes) -> None:
    drop(site, "garbage.sh", garbage)
    site.enqueue("good", "true")
    worker = site.start()
    assert worker.wait() == 0
    failed = Path(site.spool.tree.paths.failed, "garbage.sh").read_bytes()
    assert failed.startswith(garbage)
    assert b"launch_failed" in failed
    assert site.state("good") == "done"
    assert not site.file("ran").exists()


def test_a_header_that_says_another_name_is_not_run(site: Site) -> None:
    drop(site, "this.sh", GOOD.format(name="that", more=cd(site)))
    site.work()
    text = Path(site.spool.tree.paths.failed, "this.sh").read_text()
    assert "its header says 'that', its file name 'this'" in text
    assert not site.file("ran").exists()


def test_a_bad_record_does_not_spend_its_retries_one_by_one(site: Site) -> None:
    drop(site, "bad.sh", GOOD.format(name="bad", more="#FLEET retries: 5\n#FLEET x: y\n"))
    site.work()
    text = Path(site.spool.tree.paths.failed, "bad.sh").read_text()
    assert text.count("#FLEET-RUN") == 1


@pytest.mark.parametrize("mode", [0o702, 0o720, 0o777])
def test_a_record_that_others_can_write_is_passed_over_and_stays(site: Site, mode: int) -> None:
    site.enqueue("a-open", "touch ran")
    site.enqueue("b-good", "true")
    record = Path(site.spool.show("a-open").path)
    record.chmod(mode)
    worker = site.start()
    assert worker.wait() == 0
    assert site.state("b-good") == "done"
    assert record.exists()
    assert "#FLEET-RUN" not in record.read_text()
    assert not site.file("ran").exists()
    notes = [note["text"] for note in worker.events("note")]
    assert any("'a-open' is passed over" in note and "others can write" in note for note in notes)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_record_of_another_user_is_passed_over(site: Site) -> None:
    site.enqueue("a-strange", "touch ran")
    site.enqueue("b-good", "true")
    record = Path(site.spool.show("a-strange").path)
    os.chown(record, 12345, -1)
    worker = site.start()
    assert worker.wait() == 0
    assert site.state("b-good") == "done"
    assert record.exists()
    assert not site.file("ran").exists()
    assert any("belongs to user 12345" in note["text"] for note in worker.events("note"))


def test_a_fleet_does_not_wait_for_a_record_that_it_may_not_run(site: Site) -> None:
    site.enqueue("a-open", "touch ran")
    Path(site.spool.show("a-open").path).chmod(0o777)
    site.enqueue("b-good", "true")
    report = site.drain(workers=2)
    assert report["done"] == 1
    assert report["left"]["pending"] == 1


def test_a_link_a_folder_and_a_name_too_long_are_passed_over(site: Site) -> None:
    pending = Path(site.spool.tree.paths.pending)
    target = site.base / "elsewhere.sh"
    target.write_text(GOOD.format(name="a-link", more=cd(site)))
    (pending / "a-link.sh").symlink_to(target)
    (pending / "b-folder.sh").mkdir()
    drop(site, "c" * 240 + ".sh", GOOD.format(name="c", more=cd(site)))
    site.enqueue("d-good", "true")
    report = site.drain()
    assert report["done"] == 1
    assert not site.file("ran").exists()
    assert (pending / "a-link.sh").is_symlink()
    assert (pending / ("c" * 240 + ".sh")).exists()


def test_files_that_are_no_records_are_not_touched(site: Site) -> None:
    pending = Path(site.spool.tree.paths.pending)
    for name in ("notes.txt", ".nfs0001", "x.sh~", "readme"):
        (pending / name).write_text("touch ran\n")
    site.enqueue("good", "true")
    site.work()
    assert {path.name for path in pending.iterdir()} >= {"notes.txt", ".nfs0001", "x.sh~", "readme"}
    assert not site.file("ran").exists()


def test_a_record_that_is_made_unsafe_between_claim_and_start_is_not_run(site: Site) -> None:
    # As soon as it is claimable again it is claimed with what it then says.
    site.enqueue("task", "echo $FLEET_ATTEMPT; [ $FLEET_ATTEMPT = 2 ]", retries=1)
    record = Path(site.spool.show("task").path)
    record.chmod(0o722)
    worker = site.start(idle_s=60.0)
    wait_until(lambda: worker.events("note"), "it was passed over")
    worker.kill()
    record.chmod(0o700)
    site.work()
    assert site.state("task") == "done"
    assert site.faults() == []


def test_a_record_without_its_execute_bit_runs_all_the_same(site: Site) -> None:
    site.enqueue("plain", "true")
    Path(site.spool.show("plain").path).chmod(0o600)
    site.work()
    assert site.state("plain") == "done"


def test_a_torn_history_line_does_not_keep_a_task_from_running(site: Site) -> None:
    site.enqueue("torn", "true")
    with open(site.spool.show("torn").path, "a") as file:
        file.write('#FLEET-RUN {"claim":"abcdefgh-1","outcome":"fail')
    site.work()
    assert site.state("torn") == "done"
    assert site.record("torn").damaged == 1
    assert site.outcomes("torn") == ["completed"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reason_that_names_a_file_that_is_no_text_ends_no_worker(
    site: Site, workers: int
) -> None:
    site.enqueue("a-latin", "touch ran", env_file=os.fsdecode(b"caf\xe9.env"))
    site.enqueue("b-next", "true")
    worker = site.start(workers=workers)
    assert worker.wait() == workers, worker.said()  # a fleet says that one has failed
    assert site.outcomes("a-latin") == ["launch_failed"]
    assert site.outcomes("b-next") == ["completed"]
    [end] = worker.events("end", task="a-latin")
    assert "caf\\udce9.env: No such file" in end["reason"]
    assert end["reason"] in [event.get("reason") for event in site.journals()]


# A worker on a mount that fails when a claim is read.
OUT_OF_REACH = """
import errno, os, runpy, sys
from fleetcraft.files import FileSystem
from fleetcraft.spool import tree

class OutOfReach(FileSystem):
    def read_with_facts(self, path):
        if "/running/" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().read_with_facts(path)

tree.FileSystem = OutOfReach
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_claim_that_cannot_be_looked_at_is_no_failed_launch(site: Site) -> None:
    site.enqueue("task", "touch ran")
    worker = site.start(wrap=["sh", "-c", 'p="$1"; shift; exec "$p" -c "$0" "$@"', OUT_OF_REACH])
    assert worker.wait() == 9
    assert "Input/output error" in worker.report()["reason"]
    assert (site.state("task"), site.outcomes("task")) == ("running", [])
    assert not site.file("ran").exists()
