"""``fleetcraft calibrate run``: trials of one family, a choice with its reason, a figure.

Invariant: exit 0 says that every trial was ok or was not tried for a reason; a failure of the
figure changes nothing of what was measured.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.calibrate.asking import require_torch
from fleetcraft.cli.calibrate.places import check_device, draw, scratch_of
from fleetcraft.cli.output import columns, note, print_json, print_text, stdout_is_stderr
from fleetcraft.cli.session import Amount, FleetCommand, Session, pass_session, write_sections
from fleetcraft.errors import UsageError
from fleetcraft.units import LONGEST_WAIT_S
from fleetcraft.view.text import Paint, one_line

if TYPE_CHECKING:
    from fleetcraft.calibration.family import Fault

_EXAMPLES = """
fleetcraft calibrate run demo --batches 1,2,4
fleetcraft calibrate run my_family.py:cycle --device cuda
fleetcraft calibrate run demo --batches 1,2,4 --device-budget-mib 40 --json
fleetcraft calibrate run demo --batches 1 --fault leak_probe_kv
"""
_EXITS = """
0 every trial was ok, or was skipped for a stated reason
1 a trial failed; the report says in which phase, why, and who holds the memory
2 there is no such family, fault or device; 3 no scratch tree or no torch; 6 the device is missing
"""
_SDPA = ("flash", "math", "efficient", "cudnn")


class _RunCommand(FleetCommand):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from fleetcraft.calibration.family import BUILT_IN

        faults = "\n".join(
            f"{name}: {fault.doc}" for name, fault in sorted(_faults("demo").items())
        )
        write_sections(
            formatter, **{"Families built in": ", ".join(BUILT_IN), "Faults of demo": faults}
        )
        super().format_epilog(ctx, formatter)


class _Batches(click.ParamType[tuple[int, ...]]):
    """Whole numbers from 1, with commas between."""

    name = "batches"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        if not all(word.isdecimal() and 1 <= int(word) <= 1 << 20 for word in words):
            self.fail(f"{value!r} is no list of batches such as 1,2,4", param, ctx)
        return tuple(int(word) for word in words)


_MIB = Amount(0, 1 << 30, min_open=True)


@click.command(cls=_RunCommand, name="run", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("family", metavar="FAMILY|FILE.py:NAME")
@click.option("--batches", type=_Batches(), metavar="N,...", help="What to try (1, 2, 4, ...).")
@click.option("--device", default="auto", metavar="auto|cpu|cuda[:N]", help="Where (auto).")
@click.option("--device-budget-mib", type=_MIB, metavar="N", help="Pretend a device so small.")
@click.option("--host-budget-mib", type=_MIB, metavar="N", help="Limit of host memory a trial.")
@click.option("--fault", default="", metavar="NAME", help="A fault to have; see below.")
@click.option("--cycles", type=click.IntRange(0, 1000), default=3, help="Timed; 0 for none (3).")
@click.option("--soak", type=click.IntRange(0, 1000), default=4, help="In a row; 0 for none (4).")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), default=0, help="Of noise (0).")
@click.option("--threads", type=click.IntRange(1, 4096), help="Threads of torch on CPU.")
@click.option("--sdpa", default="", metavar="BACKEND", help=f"Pin: {', '.join(_SDPA)}.")
@click.option(
    "--patience", type=Amount(0, LONGEST_WAIT_S, min_open=True), metavar="S",
    help="Silence of the first batch that counts as a stall, seconds.",
)  # fmt: skip
@click.option("--no-figure", is_flag=True, help="Draw no figure.")
@pass_session
def run_command(session: Session, /, **given: Any) -> int:
    """Run whole cycles at rising batches, and choose a batch for a reason.

    Each batch runs in a process of its own: its semantic checks, one cycle with every byte tracked
    to an owner, timed cycles with tracking off, and at the chosen batch cycles in a row that must
    not grow. A batch is tried only if the preflight, which allocates nothing, says that it can fit;
    the first always is. A larger batch is chosen only if throughput rises beyond noise, memory
    leaves headroom on device and host, and its samples come out as they do alone.

    Without --batches it goes 1, 2, 4, ... until something does not hold. The record, the
    journals and the figure (peaks.png, peaks.svg) go to calibration/<family>/<time>-<token>/ of the
    scratch tree. Nothing is frozen: that is fleetcraft calibrate freeze.
    """
    _check_words(given)
    require_torch()
    from fleetcraft.calibration.sweep.run import calibrate
    from fleetcraft.calibration.sweep.store import to_json
    from fleetcraft.view.calibration import render_calibration
    from fleetcraft.view.calibration_progress import progress_for

    # The family's file is imported here, and may print.
    with stdout_is_stderr(), progress_for(sys.stderr.isatty()) as progress:
        run = calibrate(
            given["family"],
            scratch=scratch_of(session),
            batches=given["batches"],
            device=given["device"],
            device_budget_bytes=_bytes(given["device_budget_mib"]),
            host_budget_bytes=_bytes(given["host_budget_mib"]),
            fault=given["fault"],
            timed_cycles=given["cycles"],
            soak_cycles=given["soak"],
            seed=given["seed"],
            threads=given["threads"],
            sdpa=given["sdpa"],
            patience_s=given["patience"],
            on_event=progress.show,
        )
    files, no_figure = ((), "not asked for") if given["no_figure"] else draw(run, run.folder)
    if session.json:
        print_json({**to_json(run), "figure": list(files), "no_figure": no_figure})
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_calibration(run, paint=paint, width=columns(), files=files))
        if no_figure and not given["no_figure"]:
            note(f"no figure: {one_line(no_figure)}")
    return 0 if run.ok else 1


def _check_words(given: dict[str, Any]) -> None:
    check_device(given["device"])
    if given["sdpa"] and given["sdpa"] not in _SDPA:
        raise UsageError(
            f"no attention backend {given['sdpa']!r}; nothing was tried",
            hint=f"one of {', '.join(_SDPA)}; fleetcraft calibrate check says which run here",
            sdpa=given["sdpa"],
        )
    if given["fault"]:
        _check_fault(given["family"], given["fault"])


def _check_fault(family: str, fault: str) -> None:
    """Refuses a fault that a built-in family does not have; of other families the sweep does it."""
    from fleetcraft.calibration.family import BUILT_IN

    if family not in BUILT_IN:
        return
    known = _faults(family)
    if fault in known:
        return
    from difflib import get_close_matches

    near = get_close_matches(fault, known, n=2)
    there = f"faults of {family}: {', '.join(sorted(known))}"
    raise UsageError(
        f"family {family!r} has no fault {fault!r}; nothing was tried",
        hint=f"did you mean {' or '.join(near)}? {there}" if near else there,
        fault=fault,
        near=near,
        known=sorted(known),
    )


def _faults(family: str) -> dict[str, Fault]:
    from fleetcraft.calibration.family import find_family

    return {str(name): fault for name, fault in find_family(family).faults.items()}


def _bytes(mib: float | None) -> int | None:
    return None if mib is None else int(mib * (1 << 20))
