"""Becomes a command that the kernel ends together with whoever started it.

Run as a file, ``python leash.py PARENT_PID PROGRAM ...``, so that it needs no import path; it
imports nothing of the package for that reason. Invariant: the command runs under this very pid.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Asks for SIGKILL at the parent's death, then becomes the command."""
    parent, *command = sys.argv[1:]
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit(1)  # it died before the kernel was asked
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
