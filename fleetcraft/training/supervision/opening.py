"""The record of an epoch that a launch opens: what is launched, why, with which settings and stack.

Makes the record; publishing it is `launching.epochs`'. Invariant: it says what the supervisor gave
to the command, and nothing of this process's own environment but where its caches are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.identity import new_launch_token, sha256_hex
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.plan.stack import collect_stack
from fleetcraft.training.records import EPOCH_SCHEMA, Epoch, EpochKind
from fleetcraft.training.supervision.deciding import Decision

_CACHES = (
    "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH",
    "HF_HOME", "XDG_CACHE_HOME", "TORCH_HOME",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a launch is about.

    Attributes:
        number: Of the epoch, and of its attempt.
        generation: Of the lock.
        why: Why it is launched.
        given: The variables that the supervisor gives.
        nodes: Of its step.
    """

    number: int
    generation: int
    why: str
    given: Mapping[str, str]
    nodes: int


def launched_epoch(
    plan: RunPlan, decision: Decision, opening: Opening, environ: Mapping[str, str]
) -> Epoch:
    """The record of a launch.

    Args:
        plan: The run.
        decision: What it tries; it has a rung.
        opening: What it is about.
        environ: The environment to which the given variables are added.
    """
    assert decision.rung is not None
    given = dict(sorted(opening.given.items()))
    environ = {**environ, **given}
    return Epoch(
        schema=EPOCH_SCHEMA,
        number=opening.number,
        generation=opening.generation,
        run=plan.run,
        kind=EpochKind.LAUNCHED,
        attempt=opening.number,
        nonce=new_launch_token(),
        at=timestamp(),
        why=opening.why,
        command=plan.command,
        command_sha256=_digest(list(plan.command)),
        environment_sha256=_digest(given),
        nodes=opening.nodes,
        world_size=plan.world_size,
        rung=decision.rung,
        knobs=decision.knobs,
        stack=collect_stack(
            plan.packages, command=plan.command, environ=environ, directory=plan.directory
        ),
        data=plan.data,
        cache_roots={name: environ[name] for name in _CACHES if name in environ},
    )


def _digest(value: object) -> str:
    return sha256_hex(msgspec.json.encode(value))
