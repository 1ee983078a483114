"""Gates: whether something may go out, decided from digested inputs, stage by stage.

The file is read by `gate_file`, predicates are in the modules of checks. Invariant: a gate passes
only if every predicate was asked and holds; what is missing or not known is not a pass, and a pass
counts for as long as its inputs still have their digests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError, FleetError
from fleetcraft.evidence.digests import hash_file
from fleetcraft.evidence.records import Producer, producer_here
from fleetcraft.evidence.release import file_checks, result_checks, work_checks
from fleetcraft.evidence.release.finding import Finding, Input, InputKind, Surroundings
from fleetcraft.evidence.release.gate_file import Gate, Predicate, Stage
from fleetcraft.evidence.release.grid import GridRefusedError, GridState, Standing, advance
from fleetcraft.evidence.results.sets import check_name, read_set
from fleetcraft.evidence.sealed import seal, unseal
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_launch_token, sha256_hex
from fleetcraft.locks import put_if_absent
from fleetcraft.trust import require_private_folder

SCHEMA = "fleetcraft.gate/1"
EVALUATORS: Mapping[str, Callable[[Mapping[str, Any], Surroundings], Finding]] = {
    "manifest": file_checks.check_manifest,
    "archive": file_checks.check_archive,
    "files": file_checks.check_files,
    "grid_complete": result_checks.check_grid_complete,
    "arms": result_checks.check_arms,
    "encoder": result_checks.check_encoder,
    "outputs": result_checks.check_outputs,
    "tasks_done": work_checks.check_tasks_done,
    "none_failed": work_checks.check_none_failed,
    "training_end": file_checks.check_training_end,
    "window": file_checks.check_window,
    "metric": result_checks.check_metric,
    "comparison": result_checks.check_comparison,
    "jobs_ended": work_checks.check_jobs_ended,
    "gpu_hours": work_checks.check_gpu_hours,
}
"""What answers each check of `gate_file.CHECKS`."""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """One predicate with what was found.

    Attributes:
        name: Its own.
        check: What it asks.
        stage: When.
        asked: False where an earlier stage did not pass.
        finding: What was found.
        about: The fields of the predicate that name what it is about.
    """

    name: str
    check: str
    stage: Stage
    asked: bool
    finding: Finding
    about: dict[str, str] = {}


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate decided; kept under its name when it passed.

    Attributes:
        schema: `SCHEMA`.
        name: The gate's.
        gate_sha256: Of the gate's file.
        passed: Whether every predicate holds.
        predicates: All of them.
        at: Wall clock, for people.
        by: Who asked.
        nonce: Tells it from that of another call.
    """

    schema: str = SCHEMA
    name: str
    gate_sha256: str
    passed: bool
    predicates: tuple[Decided, ...]
    at: str
    by: Producer
    nonce: str

    @property
    def refuted(self) -> bool:
        """Whether a predicate is positively false; else what lacks is only not known."""
        return any(each.finding.verdict is False for each in self.predicates)

    @property
    def basis(self) -> tuple[Any, ...]:
        """What it was decided from: equal for two calls that looked at the same."""
        inputs = {i for each in self.predicates for i in each.finding.inputs}
        return self.gate_sha256, sorted((i.kind, i.name, i.sha256) for i in inputs)


def decide(
    gate: Gate, around: Surroundings, *, told: Callable[[str], None] = lambda name: None
) -> Decision:
    """Asks every predicate of a gate, stage by stage.

    A stage is asked only if every earlier one holds whole.

    Args:
        gate: As declared.
        around: Where to look.
        told: Is told each predicate's name before it is asked.
    """
    around.sets.clear()
    decided: list[Decided] = []
    for stage in Stage:
        open_ = all(each.finding.verdict is True for each in decided)
        for predicate in gate.predicates:
            if predicate.stage is stage:
                if open_:
                    told(predicate.name)
                decided.append(_decided(predicate, around, asked=open_))
    return Decision(
        name=gate.name,
        gate_sha256=gate.sha256,
        passed=all(each.finding.verdict is True for each in decided),
        predicates=tuple(decided),
        at=timestamp(),
        by=producer_here(),
        nonce=new_launch_token(),
    )


def _decided(predicate: Predicate, around: Surroundings, *, asked: bool) -> Decided:
    if asked:
        finding = _ask(predicate, around)
    else:
        why = "not asked: an earlier stage did not pass"
        finding = Finding(verdict=None, found=why, expected="")
    return Decided(
        name=predicate.name,
        check=predicate.check,
        stage=predicate.stage,
        asked=asked,
        finding=finding,
        about={key: value for key, value in predicate.given.items() if isinstance(value, str)},
    )


def _ask(predicate: Predicate, around: Surroundings) -> Finding:
    try:
        return EVALUATORS[predicate.check](predicate.given, around)
    except FleetError as error:
        found = error.message
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        found = f"{error.strerror or error}{place}"
    return Finding(verdict=None, found=found, expected="an answer")


# -- keeping


def keep(decision: Decision, around: Surroundings, *, fs: FileSystem | None = None) -> bool:
    """Keeps a pass under the gate's name.

    Returns:
        True when this very decision, or one from the same inputs, is kept; False when another one
        has the name.

    Raises:
        OSError: Whether it is kept is not known.
    """
    fs = fs or FileSystem()
    paths = around.room
    for folder in (paths.folder, paths.gates):
        require_private_folder(folder)
    path = paths.gate(decision.name)
    if put_if_absent(fs, path, seal(msgspec.json.encode(decision))):
        return True
    return read_decision(around, decision.name, fs=fs)[0].basis == decision.basis


def read_decision(
    around: Surroundings, name: str, *, fs: FileSystem | None = None
) -> tuple[Decision, str]:
    """A pass that was kept, and the digest of its file.

    Raises:
        UsageError: The name is none.
        DataError: There is none, or it was changed.
    """
    path = around.room.gate(check_name(name, "gate"))
    try:
        data = (fs or FileSystem()).read(path)
        body, reason = unseal(data.removesuffix(b"\n"))
        decision = msgspec.json.decode(body, type=Decision) if not reason else None
    except FileNotFoundError:
        raise DataError(
            f"no pass of a gate {name!r} is kept; nothing was released",
            hint="fleetcraft evidence gate GATE.yaml keeps it when it passes",
            gate=name,
        ) from None
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise DataError(f"cannot read the pass {path}: {error}", path=path) from error
    if decision is None or decision.schema != SCHEMA:
        raise DataError(f"the pass {path} was changed, or is of another version", path=path)
    return decision, sha256_hex(data)


def changed_inputs(decision: Decision, around: Surroundings) -> Iterator[tuple[Input, str]]:
    """Inputs that are no longer what was looked at, each with why."""
    inputs = {i for each in decision.predicates for i in each.finding.inputs}
    for given in sorted(inputs, key=lambda each: (each.kind, each.name)):
        try:
            now = _digest_now(given, around)
        except FleetError as error:
            yield given, error.message
            continue
        except OSError as error:
            yield given, error.strerror or str(error)
            continue
        if now != given.sha256:
            yield given, f"sha256 {now[:12]}, expected {given.sha256[:12]}"


def _digest_now(given: Input, around: Surroundings) -> str:
    match given.kind:
        case InputKind.FILE:
            return hash_file(os.path.join(around.kept_from, given.name))[1]
        case InputKind.SET:
            found = read_set(around.room.folder, given.name)
            return "" if found.damaged else found.sha256
        case InputKind.TASKS:
            return work_checks.tasks_digest(around, given.name)
        case InputKind.PAYLOAD:
            return file_checks.payload_digest(given, around)
        case InputKind.OUTPUTS:
            return result_checks.outputs_digest(around, given.name)
        case InputKind.WINDOW:
            return file_checks.window_digest(given, around)
        case InputKind.JOBS:
            return given.sha256  # an end in the accounting stays; asking again proves nothing


def release(around: Surroundings, grid: str, gate: str) -> tuple[Standing, bool]:
    """Releases a complete grid through a pass.

    Args:
        around: The surroundings.
        grid: Its name.
        gate: The name of the gate.

    Returns:
        How the grid stands, and whether this call released it.

    Raises:
        GridRefusedError: It is not complete, or the gate did not ask for it.
        DataError: There is no such pass, or an input has changed since.
    """
    decision, digest = read_decision(around, gate)
    asked = any(
        each.check == "grid_complete" and each.about.get("grid") == grid
        for each in decision.predicates
    )
    if not decision.passed or not asked:
        why = "did not pass" if not decision.passed else "has no grid_complete of it"
        raise GridRefusedError(
            f"grid {grid!r} is not released: gate {gate!r} {why}; nothing was changed",
            hint=f"check: grid_complete, grid: {grid}",
            grid=grid,
            gate=gate,
        )
    changed = list(changed_inputs(decision, around))
    if changed:
        first, why = changed[0]
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise DataError(
            f"grid {grid!r} is not released: since gate {gate!r} passed, {first.kind} "
            f"{first.name} has changed ({why}){more}",
            hint="give the gate another name, and pass it again",
            grid=grid,
            gate=gate,
            changed=[each.name for each, _ in changed],
        )
    return advance(around.room, grid, GridState.RELEASED, gate=gate, gate_sha256=digest)
