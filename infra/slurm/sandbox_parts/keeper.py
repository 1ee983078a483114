"""The parent of one daemon and of all that ever comes from it: of a node, its whole machine.

Run as a program: `python keeper.py COMMAND...`. Not here: ending anything.
Invariant: while this process lives, every process of its daemon descends from it. slurmstepd leaves
its slurmd by forking twice, and a job may do the same; as the reaper of its descendants this
process gets them back, so that a node can lose power as a whole and leaves no zombie.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36  # Source: prctl(2), linux/prctl.h
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def main(command: list[str]) -> int:
    """Runs the command until it and all its descendants have ended; returns its exit code."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    daemon = os.posix_spawn(command[0], command, os.environ, setsigdef=IGNORED)
    code = 0
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return code
        if pid == daemon:
            code = abs(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
