"""``fleetcraft evidence stamp``: what a file was made from, written beside it.

Invariant: what is written is what the files hold now; nothing is believed of what they held before.
"""

from __future__ import annotations

import os

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError
from fleetcraft.evidence.records import Kind

_EXAMPLES = """
fleetcraft evidence stamp figures/score.png comparison.json --by 'python plot.py'
fleetcraft evidence stamp figures/util.png window.json code=plot.py
fleetcraft evidence stamp table.csv --set sweep-1
"""
_EXITS = """
0 written
2 a source is named twice or is the file itself, or no such kind
7 a file cannot be read, or nothing can be written beside it
"""


@click.command(cls=FleetCommand, name="stamp", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("file", metavar="FILE")
@click.argument("sources", metavar="[SOURCE]...", nargs=-1)
@click.option("--from", "more", multiple=True, metavar="SOURCE", help="A source, as above.")
@click.option("--set", "sets", multiple=True, metavar="SET", help="Every file of a result set.")
@click.option("--by", default="", metavar="TEXT", help="What made it, such as a command.")
@click.option("--kind", type=click.Choice([kind.value for kind in Kind]), help="What FILE is.")
@pass_session
def stamp_command(
    session: Session,
    *,
    file: str,
    sources: tuple[str, ...],
    more: tuple[str, ...],
    sets: tuple[str, ...],
    by: str,
    kind: str | None,
) -> None:
    """Write beside a file what it was made from.

    Writes FILE.origin.json: size and sha256 of FILE and of each SOURCE as they are now, what each
    is, what made it, and inside a task which task. Stamp right after FILE was made. SOURCE is a
    path, or KIND=PATH where the kind is not plain from name and content. A source that is appended
    to later still agrees. Paths are kept relative, so FILE and its sources can move together.
    """
    from fleetcraft.evidence.tracing.origins import stamp
    from fleetcraft.layout.evidence import origin_file
    from fleetcraft.view.evidence_trace import render_stamp, stamp_shape

    given = [_source(text) for text in (*sources, *more)]
    given += [(path, Kind.RESULTS) for name in sets for path in _files_of(session, name)]
    made_by = by or "fleetcraft evidence stamp"
    origin = stamp(file, given, made_by=made_by, kind=Kind(kind) if kind else None)
    if session.json:
        print_json(stamp_shape(file, origin_file(file), origin))
    else:
        print_text(render_stamp(file, origin_file(file), origin))


def _source(text: str) -> tuple[str, Kind | None]:
    word, equals, path = text.partition("=")
    if equals and word in {kind.value for kind in Kind} and not os.path.lexists(text):
        return path, Kind(word)
    return text, None


def _files_of(session: Session, name: str) -> list[str]:
    from fleetcraft.evidence.results.sets import read_set
    from fleetcraft.layout import Scratch

    found = read_set(Scratch(session.config.root).evidence, name)
    if not found.files:
        raise UsageError(f"the result set {name!r} has no file; nothing was written", set=name)
    return [os.path.join(found.folder, source.path) for source in found.files]
