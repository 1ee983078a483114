"""Commands that would swallow the lines after them: found by bash itself, before enqueueing.

A body with an open quote or here-document would take the closing ``exit`` and the history lines
as text. Only bash can tell, and starting it costs about a millisecond, so it is asked only about
commands that could be affected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fleetcraft.errors import UsageError
from fleetcraft.spool.directives import TaskSpec

# Text whose quoting is plainly closed: anything else is for bash to judge. Counting quotes would
# take "it's" 'abc for closed, and the open quote would then end in the first history line.
_PLAINLY_CLOSED = re.compile(
    r"""(?: [^'"\\`#$<] | \\. | \$(?!') | <(?!<)
          | '[^']*'
          | "(?: [^"\\`$] | \\. | \$\{\w+\} | \$(?![({]) )*+"
        )*+""",
    re.VERBOSE | re.DOTALL,
)


def refuse_unfinished_commands(specs: Iterable[TaskSpec]) -> None:
    """Asks ``bash -n`` about commands whose quotes or here-documents may be open at their end.

    Raises:
        UsageError: The command is not complete, with what bash said about it.
    """
    for spec in specs:
        if _PLAINLY_CLOSED.fullmatch(spec.command) is None:
            _refuse_unfinished(spec)


def _refuse_unfinished(spec: TaskSpec) -> None:
    import subprocess  # rarely needed, and not free to import

    # Given on stdin: a command may be longer than an argument can be. An open here-document is
    # only a warning to bash, so anything on stderr counts.
    checked = subprocess.run(
        ["bash", "-n"],
        input=f"{spec.command}\nexit\n".encode("utf-8", "surrogateescape"),
        capture_output=True,
        timeout=30,
        check=False,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
    )
    said = checked.stderr.decode("utf-8", "replace").strip()
    if checked.returncode != 0 or said:
        first = said.splitlines()[0] if said else f"bash -n ended with {checked.returncode}"
        raise UsageError(
            f"the command of {spec.name!r} is not complete shell text ({first}); "
            "nothing was enqueued",
            hint="close the quote or here-document",
            name=spec.name,
        )
