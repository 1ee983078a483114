"""What a rank tells of its modules: torch's own wrappers, for real, on two ranks over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.training.plan.built import Built, BuiltModule, BuiltReport, read_built

torch = pytest.importorskip("torch")

from fleetcraft.training.plan.inspection import (  # noqa: E402  after torch is known to be there
    inspect_module,
    report_built,
)

# Two ranks load torch once for all tests here, and not once in each of pytest's processes.
pytestmark = pytest.mark.xdist_group("inspection")
REPO = Path(__file__).resolve().parents[3]
SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from fleetcraft.training.plan.inspection import report_built

child = os.fork()  # of one that has torch loaded: loading it is most of the work
rank = 0 if child else 1
meeting = "file://" + sys.argv[1]
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
flat = init_device_mesh("cpu", (2,), mesh_dim_names=("all",))
# Hybrid sharding on nodes with one GPU: two replicas, and shard groups of one rank.
hybrid = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))

def model():
    return nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))

policy = model()
policy[0] = checkpoint_wrapper(policy[0])
optimizer = torch.optim.AdamW(policy.parameters())
older = FullyShardedDataParallel(
    model(), device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy.FULL_SHARD
)
noop = FullyShardedDataParallel(
    model(), device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy.NO_SHARD
)
kept = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
partly = model()
fully_shard(partly[0], mesh=flat)
told = report_built(
    {
        "policy": fully_shard(policy, mesh=flat),
        "hybrid": fully_shard(model(), mesh=hybrid),
        "critic": nn.parallel.DistributedDataParallel(model()),
        "older": older,
        "noop": noop,
        "kept": kept,
        "partly": partly,
        "plain": model().requires_grad_(False).to(torch.bfloat16),
    },
    mesh=hybrid,
    optimizers={"policy": optimizer},
)
dist.destroy_process_group()
assert child == 0 or os.waitpid(child, 0)[1] == 0
sys.exit(0 if told else 5)
"""
ELEMENTS = 2 * 64 * 64


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """What two real ranks have told."""
    folder = tmp_path_factory.mktemp("ranks")
    paths = AttemptPaths(str(folder))
    os.mkdir(paths.built)
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder / "meeting")],
        env={
            **os.environ,
            "PYTHONPATH": str(REPO),
            "OMP_NUM_THREADS": "1",
            "LOCAL_WORLD_SIZE": "1",
            "FLEET_TRAIN_BUILT": paths.built,
        },
        timeout=100,
        check=True,
    )
    return read_built(paths)


def test_every_rank_tells_where_it_is(built: Built) -> None:
    assert built.is_whole
    assert [report.rank for report in built.reports] == [0, 1]
    for report in built.reports:
        assert report.world_size == 2
        assert report.local_world_size == 1
        assert report.local_gpus is None  # the script has not begun to use any
        assert report.device == "cpu"
        assert report.device_memory_bytes is None
        assert report.mesh == {"replicate": 2, "shard": 1}
        assert report.torch == torch.__version__


def test_fully_shard_over_both_ranks_holds_half_on_each(built: Built) -> None:
    for report in built.reports:
        policy = report.modules["policy"]
        assert (policy.wrapper, policy.shard_group_size, policy.replicas) == ("fully_shard", 2, 1)
        assert policy.parameters == ELEMENTS
        assert policy.held_parameters == ELEMENTS // 2
        assert policy.held_bytes == policy.trainable_bytes == ELEMENTS // 2 * 4
        assert policy.optimizer_bytes == 2 * policy.held_bytes
        assert policy.dtypes == {"float32": ELEMENTS // 2 * 4}


def test_hybrid_sharding_with_groups_of_one_rank_is_replication(built: Built) -> None:
    for report in built.reports:
        hybrid = report.modules["hybrid"]
        assert (hybrid.wrapper, hybrid.shard_group_size, hybrid.replicas) == ("fully_shard", 1, 2)
        assert hybrid.held_parameters == ELEMENTS


def test_the_older_fsdp_tells_its_group_and_its_whole_size(built: Built) -> None:
    for report in built.reports:
        older = report.modules["older"]
        assert (older.wrapper, older.shard_group_size) == ("FSDP FULL_SHARD", 2)
        assert older.parameters == ELEMENTS
        assert older.held_parameters == ELEMENTS // 2
        kept = report.modules["kept"]
        assert (kept.wrapper, kept.shard_group_size) == ("FSDP FULL_SHARD", 2)
        assert (kept.parameters, kept.held_parameters) == (ELEMENTS, ELEMENTS // 2)
        noop = report.modules["noop"]
        assert (noop.wrapper, noop.shard_group_size) == ("FSDP NO_SHARD", 1)
        assert noop.held_parameters == noop.parameters == ELEMENTS


def test_a_module_of_which_a_part_was_left_whole_tells_how_much(built: Built) -> None:
    partly = built.reports[0].modules["partly"]

    assert partly.shard_bytes == {1: ELEMENTS // 2 * 4, 2: ELEMENTS // 2 * 4}
    assert partly.bytes_off(2) == ELEMENTS // 2 * 4


def test_data_parallel_and_plain_modules_are_held_whole(built: Built) -> None:
    critic = built.reports[1].modules["critic"]
    assert (critic.wrapper, critic.shard_group_size, critic.replicas) == ("DDP", 1, 2)
    plain = built.reports[1].modules["plain"]
    assert (plain.wrapper, plain.shard_group_size, plain.trainable_bytes) == ("", 1, 0)
    assert plain.dtypes == {"bfloat16": ELEMENTS * 2}


def test_a_checkpoint_wrapper_is_seen_and_its_absence_too(built: Built) -> None:
    modules = built.reports[0].modules

    assert modules["policy"].activation_checkpointing is True
    assert modules["policy"].how == "1 checkpoint wrappers"
    assert modules["critic"].activation_checkpointing is False
    assert modules["critic"].how == "no sign of it"


class Flagged(torch.nn.Module):  # type: ignore[misc, name-defined]
    """As models of transformers carry it."""

    gradient_checkpointing = True


class Conditional(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Its code can recompute; whether it does depends."""

    def forward(self, x: object) -> object:
        return torch.utils.checkpoint.checkpoint(self.inner, x) if self.training else x


class Ordinary(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: object) -> object:
        return x


def test_a_flag_of_a_model_is_seen() -> None:
    model = torch.nn.Sequential(Flagged(), torch.nn.Linear(2, 2))

    found = inspect_module(model)

    assert found.activation_checkpointing is True
    assert "gradient_checkpointing on" in found.how


def test_the_composable_form_is_seen() -> None:
    from torch.distributed._composable import checkpoint

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    checkpoint(model[0])

    assert inspect_module(model).activation_checkpointing is True


def test_code_that_can_recompute_is_not_known_to_do_so() -> None:
    found = inspect_module(torch.nn.Sequential(Conditional(), Ordinary()))

    assert found.activation_checkpointing is None
    assert "Conditional" in found.how
    assert inspect_module(Ordinary()).activation_checkpointing is False


def test_a_module_without_parameters_has_no_shard_group() -> None:
    assert inspect_module(torch.nn.ReLU()) == BuiltModule(
        activation_checkpointing=False, how="no sign of it"
    )


def test_shared_parameters_are_counted_once() -> None:
    layer = torch.nn.Linear(4, 4, bias=False)

    assert inspect_module(torch.nn.Sequential(layer, layer)).parameters == 16


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (lambda p: torch.optim.SGD(p, lr=1.0), 0),
        (lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9), 1),
        (lambda p: torch.optim.RMSprop(p, momentum=0.9), 2),
        (torch.optim.Adam, 2),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3),
        (torch.optim.Adagrad, 1),
        (torch.optim.LBFGS, None),
    ],
)
def test_the_estimate_of_optimizer_state_is_what_the_optimizer_really_makes(
    make: object, states: int | None
) -> None:
    layer = torch.nn.Linear(8, 8, bias=False)
    optimizer = make(layer.parameters())  # type: ignore[operator]

    found = inspect_module(layer, optimizer=optimizer)

    assert found.optimizer_bytes == (None if states is None else states * 64 * 4)
    if states is not None:
        layer(torch.ones(8)).sum().backward()
        optimizer.step()
        made = [
            value.numel() * value.element_size()
            for state in optimizer.state.values()
            for value in state.values()
            if torch.is_tensor(value) and value.numel() == 64
        ]
        assert sum(made) == found.optimizer_bytes


def test_outside_a_run_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEET_TRAIN_BUILT", raising=False)

    assert report_built({"m": torch.nn.Linear(2, 2)}) is False


def test_a_full_disk_does_not_fail_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(FileSystem):
        def create(
            self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False
        ) -> None:
            raise OSError(28, "No space left on device", path)

    monkeypatch.setenv("FLEET_TRAIN_BUILT", str(tmp_path))

    assert report_built({"m": torch.nn.Linear(2, 2)}, fs=Full()) is False


def test_ranks_that_are_started_again_tell_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = AttemptPaths(str(tmp_path))
    os.mkdir(paths.built)
    monkeypatch.setenv("FLEET_TRAIN_BUILT", paths.built)

    assert report_built({"m": torch.nn.Linear(2, 2)})
    assert report_built({"m": torch.nn.Linear(3, 3)})

    (report,) = read_built(paths).reports
    assert report.modules["m"].parameters == 12
    assert os.listdir(paths.built) == ["rank-00000.json"]


def test_a_preflight_ends_the_process_once_it_has_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEET_PREFLIGHT", "1")
    monkeypatch.setenv("FLEET_TRAIN_BUILT", str(tmp_path))
    with pytest.raises(SystemExit) as told:
        report_built({"m": torch.nn.Linear(2, 2)})
    monkeypatch.setenv("FLEET_TRAIN_BUILT", str(tmp_path / "nowhere"))
    with pytest.raises(SystemExit) as not_told:
        report_built({"m": torch.nn.Linear(2, 2)})

    assert (told.value.code, not_told.value.code) == (0, 1)
    assert "could not be told: FileNotFoundError" in capsys.readouterr().err


def test_files_that_are_no_reports_are_named(tmp_path: Path) -> None:
    paths = AttemptPaths(str(tmp_path))
    os.mkdir(paths.built)
    report = BuiltReport(schema="fleetcraft.train-built/1", rank=0, world_size=2)
    Path(paths.built_file(0)).write_bytes(msgspec.json.encode(report))
    Path(paths.built_file(1)).write_bytes(msgspec.json.encode(report))  # of another rank
    Path(paths.built_file(2)).write_bytes(b"{")
    Path(paths.built, "rank-00003.json.tmp").write_bytes(b"")
    os.mkdir(paths.built_file(4))

    found = read_built(paths)

    assert [one.rank for one in found.reports] == [0]
    assert [problem.split()[0] for problem in found.problems] == [
        "rank-00001.json", "rank-00002.json", "rank-00004.json",
    ]  # fmt: skip
    assert not found.is_whole
    assert read_built(AttemptPaths(str(tmp_path / "nowhere"))) == Built()
