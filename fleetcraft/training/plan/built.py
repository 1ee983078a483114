"""What one rank tells of what its launcher has built, and reading that of all ranks.

Telling is `inspection`'s, comparing `preflight`'s; no torch here. Invariant: what could not be
seen in a module is None, and a file that cannot be read is named, never left out.
"""

from __future__ import annotations

import msgspec

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import AttemptPaths

SCHEMA = "fleetcraft.train-built/1"


class BuiltModule(msgspec.Struct, frozen=True, kw_only=True):
    """One module, as one rank sees it.

    Attributes:
        wrapper: What wraps its parameters: ``FSDP FULL_SHARD``, ``fully_shard``, ``DDP``, or empty.
        shard_group_size: Ranks over which its parameters are sharded; where they differ, as most
            of their bytes are. 1: every rank holds all of them.
        shard_bytes: Every such size to the bytes that are sharded so.
        replicas: Ranks that hold the same shard, as far as the wrapper tells.
        parameters: Elements of the whole module.
        parameter_bytes: Their bytes.
        held_parameters: Elements that this rank holds between steps.
        held_bytes: Their bytes.
        trainable_bytes: Those of them that get gradients.
        optimizer_bytes: What the optimizer's state of them will take; None when it was not told
            or is of a kind that is not known.
        activation_checkpointing: Whether activations are recomputed. None: its code can, and
            whether it does cannot be seen. False: no sign of it.
        how: What shows that.
        dtypes: Type of its parameters to their bytes on this rank.
    """

    wrapper: str = ""
    shard_group_size: int | None = None
    shard_bytes: dict[int, int] = {}
    replicas: int | None = None
    parameters: int = 0
    parameter_bytes: int = 0
    held_parameters: int = 0
    held_bytes: int = 0
    trainable_bytes: int = 0
    optimizer_bytes: int | None = None
    activation_checkpointing: bool | None = None
    how: str = ""
    dtypes: dict[str, int] = {}

    def bytes_off(self, size: int) -> int:
        """Bytes that are sharded over another number of ranks."""
        return sum(count for over, count in self.shard_bytes.items() if over != size)

    @property
    def state_bytes(self) -> int:
        """Parameters, gradients and optimizer state of this rank, as far as known: an estimate."""
        return self.held_bytes + self.trainable_bytes + (self.optimizer_bytes or 0)


class BuiltReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank tells.

    Attributes:
        schema: `SCHEMA`.
        rank: Which rank.
        world_size: Ranks that it sees.
        node: Its host.
        local_world_size: Ranks on its node, as the launcher told; None when it did not.
        local_gpus: GPUs that it sees; None when they were not counted.
        device: Where its parameters are.
        device_memory_bytes: That device's memory; None for a CPU.
        mesh: Names of the dimensions of the device mesh to their sizes, if one was handed in.
        modules: By the names that the training script gave them.
        torch: Its version.
        at: Wall clock, for people.
    """

    schema: str
    rank: int
    world_size: int
    node: str = ""
    local_world_size: int | None = None
    local_gpus: int | None = None
    device: str = ""
    device_memory_bytes: int | None = None
    mesh: dict[str, int] = {}
    modules: dict[str, BuiltModule] = {}
    torch: str = ""
    at: str = ""


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of an attempt.

    Attributes:
        reports: By rank.
        problems: What could not be read, one sentence each.
    """

    reports: tuple[BuiltReport, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every rank that the reports speak of has told, and each once."""
        ranks = [report.rank for report in self.reports]
        sizes = {report.world_size for report in self.reports}
        return len(sizes) == 1 and ranks == list(range(sizes.pop())) and not self.problems


def read_built(paths: AttemptPaths, *, fs: FileSystem | None = None) -> Built:
    """Reads what the ranks of an attempt have told.

    Args:
        paths: The attempt.
        fs: The seam.
    """
    fs = fs or FileSystem()
    reports: list[BuiltReport] = []
    problems: list[str] = []
    try:
        names = sorted(fs.listdir(paths.built))
    except FileNotFoundError:
        return Built()
    except OSError as error:
        return Built(problems=(f"{paths.built} cannot be listed: {error.strerror or error}",))
    for name in names:
        if not name.endswith(".json"):
            continue  # being written
        try:
            report = msgspec.json.decode(fs.read(f"{paths.built}/{name}"), type=BuiltReport)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror or error}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problems.append(f"{name} is no report: {error}")
        else:
            if report.schema == SCHEMA and paths.built_file(report.rank).endswith(f"/{name}"):
                reports.append(report)
            else:
                problems.append(f"{name} is no report of the rank that it names")
    return Built(
        reports=tuple(sorted(reports, key=lambda report: report.rank)), problems=tuple(problems)
    )
