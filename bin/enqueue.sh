#!/usr/bin/env bash
# The classic way to enqueue a node task; the work is done by "fleetcraft enqueue".
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=bin/lib.sh
. "$here/lib.sh"

help_if_asked "$@" <<'HELP'
usage: enqueue.sh 'COMMAND' NAME [OPTION OF fleetcraft enqueue]...

Publishes COMMAND as the task NAME in the outer spool, where one node runs it.
PROJECT is the project directory, PROJECT_SCRATCH the root, SPOOL_DIR the outer spool itself.

example: enqueue.sh 'python gen.py --seed 17' gen-00017 --retries 2
HELP
(($# >= 2)) || die 2 "expected 'COMMAND' NAME, found $# argument(s): see '$0 --help'"
command=$1 name=$2
shift 2
run_fleetcraft enqueue -n "$name" "$@" -- "$command"
