"""How the login guard judges: limits, ssh, cgroups, and all that it cannot read.

Not here: real processes and real mounts; they are in test_census.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fleetcraft.config import load
from fleetcraft.fleet.guard.causes import Kind
from fleetcraft.fleet.guard.verdict import (
    GuardLimits,
    GuardReport,
    Threshold,
    Verdict,
    check_login,
    is_login_host,
    limits_from,
)
from tests.fleet.proc_tree import SOMEBODY_ELSE, ProcTree

LIMITS = GuardLimits(
    processes=Threshold(caution=25, stop=40, source="the site"),
    ssh=Threshold(caution=2, stop=3, source="the site"),
)


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


def look(tree: ProcTree, limits: GuardLimits = LIMITS) -> GuardReport:
    return check_login(limits, str(tree))


def unknown(tree: ProcTree) -> str:
    """The one reason of a verdict that must be unknown."""
    report = look(tree)
    assert report.verdict is Verdict.UNKNOWN
    (reason,) = report.reasons
    assert report.unknowns == report.reasons
    return reason


def names(report: GuardReport) -> list[str]:
    return [cause.name for cause in report.causes]


# --------------------------------------------------------------------------------- the limits


@pytest.mark.parametrize(
    ("processes", "verdict"),
    [(1, "go"), (24, "go"), (25, "caution"), (39, "caution"), (40, "no-go"), (41, "no-go")],
)
def test_a_limit_counts_from_its_number_on(tree: ProcTree, processes: int, verdict: str) -> None:
    tree.add_many(processes - 1)
    report = look(tree)
    assert (report.verdict.value, report.processes) == (verdict, processes)
    assert report.is_complete
    said = "".join(report.reasons)
    assert verdict == "go" or re.search(rf"^{processes} processes, .* (25|40) \(the site\)$", said)


def test_the_exit_codes_are_0_to_3() -> None:
    assert {verdict.value: verdict.exit_code for verdict in Verdict} == {
        "go": 0,
        "caution": 1,
        "no-go": 2,
        "unknown": 3,
    }


def test_threads_count_against_a_limit_of_their_own(tree: ProcTree) -> None:
    tree.add(50, "solver", threads=70)
    tree.add(51, "shell")
    tree.add(52, "shell")
    limits = GuardLimits(
        processes=LIMITS.processes, ssh=LIMITS.ssh, threads=Threshold(stop=73, source="me")
    )
    report = look(tree, limits)
    assert (report.verdict, report.threads) == (Verdict.NO_GO, 73)
    assert names(report)[0] == "solver"
    assert names(look(tree))[0] == "shell"


def test_other_users_and_the_kernel_do_not_count(tree: ProcTree) -> None:
    tree.add(50, user=SOMEBODY_ELSE)
    tree.add(51, "kworker/0:1", more="Kthread:\t1\n")
    assert look(tree).processes == 1


@pytest.mark.skipif(os.getuid() != 0, reason="kernel threads are root's")
def test_threads_of_an_older_kernel_do_not_count_for_root(tree: ProcTree) -> None:
    tree.add(51, "kworker/0:1", more="")
    tree.add(52, "sleep", state="Z (zombie)", more="")
    assert look(tree).processes == 2


def test_zombies_count_and_are_named(tree: ProcTree) -> None:
    for pid in range(50, 89):
        tree.add(pid, f"was-{pid}", state="Z (zombie)", more="")
    report = look(tree)
    assert report.verdict is Verdict.NO_GO
    assert (report.causes[0].name, report.causes[0].processes) == ("zombies", 39)


def test_causes_are_grouped_by_program_and_the_worst_comes_first(tree: ProcTree) -> None:
    for pid in range(50, 53):
        tree.add(pid, "node", threads=2)
    tree.add(60, "a-name-that-is-", "/opt/a-name-that-is-longer", "--flag")
    tree.add(61, "java", threads=99)
    report = look(tree)
    assert names(report)[:3] == ["node", "java", "a-name-that-is-longer"]
    assert (report.causes[0].processes, report.causes[0].threads) == (3, 6)
    assert report.causes[0].pids == (50, 51, 52)


# --------------------------------------------------------------------------------------- ssh


@pytest.mark.parametrize(
    ("title", "is_session"),
    [
        ("sshd: alice@pts/0", True),
        ("sshd: alice@pts/0,pts/1", True),
        ("sshd: alice@notty", True),
        ("sshd: alice", True),
        ("sshd-session: alice@pts/3", True),
        ("sshd: alice@internal-sftp", False),
        ("sshd: alice [priv]", False),
        ("sshd: unknown [net]", False),
        ("sshd: [accepted]", False),
        ("sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups", False),
        ("/usr/sbin/sshd", False),
    ],
)
def test_an_ssh_session_is_known_by_what_sshd_writes(
    tree: ProcTree, title: str, is_session: bool
) -> None:
    tree.add(50, "sshd", title)
    assert look(tree).ssh_sessions == int(is_session)


def test_a_session_that_cannot_be_asked_counts(tree: ProcTree) -> None:
    tree.add(50, "sshd", state="D (disk sleep)")
    assert look(tree).ssh_sessions == 1


def test_a_connection_is_one_client_whatever_started_it(tree: ProcTree) -> None:
    tree.add(50, "ssh", "ssh", "far")
    tree.add(51, "scp", "scp", "a", "far:b")
    tree.add(52, "ssh", "/usr/bin/ssh", "-x", "far", "scp -t b", parent=51)
    tree.add(53, "rsync", "rsync", "-a", "a", "far:b")
    tree.add(54, "ssh", "ssh", "far", "rsync", "--server", parent=53)
    tree.add(55, "sftp", "sftp", "far")  # has not started its ssh yet
    assert look(tree).ssh_clients == 4


def test_what_is_no_connection_from_here_is_no_client(tree: ProcTree) -> None:
    tree.add(50, "rsync", "rsync", "-a", "here", "there")
    tree.add(51, "ssh-agent", "ssh-agent", "-s")
    tree.add(52, "scp", "scp", "-t", "b")  # the far end of somebody's scp to here
    tree.add(53, "sftp-server", "/usr/lib/openssh/sftp-server")
    tree.add(54, "ssh", state="Z (zombie)", more="")
    assert look(tree).ssh_clients == 0


def test_sessions_and_clients_are_counted_together(tree: ProcTree) -> None:
    tree.add(50, "sshd", "sshd: alice@pts/0")
    assert look(tree).verdict is Verdict.GO
    tree.add(51, "ssh", "ssh", "far")
    assert look(tree).verdict is Verdict.CAUTION
    tree.add(52, "ssh", "ssh", "far")
    for pid in range(60, 65):
        tree.add(pid)
    report = look(tree)
    assert report.verdict is Verdict.NO_GO
    assert report.reasons == ("3 ssh connections, stop at 3 (the site)",)
    assert [cause.kind for cause in report.causes[:2]] == [Kind.SSH_CLIENTS, Kind.SSH_SESSIONS]


# ----------------------------------------------------------------------- what cannot be read


def test_a_process_that_cannot_be_read_is_unknown(tree: ProcTree) -> None:
    for pid in (50, 51):
        folder = tree.add(pid)
        (folder / "status").unlink()
        (folder / "status").mkdir()
    assert re.fullmatch(
        r"cannot read process 50: '.*/50/status': Is a directory \(and 1 more\)", unknown(tree)
    )


@pytest.mark.parametrize(
    "text", ["", "Name:\tsleep\n", "Uid:\tx\nState:\nName:\nPPid:\nThreads:\n"]
)
def test_a_status_that_is_cut_or_garbled_is_unknown(tree: ProcTree, text: str) -> None:
    (tree.add(50) / "status").write_text(text)
    assert "50/status' is not as the kernel writes it" in unknown(tree)


def test_a_process_that_ended_meanwhile_is_no_matter(tree: ProcTree) -> None:
    (tree.add(50) / "status").unlink()
    report = look(tree)
    assert (report.verdict, report.processes, report.unknowns) == (Verdict.GO, 1, ())


def test_no_go_beats_unknown_and_both_are_told(tree: ProcTree) -> None:
    tree.add_many(39)
    (tree.add(50) / "status").write_text("")
    report = look(tree)
    assert report.verdict is Verdict.NO_GO
    assert len(report.unknowns) == 1
    assert not report.is_complete


def test_caution_does_not_beat_unknown(tree: ProcTree) -> None:
    tree.add_many(30)
    (tree.add(50) / "status").write_text("")
    assert "process 50" in unknown(tree)


def renumber(tree: ProcTree, pid: int) -> str:
    """The asking process under another number; returns its status."""
    (tree.root / "self").unlink()
    tree.own.rename(tree.root / str(pid))
    (tree.root / "self").symlink_to(str(pid))
    return (tree.root / f"{pid}/status").read_text()


def test_a_list_that_lacks_the_asking_process_is_unknown(tree: ProcTree) -> None:
    status = renumber(tree, 999999)
    (tree.root / "999999/status").write_text(status.replace(f"\t{os.getpid()}\n", "\t999999\n"))
    assert "does not list this very process" in unknown(tree)


def test_a_list_of_an_outer_namespace_numbers_the_asking_process_otherwise(
    tree: ProcTree,
) -> None:
    status = renumber(tree, 999999)
    numbers = f"NSpid:\t999999\t{os.getpid()}\n"
    (tree.root / "999999/status").write_text(re.sub(r"NSpid:.*\n", numbers, status))
    assert look(tree).verdict is Verdict.GO


def test_a_self_that_is_not_listed_is_unknown(tree: ProcTree) -> None:
    tree.own.rename(tree.root / "me")
    (tree.root / "self").unlink()
    (tree.root / "self").symlink_to("me")
    assert "self' is not as the kernel writes it" in unknown(tree)


def test_a_list_without_process_1_is_unknown(tree: ProcTree) -> None:
    (tree.root / "1").rename(tree.root / "one")
    assert "does not list process 1" in unknown(tree)


def test_a_folder_that_is_no_process_file_system_is_unknown(tree: ProcTree) -> None:
    tree.mount(kind="tmpfs")
    assert "is not a process file system" in unknown(tree)


@pytest.mark.parametrize(
    "options", ["rw,hidepid=2", "rw,hidepid=invisible,gid=987654", "hidepid=4"]
)
def test_a_mount_that_hides_processes_is_unknown(tree: ProcTree, options: str) -> None:
    tree.mount(options=options)
    assert "it hides processes, of this user's too" in unknown(tree)


def test_a_folder_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    report = check_login(LIMITS, str(tmp_path / "nowhere"))
    assert report.verdict is Verdict.UNKNOWN
    assert (report.processes, report.threads, report.ssh_clients) == (None, None, None)
    assert re.fullmatch(
        r"cannot list the processes: '.*/nowhere': No such file or directory", report.reasons[0]
    )


def test_a_container_is_noted_and_changes_nothing(tree: ProcTree) -> None:
    (tree.own / "ns/pid").unlink()
    (tree.own / "ns/pid").symlink_to("pid:[4026532000]")
    report = look(tree)
    assert report.verdict is Verdict.GO
    assert "a container" in report.notes[0]


# ----------------------------------------------------------------------------------- cgroups


@pytest.mark.parametrize(
    ("maximum", "current", "verdict"),
    [
        ("100", 24, "go"),
        ("100", 25, "caution"),
        ("100", 40, "no-go"),
        ("4096", 3945, "go"),
        ("4096", 3946, "caution"),
        ("4096", 4036, "no-go"),
        ("max", 9999, "go"),
    ],
)
def test_a_limit_of_the_cgroup_leaves_what_100_would_leave(
    tree: ProcTree, maximum: str, current: int, verdict: str
) -> None:
    tree.group("/mine", maximum, current)
    (tree.own / "cgroup").write_text("0::/mine\n")
    assert look(tree).verdict.value == verdict


def test_the_tightest_limit_above_counts(tree: ProcTree) -> None:
    tree.group("/users", "1000", 900)
    tree.group("/users/me", "200", 150)
    tree.group("/users/me/session")
    (tree.own / "cgroup").write_text("0::/users/me/session\n")
    report = look(tree)
    limit = report.limits[-1]
    assert (limit.name, limit.found, limit.ceiling) == ("cgroup", 150, 200)
    assert limit.source == str(tree.groups / "users/me/pids.max")
    assert report.verdict is Verdict.NO_GO


def test_version_1_governs_where_it_has_the_controller(tree: ProcTree) -> None:
    tree.group("/job", "100", 50)
    (tree.own / "cgroup").write_text("5:cpu:/\n4:pids,misc:/outer/job\n0::/elsewhere\n")
    tree.mount(f"3 1 0:3 /outer {tree.groups} rw - cgroup cgroup rw,pids,misc")
    assert look(tree).reasons[0].startswith("50 threads in the cgroup, stop at 40")


@pytest.mark.parametrize(
    ("cgroup", "mounts", "said"),
    [
        ("0::/gone", (), "gone': No such file"),
        ("0::/../other", (), "is outside"),
        ("0::/mine", ("3 1 0:3 / /nowhere rw - tmpfs tmpfs rw",), "is not mounted"),
        ("0::/mine", ("3 1 0:3 /min {groups} rw - cgroup2 cgroup2 rw",), "is outside"),
    ],
)
def test_a_cgroup_that_cannot_be_found_is_unknown(
    tree: ProcTree, cgroup: str, mounts: tuple[str, ...], said: str
) -> None:
    tree.group("/mine", "100", 1)
    (tree.own / "cgroup").write_text(f"{cgroup}\n")
    tree.mount(*(line.format(groups=tree.groups) for line in mounts))
    assert said in unknown(tree)
    assert look(tree).is_complete


def test_a_limit_whose_use_cannot_be_read_is_unknown(tree: ProcTree) -> None:
    folder = tree.group("/mine", "100")
    (tree.own / "cgroup").write_text("0::/mine\n")
    assert "pids.current': No such file" in unknown(tree)
    (folder / "pids.current").write_text("many\n")
    assert "is no number" in unknown(tree)


# ---------------------------------------------------------------------------------- settings


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_settings_the_limits_are_those_of_a_ceiling_of_100(project: Path) -> None:
    limits = limits_from(load())
    assert limits.processes == Threshold(caution=25, stop=40, source="default")
    assert limits.ssh == Threshold(caution=2, stop=3, source="default")
    assert limits.threads == Threshold()


def test_limits_know_where_they_come_from(project: Path) -> None:
    (project / "fleet.yaml").write_text("guard:\n  threads_stop: 60\n  ssh_caution: 1\n")
    limits = limits_from(load(environ={"FLEET_GUARD_PROCESSES_STOP": "50"}))
    assert limits.threads == Threshold(stop=60, source=f"{project / 'fleet.yaml'}:2")
    assert limits.ssh.source == f"default, {project / 'fleet.yaml'}:3"
    assert limits.processes == Threshold(
        caution=25, stop=50, source="environment FLEET_GUARD_PROCESSES_STOP, default"
    )


@pytest.mark.parametrize(
    ("globs", "host", "is_one"),
    [
        ("", "login1", False),
        ("login*", "login1", True),
        ("login*", "login1.site.example", True),
        ("LOGIN*", "Login1", True),
        ("gate*, login[12]", "login2", True),
        ("gate* login[12]", "login3", False),
        ("login*.site.example", "login1.site.example", True),
        ("login*.site.example", "login1.other.example", False),
        ("login*.site.example", "login1", True),
        ("*.site.example", "node7", False),
        ("*", "node7", True),
    ],
)
def test_login_hosts_are_globs_on_full_and_first_names(
    project: Path, globs: str, host: str, is_one: bool
) -> None:
    assert is_login_host(load(environ={"FLEET_LOGIN_HOSTS": globs}), host) is is_one
