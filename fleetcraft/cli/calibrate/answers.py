"""What the child of ``calibrate check`` is asked and answers: one JSON value each way.

Invariant: a question that could not be answered has a reason in place of an answer.
"""

from __future__ import annotations

import msgspec

from fleetcraft.calibration.records import Check, Environment


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """See `fleetcraft.cli.calibrate.asking.ask`."""

    families: list[str]
    parts: list[str]
    device: str
    batch: int


class FamilyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One family.

    Attributes:
        name: As it was asked for.
        key: Its key.
        identity: Its identity hash.
        checks: Its own semantic checks.
        error: Why it could not be loaded; empty when it was.
        hint: What to do about that.
        is_usage: Whether what was typed is to blame.
    """

    name: str
    key: str = ""
    identity: str = ""
    checks: tuple[Check, ...] = ()
    error: str = ""
    hint: str = ""
    is_usage: bool = False


class Answers(msgspec.Struct, kw_only=True):
    """Everything that was learnt.

    Attributes:
        device: Where it was asked.
        environment: Device and stack; None when they were not asked for.
        no_stack: Why they are not known.
        sdpa: Poison-key parity by attention backend.
        not_usable: Attention backends that cannot run here, with the reason.
        noise: Parity of the rule by which samples draw noise.
        families: One for each that was asked for.
        no_torch: Why torch cannot be imported; empty when it can.
    """

    device: str = ""
    environment: Environment | None = None
    no_stack: str = ""
    sdpa: dict[str, Check] = {}
    not_usable: dict[str, str] = {}
    noise: Check | None = None
    families: tuple[FamilyAnswer, ...] = ()
    no_torch: str = ""
