"""A fleet's scratch tree as hours of work leave it, made record by record: the same for every seed.

Records, journals and telemetry are written in the forms of the real writers; nothing runs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fleetcraft.identity import new_record_id
from fleetcraft.layout import Scratch, State
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.record import HISTORY_PREFIX, HistoryLine, Outcome, compose
from fleetcraft.spool.tree import SpoolTree
from tests.telemetry.journals import Launch, depth, iso, make_spool
from tests.telemetry.trees import line, write_file

TRACEBACK = """Loading checkpoint shards: 100%
Traceback (most recent call last):
  File "generate.py", line 214, in <module>
    main()
  File "generate.py", line 187, in main
    clip = decoder(latents, tile={tile})
RuntimeError: shape mismatch: expected 16 channels, found {found}
"""


@dataclass
class Written:
    """A spool while tasks are written into it."""

    tree: SpoolTree
    number: int = 0
    names: list[str] = field(default_factory=list)

    def task(
        self,
        name: str,
        state: State,
        history: Sequence[HistoryLine] = (),
        *,
        family: str = "",
        log: str | bytes = "",
        after: tuple[str, ...] = (),
    ) -> Path:
        """One record in the folder of its state, with the log of its last attempt."""
        self.number += 1
        spec = TaskSpec(name=name, command="run it", project_dir="/p", family=family, after=after)
        data = compose(spec, new_record_id())
        for each in history:
            data += HISTORY_PREFIX + msgspec.json.encode(each) + b"\n"
        paths = self.tree.paths
        folder = {
            State.WAITING: paths.waiting,
            State.PENDING: paths.pending,
            State.DONE: paths.done,
            State.FAILED: paths.failed,
        }[state]
        path = Path(folder) / f"{name}.sh"
        path.write_bytes(data)
        path.chmod(0o700)
        for each in history if log else ():
            target = Path(paths.root) / each.log
            target.write_bytes(log if isinstance(log, bytes) else log.encode())
        self.names.append(name)
        return path


def ended(
    name: str,
    end_s: float,
    *,
    wall_s: float = 60.0,
    attempt: int = 1,
    outcome: Outcome = Outcome.COMPLETED,
    to: str = "",
    exit_code: int | None = 0,
    host: str = "node-01",
    job: str = "81234",
    reason: str = "",
    with_log: bool = True,
) -> HistoryLine:
    """One history line."""
    goes = to or ("done" if outcome is Outcome.COMPLETED else "failed")
    return HistoryLine(
        claim=f"{name}-{attempt}",
        outcome=outcome,
        to=goes,  # type: ignore[arg-type]
        attempt=attempt,
        exit_code=exit_code,
        started_at=iso(end_s - wall_s),
        ended_at=iso(end_s),
        wall_s=wall_s,
        host=host,
        job=job,
        log=f"logs/{name}.{attempt}.log" if with_log else "",
        reason=reason,
    )


def spool_of(root: Path, which: str = "outer") -> Written:
    """An empty spool of a scratch tree."""
    scratch = Scratch(str(root))
    return Written(make_spool(Path(scratch.outer if which == "outer" else scratch.inner)))


@dataclass(frozen=True)
class Busy:
    """How large the fleet of `busy_fleet` is."""

    tasks: int = 400
    left: int = 60
    hosts: int = 4
    gpus: int = 2
    hours: float = 5.0
    interval_s: float = 30.0
    seed: int = 7


def busy_fleet(root: Path, how: Busy = Busy(), *, end_s: float | None = None) -> None:
    """Some hours of a fleet that generated clips, scored them, and had its troubles."""
    chance = random.Random(how.seed)
    end_s = time.time() - 40 if end_s is None else end_s
    start_s = end_s - how.hours * 3600
    root.mkdir(mode=0o700, exist_ok=True)
    spool = spool_of(root)
    hosts = [f"gpu-{number:03d}" for number in range(1, how.hosts + 1)]
    for number in range(how.tasks):
        at_s = start_s + 120 + (end_s - start_s - 120) * (number + 1) / how.tasks
        _one_task(spool, number, at_s + chance.uniform(-20, 0), chance, hosts)
    for number in range(how.tasks, how.tasks + how.left):
        state = State.WAITING if number % 4 == 0 else State.PENDING
        after = ("gen-00000",) if state is State.WAITING else ()
        spool.task(f"gen-{number:05d}", state, family="wan21-1.3b/480p/81f", after=after)
    _journals(spool.tree, hosts, how, start_s, end_s)
    folder = Path(Scratch(str(root)).telemetry)
    for place, host in enumerate(hosts):
        _telemetry(folder, place, host, how, (start_s, end_s))


def _one_task(
    spool: Written, number: int, at_s: float, chance: random.Random, hosts: Sequence[str]
) -> None:
    host = chance.choice(hosts)
    scoring = number % 5 == 4
    name = f"score-{number:05d}" if scoring else f"gen-{number:05d}"
    family = "" if scoring else "wan21-1.3b/480p/81f"
    wall_s = chance.lognormvariate(3.2 if scoring else 5.4, 0.35)
    luck = chance.random()
    last = {"wall_s": wall_s, "host": host}
    if luck < 0.02:
        log = TRACEBACK.format(tile=chance.randint(2, 9), found=chance.choice((4, 8, 12)))
        line_ = ended(name, at_s, outcome=Outcome.FAILED, exit_code=1, **last)
        spool.task(name, State.FAILED, [line_], family=family, log=log)
    elif luck < 0.03:
        reason = "timed out after 00:30:00"
        line_ = ended(
            name,
            at_s,
            outcome=Outcome.TIMEOUT,
            exit_code=None,
            reason=reason,
            wall_s=1800,
            host=host,
        )
        spool.task(name, State.FAILED, [line_], family=family, log="step 812 of 4000\n")
    elif luck < 0.08:
        first = ended(
            name,
            at_s - wall_s - 30,
            outcome=Outcome.OUT_OF_MEMORY,
            to="pending",
            exit_code=1,
            reason="a device ran out of memory (log)",
            wall_s=wall_s / 3,
            host=hosts[0],
        )
        again = ended(name, at_s, attempt=2, **last)
        spool.task(name, State.DONE, [first, again], family=family, log="done\n")
    else:
        spool.task(name, State.DONE, [ended(name, at_s, **last)], family=family, log="done\n")


def _journals(
    tree: SpoolTree, hosts: Sequence[str], how: Busy, start_s: float, end_s: float
) -> None:
    for number, host in enumerate(hosts):
        launch = Launch(
            tree, start_s, launch=f"{number:08x}", job="81234", host=host, gpus=how.gpus, slots=1
        )
        launch.write("arrive", start_s, slots=how.gpus, host=host, job="81234", gpus=how.gpus)
        if number:
            continue
        steps = int((end_s - start_s) // 60)
        for step in range(steps):
            share = step / max(1, steps - 1)
            pending = round(how.left + how.tasks * (1 - share))
            counts = depth(waiting=15, pending=pending, running=how.hosts * how.gpus)
            launch.write("depth", start_s + 60 * step, **counts)


def _telemetry(folder: Path, place: int, host: str, how: Busy, span_s: tuple[float, float]) -> None:
    """One host: the second one had nothing to do for a while, the last one's logger was silent."""
    start_s, end_s = span_s
    chance = random.Random(f"{how.seed} {host}")
    rows = []
    count = int((end_s - start_s) // how.interval_s)
    for step in range(count):
        share = step / count
        if place == how.hosts - 1 and 0.55 < share < 0.68:
            continue
        free = place == 1 and 0.3 < share < 0.4
        for gpu in range(how.gpus):
            util = 0 if free or chance.random() < 0.05 else round(chance.gauss(90 - 3 * place, 9))
            rows.append(_row(start_s + step * how.interval_s, gpu, host, util, free=free))
    gpus = range(how.gpus)
    write_file(
        folder,
        host,
        rows,
        job="81234",
        started=time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(start_s)),
        sidecar={
            "interval_s": how.interval_s,
            "started_at": iso(start_s),
            "gpus": [{"index": g, "uuid": f"GPU-{host}{g}", "name": "NVIDIA H100"} for g in gpus],
            "expected_gpus": how.gpus,
        },
    )


def _row(at_s: float, gpu: int, host: str, util: int, *, free: bool) -> str:
    util = min(100, max(0, util))
    return line(
        at_s,
        util_pct=util,
        mem_used_mib=3 if free else 52000,
        power_w=110 + 5 * util,
        gpu_index=gpu,
        gpu_uuid=f"GPU-{host}{gpu}",
        job_id="81234",
    )
