"""Compiles the driver rig with the machine's C compiler.

Not here: what the library answers. Invariant: a warning of the compiler is an error, so what is
built was compiled without any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
HERE = Path(__file__).resolve().parent
SOURCES = ("libnvidia-ml.c", "readings.c", "events.c", "call.c", "control.c")
_FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror")


class NoCompiler(RuntimeError):
    """This machine has no C compiler."""


def compiler() -> str | None:
    """The C compiler: ``CC``, else ``cc``, ``gcc`` or ``clang``; None where there is none."""
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def build(folder: str | os.PathLike[str], *, absent: Sequence[str] = ()) -> Path:
    """Builds the library in a folder of its own.

    Args:
        folder: Where to; it is made. ``LD_LIBRARY_PATH`` names it afterwards.
        absent: Symbols that the library shall not have, as those of an older driver.

    Returns:
        The library's path.

    Raises:
        NoCompiler: There is no C compiler.
        subprocess.CalledProcessError: The compiler refused the source, or warned.
    """
    found = compiler()
    if found is None:
        raise NoCompiler("needs a C compiler (cc, gcc or clang) to build the driver rig")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    exports = place / "exports.map"
    hidden = "".join(f"{symbol}; " for symbol in absent)
    exports.write_text(f"{{ global: nvml*; local: {hidden}*; }};\n")
    command = [
        found,
        *_FLAGS,
        f"-Wl,-soname,{LIBRARY}",
        f"-Wl,--version-script={exports}",
        *(str(HERE / source) for source in SOURCES),
        *("-o", str(place / LIBRARY), "-lm", "-lpthread"),
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=120)
    return place / LIBRARY
