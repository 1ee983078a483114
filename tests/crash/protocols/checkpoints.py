"""Checkpoints: committed, committed over a broken one, completed, retired, and the one resume.

Payloads are plain files, so no torch is loaded. Not here: several hosts. Invariant that is proved:
a boundary is complete or not there, retention leaves an EXACT checkpoint with the right hashes at
every moment, and a stretch is resumed once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from fleetcraft.layout import LANES, State
from fleetcraft.layout.runs import RunPaths
from fleetcraft.locks import GenerationLock
from fleetcraft.spool.store import Spool
from fleetcraft.training.checkpoint import claims, committing, retention
from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.records import (
    Kind,
    Level,
    Manifest,
    Part,
    SaveTakenError,
)
from fleetcraft.training.checkpoint.resuming import Standing
from fleetcraft.training.checkpoint.saving import Saving
from fleetcraft.training.checkpoint.store import CheckpointStore
from tests.crash.protocol import Place, Protocol
from tests.crash.protocols.broken import put_in_place
from tests.crash.protocols.locks import Ticks
from tests.training.checkpoint.incident import RESUME, TASK, Incident

IN_A_FILE = (Part.WEIGHTS, Part.OPTIMIZER, Part.SAMPLER, Part.RNG_PYTHON, Part.RNG_CPU)
NONE = (Part.SCHEDULER, Part.RNG_NUMPY, Part.RNG_DEVICE, Part.RNG_WORKERS)
RANKS = 2


def _store(place: Place) -> CheckpointStore:
    return CheckpointStore(f"{place.root}/ck")


def _fill(part: Saving) -> None:
    Path(part.path("state.bin")).write_text(f"step {part.step} of rank {part.rank}\n")
    for each in IN_A_FILE:
        part.part(each, "state.bin")
    for each in NONE:
        part.none(each, "not here")
    part.value(Part.DATASET, "sha256:0123")


def _save(place: Place, store: CheckpointStore, step: int, *, ranks: int = 1) -> Manifest:
    """All ranks of one save, one after another; rank 0 comes last and commits."""
    nonce = os.urandom(6).hex()
    for rank in reversed(range(ranks)):
        with store.save(step, rank=rank, world_size=ranks, protocol=PLAIN_RUN, nonce=nonce) as mine:
            _fill(mine)
    assert mine.manifest is not None
    place.say("committed", str(step))
    return mine.manifest


# -- starts


def _one(place: Place) -> None:
    _save(place, _store(place), 1)


def _one_and_a_broken_one(place: Place) -> None:
    store = _store(place)
    _save(place, store, 1)
    broken = _save(place, store, 2)
    path = Path(broken.folder, broken.files[0].path)
    path.write_bytes(path.read_bytes().swapcase())
    place.notes.write_text("committed 1\n")


def _whole_but_not_named(place: Place) -> None:
    """Rank 0 was killed between the manifest and the rename."""
    store = _store(place)
    _save(place, store, 1)

    def killed(store: CheckpointStore, manifest: Manifest) -> Manifest:
        raise KeyboardInterrupt

    real, committing.publish = committing.publish, killed
    try:
        _save(place, store, 2)
    except KeyboardInterrupt:
        return
    finally:
        committing.publish = real


def _three(place: Place) -> None:
    store = _store(place)
    for step in (1, 2, 3):
        _save(place, store, step)


def _done_too_early(place: Place) -> None:
    """A task is done at step 30, and 37 was declared."""
    there = Incident(place.root)
    _save(place, there.store, 30)
    there.declare()
    there.end_task(TASK)


# -- acts


def _commit(place: Place) -> None:
    _save(place, _store(place), 2, ranks=RANKS)


def _complete(place: Place) -> None:
    for manifest in _store(place).complete():
        place.say("committed", str(manifest.step))


def _retire(place: Place) -> None:
    store = _store(place)
    for folder in (store.paths.owner, store.paths.retired):
        store.make(folder)
    ticks = Ticks()
    lock = GenerationLock(store.paths.owner, purpose="it", clock=ticks.clock, sleep=ticks.sleep)
    held = lock.acquire()
    for step in retention.retire(store, keep=1, held=held).steps:
        place.say("retired", str(step))
    held.release()


def _resume(place: Place) -> None:
    if _incident(place).look(resume=True).standing is Standing.RESUMED:
        place.say("resumed")


def _incident(place: Place) -> Incident:
    """The same as another process has it: what the tests' own class would make is there."""
    there = Incident.__new__(Incident)
    there.root = place.root
    there.paths = RunPaths(f"{place.root}/runs/{TASK}")
    there.spool_dir = f"{place.root}/taskq"
    there.spool = Spool(there.spool_dir, project_dir="/")
    there.store = CheckpointStore(there.paths.checkpoints)
    return there


# -- proofs


def _prove(place: Place) -> None:
    """One pass as the next launch makes it, and the same save once more."""
    store = _store(place)
    _boundaries_are_whole(place, store)
    _one_can_be_resumed_from(store, 1)
    store.complete()
    _boundaries_are_whole(place, store)
    with contextlib.suppress(SaveTakenError):
        _save(place, store, 2)
    _one_can_be_resumed_from(store, 2)
    _save(place, store, 3)
    assert [manifest.step for manifest in store.committed()] == [1, 2, 3]
    store.clear_abandoned()
    assert not store.look().pending, "unpublished saves stay for ever"
    assert not store.look().retiring


def _boundaries_are_whole(place: Place, store: CheckpointStore) -> None:
    sight = store.look()
    assert not sight.faults, sight.faults
    assert not sight.unknown, sight.unknown
    sound = set()
    for manifest in sight.committed:
        verdict = store.verify(manifest, Level.HASHES)
        known_broken = manifest.step == 2 and _was_broken_before(manifest)
        assert verdict.answer or known_broken, f"step {manifest.step}: {verdict.reasons}"
        if verdict.answer:
            assert manifest.kind is Kind.EXACT
            sound.add(manifest.step)
    promised = {int(words[1]) for words in place.said() if words[0] == "committed"}
    assert promised <= sound, f"{promised - sound} was committed, and is not there whole"


def _was_broken_before(manifest: Manifest) -> bool:
    text = Path(manifest.folder, manifest.files[0].path).read_text()
    return text.startswith("STEP")


def _one_can_be_resumed_from(store: CheckpointStore, least: int) -> None:
    newest = store.newest(Kind.EXACT, Level.HASHES)
    assert newest is not None, "no EXACT checkpoint has hashes that hold"
    assert newest.step >= least, f"the newest is {newest.step}, expected {least} or later"


def _prove_retired(place: Place) -> None:
    store = _store(place)
    _one_can_be_resumed_from(store, 3)
    anchor = store.newest(Kind.EXACT, Level.CONTINUED)
    assert anchor is not None, "no EXACT checkpoint that went on is left"
    assert anchor.step == 2
    assert not store.look().faults
    gone = {int(words[1]) for words in place.said() if words[0] == "retired"}
    there = {manifest.step for manifest in store.committed()}
    assert not gone & there, f"{gone & there} was retired, and is still there"
    assert {2, 3} <= there
    for manifest in store.committed():
        assert store.verify(manifest, Level.HASHES).answer, f"half of {manifest.step} is gone"
    _retire(place)
    assert [manifest.step for manifest in store.committed()] == [2, 3]
    assert not store.look().retiring, "what is being deleted stays for ever"


def _prove_resumed(place: Place) -> None:
    there = _incident(place)
    resumed = [words for words in place.said() if words[0] == "resumed"]
    found = there.look(resume=True)
    assert found.standing in (Standing.RESUMED, Standing.RESUMING), found.reason
    said = len(resumed) + (found.standing is Standing.RESUMED)
    assert said <= 1, f"the resume was claimed {said} times"
    again = there.look(resume=True)
    assert again.standing is Standing.RESUMING, again.reason
    tree = there.spool.tree
    assert tree.find(RESUME).state is State.PENDING
    waiting = [
        file
        for folder in (*(tree.paths.lane(lane) for lane in LANES), tree.paths.waiting)
        for file in os.listdir(folder)
        if file.endswith(".sh")
    ]
    assert waiting == [f"{RESUME}.sh"], f"more than one resume waits: {waiting}"


# -- rules that are broken on purpose


def _named_before_it_is_whole() -> None:
    """Rank 0 gives the folder its name first, and writes the manifest there."""
    real = committing.Committing.publish

    def publish(self: committing.Committing, check: Callable[[], object]) -> Manifest:
        mine, store = self._saving, self._store
        final = store.paths.step(mine.step)
        if store.fs.exists(final):
            return real(self, check)
        store.fs.rename_new(mine.folder, final)
        mine.folder = final
        data = committing.write_manifest(self._manifest())
        store.fs.create(f"{final}/{committing.MANIFEST}", data)
        return committing.read_step(store.fs, final, mine.step)

    committing.Committing.publish = publish  # type: ignore[method-assign]


def _without_an_anchor() -> None:
    """All but the newest go, from the newest on, and one after another by its own name."""

    def retire_one(
        store: CheckpointStore, manifest: Manifest, anchor: int | None, generation: int
    ) -> None:
        retention.clear(store.fs, manifest.folder)

    retention._retire_one = retire_one


def _claim_written_in_place() -> None:
    claims.put_if_absent = put_in_place  # type: ignore[attr-defined]


_NAMED = (("the name comes before the manifest", _named_before_it_is_whole),)
PROTOCOLS = (
    Protocol("checkpoints: commit of two ranks", _one, _commit, _prove, 100, mutations=_NAMED),
    Protocol("checkpoints: over a broken one", _one_and_a_broken_one, _commit, _prove, 100),
    Protocol("checkpoints: complete a dead save", _whole_but_not_named, _complete, _prove, 30),
    Protocol(
        "checkpoints: retire", _three, _retire, _prove_retired, 100,
        mutations=(("they are deleted under their own name", _without_an_anchor),),
    ),
    Protocol(
        "checkpoints: the one resume", _done_too_early, _resume, _prove_resumed, 60,
        mutations=(("the claim is written in place", _claim_written_in_place),),
    ),
)  # fmt: skip
