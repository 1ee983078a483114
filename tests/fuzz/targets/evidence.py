"""What evidence reads: sealed lines, manifests, receipts, results, grids, gates, origins, bags."""

from __future__ import annotations

import os

import msgspec
from hypothesis import strategies as st

from fleetcraft.errors import ConfigError, DataError, UsageError
from fleetcraft.evidence import sealed
from fleetcraft.evidence.appending import _read_encoder
from fleetcraft.evidence.declared import read_declared
from fleetcraft.evidence.files import bag, manifest, producers, receipts
from fleetcraft.evidence.files.copying import place_of
from fleetcraft.evidence.files.verifying import Level
from fleetcraft.evidence.kinds import kind_by_looks
from fleetcraft.evidence.records import Origin, producer_here
from fleetcraft.evidence.release import grid
from fleetcraft.evidence.release.gate_file import read_gate_file
from fleetcraft.evidence.release.grid_file import read_grid_file
from fleetcraft.evidence.results import sets
from fleetcraft.evidence.tracing.origins import origin_file, read_origin
from fleetcraft.layout.evidence import EvidencePaths
from tests.fuzz import folders
from tests.fuzz.strategies import documents, json_of, mixed, sampled, texts, values_of
from tests.fuzz.target import Target

_DEEP = b"[" * 100_000
_DIGEST = "0123456789abcdef" * 4


def sealed_line(data: bytes) -> None:
    body, reason = sealed.unseal(data)
    assert bool(reason) != (sealed.seal(body) == data + b"\n") or (reason and not body)


def sealed_round_trip(body: bytes) -> None:
    line = sealed.seal(body)
    assert sealed.unseal(line[:-1]) == (body, "")


def sealed_and_changed(value: tuple[bytes, int, int]) -> None:
    """One bit of a sealed line changed: it is never taken for whole."""
    body, place, bit = value
    line = sealed.seal(body)[:-1]
    at = place * len(line) >> 16
    changed = line[:at] + bytes([line[at] ^ 1 << bit]) + line[at + 1 :]
    found, reason = sealed.unseal(changed)
    assert reason, f"a changed byte at {at} is not seen"
    assert not found


def sealed_and_cut(value: tuple[bytes, int]) -> None:
    """A sealed line cut anywhere is torn, not whole and not forged."""
    body, place = value
    line = sealed.seal(body)[:-1]
    assert sealed.unseal(line[: place * len(line) >> 16]) == (b"", "torn")


def parsed_manifest(data: bytes) -> None:
    found = manifest.parse_manifest(data, "m.json")
    assert manifest.write_manifest(found) == data


def manifest_round_trip(found: manifest.Manifest) -> None:
    made = _whole(found)
    data = manifest.write_manifest(made)
    read = manifest.parse_manifest(data, "m.json")
    assert read.files == made.files
    assert read.root_sha256 == made.root_sha256


def manifest_changed(value: tuple[manifest.Manifest, int, int]) -> None:
    made, place, bit = value
    data = manifest.write_manifest(_whole(made))
    at = place * len(data) >> 16
    changed = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    try:
        manifest.parse_manifest(changed, "m.json")
    except DataError:
        return
    raise AssertionError(f"a changed byte at {at} is not seen: {data[at - 5 : at + 5]!r}")


def _whole(found: manifest.Manifest) -> manifest.Manifest:
    """The same with names that are paths, in order, and its sums right."""
    files = tuple(
        msgspec.structs.replace(entry, path=f"f-{number:03d}.bin", size_bytes=abs(entry.size_bytes))
        for number, entry in enumerate(found.files)
    )
    changed = msgspec.structs.replace(
        found,
        schema=manifest.MANIFEST_SCHEMA,
        folder="data",
        files=files,
        bytes=sum(entry.size_bytes for entry in files),
        root_sha256=manifest.root_digest(found.name, found.policy, files),
    )
    return changed


def receipt(data: bytes) -> None:
    found = receipts.read_receipt(folders.write("receipt.json", data))
    assert receipts.write_receipt(found) == data


def results(data: bytes) -> None:
    folders.fresh("room")
    path = folders.write("room/results/set-1/c1.jsonl", data)
    found = sets.read_file(path)
    whole = sets.read_set(f"{folders.folder()}/room", "set-1")
    lines = sum(bool(line) for line in data.split(b"\n"))
    told = len(found.rows) + len(found.rejects) + found.repeated
    assert told == lines, f"{told} lines are accounted for, of {lines}"
    assert [row.sha256 for row in whole.rows] == [row.sha256 for row in found.rows]
    list(producers._results(data.split(b"\n")))


def result_round_trip(value: sets.Result) -> None:
    value = msgspec.structs.replace(value, schema=sets.SCHEMA)
    folders.fresh("room")
    path = folders.write("room/results/set-1/c1.jsonl", sealed.seal(msgspec.json.encode(value)))
    found = sets.read_file(path)
    if found.rows:
        assert found.rows[0].result == value, "it is read otherwise than it was written"
    else:
        assert found.rejects, "it was dropped without a word"


def declared(data: bytes) -> None:
    read_declared(folders.write("declared.yaml", data))


def grid_file(data: bytes) -> None:
    folders.write("score.py", b"pass\n")
    found = read_grid_file(folders.write("grid.yaml", data))
    assert found.size >= 1
    assert found.name


def gate_file(data: bytes) -> None:
    assert read_gate_file(folders.write("gate.yaml", data)).predicates


def grid_state(value: tuple[bytes, bool]) -> None:
    data, seal = value
    root = folders.fresh("room")
    path = EvidencePaths(root).grid_state("g", grid.GridState.FROZEN)
    folders.write(os.path.relpath(path, folders.folder()), sealed.seal(data) if seal else data)
    grid.read_standing(EvidencePaths(root), "g")


def origin(data: bytes) -> None:
    path = folders.write("figure.png", b"x")
    folders.write(os.path.basename(origin_file(path)), data)
    found = read_origin(path)
    assert found is not None
    for source in found.sources:
        assert not os.path.isabs(source.path)


def encoder_beside(data: bytes) -> None:
    _read_encoder(folders.write("a.encoder.json", data))


def environment(value: tuple[str, str, str, str]) -> None:
    attempt, root, spool, gpus = value
    found = producer_here(
        {"FLEET_ATTEMPT": attempt, "FLEET_ROOT": root, "FLEET_SPOOL": spool, "FLEET_GPUS": gpus}
    )
    assert found.attempt >= 0


def looks(value: tuple[str, bytes, bytes]) -> None:
    assert kind_by_looks(*value)


def foreign_bag(value: tuple[bytes, bytes, bytes]) -> None:
    declaration, payload, tags = value
    folders.fresh("bag")
    folders.write("bag/data/a.txt", b"hello\n")
    folders.write("bag/bagit.txt", declaration)
    folders.write("bag/manifest-sha256.txt", payload)
    folders.write("bag/tagmanifest-sha256.txt", tags)
    found = bag.verify_bag(f"{folders.folder()}/bag", Level.REREAD)
    assert found.verdict


def mounted(text: str) -> None:
    place_of(text if "\0" not in text else "/")


_HELLO = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
_GRID = (
    b"name: g1\narms: [base, ours]\nseeds: {first: 0, last: 9}\ncandidates: ['', b]\n"
    b"scripts: [score.py]\nendpoints: [ssim]\n",
    b"name: g1\narms: [a]\nseeds: [1, 2, 3]\n",
    b"name: g1\narms: [a]\nseeds: {first: 0, last: 99999999999999999999}\n",
    b"name: g1\narms: &a [x, *a]\nseeds: [1e3, 0x10, 1_0, 1:30, .inf]\n",
)
_GATE = (
    b"name: release-1\nbefore:\n  - check: file\n    files: [{path: a, sha256: '"
    + _DIGEST.encode()
    + b"'}]\nentry:\n  - check: result\n    set: s\n    metric: ssim\n    at_least: 0.5\n",
    b"name: r\nbefore: [{check: manifest, manifest: m.json, level: reread}]\n",
    b"? !!set {a}\n",
    b"a: !!binary x\n",
    b"name: 2026-01-01\n",
    b"--- a\n--- b\n",
    b"\x00",
    b"%YAML 9\n",
)
_SEAL_BODIES = st.one_of(st.binary(max_size=60), st.sampled_from([b"", b"{}", b"}", b'{"a":1}']))
_PLACE, _BIT = st.integers(0, (1 << 16) - 1), st.integers(0, 7)
TARGETS = (
    Target(
        name="evidence: sealed line",
        values=mixed(_SEAL_BODIES.map(lambda body: sealed.seal(body)[:-1])),
        act=sealed_line,
    ),
    Target(
        name="evidence: sealed line, written and read", values=_SEAL_BODIES, act=sealed_round_trip
    ),
    Target(
        name="evidence: sealed line with one bit changed",
        values=st.tuples(_SEAL_BODIES, _PLACE, _BIT),
        act=sealed_and_changed,
    ),
    Target(
        name="evidence: sealed line cut", values=st.tuples(_SEAL_BODIES, _PLACE), act=sealed_and_cut
    ),
    Target(
        name="evidence: manifest",
        values=st.one_of(
            json_of(manifest.Manifest, _DEEP),
            mixed(
                values_of(manifest.Manifest).map(lambda one: manifest.write_manifest(_whole(one)))
            ),
        ),
        act=parsed_manifest,
        raises=(DataError,),
    ),
    Target(
        name="evidence: manifest, written and read",
        values=values_of(manifest.Manifest),
        act=manifest_round_trip,
        raises=(DataError,),
    ),
    Target(
        name="evidence: manifest with one bit changed",
        values=st.tuples(values_of(manifest.Manifest), _PLACE, _BIT),
        act=manifest_changed,
    ),
    Target(
        name="evidence: receipt",
        values=json_of(receipts.Receipt, _DEEP),
        act=receipt,
        raises=(DataError,),
    ),
    Target(
        name="evidence: results",
        values=mixed(json_of(sets.Result).map(sealed.seal)),
        act=results,
        raises=(DataError,),
    ),
    Target(
        name="evidence: result, written and read",
        values=values_of(sets.Result),
        act=result_round_trip,
    ),
    Target(
        name="evidence: declared YAML",
        values=documents(*_GRID, *_GATE),
        act=declared,
        raises=(ConfigError,),
    ),
    Target(
        name="evidence: grid file", values=documents(*_GRID), act=grid_file, raises=(ConfigError,)
    ),
    Target(
        name="evidence: gate file", values=documents(*_GATE), act=gate_file, raises=(ConfigError,)
    ),
    Target(
        name="evidence: record of a grid",
        values=st.tuples(json_of(grid.StateRecord, _DEEP), st.booleans()),
        act=grid_state,
        raises=(DataError,),
    ),
    Target(name="evidence: origin", values=json_of(Origin, _DEEP), act=origin, raises=(DataError,)),
    Target(
        name="evidence: record of an encoder",
        values=st.one_of(
            documents(b'{"schema":"x","codec":"h264","settings":{"crf":1}}'), sampled([_DEEP])
        ),
        act=encoder_beside,
        raises=(DataError,),
    ),
    Target(
        name="evidence: producer of the environment",
        values=st.tuples(
            texts("1", "9" * 5000, "\u0661"), texts("/r"), texts("/r/taskq"), texts("GPU-a,GPU-b")
        ),
        act=environment,
    ),
    Target(
        name="evidence: kind of a file",
        values=st.tuples(
            texts("a.mp4", "b.jsonl", "c.origin.json"),
            documents(b'{"schema":"x"}'),
            documents(b"\x00"),
        ),
        act=looks,
    ),
    Target(
        name="evidence: bag of another program",
        values=st.tuples(
            documents(b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n", most=2),
            documents(f"{_HELLO}  data/a.txt\n{_DIGEST}  data/../b\n", f"{_HELLO}  data/a.txt\n"),
            documents(f"{_DIGEST}  bagit.txt\n", b""),
        ),
        act=foreign_bag,
        raises=(DataError, ConfigError, UsageError),
    ),
    Target(
        name="evidence: mount of a path",
        values=texts("/dev/shm/a", "/proc/../x", "a b"),
        act=mounted,
    ),
)
