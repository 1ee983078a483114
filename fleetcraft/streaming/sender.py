"""The process that talks to W&B: orders come in on stdin, one answer each goes out on stdout.

A process of its own, since a library that waits for a service cannot be interrupted: whoever gave
the orders kills it when an answer is late. It keeps nothing. At the end of its orders it finishes
every run. Invariant: nothing is sent but the rows, words and facts that came with an order; neither
the machine, its environment, code nor console output is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

_SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")
_SECRET_AT_LEAST = 6
_MOST_TEXT = 500
_LOOK_S = 0.05


class _Run(Protocol):
    step: int
    summary: Any
    config: Any

    def log(self, data: Mapping[str, Any], *, step: int, commit: bool) -> None: ...

    def define_metric(self, name: str, *, step_metric: str, step_sync: bool) -> object: ...

    def finish(self, exit_code: int) -> None: ...


class Sender:
    """Carries out orders, one run of W&B for each stream."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._files: dict[str, tuple[str, str, int]] = {}

    def do(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carries out one order.

        Returns:
            What was found.

        Raises:
            Exception: Whatever the library raises.
        """
        name = order["stream"]
        match order["do"]:
            case "open":
                return {"next_row": self._open(name, order)}
            case "rows":
                run = self._runs[name]
                for number, row in enumerate(order["rows"], order["first"]):
                    run.log(row, step=number, commit=True)
            case "standing":
                self._runs[name].summary.update(order["values"])
                self._runs[name].config.update(order["config"], allow_val_change=True)
            case "close":
                self._runs.pop(name).finish(exit_code=order["exit_code"])
                return self._written(name, order["next_row"], order["within_s"])
        return {}

    def _written(self, name: str, next_row: int, within_s: float) -> dict[str, Any]:
        """Up to which row the offline files hold a run that was finished.

        The library returns before its last rows are there, and says nothing when they cannot be
        written, as on a full disk.
        """
        if name not in self._files:
            return {}
        from fleetcraft.streaming.offline_files import rows_held

        folder, run_id, held = self._files.pop(name)
        deadline = time.monotonic() + within_s
        while True:
            held = max(held, rows_held(folder, run_id, newest=True))
            if held >= next_row or time.monotonic() > deadline:
                return {"next_row": held}
            time.sleep(_LOOK_S)

    def close_all(self) -> None:
        """Finishes what is open."""
        while self._runs:
            self._runs.popitem()[1].finish(exit_code=0)

    def _open(self, name: str, order: Mapping[str, Any]) -> int:
        import wandb

        offline = order["offline"]
        held = 0
        if offline:
            from fleetcraft.streaming.offline_files import rows_held

            held = rows_held(order["folder"], order["id"])
            self._files[name] = (order["folder"], order["id"], held)
            _wait_for_a_new_name(order["folder"], order["id"])
        run: Any = wandb.init(
            id=order["id"],
            name=order["name"],
            project=order["project"],
            entity=order["entity"] or None,
            config=order["config"],
            job_type=order["kind"],
            dir=order["folder"],
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(**_settings(order, wandb.Settings)),
        )
        if step_key := order["step_key"]:
            # Not synchronized: a row without a step of its own would be given one, and 0 at first.
            run.define_metric("*", step_metric=step_key, step_sync=False)
        self._runs[name] = run
        return held if offline else int(run.step)


def _wait_for_a_new_name(folder: str, run_id: str) -> None:
    # W&B names its folders by the second, and would write over the file of one that is there.
    while Path(folder, "wandb", time.strftime(f"offline-run-%Y%m%d_%H%M%S-{run_id}")).exists():
        time.sleep(0.05)


def _settings(order: Mapping[str, Any], known: Any) -> dict[str, Any]:
    wanted = {
        "mode": "offline" if order["offline"] else "online",
        "silent": True,
        "console": "off",
        "init_timeout": order["init_timeout_s"],
        "finish_timeout": order["finish_timeout_s"],
        "finish_timeout_raises": True,
        "disable_git": True,
        "disable_code": True,
        "save_code": False,
        "disable_job_creation": True,
        "symlink": False,
        "host": "fleetcraft",
        "x_disable_stats": True,
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
        "x_transaction_log_flush_interval": 2.0,  # of 15: what is not there is sent again
    }
    # Older releases lack some; those are given up, and so is what they would have turned off.
    fields = getattr(known, "model_fields", wanted)
    return {name: value for name, value in wanted.items() if name in fields}


def safe_text(error: BaseException, environ: Mapping[str, str]) -> str:
    """What an error says, cut, without any value of a variable that seems to be a secret."""
    text = f"{type(error).__name__}: {error}"
    for name, value in environ.items():
        is_secret = any(part in name.upper() for part in _SECRET_NAMES)
        if is_secret and len(value) >= _SECRET_AT_LEAST:
            text = text.replace(value, "[removed]")
    return " ".join(text.split())[:_MOST_TEXT]


def serve(orders: TextIO, answers: TextIO) -> None:
    """Answers orders until there are no more, then finishes every run."""
    sender = Sender()
    for line in orders:
        try:
            answer = {"ok": True, **sender.do(json.loads(line))}
        except Exception as error:  # whatever the library raises is an answer, not our end
            answer = {"ok": False, "error": safe_text(error, os.environ)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    sender.close_all()


def main() -> None:
    """Serves this process's stdin; what the library prints or asks for goes nowhere."""
    orders = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    serve(orders, answers)


if __name__ == "__main__":
    main()
