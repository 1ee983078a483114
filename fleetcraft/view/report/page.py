"""The page itself: a record in, one HTML text out.

What stands where is in `templates`, next to this. Invariant: every value goes through autoescape
and `words.finalize`; markup is only what this package wrote.
"""

from __future__ import annotations

import os
from functools import lru_cache

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fleetcraft.report.records import SPOOLS, Report
from fleetcraft.view.report import charts, words
from fleetcraft.view.train_events import rung_words

GENERATOR = "fleetcraft report"
"""Stands in the head of every page; what has it may be replaced by a newer page."""
_TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
_PAGE = "page.html.j2"
_STYLE = "style.css"


def render_report(report: Report, *, folder: str | None) -> str:
    """The page.

    Args:
        report: What it shows.
        folder: Where it will lie, absolute, for links into logs; None for links that hold on this
            machine alone.

    Returns:
        HTML that needs no other file; ASCII characters and others that UTF-8 can write.
    """
    environment = _environment()
    style = Markup(_style())
    return environment.get_template(_PAGE).render(
        report=report,
        style=style,
        generator=GENERATOR,
        link=words.Links(folder),
        states=charts.STATES,
        spools=SPOOLS,
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=words.finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=words.count,
        pct=words.pct,
        share=words.share,
        number=words.number,
        hours=words.hours,
        times=words.times,
        top=words.top,
        duration=words.seconds,
        step=words.step,
        energy=words.energy,
        watts=words.watts,
        when=words.when,
        between=words.between,
        words=words.name_of,
        begun=words.begun,
        counted=words.counted,
        rung=rung_words,
        strip=charts.strip,
    )
    environment.globals.update(
        span=words.span,
        ended=words.ended,
        throughput_chart=charts.throughput,
        states_chart=charts.states,
        queue_chart=charts.queue,
    )
    return environment


@lru_cache(maxsize=1)
def _style() -> str:
    with open(os.path.join(_TEMPLATES, _STYLE), encoding="utf-8") as file:
        return file.read()
