"""What this node is, for the batch table: its GPUs, and the torch that tasks would use.

Two short-lived programs are asked, one by NVML and one by importing torch; the worker does neither
itself, since a driver may hang and torch is large. Not here: what follows from it. Invariant:
nothing here waits; what was not answered in time is unknown, and known only by its problem.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from fleetcraft.batch_table.records import VARIABLES, Found, allocator_settings

LIMIT_S = 120.0
"""Importing torch from a parallel file system that many nodes read at a time can take a minute."""
_RETRY_PAUSES_S = (2.0, 30.0)
_LAST_WORDS = 2000
_END_WAIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """What was found; ``problem`` says why a part of it is not known, empty when all is.

    Attributes:
        gpus: Those that this process may use, as `fleetcraft.gpu.devices` tells them; None while
            that is not known.
        stack: What ``fleetcraft.calibration.stack`` tells; None while that is not known.
        problem: Why something is not known.
        lacks_torch: The Python of the tasks answered that it has no torch, so that nobody but a
            task can tell what it runs.
    """

    gpus: tuple[dict[str, Any], ...] | None = None
    stack: dict[str, Any] | None = None
    problem: str = ""
    lacks_torch: bool = False

    def found_for(self, gpu: str) -> Found:
        """What a task of this node finds.

        Args:
            gpu: UUID of its slot's GPU; empty for a task that may use all of them.
        """
        stack = self.stack or {}
        name, mem_mib = self._device(gpu)
        return Found(
            device_name=name or None,
            device_mem_mib=None if mem_mib is None else int(mem_mib),
            torch=stack.get("torch") or None,
            sdpa=stack.get("sdpa") or None,
            alloc=allocator_settings(os.environ),  # which tasks inherit
        )

    def _device(self, gpu: str) -> tuple[str, float | None]:
        if self.gpus is None:
            return "", None
        if not self.gpus:  # a CPU, or what a torch without the driver's library sees
            stack = self.stack or {}
            return stack.get("device", ""), stack.get("device_mem_mib")
        mine = [one for one in self.gpus if not gpu or one["uuid"] == gpu]
        kinds = {(one["name"], one["mem_mib"]) for one in mine}
        if len(kinds) == 1:
            return kinds.pop()
        return " and ".join(sorted({name for name, _ in kinds})), None


class NodeProbe:
    """Asks once, and twice more when no answer comes; `facts` tells when it has come.

    Args:
        python: The Python whose torch the tasks use; empty for this one.
    """

    def __init__(self, python: str) -> None:
        # As this process was started: with -P, a folder of the project is no place for modules.
        flags = ["-P"] if sys.flags.safe_path else []
        self._commands = {
            "gpus": [sys.executable, *flags, "-m", "fleetcraft.gpu.devices"],
            "stack": [
                python or sys.executable, *flags, "-m", "fleetcraft.calibration.stack",
                "--json", "--limit", f"{LIMIT_S:g}",
            ],
        }  # fmt: skip
        self._asked: dict[str, _Question] = {}
        self._facts: NodeFacts | None = None
        self._retries = list(_RETRY_PAUSES_S)
        self._again_at = 0.0

    @property
    def asks(self) -> bool:
        """Whether an answer is on its way."""
        return bool(self._asked)

    def ask(self) -> None:
        """Starts asking, where nothing is known yet or it is time to try again."""
        if not self._asked and self.facts() is None:
            self._facts = None
            self._asked = {name: _Question(words) for name, words in self._commands.items()}

    def facts(self) -> NodeFacts | None:
        """What is known; None before the first answer, and when it is time to ask again."""
        if self._facts is not None and self._facts.problem and time.monotonic() >= self._again_at:
            return None
        return self._facts

    def retry_s(self) -> float:
        """Seconds until it is asked again; infinite when it will not be."""
        return max(0.0, self._again_at - time.monotonic())

    def forget(self) -> None:
        """Something has changed: what was in vain is tried once more."""
        if self._facts is not None and self._facts.problem:
            self._facts = None
            self._retries = list(_RETRY_PAUSES_S)

    def listen(self) -> bool:
        """Takes the answers that have come; True once none is on its way any more."""
        if self._asked and all(question.over() for question in self._asked.values()):
            self._facts = _facts(self._asked["gpus"].answer(), self._asked["stack"].answer())
            if not all(question.started for question in self._asked.values()):
                self._retries = []  # there is no such program, nor will there be
            self._close()
            pause_s = self._retries.pop(0) if self._retries else float("inf")
            self._again_at = time.monotonic() + pause_s
        return not self._asked

    def close(self) -> None:
        """Stops asking."""
        for question in self._asked.values():
            question.stop()
        self._close()

    def _close(self) -> None:
        for question in self._asked.values():
            question.close()
        self._asked = {}


class _Question:
    """One program that prints one JSON value; never waited for."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._problem = ""
        self._deadline = time.monotonic() + LIMIT_S
        self._killed = False
        # Files, not pipes: a program that says much must not wait for somebody to read it.
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        env = {name: text for name, text in os.environ.items() if name not in VARIABLES}
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                start_new_session=True,
            )
        except OSError as error:
            self._problem = f"cannot start {command[0]}: {error.strerror or error}"

    @property
    def started(self) -> bool:
        return self._process is not None

    def over(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return True
        if time.monotonic() >= self._deadline and not self._killed:
            self.stop()
        return False

    def stop(self) -> None:
        """Kills it; its end is seen by `over`."""
        if self._process is not None and self._process.poll() is None:
            self._killed = True
            self._process.kill()

    def answer(self) -> dict[str, Any]:
        """What it printed, or an ``error``."""
        if self._process is None:
            return {"error": self._problem}
        if self._killed:
            return {"error": f"{self._command[0]} did not answer within {LIMIT_S:g} s"}
        self._out.seek(0)
        try:
            return msgspec.json.decode(self._out.read(), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {"error": self._last_words()}

    def _last_words(self) -> str:
        self._err.seek(0, os.SEEK_END)
        self._err.seek(max(0, self._err.tell() - _LAST_WORDS))
        lines = self._err.read().decode("utf-8", "replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        status = self._process.returncode if self._process else None
        return f"{self._command[0]} ended with status {status}: {said}"

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            # Killed, and it goes as soon as the kernel lets it; nobody else waits for children now.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_WAIT_S)
        self._out.close()
        self._err.close()


def _facts(gpus: dict[str, Any], stack: dict[str, Any]) -> NodeFacts:
    problems = []
    devices: tuple[dict[str, Any], ...] | None = None
    try:
        devices = tuple(
            {"uuid": str(one["uuid"]), "name": str(one["name"]), "mem_mib": one["mem_mib"]}
            for one in gpus["gpus"]
        )
    except (KeyError, TypeError):
        problems.append(f"GPUs: {gpus.get('error', 'no answer')}")
    lacks_torch = stack.get("torch") == ""
    if "error" in stack and not lacks_torch:
        problems.append(f"stack: {stack['error']}")
        return NodeFacts(gpus=devices, problem="; ".join(problems))
    return NodeFacts(
        gpus=devices, stack=stack, problem="; ".join(problems), lacks_torch=lacks_torch
    )
