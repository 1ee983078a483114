"""Evidence: a manifest, an archive, a bag, a result, an origin, and a grid on its way to release.

Not here: what is evidence of what. Invariant that is proved: a name is whole and verifies or is not
there, what was promised to be written is there, and a state of a grid follows the one before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bagit
import msgspec

from fleetcraft.errors import DataError, FleetError
from fleetcraft.evidence import append
from fleetcraft.evidence.files import keeping
from fleetcraft.evidence.files.archive import archive, verify_archive
from fleetcraft.evidence.files.bag import export, verify_bag
from fleetcraft.evidence.files.keeping import keep_manifest, keep_receipt
from fleetcraft.evidence.files.manifest import make_manifest, read_manifest
from fleetcraft.evidence.files.receipts import read_receipt
from fleetcraft.evidence.files.verifying import Verdict, Verification, verify
from fleetcraft.evidence.records import Level
from fleetcraft.evidence.release import grid as grids
from fleetcraft.evidence.release.cells import complete
from fleetcraft.evidence.release.finding import Surroundings
from fleetcraft.evidence.release.gate_file import read_gate_file
from fleetcraft.evidence.release.gates import decide, keep, read_decision, release
from fleetcraft.evidence.release.grid import Grid, GridState, freeze, read_standing
from fleetcraft.evidence.results import sets
from fleetcraft.evidence.results.sets import read_set
from fleetcraft.evidence.tracing import origins
from fleetcraft.evidence.tracing.origins import digest_of_prefix, read_origin, stamp
from fleetcraft.files import FileSystem
from fleetcraft.layout.evidence import EvidencePaths
from tests.crash.protocol import Place, Protocol
from tests.crash.protocols.broken import put_in_place
from tests.evidence.folders import plant

FILES = {"a.csv": b"x,y\n1,2\n", "clips/one.mp4": b"\0" * 500}
_Verify = Callable[[str, Level], Verification]


def _room(place: Place) -> EvidencePaths:
    return EvidencePaths(f"{place.root}/evidence")


def _set(place: Place) -> str:
    return f"{place.root}/set"


def _planted(place: Place) -> None:
    plant(place.root / "set", FILES)


# ----------------------------------------------------------------------------------- a manifest


def _keep_manifest(place: Place) -> None:
    made = make_manifest(_set(place), name="set")
    keep_manifest(_room(place), made, _set(place))
    place.say("kept", made.root_sha256)


def _prove_manifest(place: Place) -> None:
    path = _room(place).manifest("set")
    if place.said() or os.path.exists(path):
        kept = read_manifest(path)
        found = verify(kept, _set(place), Level.HASHED, everything=True)
        assert found.verdict is Verdict.VERIFIED, found.differences
        assert len(kept.files) == len(FILES), "a file was left out"
        assert place.said() in ([], [["kept", kept.root_sha256]])
    made = make_manifest(_set(place), name="set")
    there, _ = keep_manifest(_room(place), made, _set(place))
    assert there.root_sha256 == made.root_sha256
    assert len(os.listdir(_room(place).manifests)) <= 2


# ------------------------------------------------------------------------- an archive, and a bag


def _archive(place: Place) -> None:
    made = archive(make_manifest(_set(place), name="set"), _set(place), f"{place.root}/final")
    place.say("made", made.receipt.nonce)
    keep_receipt(_room(place), made.receipt)
    place.say("receipt")


def _export(place: Place) -> None:
    export(make_manifest(_set(place), name="set"), _set(place), f"{place.root}/final")
    place.say("made")


def _folder(place: Place, verified: _Verify) -> None:
    """The final name, and what lies beside it under names of calls that were cut short."""
    final = f"{place.root}/final"
    if place.said() or os.path.exists(final):
        found = verified(final, Level.REREAD)
        assert found.verdict is Verdict.VERIFIED, (found.differences, found.unread)
        for name, data in FILES.items():
            assert Path(final, "data", name).read_bytes() == data
    beside = set(os.listdir(place.root)) - {"set", "final", "evidence"}
    assert all(name.endswith(".partial") for name in beside), beside
    assert len(beside) <= 1, f"more than one temporary folder is left: {beside}"


def _prove_archive(place: Place) -> None:
    _folder(place, verify_archive)
    made = archive(make_manifest(_set(place), name="set"), _set(place), f"{place.root}/final")
    promised = [words[1] for words in place.said() if words[0] == "made"]
    assert promised in ([], [made.receipt.nonce]), "a promised archive was replaced"
    if ["receipt"] in place.said():
        receipts = [Path(_room(place).receipts, n) for n in os.listdir(_room(place).receipts)]
        nonces = [read_receipt(str(p)).nonce for p in receipts if p.suffix == ".json"]
        assert made.receipt.nonce in nonces, "a promised receipt is gone"
    _folder(place, verify_archive)


def _prove_bag(place: Place) -> None:
    _folder(place, verify_bag)
    export(make_manifest(_set(place), name="set"), _set(place), f"{place.root}/final")
    _folder(place, verify_bag)
    bagit.Bag(f"{place.root}/final").validate()


# -------------------------------------------------------------------------------------- a result


def _one_result(place: Place) -> None:
    _planted(place)
    _append(place, 0)


def _append(place: Place, seed: int) -> None:
    made = append(
        "s", arm="full", seed=seed, metrics={"score": 0.5}, root=place.root,
        outputs=[f"{_set(place)}/a.csv"],
    )  # fmt: skip
    place.say("appended", made.nonce)


def _append_two(place: Place) -> None:
    """The second by the same writer; the first one once more where it failed, as callers do."""
    for seed in (1, 2):
        try:
            _append(place, seed)
        except (OSError, FleetError):
            _append(place, seed)


def _prove_results(place: Place) -> None:
    _results(place)
    _append(place, 3)
    assert [row.result.seed for row in _results(place)].count(3) == 1


def _results(place: Place) -> list[sets.Row]:
    found = read_set(_room(place).folder, "s")
    assert not found.damaged, found.counts
    assert len(found.rejects) <= 1, f"more than one record is torn: {found.counts}"
    seeds = [row.result.seed for row in found.rows]
    assert len(seeds) == len(set(seeds)), f"a result counts twice: {seeds}"
    nonces = {row.result.nonce for row in found.rows}
    promised = {words[1] for words in place.said()}
    # What says the same as an earlier line is counted as said again, and does not count twice.
    assert len(promised - nonces) <= found.repeated, "a promised result is not there"
    return found.rows


# -------------------------------------------------------------------------------------- an origin

FIGURE = "figure.svg"


def _drawn_once(place: Place) -> None:
    _planted(place)
    _draw(place, "one")
    _stamp(place, "one")


def _draw(place: Place, by: str) -> None:
    (place.root / FIGURE).write_text(f"<svg>{by}</svg>\n")


def _stamp(place: Place, by: str) -> None:
    sources = [f"{_set(place)}/{name}" for name in FILES]
    stamp(f"{place.root}/{FIGURE}", sources, made_by=by)
    place.say("stamped", by)


def _stamp_anew(place: Place) -> None:
    _stamp(place, "two")


def _prove_stamped(place: Place) -> None:
    path = f"{place.root}/{FIGURE}"
    now = read_origin(path)
    assert now is not None, "the origin before is gone"
    assert now.made_by == place.said()[-1][1] or now.made_by == "two", "an old origin came back"
    assert (now.size_bytes, now.sha256) == digest_of_prefix(FileSystem(), path)
    assert len(now.sources) == len(FILES)
    _stamp(place, "three")
    assert read_origin(path).made_by == "three"  # type: ignore[union-attr]
    beside = [name for name in os.listdir(place.root) if name.startswith(FIGURE)]
    assert len(beside) <= 3, f"more is left than an origin and half of one: {beside}"


# ---------------------------------------------------------------------------------------- a grid

ARMS, SEEDS = ("full", "cached"), (0,)
GRID = Grid(schema=grids.GRID_SCHEMA, name="g", arms=ARMS, seeds=SEEDS, endpoints=("score",))
GATE = "name: out\nmechanical:\n- {check: grid_complete, grid: g}\n"


def _around(place: Place) -> Surroundings:
    return Surroundings(paths=_room(place), base=str(place.root), spools={})


def _no_grid(place: Place) -> None:
    (place.root / "gate.yaml").write_text(GATE)


def _filled(place: Place) -> None:
    _no_grid(place)
    _declare(place)
    _fill(place)


def _declare(place: Place) -> None:
    freeze(_room(place), GRID, str(place.root))
    place.say("state", GridState.FROZEN.value)


def _fill(place: Place) -> None:
    for arm in ARMS:
        append("g", arm=arm, seed=SEEDS[0], metrics={"score": 0.5}, root=place.root)
        place.say("state", GridState.RUNNING.value)


def _declare_and_fill(place: Place) -> None:
    _declare(place)
    _fill(place)


def _let_out(place: Place) -> None:
    standing, counted, edited, _ = complete(_room(place), "g")
    assert counted.complete, (counted, edited)
    place.say("state", GridState.COMPLETE.value)
    gate = read_gate_file(f"{place.root}/gate.yaml")
    decision = decide(gate, _around(place))
    if not decision.passed:  # a check that could not look does not hold
        raise DataError("the gate does not pass")
    keep(decision, _around(place))
    place.say("passed")
    standing, _ = release(_around(place), "g", "out")
    assert standing.state is GridState.RELEASED
    place.say("state", GridState.RELEASED.value)


def _prove_grid(place: Place) -> None:
    """Every state that was promised stands; the commands once more bring it to its end."""
    _states_follow(place)
    _declare(place)
    seen = [row.result.arm for row in _of_grid(place)]
    for arm in ARMS:
        if arm not in seen:
            append("g", arm=arm, seed=SEEDS[0], metrics={"score": 0.5}, root=place.root)
    assert sorted(row.result.arm for row in _of_grid(place)) == sorted(ARMS)
    _let_out(place)
    _states_follow(place)
    assert read_standing(_room(place), "g").state is GridState.RELEASED


def _of_grid(place: Place) -> list[sets.Row]:
    if not os.path.isdir(_room(place).result_set("g")):
        return []
    found = read_set(_room(place).folder, "g")
    assert not found.damaged, found.counts
    return found.rows


def _states_follow(place: Place) -> None:
    standing = read_standing(_room(place), "g")
    order = list(GridState)
    reached = order.index(standing.state)
    assert [s for s in order[1:] if s in standing.records] == order[1 : reached + 1]
    promised = [order.index(GridState(w[1])) for w in place.said() if w[0] == "state"]
    assert max(promised, default=0) <= reached, f"{order[max(promised)]} was promised"
    if ["passed"] in place.said():
        assert read_decision(_around(place), "out")[0].passed
    if standing.state is GridState.RELEASED:
        decision, digest = read_decision(_around(place), "out")
        assert decision.passed, "a grid was released through a gate that did not pass"
        assert standing.records[GridState.RELEASED][0].gate_sha256 == digest


# -- rules that are broken on purpose


def _straight_to_its_name(module: Any) -> Callable[[], None]:
    def mutate() -> None:
        module.put_if_absent = put_in_place

    return mutate


def _built_under_its_name() -> None:
    def build(
        final: str, fill: Callable[[str], Any], manifest: object, source: str, **more: Any
    ) -> Any:
        os.mkdir(final, 0o700)
        return fill(final)

    from fleetcraft.evidence.files import archive as archives
    from fleetcraft.evidence.files import bag as bags

    archives.build = build  # type: ignore[assignment,attr-defined]
    bags.build = build  # type: ignore[assignment,attr-defined]


def _without_a_line_of_its_own() -> None:
    """Appends behind whatever half a line stands there, and calls a failure a success."""

    def put(fs: FileSystem, path: str, line: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, line)
        except OSError:
            return
        finally:
            os.close(fd)

    sets._append = put


def _origin_in_place() -> None:
    def write(fs: FileSystem, path: str, origin: Any) -> None:
        with open(path, "wb", buffering=0) as file:
            file.write(msgspec.json.encode(origins.as_written(origin)))

    origins._write = write


PROTOCOLS = (
    Protocol(
        "evidence: freeze a manifest", _planted, _keep_manifest, _prove_manifest, 40,
        mutations=(("it is written in place", _straight_to_its_name(keeping)),),
    ),
    Protocol(
        "evidence: archive", _planted, _archive, _prove_archive, 100,
        mutations=(("it is built under its name", _built_under_its_name),),
    ),
    Protocol(
        "evidence: export a bag", _planted, _export, _prove_bag, 100,
        mutations=(("it is built under its name", _built_under_its_name),),
    ),
    Protocol(
        "evidence: append results", _one_result, _append_two, _prove_results, 40,
        mutations=(("a failed write counts", _without_a_line_of_its_own),),
    ),
    Protocol(
        "evidence: stamp anew", _drawn_once, _stamp_anew, _prove_stamped, 40,
        mutations=(("it is written in place", _origin_in_place),),
    ),
    Protocol(
        "evidence: freeze and fill a grid", _no_grid, _declare_and_fill, _prove_grid, 60,
        mutations=(("a state is written in place", _straight_to_its_name(grids)),),
    ),
    Protocol("evidence: release a grid", _filled, _let_out, _prove_grid, 60),
)  # fmt: skip
