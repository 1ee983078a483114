"""``fleetcraft evidence compare``: one arm against another, pair by pair.

Invariant: what is written with ``-o`` is the same whenever it is made from the same records, and
what it was made from stands beside it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import DataError, SpoolError, UsageError
from fleetcraft.layout import Scratch
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.evidence.results.comparing import Comparison, Side
    from fleetcraft.evidence.results.sets import ResultSet

_EXAMPLES = """
fleetcraft evidence compare full cached --metric score
fleetcraft evidence compare full cached --metric fps --set sweep-1 -o fps.json
fleetcraft evidence compare sweep-1:full rerun-1:full --metric score --difference
"""
_EXITS = """
0 compared
1 refused: an arm is mixed or contradicts itself, or encoders or timing differ
2 several sets and none is named, or FILE is there and is no comparison
5 FILE cannot be written
7 no pair, no such metric, records that cannot be trusted, or facts that are not stated
"""


@click.command(cls=FleetCommand, name="compare", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("a")
@click.argument("b")
@click.option("--metric", required=True, metavar="NAME", help="What is compared.")
@click.option("--set", "set_name", default="", metavar="NAME", help="The set (the only one).")
@click.option("--ratio/--difference", default=True, help="B / A (default), or B - A.")
@click.option("-o", "--output", metavar="FILE", help="Write all pairs as JSON, with its origin.")
@click.option("--limit", type=click.IntRange(0), default=50, help="Pairs in JSON (50).")
@pass_session
def compare_command(session: Session, /, a: str, b: str, metric: str, **given: Any) -> int:
    """Compare two arms over the seeds that both have.

    A and B are arms, or SET:ARM. Pairs are of one candidate and seed. Gives the geometric mean of
    the ratios B / A (or the mean difference) with a 95% bootstrap interval over pairs, and counts
    what has no partner. Arms that mix batches, backends, stacks or encoders are refused, and so are
    two arms with different encoder records, or a timed against a bulk one.
    """
    from fleetcraft.evidence.results.comparing import ComparisonRefusedError, How, compare
    from fleetcraft.view.evidence_results import comparison_shape, render_comparison

    output = given["output"] or ""
    if output:
        _refuse_other(output)
    sets: dict[str, ResultSet] = {}
    first, second = (_side(session, text, given["set_name"], sets) for text in (a, b))
    try:
        how = How.RATIO if given["ratio"] else How.DIFFERENCE
        made = compare(first, second, metric, how=how)
    except ComparisonRefusedError as error:
        if not error.facts["certain"]:
            raise DataError(error.message, hint=error.hint, **error.facts) from error
        raise
    if output:
        _write(output, made, sets)
    if session.json:
        print_json(comparison_shape(made, limit=given["limit"], file=output))
    else:
        print_text(render_comparison(made, paint=Paint.for_stream(sys.stdout)))
    return 0


def _side(session: Session, text: str, set_name: str, sets: dict[str, ResultSet]) -> Side:
    from fleetcraft.evidence.results.comparing import Side
    from fleetcraft.evidence.results.sets import read_set

    folder = Scratch(session.config.root).evidence
    of, _, arm = text.rpartition(":")
    name = of or set_name or _only_set(folder)
    if name not in sets:
        sets[name] = read_set(folder, name)
    found = sets[name]
    if found.damaged:
        raise DataError(
            f"result set {name!r} has records that cannot be trusted; nothing was compared",
            hint=f"fleetcraft evidence results {name} counts them",
            set=name,
            rejects=found.counts,
        )
    results = found.arms().get(arm, [])
    return Side(arm, results, set=name, set_sha256=found.sha256)


def _only_set(folder: str) -> str:
    from fleetcraft.evidence.results.sets import set_names

    names = set_names(folder)
    if len(names) == 1:
        return names[0]
    if not names:
        raise DataError("there is no result set", hint="fleetcraft evidence append makes one")
    raise UsageError(
        f"there are {len(names)} result sets; nothing was compared",
        hint=f"add --set, one of {', '.join(names[:12])}",
        sets=names[:12],
    )


def _refuse_other(output: str) -> None:
    """Raises UsageError where FILE is there and is no comparison: a device, a source, a figure."""
    from fleetcraft.evidence.results.comparing import SCHEMA
    from fleetcraft.files import FileSystem

    if not os.path.lexists(output):
        return
    head = b""
    with suppress(OSError):
        fs = FileSystem()
        fd = fs.open_read(output)
        head = fs.read_at(fd, 4096, 0)
        fs.close(fd)
    if SCHEMA.encode() not in head:
        raise UsageError(
            f"refusing to replace {output}: it is no comparison; nothing was compared",
            hint="name another file with -o",
            path=output,
        )


def _write(output: str, made: Comparison, sets: dict[str, ResultSet]) -> None:
    import msgspec

    from fleetcraft.evidence import stamp
    from fleetcraft.evidence.records import Kind
    from fleetcraft.files import FileSystem

    fs = FileSystem()
    temporary = f"{output}.{os.getpid()}.tmp"
    data = msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"
    try:
        fs.create(temporary, data, mode=0o644, durable=True)
        fs.replace(temporary, output)
    except OSError as error:
        with suppress(OSError):
            fs.unlink(temporary)
        raise SpoolError(
            f"cannot write {output}: {error.strerror or error}; nothing was written",
            hint="check the folder, its permissions and free space, or name another file with -o",
            path=output,
        ) from error
    sources = [
        (f"{each.folder}/{file.path}", Kind.RESULTS)
        for each in sets.values()
        for file in each.files
    ]
    stamp(output, sources, made_by="fleetcraft evidence compare", kind=Kind.SUMMARY)
