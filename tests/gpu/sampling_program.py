"""A program with one session on the driver that it was started with; tests send it calls.

Not here: what the answers should be. It exists because the binding looks for the driver's library
in the environment that its process was started with. One JSON array a line, both ways.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import msgspec

from fleetcraft.gpu import nvml
from fleetcraft.gpu.sampling.session import Device, DriverError, Session


class Program:
    """What can be called, by name."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.devices: list[Device] = []
        self.begun = threading.Event()
        self.thread: threading.Thread | None = None
        self.late: list[Any] = []

    def open(
        self, wanted: list[str] | None = None, known: list[Any] = (), interval_s: float = 30.0
    ) -> Any:
        self.close()
        devices = [msgspec.convert(one, Device) for one in known]
        try:
            self.session = Session.open(wanted, known=devices, interval_s=interval_s)
        except DriverError as error:
            return {
                "refused": error.status,
                "code": error.code,
                "message": error.message,
                "hint": error.hint,
                "versions": error.versions,
                "exit_code": error.exit_code,
            }
        return self.inventory()

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = None

    def inventory(self) -> Any:
        assert self.session is not None
        self.devices = self.session.inventory()
        return self.devices

    def sample(self, times: int = 1) -> Any:
        """The rows of every device; the last of some times."""
        assert self.session is not None
        rows: list[Any] = []
        for _ in range(times):
            rows = [row for one in self.devices for row in self.session.sample(one, time.time())]
        return rows

    def drain(self) -> None:
        assert self.session is not None
        for one in self.devices:
            self.session.drain(one, time.time())

    def begin(self, position: int) -> None:
        """Samples one device in a thread, for `end` to wait for."""
        session = self.session
        assert session is not None

        def work() -> None:
            self.begun.set()
            self.late = session.sample(self.devices[position], time.time())

        self.begun.clear()
        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()
        self.begun.wait()

    def still_hangs(self) -> bool:
        assert self.thread is not None
        return self.thread.is_alive()

    def end(self) -> Any:
        assert self.thread is not None
        self.thread.join(30)
        return self.late

    def sample_one(self, position: int) -> Any:
        assert self.session is not None
        return self.session.sample(self.devices[position], time.time())

    def events(self) -> Any:
        assert self.session is not None
        return self.session.events()

    def recount(self) -> Any:
        assert self.session is not None
        count = self.session.recount()
        if self.session.is_doubtful:
            self.session.choose([self.session.find(number) for number in range(count or 0)], {})
        return count

    def gone(self) -> Any:
        assert self.session is not None
        return self.session.gone

    def versions(self) -> Any:
        assert self.session is not None
        return self.session.versions()

    def loaded(self) -> bool:
        return "pynvml" in sys.modules

    def read_gpus(self) -> Any:
        return nvml.read_gpus()

    def visible_gpus(self) -> Any:
        return nvml.visible_gpus()


def main() -> None:
    program = Program()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        answer = getattr(program, name)(**arguments)
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
