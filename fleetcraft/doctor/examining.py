"""An examination: the checks are made by another process, which may hang or die without harm.

A check that takes too long is given up with its process, and the rest is made by a new one; what
it had found until then stands. Invariant: this process touches no mount, no driver and no
scheduler, so the examination ends, within the sum of the checks' limits.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

import fleetcraft
from fleetcraft.clock import timestamp
from fleetcraft.doctor.checks import CHECKS, GATE, Check
from fleetcraft.doctor.examiner import Order, Told
from fleetcraft.doctor.findings import Examination, Finding, unknown
from fleetcraft.identity import this_host

_START_LIMIT_S = 60.0
_END_WAIT_S = 2.0
_LAST_WORDS_BYTES = 2000
_HANGS = "what it looks at hangs or crashes: try it by hand, or ask the operators"
_NOT_STARTED = f"fleetcraft guard says whether there is room for a process; try {sys.executable} -V"
# Neither the folder in which it is called, which may hold modules of any name, nor the way in which
# this process found the package decides what the other one imports.
_PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop()); "
    "from fleetcraft.doctor.examiner import main; sys.exit(main())"
)

Progress = Callable[[str], None]


def examine(
    flags: Mapping[str, str],
    *,
    quick: bool = False,
    checks: Sequence[Check] = CHECKS,
    progress: Progress | None = None,
) -> Examination:
    """Examines this machine and a project; raises nothing that a check could meet.

    Args:
        flags: Settings given as options, by name.
        quick: Leave slow checks out.
        checks: What is checked.
        progress: Told the id of each check as it begins.
    """
    made_at = timestamp()
    left_out = [check for check in checks if quick and check.is_slow]
    left = [check for check in checks if check not in left_out]
    findings: list[Finding] = []
    while left:
        left = _Examiner(flags, left, findings, progress).run()
    return Examination(
        host=this_host().host,
        user=os.geteuid(),
        made_at=made_at,
        quick=quick,
        findings=tuple(findings),
        left_out=tuple(check.id for check in left_out),
    )


class _Examiner:
    """One process, and what it tells; `run` returns the checks that another one has to make."""

    def __init__(
        self,
        flags: Mapping[str, str],
        checks: Sequence[Check],
        findings: list[Finding],
        progress: Progress | None,
    ) -> None:
        self._order = Order(
            flags={name: os.fsencode(value) for name, value in flags.items()},
            checks=tuple(check.id for check in checks),
        )
        self._left = {check.id: check for check in checks}
        self._findings = findings
        self._progress = progress
        self._now = ""
        self._words = b""
        self._rest = b""

    def run(self) -> list[Check]:
        try:
            child = _start()
        except OSError as error:
            self._give_up(f"no process can be started for the checks: {error.strerror or error}")
            return []
        why = ""
        try:
            why = self._listen(child)
        finally:
            how = _end(child)
        if not self._left:
            return []
        if not self._now:  # it ended before the first check: another one would do the same
            self._give_up(f"the checks could not be made: {why or self._died(how)}")
            return []
        lost = self._left.pop(self._now)
        self._lose(lost, why or self._died(how))
        if lost.id == GATE and why:
            self._close_gate()
        return list(self._left.values())

    def _close_gate(self) -> None:
        """Leaves out the checks that would hang too, each for as long as it may."""
        for check in [check for check in self._left.values() if check.on_tree]:
            self._lose(self._left.pop(check.id), f"not made, since {GATE} hung")

    def _listen(self, child: subprocess.Popen[bytes]) -> str:
        """Takes what it tells until it ends; says why it was given up, if it was."""
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        with contextlib.suppress(BrokenPipeError):  # it has died already, and says why
            child.stdin.write(msgspec.json.encode(self._order))
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        with selectors.DefaultSelector() as selector:
            for pipe in (child.stdout, child.stderr):
                selector.register(pipe.fileno(), selectors.EVENT_READ)
            deadline = time.monotonic() + _START_LIMIT_S
            now = self._now
            # Its own stdout is what ends with it; children of it may hold stderr.
            while child.stdout.fileno() in selector.get_map():
                if self._now != now:
                    now = self._now
                    deadline = time.monotonic() + self._limit_s()
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return f"it did not end within {self._limit_s():g} s and was given up"
                for key, _ in selector.select(left_s):
                    if data := os.read(key.fd, 1 << 16):
                        self._take(data, told=key.fd == child.stdout.fileno())
                    else:
                        selector.unregister(key.fd)
        return ""

    def _limit_s(self) -> float:
        return self._left[self._now].limit_s if self._now else _START_LIMIT_S

    def _take(self, data: bytes, *, told: bool) -> None:
        if not told:
            self._words = (self._words + data)[-_LAST_WORDS_BYTES:]
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._hear(msgspec.json.decode(line, type=Told))

    def _hear(self, told: Told) -> None:
        if told.finding is not None:
            self._findings.append(told.finding)
        if told.ended:
            del self._left[told.ended]
            self._now = ""
        if told.begun:
            self._now = told.begun
            if self._progress is not None:
                self._progress(told.begun)

    def _died(self, how: str) -> str:
        lines = self._words.decode("utf-8", "replace").splitlines()
        said = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"its process {how}: {said}"

    def _lose(self, check: Check, why: str, hint: str = _HANGS) -> None:
        lost = unknown(check.name, why, hint)
        self._findings.append(msgspec.structs.replace(lost, section=check.section))

    def _give_up(self, why: str) -> None:
        for check in self._left.values():
            self._lose(check, why, _NOT_STARTED)
        self._left.clear()


def _start() -> subprocess.Popen[bytes]:
    package = os.path.dirname(os.path.dirname(os.path.abspath(fleetcraft.__file__)))
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM, package],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


def _end(child: subprocess.Popen[bytes]) -> str:
    """Ends it and what it has started, if it has not ended; how it ended, in words."""
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(0.1)
    if child.returncode is None:
        # Not waited for yet, so that the number is still its group's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        try:
            child.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            child.returncode = -signal.SIGKILL  # held in the kernel; it goes when that lets it
    code = child.returncode
    assert code is not None
    return f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
