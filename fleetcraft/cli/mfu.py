"""``fleetcraft mfu``: model FLOPs utilization from a model's shape, a device and a time.

Needs no scratch tree and no GPU. Invariant: an unknown device gives no number.
"""

from __future__ import annotations

import math
from typing import Any

import click

from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError

_EXAMPLES = """
fleetcraft mfu --device GB200 --params 1.3e9 --layers 30 --hidden 1536 --seq 32760 --forwards 100 \
--seconds 34.3
fleetcraft mfu --device 'H100 SXM' --params 7e9 --tokens 4096 --forwards 500 --training --seconds 60
fleetcraft mfu --devices
"""
_EXITS = """
0 done; 1 the device is not known, so there is no number
"""


class _Number(click.ParamType[float]):
    """A positive number, 1.3e9 as well as 1300000000."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number", param, ctx)
        if not math.isfinite(number) or number <= 0:
            self.fail(f"{value} is not a number above 0", param, ctx)
        return number


_N = _Number()


@click.command(cls=FleetCommand, name="mfu", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.option(
    "--device", metavar="NAME", help="The exact part: GB200, 'H100 SXM', or as nvidia-smi."
)
@click.option("--params", type=_N, metavar="N", help="Parameters that each token passes through.")
@click.option("--layers", type=_N, metavar="N", help="Attention layers.")
@click.option("--hidden", type=_N, metavar="N", help="Width of the attention.")
@click.option("--seq", type=_N, metavar="N", help="Length over which attention runs, in tokens.")
@click.option("--tokens", type=_N, metavar="N", help="Tokens of one forward (that of --seq).")
@click.option("--forwards", type=_N, metavar="N", help="Forward calls; a batch counts each sample.")
@click.option("--seconds", type=_N, metavar="S", help="Wall time of all of it.")
@click.option(
    "--gpus", type=click.IntRange(1, 1 << 20), default=1, help="GPUs that shared the work (1)."
)
@click.option("--training", is_flag=True, help="A backward belongs to each forward.")
@click.option("--peak", type=_N, metavar="FLOP/S", help="Use this peak of one GPU, on your word.")
@click.option("--devices", is_flag=True, help="List the parts whose peak is known.")
@pass_session
def mfu_command(session: Session, /, **given: Any) -> int:
    """Estimate model FLOPs utilization from model, device and time.

    Per forward 2 x params x tokens + 4 x layers x seq^2 x hidden, training three times that, over
    the dense BF16 peak. It is an estimate from shapes, not a measurement.
    """
    if given["devices"]:
        return _list_devices(session)
    _require(given)
    return _estimate(session, given)


def _require(given: dict[str, Any]) -> None:
    needed = ["params", "forwards", "seconds"]
    needed += [] if given["peak"] else ["device"]
    needed += [] if given["tokens"] else ["seq"]
    if any(given[name] for name in ("layers", "hidden")):
        needed += ["layers", "hidden", "seq"]
    missing = [f"--{name}" for name in dict.fromkeys(needed) if given[name] is None]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            hint="fleetcraft mfu --help shows an example",
            missing=missing,
        )


def _estimate(session: Session, given: dict[str, Any]) -> int:
    from fleetcraft.gpu import flops, peaks

    model = flops.Model(
        active_params=given["params"],
        tokens=given["tokens"] or given["seq"],
        layers=given["layers"] or 0.0,
        seq=given["seq"] or 0.0,
        hidden=given["hidden"] or 0.0,
        training=given["training"],
    )
    part = peaks.find_peak(given["device"]) if given["device"] else None
    peak = given["peak"] or (part.dense_bf16_flop_per_s if part else None)
    per_forward = flops.flop_per_forward(model)
    flop = per_forward * given["forwards"]
    room = given["seconds"] * given["gpus"] * (peak or 1.0)
    if not (math.isfinite(flop / given["seconds"]) and 0 < room < math.inf):
        raise UsageError(
            "these numbers make more FLOPs than can be counted; nothing was estimated",
            hint="fleetcraft mfu --help shows an example",
        )
    share = flops.mfu(flop, given["seconds"], peak, given["gpus"]) if peak else None
    unknown = given["device"] if peak is None else ""
    value = {
        "schema": "fleetcraft.mfu/1",
        "device": given["device"],
        "part": part.name if part else None,
        "peak_flop_per_s": peak,
        "peak_source": "given by --peak" if given["peak"] else (part.source if part else None),
        "power_w": part.power_w if part and not given["peak"] else None,
        "gpus": given["gpus"],
        "seconds": given["seconds"],
        "forwards": given["forwards"],
        "flop_per_forward": per_forward,
        "attention_fraction": flops.attention_fraction(model),
        "flop": flop,
        "achieved_flop_per_s": flop / given["seconds"],
        "mfu_fraction": share,
        "mfu_pct": None if share is None else 100 * share,
        "reason": _reason(given["device"], share, peaks.same_model(unknown)),
        "near": peaks.near_names(unknown) if unknown else [],
        "assumptions": list(flops.assumptions(training=given["training"])),
    }
    if session.json:
        print_json(value)
    else:
        _show(value)
    return 1 if share is None else 0


def _reason(device: str, share: float | None, same: list[str]) -> str:
    if share is None:
        many = f": it could be {' or '.join(same)}" if len(same) > 1 else ""
        return f"no peak is known for {device!r}{many}"
    return "over 1, which cannot be: check seconds, forwards, GPUs and device" if share > 1 else ""


def _show(value: dict[str, Any]) -> None:
    tera = 1e12
    print_text(
        f"{value['flop_per_forward'] / tera:.2f} TFLOP a forward"
        f" ({100 * (value['attention_fraction'] or 0):.1f} % attention),"
        f" {value['forwards']:g} forwards in {value['seconds']:g} s:"
        f" {value['achieved_flop_per_s'] / tera:.1f} TFLOP/s"
    )
    if value["mfu_fraction"] is None:
        print_text(f"MFU: no number, since {value['reason']}")
        note("hint: fleetcraft mfu --devices lists the parts; --peak takes one on your word")
        return
    gpus = f"{value['gpus']} x " if value["gpus"] > 1 else ""
    print_text(
        f"estimated MFU: {value['mfu_pct']:.1f} % of {gpus}"
        f"{value['peak_flop_per_s'] / tera:g} TFLOP/s ({value['part'] or 'given peak'})"
    )
    if value["reason"]:
        print_text(f"warning: {value['reason']}")
    for line in value["assumptions"]:
        print_text(f"  {line}")


def _list_devices(session: Session) -> int:
    from fleetcraft.gpu.peaks import PEAKS
    from fleetcraft.view.text import table

    if session.json:
        parts = [
            {
                "name": peak.name,
                "dense_bf16_flop_per_s": peak.dense_bf16_flop_per_s,
                "power_w": peak.power_w,
                "source": peak.source,
            }
            for peak in PEAKS
        ]
        print_json({"schema": "fleetcraft.mfu_devices/1", "devices": parts})
        return 0
    print_text("part, dense BF16 TFLOP/s, watts, source")
    rows = [
        [
            peak.name,
            f"{peak.dense_bf16_flop_per_s / 1e12:g}",
            f"{peak.power_w or ''}",
            peak.source,
        ]
        for peak in PEAKS
    ]
    print_text(table(rows, indent=""))
    return 0
