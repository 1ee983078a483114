"""``fleetcraft train checkpoints``: what checkpoints there are, how far they hold, and retention.

Needs no scratch tree: a folder of checkpoints lies anywhere. Invariant: nothing is deleted without
``--retire``, and with it only behind an EXACT checkpoint that is verified and went on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.training.checkpoint.records import Manifest, Verdict
    from fleetcraft.training.checkpoint.retention import Retired
    from fleetcraft.training.checkpoint.store import CheckpointStore

_LEVELS = ["marker", "sizes", "hashes", "loaded", "continued"]
_EXAMPLES = """
fleetcraft train checkpoints runs/distill/checkpoints
fleetcraft train checkpoints runs/distill/checkpoints --verify hashes --step 690
fleetcraft train checkpoints runs/distill/checkpoints --retire --keep 3 --dry-run
"""
_EXITS = """
0 done
1 a checkpoint does not hold up to the level of --verify, or something there is no checkpoint
2 no such folder
7 something could not be looked at, so that nothing was concluded of it
75 another component retires there now
"""


@click.command(cls=FleetCommand, name="checkpoints", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("folder", metavar="DIR")
@click.option("--verify", type=click.Choice(_LEVELS), help="How far each is verified now.")
@click.option("--step", type=click.IntRange(0), help="Verify this one alone.")
@click.option("--retire", is_flag=True, help="Delete old ones where that is safe.")
@click.option("--keep", type=click.IntRange(1), default=3, help="How many newest stay (3).")
@click.option("--dry-run", is_flag=True, help="With --retire: only say what would go.")
@click.option("--limit", type=click.IntRange(0), default=20, help="Entries a list of text (20).")
@pass_session
def checkpoints_command(session: Session, /, folder: str, **given: Any) -> int:
    """List checkpoints, verify them, and retire old ones.

    DIR holds them, or is the folder of a run. A checkpoint is EXACT when everything was saved that
    an exact continuation needs, else WEIGHTS, with what is missing. Levels: marker (its manifest
    stands), sizes, hashes (every byte is read), loaded (it loads with torch, safely), continued (a
    later step came from it). --retire deletes only what is older than the newest EXACT checkpoint
    whose hashes hold and which went on.
    """
    from fleetcraft.view.train_checkpoints import Shown, checkpoints_shape, render_checkpoints

    if given["dry_run"] and not given["retire"]:
        raise UsageError("--dry-run goes with --retire; nothing else here changes anything")
    place = _place(folder)
    with _store(place) as store:
        retired = _retire(store, given["keep"], given["dry_run"]) if given["retire"] else None
        sight = store.look()
        verdicts = _verify(store, sight.committed, given["verify"], given["step"])
    if session.json:
        print_json(checkpoints_shape(place, sight, verdicts, retired))
    else:
        shown = Shown(
            limit=given["limit"],
            paint=Paint.for_stream(sys.stdout),
            width=columns(),
            dry_run=given["dry_run"],
        )
        print_text(render_checkpoints(place, sight, verdicts, retired, shown))
    if sight.unknown or any(verdict.answer is None for verdict in verdicts.values()):
        return 7
    return 1 if sight.faults or any(not found.answer for found in verdicts.values()) else 0


def _place(folder: str) -> str:
    from fleetcraft.layout.runs import RunPaths

    place = os.path.abspath(folder)
    if not os.path.isdir(place):
        raise UsageError(
            f"no folder at {folder!r}; nothing was looked at",
            hint="name the folder of checkpoints, or that of the run",
            path=place,
        )
    of_run = RunPaths(place)
    return of_run.checkpoints if os.path.isdir(of_run.checkpoints) else place


@contextmanager
def _store(place: str) -> Iterator[CheckpointStore]:
    """The folder, with a bar on a terminal while files are hashed."""
    from fleetcraft.training.checkpoint.store import CheckpointStore
    from fleetcraft.training.checkpoint.verification import digest_file
    from fleetcraft.view.inspection import ReadingProgress

    progress = ReadingProgress(sys.stderr.isatty())
    read_bytes = 0

    def digest(path: str) -> tuple[int, str]:
        nonlocal read_bytes
        found = digest_file(path)
        read_bytes += found[0]
        progress(read_bytes, max(read_bytes, total_bytes))
        return found

    store = CheckpointStore(place, digest=digest)
    total_bytes = sum(manifest.size_bytes for manifest in store.look().committed)
    try:
        yield store
    finally:
        progress.close()


def _retire(store: CheckpointStore, keep: int, dry_run: bool) -> Retired:
    from fleetcraft.errors import DataError

    try:
        return store.retire(keep=keep, dry_run=dry_run)
    except OSError as error:
        raise DataError(
            f"retention of {store.paths.folder} was cut short: {error.strerror or error}"
            f" ({error.filename or 'no path is known'})",
            hint="call it again: it completes what was begun",
            path=store.paths.folder,
        ) from error


def _verify(
    store: CheckpointStore, committed: tuple[Manifest, ...], name: str | None, step: int | None
) -> dict[int, Verdict]:
    from fleetcraft.training.checkpoint.records import Level

    wanted = [manifest for manifest in committed if step in (None, manifest.step)]
    if step is not None and not wanted:
        raise UsageError(
            f"no checkpoint of step {step} is committed in {store.paths.folder}",
            hint=f"there are {', '.join(str(m.step) for m in committed[-10:]) or 'none'}",
            step=step,
        )
    if name is None and step is None:
        return {}
    level = Level(name or Level.HASHES)
    if level is not Level.LOADED:
        return {manifest.step: store.verify(manifest, level) for manifest in wanted}
    from fleetcraft.training.checkpoint.torch_state import loads

    try:
        return {manifest.step: store.verify(manifest, level, loads=loads) for manifest in wanted}
    except ImportError as error:
        raise UsageError(
            f"--verify loaded needs torch: {error}", hint="--verify hashes does not"
        ) from error
