"""What one calibration is asked to do, resolved before anything runs, and the orders made of it.

Running it is `run`'s. Invariant: a word that is off is refused here, before a folder is made or a
turn is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import msgspec

from fleetcraft.calibration.family import Family, Fault, absolute_name, find_family
from fleetcraft.calibration.records import MIB
from fleetcraft.calibration.sweep.plan import preflight_batches, wanted_batches
from fleetcraft.calibration.sweep.timing import pick_device
from fleetcraft.calibration.trial.orders import Order, Pass
from fleetcraft.errors import UsageError


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One calibration; see `fleetcraft.calibration.sweep.run.calibrate` for the fields.

    Attributes:
        family: With the patience that was asked for.
        name: Of the family, for a process in another folder.
        wanted: The batches; None for 1, 2, 4, ...
        between: Two phases; the device budget is to lie half-way between their peaks.
    """

    name: str
    family: Family
    wanted: tuple[int, ...] | None
    device: str
    device_budget_bytes: int | None
    host_budget_bytes: int | None
    pids_limit: int | None
    between: tuple[str, str] | None
    fault: str
    timed_cycles: int
    soak_cycles: int
    seed: int
    threads: int | None
    sdpa: str

    def order(self, batch: int, passes: tuple[Pass, ...], folder: str) -> Order:
        """The order of one trial."""
        return Order(
            family=self.name,
            batch=batch,
            passes=passes,
            folder=folder,
            device=self.device,
            timed_cycles=self.timed_cycles,
            soak_cycles=self.soak_cycles,
            device_budget_bytes=self.device_budget_bytes,
            host_budget_bytes=self.host_budget_bytes,
            pids_limit=self.pids_limit,
            fault=self.fault,
            seed=self.seed,
            threads=self.threads,
            sdpa=self.sdpa,
        )

    def preflight_order(self, folder: str) -> Order:
        """The order of the preflight.

        It is on the CPU whatever the device: on fake CUDA tensors attention takes a quadratic
        path. It has no limits and no fault: one that kills or stalls would do so there.
        """
        batches = preflight_batches(self.wanted)
        return Order(
            family=self.name,
            batch=batches[0],
            passes=(Pass.PREFLIGHT,),
            folder=folder,
            preflight_batches=batches,
            seed=self.seed,
            threads=self.threads,
            sdpa=self.sdpa if self.device == "cpu" else "",
        )


def resolve(
    name: str,
    *,
    batches: Sequence[int] | None,
    device: str,
    device_budget_bytes: int | None,
    host_budget_bytes: int | None,
    fault: str,
    timed_cycles: int,
    soak_cycles: int,
    seed: int,
    threads: int | None,
    sdpa: str,
    patience_s: float | None,
) -> Asked:
    """Checks the words of a call. A limit that was given outweighs that of a fault.

    Raises:
        UsageError: One is off.
        ConfigError: The family's file cannot be imported.
    """
    wanted = wanted_batches(batches)
    _check_counts(timed_cycles=timed_cycles, soak_cycles=soak_cycles, threads=threads)
    family = find_family(name)
    found = _find_fault(family, fault)
    return Asked(
        name=absolute_name(name),
        family=_with_patience(family, found.patience_s if patience_s is None else patience_s),
        wanted=wanted,
        device=pick_device(device),
        device_budget_bytes=device_budget_bytes,
        host_budget_bytes=host_budget_bytes or _bytes(found.host_mib),
        pids_limit=found.pids,
        between=found.device_between if device_budget_bytes is None else None,
        fault=fault,
        timed_cycles=timed_cycles,
        soak_cycles=soak_cycles,
        seed=seed,
        threads=threads,
        sdpa=sdpa,
    )


def _check_counts(**counts: int | None) -> None:
    for name, count in counts.items():
        least = 1 if name == "threads" else 0
        if count is not None and count < least:
            raise UsageError(f"{name} is {count}, expected at least {least}; nothing was tried")


def _find_fault(family: Family, name: str) -> Fault:
    if not name:
        return Fault(doc="")
    if name in family.faults:
        return family.faults[name]
    near = get_close_matches(name, family.faults, n=1)
    known = ", ".join(sorted(family.faults)) or "none"
    raise UsageError(
        f"family {family.key!r} has no fault {name!r}; nothing was tried",
        hint=f"did you mean {near[0]!r}?" if near else f"its faults: {known}",
        fault=name,
    )


def _with_patience(family: Family, patience_s: float | None) -> Family:
    if patience_s is None:
        return family
    # A fault's own would win over a longer one, so from here on the family's says everything.
    faults = {
        name: msgspec.structs.replace(fault, patience_s=None)
        for name, fault in family.faults.items()
    }
    return msgspec.structs.replace(family, patience_s=patience_s, faults=faults)


def _bytes(mib: float | None) -> int | None:
    return None if mib is None else int(mib * MIB)
