"""The process that makes the checks: it tells of each as it begins and of each finding.

One JSON object a line on the stdout that it was started with; what libraries print goes to stderr.
Not here: who gives it up when it hangs (`examining`). Invariant: what it was busy with when it
ended is always on its stdout.
"""

from __future__ import annotations

import os
import sys

import msgspec

from fleetcraft.doctor.case import Case
from fleetcraft.doctor.checks import CHECKS, make
from fleetcraft.doctor.findings import Finding


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be checked: settings given as options (bytes, as paths are), and ids of checks."""

    flags: dict[str, bytes]
    checks: tuple[str, ...]


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: a check has begun, was finished, or has found something."""

    begun: str = ""
    ended: str = ""
    finding: Finding | None = None


def main() -> int:
    """Reads an order from stdin and makes its checks."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    told_fd = os.dup(1)
    os.dup2(2, 1)
    case = Case({name: os.fsdecode(value) for name, value in order.flags.items()})
    wanted = set(order.checks)
    for check in CHECKS:
        if check.id in wanted:
            _tell(told_fd, Told(begun=check.id))
            for finding in make(check, case):
                _tell(told_fd, Told(finding=_whole(finding)))
            _tell(told_fd, Told(ended=check.id))
    return 0


def _tell(fd: int, told: Told) -> None:
    data = msgspec.json.encode(told) + b"\n"
    while data:
        data = data[os.write(fd, data) :]


def _whole(finding: Finding) -> Finding:
    """The same with texts that are Unicode: a path may hold any bytes."""
    texts = {
        name: text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        for name in ("name", "found", "expected", "hint")
        if (text := getattr(finding, name))
    }
    return msgspec.structs.replace(finding, **texts)


if __name__ == "__main__":
    sys.exit(main())
