"""Says to the driver rig what it answers: the control file, and the environment that finds it.

Not here: the answers. Invariant: a reader sees the control before or after a change, never half of
it, and no two states of it look alike to ``stat``. The keys are in the README beside this file.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType

from tests.rig.build import HERE, NoCompiler, build

Value = str | int | float | Sequence[int]

_FUNCTION = re.compile(r"F\((nvml\w+), (\w+), ", re.ASCII)
_PLAIN_KEY = re.compile(r"FIELD\((gpu|slice|control), (\w+),", re.ASCII)
_NAMED_KEY = re.compile(r'(?:NAMED|GIVEN)\((gpu|slice|control), "(\w+)",', re.ASCII)


@cache
def functions() -> dict[str, str]:
    """The library's symbols, each with the word that stands for it in ``error.<word>``."""
    return dict(_FUNCTION.findall((HERE / "control.h").read_text()))


@cache
def plain_keys(record: str) -> tuple[str, ...]:
    """The keys of a ``gpu``, of a ``slice`` or of the whole ``control``, from the C source."""
    text = (HERE / "control.c").read_text()
    found = [*_PLAIN_KEY.findall(text), *_NAMED_KEY.findall(text)]
    return tuple(key for owner, key in found if owner == record)


@cache
def _key_pattern() -> re.Pattern[str]:
    calls = "|".join(sorted({"all", *functions(), *functions().values()}))
    trouble = rf"(error|hang)\.({calls})"
    slices = rf"mig\.[0-7]\.({'|'.join(plain_keys('slice'))}|{trouble})"
    gpu = rf"{'|'.join(plain_keys('gpu'))}|(error\.)?field\.\d+|{slices}|{trouble}"
    return re.compile(rf"{'|'.join(plain_keys('control'))}|{trouble}|gpu\.\d+\.({gpu})", re.ASCII)


@cache
def _built(absent: tuple[str, ...]) -> Path:
    folder = tempfile.mkdtemp(prefix="fleetrig-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return build(folder, absent=absent)


class Rig:
    """The driver that programs see when they are started with ``env()``.

    >>> with Rig(tmp_path) as rig:
    ...     rig.set("gpu.0.util", 87)
    ...     subprocess.run(command, env=rig.env())

    Args:
        folder: Where the control file lies.
        absent: Symbols that the library lacks, as that of an older driver.
        settings: Lines to begin with, as ``set`` takes them.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        absent: Sequence[str] = (),
        settings: Mapping[str, Value] | None = None,
    ) -> None:
        unknown = set(absent) - set(functions()) - {"nvmlErrorString"}
        if unknown:
            raise KeyError(f"the library has no {', '.join(sorted(unknown))}")
        self.library = _library(tuple(absent))
        self.path = Path(folder) / "rig.control"
        self._trace = Path(folder) / "rig.calls"
        self._word = Path(folder) / "rig.control.changes"
        self._lines: dict[str, str] = {}
        self._changes = 0
        self._stamp_ns = 0
        self.update(settings or {})

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Sets free whatever still hangs, so that no process outlives its test in a call."""
        self.clear()

    def set(self, key: str, value: Value) -> None:
        """Sets one line; a list becomes its items with commas. Holds from the next call on."""
        self.update({key: value})

    def update(self, settings: Mapping[str, Value]) -> None:
        """Sets several lines at once."""
        for key, value in settings.items():
            if not _key_pattern().fullmatch(key):
                raise KeyError(f"the rig knows no key {key!r}")
            self._lines[key] = _text(value)
        self._write()

    def unset(self, *keys: str) -> None:
        """Takes lines back, so that their defaults hold."""
        for key in keys:
            self._lines.pop(key, None)
        self._write()

    def clear(self) -> None:
        """Takes every line back: two healthy GPUs."""
        self._lines.clear()
        self._write()

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a program that shall see this driver: ``base``, else ours, and two."""
        env = dict(os.environ if base is None else base)
        folders = (str(self.library.parent), env.get("LD_LIBRARY_PATH", ""))
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
        env["FLEETRIG_CONTROL"] = str(self.path)
        return env

    def record_calls(self) -> None:
        """Has every call written down from now on, for ``calls``."""
        self.set("trace", str(self._trace))

    def calls(self) -> Counter[str]:
        """How often each call was begun: ``nvmlDeviceGetName gpu.0``, ``nvmlShutdown``."""
        try:
            return Counter(self._trace.read_text().splitlines())
        except FileNotFoundError:
            return Counter()

    def forget_calls(self) -> None:
        """Begins to count anew."""
        self._trace.unlink(missing_ok=True)

    def _write(self) -> None:
        new = self.path.with_name(self.path.name + ".new")
        new.write_text("".join(f"{key}={value}\n" for key, value in self._lines.items()))
        # Clocks of file systems tick some milliseconds apart, and inodes come back at once.
        self._stamp_ns = max(time.time_ns(), self._stamp_ns + 1000)
        os.utime(new, ns=(self._stamp_ns, self._stamp_ns))
        os.replace(new, self.path)
        self._changes += 1
        # In place: every program that uses the library has this word mapped.
        with open(self._word, "r+b" if self._word.exists() else "w+b") as word:
            word.write(self._changes.to_bytes(8, sys.byteorder))


def _library(absent: tuple[str, ...]) -> Path:
    try:
        return _built(absent)
    except NoCompiler as error:
        if "PYTEST_CURRENT_TEST" not in os.environ:
            raise
        import pytest

        pytest.skip(str(error))


def _text(value: Value) -> str:
    text = str(value) if isinstance(value, (str, int, float)) else ",".join(map(str, value))
    if "\n" in text:
        raise ValueError("a value is one line")
    return text
