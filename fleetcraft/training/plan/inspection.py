"""Called by a training script once its modules are built: says what they really are.

The one module of this package that imports torch, inside functions. Invariant: it changes no
module, starts no collective, initialises no device, and never fails the run: what cannot be told
is not told. A preflight ends the process here, which is what it was started for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.training.launching.order import BUILT
from fleetcraft.training.plan.built import SCHEMA, BuiltModule, BuiltReport

if TYPE_CHECKING:
    import torch

PREFLIGHT = "FLEET_PREFLIGHT"
"""Set for a launch that is only to show what is built: the process exits once it has told."""

_FSDP = "FullyShardedDataParallel"
_DDP = "DistributedDataParallel"
# States that an optimizer keeps for each element, in the parameters' own type.
# Source: the state dictionaries of torch.optim 2.13.
_STATES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adagrad": 1, "Rprop": 2}


def report_built(
    models: Mapping[str, torch.nn.Module],
    *,
    mesh: Any = None,
    optimizers: Mapping[str, torch.optim.Optimizer] | None = None,
    fs: FileSystem | None = None,
) -> bool:
    """Tells what this rank has built; once, after wrapping and before the first step.

    Outside a supervised run it does nothing, so that the same script runs anywhere.

    Args:
        models: The modules by the names that the run file uses, such as ``policy`` and ``critic``.
        mesh: The device mesh, if the script has one.
        optimizers: Optimizers by the same names, for the estimate of their state.
        fs: The seam.

    Returns:
        Whether it was written.

    Raises:
        SystemExit: This is a preflight: 0 when it was written, 1 when it could not be.
    """
    folder = os.environ.get(BUILT, "")
    wrong = "" if folder else f"{BUILT} is not set"
    if folder:
        try:
            _write(folder, _report(models, mesh, optimizers or {}), fs or FileSystem())
        except Exception as error:  # whatever a wrapper's insides raise, training goes on
            wrong = f"{type(error).__name__}: {error}"
    if os.environ.get(PREFLIGHT):
        if wrong:
            sys.stderr.write(f"what was built could not be told: {wrong}\n")
        raise SystemExit(1 if wrong else 0)
    return not wrong


def _write(folder: str, report: BuiltReport, fs: FileSystem) -> None:
    # The folder is one of an attempt, whose other paths do not matter here.
    paths = AttemptPaths(os.path.dirname(os.path.abspath(folder)))
    path = f"{folder}/{os.path.basename(paths.built_file(report.rank))}"
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    fs.create(temporary, msgspec.json.encode(report))
    fs.replace(temporary, path)  # torchrun may start the ranks of an attempt again


def _report(
    models: Mapping[str, torch.nn.Module],
    mesh: Any,
    optimizers: Mapping[str, torch.optim.Optimizer],
) -> BuiltReport:
    import torch

    rank, world_size = _place()
    device = _device(models.values())
    return BuiltReport(
        schema=SCHEMA,
        rank=rank,
        world_size=world_size,
        node=os.uname().nodename,
        local_world_size=_number("LOCAL_WORLD_SIZE"),
        local_gpus=_gpus(),
        device=str(device),
        device_memory_bytes=_memory_bytes(device),
        mesh=_mesh_sizes(mesh),
        modules={
            name: inspect_module(module, optimizer=optimizers.get(name))
            for name, module in models.items()
        },
        torch=str(torch.__version__),
        at=timestamp(),
    )


def inspect_module(
    module: torch.nn.Module, *, optimizer: torch.optim.Optimizer | None = None
) -> BuiltModule:
    """What one module is on this rank."""
    pieces = list(_pieces(module))
    dtypes: dict[str, int] = {}
    shards: dict[int, int] = {}
    for piece in pieces:
        dtypes[piece.dtype] = dtypes.get(piece.dtype, 0) + piece.held * piece.width_bytes
        shards[piece.shards] = shards.get(piece.shards, 0) + piece.whole * piece.width_bytes
    shards = {size: count for size, count in sorted(shards.items()) if count}
    trainable = sum(piece.held * piece.width_bytes for piece in pieces if piece.trainable)
    states = None if optimizer is None else _states_of(optimizer)
    checkpointing, how = _activation_checkpointing(module)
    wrappers = sorted({piece.wrapper for piece in pieces if piece.wrapper})
    return BuiltModule(
        wrapper=", ".join(wrappers),
        shard_group_size=max(shards, key=lambda size: shards[size], default=None),
        shard_bytes=shards,
        replicas=max((piece.replicas for piece in pieces if piece.replicas), default=None),
        parameters=sum(piece.whole for piece in pieces),
        parameter_bytes=sum(piece.whole * piece.width_bytes for piece in pieces),
        held_parameters=sum(piece.held for piece in pieces),
        held_bytes=sum(dtypes.values()),
        trainable_bytes=trainable,
        optimizer_bytes=None if states is None else states * trainable,
        activation_checkpointing=checkpointing,
        how=how,
        dtypes=dtypes,
    )


class _Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter: elements in all and on this rank, and over how many ranks it is sharded."""

    whole: int
    held: int
    width_bytes: int
    dtype: str
    trainable: bool
    shards: int
    replicas: int | None = None
    wrapper: str = ""


def _pieces(module: torch.nn.Module) -> Iterator[_Piece]:
    """Every parameter once, with the wrapper that is nearest to it."""
    seen: set[int] = set()
    stack: list[tuple[torch.nn.Module, torch.nn.Module | None]] = [(module, None)]
    while stack:
        inner, wrapper = stack.pop()
        own = list(inner.parameters(recurse=False))
        if _is_kind(inner, _FSDP):
            wrapper = inner
            flat = getattr(getattr(inner, "_handle", None), "flat_param", None)
            if flat is not None:
                # Where the original parameters are kept, they are views into this one.
                seen.update(map(id, getattr(flat, "_params", None) or ()))
                own.append(flat)
        elif _is_kind(inner, _DDP):
            wrapper = inner
        for parameter in own:
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield _piece(parameter, wrapper)
        stack += [(child, wrapper) for child in inner.children()]


def _is_kind(module: torch.nn.Module, name: str) -> bool:
    """By name: importing the wrappers' modules would load much that a script does not use."""
    return any(kind.__name__ == name for kind in type(module).__mro__)


def _piece(parameter: torch.nn.Parameter, wrapper: torch.nn.Module | None) -> _Piece:
    facts: dict[str, Any] = {
        "whole": parameter.numel(),
        "held": parameter.numel(),
        "shards": 1,
        "width_bytes": parameter.element_size(),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "trainable": parameter.requires_grad,
    }
    if hasattr(parameter, "device_mesh") and hasattr(parameter, "placements"):
        facts |= _of_dtensor(parameter)
    elif wrapper is not None and _is_kind(wrapper, _FSDP):
        facts |= _of_fsdp(parameter, wrapper)
    elif wrapper is not None:
        size = _group_size(wrapper)
        facts |= {"wrapper": "DDP", "replicas": size}
    return _Piece(**facts)


def _of_dtensor(parameter: Any) -> dict[str, Any]:
    """``fully_shard`` and tensor parallelism: the mesh's dimensions that shard, multiplied."""
    mesh = parameter.device_mesh
    shards = replicas = 1
    for dimension, placement in enumerate(parameter.placements):
        if placement.is_shard():
            shards *= int(mesh.size(dimension))
        else:
            replicas *= int(mesh.size(dimension))
    local = parameter.to_local()
    return {"held": local.numel(), "shards": shards, "replicas": replicas, "wrapper": "fully_shard"}


def _of_fsdp(parameter: Any, wrapper: Any) -> dict[str, Any]:
    """The older FSDP: one flat parameter a wrapper, sharded over the wrapper's process group."""
    strategy = str(getattr(wrapper.sharding_strategy, "name", wrapper.sharding_strategy))
    size = 1 if strategy == "NO_SHARD" else _group_size(wrapper) or 1
    # The sizes of the unsharded parameter are no public attribute; without them it is an estimate.
    unsharded = getattr(parameter, "_unpadded_unsharded_size", None)
    held = parameter.numel()
    whole = int(unsharded.numel()) if unsharded is not None else held * size
    return {"whole": whole, "held": held, "shards": size, "wrapper": f"FSDP {strategy}"}


def _group_size(wrapper: Any) -> int | None:
    group = getattr(wrapper, "process_group", None)
    return None if group is None else int(group.size())


def _states_of(optimizer: torch.optim.Optimizer) -> int | None:
    """How many values it keeps for each element; None for a kind that is not known."""
    name = type(optimizer).__name__
    settings = optimizer.defaults
    if name == "SGD":
        return 1 if settings.get("momentum") else 0
    if name == "RMSprop":
        return 1 + bool(settings.get("momentum")) + bool(settings.get("centered"))
    states = _STATES.get(name)
    return None if states is None else states + bool(settings.get("amsgrad"))


# -------------------------------------------------------------------- activation checkpointing


def _activation_checkpointing(module: torch.nn.Module) -> tuple[bool | None, str]:
    """Whether activations are recomputed, and what shows it.

    Seen are the wrapper modules of torch, the flag that models of transformers and diffusers carry,
    and torch's composable form. A forward method that calls torch.utils.checkpoint by itself may
    do so only under a condition, so that says "not known".
    """
    wrapped = flagged = composed = 0
    maybe: set[str] = set()
    for inner in module.modules():
        wrapped += type(inner).__name__ == "CheckpointWrapper"
        flagged += getattr(inner, "gradient_checkpointing", False) is True
        composed += _is_composed(inner)
        if _may_checkpoint(inner):
            maybe.add(type(inner).__name__)
    for count, what in (
        (wrapped, "checkpoint wrappers"),
        (flagged, "modules with gradient_checkpointing on"),
        (composed, "modules under the composable checkpoint"),
    ):
        if count:
            return True, f"{count} {what}"
    if maybe:
        return None, f"forward of {', '.join(sorted(maybe))} can call torch.utils.checkpoint"
    return False, "no sign of it"


def _is_composed(module: torch.nn.Module) -> bool:
    # Where this is not loaded, nothing was composed. It has no public way to ask.
    contract = sys.modules.get("torch.distributed._composable.contract")
    look = getattr(contract, "_get_registry", None)
    return look is not None and "checkpoint" in (look(module) or {})


def _may_checkpoint(module: torch.nn.Module) -> bool:
    if type(module).__module__.startswith("torch."):
        return False
    from torch.utils import checkpoint

    forward = type(module).forward
    code = getattr(forward, "__code__", None)
    if code is None:
        return False
    of_forward = getattr(forward, "__globals__", {})
    found = [of_forward.get(name) for name in code.co_names]
    known = (checkpoint, checkpoint.checkpoint, checkpoint.checkpoint_sequential)
    return any(any(value is one for one in known) for value in found) or (
        "checkpoint" in code.co_names and "utils" in code.co_names
    )


# ------------------------------------------------------------------------------------- place


def _place() -> tuple[int, int]:
    """Rank and world size: of the process group where there is one, else as the launcher told."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    rank = _number("RANK")
    size = _number("WORLD_SIZE")
    if rank is None:
        rank, size = _number("SLURM_PROCID"), _number("SLURM_NTASKS")
    return rank or 0, size or 1


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _device(models: Iterable[torch.nn.Module]) -> Any:
    for module in models:
        for parameter in module.parameters():
            return parameter.device
    return ""


def _gpus() -> int | None:
    import torch

    cuda: Any = torch.cuda  # asked only where the script itself has begun to use it
    return int(cuda.device_count()) if cuda.is_initialized() else None


def _memory_bytes(device: Any) -> int | None:
    import torch

    # Parameters that lie on a CUDA device have initialised it; no other look may.
    if getattr(device, "type", "") != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


def _mesh_sizes(mesh: Any) -> dict[str, int]:
    if mesh is None:
        return {}
    names = mesh.mesh_dim_names or [f"dim{number}" for number in range(mesh.ndim)]
    return {str(name): int(mesh.size(number)) for number, name in enumerate(names)}
