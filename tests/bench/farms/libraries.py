"""Farms that come as Python packages: HyperQueue, dask.distributed, Parsl and disBatch."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.bench.farms.peer import Missing, Peer, Tools, Work, driver, named

PACKAGES = {
    "hyperqueue": "hyperqueue",
    "dask": "distributed",
    "parsl": "parsl",
    "disbatch": "disbatch",
}


def hyperqueue(tools: Tools) -> list[Peer]:
    """Its server and worker live in one process here: the package on PyPI has no ``hq`` command."""
    program = driver(tools, "drive_hyperqueue.py")
    version = version_of(tools, "hyperqueue")

    def kind(name: str, keeps: str, mode: str) -> Peer:
        return Peer(
            name=name,
            version=version,
            keeps=keeps,
            run=lambda work: [*program, str(work.order), mode],
            resume=lambda work: [*program, str(work.order), mode],
            by_hand="submit all of it again; the package's server keeps no journal",
            head=named("drive_hyperqueue.py"),
            no_worker="server and worker are one process in this package",
            note="its client looks every 2 s whether a job has ended",
            waits=lambda work: [*program, str(work.order), "waits"],
            own_times=True,
        )

    return [
        kind("HyperQueue, no output files", "nothing on disk", "quiet"),
        kind("HyperQueue, output files", "two files a task", "files"),
    ]


def dask(tools: Tools) -> list[Peer]:
    """A local cluster with one worker process a slot."""
    program = driver(tools, "drive_dask.py")
    return [
        Peer(
            name="dask.distributed",
            version=version_of(tools, "distributed"),
            keeps="nothing on disk",
            run=lambda work: [*program, str(work.order), "run"],
            resume=lambda work: [*program, str(work.order), "run"],
            by_hand="start all of it again; the queue was in the memory of what died",
            head=named("drive_dask.py"),
            worker=named("dask worker", "tcp://"),
            waits=lambda work: [*program, str(work.order), "waits"],
            own_times=True,
        )
    ]


def parsl(tools: Tools) -> list[Peer]:
    """The executor that its documentation recommends for many tasks, with checkpoints."""
    program = driver(tools, "drive_parsl.py")
    return [
        Peer(
            name="Parsl HTEX, `bash_app`",
            version=version_of(tools, "parsl"),
            keeps="a memo a task (checkpoints)",
            run=lambda work: [*program, str(work.order), "run"],
            resume=lambda work: [*program, str(work.order), "run"],
            by_hand="start it again in the same folder, which has its checkpoints",
            head=named("drive_parsl.py"),
            worker=named("process_worker_pool"),
            waits=lambda work: [*program, str(work.order), "waits"],
            own_times=True,
        )
    ]


def disbatch(tools: Tools) -> list[Peer]:
    """On this machine alone, as its first example says."""
    if tools.python is None:
        raise Missing("no Python with it")
    program = str(tools.python.with_name("disBatch"))

    def argv(work: Work, *options: str) -> list[str]:
        return [
            "bash", "-c", 'cd "$1" && shift && exec "$@"', "disbatch", str(work.folder), program,
            "-s", f"localhost:{work.slots}", "-p", f"{work.folder}/", *options, str(work.lines),
        ]  # fmt: skip

    def resume(work: Work) -> list[str]:
        found = sorted(work.folder.glob("*_status.txt"))
        options = [word for path in found for word in ("-r", str(path))]
        return argv(work, *options, "-R")

    return [
        Peer(
            name="disBatch",
            version=version_of(tools, "disbatch"),
            keeps="a line a task",
            run=argv,
            resume=resume,
            by_hand="start it again with `-r` and its status file",
            head=named("disBatch", "localhost"),
            worker=named("-m disbatch", "--engine"),
            most=100,
        )
    ]


def version_of(tools: Tools, package: str) -> str:
    """The installed version.

    Raises:
        Missing: It is not installed.
    """
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run(
        [str(tools.python), "-c", code], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Missing("pip could not install it here")
    return f"{package} {done.stdout.strip()}"


def python_of(folder: Path) -> Path:
    """The interpreter of the environment that the packages are installed in."""
    return folder / "venv/bin/python"
