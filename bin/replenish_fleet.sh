#!/usr/bin/env bash
# The classic way to renew fleets while work is queued; the work is done by "fleetcraft renew".
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=bin/lib.sh
. "$here/lib.sh"

help_if_asked "$@" <<'HELP'
usage: replenish_fleet.sh [OPTION OF fleetcraft renew]...

Submits a follow-on fleet of a lane where queued work justifies exactly its shape, and nothing
otherwise. The lanes are renew.lanes of the settings, or what --lane names.
PROJECT is the project directory, PROJECT_SCRATCH the root.

example: replenish_fleet.sh --lane 8x12:00:00 --lane 4x12:00:00 --every 5m --for 12h
HELP
run_fleetcraft renew "$@"
