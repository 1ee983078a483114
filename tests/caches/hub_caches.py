"""Hub caches as huggingface_hub leaves them behind, made of tiny files.

Not here: what is tested on them. The names of blobs come from hashlib alone, not from the code
under test.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"
SHARDS = tuple(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))
INDEX = "model.safetensors.index.json"


def blob_name(path: str, data: bytes) -> str:
    """What the hub names content: large files by SHA-256, others as git does."""
    if path.endswith((".safetensors", ".bin")):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sharded_model(size: int = 3000) -> dict[str, bytes]:
    """The files of a model of three shards."""
    index = {
        "metadata": {"total_size": 3 * size},
        "weight_map": {f"layer.{n}": shard for n, shard in enumerate(SHARDS)},
    }
    files = {shard: bytes([n + 1]) * size for n, shard in enumerate(SHARDS)}
    return files | {
        "config.json": b'{"model_type": "tiny"}',
        "tokenizer/vocab.json": b'{"a": 0}',
        INDEX: json.dumps(index).encode(),
    }


def make_repo(
    hub: Path,
    files: Mapping[str, bytes],
    *,
    folder: str = "models--org--tiny",
    commit: str = COMMIT,
    refs: tuple[str, ...] = ("main",),
    listed: Mapping[str, bytes] | None = None,
) -> Path:
    """A repository with one snapshot, and the commit's listing if one is given."""
    repo = hub / folder
    for path, data in files.items():
        link = repo / "snapshots" / commit / path
        link.parent.mkdir(parents=True, exist_ok=True)
        blob = repo / "blobs" / blob_name(path, data)
        blob.parent.mkdir(exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(os.path.relpath(blob, link.parent))
    for ref in refs:
        (repo / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (repo / "refs" / ref).write_text(commit)
    if listed is not None:
        write_listing(repo, commit, listed)
    return repo


def write_listing(repo: Path, commit: str, files: Mapping[str, bytes]) -> None:
    """What the library remembers of a commit's tree."""
    entries = {}
    for path, data in files.items():
        name = blob_name(path, data)
        entry: dict[str, object] = {"size": len(data), "blob_id": name}
        if len(name) == 64:
            pointer = hashlib.sha1(name.encode()).hexdigest()
            entry = {
                "size": len(data), "blob_id": pointer, "lfs_sha256": name, "lfs_size": len(data),
            }  # fmt: skip
        entries[path] = entry
    (repo / "trees").mkdir(exist_ok=True)
    text = json.dumps({"format_version": 1, "files": entries})
    (repo / "trees" / f"{commit}.json").write_text(text)


def flip_a_bit(path: Path, at: int = 100) -> None:
    """Changes one bit in place, whatever the file's mode."""
    real = path.resolve()
    real.chmod(0o644)
    data = bytearray(real.read_bytes())
    data[at] ^= 1
    real.write_bytes(data)


def contents(folder: Path) -> dict[str, bytes | str]:
    """Everything below a folder but fleetcraft's own room: bytes of files, targets of links."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith(".locks"):
            continue
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes()
    return found
