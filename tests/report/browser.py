"""A real browser without a window, driven over a pipe by its own protocol; no package is needed.

Source: the Chrome DevTools Protocol; with ``--remote-debugging-pipe`` messages are JSON ended by a
zero byte, read by the browser from descriptor 3 and written to 4.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",  # it has none where tests run as root in a container
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # nothing has an address, so nothing can be reached
    "--remote-debugging-pipe",
)
_BECOME = """
import fcntl, os, sys
# Both are first put out of the way: one may be where the other has to go.
ends = [fcntl.fcntl(int(text), fcntl.F_DUPFD, 64) for text in sys.argv[1:3]]
for number, end in zip((3, 4), ends):
    os.dup2(end, number)
    os.close(end)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser wants its ends of the pipes at exactly 3 and 4."""
_PATIENCE_S = 60.0


def program() -> str | None:
    """A browser that is installed here; None without one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page. Use it as a context.

    Attributes:
        requests: The URLs that pages asked for, since `open`.
        problems: What the console and the log said, since `open`.
    """

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._number = 0
        self._buffer = b""
        self.requests: list[str] = []
        self.problems: list[str] = []

    def __enter__(self) -> Browser:
        found = program()
        assert found is not None
        their_read, self._write_fd = os.pipe()
        self._read_fd, their_write = os.pipe()
        ends = (str(their_read), str(their_write))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _BECOME,
                *ends,
                found,
                *_FLAGS,
                f"--user-data-dir={self._profile}",
            ],
            pass_fds=(their_read, their_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(their_read)
        os.close(their_write)
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _attach(self) -> None:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_PATIENCE_S)
        os.close(self._write_fd)
        os.close(self._read_fd)

    # -- the page

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Opens a file and waits until it is loaded."""
        self.requests, self.problems = [], []
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="", features=[scheme])
        loaded: list[bool] = []
        self.ask("Page.navigate", url=path.as_uri())
        self._pump(lambda message: loaded.append(True) if _is_load(message) else None, until=loaded)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def print(self, path: Path) -> None:
        """The page as a PDF."""
        sheet = self.ask("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(sheet["data"]))

    # -- the protocol

    def ask(self, method: str, **fields: Any) -> dict[str, Any]:
        """One question about the page."""
        return self._ask(method, session=self._session, **fields)

    def _ask(self, method: str, *, session: str = "", **fields: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": fields}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write_fd, data) :]
        answers: list[dict[str, Any]] = []
        self._pump(lambda got: answers.append(got) if got.get("id") == number else None, answers)
        assert "error" not in answers[0], answers[0]
        return answers[0]["result"]

    def _pump(self, take: Callable[[dict[str, Any]], object], until: list[Any]) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not until:
            while b"\0" not in self._buffer:
                left_s = deadline_s - time.monotonic()
                ready, _, _ = select.select([self._read_fd], [], [], max(0.0, left_s))
                assert ready, "the browser does not answer"
                data = os.read(self._read_fd, 1 << 20)
                assert data, "the browser has ended"
                self._buffer += data
            text, _, self._buffer = self._buffer.partition(b"\0")
            message = json.loads(text)
            self._note(message)
            take(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Log.entryAdded":
            self.problems.append(params["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.problems.append(json.dumps(params))


def _is_load(message: dict[str, Any]) -> bool:
    return message.get("method") == "Page.loadEventFired"
