"""The page as text: whole, inert, bounded, and with links that lead somewhere."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.layout import Scratch, State
from fleetcraft.report.gather import gather
from fleetcraft.report.records import Report
from fleetcraft.spool.record import Outcome
from fleetcraft.view.report import words
from fleetcraft.view.report.page import render_report
from tests.report.fleets import Busy, busy_fleet, ended, spool_of
from tests.report.hostile import hostile_fleet
from tests.report.test_gather import places

_VOID = {"meta", "link", "br", "hr", "img", "input"}
_LOADING = {"src", "srcset", "poster", "data", "action", "ping", "background"}


class Page(HTMLParser):
    """What a page is made of, by the standard library's own parser."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.open: list[str] = []
        self.crossed: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.crossed.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag]


def page_of(report: Report, folder: Path) -> Page:
    return Page(render_report(report, folder=str(folder)))


def test_a_busy_fleet_makes_a_well_formed_page_with_its_sections(root: Path) -> None:
    busy_fleet(root, Busy(tasks=60, left=10, hosts=2, gpus=2, hours=2))

    page = page_of(gather(places(root), title="Sweep <A & B>"), root)

    assert page.open == []
    assert page.crossed == []
    assert "Sweep <A & B>" in page.text
    targets = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    anchors = [attrs["href"] for attrs in page.named("a") if attrs["href"].startswith("#")]
    assert {anchor[1:] for anchor in anchors} <= targets
    assert {"tasks", "failures", "slow", "gpus", "calibration", "unread"} <= targets


def test_the_page_loads_nothing_and_says_so_to_the_browser(root: Path) -> None:
    busy_fleet(root, Busy(tasks=40, left=0, hosts=1, gpus=1, hours=1))

    page = page_of(gather(places(root)), root)

    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "object", "embed", "img"}
    assert not [attrs for _, attrs in page.tags if _LOADING & set(attrs)]
    policy = [a["content"] for a in page.named("meta") if a.get("http-equiv")]
    assert policy[0].startswith("default-src 'none'")
    assert [attrs["href"] for attrs in page.named("link")] == ["data:,"]
    assert "url(" not in render_report(gather(places(root)), folder=str(root))


def test_hostile_names_logs_and_rows_are_inert_text(root: Path) -> None:
    hostile_fleet(root)

    html = render_report(gather(places(root), title="<script>"), folder=str(root))

    page = Page(html)
    html.encode("utf-8")
    assert page.open == []
    assert page.crossed == []
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "img", "object", "b"}
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    assert "<script>document.title='taken'</script>" in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b\ufeff]", html
    )
    assert "\\x1b" in page.text
    assert "\\u202e" in page.text


def test_links_into_logs_lead_there_from_where_the_page_lies(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "pages of mine"
    elsewhere.mkdir()
    spool = spool_of(root)
    names = ["a", "b%20c", "d#e?f", "javascript:g", "\u00fc <i>"]
    for number, name in enumerate(names):
        line = ended(f"t{number}", time.time(), outcome=Outcome.FAILED, reason=f"because of {name}")
        line = msgspec.structs.replace(line, log=f"logs/{name}.log")
        spool.task(f"t{number}", State.FAILED, [line], log=f"log of {name}\n")

    page = page_of(gather(places(root)), elsewhere)

    hrefs = {a["href"] for a in page.named("a") if a["href"].endswith(".log")}
    found = {(elsewhere / unquote(href)).read_text().strip() for href in hrefs}
    assert found == {f"log of {name}" for name in names}
    assert all(f"{name}.log" in page.text for name in names)


def test_a_log_outside_of_its_spool_is_not_shown(root: Path) -> None:
    (root.parent / "secret").write_text("error: a secret")
    spool = spool_of(root)
    line = ended("a", time.time(), outcome=Outcome.FAILED)
    spool.task("a", State.FAILED, [msgspec.structs.replace(line, log="../../secret")])

    html = render_report(gather(places(root)), folder=str(root))

    assert "a secret" not in html


def test_what_is_not_known_is_a_dash_or_the_word_and_never_a_zero(root: Path) -> None:
    spool = spool_of(root)
    line = ended("a", time.time(), with_log=False)
    spool.task("a", State.DONE, [msgspec.structs.replace(line, wall_s=None, host="")])
    spool.task("b", State.PENDING)

    page = page_of(gather(places(root)), root)

    assert "no worker is there" in page.text
    assert "Not known: no telemetry was written" in page.text
    assert "kWh" not in page.text
    assert [a for a in page.named("span") if a.get("title") == "not known"]


def test_a_spool_in_which_nothing_ended_is_not_said_to_have_completed(root: Path) -> None:
    spool_of(root).task("b", State.PENDING)

    page = page_of(gather(places(root)), root)

    assert "No attempt has ended." in page.text
    assert "Every attempt that ended has completed" not in page.text
    assert "0.00" not in page.text


def test_a_spool_that_cannot_be_read_is_not_said_to_be_empty(root: Path) -> None:
    spool_of(root).task("b", State.PENDING)
    Path(Scratch(str(root)).outer).chmod(0o777)

    page = page_of(gather(places(root)), root)

    assert "The outer spool could not be read" in page.text
    assert "No spool of this tree has a task" not in page.text
    assert "No task was ever enqueued" not in page.text


def test_an_empty_tree_makes_a_page_too(root: Path) -> None:
    root.mkdir()

    page = page_of(gather(places(root)), root)

    assert "No task was ever enqueued" in page.text
    assert page.crossed == []


@pytest.mark.timeout(300)
def test_twenty_thousand_tasks_make_a_page_below_two_megabytes(root: Path) -> None:
    spool = spool_of(root)
    now_s = time.time()
    for number in range(20_000):
        name = f"{chr(97 + number % 26)}{chr(97 + number // 26 % 26)}-{number}"
        if number % 3:
            spool.task(name, State.DONE, [ended(name, now_s - number, host=f"h{number % 900}")])
        else:
            reason = f"output {chr(97 + number % 23) * 5} missing {'x' * 300}"
            line = ended(name, now_s - number, outcome=Outcome.INCOMPLETE, reason=reason)
            spool.task(name, State.FAILED, [line])
    telemetry = Path(Scratch(str(root)).telemetry)
    telemetry.mkdir()

    report = gather(places(root))
    html = render_report(report, folder=str(root))

    (part,) = report.spools
    assert part.tasks == 20_000
    assert sum(part.pace.completed) + sum(part.pace.other) == 20_000
    assert part.groups_left_out > 0
    assert part.failures_left_out == 3
    assert len(html.encode()) < 2_000_000
    assert "more groups" in html


@given(st.text())
def test_any_text_becomes_one_that_can_be_written_and_hides_nothing(text: str) -> None:
    found = words.plain(text)

    found.encode("utf-8")
    assert words.plain(found) == found
    assert not set(found) & set(map(chr, (*range(9), *range(0x202A, 0x202F), 0x1B, 0x7F, 0xFEFF)))


@given(st.binary(min_size=1, max_size=40))
def test_a_link_to_any_path_has_no_character_with_a_meaning_in_html_or_urls(name: bytes) -> None:
    path = b"/tree/" + name.replace(b"/", b"_").replace(b"\0", b"_")
    href = words.Links("/tree")(path.decode("utf-8", "surrogateescape"))

    assert re.fullmatch(r"[A-Za-z0-9._~/%-]+", href)
