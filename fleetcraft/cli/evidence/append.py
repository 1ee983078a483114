"""``fleetcraft evidence append``: one result record, into a set that only grows.

Invariant: what is refused leaves the set as it was.
"""

from __future__ import annotations

from typing import Any

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import SpoolError, UsageError

_EXAMPLES = """
fleetcraft evidence append --set sweep-1 --arm full --seed 3 --metric score=0.71 --output clip.mp4
fleetcraft evidence append --set sweep-1 --arm full --seed 3 --metric fps=11.2 --timed --batch 1
fleetcraft evidence append --set sweep-1 --arm cached --seed 3 --batch 4 --stack torch=2.13.0
"""
_EXITS = """
0 it is on disk
2 a name or number is none
3 nothing says where the scratch tree is
5 it could not be written
7 a file cannot be read, or the frozen grid of this name refuses it
"""


@click.command(cls=FleetCommand, name="append", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.option("--set", "set_name", required=True, metavar="NAME", help="The set; a grid's name.")
@click.option("--arm", required=True, metavar="NAME", help="What is compared.")
@click.option("--seed", required=True, type=int, help="Of the run.")
@click.option("--candidate", default="", metavar="TEXT", help="A prompt, panel or sample.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME=VALUE", help="What was measured.")
@click.option("--output", "outputs", multiple=True, metavar="FILE", help="A file, to be hashed.")
@click.option("--timed/--bulk", default=None, help="Its timing may be reported (as the task says).")
@click.option("--batch", type=click.IntRange(1), help="Computed together (as the worker said).")
@click.option("--family", default="", metavar="KEY", help="Of the workload (as the worker said).")
@click.option("--stack", multiple=True, metavar="NAME=VERSION", help="A library that ran.")
@click.option("--attention", default="", metavar="BACKEND", help="The attention backend.")
@click.option("--device", default="", metavar="NAME", help="The kind of device.")
@click.option("--encoder", default="", metavar="FILE", help="Encoder record (that of the output).")
@click.option("--code-sha256", default="", metavar="DIGEST", help="Digest of the code that ran.")
@click.option("--grid-sha256", default="", metavar="DIGEST", help="The grid that it was run for.")
@pass_session
def append_command(session: Session, /, **given: Any) -> None:
    """Append a result record: arm, seed, batch, stack, encoder, outputs.

    Inside a task, its name, attempt, owner and job are filled in. A metric that was not measured is
    left out. Where a frozen grid has the set's name, only results of its cells are taken, and none
    after one of its scripts was edited.
    """
    from fleetcraft.evidence.appending import append
    from fleetcraft.view.evidence_results import render_appended, result_shape

    try:
        result = append(
            given["set_name"],
            arm=given["arm"],
            seed=given["seed"],
            metrics={name: _number(name, text) for name, text in _pairs(given["metrics"])},
            candidate=given["candidate"],
            outputs=given["outputs"],
            timed=given["timed"],
            batch=given["batch"],
            family=given["family"],
            stack=dict(_pairs(given["stack"])),
            attention_backend=given["attention"],
            device=given["device"],
            encoder=given["encoder"],
            code_sha256=_digest("--code-sha256", given["code_sha256"]),
            grid_sha256=_digest("--grid-sha256", given["grid_sha256"]),
            root=session.config.root,
        )
    except OSError as error:
        raise SpoolError(
            f"the result is not known to be written: {error.strerror or error}",
            hint="check the mount and its quota, then append it again; one that was written "
            "and says the same counts once",
        ) from error
    if session.json:
        print_json(result_shape(result, given["set_name"]))
    else:
        print_text(render_appended(result, given["set_name"]))


def _pairs(texts: tuple[str, ...]) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name or not value:
            raise UsageError(f"{text!r} is no NAME=VALUE; nothing was appended")
        if name in found:
            raise UsageError(f"{name!r} is given twice; nothing was appended")
        found[name] = value
    return list(found.items())


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"metric {name} is {text!r}, expected a number; nothing was appended",
            hint="leave out a metric that was not measured",
            metric=name,
        ) from None


def _digest(option: str, text: str) -> str:
    digest = text.removeprefix("sha256:")
    if digest and (len(digest) != 64 or not set(digest) <= set("0123456789abcdef")):
        raise UsageError(f"{option} is {text!r}, expected a sha256 (64 hex digits)")
    return digest
