"""A trial's process: it does what its order says, and tells its journal before it does it.

``python -m fleetcraft.calibration.trial.child ORDER.json``, or `main` in a forked process; what the
passes are is in `passes`. Invariant: every end that Python can see is in the journal, with its
reason, and what failed is cleaned up after its except block, where no traceback holds it any more.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import traceback
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import msgspec

from fleetcraft.calibration.family import Family, find_family
from fleetcraft.calibration.trial.findings import Finding, TrialFailedError
from fleetcraft.calibration.trial.journal import Event, JournalWriter
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.errors import FleetError
from fleetcraft.trust import make_folders

if TYPE_CHECKING:
    from fleetcraft.calibration.trial.passes import Session

DONE = 0
FAILED = 1
HARNESS = "Harness"
HARNESS_FAILED = 70
"""Source: EX_SOFTWARE of sysexits.h."""
_TRACEBACK_LINES = 24
_MESSAGE_MAX = 8000


def main(order: Order) -> int:
    """Runs a whole trial.

    Args:
        order: What to do; its folder is made if it is not there.

    Returns:
        `DONE`; `FAILED` when a pass found a fault or the family raised; `HARNESS_FAILED` when the
        harness itself did. Why is in the journal.

    Raises:
        OSError: The journal cannot be written.
    """
    make_folders(order.folder)
    journal = JournalWriter(order.journal)
    try:
        journal.write(Event.BEGIN, order=msgspec.to_builtins(order), pid=os.getpid())
        code, left = _attempt(order, journal)
        journal.write(Event.END, exit=code, **left)
    finally:
        journal.close()
    return code


def _attempt(order: Order, journal: JournalWriter) -> tuple[int, dict[str, Any]]:
    """Works, and tells how that ended; returns the exit code and what is left alive."""
    work = _Work(order, journal)
    failed: dict[str, Any] | None = None
    try:
        findings = work.run()
        failed = work.told(findings) if findings else None
    except BaseException as error:  # KeyboardInterrupt too: OpenBLAS raises it without threads
        failed = work.raised(error)
    # Only from here on nothing pins the frames of what failed.
    if failed is None:
        return DONE, {}
    journal.write(Event.FAILED, **failed)
    return HARNESS_FAILED if failed["kind"] == HARNESS else FAILED, work.clean_up()


class _Work:
    """The passes of one order, and words for how they ended."""

    def __init__(self, order: Order, journal: JournalWriter) -> None:
        self._order = order
        self._journal = journal
        self._session: Session | None = None
        self._finds_family = False

    def run(self) -> list[Finding]:
        """Runs the passes in order, up to the first that finds something; returns what."""
        import torch

        from fleetcraft.calibration.trial.passes import Session

        order = self._order
        if order.threads:
            torch.set_num_threads(order.threads)
        self._finds_family = True
        family = find_family(order.family)
        self._finds_family = False
        self._session = Session(order, family, self._journal)
        with suppress(ImportError):
            import torch._dynamo  # the first optimizer does, inside a cycle: 900 modules
        # Collecting garbage is then a matter of what the cycles made, not of a million modules.
        gc.collect()
        gc.freeze()
        if any(one is not Pass.PREFLIGHT for one in order.passes):
            with _pinned(order):
                self._journal.write(Event.ENVIRONMENT, **_environment(order, family))
        for pass_name in order.passes:
            with _pinned(order, on_cpu=pass_name is Pass.PREFLIGHT):
                findings = self._session.run(pass_name)
            if findings:
                return findings
        return []

    def told(self, findings: list[Finding], **more: Any) -> dict[str, Any]:
        """The journal's words for findings; the first is why the trial fails."""
        first = msgspec.to_builtins(findings[0])
        return {"kind": "Finding", **first, **self._pass(), "findings": findings, **more}

    def raised(self, error: BaseException) -> dict[str, Any]:
        """The journal's words for an exception; what was found before it comes first."""
        kind, message = type(error).__name__, str(error)[:_MESSAGE_MAX]
        lines = "".join(traceback.format_exception(error)).splitlines()[-_TRACEBACK_LINES:]
        tail = "\n".join(lines)
        ctx = self._session.ctx if self._session else None
        findings = list(ctx.findings) if ctx else []
        if isinstance(error, TrialFailedError):
            findings.append(error.finding)
        if findings:
            then = "" if isinstance(error, TrialFailedError) else f"{kind}: {message}"
            return self.told(findings, then=then, traceback_tail=tail)
        theirs = self._session.in_family if self._session else self._finds_family
        ours = not theirs and isinstance(error, Exception)
        if ours and not isinstance(error, (FleetError, MemoryError)) and not _is_torch_oom(error):
            kind, message = HARNESS, f"{kind}: {message}"
        phase = ctx.last_phase if ctx else ""
        said = {"kind": kind, "message": message, "phase": phase, "traceback_tail": tail}
        return {**said, **self._pass()}

    def _pass(self) -> dict[str, Any]:
        return {"pass": (self._session.pass_name if self._session else None) or ""}

    def clean_up(self) -> dict[str, Any]:
        """Lets go of what failed; returns what is alive in spite of that."""
        if self._session is None:
            return {}
        from fleetcraft.calibration.tracking.device import empty_cache
        from fleetcraft.calibration.trial.passes import live_tensor_bytes

        self._session = None
        gc.collect()
        empty_cache(self._order.device)
        return {"live_bytes": live_tensor_bytes(self._order.device)}


def _is_torch_oom(error: BaseException) -> bool:
    return any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)


def _environment(order: Order, family: Family) -> dict[str, Any]:
    from fleetcraft.calibration.stack import describe_stack

    facts = msgspec.structs.asdict(describe_stack(order.device))
    return {**facts, "family": family.key, "identity": family.identity_hash}


def _pinned(order: Order, *, on_cpu: bool = False) -> AbstractContextManager[object]:
    if not order.sdpa:
        return nullcontext()
    from fleetcraft.calibration.checks.sdpa import pinned

    if on_cpu:  # fake tensors are a CPU's, which has two backends: one quadratic in length, one not
        return pinned("math" if order.sdpa == "math" else "flash", "cpu")
    return pinned(order.sdpa, order.device)


def _read_order(path: str) -> Order:
    with open(path, "rb") as file:
        return msgspec.json.decode(file.read(), type=Order)


if __name__ == "__main__":
    faulthandler.enable()  # a crash below Python then says where, in the child's log
    sys.exit(main(_read_order(sys.argv[1])))
