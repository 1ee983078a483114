"""A W&B of our own, for what the real one cannot be made to do: hang, fail, forget.

What it was given lies in the folder that ``STUB_WANDB`` names, which is the service; ``STUB_HANG``
and ``STUB_FAIL`` name the call that hangs or fails. A row of the service is kept once its run was
finished, or at once where ``STUB_KEEPS`` is set.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def _service() -> Path:
    return Path(os.environ["STUB_WANDB"])


def _maybe(call: str) -> None:
    if os.environ.get("STUB_HANG") == call:
        (_service() / "hangs").touch()
        time.sleep(600)
    if os.environ.get("STUB_FAIL") == call:
        raise RuntimeError(f"{call} failed with {os.environ.get('WANDB_API_KEY')}")
    if os.environ.get("STUB_DENIED") == call:
        raise RuntimeError("No API key configured. Use `wandb login` to log in.")


class Settings:
    def __init__(self, **values: Any) -> None:
        self.values = values


class Run:
    def __init__(self, run_id: str) -> None:
        self._path = _service() / f"{run_id}.jsonl"
        self._rows: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.config = self
        held = self._path.read_text().splitlines() if self._path.exists() else []
        self.step = len(held)

    def define_metric(self, name: str, *, step_metric: str, step_sync: bool) -> None:
        del name, step_metric, step_sync

    def update(self, values: Any, **how: Any) -> None:
        del values, how

    def log(self, data: dict[str, Any], *, step: int, commit: bool) -> None:
        assert commit
        _maybe("log")
        print("noise on stdout that is no answer")
        self._rows.append({**data, "_step": step})
        if os.environ.get("STUB_KEEPS"):
            self._keep()

    def _keep(self) -> None:
        with self._path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in self._rows)
        self._rows = []

    def finish(self, exit_code: int) -> None:
        _maybe("finish")
        self._keep()
        with (_service() / "finished").open("a") as file:
            file.write(f"{exit_code}\n")


def init(**how: Any) -> Run:
    _maybe("init")
    settings = how.pop("settings").values
    with (_service() / "inits.jsonl").open("a") as file:
        file.write(json.dumps({**how, "settings": settings, "environ": dict(os.environ)}) + "\n")
    return Run(how["id"])
