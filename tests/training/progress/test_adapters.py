"""Adapters of frameworks: real torch and accelerate on the CPU, Lightning where it is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.training.progress import writing
from fleetcraft.training.progress.adapters.lightning import progress_callback
from fleetcraft.training.progress.reading import ProgressReader
from fleetcraft.training.records import RankProgress

_RANKS = ("RANK", "SLURM_PROCID")
TORCH = """
import torch
from fleetcraft.training.progress.adapters.pytorch import ProgressOptimizer
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
progress = ProgressOptimizer(optimizer, start=600, name="policy", loss_every=2)
for micro in range(8):                      # two micro steps a step
    loss = model(torch.ones(3, 4)).square().mean()
    loss.backward()
    progress.note(loss=loss, tokens=12, queues={"q": (1, 2)}, metrics={"micro": micro})
    if micro % 2:
        optimizer.step()
        optimizer.zero_grad()
progress.close()
optimizer.step()
"""
ACCELERATE = """
import os
import torch
os.environ["SLURM_PROCID"] = "1"            # a file of its own
from accelerate import Accelerator
from fleetcraft.training.progress.adapters.accelerate import report_accelerated
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
progress = report_accelerated(optimizer, start=10)
for micro in range(6):
    with accelerator.accumulate(model):
        loss = model(torch.ones(3, 4)).square().mean()
        accelerator.backward(loss)
        progress.note(loss=loss, tokens=12)
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FLEET_PROGRESS", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for variable in _RANKS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(writing, "_told", writing._Told())
    return tmp_path


def look(folder: Path, rank: int = 0) -> RankProgress:
    reader = ProgressReader(str(folder))
    seen = reader.look()[rank]
    assert (reader.trouble, dict(reader.rejected)) == ("", {})
    return seen


def needs(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


@pytest.fixture(scope="module")
def frameworks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What real torch and, where it is installed, real accelerate report: one process for both."""
    needs("torch")
    folder = tmp_path_factory.mktemp("progress")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in _RANKS},
        "FLEET_PROGRESS": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    script = TORCH + (ACCELERATE if importlib.util.find_spec("accelerate") else "")
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    return folder


def test_a_torch_optimizer_reports_its_steps_and_not_its_micro_steps(frameworks: Path) -> None:
    rank = look(frameworks)
    assert (rank.first_step, rank.step, rank.tokens, rank.name) == (601, 604, 96, "policy")
    assert rank.loss is not None
    assert rank.loss > 0
    assert (rank.queues, rank.metrics) == ({"q": (1, 2)}, {"micro": 7.0})
    assert (frameworks / "rank-00000.jsonl").read_text().count('"loss"') == 2  # every second step


def test_accelerates_optimizer_reports_only_steps_at_which_gradients_are_in_step(
    frameworks: Path,
) -> None:
    needs("accelerate")
    rank = look(frameworks, 1)
    assert (rank.first_step, rank.step, rank.tokens) == (11, 13, 72)
    assert rank.loss is not None


def test_adapters_import_no_framework(folder: Path) -> None:
    script = (
        "import sys\n"
        "from fleetcraft.training.progress.adapters import accelerate, lightning, pytorch\n"
        "sys.exit('torch' in sys.modules or 'accelerate' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_callback_reports_when_the_global_step_has_grown(folder: Path) -> None:
    callback = progress_callback(
        tokens_per_batch=32, queues=lambda: {"q": 3}, metrics=("accuracy", "none"), name="policy"
    )
    trainer = types.SimpleNamespace(global_step=40, callback_metrics={"accuracy": 0.5})
    callback.setup(trainer, None, "fit")
    assert look(folder).phase == "load"
    callback.on_validation_start(trainer, None)
    assert look(folder).phase == "eval"
    callback.on_validation_end(trainer, None)
    callback.on_train_start(trainer, None)
    for batch in range(4):
        trainer.global_step = 40 + (batch + 1) // 2
        callback.on_train_batch_end(trainer, None, {"loss": 0.25}, None, batch)
    rank = look(folder)
    assert (rank.phase, rank.first_step, rank.step, rank.tokens) == ("", 41, 42, 128)
    assert (rank.loss, rank.queues, rank.metrics) == (0.25, {"q": (3, None)}, {"accuracy": 0.5})


def test_a_callback_that_fails_in_a_phase_leaves_it(folder: Path) -> None:
    callback = progress_callback()
    callback.on_validation_start(types.SimpleNamespace(), None)
    callback.on_exception(types.SimpleNamespace(), None, RuntimeError())
    assert look(folder).phase == ""


@pytest.mark.filterwarnings("default")  # Lightning warns of itself
def test_a_real_lightning_trainer_reports_through_the_callback(folder: Path) -> None:
    needs("torch", "lightning")
    torch: Any = importlib.import_module("torch")
    lightning: Any = importlib.import_module("lightning.pytorch")

    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=1)
    trainer = lightning.Trainer(
        max_epochs=1, accumulate_grad_batches=2, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[progress_callback(tokens_per_batch=4)],
    )  # fmt: skip
    trainer.fit(Model(), data)
    rank = look(folder)
    assert (rank.first_step, rank.step, rank.tokens, rank.phase) == (1, 4, 32, "")
