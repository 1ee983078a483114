"""The one error of the sandbox: a sentence, a hint, and an exit code.

Not here: printing it; that is the program's own last act.
Invariant: the codes mean what they mean in fleetcraft: 1 no, 2 usage, 3 configuration, 4 Slurm.
"""

from __future__ import annotations

NO = 1
USAGE = 2
CONFIGURATION = 3
SLURM = 4


class Fault(Exception):
    """Something a person can act on.

    Args:
        code: The exit code, one of the four above.
        message: What failed, on which thing, and what was not done.
        hint: The next command or step.
    """

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
