#!/usr/bin/env bash
# The classic way to look at a fleet from a login node; "fleetcraft snapshot" does the looking.
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=bin/lib.sh
. "$here/lib.sh"

help_if_asked "$@" <<'HELP'
usage: slurm_snapshot.sh [OPTION OF fleetcraft snapshot]...

Shows this user's jobs and their nodes, what each GPU does, limits, balance and the queue.
PROJECT is the project directory, PROJECT_SCRATCH the root.
Ends with 4 when Slurm gave no answer for a part; the others are shown.

example: slurm_snapshot.sh --probe
HELP
run_fleetcraft snapshot "$@"
