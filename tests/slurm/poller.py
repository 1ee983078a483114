"""A process that asks once: its arguments are the folder, the interval, the kind, and the question.

It makes a file beside the folder when it begins, and prints one JSON object: whether it got an
answer, and what it was.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fleetcraft.errors import SchedulerError
from fleetcraft.slurm.polls import Polls


def main() -> None:
    """Asks, and says what came of it."""
    folder, interval_s, kind, *argv = sys.argv[1:]
    polls = Polls(folder, interval_s=float(interval_s))
    Path(f"{folder}.begun-{os.getpid()}").touch()
    try:
        answer = polls.ask(kind, argv, fresh=True, patience_s=60)
        said = {"text": answer.text, "fresh": answer.fresh, "age_s": answer.age_s}
    except SchedulerError as error:
        said = {"failure": error.message}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
