"""Reading a run file: YAML whose keys are the attributes of `RunPlan`, checked as a whole.

Times (keys that end in ``_s``) are seconds or durations such as ``10m``. Paths are relative to the
file. Invariant: a plan that is returned is consistent: knobs lie on their grid and none of them is
protected, graces nest, and names can be file names of the scratch tree.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from fleetcraft.errors import UsageError
from fleetcraft.training.plan.records import (
    Budget,
    BudgetPlan,
    Built,
    End,
    LadderPlan,
    ProgressPlan,
    RunPlan,
)
from fleetcraft.training.plan.yaml_fields import Field, read_document, without_empty
from fleetcraft.training.records import Crash, Knob

KNOB_VARIABLE = "FLEET_KNOB_"
"""A knob that names no variable reaches the command as this and its name in capitals."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_KINDS = ("EXACT", "WEIGHTS")
_DEFAULTS = RunPlan(run="", command=())
_T = TypeVar("_T", bound=msgspec.Struct)
_Reader = Callable[[Field], Any]


def read_run_file(path: str | os.PathLike[str]) -> RunPlan:
    """Reads and checks a run file.

    Args:
        path: The YAML file. ``command`` is a list of words, or one text that is split as a shell
            would split it, without any other meaning of a shell.

    Returns:
        The plan; ``directory`` and ``checkpoints`` are absolute or, if it is not declared, empty
        for ``checkpoints`` and the file's folder for ``directory``.

    Raises:
        ConfigError: It cannot be read, or something in it is wrong; with path, line and key.
    """
    name = os.path.abspath(os.fspath(path))
    whole = read_document(name)
    found = without_empty(whole.fields(_RUN))
    for needed in ("run", "command"):
        if needed not in found:
            raise whole.error(f"the key {needed!r} is missing", key=needed)
    folder = os.path.dirname(name)
    values = {key: _RUN[key](field) for key, field in found.items()}
    values["directory"] = _beneath(folder, values.get("directory", ""))
    if values.get("checkpoints"):
        values["checkpoints"] = _beneath(folder, values["checkpoints"])
    values["protected"] = _protected(values.get("protected", ()))
    values["phases"] = {**_DEFAULTS.phases, **values.get("phases", {})}
    return _checked(RunPlan(**values), found, whole)


def plan_of_command(words: Sequence[str], *, run: str, directory: str = "") -> RunPlan:
    """The plan of a command without a run file: all defaults, no knobs, no declared end.

    Args:
        words: The command, not empty.
        run: The run's name.
        directory: Where it runs; the current folder if empty.

    Raises:
        UsageError: There is no command, or the name cannot be one.
    """
    if not words or not words[0]:
        raise UsageError(
            "no command was given", hint="fleetcraft train supervise -- torchrun train.py"
        )
    if not _NAME.fullmatch(run):
        raise UsageError(f"bad run name {run!r}: {_NAME_RULE}", name=run)
    return RunPlan(run=run, command=tuple(words), directory=os.path.abspath(directory))


_NAME_RULE = "names are 1 to 64 letters, digits, '_' and '-'"


# ------------------------------------------------------------------------------ single fields


def _name(field: Field) -> str:
    text = field.text()
    if not _NAME.fullmatch(text):
        raise field.error(f"{field.key} is {text!r}: {_NAME_RULE}")
    return text


def _command(field: Field) -> tuple[str, ...]:
    if field.is_list:
        words = tuple(item.text(may_be_empty=True) for item in field.items())
    else:
        try:
            words = tuple(shlex.split(field.text()))
        except ValueError as error:
            raise field.error(f"the command cannot be split into words: {error}") from None
    if not words or not words[0]:
        raise field.error("the command names no program")
    return words


def _environment(field: Field) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in field.fields().items():
        if not _VARIABLE.fullmatch(name):
            raise value.error(f"{name!r} cannot be the name of a variable")
        if name.startswith("FLEET_") and not name.startswith(KNOB_VARIABLE):
            raise value.error(f"{name} is set by fleetcraft itself and cannot be declared")
        found[name] = "" if value.is_empty else value.text(may_be_empty=True)
    return found


def _path(field: Field) -> str:
    text = field.text()
    expanded = os.path.expandvars(os.path.expanduser(text))
    if "$" in expanded:
        raise field.error(f"{field.key} is {text!r}, which names a variable that is not set")
    return expanded


def _beneath(folder: str, path: str) -> str:
    return os.path.abspath(os.path.join(folder, path))


def _task(field: Field) -> str:
    from fleetcraft.training.checkpoint.claims import TASK_NAME

    text = field.text()
    if not TASK_NAME.fullmatch(text):
        raise field.error(f"{field.key} is {text!r}, which cannot be the name of a task")
    return text


def _end(field: Field) -> End:
    end = _struct(End, _END)(field)
    if end.step is None and not end.payload:
        raise field.error(
            f"{field.key} declares neither step nor payload, so it could never be reached",
            hint="say step: N, or leave the end out",
        )
    return end


def _payload(field: Field) -> tuple[str, ...]:
    for item in field.items():
        text = item.text()
        if os.path.isabs(text) or ".." in text.split("/"):
            raise item.error(f"{text!r} is not a path inside the run's folder")
    return field.texts()


def _each(read: _Reader, *, names: bool = False) -> _Reader:
    def read_each(field: Field) -> dict[str, Any]:
        found = field.fields()
        for name, value in found.items():
            if names and not _NAME.fullmatch(name):
                raise value.error(f"{name!r} cannot be a name: {_NAME_RULE}")
        return {name: read(value) for name, value in found.items()}

    return read_each


def _classes(field: Field) -> dict[str, int]:
    classes = [crash.value for crash in Crash if crash is not Crash.NONE]
    return {name: value.count() for name, value in field.fields(classes).items()}


def _backoff(field: Field) -> tuple[float, ...]:
    return tuple(item.seconds(may_be_zero=True) for item in field.items())


def _data(field: Field) -> dict[str, str | int | float]:
    return {name: value.plain() for name, value in field.fields().items()}


def _count(least: int) -> _Reader:
    return lambda field: field.count(least=least)


def _struct(kind: type[_T], readers: Mapping[str, _Reader]) -> Callable[[Field], _T]:
    needed = [field.encode_name for field in msgspec.structs.fields(kind) if field.required]

    def read(field: Field) -> _T:
        found = without_empty(field.fields(readers))
        for name in needed:
            if name not in found:
                raise field.error(f"{field.key} has no {name!r}", key=f"{field.key}.{name}")
        return kind(**{name: readers[name](value) for name, value in found.items()})

    return read


# ----------------------------------------------------------------------------------- sections

_KNOB: dict[str, _Reader] = {
    "name": _name,
    "value": _count(1),
    "floor": _count(0),
    "quantum": _count(1),
    "variable": Field.text,
}


def _knobs(field: Field) -> tuple[Knob, ...]:
    read = _struct(Knob, _KNOB)
    knobs: list[Knob] = []
    for item in field.items():
        knob = read(item)
        if not knob.variable:
            capitals = re.sub(r"\W", "_", knob.name.replace("-", "_")).upper()
            knob = msgspec.structs.replace(knob, variable=f"{KNOB_VARIABLE}{capitals}")
        _check_knob(item, knob)
        for other in knobs:
            if knob.name == other.name or knob.variable == other.variable:
                raise item.error(f"knob {knob.name!r} has the name or the variable of another")
        knobs.append(knob)
    return tuple(knobs)


def _check_knob(field: Field, knob: Knob) -> None:
    if not _VARIABLE.fullmatch(knob.variable):
        raise field.error(f"knob {knob.name!r}: {knob.variable!r} cannot be a variable's name")
    taken = knob.variable.startswith("FLEET_") and not knob.variable.startswith(KNOB_VARIABLE)
    if taken or knob.variable in _ALLOCATOR:
        raise field.error(f"knob {knob.name!r}: {knob.variable} is set by fleetcraft itself")
    if knob.floor > knob.value:
        raise field.error(
            f"knob {knob.name!r}: its floor {knob.floor} is above its value {knob.value}"
        )
    for what, value in (("value", knob.value), ("floor", knob.floor)):
        if value % knob.quantum:
            raise field.error(
                f"knob {knob.name!r}: its {what} {value} is no multiple of its quantum "
                f"{knob.quantum}",
                hint=f"{value - value % knob.quantum} or {value + -value % knob.quantum}",
            )


_PROGRESS: dict[str, _Reader] = {
    "tokens_per_step": _count(1),
    "accumulation": _count(1),
    "tokens_per_s": Field.number,
    "stall_factor": lambda field: field.number(least=1.0),
    "stall_least_s": Field.seconds,
    "queues": Field.texts,
}
_LADDER: dict[str, _Reader] = {
    "expandable_segments": Field.flag,
    "shares_device_memory": Field.flag,
    "knobs": _knobs,
    "factor": lambda field: field.number(below=1.0),
    "combined": Field.flag,
}
_BUDGET: dict[str, _Reader] = {"restarts": _count(0), "within_s": Field.seconds}
_BUDGETS: dict[str, _Reader] = {
    "total": _struct(Budget, _BUDGET),
    "classes": _classes,
    "each": _count(0),
    "backoff_s": _backoff,
}
_BUILT: dict[str, _Reader] = {
    "shard_group_size": _count(1),
    "activation_checkpointing": _each(Field.flag),
}
_END: dict[str, _Reader] = {
    "task": _task,
    "step": _count(0),
    "kind": lambda field: field.one_of(_KINDS),
    "payload": _payload,
}
_RUN: dict[str, _Reader] = {
    "run": _name,
    "command": _command,
    "environment": _environment,
    "directory": _path,
    "nodes": _count(1),
    "gpus_per_node": _count(0),
    "world_size": _count(1),
    "grace_s": Field.seconds,
    "inner_grace_s": lambda field: field.seconds(may_be_zero=True),
    "warmup_s": lambda field: field.seconds(may_be_zero=True),
    "verify_steps": _count(1),
    "verify_save": Field.flag,
    "look_s": Field.seconds,
    "phases": _each(Field.seconds, names=True),
    "progress": _struct(ProgressPlan, _PROGRESS),
    "ladder": _struct(LadderPlan, _LADDER),
    "protected": Field.texts,
    "budgets": _struct(BudgetPlan, _BUDGETS),
    "data": _data,
    "packages": Field.texts,
    "built": _struct(Built, _BUILT),
    "checkpoints": _path,
    "end": _end,
}


# ---------------------------------------------------------------------------------- the whole


def _protected(declared: Sequence[str]) -> tuple[str, ...]:
    """What is declared comes on top: no run file unprotects the world size."""
    default = _DEFAULTS.protected
    return (*default, *(name for name in declared if name not in default))


def _checked(plan: RunPlan, found: Mapping[str, Field], whole: Field) -> RunPlan:
    least = least_grace_s(plan.inner_grace_s)
    if plan.grace_s < least:
        raise found.get("grace_s", found.get("inner_grace_s", whole)).error(
            f"grace_s is {plan.grace_s:g} s, and the command's inner grace is "
            f"{plan.inner_grace_s:g} s: it must be {least:g} s or more, so that what the command "
            "stops itself is gone before it is killed",
            hint="raise grace_s, or declare the inner_grace_s that the command really has",
        )
    for knob in plan.ladder.knobs:
        if name := protected_name(knob, plan.protected):
            raise found["ladder"].error(
                f"knob {knob.name!r} is the protected setting {name!r}, which no rung may touch",
                hint="choose a knob that changes neither the experiment nor its topology",
                knob=knob.name,
            )
        if knob.variable in plan.environment:
            raise found["environment"].error(
                f"{knob.variable} is the variable of knob {knob.name!r} and cannot be set twice"
            )
    return plan


def least_grace_s(inner_grace_s: float) -> float:
    """The shortest outer grace for an inner one, in seconds; the margin is the launching's."""
    from fleetcraft.training.launching.graces import margin_s

    return round(inner_grace_s + margin_s(inner_grace_s), 3)


def protected_name(knob: Knob, protected: Sequence[str]) -> str:
    """Which protected setting a knob is, by its name or its variable; empty if none.

    ``WORLD_SIZE``, ``world-size`` and ``world_size`` are the same setting.
    """
    of_knob = {_plain(knob.name), _plain(knob.variable.removeprefix(KNOB_VARIABLE))}
    return next((name for name in protected if _plain(name) in of_knob), "")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
