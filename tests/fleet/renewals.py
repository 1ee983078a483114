"""A site that renewal tests can break: a queue, a balance and a clock in memory, files on disk.

Not here: any decision, and the real Slurm; tests/slurm has that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleetcraft.errors import SchedulerError
from fleetcraft.files import FileSystem
from fleetcraft.fleet.renewal.control import Controller
from fleetcraft.fleet.renewal.decision import Outside, PassReport, Rules
from fleetcraft.fleet.renewal.demand import Demand, Kind
from fleetcraft.fleet.renewal.intents import Intents
from fleetcraft.fleet.shapes import Shape, parse_shape
from fleetcraft.locks import GenerationLock, Held
from fleetcraft.slurm.accounting import Balance, Status
from fleetcraft.slurm.queue import Job, Jobs

ROOT = "0123456789ab"
CLUSTER = "test"
NO_ACCOUNTS = Balance(status=Status.NOT_CHECKED, reason="nothing to ask", tres="node")
EIGHT, FOUR, ONE = (parse_shape(text) for text in ("8x12:00:00", "4x12:00:00", "1x01:00:00"))


def a_job(job_id: str, **fields: Any) -> Job:
    """A waiting job of one node and an hour, with what a test wants to say of it."""
    given: dict[str, Any] = {
        "job_id": job_id, "name": "fleet", "comment": None, "state": "PENDING",
        "partition": "main", "account": "proj", "qos": None, "nodes": 1, "node_list": "",
        "reason": None, "restarts": 0, "submitted_at": None, "started_at": None, "ends_at": None,
        "time_limit_s": 3600, "time_left_s": 3600, "tres_per_node": None, "tres": {},
        "display_id": job_id, "elements": 1,
    }  # fmt: skip
    return Job(**{**given, **fields})


def pending(**kinds: int) -> Counter[Kind]:
    """Outer tasks: ``plain=3`` declare no time, ``s600=2`` declare ten minutes, ``gpu=1`` inner."""
    found: Counter[Kind] = Counter()
    for name, count in kinds.items():
        time_s = int(name[1:]) if name[0] == "s" else None
        found[Kind(time_s, name == "gpu", "")] += count
    return found


@dataclass(frozen=True)
class FakePlan:
    """A submission as the fake sbatch takes it."""

    shape: Shape
    comment: str
    name: str

    @property
    def sbatch(self) -> list[str]:
        return ["sbatch", f"--comment={self.comment}", f"--job-name={self.name}"]


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Site:
    """What is outside, and how it misbehaves.

    Attributes:
        now_s: The monotonic clock of everybody here.
        tasks: Pending tasks.
        queue: squeue's jobs.
        age_s: How old squeue's answer is.
        fails: What a question or act raises instead of answering, by its name.
        on: What happens right before a question or act.
        submitted: Every job that sbatch has made.
        recorded: Jobs that only sacct knows, by name.
        worked: Jobs whose workers started something.
    """

    folder: Path
    now_s: float = 1000.0
    tasks: Counter[Kind] = field(default_factory=Counter)
    queue: dict[str, Job] = field(default_factory=dict)
    age_s: float = 0.0
    cluster: str = CLUSTER
    left: Balance = field(default_factory=lambda: NO_ACCOUNTS)
    marks: dict[str, str] = field(default_factory=dict)
    fails: dict[str, BaseException] = field(default_factory=dict)
    on: dict[str, Callable[[], None]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    submitted: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    recorded: dict[str, str] = field(default_factory=dict)
    worked: set[str] = field(default_factory=set)
    next_job: int = 800

    def __post_init__(self) -> None:
        for name in ("intents", "lock"):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)

    def clock(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def _asked(self, what: str) -> None:
        self.asked[what] += 1
        if what in self.on:
            self.on[what]()
        if what in self.fails:
            raise self.fails[what]

    def jobs(self) -> Jobs:
        self._asked("jobs")
        return Jobs(cluster=self.cluster, age_s=self.age_s, jobs=dict(self.queue))

    def demand(self) -> Demand:
        self._asked("demand")
        total = self.tasks.total()
        return Demand(kinds=+self.tasks.copy(), pending=total, unread=0, unfit=0, seen_s=self.now_s)

    def balance(self, account: str) -> Balance:
        self._asked("balance")
        return self.left

    def submit(self, plan: FakePlan) -> str:
        self._asked("submit")
        job_id = self.enter(plan)
        if "after submit" in self.on:
            self.on["after submit"]()
        if "after submit" in self.fails:
            raise self.fails["after submit"]
        return job_id

    def enter(self, plan: FakePlan) -> str:
        """What slurmctld does with a submission that reached it."""
        self.next_job += 1
        job_id = str(self.next_job)
        shape = plan.shape
        self.queue[job_id] = a_job(
            job_id, name=plan.name, comment=plan.comment, nodes=shape.nodes,
            time_limit_s=shape.limit_s, time_left_s=shape.limit_s,
        )  # fmt: skip
        self.submitted.append(job_id)
        return job_id

    def cancel(self, job_id: str) -> None:
        self._asked("cancel")
        self.cancelled.append(job_id)
        self.queue.pop(job_id, None)

    def in_accounting(self, name: str) -> str:
        self._asked("sacct")
        return self.recorded.get(name, "")

    def run(self, job_id: str, *, left_s: int | None = None) -> None:
        """The job starts, or goes on until so much is left."""
        job = self.queue[job_id]
        left_s = job.time_limit_s if left_s is None else left_s
        self.queue[job_id] = replace(job, state="RUNNING", time_left_s=left_s)
        self.worked.add(job_id)

    def outside(self) -> Outside:
        return Outside(
            jobs=self.jobs,
            demand=self.demand,
            markers=lambda: self.marks,
            balance=self.balance,
            plan=FakePlan,
            submit=self.submit,
            cancel=self.cancel,
            in_accounting=self.in_accounting,
            took_work=lambda job: job in self.worked,
        )

    def lock(self, *, fs: FileSystem | None = None, **settings: Any) -> GenerationLock:
        given = {"clock": self.clock, "sleep": self.wait, **settings}
        return GenerationLock(str(self.folder / "lock"), purpose="renewal", fs=fs, **given)

    def controller(
        self, *lanes: Shape, held: Held | None = None, fs: FileSystem | None = None, **rules: Any
    ) -> Renewer:
        """A process that renews some lanes; it takes the lock unless it is handed one."""
        if held is None:
            held = self.lock(fs=fs, judge=lambda holder: False).acquire()
        return Renewer(self, list(lanes), held, Rules(root=ROOT, **rules), fs)

    def intents(self) -> Intents:
        return Intents(str(self.folder / "intents"))

    def files(self) -> list[str]:
        """The intents and endings on disk."""
        return sorted(file.name for file in (self.folder / "intents").glob("*.json"))


class Renewer:
    """A controller on a site."""

    def __init__(
        self, site: Site, lanes: list[Shape], held: Held | None, rules: Rules, fs: Any = None
    ) -> None:
        self.site = site
        self.held = held
        self._controller = Controller(
            lanes, rules, site.outside(), Intents(str(site.folder / "intents"), fs),
            held=held, clock=site.clock,
        )  # fmt: skip

    def look(self) -> PassReport:
        """One pass, ten seconds after the one before."""
        self.site.wait(10)
        return self._controller.run_pass()

    def decides(self, passes: int = 1) -> list[str]:
        """What the last of some passes decided, one word a lane."""
        report = [self.look() for _ in range(passes)][-1]
        return [lane.decision.value for lane in report.lanes]

    def reasons(self) -> str:
        """Why one pass decided as it did."""
        return "; ".join(lane.reason for lane in self.look().lanes)


def no_answer(words: str = "slurmctld is away") -> SchedulerError:
    return SchedulerError(words)
