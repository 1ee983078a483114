"""``fleetcraft evidence rerun``: a recorded result run again, if what made it is still here.

Invariant: nothing is enqueued while something differs or is unknown, unless a reason was given, and
that stands in the record of the new task.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import ConfigError, SpoolError, UsageError
from fleetcraft.view.text import Paint, one_line, plural

if TYPE_CHECKING:
    from fleetcraft.evidence.tracing.rerunning import Subject
    from fleetcraft.evidence.tracing.sameness import Check, Sameness
    from fleetcraft.spool.tree import SpoolTree

_EXAMPLES = """
fleetcraft evidence rerun gen-full
fleetcraft evidence rerun sweep:prompt-7/full/3 --dry-run
fleetcraft evidence rerun gen-full --anyway 'torch 2.13.1 only fixes the loader'
"""
_EXITS = """
0 enqueued, or with --dry-run: everything is as it was
1 something differs; nothing was enqueued
5 no such task, or its new name is taken
7 something that was recorded cannot be compared, or no versions were recorded
"""


@click.command(cls=FleetCommand, name="rerun", examples=_EXAMPLES, exits=_EXITS)
@click.argument("name", metavar="NAME")
@click.option("--as", "new_name", metavar="TASK", help="What the new task is called.")
@click.option("--python", metavar="FILE", help="The Python that will run it.")
@click.option("--code", multiple=True, metavar="FILE", help="A file whose digest was recorded.")
@click.option("--encoder", metavar="FILE", help="An encoder record of what would encode now.")
@click.option("--anyway", metavar="REASON", help="Run it although something differs.")
@click.option("--dry-run", is_flag=True, help="Only compare.")
@pass_session
def rerun_command(session: Session, /, *, name: str, **given: Any) -> int:
    """Run a recorded result again, on the stack that made it.

    NAME is a task, or a result as SET:CANDIDATE/ARM/SEED, SET:ARM/SEED or its nonce. Compared with
    what was recorded are the versions in the Python that would run it, the batch table, the code's
    digest, the scripts of a frozen grid, the encoder and the task's own record. If all is the same,
    the command is enqueued again as NAME.rerun-1, with FLEET_RERUN_OF in its environment.
    """
    from fleetcraft.evidence.tracing.rerunning import standing

    reason = given["anyway"]
    if reason is not None and not reason.strip():
        raise UsageError("--anyway needs the reason; nothing was enqueued")
    subject = _subject(session, name)
    checks = _checks(session, subject, given)
    answer = _act(subject, checks, standing(checks), given)
    _say(session, subject, checks, answer)
    return answer.code


class Answer(NamedTuple):
    """What came of it: a word and a sentence, the new task, and the exit code."""

    verdict: str
    state: str
    sentence: str
    task: str
    code: int


def _act(
    subject: Subject, checks: tuple[Check, ...], verdict: Sameness, given: dict[str, Any]
) -> Answer:
    """Enqueues it where it may be."""
    from fleetcraft.evidence.tracing.rerunning import run_again, task_again

    code = {"same": 0, "differs": 1}.get(verdict.value, 7)
    reason = (given["anyway"] or "").strip()
    if code and not reason:
        why = "something differs" if code == 1 else "not everything can be compared"
        hint = "--anyway REASON enqueues it and writes the reason down"
        return Answer(verdict.value, "not_enqueued", f"{subject.label}: {why}; {hint}", "", code)
    spec = task_again(subject, checks, name=given["new_name"] or "", reason=reason if code else "")
    said = f"{spec.name} repeats {subject.name}"
    if given["dry_run"]:
        return Answer(verdict.value, "would_be_enqueued", said, "", 0)
    run_again(subject, spec)
    return Answer(verdict.value, "enqueued", said, spec.name, 0)


def _say(session: Session, subject: Subject, checks: tuple[Check, ...], answer: Answer) -> None:
    import msgspec

    from fleetcraft.evidence.tracing.rerunning import writes_over
    from fleetcraft.view.evidence_trace import render_rerun

    over = writes_over(subject)
    shape = {
        "schema": "fleetcraft.rerun/1",
        "asked": subject.label,
        "rerun_of": subject.name,
        "results": len(subject.made),
        "verdict": answer.verdict,
        "state": answer.state,
        "task": answer.task or None,
        "sentence": answer.sentence,
        "writes_over": over,
        "checks": msgspec.to_builtins(checks),
    }
    if session.json:
        print_json(shape)
    else:
        print_text(render_rerun(shape, paint=Paint.for_stream(sys.stdout)))
    if answer.task and over:
        named = ", ".join(one_line(path) for path in over[:5])
        note(f"it writes over {plural(len(over), 'file')} ({named}); archive what must stay")


def _subject(session: Session, name: str) -> Subject:
    from fleetcraft.evidence.tracing.rerunning import find_subject
    from fleetcraft.layout import Scratch

    return find_subject(name, scratch=Scratch(session.config.root), trees=_trees(session))


def _trees(session: Session) -> list[SpoolTree]:
    """The spool that was asked for, or both of the tree."""
    if session.spool:
        return [session.tree()]
    from fleetcraft.spool.tree import SpoolTree

    trees: list[SpoolTree] = []
    problem: Exception | None = None
    for which in ("outer", "gpu"):
        try:
            trees.append(SpoolTree(session.config.spool_dir(which)).check_safe())
        except (SpoolError, ConfigError) as error:
            problem = error
    if not trees and problem is not None:
        raise problem
    return trees


def _checks(session: Session, subject: Subject, given: dict[str, Any]) -> tuple[Check, ...]:
    from fleetcraft.evidence.tracing.sameness import compare_with_here
    from fleetcraft.layout import Scratch

    return compare_with_here(
        subject.made,
        subject.record,
        evidence=Scratch(session.config.root).evidence,
        batch_table=session.config.text("batch.table"),
        python=given["python"] or session.config.text("batch.python"),
        code=given["code"],
        encoder=given["encoder"] or "",
    )
