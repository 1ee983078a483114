#!/usr/bin/env bash
# The classic way to put back single-GPU tasks whose workers are gone; "fleetcraft recover" does it.
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=bin/lib.sh
. "$here/lib.sh"

help_if_asked "$@" <<'HELP'
usage: reap_gpu_spool.sh [OPTION OF fleetcraft recover]...

Puts back the tasks of the inner spool whose workers are gone. A task about whose worker nothing
certain is known, such as when Slurm does not answer, is left alone.
PROJECT_SCRATCH is the root, GPU_SPOOL_DIR the inner spool itself.

example: reap_gpu_spool.sh --dry-run
HELP
run_fleetcraft recover --spool gpu "$@"
