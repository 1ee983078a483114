"""The command line as tests call it: in this process, or as a process of its own.

Not here: what any single verb does.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.cli.main import main

REPO = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Called:
    """What one call did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value on stdout."""
        assert self.code == 0 or self.out, self.err
        return one_value(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The one JSON object on stderr."""
        value = one_value(self.err)
        assert value["schema"] == "fleetcraft.error/1"
        assert set(value["error"]) == {"type", "message", "hint", "exit_code", "facts"}
        assert value["error"]["exit_code"] == self.code
        return value["error"]


def one_value(text: str) -> Any:
    value = json.loads(text)
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert "schema" in value
    return value


class Fleet:
    """Calls verbs on one scratch tree, in this process.

    Its root's name has a space and a quote.
    """

    def __init__(
        self, root: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.root = root
        self.spool = root / "taskq"
        self._capsys = capsys
        self._patch = patch

    def __call__(self, *words: str, stdin: bytes = b"") -> Called:
        return self.bare("--root", str(self.root), *words, stdin=stdin)

    def bare(self, *words: str, stdin: bytes = b"") -> Called:
        """Without --root."""
        self._capsys.readouterr()
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        code = main(list(words))
        said = self._capsys.readouterr()
        return Called(code, said.out, said.err)

    def ok(self, *words: str, stdin: bytes = b"") -> Called:
        """A call that must succeed."""
        called = self(*words, stdin=stdin)
        assert called.code == 0, called.err
        return called

    def process(self, *words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        """The same as a process of its own."""
        return subprocess.run(
            self.command(*words),
            cwd=REPO,
            text=True,
            check=False,
            timeout=60,
            **{
                "env": environment(),
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                **settings,
            },
        )

    def command(self, *words: str) -> list[str]:
        """The words that start it as a process."""
        return [sys.executable, "-m", "fleetcraft", "--root", str(self.root), *words]

    def record(self, name: str) -> str:
        """The text of a task's record, wherever it is."""
        (path,) = self.spool.glob(f"*/**/{name}.sh")
        return path.read_text(errors="surrogateescape")

    def state(self, name: str) -> str:
        """The state of a task."""
        return str(self.ok("show", name, "--json").json["state"])

    def names(self) -> list[str]:
        """Every identity."""
        return sorted(path.name for path in (self.spool / "names").iterdir())


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPO), **extra}


@pytest.fixture
def bare_fleet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Fleet:
    """A root that is not there yet."""
    monkeypatch.chdir(tmp_path)
    return Fleet(tmp_path / "it's a root", capsys, monkeypatch)


@pytest.fixture
def fleet(bare_fleet: Fleet) -> Fleet:
    """An empty scratch tree."""
    bare_fleet.ok("init")
    return bare_fleet


@pytest.fixture
def put(fleet: Fleet) -> Callable[..., None]:
    """Enqueues one task."""

    def enqueue(name: str, command: str = "true", *options: str) -> None:
        fleet.ok("enqueue", "-n", name, *options, command)

    return enqueue
