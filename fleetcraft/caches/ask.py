"""The paths that the installed libraries themselves say, asked in a process of the tasks' Python.

Nothing is imported here: the child imports the modules that hold the libraries' constants, makes
no folder and downloads nothing. Invariant: the call ends within its time whatever the child does,
and a library that did not answer is unknown, with the reason.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from fleetcraft.caches.records import Role
from fleetcraft.slurm.program import first_line, run_program

LIMIT_S = 120.0
"""Importing from a parallel file system that many nodes read at a time can take a minute."""
_MARK = "fleetcraft-caches:"
_QUESTION = r"""
import importlib.metadata, json, os, sys
sys.path[:] = [folder for folder in sys.path if folder]
paths, problems, versions = {}, {}, {}
def ask(package, roles):
    try:
        versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return
    try:
        for role, path in roles().items():
            paths[role] = os.fspath(path)
    except BaseException as error:
        problems[package] = f"{type(error).__name__}: {error}"
def hub():
    from huggingface_hub import constants as c
    return {"hf_home": c.HF_HOME, "hub": c.HF_HUB_CACHE, "assets": c.HF_ASSETS_CACHE,
            "xet": c.HF_XET_CACHE}
def transformers():
    import transformers.utils.hub as h
    found = {"modules": h.HF_MODULES_CACHE}
    found["transformers"] = getattr(h, "TRANSFORMERS_CACHE", None) or h.constants.HF_HUB_CACHE
    return found
def datasets():
    from datasets import config
    return {"datasets": config.HF_DATASETS_CACHE}
def triton():
    try:
        from triton import knobs
        return {"triton": knobs.cache.dir}
    except ImportError:
        from triton.runtime import cache
        return {"triton": os.getenv("TRITON_CACHE_DIR", "").strip() or cache.default_cache_dir()}
def torch():
    import torch.hub
    from torch._inductor.runtime import cache_dir_utils as u
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return {"torch_hub": torch.hub.get_dir(),
            "inductor": u.default_cache_dir() if inductor is None else inductor}
ask("huggingface_hub", hub)
ask("transformers", transformers)
ask("datasets", datasets)
ask("triton", triton)
if sys.argv[2] == "torch":
    ask("torch", torch)
sys.stdout.write("\n" + sys.argv[1] + json.dumps([paths, versions, problems]) + "\n")
sys.stdout.flush()
os._exit(0)
"""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the libraries of one Python say.

    Attributes:
        python: That Python.
        answered: Whether it answered at all.
        paths: Of each role that a library has told: where its files go.
        versions: Of each library that is installed there.
        problems: Of each library that is installed and did not tell: why.
        why: Why there is no answer; empty when there is one.
    """

    python: str
    answered: bool
    paths: dict[Role, str] = {}
    versions: dict[str, str] = {}
    problems: dict[str, str] = {}
    why: str = ""


def ask(
    python: str, environ: Mapping[str, str], *, torch: bool = False, limit_s: float = LIMIT_S
) -> Asked:
    """Asks the libraries that a Python has installed where they keep their files.

    Args:
        python: Its path or name; that of this process if empty.
        environ: The whole environment that its process starts with.
        torch: Whether torch is imported too, which takes seconds.
        limit_s: Seconds until it is stopped.
    """
    python = python or sys.executable
    mark = f"{_MARK}{os.urandom(8).hex()}:"
    words = [python, "-c", _QUESTION, mark, "torch" if torch else ""]
    try:
        ended = run_program(words, environ, limit_s)
    except OSError as error:
        return Asked(
            python=python, answered=False, why=f"it cannot be started: {error.strerror or error}"
        )
    if ended.timed_out:
        why = f"it did not answer within {limit_s:g} s"
        return Asked(python=python, answered=False, why=why)
    line = next(
        (text for text in ended.stdout.splitlines() if text.startswith(mark.encode())), None
    )
    if line is None:
        why = first_line(ended.stderr) or f"it ended with {ended.exit_code} and said nothing"
        return Asked(python=python, answered=False, why=why)
    return _read(python, line[len(mark) :])


def _read(python: str, answer: bytes) -> Asked:
    try:
        paths, versions, problems = msgspec.json.decode(
            answer, type=tuple[dict[Role, str], dict[str, str], dict[str, str]]
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Asked(python=python, answered=False, why=f"its answer cannot be read: {error}")
    return Asked(python=python, answered=True, paths=paths, versions=versions, problems=problems)
