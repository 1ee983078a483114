"""What a family is: one function that runs a whole cycle, and what must be known about it.

The description only, and how a family is found by name or file; running it is `trial`'s. No torch
here. Invariant: two families with equal identity hashes do the same work on the same kind of model
with the same settings; a setting that changes memory, speed or output belongs into ``identity``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fleetcraft.batch_table.records import hash_of
from fleetcraft.errors import ConfigError, FleetError, UsageError
from fleetcraft.gpu.flops import Model
from fleetcraft.gpu.flops import flop_per_forward as _flop_per_forward

if TYPE_CHECKING:
    from fleetcraft.calibration.trial.context import Context

Kind = Literal["infer", "train"]
Cycle = Callable[["Context", int], Any]
INFER_PHASES = ("load", "denoise", "decode", "score", "write")
TRAIN_PHASES = (
    "load", "denoise", "decode", "score", "backward1", "step1", "backward2", "step2", "probe",
    "save", "write",
)  # fmt: skip
BUILT_IN = {"demo": "fleetcraft.calibration.families.demo:cycle"}
"""Families that come with the package, by the name on the command line."""


class Independent(msgspec.Struct, frozen=True, kw_only=True):
    """Each sample of a batch comes out as it does alone.

    Attributes:
        parity: ``parity(ctx, samples)`` returns a tensor [len(samples), ...] for these sample
            numbers. It is called with all samples of a batch and with each alone, and must agree.
            Without it independence is claimed, not shown, and batch one is kept.
        tolerance: Largest absolute difference that still counts as agreement (GPU kernels drift
            with the batch; on CPU 0 holds).
    """

    parity: Callable[[Context, Sequence[int]], Any] | None = None
    tolerance: float = 0.0


class SharedDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of a batch share decisions, such as one skip schedule: batch one is kept."""

    what: str = ""


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody knows what batching does to a sample: batch one is kept."""


Semantics = Independent | SharedDecision | Unknown


class DiT(msgspec.Struct, frozen=True, kw_only=True):
    """What the FLOPs of one sample depend on.

    Attributes:
        active_params: Parameters that each token passes through.
        layers: Attention layers.
        hidden: Width of the attention.
        seq: Tokens of one sample.
        forwards: Forward calls of one sample's cycle, guidance counted.
        backwards: Backward passes of one sample's cycle, each counted as two forwards.
    """

    active_params: float
    layers: float
    hidden: float
    seq: float
    forwards: float = 1
    backwards: float = 0

    @property
    def flop(self) -> float:
        """Model FLOPs of one sample's cycle; see `fleetcraft.gpu.flops.flop_per_forward`."""
        one = _flop_per_forward(
            Model(
                active_params=self.active_params,
                tokens=self.seq,
                layers=self.layers,
                seq=self.seq,
                hidden=self.hidden,
            )
        )
        return one * (self.forwards + 2 * self.backwards)


class NoiseCheck(msgspec.Struct, frozen=True, kw_only=True):
    """``draw(ctx, samples)`` returns the noise [len(samples), ...] that the cycle would use.

    Sample i of a batch must be bit-equal to sample i alone.
    """

    draw: Callable[[Context, Sequence[int]], Any]
    phase: str = "denoise"


class MaskCheck(msgspec.Struct, frozen=True, kw_only=True):
    """``attend(ctx, query, key, value, keep)`` is the family's own masked attention.

    query [B, H, Q, D], key and value [B, H, K, D]; ``keep`` is bool [B, K], False where a key is
    padding. Keys and values under the mask are poisoned: the output must not change at all.
    """

    attend: Callable[..., Any]
    phase: str = "denoise"
    heads: int = 2
    width: int = 16
    queries: int = 8
    keys: int = 16


class DecisionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """``decide(ctx, samples)`` returns one sequence of decisions for each sample.

    A sample must decide in a batch as it does alone.
    """

    decide: Callable[[Context, Sequence[int]], Any]
    phase: str = "denoise"


Checkable = NoiseCheck | MaskCheck | DecisionCheck


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that a family can be asked to have, with the limits that make it show.

    Attributes:
        doc: One line for people.
        device_between: A device budget half-way between the peaks of two phases, as the preflight
            of the first batch predicts them.
        host_mib: Host memory limit of the trial.
        pids: Limit of processes and threads of the trial.
        patience_s: Silence that counts as a stall.
    """

    doc: str
    device_between: tuple[str, str] | None = None
    host_mib: float | None = None
    pids: int | None = None
    patience_s: float | None = None


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A workload shape: its cycle and everything that the harness must know about it.

    Attributes:
        key: Unique name; one row of the batch table. Letters, digits and ``._/+-``.
        cycle: ``cycle(ctx, batch)`` runs all phases once.
        kind: ``train`` has backward passes and optimizer steps, ``infer`` has none.
        requires: Phases without which a record cannot be frozen.
        batch_axis: What the batch counts, such as ``samples``.
        semantics: What batching does to a sample.
        identity: Model, revision, dtype, tiling, offload, attention: plain JSON values.
        flops: What one sample costs; None when unknown.
        count_flops: ``count_flops(ctx)`` runs one sample's forwards on whatever device ``ctx``
            has (meta, while FLOPs are counted); None when they cannot be counted.
        checks: Semantic checks beside the parity of `Independent`.
        faults: Faults that it can be asked to have.
        patience_s: Silence of the first batch that counts as a stall; later batches are judged
            by the time of the one before.
        preflight: Whether the cycle can run on fake tensors.
    """

    key: str
    cycle: Cycle
    kind: Kind = "infer"
    requires: tuple[str, ...] = ()
    batch_axis: str = "samples"
    semantics: Semantics = Unknown()
    identity: Mapping[str, Any] = {}
    flops: DiT | None = None
    count_flops: Callable[[Context], Any] | None = None
    checks: tuple[Checkable, ...] = ()
    faults: Mapping[str, Fault] = {}
    patience_s: float = 120.0
    preflight: bool = True

    @property
    def identity_fields(self) -> dict[str, Any]:
        """What the identity hash is made of."""
        return {
            "key": self.key,
            "kind": self.kind,
            "requires": list(self.required_phases),
            "batch_axis": self.batch_axis,
            "semantics": semantics_name(self.semantics),
            **{f"identity.{name}": value for name, value in self.identity.items()},
        }

    @property
    def identity_hash(self) -> str:
        """``sha256:`` and the hash of the canonical JSON of `identity_fields`."""
        return hash_of(self.identity_fields)

    @property
    def required_phases(self) -> tuple[str, ...]:
        """What must run: as declared, else the usual phases of its kind."""
        return self.requires or (TRAIN_PHASES if self.kind == "train" else INFER_PHASES)

    def __call__(self, ctx: Context, batch: int) -> Any:
        """Runs one cycle, as the plain function did before it was decorated."""
        return self.cycle(ctx, batch)


def semantics_name(semantics: Semantics) -> str:
    """``independent``, ``claimed_independent`` (no parity test), ``shared`` or ``unknown``."""
    if isinstance(semantics, Independent):
        return "independent" if semantics.parity is not None else "claimed_independent"
    return "shared" if isinstance(semantics, SharedDecision) else "unknown"


def family(
    key: str,
    *,
    kind: Kind = "infer",
    requires: Sequence[str] = (),
    batch_axis: str = "samples",
    semantics: Semantics | None = None,
    identity: Mapping[str, Any] | None = None,
    **more: Any,
) -> Callable[[Cycle], Family]:
    """Declares the decorated function as a family's cycle.

    Args:
        key: See `Family`; so for all others.
        kind: ``infer`` or ``train``.
        requires: Phases that must run; the usual ones of the kind when empty.
        batch_axis: What the batch counts.
        semantics: `Unknown` when not given.
        identity: Plain JSON values.
        more: ``flops``, ``count_flops``, ``checks``, ``faults``, ``patience_s``, ``preflight``.

    Raises:
        UsageError: A value that no record could hold, or an unknown argument.
    """
    unknown = sorted(set(more) - set(Family.__struct_fields__))
    if unknown:
        near = get_close_matches(unknown[0], Family.__struct_fields__, n=1)
        raise UsageError(
            f"family {key!r}: unknown argument {unknown[0]!r}",
            hint=f"did you mean {near[0]!r}?" if near else "see docs/calibration.md",
        )

    def declare(cycle: Cycle) -> Family:
        made = Family(
            key=key,
            cycle=cycle,
            kind=kind,
            requires=tuple(requires),
            batch_axis=batch_axis,
            semantics=Unknown() if semantics is None else semantics,
            identity=dict(identity or {}),
            **more,
        )
        _check(made)
        return made

    return declare


def _check(made: Family) -> None:
    if not isinstance(made.key, str):
        raise UsageError(f"family key {made.key!r} is no text", hint="such as 'my-model/16f'")
    usable = made.key and all(c.isascii() and (c.isalnum() or c in "._/+-") for c in made.key)
    if not usable or made.key.startswith(("/", ".")) or "//" in made.key or len(made.key) > 120:
        raise UsageError(
            f"family key {made.key!r} cannot be used",
            hint="letters, digits and . _ / + -, at most 120, starting with a letter or digit",
        )
    if made.kind not in ("infer", "train"):
        raise UsageError(f"family {made.key!r}: kind is {made.kind!r}, expected infer or train")
    try:
        hash_of(made.identity_fields)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"family {made.key!r}: its identity cannot be hashed: {error}",
            hint="identity holds text, numbers, true, false and lists and maps of them",
        ) from error


def find_family(name: str) -> Family:
    """The family of a name on the command line.

    Args:
        name: ``demo``, ``FILE.py:NAME`` or ``package.module:NAME``.

    Raises:
        UsageError: There is no such file, module or name, or it is no family.
        ConfigError: Its file cannot be imported.
    """
    place, colon, attribute = BUILT_IN.get(name, name).rpartition(":")
    if not colon:
        near = get_close_matches(name, BUILT_IN, n=1)
        raise UsageError(
            f"no family {name!r}",
            hint=f"did you mean {near[0]!r}?"
            if near
            else f"built in: {', '.join(BUILT_IN)}; your own is FILE.py:NAME",
            family=name,
        )
    module = _import_file(place) if place.endswith(".py") else _import_module(place)
    found = getattr(module, attribute, None)
    if isinstance(found, Family):
        return found
    families = [key for key, value in vars(module).items() if isinstance(value, Family)]
    what = "is no family" if found is not None else "is not there"
    raise UsageError(
        f"{attribute!r} in {place} {what}",
        hint=f"families there: {', '.join(families)}"
        if families
        else "decorate the cycle with @fleetcraft.calibration.family(...)",
        family=name,
    )


def absolute_name(name: str) -> str:
    """The same family for a process in another folder: ``FILE.py`` made absolute."""
    place, colon, attribute = name.rpartition(":")
    return f"{os.path.abspath(place)}:{attribute}" if colon and place.endswith(".py") else name


def _import_module(place: str) -> Any:
    with _importing(place):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name and (place == error.name or place.startswith(f"{error.name}.")):
                raise UsageError(f"no module {place!r}", hint="your own is FILE.py:NAME") from error
            raise


def _import_file(path: str) -> Any:
    if not os.path.isfile(path):
        raise UsageError(f"no file {path!r}", hint="a family is FILE.py:NAME", path=path)
    folder, file = os.path.split(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that it may import what lies beside it, as a script may
    spec = importlib.util.spec_from_file_location(file.removesuffix(".py"), os.path.abspath(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with _importing(path):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _importing(place: str) -> Iterator[None]:
    """Somebody's own code runs inside: what it raises, to leave the process too, is a sentence."""
    try:
        yield
    except FleetError:
        raise
    except (ImportError, SyntaxError) as error:
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"cannot import {place}: {said}", path=place) from error
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"cannot import {place}: {said} ({at.filename}, line {at.lineno})", path=place
        ) from error
