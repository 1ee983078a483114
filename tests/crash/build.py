"""Compiles the library that counts and disturbs file operations, with the machine's C compiler.

Not here: what it does (`preload.c`). Invariant: a warning of the compiler is an error.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from tests.rig.build import NoCompiler, compiler

__all__ = ["NoCompiler", "build"]

SOURCE = Path(__file__).resolve().with_name("preload.c")
_FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror")


def build(folder: str | os.PathLike[str]) -> Path:
    """Builds the library in a folder, once for one text of its source.

    Args:
        folder: Where to; it is made.

    Returns:
        The library's path, for ``LD_PRELOAD``.

    Raises:
        NoCompiler: There is no C compiler.
        subprocess.CalledProcessError: The compiler refused the source, or warned.
    """
    found = compiler()
    if found is None:
        raise NoCompiler("needs a C compiler (cc, gcc or clang) to build the crash library")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = Path(folder) / f"crash-{digest}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}")
    command = [found, *_FLAGS, str(SOURCE), "-o", str(made), "-ldl"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=120)
    made.rename(library)
    return library
