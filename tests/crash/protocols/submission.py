"""The intent of a submission: recorded, submitted by a program, written down; and found out later.

The program in place of sbatch notes outside the tree what it was given; once it may refuse, lose
its answer, or be late: it is stopped as one that does not answer, and its job comes all the same.
Not here: how a pass decides (tests/fleet), and the real Slurm (tests/slurm). Invariant that is
proved: one job was wanted, so there is never a second one, whoever was killed in between.
"""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from fleetcraft.errors import SubmissionUnknownError
from fleetcraft.fleet.renewal import submission
from fleetcraft.fleet.renewal.control import Controller
from fleetcraft.fleet.renewal.decision import Decision, Outside, PassReport, Rules
from fleetcraft.fleet.renewal.demand import Demand
from fleetcraft.fleet.renewal.intents import Ending, Entry, How, Intents
from fleetcraft.fleet.shapes import parse_shape
from fleetcraft.locks import GenerationLock
from fleetcraft.slurm import commands
from fleetcraft.slurm.queue import Jobs
from tests.crash.protocol import Place, Protocol
from tests.fleet.renewals import CLUSTER, NO_ACCOUNTS, ROOT, FakePlan, a_job, pending

LANE = parse_shape("8x12:00:00")
_ANSWER_WITHIN_S = 0.2
_LATE_BY_S = 0.3
_OVER_WITHIN_S = 5.0
submission._TRY_AGAIN_S = 0.0  # a file system that fails once is not waited for

_SBATCH = """#!/bin/sh
queue={queue}
enter() {{
    printf '%s\\n' "$@" > "$queue/given.$$"
    job=801
    while ! mkdir "$queue/job.$job" 2> /dev/null; do job=$((job + 1)); done
    mv "$queue/given.$$" "$queue/job.$job/given"
}}
if [ "$1" = --late ]; then
    sleep {late_by_s}
    shift
    enter "$@"
    rm "$queue/at-work"
    exit
fi
how=$(cat "$queue/how")
echo answers > "$queue/how"
case $how in
answers) enter "$@"; echo "$job" ;;
refuses) echo "sbatch: error: Invalid qos specification" >&2; exit 1 ;;
loses) enter "$@"; echo "sbatch: error: Unable to contact slurm controller" >&2; exit 1 ;;
late)
    : > "$queue/at-work"
    setsid -f "$0" --late "$@" < /dev/null > /dev/null 2>&1
    exec sleep 60
    ;;
esac
"""


class Site:
    """The world outside the tree: a queue in a folder beside it, and a clock that is moved by hand.

    Args:
        place: Of the trial.
    """

    def __init__(self, place: Place) -> None:
        self.now_s = 1000.0
        self._folder = place.notes.parent / "slurm"
        self._place = place

    def build(self, how: str) -> None:
        """Makes the tree's folders, and a queue whose sbatch misbehaves once."""
        for name in ("lock", "intents"):
            os.mkdir(self._place.root / name, 0o700)
        os.mkdir(self._folder)
        (self._folder / "how").write_text(f"{how}\n")
        program = self._folder / "sbatch"
        queue = shlex.quote(str(self._folder))
        program.write_text(_SBATCH.format(queue=queue, late_by_s=_LATE_BY_S))
        program.chmod(0o700)

    def clock(self) -> float:
        """Seconds."""
        return self.now_s

    def wait(self, seconds: float) -> None:
        """Lets so many seconds pass."""
        self.now_s += seconds

    def entered(self) -> dict[str, list[str]]:
        """What sbatch has brought into the queue: its arguments, by the job's id."""
        found = {}
        for given in self._folder.glob("job.*/given"):
            found[given.parent.name.partition(".")[2]] = given.read_text().splitlines()
        return found

    def jobs(self) -> Jobs:
        """squeue's answer: every job waits."""
        jobs = {}
        for job_id, given in self.entered().items():
            words = (word[2:].partition("=") for word in given if word.startswith("--"))
            options = {name: value for name, _, value in words}
            jobs[job_id] = a_job(
                job_id, name=options["job-name"], comment=options["comment"], nodes=LANE.nodes,
                time_limit_s=LANE.limit_s, time_left_s=LANE.limit_s,
            )  # fmt: skip
        return Jobs(cluster=CLUSTER, age_s=0.0, jobs=jobs)

    def submit(self, plan: FakePlan) -> str:
        """As a launch does, with the program of this site."""
        os.environ["PATH"] = f"{self._folder}:{os.environ['PATH']}"
        options = plan.sbatch[1:]
        return commands.submit(options, "/fleet.sbatch", timeout_s=_ANSWER_WITHIN_S)

    def until_sbatch_is_over(self) -> None:
        """Waits for a late one, for which a controller waits by its own clock."""
        deadline_s = time.monotonic() + _OVER_WITHIN_S
        while (self._folder / "at-work").exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)

    def renew(self, passes: int, every_s: float) -> list[PassReport]:
        """A controller: it takes the lock, makes some passes, and leaves."""
        folder = self._place.root
        lock = GenerationLock(
            f"{folder}/lock", purpose="renewal", clock=self.clock, sleep=self.wait
        )
        held = lock.acquire()
        controller = Controller(
            [LANE],
            Rules(root=ROOT, by_hand=True),
            self._outside(),
            Intents(f"{folder}/intents"),
            held=held,
            clock=self.clock,
        )
        reports = []
        for _ in range(passes):
            self.wait(every_s)
            reports.append(controller.run_pass())
            for lane in reports[-1].lanes:
                if lane.decision in (Decision.SUBMITTED, Decision.REFUSED):
                    self._place.say(lane.decision.value, lane.job_id or "-")
        held.release()
        return reports

    def _outside(self) -> Outside:
        tasks = pending(plain=3 * LANE.nodes)  # more than one fleet takes: a second is tempting
        return Outside(
            jobs=self.jobs,
            demand=lambda: Demand(
                kinds=tasks, pending=tasks.total(), unread=0, unfit=0, seen_s=self.now_s
            ),
            markers=dict,
            balance=lambda account: NO_ACCOUNTS,
            plan=FakePlan,
            submit=self.submit,
            cancel=_must_not_be_asked,
            in_accounting=lambda name: "",
            took_work=lambda job: True,
        )


def _must_not_be_asked(job_id: str) -> None:
    raise AssertionError(f"job {job_id} would be cancelled, and it is wanted")


# -- starts and acts


def _a_site(how: str) -> Callable[[Place], None]:
    return lambda place: Site(place).build(how)


def _left_open(*, submitted: bool) -> Callable[[Place], None]:
    """A start: an intent was recorded, and what became of it could not be written down."""

    def cannot(*_: object) -> Ending:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def unknown(plan: FakePlan) -> str:
        raise SubmissionUnknownError("sbatch was killed before it had asked", plan.name)

    def prepare(place: Place) -> None:
        site = Site(place)
        site.build("answers")
        if submitted:
            Intents.end = cannot  # type: ignore[method-assign]
        else:
            site.submit = unknown  # type: ignore[method-assign]
        site.renew(1, 10.0)
        assert len(site.entered()) == submitted

    return prepare


def _renew_once(place: Place) -> None:
    Site(place).renew(1, 10.0)


def _renew_for_long(place: Place) -> None:
    Site(place).renew(3, 200.0)


# -- proof


def _prove(place: Place) -> None:
    site = Site(place)
    assert len(site.entered()) <= 1, f"two jobs after one pass: {site.entered()}"
    site.renew(1, 10.0)  # at once, while a late sbatch may still be at work
    site.until_sbatch_is_over()
    assert len(site.entered()) <= 1, f"two jobs after a second controller: {site.entered()}"
    reports = site.renew(4, 200.0)
    entered = site.entered()
    decision = reports[-1].lanes[0].decision
    assert len(entered) == 1, f"one fleet was wanted, there are {entered}; {reports[-1].lanes[0]}"
    assert decision is Decision.QUEUED, f"it waits, and the pass says {decision}"
    for words in place.said():
        if words[0] == Decision.SUBMITTED:
            assert words[1] in entered, f"{words} was said, and the queue has {list(entered)}"
    _written_down(place.root / "intents", entered)


def _written_down(folder: Path, entered: dict[str, list[str]]) -> None:
    entry = Intents(str(folder)).latest()[LANE.key]
    assert isinstance(entry, Entry), entry
    assert entry.ending is not None, f"{entry.intent} is open for ever"
    assert entry.ending.how is How.SUBMITTED
    assert entry.ending.job in entered, f"{entry.ending} is not in {list(entered)}"
    windows = sorted(path.name for path in folder.glob("*.json"))
    wanted = entry.intent.window * 2
    assert len(windows) == wanted, f"window {entry.intent.window}, and there are {windows}"
    nonces = [word for word in entered[entry.ending.job] if entry.intent.nonce in word]
    assert nonces, f"job {entry.ending.job} does not carry nonce {entry.intent.nonce}"


# -- rules, broken


def _submit_first() -> None:
    """The intent is recorded once the job is there."""
    make = submission.Submission.make

    def later(self: submission.Submission, plan: FakePlan, **given: object) -> object:
        job_id = given["submit"](plan)  # type: ignore[operator]
        given["submit"] = lambda plan: job_id
        return make(self, plan, **given)  # type: ignore[arg-type]

    submission.Submission.make = later  # type: ignore[assignment, method-assign]


def _give_up_at_once() -> None:
    """An intent without a job is given up at the first look, however long sbatch may take."""
    settle = submission.settle

    def hasty(*words: object, **given: object) -> object:
        return settle(*words, **{**given, "watched_s": 1e9})  # type: ignore[arg-type]

    from fleetcraft.fleet.renewal import control

    control.settle = hasty  # type: ignore[assignment]


_FIRST = ("submit_before_recording", _submit_first)
_HASTY = ("give_up_at_once", _give_up_at_once)

PROTOCOLS: tuple[Protocol, ...] = (
    Protocol(
        "submission: answered", _a_site("answers"), _renew_once, _prove, 50, mutations=(_FIRST,)
    ),
    Protocol("submission: refused", _a_site("refuses"), _renew_once, _prove, 50),
    Protocol("submission: the answer is lost", _a_site("loses"), _renew_once, _prove, 40),
    Protocol(
        "submission: sbatch is late", _a_site("late"), _renew_once, _prove, 40,
        mutations=(_HASTY,),
    ),
    Protocol(
        "submission: find the job", _left_open(submitted=True),
        _renew_once, _prove, 40,
    ),
    Protocol(
        "submission: give up what was not made", _left_open(submitted=False),
        _renew_for_long, _prove, 60,
    ),
)  # fmt: skip
