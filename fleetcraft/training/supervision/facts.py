"""From pictures and records to the facts that the machine decides on.

Reads a marker and the declared end where they are due; acts on nothing. Invariant: what is not
known stays None on its way.
"""

from __future__ import annotations

from fleetcraft.training.plan.verification import Verified
from fleetcraft.training.records import Crash, Diagnosis, Stopped
from fleetcraft.training.supervision.machine import Look, Run
from fleetcraft.training.supervision.observing import Observer, Picture, stalled
from fleetcraft.training.supervision.post_mortem import unexplained
from fleetcraft.training.supervision.rooms import Rooms
from fleetcraft.training.supervision.slurm_word import NO_STEP, SlurmWord

NO_END = "it ended with 0, and no other end is declared"


def facts_of(picture: Picture, observer: Observer, rooms: Rooms) -> Look:
    """What a look at a watched run says, as the machine takes it."""
    ended = picture.run is Run.ENDED
    end, end_why = rooms.end() if ended else (None, "")
    if ended and rooms.plan.end is None:
        end, end_why = True, NO_END + _leftover_words(picture)
    return Look(
        now_s=picture.now_s,
        run=picture.run,
        clean=picture.launch.clean,
        exit_zero=picture.launch.exit_zero,
        end=end,
        end_why=end_why,
        abort=rooms.abort(),
        standing=picture.standing,
        why=picture.launch.why or picture.sight.why,
        step=picture.sight.step,
        dead=picture.dead,
        excused=observer.excused,
        in_phase=picture.in_phase,
        episode=picture.episode_words,
        warm=picture.now_s - observer.began_s >= rooms.plan.warmup_s,
        verified=isinstance(picture.verified, Verified),
        settle_s=picture.settle_s,
    )


def _leftover_words(picture: Picture) -> str:
    """What a command that ended with 0 has left running: it may have been the run itself."""
    left = sum(end.leftovers for end in picture.launch.ends)
    many = "processes that it left running were" if left > 1 else "process that it left running was"
    return f"; {left} {many} stopped" if left else ""


def examined(
    observer: Observer, picture: Picture, why: str, slurm: SlurmWord = NO_STEP
) -> Diagnosis:
    """How a watched run died, or why it stands: never NONE, since it is to be stopped."""
    found = observer.diagnose(quiet=stalled(picture), slurm=slurm)
    if found.crash is Crash.NONE or not found.episode_open:
        return unexplained(found, why)
    return found


def unreaped_words(stopped: Stopped) -> str:
    """What is left, process by process, for whoever has to look at it."""
    left = ", ".join(
        f"process {record.process.pid} on {record.place.host}" for record in stopped.left[:5]
    )
    why = stopped.why or "KILL did not end it within the bound"
    return f"{why}; left: {left}" if left else why
