"""State of a torch trainer: saved part by part, and loaded with nothing unpickled unsafely.

Plain ``torch.save`` files; `distributed` is for sharded ones. Torch is imported inside functions.
Invariant: everything is loaded with ``weights_only=True``, and what could not be loaded so is
refused when it is saved.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fleetcraft.errors import UsageError
from fleetcraft.training.checkpoint.kinds import OF_EVERY_RANK
from fleetcraft.training.checkpoint.records import CheckpointError, Kind, Level, Manifest, Part
from fleetcraft.training.checkpoint.saving import Saving
from fleetcraft.training.checkpoint.store import CheckpointStore

if TYPE_CHECKING:
    pass

RNG_FILE = "rng.pt"
_SUFFIX = ".pt"


def save_state(
    saving: Saving,
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    sampler: Any = None,
    dataset_digest: str = "",
    more: Mapping[Part, Any] | None = None,
    workers_rng: Any = None,
    rank0_only: tuple[Part, ...] = (),
) -> None:
    """Writes the state of one rank into a save, one file a part.

    Each of model, optimizer, scheduler and sampler is an object with ``state_dict()``, or the
    state itself: tensors, numbers, text, and lists, tuples and dicts of them. What is None is not
    said, and so missing, unless `Saving.none` says why. Random number states of this process are
    always saved.

    Args:
        saving: From `CheckpointStore.save`.
        model: Weights.
        optimizer: Moments and step counts.
        scheduler: The learning rate's.
        sampler: Where this rank stands in the data.
        dataset_digest: What names the data set's content.
        more: Critic, reward_norm, ledger, branch, probe: the same by part.
        workers_rng: Random number states of loader workers, where there are any.
        rank0_only: Parts that are equal on all ranks, written by rank 0 alone.

    Raises:
        UsageError: A state holds an object that cannot be loaded safely.
        OSError: A file cannot be written.
    """
    given = {
        Part.WEIGHTS: model,
        Part.OPTIMIZER: optimizer,
        Part.SCHEDULER: scheduler,
        Part.SAMPLER: sampler,
        Part.RNG_WORKERS: workers_rng,
        **(more or {}),
    }
    for part, thing in given.items():
        if thing is not None and (saving.rank == 0 or part not in rank0_only):
            _save_part(saving, part, thing)
    if dataset_digest:
        saving.value(Part.DATASET, dataset_digest)
    _save_rng(saving)


def load_state(
    store: CheckpointStore,
    manifest: Manifest,
    *,
    rank: int = 0,
    world_size: int = 1,
    kind: Kind = Kind.EXACT,
    level: Level = Level.HASHES,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    sampler: Any = None,
    map_location: Any = "cpu",
    by: str = "",
) -> dict[Part, Any]:
    """Verifies a checkpoint, loads what this rank needs of it, and notes that it was loaded.

    Objects that are given get their state by ``load_state_dict()``. For EXACT the random number
    states of this process are set as the last thing.

    Args:
        store: The folder of checkpoints.
        manifest: The checkpoint.
        rank: This process's rank.
        world_size: Of how many.
        kind: EXACT, or WEIGHTS when it is enough that the weights are there.
        level: MARKER, SIZES or HASHES: what is verified before anything is loaded; hashes only of
            the files that this rank loads.
        model: Gets the weights.
        optimizer: Gets its state.
        scheduler: Gets its state.
        sampler: Gets its state.
        map_location: As ``torch.load`` takes it.
        by: Who loads, for the note.

    Returns:
        The state of every part that this rank can load, by part.

    Raises:
        CheckpointError: It is not EXACT and that is asked for, was saved by another number of
            ranks, or does not hold; nothing was loaded.
        OSError: A file cannot be read.
    """
    _refuse_unfit(manifest, world_size, kind)
    files = _files_for(manifest, rank, exact=kind is Kind.EXACT)
    _refuse_broken(store, manifest, level, set(files.values()))
    read = {path: _load(f"{manifest.folder}/{path}", map_location) for path in set(files.values())}
    state = {part: read[path] for part, path in files.items()}
    targets = {
        Part.WEIGHTS: model,
        Part.OPTIMIZER: optimizer,
        Part.SCHEDULER: scheduler,
        Part.SAMPLER: sampler,
    }
    for part, target in targets.items():
        if target is not None and part in state:
            target.load_state_dict(state[part])
    if kind is Kind.EXACT and Part.RNG_CPU in state:
        restore_rng(state[Part.RNG_CPU])
    if rank == 0:
        # A checkpoint that cannot be written to any more can still be trained from.
        with contextlib.suppress(OSError):
            store.loaded(manifest, by or f"process {os.getpid()}")
    return state


def rng_state() -> dict[str, Any]:
    """Random number states of this process: Python, NumPy, torch's CPU, and its devices.

    NumPy is asked only when it is loaded, and CUDA only when it is initialised; neither is loaded
    by this. Only NumPy's global generator is known; others are the user's to save.
    """
    import torch

    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "numpy": None,
        "cpu": torch.get_rng_state(),
        "devices": {},
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [
            str(name), [int(key) for key in keys], int(position), int(has_gauss), float(cached),
        ]  # fmt: skip
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        device = torch.cuda.current_device()
        state["devices"] = {device: torch.cuda.get_rng_state(device)}
    return state


def restore_rng(state: Mapping[str, Any]) -> None:
    """Sets the random number states of this process to what `rng_state` gave."""
    import torch

    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if state["numpy"] is not None:
        # Not imported by name: this package must not need NumPy, and its state was saved because
        # the process that saved had loaded it.
        import importlib

        name, keys, position, has_gauss, cached = state["numpy"]
        numpy = importlib.import_module("numpy")
        numpy.random.set_state((name, keys, position, has_gauss, cached))
    torch.set_rng_state(state["cpu"])
    for saved in state["devices"].values():
        torch.cuda.set_rng_state(saved, torch.cuda.current_device())


def loads(manifest: Manifest) -> str:
    """Loads every file of a checkpoint that this module can load; for `Level.LOADED`.

    Returns:
        Empty, or why it could not be loaded.

    Raises:
        OSError: A file cannot be read.
    """
    files = [file.path for file in manifest.files if file.path.endswith(_SUFFIX)]
    if not files:
        return f"none of its files ends with {_SUFFIX}; they were not loaded"
    for path in files:
        try:
            _load(f"{manifest.folder}/{path}", "cpu")
        except CheckpointError as error:
            return error.message
    return ""


def _save_part(saving: Saving, part: Part, thing: Any) -> None:
    state = thing.state_dict() if hasattr(thing, "state_dict") else thing
    _save(saving, part, f"{part.value}{_SUFFIX}", state)
    if part is Part.SAMPLER and isinstance(state, Mapping):
        for name, value in state.items():
            if isinstance(value, int | float | str):
                saving.fact(f"sampler_{name}", value)


def _save_rng(saving: Saving) -> None:
    state = rng_state()
    _save(saving, Part.RNG_CPU, RNG_FILE, state)
    saving.part(Part.RNG_PYTHON, RNG_FILE)
    saving.fact("rng_python_sha256", _digest(repr(state["python"]).encode()))
    saving.fact("rng_cpu_sha256", _digest(bytes(state["cpu"].tolist())))
    if state["numpy"] is None:
        saving.none(Part.RNG_NUMPY, "NumPy is not loaded")
    else:
        saving.part(Part.RNG_NUMPY, RNG_FILE)
        saving.fact("rng_numpy_sha256", _digest(repr(state["numpy"]).encode()))
    if state["devices"]:
        saving.part(Part.RNG_DEVICE, RNG_FILE)
    elif saving.topology.device == "cpu":
        saving.none(Part.RNG_DEVICE, "it trains on the CPU")
    if not saving.said(Part.RNG_WORKERS) and saving.topology.loader_workers == 0:
        saving.none(Part.RNG_WORKERS, "it has no loader workers")


def _save(saving: Saving, part: Part, name: str, state: Any) -> None:
    import torch

    path = saving.path(name)
    torch.save(state, path)
    try:
        _load(path, "cpu")
    except CheckpointError as error:
        raise UsageError(
            f"the {part.value} of step {saving.step} could not be loaded safely: {error.message}; "
            "nothing was published",
            hint="save tensors, numbers, text, and lists, tuples and dicts of them",
            part=part.value,
        ) from error
    saving.part(part, name)


def _load(path: str, map_location: Any) -> Any:
    import torch

    try:
        # Mapped, so that what nobody looks at is not read; hashing has read it all before.
        return torch.load(path, map_location=map_location, weights_only=True, mmap=True)
    except OSError:
        raise
    except Exception as error:  # of bytes that are no checkpoint, its reader raises anything
        why = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path} cannot be loaded: {why}", path=path) from error


def _refuse_unfit(manifest: Manifest, world_size: int, kind: Kind) -> None:
    where = {"step": manifest.step, "folder": manifest.folder}
    if kind is not Kind.EXACT:
        return
    if manifest.kind is not Kind.EXACT:
        raise CheckpointError(
            f"step {manifest.step} is {manifest.kind.value}, expected EXACT; missing: "
            f"{', '.join(manifest.missing)}; nothing was loaded",
            hint="load it as WEIGHTS if a new optimizer and new random numbers are meant",
            missing=list(manifest.missing),
            **where,
        )
    if manifest.world_size != world_size:
        raise CheckpointError(
            f"step {manifest.step} was saved by {manifest.world_size} ranks, and there are "
            f"{world_size}: random numbers and data positions of ranks cannot be divided anew; "
            "nothing was loaded",
            hint="launch as many ranks, or load it as WEIGHTS",
            **where,
        )


def _refuse_broken(
    store: CheckpointStore, manifest: Manifest, level: Level, paths: set[str]
) -> None:
    shallow = Level.SIZES if level is Level.HASHES else level
    verdict = store.verify(manifest, shallow)
    reasons = list(verdict.reasons)
    if level is Level.HASHES and verdict.answer:
        for file in manifest.files:
            found = store.digest(f"{manifest.folder}/{file.path}") if file.path in paths else None
            if found not in (None, (file.size_bytes, file.sha256)):
                reasons.append(f"{file.path} has other content than its manifest says")
    if reasons:
        raise CheckpointError(
            f"step {manifest.step} does not hold up to {level.value}: {'; '.join(reasons)}; "
            "nothing was loaded",
            hint=f"fleetcraft train checkpoints {store.paths.folder} --verify hashes",
            step=manifest.step,
            folder=manifest.folder,
        )


def _files_for(manifest: Manifest, rank: int, *, exact: bool) -> dict[Part, str]:
    """The file of each part for one rank: its own, or where ranks are equal that of the first."""
    own = manifest.ranks[rank].parts if rank < manifest.world_size else {}
    found: dict[Part, str] = {}
    for part in Part if exact else (Part.WEIGHTS,):
        entries = [own[part]] if part in own else []
        if part not in OF_EVERY_RANK and part not in manifest.topology.sharded:
            entries += [other.parts[part] for other in manifest.ranks if part in other.parts]
        files = [path for entry in entries for path in entry.files if path.endswith(_SUFFIX)]
        if files:
            found[part] = files[0]
    return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
