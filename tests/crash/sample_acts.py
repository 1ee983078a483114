"""Small acts for the tests of the crash library, and a process that disturbs them.

Run with one JSON object: cases of a folder, a fault, a step and an act; prints what each said. Not
here: what is expected of them (`test_preload`). Invariant: this loads no more than it disturbs.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.crash.faults import FAULTS, Fault, How
from tests.crash.serving import Board, in_child

BY_NAME = {fault.name: fault for fault in FAULTS}


def every_call(root: str) -> None:
    """Many of the calls under test, by absolute and relative paths, folders and descriptors."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"{root}/a", "w") as file:
        file.write("x" * 100)
        file.flush()
        os.fsync(file.fileno())
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("d", dir_fd=fd)
    inner = os.open("d/b", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=fd)
    os.pwrite(inner, b"abc", 0)
    os.writev(inner, [b"de", b"f"])
    os.pread(inner, 3, 0)
    os.ftruncate(inner, 1)
    fcntl.flock(inner, fcntl.LOCK_EX)
    fcntl.lockf(inner, fcntl.LOCK_EX)
    os.fchmod(inner, 0o400)
    other = os.dup(inner)
    os.fdatasync(other)
    os.close(other)
    os.close(inner)
    os.rename("d/b", "d/c", src_dir_fd=fd, dst_dir_fd=fd)
    os.link(f"{root}/a", f"{root}/e")
    os.symlink("a", f"{root}/s")
    os.readlink(f"{root}/s")
    libc.renameat2(-100, f"{root}/e".encode(), -100, f"{root}/f".encode(), 1)
    libc.syncfs(fd)
    os.close(fd)
    os.chdir(root)
    os.listdir("d")
    list(os.scandir("."))
    os.path.exists("nothing")
    os.access("a", os.R_OK)
    os.chmod("a", 0o600)
    os.utime("a")
    os.truncate("a", 10)
    shutil.copyfile("a", "copy")
    with tempfile.NamedTemporaryFile(dir=root) as file:
        file.write(b"x")
    Path("copy").read_bytes()
    os.replace("f", "a")
    os.unlink("copy")
    shutil.rmtree("d")
    open("/dev/null").close()


def make_and_write(root: str) -> int:
    fd = os.open(f"{root}/a", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    written = os.write(fd, b"0123456789")
    os.close(fd)
    return written


def write_thrice(root: str) -> list[int]:
    fd = os.open(f"{root}/a", os.O_WRONLY | os.O_CREAT, 0o600)
    said = []
    for _ in range(3):
        try:
            said.append(os.write(fd, b"0123456789"))
        except OSError as error:
            said.append(-(error.errno or 0))
    os.close(fd)
    return said


def close_and_look(root: str) -> list[int | None]:
    fd = os.open(f"{root}/a", os.O_WRONLY | os.O_CREAT, 0o600)
    said: list[int | None] = []
    for work in (os.close, os.fstat):
        try:
            work(fd)
        except OSError as error:
            said.append(error.errno)
    return said


def rename_by_ctypes(root: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.renameat2(-100, f"{root}/a".encode(), -100, f"{root}/b".encode(), 1)
    return ctypes.get_errno()


def make_three_and_look(root: str) -> list[int | bool | None]:
    said: list[int | bool | None] = []
    for number in range(3):
        try:
            os.mkdir(f"{root}/{number}")
            said.append(0)
        except OSError as error:
            said.append(error.errno)
    return [*said, os.path.isdir(root)]


def work_elsewhere(root: str) -> int:
    Path(f"{root}-beside").mkdir()
    return subprocess.run(["touch", f"{root}/by-another"], check=False).returncode


def disturbed(board: Board, case: dict[str, Any]) -> dict[str, Any]:
    """What a child said whose k-th operation was disturbed, and which one that was."""
    root = case["root"]
    os.mkdir(root)
    for name in case["before"]:
        Path(root, name).touch()

    def work() -> Any:
        board.arm(root, BY_NAME[case["fault"]], case["at"])
        try:
            return globals()[case["act"]](root)
        except OSError as error:
            return -(error.errno or 0)
        finally:
            board.disarm()

    board.clear()
    said = in_child(work, os.devnull)
    return {**said, "hit": board.hit()}


def main(library: str, request: str) -> None:
    """Counts (`counted`), runs for strace (`traced`), or disturbs some cases."""
    asked = json.loads(request)
    board = Board(library)
    if isinstance(asked, list):
        print(json.dumps([disturbed(board, case) for case in asked]))
    elif asked["how"] == "counted":
        board.arm(asked["root"], Fault("counted", "", How.COUNT_ONLY), 0)
        every_call(asked["root"])
        board.disarm()
        print(json.dumps([done.name for done in board.operations()]))
    else:
        os.access("/BEGINS", os.R_OK)
        every_call(asked["root"])
        os.access("/ENDS", os.R_OK)


if __name__ == "__main__":
    main(*sys.argv[1:])
