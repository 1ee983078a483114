"""Result records as tests make them, and the room that holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleetcraft.evidence.results.sets import SCHEMA, Result, put, stack_digest
from fleetcraft.layout.evidence import EvidencePaths

_numbers = iter(range(1, 1 << 40))


def result(arm: str = "full", seed: int = 0, score: float | None = 0.5, **more: Any) -> Result:
    """One record with a nonce of its own."""
    metrics = {} if score is None else {"score": score}
    stack = more.get("stack", {})
    facts = {"metrics": metrics, "stack_sha256": stack_digest(stack), "timed": False, **more}
    facts.setdefault("nonce", f"n{next(_numbers)}")
    return Result(schema=SCHEMA, arm=arm, seed=seed, **facts)


def room(tmp_path: Path) -> EvidencePaths:
    """An evidence room in a scratch tree that is only a folder."""
    (tmp_path / "root").mkdir(parents=True, exist_ok=True)
    return EvidencePaths(str(tmp_path / "root" / "evidence"))


def fill(paths: EvidencePaths, set_name: str, *results: Result, writer: str = "w") -> Path:
    """Appends records; the path of their file."""
    path = ""
    for each in results:
        path = put(paths.folder, set_name, each, writer=writer)
    return Path(path)
