"""The floor: what it costs only to start and wait for the same commands, so many at a time.

A C loop around posix_spawn; where there is no gcc, the same loop in Python, which costs more and
is named as such. Invariant: it keeps nothing, so no tool that keeps something can be below it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_C = r"""
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
extern char **environ;
int main(int argc, char **argv) {
    long todo = atol(argv[1]), width = atol(argv[2]), running = 0;
    char *words[] = {"bash", "-c", argv[3], NULL};
    (void)argc;
    while (todo > 0 || running > 0) {
        while (todo > 0 && running < width) {
            pid_t pid;
            if (posix_spawnp(&pid, "bash", NULL, NULL, words, environ) != 0) return 1;
            todo--; running++;
        }
        int status;
        if (waitpid(-1, &status, 0) < 0 || status != 0) return 1;
        running--;
    }
    return 0;
}
"""


class Floor:
    """The command line of the spawn floor.

    Attributes:
        name: What it is, for the table.
    """

    def __init__(self, folder: Path) -> None:
        gcc = shutil.which("gcc")
        self._program = [sys.executable, __file__]
        self.name = "Python posix_spawn loop (no gcc here)"
        if gcc:
            source = folder / "floor.c"
            source.write_text(_C)
            program = folder / "floor"
            subprocess.run([gcc, "-O2", "-o", program, source], check=True)
            self._program = [str(program)]
            self.name = "C posix_spawn loop"

    def argv(self, count: int, width: int, command: str) -> list[str]:
        """Starts ``bash -c command`` so many times, so many at a time."""
        return [*self._program, str(count), str(width), command]


def _loop(todo: int, width: int, command: str) -> int:
    bash = shutil.which("bash") or "/bin/bash"
    running = 0
    while todo or running:
        while todo and running < width:
            os.posix_spawn(bash, ["bash", "-c", command], os.environ)
            todo -= 1
            running += 1
        _, status = os.waitpid(-1, 0)
        if status:
            return 1
        running -= 1
    return 0


if __name__ == "__main__":
    sys.exit(_loop(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
