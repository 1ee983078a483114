#!/usr/bin/env bash
# The classic way to start a worker, one per node; the work is done by "fleetcraft worker".
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=bin/lib.sh
. "$here/lib.sh"

help_if_asked "$@" <<'HELP'
usage: worker_loop.sh [OPTION OF fleetcraft worker]...

Takes tasks from the outer spool and runs them until it has been idle for MAX_IDLE_MIN minutes.
PROJECT is the project directory, PROJECT_SCRATCH the root, SPOOL_DIR the outer spool itself.

example, in a batch script: srun --ntasks-per-node=1 bin/worker_loop.sh
HELP
run_fleetcraft worker "$@"
