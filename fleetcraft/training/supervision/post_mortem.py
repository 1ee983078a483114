"""How a launch died that nobody has seen die, from what it left: ends, logs, error files.

Reads; decides nothing about another launch. Invariant: a launch that never began has died of
nothing, and one that left no explanation has not ended well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from fleetcraft.training.diagnosing.classify import diagnose, read_logs
from fleetcraft.training.records import Crash, Diagnosis, Evidence, LogFence, NodeEnd, Source
from fleetcraft.training.supervision.slurm_word import NO_STEP, SlurmWord


@dataclass(frozen=True, slots=True, kw_only=True)
class PostMortem:
    """What was found.

    Attributes:
        diagnosis: Its class; NONE for a launch that never began, was stopped on order, or ended
            well.
        ended_well: It ended with 0 by itself, and no other end is declared.
        slurm: What Slurm said.
    """

    diagnosis: Diagnosis
    ended_well: bool = False
    slurm: SlurmWord = NO_STEP


def look_at_the_dead(
    ends: Sequence[NodeEnd],
    logs: Sequence[str],
    fences: Sequence[LogFence],
    errors: Sequence[str],
    *,
    end_declared: bool,
    why: str,
    slurm: SlurmWord = NO_STEP,
) -> PostMortem:
    """Says how a launch of which nothing lives has ended.

    Args:
        ends: What its keepers have told.
        logs: Where its logs lie now.
        fences: Lines before them never count.
        errors: What torchrun's ranks left.
        end_declared: Whether the run declares an end, so that an exit with 0 alone is none.
        why: The sentence for an end that nothing explains.
        slurm: What Slurm says of the step that it was.
    """
    if not ends and not logs:
        return PostMortem(diagnosis=Diagnosis())
    try:
        episodes, step, notes = read_logs(logs, fences=fences)
    except OSError as error:
        return PostMortem(diagnosis=unexplained(Diagnosis(), f"its logs cannot be read: {error}"))
    found = diagnose(
        episodes=episodes,
        ends=ends,
        slurm_state=slurm.cause,
        slurm_exit=slurm.exit_code,
        error_files=errors,
        step=step,
    )
    if ends and any(end.told_to_stop for end in ends):
        return PostMortem(diagnosis=found if found.episode_open else Diagnosis())
    # Nothing of it lives, so what its keepers could not end in time has ended since.
    well = bool(ends) and all(end.exit_code == 0 for end in ends)
    if well and not end_declared:
        return PostMortem(diagnosis=Diagnosis(step=step), ended_well=True)
    if found.crash is Crash.NONE or not found.episode_open:
        found = unexplained(found, "; ".join([why, *notes]))
    return PostMortem(diagnosis=found, slurm=slurm)


def unexplained(found: Diagnosis, why: str) -> Diagnosis:
    """A run that ended or stands although nothing that is known has killed it."""
    reason = Evidence(source=Source.SILENCE, crash=Crash.UNKNOWN, text=why)
    return msgspec.structs.replace(
        found, crash=Crash.UNKNOWN, episode_open=True, evidence=(reason, *found.evidence)
    )
