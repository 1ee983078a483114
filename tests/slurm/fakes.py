"""Programs that stand in for Slurm's where a healthy Slurm does not do such things.

Not here: what is right. Each is a real program on PATH that says when and how it was started, and
then prints, fails, hangs or lies as its body says.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

ANSWERS = Path(__file__).with_name("answers")
FIELD_END = "\x1f"
ROW_END = "\x1e"

_PROGRAM = """\
#!/bin/sh
read -r uptime _ < /proc/uptime
printf '%s %s %s\\n' "$uptime" "$$" "$*" >> '{log}'
{body}
"""


@dataclass(frozen=True)
class Call:
    """One start of a program: seconds since boot, its process id, its arguments in one line."""

    at_s: float
    pid: int
    words: str


class FakePrograms:
    """A folder of such programs, first on PATH.

    Args:
        folder: Where they lie.
        monkeypatch: Puts it on PATH.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        monkeypatch.setenv("PATH", f"{self.bin}:{os.environ['PATH']}")

    def write(self, name: str, body: str) -> Path:
        """Makes a program, or gives it another body at once: no start sees half of it."""
        path = self.bin / name
        new = self.folder / f"{name}.new"
        new.write_text(_PROGRAM.format(log=self._log(name), body=body))
        new.chmod(0o755)
        new.rename(path)
        return path

    def says(self, name: str, text: str) -> None:
        """A program that prints this and ends well."""
        file = self.folder / f"{name}.text"
        with file.open("w", newline="") as out:
            out.write(text)
        self.write(name, f"cat '{file}'")

    def calls(self, name: str) -> list[Call]:
        """Its starts so far, first one first."""
        try:
            lines = self._log(name).read_text(errors="surrogateescape").split("\n")
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            at_s, _, rest = line.partition(" ")
            pid, _, words = rest.partition(" ")
            if pid.isdecimal():
                found.append(Call(float(at_s), int(pid), words))
        return found

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def recorded(version: str, name: str) -> str:
    """Text of one version of Slurm, with this process's user in place of the one recorded.

    What is recorded, and what was written by hand, stands in the README.md beside it.
    """
    with (ANSWERS / version / f"{name}.txt").open(newline="") as file:
        text = file.read()
    mine = f"{FIELD_END}lab{FIELD_END}{os.geteuid()}{FIELD_END}"
    return text.replace(f"{FIELD_END}lab{FIELD_END}0{FIELD_END}", mine)


def long_table(titles: list[str], *rows: list[str]) -> str:
    """What squeue or sinfo prints for a table of ours."""
    return "".join(FIELD_END.join(cells) + f"{ROW_END}\n" for cells in (titles, *rows))
