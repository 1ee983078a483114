"""``fleetcraft renew``: submits a follow-on fleet where queued work justifies exactly its shape.

Options, the wiring of the control pass to the real Slurm, and how often it is made; what a pass
decides is `fleet.control`'s. Invariant: nothing is submitted without the lock, and never from
inside a job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.output import columns, encode_json, note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import ConfigError, UsageError
from fleetcraft.units import parse_duration_s
from fleetcraft.view.text import one_line

if TYPE_CHECKING:
    from fleetcraft.config import Config
    from fleetcraft.fleet.launch.plan import LaunchPlan
    from fleetcraft.fleet.renewal.control import Controller
    from fleetcraft.fleet.renewal.decision import Outside, PassReport, Rules
    from fleetcraft.fleet.shapes import Shape
    from fleetcraft.locks import GenerationLock, Held

_PASS_S = 10.0
_LEAST_EVERY_S = 10
_BEAT_S = 3.0
_EXAMPLES = """
fleetcraft renew --lane 8x12:00:00 --lane 4x12:00:00
fleetcraft renew --dry-run
fleetcraft renew --every 5m --for 12h
"""
_EXITS = """
0 done, also when nothing was needed or the balance forbids it
4 Slurm did not answer or refused, or has not shown yet what became of a submission
75 another renew has the lock, or may have it; or the login guard finds no room
"""


@click.command(cls=FleetCommand, name="renew", examples=_EXAMPLES, exits=_EXITS, spool=False)
@click.option(
    "--lane",
    "lanes",
    multiple=True,
    metavar="NxTIME",
    help="A shape, NODESxWALLTIME[@PARTITION][/SLOTS], instead of those in renew.lanes.",
)
@click.option("--once", is_flag=True, help="Decide each lane once and leave (the default).")
@click.option("--every", metavar="TIME", help="Go on, with a pass every so often, such as 5m.")
@click.option("--for", "for_", metavar="TIME", help="How long to go on, such as 12h.")
@click.option(
    "--now", is_flag=True, help="You looked: one pass is enough, and a futile last fleet too."
)
@click.option("--take-over", is_flag=True, help="Follow a silent renew of which nothing is known.")
@click.option("--dry-run", is_flag=True, help="Only say what would be submitted.")
@click.option("--reached", is_flag=True, hidden=True)
@pass_session
def renew_command(session: Session, /, reached: bool, **given: Any) -> int:
    """Submit a follow-on fleet where queued work justifies it.

    A lane is one exact shape. One fleet of it is submitted when the pending tasks that fit it,
    less those that present fleets will take, justify all of its nodes (renew.tasks_per_node) in
    so many passes in a row as renew.passes says, ten seconds apart; when none of its shape waits
    in the queue and at most renew.max_jobs run or wait; and when the balance, less what jobs may
    still cost, stays above balance.headroom_h. What Slurm or the file system did not say submits
    nothing.
    """
    from fleetcraft.fleet.shapes import parse_lanes

    config = session.config
    every_s, for_s = _period(given)
    try:
        lanes = parse_lanes(list(given["lanes"]) or config.text("renew.lanes").split())
    except UsageError as error:
        if given["lanes"]:
            raise
        where = config.values["renew.lanes"].source
        raise ConfigError(f"{where}: renew.lanes: {error.message}", hint=error.hint) from error
    if not lanes:
        raise ConfigError(
            "nothing says which shapes to renew: no --lane, and no renew.lanes in the settings",
            hint="fleetcraft renew --lane 8x12:00:00, or renew.lanes in fleet.yaml",
            setting="renew.lanes",
        )
    if "SLURM_JOB_ID" in os.environ:
        return _renew_elsewhere(config, lanes, given, reached=reached, json=session.json)
    rules = _rules(config, by_hand=given["now"])
    _require_readiness(config, lanes, dry_run=given["dry_run"])
    renewal = _Renewal(session, config, lanes, rules)
    if given["dry_run"]:
        return renewal.say()
    with _ended_by_term():
        return renewal.go_on(every_s, for_s, given) if every_s else renewal.once(given)


def _period(given: dict[str, Any]) -> tuple[int | None, int]:
    every, for_ = given["every"], given["for_"]
    if every is None:
        if for_ is not None:
            raise UsageError("--for says how long, and no --every says how often")
        return None, 0
    if given["once"] or given["dry_run"] or given["now"]:
        raise UsageError("--every cannot go with --once, --now or --dry-run")
    if for_ is None:
        raise UsageError("--every needs --for: it does not go on for ever", hint="add --for 12h")
    every_s = parse_duration_s(every)
    if every_s < _LEAST_EVERY_S:
        raise UsageError(f"--every must be at least {_LEAST_EVERY_S} s, found {every!r}")
    return every_s, parse_duration_s(for_)


def _rules(config: Config, *, by_hand: bool) -> Rules:
    from fleetcraft.fleet.renewal.decision import Rules
    from fleetcraft.fleet.shapes import root_mark

    headroom_h = config.values["balance.headroom_h"].value
    gpus = config.values["slurm.gpus_per_node"].value
    tres = config.text("balance.tres")
    if headroom_h is not None and tres != "node" and (tres != "gres/gpu" or gpus is None):
        raise ConfigError(
            f"balance.headroom_h is set, and what a fleet costs in hours of {tres!r} is not known",
            hint="set balance.tres to node, or to gres/gpu together with slurm.gpus_per_node",
            setting="balance.tres",
        )
    return Rules(
        root=root_mark(config.root),
        passes=config.count("renew.passes"),
        by_hand=by_hand,
        tasks_per_node=config.count("renew.tasks_per_node"),
        max_jobs=config.count("renew.max_jobs"),
        gpus_per_node=None if gpus is None else int(gpus),
        slots=config.text("worker.slots"),
        account=config.text("balance.account") or config.text("slurm.account"),
        tres=tres,
        headroom_h=None if headroom_h is None else float(headroom_h),
    )


def _require_readiness(config: Config, lanes: list[Shape], *, dry_run: bool) -> None:
    """The checks of a launch, for each lane: nodes, login guard, folders, setup.

    Markers and the balance are for each pass to judge.

    Raises:
        FleetError: One of them refuses.
    """
    from fleetcraft.fleet.launch.readiness import check_launch, refuse
    from fleetcraft.slurm.polls import Polls

    for lane in lanes:
        plan = _plan(config, lane)
        checks = check_launch(config, plan, Polls(), dry_run=dry_run, with_balance=False)
        refuse([check for check in checks if check.name != "markers"])


def _plan(config: Config, shape: Shape, comment: str = "", name: str = "") -> LaunchPlan:
    from fleetcraft.fleet.launch.plan import plan_launch

    return plan_launch(
        config,
        nodes=shape.nodes,
        time_s=shape.time_s,
        slots=shape.slots or None,
        partition=shape.partition or None,
        comment=comment,
        name=name,
    )


class _Renewal:
    """One call: where everything lies, and its passes."""

    def __init__(self, session: Session, config: Config, lanes: list[Shape], rules: Rules) -> None:
        from fleetcraft.fleet.renewal.intents import Intents
        from fleetcraft.layout import Scratch

        self._session = session
        self._scratch = Scratch(config.root)
        self._lanes = lanes
        self._rules = rules
        self._outside = _wire(config)
        self._intents = Intents(self._scratch.intents)

    def say(self) -> int:
        """What a pass would do now."""
        report = self._controller(None).run_pass()
        self._show(report, None)
        note("nothing was submitted (--dry-run)")
        return _exit_code(report)

    def once(self, given: dict[str, Any]) -> int:
        """Passes until each lane is decided: as many as its rule wants, ten seconds apart."""
        with self._acquire(given) as held:
            controller = self._controller(held)
            report = controller.run_pass()
            give_up_s = time.monotonic() + self._rules.settle_s + 6 * _PASS_S
            said: dict[Shape, str] = {}
            while report.undecided and time.monotonic() < give_up_s:
                for lane in report.lanes:
                    word = lane.decision.value
                    if lane.lane in report.undecided and said.get(lane.lane) != word:
                        said[lane.lane] = word
                        note(f"{lane.lane}: {word}; {one_line(lane.reason)}; looking again")
                self._write_down(report, held)
                time.sleep(_PASS_S)
                report = _joined(report, controller.run_pass(report.undecided))
            self._write_down(report, held)
            self._show(report, held)
        return _exit_code(report)

    def go_on(self, every_s: int, for_s: int, given: dict[str, Any]) -> int:
        """Passes at a steady pace by this process's own clock, which no clock change moves."""
        with self._acquire(given) as held:
            controller = self._controller(held)
            next_s = time.monotonic()
            end_s = next_s + for_s
            while True:
                report = controller.run_pass()
                self._write_down(report, held)
                self._show(report, held)
                sys.stdout.flush()
                next_s = max(next_s + every_s, time.monotonic() + _LEAST_EVERY_S)
                if next_s > end_s:
                    return _exit_code(report)
                time.sleep(next_s - time.monotonic())

    def _controller(self, held: Held | None) -> Controller:
        from fleetcraft.fleet.renewal.control import Controller

        return Controller(self._lanes, self._rules, self._outside, self._intents, held=held)

    def _make_folders(self) -> None:
        from fleetcraft.trust import require_private_folder

        scratch = self._scratch
        for folder in (scratch.control, scratch.intents, scratch.locks, self._lock_folder):
            require_private_folder(folder)

    @property
    def _lock_folder(self) -> str:
        return f"{self._scratch.locks}/renew"

    def _lock(self) -> GenerationLock:
        from fleetcraft.locks import GenerationLock

        self._make_folders()
        purpose = f"the renewal of {self._scratch.root}"
        return GenerationLock(self._lock_folder, purpose=purpose, interval_s=_BEAT_S)

    def _acquire(self, given: dict[str, Any]) -> Held:
        from fleetcraft.locks import LockHeldError

        try:
            return self._lock().acquire(by_age=given["take_over"])
        except LockHeldError as error:
            if error.may_be_gone:
                error.hint = "fleetcraft renew --take-over, once you know that it is gone"
            raise

    def _write_down(self, report: PassReport, held: Held) -> None:
        """Leaves the last report where others can read it; for information only."""
        from fleetcraft.files import FileSystem
        from fleetcraft.view.renew import renew_shape

        fs, path = FileSystem(), f"{self._scratch.control}/renew.json"
        temporary = f"{path}.{held.holder.nonce}.tmp"
        with contextlib.suppress(OSError):
            fs.create(temporary, encode_json(renew_shape(report, generation=held.generation)))
            fs.replace(temporary, path)

    def _show(self, report: PassReport, held: Held | None) -> None:
        from fleetcraft.view.renew import render_renew, renew_shape
        from fleetcraft.view.text import Paint

        if self._session.json:
            print_json(renew_shape(report, generation=held.generation if held else None))
            return
        print_text(render_renew(report, paint=Paint.for_stream(sys.stdout), width=columns()))


def _joined(before: PassReport, after: PassReport) -> PassReport:
    """The report of a call: each lane as it was decided last."""
    newer = {report.lane: report for report in after.lanes}
    settled = {found.nonce: found for found in (*before.settled, *after.settled)}
    lanes = tuple(newer.get(report.lane, report) for report in before.lanes)
    return replace(after, lanes=lanes, settled=tuple(settled.values()))


def _exit_code(report: PassReport) -> int:
    return {"": 0, "slurm": 4, "files": 5}[report.trouble.value]


@contextlib.contextmanager
def _ended_by_term() -> Iterator[None]:
    """TERM ends the call like an interrupt, so that the lock is released."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ------------------------------------------------------------------------------- the real outside


def _wire(config: Config) -> Outside:
    """The functions that a control pass is handed: the real spools and the real Slurm."""
    from fleetcraft.fleet.launch.plan import submit_launch
    from fleetcraft.fleet.renewal.decision import Outside
    from fleetcraft.fleet.renewal.demand import DemandReader, took_work
    from fleetcraft.slurm import accounting, commands
    from fleetcraft.slurm.polls import Polls
    from fleetcraft.slurm.queue import my_jobs
    from fleetcraft.spool.control import read_markers
    from fleetcraft.spool.tree import SpoolTree

    polls = Polls()
    outer = SpoolTree(config.spool_dir("outer")).check_safe()
    inner_dir = config.spool_dir("gpu")
    inner = SpoolTree(inner_dir).check_safe() if os.path.isdir(inner_dir) else None
    trees = [tree for tree in (outer, inner) if tree is not None]

    def in_accounting(name: str) -> str:
        return accounting.job_named(polls, name) if accounting.keeps_accounts(polls) else ""

    return Outside(
        jobs=lambda: my_jobs(polls, fresh=True),
        demand=DemandReader(outer, inner).look,
        markers=lambda: read_markers(outer),
        balance=lambda account: accounting.balance(polls, account, config.text("balance.tres")),
        plan=lambda shape, comment, name: _plan(config, shape, comment, name),
        submit=submit_launch,
        cancel=commands.cancel,
        in_accounting=in_accounting,
        took_work=lambda job: took_work(trees, job),
    )


# ------------------------------------------------------------------------------ on a login node


def _renew_elsewhere(
    config: Config, lanes: list[Shape], given: dict[str, Any], *, reached: bool, json: bool
) -> int:
    """Lets the same call happen on a login node, if the settings say how to get there.

    Raises:
        ConfigError: They do not, or the way leads into a job again.
    """
    from fleetcraft.fleet.renewal.reach import run_on_login

    job = os.environ["SLURM_JOB_ID"]
    if reached:
        raise ConfigError(
            f"login.reach led into job {job}, and fleets are not renewed from inside a job",
            hint="login.reach must name a login node, such as: ssh login1",
            setting="login.reach",
        )
    if not config.text("login.reach"):
        raise ConfigError(
            f"this is inside job {job}, and fleets are not renewed from inside a job; "
            "nothing was submitted",
            hint="run it on a login node, or name the way there: login.reach, such as: ssh login1",
            setting="login.reach",
        )
    words = ["renew", "--reached", *(["--json"] if json else [])]
    words += [f"--lane={lane}" for lane in lanes]
    for name in ("once", "now", "take_over", "dry_run"):
        words += [f"--{name.replace('_', '-')}"] if given[name] else []
    for name in ("every", "for_"):
        words += [f"--{name.rstrip('_')}={given[name]}"] if given[name] else []
    for_s = parse_duration_s(given["for_"]) if given["for_"] else 0
    return run_on_login(config, words, timeout_s=for_s + 900)
