"""``fleetcraft report``: the page, its record, what it is about, and what it refuses."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fleetcraft.doctor.findings import Examination, Finding, Verdict
from fleetcraft.layout import State
from fleetcraft.spool.record import Outcome
from fleetcraft.spool.tree import SpoolTree
from tests.cli.conftest import Fleet
from tests.report.fleets import Written, ended


@pytest.fixture
def worked(fleet: Fleet) -> Fleet:
    """A fleet in which one task is done and one waits its turn."""
    spool = Written(SpoolTree(str(fleet.spool)))
    spool.task("a", State.DONE, [ended("a", time.time() - 30)], log="fine\n")
    spool.task("b", State.PENDING)
    return fleet


def test_the_page_of_what_really_ran_holds_its_failure_and_the_end_of_its_log(
    fleet: Fleet,
) -> None:
    fleet.ok("enqueue", "-n", "good", "true")
    fleet.ok("enqueue", "-n", "bad", "echo 'ValueError: nan in loss' >&2; exit 3")
    fleet("run", "--workers", "1")

    called = fleet.ok("report")

    page = Path("report.html").read_text()
    assert called.out.startswith("report.html\n1 of 2 tasks are done, 1 failed, none is left")
    assert "KiB, one file" in called.err
    assert "ValueError: nan in loss" in page
    assert "failed, exit code 3" in page
    assert "logs/bad.1.log" in page


def test_a_page_without_logs_quotes_none_and_still_says_where_they_are(fleet: Fleet) -> None:
    spool = Written(SpoolTree(str(fleet.spool)))
    line = ended("bad", time.time() - 9, outcome=Outcome.FAILED, exit_code=3)
    spool.task("bad", State.FAILED, [line], log="error: token=hunter2\n")

    fleet.ok("report", "--no-logs")

    page = Path("report.html").read_text()
    assert "hunter2" not in page
    assert "logs/bad.1.log" in page
    assert "failed, exit code 3" in page


def test_json_is_the_record_and_writes_no_page_unless_told(worked: Fleet) -> None:
    value = worked.ok("report", "--json").json

    assert value["schema"] == "fleetcraft.report/1"
    assert value["page"] is None
    assert value["spools"][0]["counts"]["done"] == 1
    assert value["spools"][0]["pace"]["eta_s"] is None
    assert not os.path.exists("report.html")
    assert worked.ok("report", "--json", "-o", "p.html").json["page"] == os.path.abspath("p.html")
    assert os.path.getsize("p.html") > 1000


def test_the_page_goes_to_stdout_when_asked(worked: Fleet) -> None:
    done = worked.process("report", "-o", "-")

    assert done.returncode == 0
    assert done.stdout.startswith("<!doctype html>")
    assert done.stderr == ""
    assert 'href="file:///' in done.stdout


def test_a_job_that_nothing_is_known_of_is_nothing_to_report(worked: Fleet) -> None:
    done = worked("report", "--job", "999")

    assert done.code == 1
    assert "there is nothing to report" in done.err
    assert not os.path.exists("report.html")


def test_a_page_in_a_folder_of_others_is_not_written_through_a_link_of_theirs(
    worked: Fleet, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("keep")
    os.symlink(theirs, f"report.html.{os.getpid()}.tmp")

    worked.ok("report")

    assert theirs.read_text() == "keep"


def test_a_page_is_replaced_by_a_newer_one_and_nothing_else_is(worked: Fleet) -> None:
    worked.ok("report", "--title", "first")
    worked.ok("report", "--title", "second")
    Path("notes.html").write_text("<p>mine</p>")

    called = worked("report", "-o", "notes.html", "--json")

    assert "<title>second</title>" in Path("report.html").read_text()
    assert called.code == 2
    assert "no page of fleetcraft report" in called.error["message"]
    assert Path("notes.html").read_text() == "<p>mine</p>"
    assert not list(Path().glob("*.tmp"))


def test_a_page_that_cannot_be_written_leaves_the_old_one_and_nothing_beside_it(
    worked: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked.ok("report", "--title", "first")

    def full(temporary: str, final: str) -> None:
        raise OSError(28, "No space left on device", final)

    monkeypatch.setattr("fleetcraft.files.replace_atomically", full)
    called = worked("report", "--json", "-o", "report.html")

    assert called.code == 5
    assert "No space left on device" in called.error["message"]
    assert "<title>first</title>" in Path("report.html").read_text()
    assert sorted(os.listdir()) == ["it's a root", "report.html"]


def test_a_report_may_be_about_jobs_and_a_span(worked: Fleet) -> None:
    by_job = worked.ok("report", "--json", "--job", "81234").json
    window = worked.ok("report", "--json", "--window", "1h").json
    early = worked.ok("report", "--json", "--until", "2020-01-01T00:00:00Z").json

    assert by_job["jobs"] == ["81234"]
    assert sum(by_job["spools"][0]["counts"].values()) == 1
    assert window["spools"][0]["outcomes"] == {"completed": 1}
    assert early["spools"][0]["outcomes"] == {}
    assert early["until"] == "2020-01-01T00:00:00Z"
    first = worked.ok("report", "--json", "--until", "0001-01-02T00:00:00Z", "--window", "5d").json
    assert first["since"].endswith("1-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "yesterday"], "not a time"),
        (["--since", "0001-01-01T00:00:00+14:00"], "not a time"),
        (["--window", "1h", "--since", "2026-01-01"], "exclude one another"),
        (["--since", "2026-01-02", "--until", "2026-01-01"], "no time lies between"),
        (["--window", "soon"], "not a usable duration"),
        (["--job", " "], "no job can have the id"),
        (["-o", "-"], "both want stdout"),
        (["-o", "nowhere/page.html"], "no folder"),
        (["-o", "."], "refusing to replace"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(worked: Fleet, words: list[str], said: str) -> None:
    called = worked("report", "--json", *words)

    assert called.code == 2
    assert said in called.error["message"]


def test_an_empty_tree_is_answered_with_no_and_no_page(fleet: Fleet) -> None:
    called = fleet("report")

    assert called.code == 1
    assert "there is nothing to report" in called.err
    assert not os.path.exists("report.html")


def test_a_tree_that_is_not_there_is_a_matter_of_configuration(bare_fleet: Fleet) -> None:
    called = bare_fleet("report", "--json")

    assert called.code == 3
    assert "no scratch tree at" in called.error["message"]


def test_what_checks_of_caches_find_is_on_the_page(
    worked: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/one/hub")
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", "/other/hub")

    notices = worked.ok("report", "--json").json["notices"]

    assert any("HUGGINGFACE_HUB_CACHE" in one["text"] + one["hint"] for one in notices)
    assert {one["source"] for one in notices} == {"caches check"}


def test_with_doctor_its_findings_stand_there_but_not_what_is_well(
    worked: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Examination(
        host="n1",
        user=1,
        made_at="2026-11-30T00:00:00Z",
        quick=True,
        findings=(
            Finding(section="clock", name="skew", verdict=Verdict.OK, found="0.1 s"),
            Finding(
                section="scratch", name="mode", verdict=Verdict.WRONG, found="0777", hint="chmod"
            ),
        ),
    )
    monkeypatch.setattr("fleetcraft.doctor.examining.examine", lambda flags, quick: found)

    (notice,) = worked.ok("report", "--json", "--doctor").json["notices"]

    assert notice == {
        "source": "doctor",
        "level": "wrong",
        "text": "scratch, mode: 0777",
        "hint": "chmod",
    }
