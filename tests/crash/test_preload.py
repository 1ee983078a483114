"""The library that counts and disturbs: its count against strace, and each disturbance as it says.

Invariant: what is counted is what the kernel was asked for below the folder.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash import engine
from tests.crash.build import NoCompiler
from tests.crash.disturbing import REPO, folder_in_memory

# What the two say otherwise: libc's name for a call of the kernel.
_SAME = {
    "open64": "open", "openat": "open", "openat64": "open", "opendir": "open", "creat": "open",
    "stat": "stat", "lstat": "stat", "fstat": "stat", "newfstatat": "stat", "fstatat": "stat",
    "statx": "stat", "stat64": "stat", "lstat64": "stat", "fstat64": "stat", "fstatat64": "stat",
    "pread": "pread64", "pwrite": "pwrite64", "renameat": "rename", "renameat2": "rename",
    "linkat": "link", "symlinkat": "symlink", "unlinkat": "unlink", "rmdir": "unlink",
    "mkdirat": "mkdir", "readlinkat": "readlink", "faccessat": "access", "faccessat2": "access",
    "fchmodat": "chmod", "futimens": "utimensat", "fcntl64": "fcntl", "lockf": "fcntl",
    "readdir64": "readdir", "getdents64": "readdir", "closedir": "close",
    "ftruncate64": "ftruncate", "truncate64": "truncate", "sendfile64": "sendfile",
}  # fmt: skip
_TRACED = (
    "chdir,open,openat,creat,close,read,pread64,readv,write,pwrite64,writev,stat,lstat,fstat,newfstatat,"
    "statx,access,faccessat,faccessat2,chmod,fchmod,fchmodat,rename,renameat,renameat2,link,linkat,"
    "unlink,unlinkat,rmdir,mkdir,mkdirat,symlink,symlinkat,readlink,readlinkat,fsync,fdatasync,"
    "syncfs,truncate,ftruncate,flock,fcntl,getdents64,utimensat,sendfile,copy_file_range,statfs,"
    "fstatfs,fallocate"
)


@pytest.fixture(scope="module")
def library() -> Path:
    try:
        return engine.library()
    except NoCompiler as error:
        pytest.skip(str(error))


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as made:
        yield made


def ask(library: Path, request: object, *before: str) -> str:
    """What a process of `sample_acts` prints that has the library before libc."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "tests.crash.sample_acts", str(library),
         json.dumps(request)],
        cwd=REPO, env={**os.environ, "PYTHONPATH": str(REPO), "LD_PRELOAD": str(library)},
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def counted_by_us(folder: Path, library: Path) -> Counter[str]:
    (folder / "counted").mkdir()
    names = json.loads(ask(library, {"how": "counted", "root": str(folder / "counted")}))
    return Counter(_SAME.get(name, name) for name in names)


def counted_by_strace(folder: Path, library: Path) -> Counter[str]:
    trace = folder / "trace"
    (folder / "traced").mkdir()
    strace = ["strace", "-f", "-y", "-o", str(trace), "-e", f"trace={_TRACED}"]
    ask(library, {"how": "traced", "root": str(folder / "traced")}, *strace)
    text = trace.read_text()
    text = text[text.index("/BEGINS") : text.index("/ENDS")]
    root = str(folder / "traced")
    found: Counter[str] = Counter()
    inside = False
    for line in text.splitlines()[1:-1]:
        name = re.match(r"(?:\d+ +)?(\w+)\((.*)", line)
        if name is None:
            continue
        call = name[1]
        # A folder is not what an absolute path is about.
        words = re.sub(r'AT_FDCWD<[^>]*>, (?="/)', "", name[2])
        if call == "chdir":
            inside = root in words
        elif root in words or (inside and words.startswith('"') and words[1] != "/"):
            found[_SAME.get(call, call)] += _counts(call, words)
    # libc looks at what it lists.
    found["stat"] -= found["readdir"]
    return found


def _counts(call: str, words: str) -> bool:
    if call == "getdents64":  # a listing is one operation, and ends with an empty answer
        return not words.endswith("= 0")
    return call != "fcntl" or "LK" in words


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_what_is_counted_is_what_strace_sees(folder: Path, library: Path) -> None:
    ours = counted_by_us(folder, library)
    theirs = counted_by_strace(folder, library)
    assert ours == theirs
    assert sum(ours.values()) > 60


# -- disturbances

CASES = {
    "killed before": ("kill-before", 2, "make_and_write", ()),
    "killed after": ("kill-after", 2, "make_and_write", ()),
    "torn and killed": ("torn-kill", 2, "make_and_write", ()),
    "torn and full": ("torn-full", 2, "write_thrice", ()),
    "failed": ("EDQUOT", 1, "make_and_write", ()),
    "lied": ("done-but-EIO", 2, "make_and_write", ()),
    "failed to close": ("EIO", 2, "close_and_look", ()),
    "lied to ctypes": ("done-but-ENOENT", 1, "rename_by_ctypes", ("a",)),
    "full from": ("full-from", 2, "make_three_and_look", ()),
    "gone from": ("gone-from", 2, "make_three_and_look", ()),
    "elsewhere": ("kill-before", 1, "work_elsewhere", ()),
}


@pytest.fixture(scope="module")
def trials(library: Path) -> Iterator[tuple[Path, dict[str, dict[str, Any]]]]:
    """Every case, made by one process; and the folder in which each has left its tree."""
    with folder_in_memory() as folder:
        cases = [
            {"root": str(folder / name), "fault": fault, "at": at, "act": act, "before": before}
            for name, (fault, at, act, before) in CASES.items()
        ]
        answers = json.loads(ask(library, cases))
        yield folder, dict(zip(CASES, answers, strict=True))


Trials = tuple[Path, dict[str, dict[str, Any]]]


def test_a_process_is_killed_before_the_operation(trials: Trials) -> None:
    folder, said = trials
    assert said["killed before"]["signal"] == signal.SIGKILL
    assert said["killed before"]["hit"] == [2, "write", f"{folder}/killed before/a"]
    assert (folder / "killed before" / "a").read_bytes() == b""


def test_a_process_is_killed_after_the_operation(trials: Trials) -> None:
    folder, said = trials
    assert said["killed after"]["signal"] == signal.SIGKILL
    assert (folder / "killed after" / "a").read_bytes() == b"0123456789"


def test_half_is_written_and_the_process_is_killed(trials: Trials) -> None:
    folder, said = trials
    assert said["torn and killed"]["signal"] == signal.SIGKILL
    assert (folder / "torn and killed" / "a").read_bytes() == b"01234"


def test_half_is_written_and_the_next_write_finds_no_room(trials: Trials) -> None:
    assert trials[1]["torn and full"]["returned"] == [5, -errno.ENOSPC, 10]


def test_what_fails_is_not_done(trials: Trials) -> None:
    folder, said = trials
    assert said["failed"]["returned"] == -errno.EDQUOT
    assert os.listdir(folder / "failed") == []


def test_what_lies_is_done(trials: Trials) -> None:
    folder, said = trials
    assert said["lied"]["returned"] == -errno.EIO
    assert (folder / "lied" / "a").read_bytes() == b"0123456789"


def test_a_close_that_fails_has_closed(trials: Trials) -> None:
    assert trials[1]["failed to close"]["returned"] == [errno.EIO, errno.EBADF]


def test_a_rename_that_is_asked_for_by_ctypes_is_disturbed_too(trials: Trials) -> None:
    folder, said = trials
    assert said["lied to ctypes"]["returned"] == errno.ENOENT
    assert os.listdir(folder / "lied to ctypes") == ["b"]


def test_changes_fail_from_one_on_and_looking_does_not(trials: Trials) -> None:
    assert trials[1]["full from"]["returned"] == [0, errno.ENOSPC, errno.ENOSPC, True]


def test_everything_fails_from_one_on(trials: Trials) -> None:
    assert trials[1]["gone from"]["returned"] == [0, errno.ESTALE, errno.ESTALE, False]


def test_other_folders_and_other_processes_are_not_counted(trials: Trials) -> None:
    folder, said = trials
    assert said["elsewhere"]["returned"] == 0
    assert said["elsewhere"]["hit"][0] == 0
    assert (folder / "elsewhere" / "by-another").exists()
