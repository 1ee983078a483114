"""The child of ``calibrate check``: loads torch and families' files, answers, and ends.

Run as ``python -m fleetcraft.cli.calibrate.probe QUESTION``; prints one JSON value. What a family's
file prints goes to stderr. Invariant: one part that breaks costs its own answer and no other.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec

import msgspec

from fleetcraft.calibration.family import Family, find_family
from fleetcraft.calibration.records import Check, Failure
from fleetcraft.cli.calibrate.answers import Answers, FamilyAnswer, Question
from fleetcraft.errors import FleetError, UsageError

NOISE_SHAPE = (4, 3, 5)
"""More than 16 elements a sample: of fewer, shared and separate generators can agree by luck."""
_WORDS = 300


def main(words: Sequence[str]) -> int:
    """Answers one question."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # whatever a family's file prints, stdout has the answer and nothing else
        question = msgspec.json.decode(words[0], type=Question)
        out.write(msgspec.json.encode(answer(question)) + b"\n")
    return 0


def answer(question: Question) -> Answers:
    """Everything that was asked, as far as it can be answered here."""
    answers = Answers()
    parts = set(question.parts)
    answers.families, found = _families(question.families)
    if not parts - {"identity"} or any(each.is_usage for each in answers.families):
        return answers
    if find_spec("torch") is None:
        answers.no_torch = "no module named torch"
        return answers
    from fleetcraft.calibration.sweep.timing import pick_device

    answers.device = pick_device(question.device)
    if "stack" in parts:
        _stack(answers)
    if "sdpa" in parts:
        _sdpa(answers)
    if "noise" in parts:
        answers.noise = _guarded("noise", partial(_noise, question, answers.device))
    if "family" in parts:
        answers.families = tuple(
            msgspec.structs.replace(
                each, checks=tuple(_own_checks(found[each.name], question, answers))
            )
            if each.name in found
            else each
            for each in answers.families
        )
    return answers


def _stack(answers: Answers) -> None:
    from fleetcraft.calibration.stack import describe_stack

    try:
        answers.environment = describe_stack(answers.device)
    except (FleetError, ImportError, OSError, RuntimeError) as error:
        answers.no_stack = _said(error)


def _sdpa(answers: Answers) -> None:
    from fleetcraft.calibration.checks.sdpa import usable_backends

    try:
        backends = usable_backends(answers.device)
    except Exception as error:
        answers.sdpa = {"any": Check(name="mask", ok=None, detail=_said(error))}
        return
    answers.not_usable = {name: reason for name, reason in backends.items() if reason}
    for name, reason in backends.items():
        if not reason:
            answers.sdpa[name] = _guarded("mask", partial(_poison, name, answers.device))


def _poison(backend: str, device: str) -> Check:
    from fleetcraft.calibration.checks.masks import poison_parity
    from fleetcraft.calibration.checks.sdpa import pinned, plain_attention

    with pinned(backend, device):
        found = poison_parity(plain_attention, device=device)
    failure = None if found.ok else Failure.MASK_DROPPED
    return Check(
        name="mask", ok=found.ok, failure=failure, detail=found.sentence(), measured=found.change
    )


def _noise(question: Question, device: str) -> Check:
    from fleetcraft.calibration.checks.batching import noise_difference
    from fleetcraft.calibration.trial.context import Context

    ctx = Context(batch=question.batch, device=device)
    sample, said = noise_difference(
        lambda samples: ctx.variant(batch=len(samples)).noise_for(samples, NOISE_SHAPE),
        ctx.samples,
    )
    failure = None if sample is None else Failure.NOISE_SHARED
    return Check(name="noise", ok=sample is None, failure=failure, detail=said)


def _families(names: Sequence[str]) -> tuple[tuple[FamilyAnswer, ...], dict[str, Family]]:
    """Who they are, and those that could be loaded."""
    answers, found = [], {}
    for name in names:
        try:
            family = find_family(name)
        except FleetError as error:
            is_usage = isinstance(error, UsageError)
            answers.append(
                FamilyAnswer(name=name, error=error.message, hint=error.hint, is_usage=is_usage)
            )
        except Exception as error:  # a user's own file: whatever it raises is the answer
            answers.append(FamilyAnswer(name=name, error=f"cannot import {name}: {_said(error)}"))
        else:
            found[name] = family
            answers.append(FamilyAnswer(name=name, key=family.key, identity=family.identity_hash))
    return tuple(answers), found


def _own_checks(family: Family, question: Question, answers: Answers) -> list[Check]:
    try:
        from fleetcraft.calibration.checks.run import run_checks
        from fleetcraft.calibration.trial.context import Context

        with tempfile.TemporaryDirectory(prefix="fleetcraft-check-") as folder:
            ctx = Context(batch=question.batch, device=answers.device, folder=folder)
            return run_checks(family, ctx)
    except Exception as error:
        return [Check(name="checks", ok=None, detail=_said(error))]


def _guarded(name: str, run: Callable[[], Check]) -> Check:
    try:
        return run()
    except Exception as error:  # the answer is then that there is none, with the reason
        return Check(name=name, ok=None, detail=_said(error))


def _said(error: Exception) -> str:
    text = error.message if isinstance(error, FleetError) else f"{type(error).__name__}: {error}"
    return text.partition("\n")[0][:_WORDS]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
