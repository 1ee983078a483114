"""Whether what made a result is still here: versions, batch table row, code, encoder, the record.

Compares and starts nothing but a short question to the tasks' Python. Invariant: what was recorded
and cannot be compared is unknown, and unknown is never the same.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fleetcraft.batch_table import read_table
from fleetcraft.errors import DataError, FleetError
from fleetcraft.evidence.digests import hash_file
from fleetcraft.evidence.release.grid import changed_scripts, read_standing
from fleetcraft.evidence.results.sets import Result
from fleetcraft.evidence.tracing.origins import read_prefix
from fleetcraft.files import FileSystem
from fleetcraft.identity import sha256_hex
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.spool.record import Record
from fleetcraft.video.encoder import encoder_record_path

ASK_LIMIT_S = 60.0
"""Starting a Python from a parallel file system that many nodes read at a time can take so long."""
_ASK = r"""
import importlib.metadata, importlib.util, json, os, platform, sys
found = {}
def torch_says(name):
    spec = importlib.util.find_spec("torch")
    path = os.path.join(os.path.dirname(spec.origin), "version.py") if spec and spec.origin else ""
    said = {}
    if path and os.path.isfile(path):
        with open(path) as file:
            exec(compile(file.read(), path, "exec"), said)
    return said.get(name)
def version_of(name):
    if name == "python":
        return platform.python_version()
    if name in ("torch", "cuda"):
        said = torch_says("__version__" if name == "torch" else "cuda")
        if said or name == "cuda":
            return said and str(said)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        named = importlib.metadata.packages_distributions().get(name)
        return importlib.metadata.version(named[0]) if named else None
for name in json.loads(sys.argv[1]):
    found[name] = version_of(name)
print(json.dumps(found))
"""
_WORDS_OF_PYTHON = ("python", "pypy")


class Sameness(StrEnum):
    """How something here stands to what was recorded."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    UNRECORDED = "unrecorded"
    """Nothing was recorded of it, so there is nothing to compare."""


class Made(NamedTuple):
    """A result, and the folder of the set in which it stands."""

    result: Result
    folder: str


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was compared.

    Attributes:
        what: ``command``, ``project``, ``stack.torch``, ``batch``, ``code``, ``grid``, ``encoder``.
        verdict: How it stands.
        recorded: Then.
        found: Now.
        detail: What else there is to say.
    """

    what: str
    verdict: Sameness
    recorded: str = ""
    found: str = ""
    detail: str = ""


def compare_with_here(
    made: Sequence[Made],
    record: Record,
    *,
    evidence: str,
    batch_table: str = "",
    python: str = "",
    code: Sequence[str] = (),
    encoder: str = "",
    fs: FileSystem | None = None,
) -> tuple[Check, ...]:
    """Compares what results recorded with what would run now.

    Args:
        made: The results of one task.
        record: That task's record.
        evidence: The evidence room, for frozen grids.
        batch_table: The table that workers would obey.
        python: The Python that would run it; found from the command if empty.
        code: Files of which the recorded digest may be one.
        encoder: An encoder record of what would encode now.
        fs: The seam.
    """
    system = fs or FileSystem()
    results = [one.result for one in made]
    checks = [_command(results, record), *_project(record)]
    checks += _stack(results, record, python)
    checks += _batch(results, batch_table)
    checks += _code(results, record, code, system)
    checks += _grids(results, evidence, system)
    checks += _encoders(made, record, python, encoder, system)
    return tuple(checks)


def _command(results: Sequence[Result], record: Record) -> Check:
    recorded = _distinct(result.command_identity for result in results)
    if not recorded:
        return Check(what="command", verdict=Sameness.UNRECORDED, found=record.identity[:12])
    same = recorded == [record.identity]
    return Check(
        what="command",
        verdict=Sameness.SAME if same else Sameness.DIFFERS,
        recorded=", ".join(text[:12] for text in recorded),
        found=record.identity[:12],
    )


def _project(record: Record) -> Iterator[Check]:
    """The folder in which it would run, where that is no longer there."""
    folder = record.spec.project_dir
    if not os.path.isdir(folder):
        yield Check(
            what="project", verdict=Sameness.DIFFERS, recorded=folder, detail="no such folder"
        )


def _distinct(values: Iterable[str]) -> list[str]:
    return sorted({value for value in values if value})


# ---------------------------------------------------------------------------------------- stack


def _stack(results: Sequence[Result], record: Record, python: str) -> Iterator[Check]:
    recorded: dict[str, set[str]] = {}
    for result in results:
        for name, version in result.stack.items():
            recorded.setdefault(name, set()).add(version)
    if not recorded:
        yield Check(what="stack", verdict=Sameness.UNRECORDED, detail="no versions were recorded")
        return
    interpreter = python or python_of(record)
    found, problem = ask_versions(interpreter, sorted(recorded))
    for name in sorted(recorded):
        then = " and ".join(sorted(recorded[name]))
        if found is None:
            yield Check(
                what=f"stack.{name}", verdict=Sameness.UNKNOWN, recorded=then, detail=problem
            )
            continue
        now = found.get(name)
        yield Check(
            what=f"stack.{name}",
            verdict=Sameness.SAME if _is_version(then, now) else Sameness.DIFFERS,
            recorded=then,
            found=now or "not there",
        )


def _is_version(recorded: str, found: str | None) -> bool:
    # Who types a version leaves away the build, such as +cu128, that the library tells of itself.
    if found is not None and "+" not in recorded:
        found = found.partition("+")[0]
    return found == recorded


def python_of(record: Record, environ: Mapping[str, str] | None = None) -> str:
    """The Python that a task's command begins with; this process's own if it names none.

    Args:
        record: The task.
        environ: Whose PATH counts; this process's own if None.
    """
    env = os.environ if environ is None else environ
    for word in _words(record.spec.command):
        if os.path.basename(word).startswith(_WORDS_OF_PYTHON):
            if "/" in word:
                path = os.path.join(record.spec.project_dir, word)
                return path if os.access(path, os.X_OK) else sys.executable
            return shutil.which(word, path=env.get("PATH")) or sys.executable
    return sys.executable


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command, comments=True)
    except ValueError:
        return command.split()


def ask_versions(
    python: str, names: Sequence[str], *, limit_s: float = ASK_LIMIT_S
) -> tuple[dict[str, str | None] | None, str]:
    """Asks a Python which versions it has, without importing any of them.

    Args:
        python: Its path.
        names: Libraries, as their module or package is called; ``python`` and ``cuda``, too.
        limit_s: How long it may take.

    Returns:
        Version by name, None for what is not there; or None and the reason why nothing is known.
    """
    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK, json.dumps(list(names))],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
        value = json.loads(done.stdout)
        if done.returncode == 0 and isinstance(value, dict):
            return {str(name): value[name] and str(value[name]) for name in value}, ""
        return None, f"{python} answered with {done.returncode}"
    except subprocess.TimeoutExpired:
        return None, f"{python} did not answer within {limit_s:g} s"
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "no answer"
        return None, f"{python}: {said}"


# ---------------------------------------------------------------------------------------- batch


def _batch(results: Sequence[Result], path: str) -> Iterator[Check]:
    for digest in _distinct(result.batch_table_sha256 for result in results):
        mine = [result for result in results if result.batch_table_sha256 == digest]
        try:
            table = read_table(path) if path else None
        except FleetError as error:
            yield _batch_check(digest, Sameness.UNKNOWN, detail=error.message)
            continue
        if table is None:
            yield _batch_check(digest, Sameness.UNKNOWN, detail="nothing says where the table is")
            continue
        now = table.hash.removeprefix("sha256:")
        if now == digest:
            yield _batch_check(digest, Sameness.SAME, found=now[:12])
            continue
        for result in mine[:1]:
            row = table.families.get(result.family)
            here = None if row is None else row.timed_batch if result.timed else row.batch
            same = here is not None and here == result.batch
            yield Check(
                what=f"batch.{result.family or '?'}",
                verdict=Sameness.SAME if same else Sameness.DIFFERS,
                recorded="" if result.batch is None else str(result.batch),
                found="no row" if here is None else str(here),
                detail="the table was frozen anew",
            )


def _batch_check(digest: str, verdict: Sameness, *, found: str = "", detail: str = "") -> Check:
    return Check(what="batch", verdict=verdict, recorded=digest[:12], found=found, detail=detail)


# ----------------------------------------------------------------------------------------- code


def _code(
    results: Sequence[Result], record: Record, given: Sequence[str], fs: FileSystem
) -> Iterator[Check]:
    recorded = _distinct(result.producer.code_sha256 for result in results)
    if not recorded:
        yield Check(what="code", verdict=Sameness.UNRECORDED)
        return
    folder = record.spec.project_dir
    words = given or [os.path.join(folder, word) for word in _words(record.spec.command)]
    found: dict[str, str] = {}
    for path in words:
        if os.path.isfile(path):
            try:
                found[hash_file(path, fs=fs)[1]] = os.path.basename(path)
            except OSError:
                continue
    for digest in recorded:
        if digest in found:
            yield Check(
                what="code", verdict=Sameness.SAME, recorded=digest[:12], found=found[digest]
            )
            continue
        verdict = Sameness.DIFFERS if given else Sameness.UNKNOWN
        detail = "no file that was looked at has this digest"
        named = ", ".join(sorted(found.values()))
        yield Check(what="code", verdict=verdict, recorded=digest[:12], found=named, detail=detail)


def _grids(results: Sequence[Result], evidence: str, fs: FileSystem) -> Iterator[Check]:
    for name in _distinct(result.grid for result in results):
        digests = _distinct(result.grid_sha256 for result in results if result.grid == name)
        check = Check(
            what="grid",
            verdict=Sameness.SAME,
            recorded=", ".join(text[:12] for text in digests),
            found=name,
        )
        try:
            standing = read_standing(EvidencePaths(evidence), name, fs=fs)
            edited = changed_scripts(standing, fs=fs)
        except (FleetError, OSError) as error:
            why = error.message if isinstance(error, FleetError) else str(error)
            yield msgspec.structs.replace(check, verdict=Sameness.UNKNOWN, found="", detail=why)
            continue
        if edited:
            said = f"the frozen script {'; '.join(edited)}"
            check = msgspec.structs.replace(check, verdict=Sameness.DIFFERS, detail=said)
        yield check


# -------------------------------------------------------------------------------------- encoder


def _encoders(
    made: Sequence[Made], record: Record, python: str, given: str, fs: FileSystem
) -> Iterator[Check]:
    for digest in _distinct(one.result.encoder_sha256 for one in made):
        mine = [one for one in made if one.result.encoder_sha256 == digest]
        short = mine[0].result.encoder or digest[:12]
        check = Check(what="encoder", verdict=Sameness.UNKNOWN, recorded=short)
        if given:
            found = _digest_of(given, fs)
            same = Sameness.SAME if found == digest else Sameness.DIFFERS
            yield msgspec.structs.replace(check, verdict=same, found=os.path.basename(given))
        else:
            yield _same_binding(check, mine, digest, python or python_of(record), fs)


def _same_binding(
    check: Check, made: Sequence[Made], digest: str, python: str, fs: FileSystem
) -> Check:
    """The version of the binding in the encoder record beside an output, against that here."""
    recorded = next(
        (value for one in made if (value := _record_beside(one, digest, fs)) is not None), None
    )
    replace = msgspec.structs.replace
    if recorded is None:
        detail = "its record is not beside the outputs; --encoder FILE names that of now"
        return replace(check, detail=detail)
    found, problem = ask_versions(python, ["av"])
    if found is None:
        return replace(check, detail=problem)
    then, now = str(recorded.get("pyav", "")), found.get("av") or "not there"
    same = Sameness.SAME if then == now else Sameness.DIFFERS
    return replace(check, verdict=same, recorded=f"{check.recorded} PyAV {then}", found=now)


def _record_beside(one: Made, digest: str, fs: FileSystem) -> Mapping[str, Any] | None:
    for output in one.result.outputs:
        path = str(encoder_record_path(Path(os.path.join(one.folder, output.path))))
        try:
            data = read_prefix(fs, path, most_bytes=1 << 20)
            value = msgspec.json.decode(data)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if sha256_hex(data) == digest and isinstance(value, dict):
            return value
    return None


def _digest_of(path: str, fs: FileSystem) -> str:
    try:
        return hash_file(path, fs=fs)[1]
    except OSError as error:
        raise DataError(
            f"cannot read the encoder record {path}: {error.strerror}; nothing was run", path=path
        ) from error
