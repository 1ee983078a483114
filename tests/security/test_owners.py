"""What another user wrote, or could have put there: refused in a sentence, and never run.

Not here: records (`tests/spool/test_safety`), queues (`tests/rollouts/test_strangers`), batch
tables, env-files, `slurm.setup`, barriers and checkpoints, whose own tests look at their owners.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.errors import ConfigError
from fleetcraft.layout import Scratch
from fleetcraft.process import find_bash
from fleetcraft.slurm import commands
from fleetcraft.training.plan.run_file import read_run_file
from fleetcraft.trust import find_program, make_folders, stranger
from tests.cli.conftest import Fleet

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def by_group(path: Path) -> None:
    path.chmod(0o664)


def by_everybody(path: Path) -> None:
    path.chmod(0o646)


def by_another(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY)


SPOILERS = [by_group, by_everybody, pytest.param(by_another, marks=needs_root)]


def in_a_child_as_nobody(act: Callable[[], None]) -> None:
    """Does something as a user of no rights, in a child of this process; it must succeed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            act()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("spoil", SPOILERS)
def test_settings_that_another_could_have_written_are_refused_by_every_command(
    fleet: Fleet, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    settings = tmp_path / "fleet.yaml"
    settings.write_text("login:\n  reach: touch was-run\nbatch:\n  python: ./evil\n")
    settings.chmod(0o644)
    fleet.ok("status")
    spoil(settings)
    for words in (
        ["status"],
        ["run"],
        ["launch", "-N", "1", "--time", "600", "--dry-run"],
        ["renew"],
        ["config", "show"],
    ):
        error = fleet("--json", *words).error
        assert (error["type"], error["exit_code"]) == ("ConfigError", 3), words
        assert error["message"].startswith(f"refusing {settings}: ")
        assert "nothing in it was used" in error["message"]
        assert error["hint"].startswith("chmod go-w")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("spoil", SPOILERS)
def test_a_site_profile_that_another_could_have_written_is_refused(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    profile = tmp_path / "site.yaml"
    profile.write_text("slurm:\n  partition: p\n")
    profile.chmod(0o644)
    monkeypatch.setenv("FLEET_SITE", str(profile))
    fleet.ok("status")
    spoil(profile)
    assert f"refusing {profile}" in fleet("status").err


def test_settings_are_judged_by_the_file_that_was_opened_not_by_its_name(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever swaps the name between look and use changes nothing: there is no look at a name."""
    settings = tmp_path / "fleet.yaml"
    settings.write_text("slurm:\n  partition: theirs\n")
    settings.chmod(0o666)
    real = os.open

    def swap_after(path: str, *words: int, **named: int) -> int:
        fd = real(path, *words, **named)
        if path == str(settings):
            settings.chmod(0o600)  # the name looks well by now, and its content too
            settings.rename(tmp_path / "theirs.yaml")
            settings.write_text("slurm:\n  partition: mine\n")
            os.chmod(tmp_path / "theirs.yaml", 0o666)
        return fd

    monkeypatch.setattr(os, "open", swap_after)
    called = fleet("config", "show")
    monkeypatch.setattr(os, "open", real)
    assert called.code == 3
    assert "theirs" not in called.out


def test_settings_written_by_init_are_not_refused_whatever_the_umask(
    bare_fleet: Fleet, tmp_path: Path
) -> None:
    os.umask(0)
    bare_fleet.ok("--project-dir", str(tmp_path), "init")
    assert stat.S_IMODE((tmp_path / "fleet.yaml").stat().st_mode) == 0o644
    bare_fleet.ok("status")


@pytest.mark.parametrize("spoil", SPOILERS)
def test_a_run_file_that_another_could_have_written_launches_nothing(
    fleet: Fleet, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("run: r\ncommand: [touch, was-run]\n")
    path.chmod(0o644)
    read_run_file(str(path))
    spoil(path)
    called = fleet("train", "supervise", str(path))
    assert (called.code, "nothing was launched" in called.err) == (3, True)
    assert not (tmp_path / "was-run").exists()


def test_a_run_file_that_is_a_pipe_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match="no regular file"):
        read_run_file(str(tmp_path / "run.yaml"))


@needs_root
def test_the_word_about_a_stranger_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch(mode=0o600)
    assert stranger(path.stat()) == ""
    by_another(path)
    assert stranger(path.stat()) == f"it belongs to user {NOBODY}, and this is user 0"
    os.chown(path, 0, 0)
    path.chmod(0o620)
    assert "others can write it (mode -rw--w----)" in stranger(path.stat())


# --------------------------------------------------------------------------------------- folders


@needs_root
def test_a_scratch_tree_below_a_folder_of_everybody_is_refused(fleet: Fleet) -> None:
    """Another user could move the whole tree away, and put one of their own in its place."""
    above = fleet.root.parent
    above.chmod(0o777)
    try:
        error = fleet("status", "--json").error
        assert (error["type"], str(above) in error["message"]) == ("UnsafeSpoolError", True)
        above.chmod(0o1777)
        fleet.ok("status")
    finally:
        above.chmod(0o700)


def test_every_folder_that_is_made_gets_its_mode(tmp_path: Path) -> None:
    os.umask(0)
    make_folders(f"{tmp_path}/a/b/c")
    make_folders(f"{tmp_path}/a/b/c")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/c")]
    assert modes == [0o700] * 3
    make_folders(f"{tmp_path}/d/e", 0o755)
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o755


@pytest.mark.parametrize("there", ["a", "a/b"])
def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path, there: str) -> None:
    path = tmp_path / there
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(OSError, match="exists|Not a directory"):
        make_folders(f"{tmp_path}/a/b")


def test_many_that_make_the_same_folders_at_once_all_find_them(tmp_path: Path) -> None:
    wrong: list[Exception] = []

    def make() -> None:
        try:
            make_folders(f"{tmp_path}/a/b/c/d")
        except OSError as error:
            wrong.append(error)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs_root
def test_a_private_folder_of_this_node_that_another_made_first_is_refused() -> None:
    from fleetcraft.errors import UnsafeSpoolError
    from fleetcraft.trust import require_private_folder

    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        os.chmod(shared, 0o1777)
        folder = f"{shared}/fleetcraft-0"
        in_a_child_as_nobody(lambda: os.mkdir(folder, 0o777))
        with pytest.raises(UnsafeSpoolError, match="not a private folder"):
            require_private_folder(folder)
        os.rmdir(folder)
        in_a_child_as_nobody(lambda: os.symlink("/tmp", folder))
        with pytest.raises(UnsafeSpoolError, match="not a private folder"):
            require_private_folder(folder)


# -------------------------------------------------------------------------------------- programs


@pytest.mark.parametrize("entry", [".", "", "bin"])
def test_a_program_of_the_current_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
        for name in ("sbatch", "squeue", "bash", "all-smi"):
            (folder / name).write_text("#!/bin/sh\ntouch was-run\n")
            (folder / name).chmod(0o755)
    rest = "/usr/bin:/bin"
    monkeypatch.setenv("PATH", f"{entry}:{rest}")
    assert find_program("all-smi") is None
    assert os.path.isabs(find_bash())
    assert not find_bash().startswith(str(tmp_path))
    for name in ("sbatch", "squeue"):
        try:
            found = commands.find(name)
        except commands.SlurmMissingError:
            continue
        assert os.path.isabs(found)
        assert not found.startswith(str(tmp_path))
    assert not (tmp_path / "was-run").exists()


def test_a_program_on_an_absolute_entry_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sbatch"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f".:{tmp_path}:/usr/bin")
    assert commands.find("sbatch") == str(program)


# ----------------------------------------------------------------------------------- what we write


def filled(fleet: Fleet) -> None:
    fleet.ok("enqueue", "-n", "a", "true")
    fleet.ok("run")


def test_a_report_is_for_its_user_alone_until_it_is_given_away(
    fleet: Fleet, tmp_path: Path
) -> None:
    filled(fleet)
    os.umask(0)
    page = tmp_path / "r.html"
    fleet.ok("report", "-o", str(page))
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    page.chmod(0o644)
    fleet.ok("report", "-o", str(page))
    assert stat.S_IMODE(page.stat().st_mode) == 0o644
    page.chmod(0o666)
    fleet.ok("report", "-o", str(page))
    assert stat.S_IMODE(page.stat().st_mode) == 0o644


def test_a_link_that_appears_while_a_report_is_made_is_not_followed(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleetcraft.report import gather

    filled(fleet)
    precious, page = tmp_path / "precious", tmp_path / "r.html"
    precious.write_text("mine")
    real = gather.gather

    def put_a_link(*words: object, **named: object) -> object:
        page.symlink_to(precious)
        return real(*words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(gather, "gather", put_a_link)
    fleet.ok("report", "-o", str(page))
    assert precious.read_text() == "mine"
    assert not page.is_symlink()


def test_figures_do_not_go_through_links_with_names_that_can_be_guessed(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    from fleetcraft.plots.style import save

    os.umask(0)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for guess in (f".f.png.{os.getpid()}.part", "f.png"):
        (tmp_path / guess).symlink_to(precious)
    save(Figure(figsize=(1, 1)), tmp_path / "f.png")
    assert precious.read_text() == "mine"
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert stat.S_IMODE((tmp_path / "f.png").lstat().st_mode) == 0o644


def test_a_log_that_is_a_link_already_is_not_written_through(fleet: Fleet, tmp_path: Path) -> None:
    fleet.ok("enqueue", "-n", "a", "echo said")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (Path(Scratch(str(fleet.root)).outer) / "logs" / "a.1.log").symlink_to(precious)
    fleet("run")
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("marker", ["DRAIN", "STOP"])
def test_a_marker_that_is_a_link_is_not_written_through(
    fleet: Fleet, tmp_path: Path, marker: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (fleet.spool / marker).symlink_to(precious)
    fleet(marker.lower())
    fleet("status")
    fleet("resume")
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("words", [
    ("evidence", "freeze", "set", "-o"), ("barrier", "write"),
    ("telemetry", "summary", "--window", "60", "--freeze"),
])  # fmt: skip
def test_what_is_published_under_a_name_never_goes_through_a_link(
    fleet: Fleet, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a").write_text("a")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "out.json").symlink_to(precious)
    fleet(*words, str(tmp_path / "out.json"))
    assert precious.read_text() == "mine"
