"""What a task finds: its environment, its files, its signals, and its command as it was given."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.worker.harness import Site, python, wait_until


def env_file(site: Site, text: str | bytes, mode: int = 0o600) -> str:
    path = site.file("task.env")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path.name


def test_a_task_knows_who_it_is_and_where(site: Site) -> None:
    names = "FLEET_TASK FLEET_ATTEMPT FLEET_OWNER FLEET_SPOOL FLEET_ROOT FLEET_PHYSICAL_SLOT"
    site.enqueue("who", f'for n in {names} FLEET_STREAM; do echo "$n=${{!n}}"; done; pwd')
    site.work(env={"SLURMD_NODENAME": "elsewhere"})
    *pairs, folder = site.log("who").splitlines()
    said = dict(pair.split("=", 1) for pair in pairs)
    assert said["FLEET_TASK"] == "who"
    assert said["FLEET_ATTEMPT"] == "1"
    assert said["FLEET_OWNER"] == site.last("who").owner
    assert said["FLEET_SPOOL"] == site.spool.root
    assert said["FLEET_ROOT"] == str(site.root)
    assert said["FLEET_PHYSICAL_SLOT"] == "elsewhere/slot0"
    assert said["FLEET_STREAM"].isdecimal()
    assert int(said["FLEET_STREAM"]) < 2**63
    assert folder == str(site.project)


def test_the_stream_is_one_per_slot_and_launch(site: Site) -> None:
    command = "echo $FLEET_PHYSICAL_SLOT $FLEET_STREAM >> streams; sleep 0.1"
    site.enqueue_all({f"a{n}": command for n in range(8)})
    site.work(slots="2")
    site.enqueue_all({f"b{n}": command for n in range(8)})
    site.work(slots="2")
    streams = set(site.lines("streams"))
    assert len(streams) == 4
    assert len({line.split()[1] for line in streams}) == 4


def test_the_workers_own_environment_is_inherited(site: Site) -> None:
    site.enqueue("heir", 'echo "$ODD"')
    site.work(env={"ODD": "two\nlines and ünïcode"})
    assert site.log("heir") == "two\nlines and ünïcode\n"


@pytest.mark.parametrize("slots", ["1", "2"])
def test_bytes_that_are_no_text_pass_through_the_environment(site: Site, slots: str) -> None:
    site.enqueue("bytes", 'printf "%s" "$RAW" | od -An -tx1')
    site.work(slots=slots, env={"RAW": os.fsdecode(b"\xff\xfe=x")})
    assert site.log("bytes").split() == ["ff", "fe", "3d", "78"]


# -- env-file


def test_an_env_file_adds_variables_without_expanding_anything(site: Site) -> None:
    lines = ["# a comment", "", "export A=1", "B='two words'", 'C="$HOME `id`"', "  E=a=b#c", "F="]
    file = env_file(site, "\n".join([*lines, "G='unpaired", "H=x\r\n"]))
    site.enqueue("env", 'echo "$A|$B|$C|$E|$F|$G|$H|"', env_file=file)
    site.work(env={"B": "the worker's"})
    assert site.log("env") == "1|two words|$HOME `id`|a=b#c||'unpaired|x|\n"


def test_an_env_file_does_not_change_who_the_task_is(site: Site) -> None:
    file = env_file(site, "FLEET_TASK=other\nFLEET_OWNER=nobody\nFLEET_STREAM=1\n")
    site.enqueue("env", 'echo "$FLEET_TASK $FLEET_OWNER"', env_file=file)
    site.work()
    assert site.log("env") == f"env {site.last('env').owner}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("A=1\nhunter2 is my password\n", "line 2 of the env-file"),
        ("A=hunter2\0x\n", "line 1 of the env-file"),
        ("1A=hunter2\n", "line 1 of the env-file"),
        (b"A=hunter2\xff\n", "not UTF-8"),
    ],
)
def test_a_bad_env_file_fails_the_launch_without_telling_its_secrets(
    site: Site, text: str | bytes, problem: str
) -> None:
    site.enqueue("secret", "touch ran", env_file=env_file(site, text))
    worker = site.start()
    worker.wait()
    line = site.last("secret")
    assert (line.outcome, line.to) == ("launch_failed", "failed")
    assert problem in line.reason
    assert not site.file("ran").exists()
    told = worker.said() + Path(site.spool.show("secret").path).read_text() + str(site.journals())
    assert "hunter2" not in told


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_an_env_file_that_others_can_write_is_refused(site: Site, mode: int) -> None:
    site.enqueue("unsafe", "touch ran", env_file=env_file(site, "A=1\n", mode))
    site.work()
    assert site.outcomes("unsafe") == ["launch_failed"]
    assert "can write it" in site.last("unsafe").reason
    assert not site.file("ran").exists()


def test_an_env_file_that_is_missing_or_no_file_fails_the_launch(site: Site) -> None:
    os.mkfifo(site.file("fifo"), 0o600)
    site.enqueue("a-missing", "touch ran", env_file="nowhere.env")
    site.enqueue("b-folder", "touch ran", env_file=".")
    site.enqueue("c-fifo", "touch ran", env_file="fifo")  # nobody will ever write to it
    site.work()
    assert "No such file" in site.last("a-missing").reason
    assert site.outcomes("b-folder") == site.outcomes("c-fifo") == ["launch_failed"]
    assert not site.file("ran").exists()


def test_an_env_file_given_as_an_absolute_path_is_read_from_there(site: Site) -> None:
    path = site.base / "somewhere.env"
    path.write_text("A=found\n")
    site.enqueue("env", "echo $A", env_file=str(path))
    site.work()
    assert site.log("env") == "found\n"


# -- what the process is born with


def test_a_login_shell_runs_the_task_when_asked(site: Site) -> None:
    home = site.base / "home"
    home.mkdir()
    (home / ".bash_profile").write_text("export FROM_PROFILE=yes\n")
    command = 'echo "$(shopt -q login_shell && echo login) $FROM_PROFILE"'
    site.enqueue("a-plain", command)
    site.enqueue("b-login", command, login=True)
    site.work(env={"HOME": str(home)})
    assert site.log("a-plain") == " \n"
    assert site.log("b-login") == "login yes\n"


@pytest.mark.parametrize("slots", ["1", "2"])
def test_standard_input_is_empty(site: Site, slots: str) -> None:
    site.enqueue("reader", "cat; readlink /proc/$$/fd/0")
    site.work(slots=slots)
    assert site.log("reader") == "/dev/null\n"


@pytest.mark.parametrize("slots", ["1", "2"])
def test_no_signal_is_ignored_or_blocked_in_a_task(site: Site, slots: str) -> None:
    site.enqueue("signals", "grep -E '^Sig(Ign|Blk)' /proc/self/status; yes | head -1")
    # nohup: the worker itself ignores SIGHUP.
    site.work(slots=slots, wrap=["nohup"])
    *masks, word = site.log("signals").splitlines()
    # Two above the first 31 are glibc's own.
    assert [int(mask.split()[1], 16) & 0x7FFFFFFF for mask in masks] == [0, 0]
    assert word == "y"


def test_a_task_whose_reader_goes_away_dies_of_sigpipe_like_in_a_shell(site: Site) -> None:
    site.enqueue("pipe", "yes | head -1 > /dev/null; exit ${PIPESTATUS[0]}")
    site.work()
    assert site.last("pipe").exit_code == 128 + signal.SIGPIPE


@pytest.mark.parametrize("slots", ["1", "2"])
def test_a_task_leads_a_session_of_its_own_and_inherits_no_other_file(
    site: Site, slots: str
) -> None:
    site.enqueue("files", "ls -l /proc/$$/fd; ps -o sid= -p $$; echo $$")
    site.work(slots=slots)
    *files, session, pid = site.log("files").splitlines()
    assert session.strip() == pid
    numbers = {line.split(" -> ")[0].split()[-1] for line in files if " -> " in line}
    # Three standard ones, the node's gate, and the script that bash reads.
    assert numbers == {"0", "1", "2", "9", "255"}


def test_a_worker_whose_own_standard_files_are_closed_runs_tasks_as_usual(site: Site) -> None:
    site.enqueue("task", "echo to the log; echo errors too >&2; cat")
    worker = site.start(wrap=["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash"])
    assert worker.process.wait(60) == 0
    assert site.outcomes("task") == ["completed"]
    assert site.log("task") == "to the log\nerrors too\n"


# -- commands


COMMANDS = {
    "spaces-and-quotes": ("printf '%s|' \"a b\" 'c \"d\"' e\\ f", "a b|c \"d\"|e f|"),
    "newlines": ("echo one\necho two\n\necho three", "one\ntwo\nthree\n"),
    "unicode": ("echo 'grüße, 世界 🎬'", "grüße, 世界 🎬\n"),
    "here-document": ("cat <<'END'\n$HOME `x` exit\n#FLEET name: other\nEND\necho after",
                      "$HOME `x` exit\n#FLEET name: other\nafter\n"),
    "comment-at-the-end": ("echo yes # and no more", "yes\n"),
    "leading-dash": ("-n 2>/dev/null || echo -- -n", "-- -n\n"),
    "function": ("f() { echo \"$1\"; }; f 'x y'", "x y\n"),
    "percent-and-braces": ("echo '{seed} %s $$'", "{seed} %s $$\n"),
}  # fmt: skip


def test_commands_run_exactly_as_they_were_given(site: Site) -> None:
    site.enqueue_all({name: command for name, (command, _) in COMMANDS.items()})
    site.work()
    said = {name: site.log(name) for name in COMMANDS}
    assert said == {name: expected for name, (_, expected) in COMMANDS.items()}
    assert site.counts()["done"] == len(COMMANDS)


def test_a_command_of_200_kib_runs(site: Site) -> None:
    # Longer than one argument of a process may be.
    text = "x" * 1024
    command = "\n".join(f": {text}" for _ in range(200)) + "\necho reached the end"
    assert len(command) > 200 * 1024
    site.enqueue("huge", command)
    site.work()
    assert site.log("huge") == "reached the end\n"


def test_a_project_folder_with_spaces_and_quotes_is_entered(site: Site) -> None:
    folder = site.base / "my 'odd' pröject $HOME"
    folder.mkdir()
    site.enqueue("task", "pwd; echo x > out", project_dir=str(folder), outputs=("out",))
    site.work()
    assert site.log("task") == f"{folder}\n"
    assert site.state("task") == "done"


def test_a_project_folder_that_is_gone_fails_the_task_before_its_command(site: Site) -> None:
    site.enqueue("task", "echo ran", project_dir=str(site.base / "nowhere"))
    site.work()
    assert site.last("task").exit_code == 1
    assert "nowhere" in site.log("task")
    assert "ran" not in site.log("task").split()


def test_history_appended_while_bash_reads_the_record_is_not_run(site: Site) -> None:
    # bash reads its script bit by bit: what is appended comes after ``exit``.
    site.enqueue("late", "touch begun; until [ -e go ]; do sleep 0.02; done; echo end")
    worker = site.start()
    wait_until(site.file("begun").exists, "it runs")
    [(name, owner)] = site.spool.tree.claims()
    with open(site.spool.tree.paths.claim(name, owner), "a") as file:
        file.write("touch injected\n")
    site.file("go").touch()
    worker.wait()
    assert site.log("late") == "end\n"
    assert not site.file("injected").exists()


# -- GPU slots


def test_each_gpu_slot_sees_its_own_gpu_only(site: Site) -> None:
    gpus = ["GPU-0a1b2c3d-aaaa", "GPU-4e5f6a7b-bbbb", "MIG-12345678"]
    command = "echo $CUDA_VISIBLE_DEVICES $FLEET_PHYSICAL_SLOT >> seen; " + python(
        "import pathlib, time\nwhile len(open('seen').read().splitlines()) < 3: time.sleep(0.02)"
    )
    site.enqueue_all({f"t{n}": command for n in range(3)}, slot="gpu")
    site.work(slots="gpu", env={"CUDA_VISIBLE_DEVICES": ",".join(gpus), "SLURMD_NODENAME": "n1"})
    assert sorted(site.lines("seen")) == sorted(f"{gpu} n1/{gpu}" for gpu in gpus)
    assert {site.last(f"t{n}").gpus for n in range(3)} == {(gpu,) for gpu in gpus}


def test_a_task_for_gpu_slots_is_left_to_them(site: Site) -> None:
    site.enqueue("gpu", "true", slot="gpu")
    site.enqueue("tpu", "true", slot="tpu")
    site.enqueue("any", "true")
    site.work()
    assert site.counts() == {"waiting": 0, "pending": 2, "running": 0, "done": 1, "failed": 0}
    site.work(slots="gpu", env={"CUDA_VISIBLE_DEVICES": "GPU-0a1b2c3d"})
    assert site.state("gpu") == "done"
    assert site.state("tpu") == "pending"


def test_gpu_slots_without_a_gpu_are_refused(site: Site) -> None:
    worker = site.start(slots="gpu", env={"CUDA_VISIBLE_DEVICES": ""})
    assert worker.wait() == 6
    assert "no GPU" in worker.events("refused")[0]["text"]


@pytest.mark.parametrize("slots", ["0", "-1", "two", "1025", "", "1.5"])
def test_a_bad_number_of_slots_is_refused(site: Site, slots: str) -> None:
    worker = site.start(slots=slots)
    assert worker.wait() == 2
    assert "bad number of slots" in worker.events("refused")[0]["text"]
