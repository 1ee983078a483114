"""What keeps nothing or little: the bare floor, xargs, and GNU parallel."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.bench.farms.peer import Missing, Peer, Tools, Work, named
from tests.bench.floor import Floor


def floor(tools: Tools) -> list[Peer]:
    """The C loop that spawns the same command so many times, so many at a time."""
    tools.folder.mkdir(parents=True, exist_ok=True)
    bare = Floor(tools.folder)

    def run(work: Work) -> list[str]:
        command = work.commands[0] if work.commands else "true"
        return bare.argv(len(work.commands), work.slots, command)

    name = f"floor: {bare.name}, `bash -c`"
    return [Peer(name=name, version="", keeps="nothing", run=run)]


def xargs(tools: Tools) -> list[Peer]:
    """One ``bash -c`` a line."""
    if shutil.which("xargs") is None:
        raise Missing("no xargs on PATH")

    def run(work: Work) -> list[str]:
        return [
            "xargs", "-a", str(work.lines), "-d", "\n", "-n", "1", "-P", str(work.slots),
            "-r", "bash", "-c",
        ]  # fmt: skip

    return [
        Peer(
            name="xargs -P",
            version=_first_line("xargs"),
            keeps="nothing",
            run=run,
            resume=run,
            by_hand="start all of it again; nothing says what had ended",
            head=named("xargs", "-a"),
        )
    ]


def parallel(tools: Tools) -> list[Peer]:
    """GNU parallel: as fast as it can be told, and with a record of what it did."""
    program = _find_parallel(tools)

    def argv(work: Work, *options: str) -> list[str]:
        return [program, "--will-cite", "-j", str(work.slots), *options, "-a", str(work.lines)]

    def kept(work: Work) -> list[str]:
        return ["--joblog", str(work.folder / "joblog"), "--results", str(work.folder / "results")]

    def resume(work: Work) -> list[str]:
        return argv(work, *kept(work), "--resume-failed")

    version = _first_line(program)
    head = named("parallel", "--will-cite")
    return [
        Peer(
            name="GNU parallel, `-u`",
            version=version,
            keeps="nothing",
            run=lambda work: argv(work, "-u"),
            resume=lambda work: argv(work, "-u"),
            by_hand="start all of it again; nothing says what had ended",
            head=head,
        ),
        Peer(
            name="GNU parallel, `--joblog --results`",
            version=version,
            keeps="a line and two files a task",
            run=lambda work: argv(work, *kept(work)),
            resume=resume,
            by_hand="start it again with `--resume-failed`",
            head=head,
        ),
    ]


def _find_parallel(tools: Tools) -> str:
    program = shutil.which("parallel")
    if program is not None:
        return program
    unpacked = tools.folder / "parallel"
    program = str(unpacked / "usr/bin/parallel")
    if not Path(program).exists():
        _unpack_parallel(tools.folder, unpacked)
    return program


def _unpack_parallel(folder: Path, unpacked: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Missing("no parallel on PATH, and no apt-get to fetch it with")
    done = subprocess.run(
        ["apt-get", "download", "parallel"], cwd=folder, capture_output=True, text=True, check=False
    )
    packages = sorted(folder.glob("parallel_*.deb"))
    if done.returncode != 0 or not packages:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise Missing(f"apt-get download parallel: {last}")
    subprocess.run(["dpkg", "-x", packages[-1], unpacked], check=True)


def _first_line(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or ["unknown"])[0].strip()
