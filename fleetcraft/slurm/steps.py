"""Steps of a job: the srun that starts one process on each of some nodes, and its environment.

Not here: starting it (`commands`), what runs in it, and what its end means. Invariant: a step gets
the words given here and no option of the whole job, neither from its environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleetcraft.slurm.environment import GPU_VARIABLES

SRUN_FAILED = 250
"""What srun ends with when Slurm itself failed, told apart from its command's exit codes."""
SRUN_NOT_IN_TIME = 251
"""What srun ends with when the step could not begin within `BEGIN_S`."""
BEGIN_S = 60
# Of the variables that Slurm sets in a job only these are of use to srun: the others are options of
# srun too (SLURM_GPUS, SLURM_NTASKS, SLURM_CPUS_PER_TASK, SLURM_MEM_PER_NODE, …), meant for a step
# over the whole job. Source: INPUT ENVIRONMENT VARIABLES of srun(1).
_KEPT = (
    "SLURM_JOB", "SLURM_CONF", "SLURM_CLUSTER", "SLURM_SUBMIT_", "SLURM_NODELIST",
    "SLURM_RESTART_COUNT", "SLURM_ARRAY_", "SLURM_HET_", "SLURM_JWT", "SLURM_SACK_", "SLURM_UMASK",
)  # fmt: skip
_NOT_KEPT = frozenset({"SLURM_JOB_NUM_NODES", "SLURM_JOB_NAME"})


def one_per_node(
    count: int,
    *,
    name: str,
    directory: str,
    gpus: int | None,
    overlap: bool,
    nodes: Sequence[str] = (),
) -> list[str]:
    """The srun that starts one process on each of some nodes of this job, with all they have.

    Args:
        count: How many nodes.
        name: The step's name.
        directory: Where it runs.
        gpus: GPUs of each node; None leaves it to srun, which gives what the job asked for, and so
            none where it only asked for whole nodes.
        overlap: Whether it may share its nodes with other steps, and so never waits for one.
        nodes: Which nodes; Slurm chooses if empty.
    """
    words = [
        "srun",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        *([f"--nodelist={','.join(nodes)}"] if nodes else []),
        f"--job-name={name}",
        f"--chdir={directory}",
        "--mem=0",
        "--cpu-bind=none",
        "--mpi=none",
        "--export=ALL",
        f"--immediate={BEGIN_S}",
    ]
    if overlap:
        words.append("--overlap")
    if gpus:
        words.append(f"--gres=gpu:{gpus}")
    return words


def step_environment(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    """The environment of an srun, which becomes that of its processes.

    Args:
        environ: That of the process that starts it.
        more: Further variables.
    """
    slurm_gives_gpus = "SLURM_GPUS_ON_NODE" in environ or "SLURM_JOB_GPUS" in environ
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("SLURM_", "SLURMD_"))
        or (name.startswith(_KEPT) and name not in _NOT_KEPT)
    }
    if slurm_gives_gpus:
        for name in GPU_VARIABLES:
            kept.pop(name, None)
    return {
        **kept,
        "SLURM_EXIT_ERROR": str(SRUN_FAILED),
        "SLURM_EXIT_IMMEDIATE": str(SRUN_NOT_IN_TIME),
        **more,
    }
