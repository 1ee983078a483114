"""The environment in which Slurm's programs are started: what they print must not depend on it.

Not here: starting them. Invariant: a question is put to exactly one cluster, in the C locale, with
times in seconds since 1970; a submission takes nothing over from the job that it is made in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fleetcraft.errors import NotAskedError

# Defaults of the programs' own options: filters, formats, sort orders, whole other modes.
_OPTION_PREFIXES = ("SQUEUE_", "SINFO_", "SACCT_", "SSHARE_", "SCANCEL_", "SCONTROL_", "SPRIO_")
_SLURM_NAMES = frozenset(
    {
        "SLURM_BITSTR_LEN",  # cuts lists of array elements short
        "SLURM_DEBUG",
        "SLURM_DEBUG_FLAGS",
        "SLURM_EXIT_ERROR",  # 0 would make every failure a success
        "SLURM_JSON",
        "SLURM_TIME_FORMAT",
        "SLURM_TOPO_LEN",
        "SLURM_YAML",
    }
)
_WHO_PAYS_AND_WHERE = frozenset(
    {
        "SBATCH_ACCOUNT",
        "SBATCH_CONSTRAINT",
        "SBATCH_PARTITION",
        "SBATCH_QOS",
        "SBATCH_RESERVATION",
        "SBATCH_WCKEY",
    }
)
_HOW_TO_REACH_SLURM = (
    "SLURM_CONF",
    "SLURM_CLUSTERS",
    "SLURM_JWT",
    "SLURM_SACK_",
    "SLURM_ROOT",
    "SLURM_HOME",
    "SLURM_DIR",
    "SLURM_PREFIX",
)
GPU_VARIABLES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
)
"""With these Slurm tells a job its GPUs, numbered as on one of its nodes."""
WHICH_CLUSTER = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
"""The variables that decide which cluster answers."""


def for_questions(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a program that is asked something, or told to cancel.

    Variables that are an option of the program (``SQUEUE_FORMAT``, ``SCANCEL_INTERACTIVE``, …) are
    left out: an option that we do not give is not wanted. Times are printed as seconds since 1970,
    which no time zone and no clock change makes ambiguous.

    Raises:
        NotAskedError: ``SLURM_CLUSTERS`` names several clusters.

    Source: the ENVIRONMENT sections of squeue(1), sinfo(1), sacct(1), scontrol(1), scancel(1).
    """
    environ = os.environ if environ is None else environ
    _require_one_cluster(environ)
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OPTION_PREFIXES) and name not in _SLURM_NAMES
    }
    kept.pop("LANGUAGE", None)
    return kept | {"LC_ALL": "C", "SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "%s"}


def for_submission(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of sbatch, which becomes the environment of the job.

    Of ``SBATCH_*`` only what says who pays and where stays (account, constraint, partition, QOS,
    reservation, wckey). The rest is left out, since a variable overrides the directives of a
    script: it would change the job's shape (``SBATCH_ARRAY_INX``, ``SBATCH_EXCLUSIVE``,
    ``SBATCH_TIMELIMIT``, ``SBATCH_SIGNAL``), its environment (``SBATCH_EXPORT``) or hold the
    caller until the job has ended (``SBATCH_WAIT``).

    Inside a job, that job's own ``SLURM_*`` and GPUs are left out too: sbatch hands them on, and
    an srun of the new job would take them for its own (``SLURM_MEM_PER_CPU`` against
    ``SLURM_MEM_PER_NODE`` even ends it).

    Raises:
        NotAskedError: ``SLURM_CLUSTERS`` names several clusters.

    Source: INPUT ENVIRONMENT VARIABLES of sbatch(1) and srun(1).
    """
    environ = os.environ if environ is None else environ
    _require_one_cluster(environ)
    in_job = "SLURM_JOB_ID" in environ
    return {name: value for name, value in environ.items() if _is_submitted(name, in_job=in_job)}


def _is_submitted(name: str, *, in_job: bool) -> bool:
    if name.startswith("SBATCH_"):
        return name in _WHO_PAYS_AND_WHERE
    if not in_job:
        return name != "SLURM_EXIT_ERROR"
    if name.startswith("SLURM_"):
        return name.startswith(_HOW_TO_REACH_SLURM)
    return not name.startswith("SLURMD_") and name not in GPU_VARIABLES


def _require_one_cluster(environ: Mapping[str, str]) -> None:
    clusters = environ.get("SLURM_CLUSTERS", "")
    if "," in clusters or clusters.strip() == "all":
        # Job ids of two clusters are not told apart, and a job absent from one may run on another.
        raise NotAskedError(
            f"SLURM_CLUSTERS names several clusters ({clusters!r}); Slurm was not asked",
            hint="set SLURM_CLUSTERS to the one cluster that this fleet uses, or unset it",
            clusters=clusters,
        )
