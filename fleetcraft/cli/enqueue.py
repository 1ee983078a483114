"""``fleetcraft enqueue``: one task from words or a file, or many from a table.

The single task is the hot path: what only a batch needs is in `batch` and loaded for it alone.
Invariant: the command is published as it was given.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError

if TYPE_CHECKING:
    from fleetcraft.spool.directives import TaskSpec
    from fleetcraft.spool.tree import SpoolTree


class _EnqueueCommand(FleetCommand):
    """Remembers whether ``--`` stood before the command, which parsing forgets."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta["fleetcraft.dashes"] = end < len(args)
        # click looks for a near name of every short option first; that costs 3 ms.
        options = ["--name" if word == "-n" else word for word in args[:end]]
        return super().parse_args(ctx, options + args[end:])


_EXAMPLES = """
fleetcraft enqueue -n hello 'echo hello'
fleetcraft enqueue -n score-1 --after gen-1 --timeout 00:10:00 --retries 2 'python score.py 1'
fleetcraft enqueue -n all --after 'score-*' --outputs table.csv -- python summarize.py 'a b'
fleetcraft enqueue --from tasks.jsonl
fleetcraft enqueue --from sweep.csv -n 'gen-{seed:05d}' 'python gen.py --seed {seed}'
seq 100 | sed 's/^/python work.py /' | fleetcraft enqueue --stdin -n 't-{n:06d}'
fleetcraft enqueue -n long --command-file commands.sh
fleetcraft enqueue --spool gpu --lane last --from panels.jsonl --freeze-grid
"""
_EXITS = """
2 a bad name, time, option or row
5 the name is taken, the frozen grid of lane last does not have it, or the spool cannot be written
7 the project requires a frozen batch and the table has none for the family, or was edited; or an
env-file sets a batch
"""


@click.command(cls=_EnqueueCommand, name="enqueue", examples=_EXAMPLES, exits=_EXITS)
@click.option("-n", "--name", help="The task's name, or the template of many names.")
@click.option("--after", multiple=True, metavar="TASK", help="A task or glob that must be done.")
@click.option("--after-file", multiple=True, metavar="FILE", help="A file that must exist first.")
@click.option("--outputs", multiple=True, metavar="PATH", help="A file that it must leave behind.")
@click.option("--timed", is_flag=True, help="Its timing counts: it runs alone on its node.")
@click.option("--time", "time_", metavar="HH:MM:SS", help="Walltime it needs.")
@click.option("--timeout", metavar="HH:MM:SS", help="It is stopped after this.")
@click.option("--retries", type=int, metavar="N", help="Failures that are tried again (0).")
@click.option("--family", metavar="NAME", help="The workload shape it belongs to.")
@click.option("--lane", type=click.Choice(["first", "last"]), help="Before or after the others.")
@click.option("--slot", metavar="KIND", help="The kind of slot it needs, such as gpu.")
@click.option("--env-file", metavar="FILE", help="NAME=value lines for its environment.")
@click.option("--login", is_flag=True, help="Run it by a login shell.")
@click.option("--if-absent", is_flag=True, help="Accept that the same task is there already.")
@click.option("--dry-run", is_flag=True, help="Only say what would be enqueued.")
@click.option(
    "--freeze-grid", is_flag=True, help="Enqueue nothing: freeze the list, print its sha256."
)
@click.option("--command-file", metavar="FILE", help="Read one command from a file, or - .")
@click.option("--from", "from_", metavar="FILE", help="Many tasks: .jsonl or .csv, or - .")
@click.option("--format", "format_", type=click.Choice(["jsonl", "csv", "lines"]))
@click.option("--stdin", "stdin_", is_flag=True, help="Many tasks: commands on stdin, one a line.")
@click.argument("command", nargs=-1, metavar="COMMAND")
@pass_session
@click.pass_context
def enqueue_command(context: click.Context, session: Session, /, **given: Any) -> None:
    """Publish one task, or many from a file.

    COMMAND is one word of shell text, taken as it is. Several words after -- are quoted and
    joined. In a batch, NAME and COMMAND are templates: {column} is a column of the table, {n}
    counts the rows from 1, and values are quoted for the shell in commands.
    """
    command = _command(given, after_dashes=bool(context.meta.get("fleetcraft.dashes")))
    if given["freeze_grid"] and given["dry_run"]:
        raise UsageError("--freeze-grid writes a file and --dry-run none: give one of them")
    if given["from_"] or given["stdin_"]:
        from fleetcraft.cli.batch import enqueue_many

        enqueue_many(session, given, base_spec(session, given, name="x", command=""), command)
        return
    if not given["name"]:
        raise UsageError("no name was given", hint="fleetcraft enqueue -n NAME 'COMMAND'")
    if command is None:
        hint = "fleetcraft enqueue -n NAME 'COMMAND', or --command-file FILE"
        raise UsageError(f"no command was given for {given['name']!r}", hint=hint)
    _enqueue_one(session, base_spec(session, given, name=given["name"], command=command), given)


def base_spec(session: Session, given: dict[str, Any], *, name: str, command: str) -> TaskSpec:
    """A task with the directives that were given as options."""
    from fleetcraft.layout import Lane
    from fleetcraft.spool.directives import TaskSpec
    from fleetcraft.units import parse_duration_s

    return TaskSpec(
        name=name,
        command=command,
        project_dir=session.config.project_dir,
        family=given["family"] or "",
        timed=given["timed"],
        time_s=parse_duration_s(given["time_"]) if given["time_"] else None,
        timeout_s=parse_duration_s(given["timeout"]) if given["timeout"] else None,
        retries=given["retries"] or 0,
        after=given["after"],
        after_files=given["after_file"],
        outputs=given["outputs"],
        lane=Lane(given["lane"] or ""),
        slot=given["slot"] or "",
        env_file=given["env_file"] or "",
        login=given["login"],
    )


def _command(given: dict[str, Any], *, after_dashes: bool) -> str | None:
    words: tuple[str, ...] = given["command"]
    if given["command_file"]:
        if words:
            raise UsageError("a command was given twice: as words and with --command-file")
        return _read_command(given["command_file"])
    if len(words) > 1 and not after_dashes:
        raise UsageError(
            f"found {len(words)} words where one command was expected: {words[1]!r} is too many",
            hint="quote the whole command, or put -- before it: enqueue -n NAME -- python a.py",
        )
    if len(words) > 1:
        import shlex

        return shlex.join(words)
    return words[0] if words else None


def _read_command(path: str) -> str:
    try:
        if path == "-":
            data = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                data = file.read()
    except OSError as error:
        raise UsageError(f"cannot read the command from {path}: {error.strerror}") from error
    return data.decode("utf-8", "surrogateescape").rstrip("\n")


def _enqueue_one(session: Session, spec: TaskSpec, given: dict[str, Any]) -> None:
    from fleetcraft.spool.enqueue import enqueue

    if given["freeze_grid"]:
        from fleetcraft.cli.grid import freeze_and_say

        freeze_and_say(session, [spec])
        return
    if given["dry_run"]:
        from fleetcraft.cli.batch import say_what_would_be

        say_what_would_be(session, [spec], if_absent=given["if_absent"])
        return
    if spec.family or spec.env_file:
        from fleetcraft.cli.family import hold_to_the_batch_table

        hold_to_the_batch_table(session, [spec])
    tree = session.tree()
    if given["lane"] == "last":
        from fleetcraft.cli.grid import hold_to_the_grid

        hold_to_the_grid(session, tree, [spec])
    if spec.after:
        from fleetcraft.spool.dependencies import refuse_cycles
        from fleetcraft.spool.directives import check_spec

        refuse_cycles(tree, [check_spec(spec)])
    result = enqueue(tree, spec, if_absent=given["if_absent"]).value
    state = _state_after(tree, spec, result)
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.enqueue/1",
                "name": spec.name,
                "result": result,
                "state": state,
                "spool": tree.paths.root,
            }
        )
    else:
        print_text(f"{result.replace('_', ' ')}: {spec.name} ({state})")


def _state_after(tree: SpoolTree, spec: TaskSpec, result: str) -> str:
    if result == "already_there":
        location = tree.locate(spec.name)
        return location.state.value if location else "moving"
    return "waiting" if spec.after or spec.after_files else "pending"
