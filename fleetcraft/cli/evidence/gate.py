"""``fleetcraft evidence gate``: whether something may go out.

Invariant: exit 0 means that every predicate was asked and holds, and nothing else does.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.output import columns, note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session, write_sections
from fleetcraft.errors import ConfigError, SpoolError
from fleetcraft.layout import Scratch
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.evidence.release.finding import Answer, Surroundings

_EXAMPLES = """
fleetcraft evidence gate release.yaml
fleetcraft evidence gate release.yaml --json
fleetcraft evidence gate --checks
"""
_SHAPE = """
name: release-1
mechanical:
- {check: grid_complete, grid: sweep-1}
- {check: arms, set: sweep-1, stated: [batch, stack]}
- {check: outputs, set: sweep-1}
semantic:
- {check: comparison, set: sweep-1, a: full, b: cached, metric: score, at_least: 0.98}
accounting:
- {check: jobs_ended, set: sweep-1}
- {check: gpu_hours, set: sweep-1}
"""
_EXITS = """
0 it passes, and is kept under its name
1 a predicate is false
3 the file is wrong; the message has the line
7 something is missing or not known, or another pass is kept under this name
"""


class _GateCommand(FleetCommand):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, **{"GATE.yaml": _SHAPE})
        super().format_epilog(ctx, formatter)


@click.command(cls=_GateCommand, name="gate", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("file", metavar="GATE.yaml", required=False)
@click.option("--checks", is_flag=True, help="List what a gate can ask, with its fields.")
@pass_session
def gate_command(session: Session, file: str | None, checks: bool) -> int:
    """Decide from digested inputs whether something may go out.

    GATE.yaml has a name and lists of predicates under mechanical, semantic and accounting, asked in
    this order; a stage is asked only if all before it holds. What is missing, not known or has not
    ended yet does not pass. A pass is kept under its name, with the digest of everything that was
    looked at, and releases a grid as long as all of that is the same.
    """
    from fleetcraft.errors import UsageError
    from fleetcraft.evidence.release.gate_file import read_gate_file
    from fleetcraft.evidence.release.gates import decide, keep
    from fleetcraft.view.evidence_results import gate_shape, render_gate

    if checks:
        return _list_checks(session)
    if not file:
        raise UsageError("no gate is named", hint="fleetcraft evidence gate GATE.yaml")
    gate = read_gate_file(file)
    around = surroundings(session, os.path.dirname(os.path.abspath(file)))
    decision = decide(gate, around, told=_told)
    kept, path = None, ""
    if decision.passed and around.paths is not None:
        path = around.paths.gate(decision.name)
        try:
            kept = keep(decision, around)
        except OSError as error:
            raise SpoolError(f"the pass could not be kept: {error}", path=path) from error
    if session.json:
        print_json(gate_shape(decision, kept, path))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_gate(decision, paint=paint, width=columns()))
    if kept is False:
        note(f"another pass of {decision.name!r} is kept ({path}); give this gate another name")
        return 7
    return 0 if decision.passed else (1 if decision.refuted else 7)


def surroundings(session: Session, base: str) -> Surroundings:
    """Where the predicates of a gate look.

    Args:
        session: This call.
        base: The folder from which the gate's paths go.
    """
    from fleetcraft.evidence.release.finding import Surroundings

    config = session.config
    root = config.text("root")
    return Surroundings(
        paths=EvidencePaths(Scratch(root).evidence) if root else None,
        base=base,
        spools={name: config.spool_dir(name) for name in ("outer", "gpu")} if root else {},
        window=lambda path: _window(path, config.text("telemetry.dir")),
        training_end=lambda run: _training_end(run, root),
    )


def _window(path: str, configured: str) -> Answer:
    from fleetcraft.telemetry.windows.verdicts import Verdict
    from fleetcraft.telemetry.windows.verify import verify

    found = verify(path, elsewhere=(configured,) if configured else ())
    words = [found.verdict.value, f"sources {found.sources}", found.reason]
    words += [f"{each.field} differs" for each in found.differences[:5]]
    verdict = {Verdict.VERIFIED: True, Verdict.REFUTED: False, Verdict.UNVERIFIABLE: None}
    # Recomputed from its own observations alone, a window says nothing about any telemetry.
    checked = found.sources == "checked" or found.verdict is not Verdict.VERIFIED
    return verdict[found.verdict] if checked else None, ", ".join(filter(None, words))


def _training_end(run: str, root: str) -> Answer:
    from fleetcraft.layout.runs import RunPaths
    from fleetcraft.training.checkpoint.claims import check_end, read_declared, store_of

    if not root:
        raise ConfigError("nothing says where the scratch tree is, and runs are kept there")
    paths = RunPaths(Scratch(root).run_folder(run))
    declared = read_declared(paths)
    if declared is None:
        return None, f"run {run} declares no end"
    found = check_end(declared.end, store_of(paths, declared), paths)
    return found.answer, found.reason


def _told(name: str) -> None:
    if sys.stderr.isatty():
        note(f"asking {name}")


def _list_checks(session: Session) -> int:
    from fleetcraft.evidence.release.gate_file import CHECKS
    from fleetcraft.view.text import table

    if session.json:
        rows = [
            {
                "check": name,
                "asks": row.sentence,
                "required": list(row.required),
                "optional": list(row.optional),
            }
            for name, row in CHECKS.items()
        ]
        print_json({"schema": "fleetcraft.gate_checks/1", "checks": rows})
        return 0
    for name, row in CHECKS.items():
        fields = [*row.required, *(f"[{each}]" for each in row.optional)]
        print_text(f"{name}: {row.sentence}")
        print_text(table([(" ".join(fields),)]))
    return 0
