#!/usr/bin/env bash
# Says whether this login node has room for a launch; the work is done by "fleetcraft guard".
# Nothing is forked on the way there: it must also answer when no process can be started any more.
set -euo pipefail
self=${BASH_SOURCE[0]}
[[ ! -L $self ]] || self=$(readlink -f -- "$self")
[[ $self == /* ]] || self=$PWD/$self
self=${self//\/.\///}
# shellcheck source=bin/lib.sh
. "${self%/*}/lib.sh"

help_if_asked "$@" <<'HELP'
usage: login_guard.sh [OPTION OF fleetcraft guard]...

Counts your processes, threads and ssh connections here against what the site allows.
Exits 0 for go, 1 for caution, 2 for no-go, 3 for unknown: only 0 means that there is room.
It ends nothing and starts nothing.

example: login_guard.sh && fleetcraft launch -N 4 --time 00:30:00
HELP
run_fleetcraft guard "$@"
