"""The launchers of bin/, in copies of the repository whose path has a space.

Only the shell is real: Python and pip are small programs on a private PATH that note their calls.

Not here: a real set-up with real downloads, which is what bin/test itself stands on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
LAUNCHERS = sorted(file.name for file in (REPO / "bin").iterdir() if file.name != "lib.sh")
DAILY = [
    "enqueue.sh",
    "gpu_enqueue.sh",
    "gpu_telemetry.sh",
    "login_guard.sh",
    "reap_gpu_spool.sh",
    "replenish_fleet.sh",
    "slurm_snapshot.sh",
    "worker_loop.sh",
]
LONGEST_LAUNCHER = 29

PROGRAMS_OF_A_BARE_MACHINE = (
    *("bash", "env", "basename", "dirname", "readlink", "sleep", "flock"),
    *("cat", "cp", "find", "grep", "mkdir", "rm", "sha256sum", "touch"),
)

# Plays Python and, as `-m pip`, pip. Knobs are files beside $TOY, so that a test turns them between
# calls. A venv that it makes has this same program as its Python.
TOY_PYTHON = """#!/usr/bin/env bash
printf '%s\\n' "$(basename -- "$0") $*" >>"$TOY/calls"
has() { [[ -e $TOY/$1 ]]; }
venv_folder=${!#}
case "$*" in
  *version_info*) ! has old_python ;;
  *'import torch'*) has torch ;;
  *'import ensurepip'*) ! has no_ensurepip ;;
  "-m venv"*)
    mkdir -p "$venv_folder/bin"
    cp "$TOY/python" "$venv_folder/bin/python"
    ! has venv_is_cut_short
    ;;
  "-m pip --python"*) has pip_for_others ;;
  "-m pip install"*)
    if has slow_pip; then sleep 0.5; fi
    if has pip_fails; then
      echo 'no route to host' >&2
      exit 1
    fi
    ;;
esac
"""

TOY_FLEETCRAFT = """#!/usr/bin/env bash
printf '%s\\n' "$TOY_NAME" "${PROJECT-}" "$@"
"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One fresh machine: a copy of the repository, and a PATH on which everything is known."""

    repo: Path
    path: Path
    toy: Path

    def start(self, launcher: str | Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
        environment = {"PATH": str(self.path), "TOY": str(self.toy), "TOY_NAME": "on PATH", **more}
        return subprocess.Popen(
            [self.repo / "bin" / launcher, *arguments],
            env=environment,
            cwd=self.toy,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(
        self, launcher: str | Path, *arguments: str, **more: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(launcher, *arguments, **more)
        stdout, stderr = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def turn(self, knob: str, *, on: bool = True) -> None:
        if on:
            (self.toy / knob).touch()
        else:
            (self.toy / knob).unlink()

    def install(self, name: str, program: str, folder: Path | None = None) -> None:
        file = (folder or self.path) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(program)
        file.chmod(0o755)

    def install_fleetcraft_in_venv(self) -> None:
        own = TOY_FLEETCRAFT.replace("$TOY_NAME", "in .venv")
        self.install("fleetcraft", own, self.repo / ".venv/bin")
        self.install("python", TOY_PYTHON, self.repo / ".venv/bin")

    def calls(self) -> list[str]:
        """What Python and pip were asked since the last look."""
        noted = self.toy / "calls"
        lines = noted.read_text().splitlines() if noted.exists() else []
        noted.unlink(missing_ok=True)
        return lines

    def set_ups(self) -> list[str]:
        """The packages that pip was asked to install since the last look."""
        return [call.split()[-1] for call in self.calls() if "pip install" in call]

    @property
    def is_whole(self) -> bool:
        return (self.repo / ".venv/fleetcraft.stamp").is_file()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without any Python."""
    made = Machine(repo=tmp_path / "my repo", path=tmp_path / "path", toy=tmp_path / "toy")
    for folder in (made.repo / "infra", made.path, made.toy):
        folder.mkdir(parents=True)
    shutil.copytree(REPO / "bin", made.repo / "bin")
    for name in ("pyproject.toml", "infra/constraints.txt"):
        shutil.copy(REPO / name, made.repo / name)
    for name in PROGRAMS_OF_A_BARE_MACHINE:
        program = shutil.which(name)
        assert program, f"this test needs {name}"
        (made.path / name).symlink_to(program)
    return made


@pytest.fixture
def with_python(machine: Machine) -> Machine:
    """The same with a Python 3.11, which has pip and ensurepip but no torch."""
    machine.install("python", TOY_PYTHON, machine.toy)
    machine.install("python3.11", TOY_PYTHON)
    return machine


def one_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


# ------------------------------------------------------------------------------ every launcher


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_is_a_thin_executable(launcher: str) -> None:
    text = (REPO / "bin" / launcher).read_text()
    assert len(text.splitlines()) <= LONGEST_LAUNCHER
    assert text.startswith("#!/usr/bin/env bash\n# ")
    assert "\nset -euo pipefail\n" in text
    assert os.access(REPO / "bin" / launcher, os.X_OK)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_teaches_and_needs_no_environment(machine: Machine, launcher: str, flag: str) -> None:
    done = machine.call(launcher, flag)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(rf"usage: (bin/)?{re.escape(launcher)}", done.stdout)
    assert "example" in done.stdout
    assert not (machine.repo / ".venv").exists()


# ------------------------------------------------------------------------- the daily launchers


def test_enqueue_hands_command_and_name_to_fleetcraft(machine: Machine) -> None:
    machine.install_fleetcraft_in_venv()
    done = machine.call(
        "enqueue.sh", "echo 'a  b' $HOME", "gen-1", "--retries", "2", PROJECT="/p q"
    )
    assert done.stdout.splitlines() == [
        *("in .venv", "/p q"),
        *("enqueue", "-n", "gen-1", "--retries", "2", "--", "echo 'a  b' $HOME"),
    ]


def test_gpu_enqueue_names_the_inner_spool(machine: Machine) -> None:
    machine.install_fleetcraft_in_venv()
    done = machine.call("gpu_enqueue.sh", "true", "score-1")
    assert done.stdout.splitlines()[2:] == [
        *("enqueue", "--spool", "gpu", "-n", "score-1"),
        *("--", "true"),
    ]


def test_worker_loop_becomes_a_worker(machine: Machine) -> None:
    machine.install_fleetcraft_in_venv()
    done = machine.call("worker_loop.sh", "--slots", "2")
    assert done.stdout.splitlines()[2:] == ["worker", "--slots", "2"]


def test_login_guard_becomes_the_guard(machine: Machine) -> None:
    machine.install_fleetcraft_in_venv()
    done = machine.call("login_guard.sh", "--json")
    assert done.stdout.splitlines()[2:] == ["guard", "--json"]


@pytest.mark.parametrize("where", ["bin/login_guard.sh", "./bin/login_guard.sh", "bin/../link"])
def test_login_guard_finds_its_repository_from_wherever_it_is_called(
    machine: Machine, where: str
) -> None:
    machine.install_fleetcraft_in_venv()
    (machine.repo / "link").symlink_to("bin/login_guard.sh")
    done = subprocess.run(
        [where],
        cwd=machine.repo,
        env={"PATH": str(machine.path), "TOY_NAME": "on PATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[0] == "in .venv"


def test_a_launcher_finds_its_repository_through_a_symlink(machine: Machine) -> None:
    machine.install_fleetcraft_in_venv()
    link = machine.toy / "an enqueue"
    link.symlink_to(machine.repo / "bin/enqueue.sh")
    done = machine.call(link, "true", "gen-1")
    assert done.stdout.startswith("in .venv\n")


def test_fleetcraft_on_path_is_used_where_there_is_no_venv(machine: Machine) -> None:
    machine.install("fleetcraft", TOY_FLEETCRAFT)
    assert machine.call("worker_loop.sh").stdout.startswith("on PATH\n")


def test_a_venv_whose_python_is_gone_does_not_count(machine: Machine) -> None:
    machine.install_fleetcraft_in_venv()
    python = machine.repo / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python3.11")
    machine.install("fleetcraft", TOY_FLEETCRAFT)
    assert machine.call("worker_loop.sh").stdout.startswith("on PATH\n")


@pytest.mark.parametrize("launcher", DAILY)
def test_without_an_environment_one_sentence_names_the_remedy(
    machine: Machine, launcher: str
) -> None:
    done = machine.call(launcher, "true", "gen-1")
    assert done.returncode == 3
    assert one_line(done.stderr).startswith(f"{launcher}: no fleetcraft in ")
    assert f"{machine.repo}/bin/demo" in done.stderr
    assert not (machine.repo / ".venv").exists()


@pytest.mark.parametrize("launcher", ["enqueue.sh", "gpu_enqueue.sh"])
@pytest.mark.parametrize("arguments", [[], ["true"]])
def test_a_missing_name_is_a_usage_error(
    machine: Machine, launcher: str, arguments: list[str]
) -> None:
    done = machine.call(launcher, *arguments)
    assert done.returncode == 2
    assert f"found {len(arguments)} argument" in one_line(done.stderr)


# ---------------------------------------------------------------------- making the environment


def test_a_fresh_machine_gets_a_venv_and_hears_what_it_costs(with_python: Machine) -> None:
    done = with_python.call("demo", "--keep", "here")
    assert done.returncode == 0
    assert re.search(r"by estimate \d+ MB; torch: \d+ MB .* up to \d+ MB", one_line(done.stderr))
    calls = with_python.calls()
    assert f"python3.11 -m venv {with_python.repo}/.venv" in calls
    (pip,) = [call for call in calls if "pip install" in call]
    assert f"--constraint {with_python.repo}/infra/constraints.txt" in pip
    assert pip.endswith("--editable .[torch,video,evidence]")
    assert calls[-1] == f"python {with_python.repo}/docs/examples/sweep/demo.py --keep here"


def test_the_second_call_does_nothing_but_start(with_python: Machine) -> None:
    with_python.call("demo")
    with_python.calls()
    done = with_python.call("demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert with_python.calls() == [f"python {with_python.repo}/docs/examples/sweep/demo.py"]


def test_the_test_environment_widens_that_of_the_demo_and_serves_it(with_python: Machine) -> None:
    with_python.call("demo")
    with_python.call("test")
    assert with_python.set_ups() == [
        ".[torch,video,evidence]",
        ".[torch,video,evidence,wandb,diffusers,dev]",
    ]
    with_python.call("demo")
    assert with_python.set_ups() == []


def test_arguments_of_the_test_command_go_to_pytest_alone(with_python: Machine) -> None:
    with_python.call("test", "tests/spool", "-k", "claim or lease")
    assert with_python.calls()[-1] == "python -m pytest tests/spool -k claim or lease"
    with_python.call("test")
    assert with_python.calls()[-1] == "python tests/run.py"


@pytest.mark.parametrize("changed", ["pyproject.toml", "infra/constraints.txt"])
def test_a_changed_requirement_is_installed_into_the_same_venv(
    with_python: Machine, changed: str
) -> None:
    with_python.call("demo")
    with_python.calls()
    with (with_python.repo / changed).open("a") as file:
        file.write("# changed\n")
    with_python.call("demo")
    calls = with_python.calls()
    assert sum("pip install" in call for call in calls) == 1
    assert not any("-m venv" in call for call in calls)


def test_an_installation_that_was_cut_short_begins_again(with_python: Machine) -> None:
    with_python.turn("pip_fails")
    failed = with_python.call("demo")
    assert failed.returncode == 3
    assert "no route to host" in failed.stderr
    assert failed.stderr.splitlines()[-1].endswith("call again to retry")
    assert not with_python.is_whole
    half_installed = with_python.repo / ".venv/half_a_package.py"
    half_installed.touch()

    with_python.turn("pip_fails", on=False)
    repaired = with_python.call("demo")
    assert repaired.returncode == 0
    assert "half made" in repaired.stderr
    assert with_python.is_whole
    assert not half_installed.exists()


def test_a_venv_that_was_cut_short_begins_again(with_python: Machine) -> None:
    with_python.turn("venv_is_cut_short")
    assert with_python.call("demo").returncode == 3
    assert not with_python.is_whole
    with_python.turn("venv_is_cut_short", on=False)
    assert with_python.call("demo").returncode == 0
    assert with_python.is_whole


def test_a_venv_whose_python_is_gone_is_made_anew(with_python: Machine) -> None:
    with_python.call("demo")
    (with_python.repo / ".venv/bin/python").unlink()
    assert with_python.call("demo").returncode == 0
    assert with_python.set_ups() == [".[torch,video,evidence]", ".[torch,video,evidence]"]


def test_a_repository_that_was_moved_makes_its_venv_anew(with_python: Machine) -> None:
    with_python.call("demo")
    with_python.calls()
    moved = Machine(
        repo=with_python.repo.rename(with_python.repo.with_name("moved")),
        path=with_python.path,
        toy=with_python.toy,
    )
    assert "moved" in moved.call("demo").stderr
    assert f"python3.11 -m venv {moved.repo}/.venv" in moved.calls()


def test_a_venv_of_another_kind_of_machine_is_left_alone(with_python: Machine) -> None:
    with_python.call("demo")
    stamp = with_python.repo / ".venv/fleetcraft.stamp"
    lines = stamp.read_text().splitlines()
    stamp.write_text("\n".join(["riscv64", *lines[1:]]))
    done = with_python.call("demo")
    assert done.returncode == 3
    assert "was made on riscv64" in one_line(done.stderr)
    assert stamp.exists()


def test_a_venv_that_a_person_made_is_filled_and_not_replaced(with_python: Machine) -> None:
    with_python.install("python", TOY_PYTHON, with_python.repo / ".venv/bin")
    theirs = with_python.repo / ".venv/theirs"
    theirs.touch()
    assert with_python.call("demo").returncode == 0
    assert with_python.is_whole
    assert theirs.exists()


def test_two_calls_at_once_make_one_environment(with_python: Machine) -> None:
    with_python.turn("slow_pip")
    calls = [with_python.start("demo") for _ in range(3)]
    messages = [process.communicate()[1] for process in calls]
    assert [process.returncode for process in calls] == [0, 0, 0]
    assert with_python.set_ups() == [".[torch,video,evidence]"]
    assert sum("waiting for another call" in message for message in messages) == 2


# ------------------------------------------------------------------------- finding the parts


def test_no_python_at_all_is_one_sentence(machine: Machine) -> None:
    done = machine.call("demo")
    assert done.returncode == 3
    assert "no Python 3.11 to 3.14 on PATH: install one" in one_line(done.stderr)
    assert not (machine.repo / ".venv").exists()


def test_an_old_python_is_no_python(with_python: Machine) -> None:
    with_python.turn("old_python")
    with_python.install("python3", TOY_PYTHON)
    done = with_python.call("test")
    assert done.returncode == 3
    assert "no Python 3.11 to 3.14 on PATH: install one" in one_line(done.stderr)


def test_the_newest_python_that_really_runs_is_taken(with_python: Machine) -> None:
    with_python.install("python3.14", "#!/usr/bin/env bash\nexit 127\n")
    with_python.install("python3.13", TOY_PYTHON)
    with_python.call("demo")
    assert f"python3.13 -m venv {with_python.repo}/.venv" in with_python.calls()


def test_an_activated_environment_does_not_lend_its_torch(tmp_path: Path) -> None:
    # A venv made by the Python of another one gets the packages of their common base.
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    (packages / "torch.py").write_text("__version__ = '2.13.0'\n")
    asked = f"repo={REPO}; . {REPO}/bin/lib.sh; has_fitting_torch {tmp_path}/venv/bin/python"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, check=False)
    assert done.returncode == 1


def test_a_python_with_a_fitting_torch_lends_it_to_the_venv(with_python: Machine) -> None:
    with_python.turn("torch")
    done = with_python.call("demo")
    assert one_line(done.stderr).endswith("uses the torch that is there")
    calls = with_python.calls()
    venv = with_python.repo / ".venv"
    assert f"python3.11 -m venv --system-site-packages {venv}" in calls
    pins = venv / "fleetcraft.constraints.txt"
    assert any(f"--constraint {pins}" in call for call in calls)
    assert set((REPO / "infra/constraints.txt").read_text().splitlines()) - set(
        pins.read_text().splitlines()
    ) == {"torch==2.13.0"}


def test_torch_alone_comes_from_the_index_that_was_named(with_python: Machine) -> None:
    with_python.call("demo", FLEET_TORCH_INDEX="https://example.org/cpu")
    torch, rest = [call for call in with_python.calls() if "pip install" in call]
    assert "--no-deps --index-url https://example.org/cpu" in torch
    assert torch.endswith(" torch")
    assert "example.org" not in rest


def test_where_ensurepip_is_missing_another_pip_fills_the_venv(with_python: Machine) -> None:
    with_python.turn("no_ensurepip")
    with_python.turn("pip_for_others")
    assert with_python.call("demo").returncode == 0
    calls = with_python.calls()
    venv = with_python.repo / ".venv"
    assert f"python3.11 -m venv --without-pip {venv}" in calls
    assert f"python3.11 -m pip --python {venv}/bin/python install --quiet pip" in calls


def test_where_no_pip_can_be_had_one_sentence_says_what_to_install(with_python: Machine) -> None:
    with_python.turn("no_ensurepip")
    done = with_python.call("demo")
    assert done.returncode == 3
    assert "python3.11 has no ensurepip and there is no pip" in one_line(done.stderr)
    assert "apt install python3-venv" in done.stderr
    assert not with_python.is_whole
