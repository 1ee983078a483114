"""What changed since the last healthy epoch."""

from __future__ import annotations

from typing import Any

from fleetcraft.training.diagnosing.changes import ChangeKind, changes
from fleetcraft.training.records import EPOCH_SCHEMA, Epoch, EpochKind, Knob


def epoch(**fields: Any) -> Epoch:
    known: dict[str, Any] = {
        "schema": EPOCH_SCHEMA,
        "number": 1,
        "generation": 1,
        "run": "distill",
        "kind": EpochKind.LAUNCHED,
        "attempt": 1,
        "nonce": "n",
        "at": "2026-03-01T12:00:00Z",
        "why": "first",
        "command": ("torchrun", "train.py"),
        "command_sha256": "c",
        "environment_sha256": "e",
    }
    return Epoch(**{**known, **fields})


def _knob(value: int) -> Knob:
    return Knob(name="micro_batch", value=value, floor=8, quantum=8)


def test_an_epoch_does_not_differ_from_itself() -> None:
    whole = epoch(stack={"torch": "2.8"}, data={"mean_length": 1}, knobs=(_knob(32),), world_size=4)
    assert changes(whole, whole) == ()


def test_the_changes_of_the_second_seed() -> None:
    healthy = epoch(stack={"torch": "2.7.0", "python": "3.12"}, data={"mean_length": 1000.0})
    now = epoch(
        number=2,
        stack={"torch": "2.8.0", "python": "3.12", "a": "1", "b": "2", "c": "3"},
        data={"mean_length": 1370.0},
    )
    texts = [one.text for one in changes(healthy, now)]
    assert texts == [
        "torch: 2.7.0 to 2.8.0",
        "a: added, 1",
        "b: added, 2",
        "c: added, 3",
        "mean length: 1,000.0 to 1,370.0, up 37 percent",
    ]


def test_knobs_size_command_environment_and_caches_are_compared() -> None:
    healthy = epoch(
        knobs=(_knob(32),), world_size=3, nodes=3, cache_roots={"TRITON_CACHE_DIR": "/a"}
    )
    now = epoch(
        number=2,
        knobs=(_knob(24),),
        world_size=4,
        nodes=4,
        command=("torchrun", "train.py", "--compile"),
        environment_sha256="f",
        cache_roots={"TRITON_CACHE_DIR": "/b"},
    )
    found = changes(healthy, now)
    assert [one.kind for one in found] == [
        ChangeKind.KNOB, ChangeKind.WORLD, ChangeKind.WORLD, ChangeKind.COMMAND,
        ChangeKind.ENVIRONMENT, ChangeKind.ENVIRONMENT,
    ]  # fmt: skip
    assert found[0].percent == -25.0
    assert "with --compile" in found[3].text


def test_what_one_of_them_does_not_tell_is_no_difference() -> None:
    healthy = epoch(stack={"torch": "2.7"}, data={"samples": 5, "digest": "a"}, world_size=4)
    now = epoch(number=2, data={"tokens": 7, "digest": "a"})
    assert changes(healthy, now) == ()


def test_a_package_that_is_gone_and_a_number_from_zero() -> None:
    healthy = epoch(stack={"torch": "2.7", "apex": "1"}, data={"dropped": 0, "digest": "a"})
    now = epoch(number=2, stack={"torch": "2.7"}, data={"dropped": 3, "digest": "b"})
    found = changes(healthy, now)
    assert [(one.text, one.percent) for one in found] == [
        ("apex: removed, 1", None),
        ("digest: a to b", None),
        ("dropped: 0 to 3", None),
    ]
