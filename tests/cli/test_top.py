"""``fleetcraft top``: what it prints, for people and for programs, live and once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fleetcraft.identity import Owner
from fleetcraft.spool import leases
from fleetcraft.spool.tree import SpoolTree
from tests.cli.conftest import REPO, Fleet, environment
from tests.fleet.quiet_slurm import QuietSlurm
from tests.fleet.telemetry_files import Telemetry, row

Put = Callable[..., None]
LIMIT_S = 60.0


@pytest.fixture
def telemetry(fleet: Fleet) -> Telemetry:
    return Telemetry(fleet.root)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QuietSlurm:
    return QuietSlurm(tmp_path, monkeypatch)


def working(telemetry: Telemetry, nodes: int, gpus: int = 8, **cells: object) -> None:
    for node in range(nodes):
        telemetry.write(f"n{node:03}", *(row(gpu_index=i, **cells) for i in range(gpus)))


# -------------------------------------------------------------------------- for programs


def test_the_json_value_names_every_gpu_with_its_state_and_its_task(
    fleet: Fleet, put: Put, telemetry: Telemetry
) -> None:
    more = {"util_max_pct": 99.5, "temp_c": 61, "power_w": 412.5}
    path = telemetry.write("n1", row(gpu_index=0, **more), row(gpu_index=1, util_pct=0))
    path.with_suffix(".json").write_text(
        json.dumps({"interval_s": 30, "gpus": [{"uuid": "GPU-0", "name": "NVIDIA A100"}]})
    )
    put("one")
    put("two")
    tree = SpoolTree(str(fleet.spool))
    lease = msgspec.structs.replace(
        leases.new_lease(rank="0", interval_s=30, slots=2, slot_gpus=("GPU-0", "GPU-1")),
        host="n1", job="7",
    )  # fmt: skip
    leases.publish(tree, lease)
    owner = Owner("7", "0", "1", f"{lease.launch}-1")
    tree.fs.rename_new(f"{tree.paths.pending}/one.sh", tree.paths.claim("one", owner))
    value = fleet.ok("top", "--once", "--json").json
    assert value["schema"] == "fleetcraft.top/1"
    assert value["sentence"] == (
        "2 GPUs allocated, 1 working, 1 resident idle; "
        "outer spool 1 pending, 1 running; inner spool drained"
    )
    assert value["allocated"] == 2 == sum(value["states"].values())
    assert set(value["states"]) == {
        "working", "resident_idle", "free_idle", "silent", "lost", "unknown",
    }  # fmt: skip
    first, second = value["gpus"]
    assert (first["name"], first["util_max_pct"], first["temp_c"]) == ("NVIDIA A100", 99.5, 61)
    assert (first["power_w"], first["mem_used_mib"], first["tasks"]) == (412.5, 60000, [])
    assert (second["state"], second["power_w"], second["tasks"]) == ("resident_idle", None, ["one"])
    assert value["util_mean_pct"] == 48.5
    (running,) = value["running"]
    assert (running["task"], running["node"], running["gpu"]) == ("one", "n1", "GPU-1")
    assert running["running_s"] >= 0
    assert value["spools"]["outer"]["counts"]["pending"] == 1
    assert value["rates"]["outer"]["eta_estimate_s"] is None
    assert value["nodes"][0]["workers"] == 1
    assert value["telemetry"]["files"] == 1
    assert value["forgotten"] == {"after_s": 3600, "loggers": [], "workers": []}
    assert value["slurm"] is None


def test_a_tree_with_nothing_in_it_says_so(bare_fleet: Fleet) -> None:
    bare_fleet.root.mkdir()
    value = bare_fleet.ok("top", "--once", "--json").json
    assert value["sentence"] == "no GPU is known to be allocated; both spools not there"
    assert value["telemetry"]["problem"].startswith("no telemetry folder at")
    assert value["spools"]["inner"]["counts"] is None
    assert value["util_mean_pct"] is None


def test_without_a_terminal_json_lines_follow_one_another_until_it_is_interrupted(
    fleet: Fleet, telemetry: Telemetry
) -> None:
    working(telemetry, 1, 1)
    top = subprocess.Popen(
        fleet.command("top", "--json", "--interval", "0.2"),
        cwd=REPO, env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert top.stdout is not None
    try:
        values = [json.loads(top.stdout.readline()) for _ in range(2)]
    finally:
        top.send_signal(signal.SIGINT)
        top.stdout.read()
        code = top.wait(LIMIT_S)
        top.stdout.close()
    assert [value["allocated"] for value in values] == [1, 1]
    assert values[1]["telemetry"]["bytes_read"] == 0
    assert code == 0


def test_starting_it_loads_nothing_heavy(fleet: Fleet) -> None:
    program = (
        "import sys; from fleetcraft.cli.main import main; "
        f"main(['--root', {str(fleet.root)!r}, 'top', '--once']); "
        "heavy = {'numpy', 'pandas', 'rich', 'pynvml', 'matplotlib'} & set(sys.modules); "
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    called = subprocess.run(
        [sys.executable, "-c", program], cwd=REPO, env=environment(), capture_output=True,
        text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert (called.returncode, called.stderr) == (0, "")


# ---------------------------------------------------------------------------- for people


def test_a_few_nodes_show_each_gpu_on_a_line(fleet: Fleet, telemetry: Telemetry) -> None:
    telemetry.write("n1", row(gpu_index=0, util_max_pct=100, power_w=412, temp_c=61))
    telemetry.write("n2", row(gpu_index=0, util_pct="", status="lost"))
    lines = fleet.ok("top", "--once").out.splitlines()
    assert lines[0] == "2 GPUs allocated, 1 working, 1 lost; both spools drained"
    bad, good = (n for n, line in enumerate(lines) if line.startswith("  n"))
    assert lines[bad] == "  n2  job 7"
    assert lines[bad + 1].split()[:3] == ["GPU", "0", "lost"]
    assert lines[bad + 1].endswith("status lost")
    assert lines[good] == "  n1  job 7"
    assert lines[good + 1].split()[:7] == [
        "GPU", "0", "working", "97/100%", "59/80G", "412W", "61C",
    ]  # fmt: skip


def test_a_hundred_hosts_are_a_hundred_lines_with_a_letter_a_gpu_and_the_worst_first(
    fleet: Fleet, telemetry: Telemetry
) -> None:
    working(telemetry, 99)
    telemetry.write(
        "z-last",
        row(400, gpu_index=3),
        row(gpu_index=0, util_pct="", status="lost"),
        row(gpu_index=1, util_pct=0),
        row(gpu_index=2, util_pct=0, mem_used_mib=1),
        row(gpu_index=4),
    )
    lines = fleet.ok("top", "--once").out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("  GPUs"))
    assert lines[start + 1].startswith("  LRFSW     z-last  ")
    assert lines[start + 2].startswith("  WWWWWWWW  n000  ")
    assert len([line for line in lines if line.startswith("  WWWWWWWW")]) == 99
    assert max(len(line) for line in lines[start:]) <= 80
    assert lines[-1] == "  W working  R resident idle  F free idle  S silent  L lost"


def test_nodes_without_room_are_counted_by_state(fleet: Fleet, telemetry: Telemetry) -> None:
    working(telemetry, 9)
    telemetry.write("n999", row(util_pct=0, mem_used_mib=0))
    out = fleet.ok("top", "--once", "--limit", "2").out
    assert "n999" in out
    assert "  ... and 8 more nodes: 64 working\n" in out


def test_what_stands_in_files_cannot_steer_the_terminal(fleet: Fleet, telemetry: Telemetry) -> None:
    evil = "\x1b[2Jx"
    path = telemetry.write(f"n{evil}", row(gpu_uuid=evil, status=evil, util_pct=""))
    path.with_suffix(".json").write_text(json.dumps({"ended_at": evil, "end_reason": evil}))
    (fleet.spool / "workers" / f"7.0.{'a' * 8}.json").write_bytes(
        msgspec.json.encode(
            msgspec.structs.replace(
                leases.new_lease(rank="0", interval_s=30, gpus=3), host=f"n{evil}", job="7"
            )
        )
    )
    out = fleet.ok("top", "--once").out
    assert "\x1b" not in out
    assert "\\x1b[2Jx" in out


def test_who_fell_silent_long_ago_is_named(fleet: Fleet, telemetry: Telemetry) -> None:
    for node in range(7):
        telemetry.write(f"n{node}", row(7200), age_s=7200)
    out = fleet.ok("top", "--once").out
    assert out.startswith("no GPU is known to be allocated; both spools drained\n")
    assert "no word for over 1 h 00 min from the loggers of 7: n0, n1, n2, n3, n4, ...\n" in out
    assert fleet.ok("top", "--once", "--forget", "3h").out.startswith("7 GPUs allocated, 7 silent")


class Screen:
    """``top`` on a terminal."""

    def __init__(self, fleet: Fleet, *words: str, columns: int = 80, lines: int = 30) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(REPO)
            command = fleet.command("top", "--interval", "0.2", *words)
            os.execve(sys.executable, command, environment(TERM="xterm-256color"))
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)
        self.text = ""

    def read_until(self, done: Callable[[str], bool]) -> None:
        until = time.monotonic() + LIMIT_S
        while not done(self.text) and time.monotonic() < until:
            if select.select([self._fd], [], [], 0.1)[0]:
                try:
                    data = os.read(self._fd, 1 << 16)
                except OSError:  # Linux says so when the other end is closed
                    return
                if not data:
                    return
                self.text += data.decode()

    def end(self, number: int) -> int:
        os.kill(self.pid, number)
        with contextlib.suppress(OSError):
            self.read_until(lambda text: False)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_terminal_is_redrawn_and_given_back(
    fleet: Fleet, telemetry: Telemetry, number: int, code: int
) -> None:
    working(telemetry, 40)
    screen = Screen(fleet)
    screen.read_until(lambda text: text.count("320 GPUs allocated") >= 2)
    assert screen.end(number) == code
    assert "\x1b[?1049h" in screen.text  # the other screen, and back
    assert "\x1b[?1049l" in screen.text
    assert "more nodes: " in screen.text
    assert "Traceback" not in screen.text


# -------------------------------------------------------------------------- Slurm's word


def test_slurm_adds_what_is_held_and_silent(
    fleet: Fleet, telemetry: Telemetry, slurm: QuietSlurm
) -> None:
    slurm.jobs({"JobID": "7", "NodeList": "n1,n2", "NumNodes": "2"})
    telemetry.write("n1", row(gpu_index=0), row(gpu_index=1))
    without = fleet.ok("top", "--once", "--json").json
    value = fleet.ok("top", "--once", "--json", "--slurm").json
    assert (without["allocated"], without["slurm"]) == (2, None)
    assert value["sentence"].startswith("4 GPUs allocated, 2 working, 2 unknown;")
    assert {gpu["node"] for gpu in value["gpus"] if gpu["state"] == "unknown"} == {"n2"}
    assert value["slurm"]["problem"] is None


def test_a_slurm_that_does_not_answer_is_said_and_changes_nothing_else(
    fleet: Fleet, telemetry: Telemetry, slurm: QuietSlurm
) -> None:
    telemetry.write("n1", row())
    slurm.write("squeue", "echo 'slurm_load_jobs error: Unable to contact' >&2; exit 1")
    called = fleet.ok("top", "--once", "--slurm")
    assert called.out.startswith("1 GPU allocated, 1 working; both spools drained\n")
    assert "Slurm: squeue failed with exit code 1" in called.out


def test_looking_again_and_again_does_not_wait_for_slurm(
    fleet: Fleet, telemetry: Telemetry, slurm: QuietSlurm, tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    os.mkfifo(answer)
    slurm.jobs({"JobID": "7", "NodeList": "n1"})
    table = tmp_path / "squeue.text"
    slurm.write("squeue", f"cat '{answer}' > /dev/null; cat '{table}'")
    telemetry.write("n1", row(gpu_index=0))
    top = subprocess.Popen(
        fleet.command("top", "--json", "--slurm", "--interval", "0.2"),
        cwd=REPO, env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert top.stdout is not None
    try:
        values = [json.loads(top.stdout.readline()) for _ in range(2)]
        answer.write_bytes(b"now")  # waits until squeue has been started
        while values[-1]["slurm"]["problem"]:
            values.append(json.loads(top.stdout.readline()))
    finally:
        top.send_signal(signal.SIGINT)
        top.stdout.read()
        top.wait(LIMIT_S)
        top.stdout.close()
    assert values[0]["slurm"]["problem"] == "it has not answered yet"
    assert [values[0]["allocated"], values[-1]["allocated"]] == [1, 2]
    assert values[-1]["slurm"]["age_s"] >= 0


# ------------------------------------------------------------------------------- all-smi


@pytest.fixture
def all_smi(tmp_path: Path, slurm: QuietSlurm) -> Path:
    """A program that writes down how it was called, and the files it was given."""
    record = tmp_path / "all-smi.called"
    slurm.write(
        "all-smi",
        f"printf '%s\\n' \"$@\" > '{record}'\n"
        f"cat \"$3\" > '{record}.hosts'\n"
        f'stat -c %a "$(dirname "$5")" > \'{record}.mode\'\n'
        "exit 5",
    )
    return record


def test_all_smi_is_given_the_nodes_of_running_jobs_and_its_own_host_keys(
    fleet: Fleet, slurm: QuietSlurm, all_smi: Path
) -> None:
    slurm.jobs(
        {"JobID": "7", "NodeList": "n1,n2", "NumNodes": "2"},
        {"JobID": "8", "NodeList": "n2"},
        {"JobID": "9", "State": "PENDING"},
        {"JobID": "10", "NodeList": "n3", "State": "COMPLETING"},
    )
    assert fleet("top", "--all-smi").code == 5  # as it ended itself
    words = all_smi.read_text().splitlines()
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert words[0] == "view"
    assert set(options) == {
        "--ssh-hostfile", "--ssh-known-hosts", "--ssh-strict-host-key", "--ssh-timeout-secs",
    }  # fmt: skip
    assert options["--ssh-strict-host-key"] == "accept-new"
    assert int(options["--ssh-timeout-secs"]) <= 10
    hosts = Path(f"{all_smi}.hosts").read_text().split()
    assert [host.partition("@")[2] for host in hosts] == ["n1", "n2"]
    assert Path(f"{all_smi}.mode").read_text() == "700\n"
    assert str(Path.home()) not in options["--ssh-known-hosts"]
    assert not Path(options["--ssh-known-hosts"]).parent.exists()


def test_without_a_running_job_all_smi_is_not_started(
    fleet: Fleet, slurm: QuietSlurm, all_smi: Path
) -> None:
    slurm.jobs({"JobID": "9", "State": "PENDING"})
    called = fleet("top", "--all-smi")
    assert called.code == 1
    assert "all-smi was not started" in called.err
    assert not all_smi.exists()


def test_where_all_smi_is_not_installed_one_sentence_says_so(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    called = fleet("top", "--all-smi")
    assert called.code == 3
    assert called.err.startswith("error: all-smi is not on PATH; nothing was started\nhint: ")


def test_all_smi_has_no_json(fleet: Fleet) -> None:
    called = fleet("top", "--all-smi", "--json")
    assert called.code == 2
    assert "no JSON" in called.error["message"]
