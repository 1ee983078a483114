#!/usr/bin/env bash
# The classic way to log a node's GPUs; the work is done by "fleetcraft telemetry log".
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=bin/lib.sh
. "$here/lib.sh"

help_if_asked "$@" <<'HELP'
usage: gpu_telemetry.sh [DIR [INTERVAL]] [OPTION OF fleetcraft telemetry log]...

Writes a CSV file of this node's GPUs and host into DIR, a sample every INTERVAL seconds (30), until
TERM or Ctrl-C. DIR is TELEMETRY_DIR if not given, else PROJECT_SCRATCH/telemetry.
Fleets start it by themselves on every node; a second one for the same node and job is refused.

example: gpu_telemetry.sh /scratch/me/fleet/telemetry 30
HELP
run_fleetcraft telemetry log "$@"
