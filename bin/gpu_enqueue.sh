#!/usr/bin/env bash
# The classic way to enqueue a single-GPU task; the work is done by "fleetcraft enqueue".
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=bin/lib.sh
. "$here/lib.sh"

help_if_asked "$@" <<'HELP'
usage: gpu_enqueue.sh 'COMMAND' NAME [OPTION OF fleetcraft enqueue]...

Publishes COMMAND as the task NAME in the inner spool, where one GPU runs it.
PROJECT is the project directory, PROJECT_SCRATCH the root, GPU_SPOOL_DIR the inner spool itself.

example: gpu_enqueue.sh 'python score.py --video 17.mp4' score-00017 --time 00:10:00
HELP
(($# >= 2)) || die 2 "expected 'COMMAND' NAME, found $# argument(s): see '$0 --help'"
command=$1 name=$2
shift 2
run_fleetcraft enqueue --spool gpu -n "$name" "$@" -- "$command"
