"""A process that asks once: its arguments are the folder, the interval, the kind, and the question.

It prints one JSON object: whether it got an answer, what it was, and when by the clock since boot.
"""

from __future__ import annotations

import json
import sys
import time

from fleetcraft.errors import SchedulerError
from fleetcraft.slurm.polls import Polls


def main() -> None:
    """Asks, and says what came of it."""
    folder, interval_s, kind, *argv = sys.argv[1:]
    polls = Polls(folder, interval_s=float(interval_s))
    began_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        answer = polls.ask(kind, argv, fresh=True, patience_s=60)
        said = {"text": answer.text, "fresh": answer.fresh, "age_s": answer.age_s}
    except SchedulerError as error:
        said = {"failure": error.message}
    said["began_s"] = began_s
    print(json.dumps(said))


if __name__ == "__main__":
    main()
