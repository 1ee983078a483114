"""Records of effective cache paths: which role lies where, what decided that, and what conflicts.

Not here: how a path is resolved (`resolve`) or judged (`check`). Invariant: what was not looked at
is None, which is neither yes nor no.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from fleetcraft.identity import sha256_hex

DEFAULT = "default"
"""What decided a path where no variable did."""


class Role(StrEnum):
    """What a folder of caches is for."""

    HF_HOME = "hf_home"
    HUB = "hub"
    DATASETS = "datasets"
    TRANSFORMERS = "transformers"
    MODULES = "modules"
    ASSETS = "assets"
    XET = "xet"
    TORCH_HUB = "torch_hub"
    TRITON = "triton"
    INDUCTOR = "inductor"
    EXTENSIONS = "extensions"
    CUDA = "cuda"


class Severity(StrEnum):
    """How bad a conflict is: an error refuses a launch, a warning does not, advice is no conflict.

    ``fleetcraft caches check`` answers no for errors and warnings.
    """

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


class Code(StrEnum):
    """What kind of conflict it is."""

    NAMES_DIFFER = "names_differ"
    TRANSFORMERS_DIFFERS = "transformers_differs"
    SETTING_OVERRULED = "setting_overruled"
    NOT_ABSOLUTE = "not_absolute"
    WORKERS_DIFFER = "workers_differ"
    ON_QUOTA = "on_quota"
    WRONG_PLACE = "wrong_place"
    GENERATED_ON_NETWORK = "generated_on_network"
    GENERATED_NOT_EXECUTABLE = "generated_not_executable"
    GENERATED_SHARED = "generated_shared"
    INDUCTOR_OVERLAP = "inductor_overlap"
    DOWNLOADS_POSSIBLE = "downloads_possible"
    READ_ONLY = "read_only"
    MISSING = "missing"
    ASKED_DIFFERS = "asked_differs"
    MODELS_ELSEWHERE = "models_elsewhere"
    SNAPSHOT_INCOMPLETE = "snapshot_incomplete"
    NEAR_PURGE = "near_purge"
    PURGED = "purged"


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that was set and did not decide.

    Attributes:
        variable: Its name.
        path: Where it would have put the role.
        same_role: It names this very role, so that a library which reads it goes there.
    """

    variable: str
    path: str
    same_role: bool = False


class FileSystemFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The file system on which a path lies, or would lie.

    Attributes:
        type: As the kernel calls it; empty when that cannot be told.
        mount: Where it is mounted.
        network: Whether other nodes see it too; None where the type does not tell.
        free_bytes: What this user may still write.
        free_inodes: How many files more; None where the file system does not count them.
        quota: Whether the path is in a folder that ``storage.quota`` names; None if none is named.
        work: Whether it is in ``storage.work``; None if that is not set.
        executable: Whether programs and libraries may be loaded from it (no ``noexec``).
    """

    type: str = ""
    mount: str = ""
    network: bool | None = None
    free_bytes: int | None = None
    free_inodes: int | None = None
    quota: bool | None = None
    work: bool | None = None
    executable: bool | None = None


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """Where one role's files go.

    Attributes:
        role: Which.
        path: The path that the library uses.
        decided_by: The variable that decided it, or ``default``.
        overridden: Variables that were set and lost.
        library: Name and version of the library that reads them; empty where it is not known.
        filesystem: Where it lies; None while nobody has looked.
        exists: Whether the folder is there; None for unknown.
        writable: Whether this user can write there, or make it; None for unknown.
    """

    role: Role
    path: str
    decided_by: str = DEFAULT
    overridden: tuple[Lost, ...] = ()
    library: str = ""
    filesystem: FileSystemFacts | None = None
    exists: bool | None = None
    writable: bool | None = None


class Conflict(msgspec.Struct, frozen=True, kw_only=True):
    """Something that will go wrong, or may.

    Attributes:
        code: What kind.
        severity: How bad.
        text: One sentence: what differs from what, on which thing.
        hint: What to do.
        role: Which role it is about; None for all.
        path: Which path; empty for none.
    """

    code: Code
    severity: Severity
    text: str
    hint: str = ""
    role: Role | None = None
    path: str = ""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that has said which caches its tasks get.

    Attributes:
        name: Its lease's.
        host: Its node.
        job: Its job.
        digest: As `digest` computes it.
        roles: The shared paths, and those of generated sources that do not change with attempts.
    """

    name: str
    host: str
    job: str
    digest: str
    roles: dict[str, str] = {}


GENERATED = frozenset({Role.TRITON, Role.INDUCTOR, Role.EXTENSIONS, Role.CUDA})
"""Roles whose files are made on the node by a compiler; no two nodes may share them."""
HEAVY = (Role.HUB, Role.DATASETS, Role.TRANSFORMERS, Role.XET, Role.TORCH_HUB)
"""Roles that grow to many gigabytes."""


def digest(effective: Iterable[Effective]) -> str:
    """One hash of the paths that all nodes of a job must agree on.

    Generated sources are left out: they are to differ from node to node.

    Returns:
        64 hexadecimal digits.
    """
    lines = sorted(f"{one.role}={one.path}\n" for one in effective if one.role not in GENERATED)
    return sha256_hex("".join(lines).encode("utf-8", "surrogateescape"))


def by_role(effective: Iterable[Effective]) -> dict[Role, Effective]:
    """The same, by role."""
    return {one.role: one for one in effective}
