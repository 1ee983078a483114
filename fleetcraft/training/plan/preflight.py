"""Comparing what ranks have built with what the run declares: findings, each with its numbers.

Pure; reading the ranks' files is `built`'s. Invariant: what was not declared is never a "no", and
what was not told is never an "ok".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from fleetcraft.training.plan.built import Built, BuiltModule, BuiltReport
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.units import format_bytes

SMALL_FRACTION = 0.01
"""Parameters that are no more than this share of a module's, or a module that is no more of all,
may be sharded otherwise than declared: nothing is gained by sharding a reward head."""


class Answer(StrEnum):
    """How a comparison ended. CAUTION: nothing was declared, but it looks like an oversight."""

    OK = "ok"
    NO = "no"
    CAUTION = "caution"
    NOT_KNOWN = "not known"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison.

    Attributes:
        subject: ``world size``, ``ranks``, ``sharding``, ``activation checkpointing``, ``GPUs`` or
            ``memory``.
        module: The module, where it is about one.
        answer: How it ended.
        declared: What the run file says; empty if nothing.
        found: What was built.
        detail: What follows from it, one sentence; empty if nothing does.
    """

    subject: str
    answer: Answer
    module: str = ""
    declared: str = ""
    found: str = ""
    detail: str = ""


def compare(built: Built, plan: RunPlan) -> tuple[Finding, ...]:
    """Everything that can be compared, in a fixed order.

    Args:
        built: What the ranks have told.
        plan: What the run declares.
    """
    if not built.reports:
        problems = "; ".join(built.problems) or "no rank has told what it has built"
        return (Finding(subject="ranks", answer=Answer.NOT_KNOWN, detail=problems),)
    return (
        _world_size(built, plan),
        _ranks(built),
        *_gpus(built, plan),
        *_sharding(built, plan),
        *_checkpointing(built, plan),
        *_memory(built),
    )


def worst(findings: Iterable[Finding]) -> Answer:
    """NO before NOT_KNOWN before CAUTION before OK."""
    answers = {finding.answer for finding in findings}
    for answer in (Answer.NO, Answer.NOT_KNOWN, Answer.CAUTION):
        if answer in answers:
            return answer
    return Answer.OK


def _world_size(built: Built, plan: RunPlan) -> Finding:
    sizes = sorted({report.world_size for report in built.reports})
    found = " and ".join(map(str, sizes))
    declared = "" if plan.world_size is None else str(plan.world_size)
    answer, detail = Answer.OK, ""
    if len(sizes) > 1:
        answer, detail = Answer.NO, "ranks do not agree on how many they are"
    elif plan.world_size is not None and sizes != [plan.world_size]:
        answer = Answer.NO
        detail = "global batch and sharding follow from the world size that was validated"
    return Finding(
        subject="world size", answer=answer, declared=declared, found=found, detail=detail
    )


def _ranks(built: Built) -> Finding:
    expected = max(report.world_size for report in built.reports)
    told = {report.rank for report in built.reports}
    missing = sorted(set(range(expected)) - told)
    detail = "; ".join(built.problems)
    if missing:
        names = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        detail = "; ".join(filter(None, (f"nothing of rank {names}", detail)))
    return Finding(
        subject="ranks",
        answer=Answer.NOT_KNOWN if detail else Answer.OK,
        found=f"{len(told)} of {expected} have told",
        detail=detail,
    )


def _gpus(built: Built, plan: RunPlan) -> Iterator[Finding]:
    counts = sorted({r.local_gpus for r in built.reports if r.local_gpus is not None})
    if plan.gpus_per_node is None or not counts:
        return
    # A rank that was given one GPU of its own sees no other; then its node has one for each rank.
    own = counts == [1] and all(r.local_world_size == plan.gpus_per_node for r in built.reports)
    yield Finding(
        subject="GPUs",
        answer=Answer.OK if own or counts == [plan.gpus_per_node] else Answer.NO,
        declared=f"{plan.gpus_per_node} a node",
        found=" and ".join(map(str, counts)) + " seen by a rank",
    )


# ----------------------------------------------------------------------------------- sharding


def _sharding(built: Built, plan: RunPlan) -> Iterator[Finding]:
    declared = plan.built.shard_group_size
    for name in _names(built):
        modules = _of(built, name)
        sizes = sorted({m.shard_group_size for m in modules if m.shard_group_size is not None})
        if not sizes:
            yield Finding(
                subject="sharding",
                module=name,
                answer=Answer.OK if declared is None else Answer.NOT_KNOWN,
                declared="" if declared is None else str(declared),
                detail="it has no parameters",
            )
            continue
        answer = _sharding_answer(built, name, sizes, declared)
        yield Finding(
            subject="sharding",
            module=name,
            answer=answer,
            declared="" if declared is None else f"over {declared}",
            found=_sharding_found(modules, sizes),
            detail=_sharding_detail(built, modules, sizes, declared, answer),
        )


def _sharding_answer(built: Built, name: str, sizes: Sequence[int], declared: int | None) -> Answer:
    if len(sizes) > 1:
        return Answer.NO
    if declared is None:
        wrapped = any("DDP" not in m.wrapper and m.wrapper for m in _of(built, name))
        many = max(report.world_size for report in built.reports) > 1
        return Answer.CAUTION if sizes == [1] and wrapped and many else Answer.OK
    if _is_small(built, name):
        return Answer.OK
    return (
        Answer.OK
        if sizes == [declared] and not _much_off(_of(built, name), declared)
        else Answer.NO
    )


def _sharding_found(modules: Sequence[BuiltModule], sizes: Sequence[int]) -> str:
    wrapper = next((module.wrapper for module in modules if module.wrapper), "not wrapped")
    over = " and ".join(map(str, sizes))
    how = "replicated" if sizes == [1] else f"over {over}"
    return f"{how} ({wrapper})"


def _sharding_detail(
    built: Built,
    modules: Sequence[BuiltModule],
    sizes: Sequence[int],
    declared: int | None,
    answer: Answer,
) -> str:
    held = max(module.held_bytes for module in modules)
    if answer is Answer.OK:
        small = declared is not None and list(sizes) != [declared]
        return "too small to matter" if small else f"{format_bytes(held)} of parameters a rank"
    if len(sizes) > 1:
        return "ranks do not agree"
    whole = max(module.parameter_bytes for module in modules)
    if list(sizes) == [declared]:
        off = max(module.bytes_off(sizes[0]) for module in modules)
        return f"{format_bytes(off)} of {format_bytes(whole)} are sharded over another number"
    detail = f"each rank holds {format_bytes(held)} of {format_bytes(whole)}"
    if declared is not None and declared > sizes[0]:
        detail += f" instead of about {format_bytes(whole // declared)}"
    if sizes == [1] and (reason := _one_on_a_node(built, modules)):
        detail += f"; {reason}"
    return detail


def _one_on_a_node(built: Built, modules: Sequence[BuiltModule]) -> str:
    """Why a sharding wrapper replicates: its group is the ranks of a node, and those are one."""
    if not any(module.wrapper and "DDP" not in module.wrapper for module in modules):
        return ""
    on_node = [report.local_world_size for report in built.reports]
    if set(on_node) == {None}:
        nodes = [report.node for report in built.reports]
        on_node = [nodes.count(node) for node in nodes]
    if set(on_node) != {1}:
        return ""
    return (
        "each node has one rank, so a shard group within a node has one member: shard over all "
        "ranks, or over groups of nodes"
    )


def _much_off(modules: Sequence[BuiltModule], size: int) -> bool:
    return any(m.bytes_off(size) > SMALL_FRACTION * m.parameter_bytes for m in modules)


def _is_small(built: Built, name: str) -> bool:
    everything = sum(module.parameter_bytes for module in built.reports[0].modules.values())
    module = built.reports[0].modules.get(name)
    return module is not None and module.parameter_bytes <= SMALL_FRACTION * everything


# ------------------------------------------------------------------- activation checkpointing


def _checkpointing(built: Built, plan: RunPlan) -> Iterator[Finding]:
    declared = plan.built.activation_checkpointing
    names = _names(built)
    for name in (*names, *(name for name in declared if name not in names)):
        modules = _of(built, name)
        wanted = declared.get(name)
        if not modules:
            yield Finding(
                subject="activation checkpointing",
                module=name,
                answer=Answer.NOT_KNOWN,
                declared=_on(wanted),
                detail="no rank has told of this module",
            )
            continue
        found = {module.activation_checkpointing for module in modules}
        yield Finding(
            subject="activation checkpointing",
            module=name,
            answer=_checkpointing_answer(built, name, found, wanted),
            declared="" if wanted is None else _on(wanted),
            found=" and ".join(sorted({_on(value) for value in found})),
            detail=_checkpointing_detail(built, name, found, wanted),
        )


def _checkpointing_answer(
    built: Built, name: str, found: set[bool | None], wanted: bool | None
) -> Answer:
    if wanted is None:
        return Answer.CAUTION if found == {False} and _others_with(built, name) else Answer.OK
    if found == {wanted}:
        return Answer.OK
    return Answer.NOT_KNOWN if found <= {wanted, None} else Answer.NO


def _checkpointing_detail(
    built: Built, name: str, found: set[bool | None], wanted: bool | None
) -> str:
    how = next((module.how for module in _of(built, name) if module.how), "")
    others = _others_with(built, name)
    if found == {False} and others and wanted is not False:
        return f"{', '.join(others)} has it: a module that was built apart does not inherit it"
    return how


def _others_with(built: Built, name: str) -> list[str]:
    """Trainable modules other than this, if it is trainable, whose activations are recomputed."""
    if not any(module.trainable_bytes for module in _of(built, name)):
        return []
    return [
        other
        for other in _names(built)
        if other != name and any(m.activation_checkpointing for m in _of(built, other))
    ]


# ------------------------------------------------------------------------------------- memory


def _memory(built: Built) -> Iterator[Finding]:
    """An estimate of what the fullest rank holds between steps; activations come on top."""
    fullest = max(built.reports, key=_state_bytes)
    needed = _state_bytes(fullest)
    if not needed:
        return
    modules = fullest.modules.values()
    unknown = [name for name, module in fullest.modules.items() if _lacks_optimizer(module)]
    parts = {
        "parameters": sum(module.held_bytes for module in modules),
        "gradients": sum(module.trainable_bytes for module in modules),
        "optimizer state": sum(module.optimizer_bytes or 0 for module in modules),
    }
    detail = ", ".join(f"{format_bytes(count)} {what}" for what, count in parts.items() if count)
    if unknown:
        detail += f"; optimizer state of {', '.join(unknown)} not known"
    room = fullest.device_memory_bytes
    yield Finding(
        subject="memory",
        answer=Answer.CAUTION if room is not None and needed > room else Answer.OK,
        found=f"about {format_bytes(needed)} on rank {fullest.rank} before activations"
        + (f", of {format_bytes(room)}" if room is not None else ""),
        detail=detail,
    )


def _state_bytes(report: BuiltReport) -> int:
    return sum(module.state_bytes for module in report.modules.values())


def _lacks_optimizer(module: BuiltModule) -> bool:
    return bool(module.trainable_bytes) and module.optimizer_bytes is None


def _names(built: Built) -> list[str]:
    return list(dict.fromkeys(name for report in built.reports for name in report.modules))


def _of(built: Built, name: str) -> list[BuiltModule]:
    return [report.modules[name] for report in built.reports if name in report.modules]


def _on(value: bool | None) -> str:
    return {True: "on", False: "off", None: "not known"}[value]
