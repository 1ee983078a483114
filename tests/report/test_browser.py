"""The page in a real browser: nothing overflows, nothing is asked for, nothing complains."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from fleetcraft.report.gather import gather
from fleetcraft.report.records import Notice
from fleetcraft.view.report.page import render_report
from tests.report.browser import Browser
from tests.report.fleets import Busy, busy_fleet
from tests.report.hostile import hostile_fleet
from tests.report.test_gather import places

_OVERFLOWING = """
(() => {
  const wide = document.documentElement.clientWidth;
  const hidden = (e) => e.closest('.skip, thead, pre');
  return [...document.querySelectorAll('body *')]
    .filter((e) => !hidden(e) && e.getBoundingClientRect().right > wide + 1)
    .map((e) => e.tagName + '.' + e.className).slice(0, 9);
})()
"""
_TEXT_BEHIND_TEXT = """
(() => {
  const boxes = [...document.querySelectorAll('.axis span')]
    .filter((e) => getComputedStyle(e).display !== 'none')
    .map((e) => [e.closest('figure'), e.getBoundingClientRect()]);
  let found = 0;
  for (let i = 1; i < boxes.length; i++) {
    const [[one, a], [other, b]] = [boxes[i - 1], boxes[i]];
    if (one === other && a.right > b.left + 1) found++;
  }
  return found;
})()
"""
_CONTRASTS = """
(() => {
  const channel = (v) => {
    v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  };
  const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const rgb = (text) => text.match(/[0-9.]+/g).map(Number);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  let least = 99;
  const texts = 'h1, p, a, th, td, dt, dd, li, summary, .quiet, .bad, .axis span';
  for (const e of document.querySelectorAll(texts)) {
    if (!e.innerText || !e.innerText.trim()) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
})()
"""


def written(root: Path) -> Path:
    notice = Notice(source="caches check", level="wrong", text="two names differ", hint="unset one")
    page = root.parent / "page.html"
    report = gather(places(root), title="A title " + "x" * 60, notices=[notice])
    page.write_text(render_report(report, folder=str(root.parent)))
    return page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("busy")
    busy_fleet(folder / "fleet", Busy(tasks=120, left=20, hosts=3, gpus=2, hours=30))
    return written(folder / "fleet")


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_overflows_overlaps_complains_or_is_asked_for(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)

    assert browser.run("innerWidth") == width
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run(_OVERFLOWING) == []
    assert browser.run(_TEXT_BEHIND_TEXT) == 0
    assert browser.problems == []
    assert browser.requests == [page.as_uri()]


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_stands_out_enough_to_be_read(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, width=1280, dark=dark)

    assert browser.run(_CONTRASTS) >= 4.5


def test_headings_go_down_one_at_a_time_and_charts_and_tables_have_names(
    browser: Browser, page: Path
) -> None:
    browser.open(page, width=1280)

    levels = browser.run(
        "[...document.querySelectorAll('h1,h2,h3,h4')].map((e) => Number(e.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert browser.run("[...document.querySelectorAll('table')].every((t) => t.caption)")
    assert browser.run(
        "[...document.querySelectorAll('.plot')].every((e) => e.getAttribute('aria-label'))"
    )
    assert browser.run("document.querySelectorAll('.plot').length") == 3


def test_a_chart_draws_what_the_record_says(browser: Browser, page: Path) -> None:
    browser.open(page, width=1280)

    sizes = browser.run(
        "[...document.querySelectorAll('.plot svg, svg.strip')]"
        ".map((e) => [e.getBoundingClientRect().width, e.querySelectorAll('path').length])"
    )
    assert len(sizes) == 3 + 3
    assert all(width > 100 and paths > 0 for width, paths in sizes)


def test_details_open_by_keyboard_and_all_of_them_are_printed(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    browser.open(page, width=1280)
    closed = "document.querySelector('details:not([open])')"
    browser.run(f"{closed}.id = 'one'; document.querySelector('#one summary').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.ask(
            "Input.dispatchKeyEvent",
            type=kind,
            key="Enter",
            code="Enter",
            text="\r",
            windowsVirtualKeyCode=13,
        )
    assert browser.run("document.querySelector('#one').open") is True
    browser.run("document.querySelector('#one').open = false")

    browser.ask("Emulation.setEmulatedMedia", media="print", features=[])
    height = browser.run("document.querySelector('#one > div').getBoundingClientRect().height")
    browser.print(tmp_path / "page.pdf")

    assert height > 10
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_a_hostile_tree_runs_nothing_and_reaches_nothing(
    browser: Browser, root: Path, tmp_path: Path
) -> None:
    hostile_fleet(root)
    page = written(root)

    browser.open(page, width=320)
    browser.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    browser.run("document.body.offsetHeight")  # laid out, so what it wants was asked for

    assert browser.run("document.title").startswith("A title")
    assert browser.run("document.documentElement.scrollWidth") <= 320
    assert browser.run(_OVERFLOWING) == []
    assert browser.requests == [page.as_uri()]
    assert browser.problems == []
