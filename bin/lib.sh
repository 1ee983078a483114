# shellcheck shell=bash
# What the launchers in bin/ share: help, one-line errors, and the way to a Python environment.
# A launcher sources this file and ends in an exec; nothing here runs by being sourced.
#
# The environment is .venv in the repository. .venv/fleetcraft.stamp, written last, says that it is
# whole and what it was made from; while a set-up is at work .venv/fleetcraft.unfinished lies there.

repo=${BASH_SOURCE[0]%/*/*} # right when a launcher says its real path, and without a fork
[[ $repo/bin/lib.sh -ef ${BASH_SOURCE[0]} ]] || repo=$(cd -- "${BASH_SOURCE[0]%/*}/.." && pwd -P)
venv=$repo/.venv
stamp=$venv/fleetcraft.stamp
unfinished=$venv/fleetcraft.unfinished

say() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
}

die() { # die EXIT_CODE SENTENCE
  say "$2"
  exit "$1"
}

help_if_asked() { # help_if_asked "$@" <<'HELP'
  case ${1-} in
    -h | --help)
      cat
      exit 0
      ;;
  esac
}

# ------------------------------------------------------------------ for the daily launchers

run_fleetcraft() { # becomes fleetcraft, from .venv or else from PATH; installs nothing
  # Both are asked for: the script stays behind when the Python it names is gone.
  if [[ -x $venv/bin/python && -x $venv/bin/fleetcraft ]]; then
    exec "$venv/bin/fleetcraft" "$@"
  elif type -P fleetcraft >/dev/null; then
    exec fleetcraft "$@"
  fi
  die 3 "no fleetcraft in '$venv' or on PATH: run '$repo/bin/demo' once, which makes that .venv, or activate the environment that has it"
}

# ------------------------------------------------------------- for bin/demo and bin/test only

use_environment() { # use_environment EXTRAS: .venv holds the package with them, first on PATH
  if ! environment_is_whole "$1"; then
    # The subshell holds the lock, so that nothing it becomes later inherits it.
    (
      wait_for_turn
      environment_is_whole "$1" || make_environment "$1"
    ) 9>>"$repo/.venv.lock"
  fi
  export PATH="$venv/bin:$PATH"
}

wait_for_turn() {
  local status=0
  flock -n 9 2>/dev/null || status=$?
  if ((status == 1)); then # taken; any other failure is a machine or a disk without locks
    say "waiting for another call that is setting up .venv"
    flock 9
  fi
}

# Three lines: the kind of machine, the folder, and the hash of what was asked for with the extras.
# The extras come last: of 'torch,video' and 'torch,video,dev' the wider one serves both.
stamp_for() { # stamp_for EXTRAS
  local hash
  hash=$(cat "$repo/pyproject.toml" "$repo/infra/constraints.txt" | sha256sum)
  printf '%s\n%s\n%s %s' "$HOSTTYPE" "$repo" "${hash%% *}" "$1"
}

environment_is_whole() { # environment_is_whole EXTRAS
  local wanted
  wanted=$(stamp_for "$1")
  [[ -x $venv/bin/python && -f $stamp && $(<"$stamp") == "$wanted"* ]]
}

make_environment() { # make_environment EXTRAS
  local machine='' folder='' base=''
  cd -- "$repo" || exit # there no file of the caller can shadow a module
  PATH=${PATH//"$venv/bin:"/} # an activated .venv must not be what makes .venv anew
  if [[ -f $stamp ]]; then
    { read -r machine && read -r folder; } <"$stamp" || true
  fi
  if [[ -n $machine && $machine != "$HOSTTYPE" ]]; then
    die 3 "'$venv' was made on $machine and this machine is $HOSTTYPE: use another checkout here, or remove it"
  fi

  # pip can take a package whose installation was cut short for a whole one, so begin again.
  if [[ -e $unfinished || -n $folder && $folder != "$repo" ]] || ! python_starts "$venv/bin/python"; then
    [[ ! -e $venv ]] || say "making .venv anew: it was half made, moved, or its Python is gone"
    base=$(find_python)
    mkdir -p -- "$venv"
    find "$venv/" -mindepth 1 -delete # its contents only: .venv may be a link to a roomier disk
    touch "$unfinished"
    make_bare_venv "$base"
  elif ! python_fits "$venv/bin/python"; then
    die 3 "'$venv' has a Python that is not 3.11 to 3.14: remove that folder and call again"
  fi

  touch "$unfinished"
  rm -f -- "$stamp"
  install_package "$1" || die 3 "pip could not fill '$venv' (its messages are above): call again to retry"
  rm -f -- "$unfinished"
  stamp_for "$1" >"$stamp"
}

# ------------------------------------------------------------------------------------ Python

python_starts() {
  "$1" -c '' 2>/dev/null
}

python_fits() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

has_fitting_torch() { # whether this Python imports a torch in the range of pyproject.toml
  "$1" -c '
import re, sys, tomllib
with open(sys.argv[1], "rb") as file:
    (wanted,) = tomllib.load(file)["project"]["optional-dependencies"]["torch"]
low, high = re.fullmatch(r"torch>=([\d.]+),<([\d.]+)", wanted).groups()
if sys.prefix != sys.base_prefix:
    sys.exit(1)  # an activated environment: a new one would get the packages of its base, not its own
import torch
release = lambda text: [int(number) for number in re.match(r"[\d.]*\d", text)[0].split(".")]
sys.exit(not release(low) <= release(torch.__version__) < release(high))
' "$repo/pyproject.toml" 2>/dev/null
}

find_python() { # prints the newest Python that fits, but one with a torch goes before one without
  local name first=''
  for name in python3.14 python3.13 python3.12 python3.11 python3; do
    python_fits "$name" || continue # a name on PATH may be a shim with nothing behind it
    first=${first:-$name}
    if has_fitting_torch "$name"; then
      first=$name
      break
    fi
  done
  [[ -n $first ]] || die 3 "no Python 3.11 to 3.14 on PATH: install one (Debian: apt install python3 python3-venv) and call again"
  printf '%s\n' "$first"
}

make_bare_venv() { # make_bare_venv PYTHON: .venv with pip in it, and with PYTHON's torch if that fits
  local options=() pip words
  has_fitting_torch "$1" && options=(--system-site-packages)
  if "$1" -c 'import ensurepip; ensurepip.version()' 2>/dev/null; then
    "$1" -m venv "${options[@]}" "$venv" >&2 && return
  fi
  # Debian has ensurepip in a package of its own, but any pip can install into another Python.
  "$1" -m venv --without-pip "${options[@]}" "$venv" >&2 || die 3 "'$1 -m venv' failed (its messages are above)"
  for pip in "$1 -m pip" pip3 pip; do
    read -ra words <<<"$pip"
    if "${words[@]}" --python "$venv/bin/python" --version >/dev/null 2>&1; then
      "${words[@]}" --python "$venv/bin/python" install --quiet pip >&2 && return
    fi
  done
  die 3 "$1 has no ensurepip and there is no pip 22.3 or newer on PATH: install either (Debian: apt install python3-venv) and call again"
}

# --------------------------------------------------------------------------------- packages

install_package() { # install_package EXTRAS
  local python=$venv/bin/python pins=$repo/infra/constraints.txt torch_too=yes
  local pip=("$python" -m pip install --disable-pip-version-check)
  [[ -t 2 ]] || pip+=(--quiet)
  if has_fitting_torch "$python"; then
    torch_too=no
    pins=$venv/fleetcraft.constraints.txt # the pin would replace a torch that is good enough
    grep -v '^torch==' "$repo/infra/constraints.txt" >"$pins"
  fi
  announce "$1" "$torch_too"
  if [[ $torch_too == yes && -n ${FLEET_TORCH_INDEX-} ]]; then
    "${pip[@]}" --no-deps --index-url "$FLEET_TORCH_INDEX" --constraint "$pins" torch >&2 || return
  fi
  "${pip[@]}" --constraint "$pins" --editable ".[$1]" >&2 || return
  # pip compiles what it copies, not what it links to; without this each start would be slower
  # where Python may not write (PYTHONDONTWRITEBYTECODE, a read-only checkout).
  "$python" -m compileall -q fleetcraft >&2 || true
}

announce() { # announce EXTRAS TORCH_TOO: megabytes as added up once for x86_64 and Python 3.11
  local mb=100 torch='uses the torch that is there'
  [[ $1 != *dev* ]] || mb=190
  if [[ $2 == yes ]]; then
    torch='torch: 200 MB as a CPU build, up to 3000 MB as a CUDA build (FLEET_TORCH_INDEX=URL says where from)'
  fi
  say "setting up '$venv': pip fetches what it has not cached, by estimate $mb MB; $torch"
}
