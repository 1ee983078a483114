"""What an enqueue asks of the batch table: a row for each family, where a project requires it.

Loaded for tasks that name a family or an env-file, since reading the table needs YAML. Device and
stack are not judged here: this is no node. Invariant: nothing is published before all are checked.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fleetcraft.cli.session import Session
from fleetcraft.errors import BatchRefusedError, DataError
from fleetcraft.spool.directives import TaskSpec


def hold_to_the_batch_table(session: Session, specs: Sequence[TaskSpec]) -> None:
    """Refuses tasks whose family has no frozen row, and those that would set a batch by hand.

    Raises:
        BatchRefusedError: One of them; its ``field`` is ``family``, ``hash`` or ``batch``.
        DataError: The table cannot be read.
    """
    _refuse_batches_by_hand(specs)
    families = {spec.family: spec.name for spec in reversed(specs) if spec.family}
    if not families or not session.config.flag("batch.require"):
        return
    from fleetcraft.batch_table.judging import no_row
    from fleetcraft.batch_table.reading import read_table

    path = session.config.text("batch.table")
    table = read_table(path) if path and os.path.lexists(path) else None
    for family, name in families.items():
        if table is None or family not in table.families:
            error = no_row(family, table)
            raise BatchRefusedError(
                "family",
                f"cannot enqueue {name!r}: the project requires a frozen batch, and family "
                f"{family!r} has no row in {path or 'any table'}; nothing was enqueued",
                hint=error.hint,
                **{k: v for k, v in error.facts.items() if k != "field"},
            )


def _refuse_batches_by_hand(specs: Sequence[TaskSpec]) -> None:
    seen = set()
    for spec in specs:
        place = (spec.project_dir, spec.env_file)
        if spec.env_file and place not in seen:
            seen.add(place)
            _refuse_batch_by_hand(spec)


def _refuse_batch_by_hand(spec: TaskSpec) -> None:
    from fleetcraft.worker.batch_order import refuse_batch_by_hand
    from fleetcraft.worker.environment import read_env_file

    try:
        given = read_env_file(spec)
    except DataError:
        return  # it may be made, or mended, before the task runs; then it is judged again
    refuse_batch_by_hand(
        given, f"cannot enqueue {spec.name!r}: its env-file {spec.env_file}", "enqueued"
    )
