"""The one link that makes a policy version.

The whole commit is first written inside the claim folder and then linked to the version's name, so
a follower that renames that folder away ends every late commit, and a commit is never torn. Not
here: who may commit (`batch`). Invariant: STANDS, TAKEN and FENCED are seen, not concluded.
"""

from __future__ import annotations

from enum import StrEnum

from fleetcraft.files import NO_HARD_LINKS, FileSystem
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.transaction.moves import discard
from fleetcraft.rollouts.transaction.records import Places

# Mounts without hard links: there a rename to a new name does the same, if the mount can refuse to
# replace; where it cannot, a look comes before it.


class Published(StrEnum):
    """What became of the link."""

    STANDS = "stands"
    TAKEN = "taken"
    FENCED = "fenced"
    UNKNOWN = "unknown"


def write_source(queue: RolloutQueue, places: Places, data: bytes) -> Published | None:
    """Writes the commit where it is linked from; None when it is there, whole and on disk.

    Returns:
        STANDS when an earlier call has committed this very content; FENCED when the claim folder
        is gone, so that this transaction can never commit.

    Raises:
        OSError: It was not written, such as on a full disk; nothing was committed.
    """
    fs, source = queue.fs, places.commit_source
    try:
        try:
            fs.create(source, data, durable=True)
        except FileExistsError:
            # From an earlier call, whole or torn.
            if _stands(fs, places, data):
                return Published.STANDS
            discard(fs, source)
            fs.create(source, data, durable=True)
    except FileNotFoundError:
        return Published.FENCED
    return None


def publish(queue: RolloutQueue, places: Places, data: bytes) -> tuple[Published, OSError | None]:
    """Links the commit to its version's name.

    Returns:
        What is seen to have happened, and what was reported of the attempt.

    Raises:
        OSError: It stands, but could not be forced to disk.
    """
    fs = queue.fs
    try:
        _link(fs, places.commit_source, places.commit)
    except OSError as error:
        seen = _look(fs, places, data)
        if seen is not Published.STANDS:
            return seen, error
    fs.sync_folder(queue.paths.commits)
    return Published.STANDS, None


def _link(fs: FileSystem, source: str, final: str) -> None:
    try:
        fs.link(source, final)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        fs.rename_new(source, final)


def _look(fs: FileSystem, places: Places, data: bytes) -> Published:
    try:
        if _stands(fs, places, data):
            return Published.STANDS
        if fs.exists(places.commit):
            return Published.TAKEN
        return Published.UNKNOWN if fs.exists(places.commit_source) else Published.FENCED
    except OSError:
        return Published.UNKNOWN


def _stands(fs: FileSystem, places: Places, data: bytes) -> bool:
    try:
        return fs.read(places.commit) == data
    except FileNotFoundError:
        return False
