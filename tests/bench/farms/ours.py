"""fleetcraft itself: a spool on disk, drained by ``fleetcraft run``."""

from __future__ import annotations

import sys
from pathlib import Path

from fleetcraft import Spool, TaskSpec, __version__
from fleetcraft.worker.member_process import MEMBER_NAME
from tests.bench.farms.peer import Peer, Tools, Work, called, named, shell
from tests.bench.measure import cli_prefix


def fleetcraft(tools: Tools) -> list[Peer]:
    """Workers of one slot each, as many as slots."""
    prefix = cli_prefix()

    def root(work: Work) -> str:
        return str(work.folder / "scratch")

    def fill(work: Work) -> None:
        _new_spool(root(work))
        Spool(f"{root(work)}/taskq").enqueue_many(
            [
                TaskSpec(name=f"task-{number:06d}", command=command, project_dir=str(work.folder))
                for number, command in enumerate(work.commands)
            ]
        )

    def run(work: Work) -> list[str]:
        return [*prefix, "--root", root(work), "run", "--workers", str(work.slots)]

    def enqueue(work: Work) -> list[str]:
        _new_spool(root(work))
        return [
            *prefix, "--root", root(work), "enqueue", "--from", str(work.lines),
            "--format", "lines", "--name", "task-{n:06d}",
        ]  # fmt: skip

    return [
        Peer(
            name="fleetcraft",
            version=f"fleetcraft {__version__}",
            keeps="a record, a log and a journal line a task",
            before=fill,
            run=run,
            enqueue=enqueue,
            resume=run,
            by_hand="run the same command again",
            head=named(" run ", "--workers"),
            worker=called(MEMBER_NAME.decode()),
            waits=lambda work: [
                sys.executable,
                str(Path(__file__).with_name("drive_fleetcraft.py")),
                str(work.order),
                root(work),
                *prefix,
            ],
        )
    ]


def from_nothing(work: Work) -> list[str]:
    """Enqueue one task and run it, as two commands."""
    prefix = [*cli_prefix(), "--root", str(work.folder / "scratch")]
    _new_spool(str(work.folder / "scratch"))
    steps = [[*prefix, "enqueue", "-n", f"task-{n}", text] for n, text in enumerate(work.commands)]
    return shell(*steps, [*prefix, "run", "--workers", str(work.slots)])


def _new_spool(root: str) -> None:
    Path(root).mkdir(mode=0o700, exist_ok=True)
    Spool.create(f"{root}/taskq")
