#!/usr/bin/env bash
# Proves the telemetry logger and the calibration harness on one NVIDIA GPU, in under five minutes.
# Not a test by itself: tests/device/test_rehearsal.py runs it without a GPU.
# shellcheck disable=SC2329  # steps are functions that `step` calls by name
set -uo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
repo=$here/../..

case ${1-} in
  -h | --help)
    cat <<'HELP'
usage: tests/device/run.sh [OUT]

Logs the GPU while it works, calibrates the demo on it, freezes the table, and has it checked and
refused. Prints one line for each thing proved; exits 0 when all held, 1 when one did not, and 75
where there is no NVIDIA GPU. OUT keeps what was made (a temporary folder otherwise).

FLEET_PYTHON=PYTHON      has torch, and what the package needs; .venv's or python3 otherwise
FLEET_REHEARSAL=cpu      runs the same steps on the CPU, beside a driver that a test plays
HELP
    exit 0
    ;;
esac

python=${FLEET_PYTHON-}
if [[ -z $python ]]; then
  python=python3
  [[ ! -x $repo/.venv/bin/python ]] || python=$repo/.venv/bin/python
fi
device=cuda
[[ ${FLEET_REHEARSAL-} != cpu ]] || device=cpu
out=${1-}
if [[ -z $out ]]; then
  out=$(mktemp -d)
  trap 'rm -rf -- "$out"' EXIT
fi
mkdir -p -- "$out"
out=$(cd -- "$out" && pwd) || exit 1

export PYTHONPATH=$repo${PYTHONPATH:+:$PYTHONPATH}
exec_fleet() { "$python" -m fleetcraft --root "$out/scratch" "$@"; }
proves() { "$python" "$here/proofs.py" "$@"; }

if [[ $device == cuda ]] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "skipped: torch of '$python' sees no NVIDIA GPU; nothing was proved"
  exit 75
fi

failed=0
step() { # step NAME COMMAND...
  local name=$1 started=$SECONDS
  shift
  if "$@" >"$out/$name.log" 2>&1; then
    printf 'ok      %3d s  %s\n' $((SECONDS - started)) "$name"
  else
    printf 'FAILED  %3d s  %s (exit code %d, %s)\n' $((SECONDS - started)) "$name" $? "$out/$name.log"
    tail -n 15 -- "$out/$name.log" | sed 's/^/        /'
    failed=1
  fi
}

log_while_working() {
  exec_fleet telemetry log --samples 12 "$out/telemetry" 1 &
  local logger=$!
  proves work "$device" 8 || return
  wait "$logger"
}
inspect() {
  exec_fleet --json telemetry inspect "$out/telemetry" >"$out/inspect.json" && proves inspected "$out/inspect.json"
}
logged() { proves logged "$out/telemetry" "$device"; }
calibrate() {
  exec_fleet --json calibrate run demo --device "$device" --batches "${FLEET_BATCHES-1,2,4}" --cycles 3 \
    >"$out/calibration.json" && proves calibrated "$out/calibration.json" "$device"
}
leak() {
  exec_fleet --json calibrate run demo --device "$device" --batches 1 --cycles 0 --soak 0 --no-figure \
    --fault leak_probe_kv >"$out/leak.json"
  [[ $? == 1 ]] && proves leaked "$out/leak.json"
}
freeze() { exec_fleet --json calibrate freeze demo >"$out/freeze.json"; }
check() { exec_fleet --json calibrate check >"$out/check.json"; }
obey() { proves obeyed "$out/scratch/calibration/batch-table.yaml" "$device"; }

exec_fleet init >/dev/null || exit 1
step log-while-working log_while_working
step inspect inspect
step rows-and-neighbours logged
step calibrate calibrate
step leak-is-named leak
step freeze freeze
step check check
step table-is-obeyed obey
exit "$failed"
