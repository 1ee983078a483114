"""Every rule of the passthrough, as `mv`, `ln`, `ls` and `cat` see it.

Not here: what a fleet makes of it (`test_fleet_on_fuse`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.files import FileSystem
from tests.crash.mounts.mounting import CannotMountError, Mount, mounted, why_no_fuse
from tests.crash.mounts.rules import Rule, Rules

pytestmark = [
    pytest.mark.skipif(bool(why_no_fuse()), reason=why_no_fuse() or "-"),
    pytest.mark.timeout(60),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    try:
        with mounted(tmp_path_factory.mktemp("fuse")) as mount:
            yield mount
    except CannotMountError as error:
        pytest.skip(str(error))


@pytest.fixture
def mount(shared: Mount) -> Iterator[Mount]:
    yield shared
    shared.give()
    shared.release(stay_open=False)
    for path in sorted(shared.backing.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def sh(mount: Mount, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=mount.folder, capture_output=True, text=True, check=False,
        env={**os.environ, "LC_ALL": "C"}, timeout=30,
    )  # fmt: skip


def names(mount: Mount) -> list[str]:
    return sorted(os.listdir(mount.backing))


def test_without_rules_it_does_what_the_backing_folder_does(mount: Mount) -> None:
    done = sh(mount, "echo hi >a && ln a b && mkdir d && mv b d/c && echo more >>a && cat d/c "
              "&& stat -c %h a && ln -s a s && readlink s && chmod 600 a && touch -d @7 a "
              "&& truncate -s 3 a && stat -c '%a %Y %s' a && ls && rm s")  # fmt: skip
    assert done.stdout.split()[:4] == ["hi", "more", "2", "a"], done.stderr
    mode, mtime, size, *listed = done.stdout.split()[4:]
    assert (mode, size) == ("600", "3")
    assert int(mtime) > 7, "cutting a file is a change of it"
    assert listed == ["a", "d", "s"]
    assert (mount.backing / "a").read_bytes() == b"hi\n"
    assert (mount.backing / "a").stat().st_ino == (mount.backing / "d/c").stat().st_ino
    assert names(mount) == ["a", "d"]


def test_a_rename_that_must_not_replace_reaches_the_backing_folder_with_its_flag(
    mount: Mount,
) -> None:
    (mount.backing / "a").write_text("new")
    fs = FileSystem()
    fs.rename_new(f"{mount.folder}/a", f"{mount.folder}/b")
    assert mount.operations().get("rename2", 0) >= 1
    (mount.backing / "a").write_text("newer")
    with pytest.raises(FileExistsError):
        fs.rename_new(f"{mount.folder}/a", f"{mount.folder}/b")
    assert names(mount) == ["a", "b"]


def test_where_flags_of_rename_are_refused_the_fallback_is_taken_and_replaces_nothing(
    mount: Mount,
) -> None:
    mount.give(Rule(name="no flags", do="fail", on=("rename2",), code="EINVAL"))
    (mount.backing / "a").write_text("new")
    (mount.backing / "b").write_text("old")
    plain = mount.operations().get("rename", 0)
    fs = FileSystem()
    with pytest.raises(FileExistsError):
        fs.rename_new(f"{mount.folder}/a", f"{mount.folder}/b")
    assert (mount.backing / "b").read_text() == "old"
    fs.rename_new(f"{mount.folder}/a", f"{mount.folder}/c")
    fs.rename_new(f"{mount.folder}/c", f"{mount.folder}/d")
    assert mount.operations()["rename"] == plain + 2
    assert mount.times("no flags") == 1, "the flag is tried once, not at every rename"


def test_the_fallback_refuses_where_it_cannot_see_whether_the_name_is_free(mount: Mount) -> None:
    mount.give(
        Rule(name="no flags", do="fail", on=("rename2",), code="EINVAL"),
        Rule(name="blind", do="fail", on=("getattr",), code="EIO", paths=("/b",)),
    )
    (mount.backing / "a").write_text("new")
    (mount.backing / "b").write_text("old")
    with pytest.raises(OSError, match="Input/output error"):
        FileSystem().rename_new(f"{mount.folder}/a", f"{mount.folder}/b")
    assert (mount.backing / "b").read_text() == "old"


def test_a_rename_that_lies_is_done_and_mv_says_that_it_failed(mount: Mount) -> None:
    (mount.backing / "a").write_text("content")
    mount.give(Rule(name="lie", do="lie", on=("rename", "rename2"), code="EIO"))
    done = sh(mount, "mv -T a b")
    assert done.returncode != 0
    assert "mv:" in done.stderr
    assert names(mount) == ["b"]
    assert mount.times("lie") >= 1


def test_a_rename_that_fails_is_not_done(mount: Mount) -> None:
    (mount.backing / "a").write_text("content")
    mount.give(Rule(name="no", do="fail", on=("rename", "rename2"), code="EACCES"))
    done = sh(mount, "mv -T a b")
    assert done.returncode != 0
    assert "Permission denied" in done.stderr
    assert names(mount) == ["a"]


def test_hard_links_can_be_refused(mount: Mount) -> None:
    (mount.backing / "a").write_text("content")
    mount.give(Rule(name="no links", do="fail", on=("link",), code="EPERM"))
    done = sh(mount, "ln a b")
    assert done.returncode != 0
    assert "Operation not permitted" in done.stderr
    assert names(mount) == ["a"]


def test_a_folder_can_be_a_mount_of_its_own_to_renames(mount: Mount) -> None:
    (mount.backing / "one").mkdir()
    (mount.backing / "two").mkdir()
    (mount.backing / "one/a").write_text("content")
    mount.give(Rule(name="across", do="fail", on=("rename", "rename2", "link"), code="EXDEV",
                    across=True))  # fmt: skip
    assert sh(mount, "mv -T one/a one/b").returncode == 0
    with pytest.raises(OSError, match="cross-device") as caught:
        os.rename(f"{mount.folder}/one/b", f"{mount.folder}/two/b")
    assert caught.value.errno == errno.EXDEV
    assert "cross-device" in sh(mount, "ln one/b two/b").stderr


def test_everything_can_be_a_stale_handle_for_a_while(mount: Mount) -> None:
    (mount.backing / "a").write_text("content")
    mount.give(Rule(name="reboot", do="fail", code="ESTALE"))
    assert "Stale file handle" in sh(mount, f"cd / && ls {mount.folder}/a").stderr
    mount.give()
    assert sh(mount, "cat a").stdout == "content"


def test_a_listing_can_be_stale_until_it_is_looked_at_again_in_time(mount: Mount) -> None:
    mount.give(Rule(name="stale", do="stale", on=("readdir",), for_s=600.0))
    assert sh(mount, "ls").stdout == ""
    (mount.backing / "by-another-client").write_text("")
    assert sh(mount, "ls").stdout == ""
    assert mount.times("stale") >= 1
    assert sh(mount, "cat by-another-client && touch mine && ls").stdout.split() == [
        "by-another-client",
        "mine",
    ], "what a client makes itself is seen, and its folder is read anew"


def test_facts_can_be_stale_an_old_size_and_a_file_that_is_not_there_yet(mount: Mount) -> None:
    (mount.backing / "a").write_text("12345")
    mount.give(Rule(name="stale", do="stale", on=("getattr",), for_s=600.0))
    assert sh(mount, "stat -c %s a; ls b").stdout == "5\n"
    (mount.backing / "a").write_text("1234567")
    (mount.backing / "b").write_text("")
    assert "No such file" in sh(mount, "ls b").stderr
    assert sh(mount, "stat -c %s a; cat a; stat -c %s a").stdout == "5\n12345677\n", (
        "opening a file brings its facts up to date"
    )


def test_own_changes_can_be_seen_late_too(mount: Mount) -> None:
    mount.give(Rule(name="stale", do="stale", on=("readdir",), for_s=600.0, own=True))
    assert sh(mount, "ls; touch a; ls").stdout == ""
    assert names(mount) == ["a"]


def test_a_quota_refuses_bytes_above_it_after_a_short_write(mount: Mount) -> None:
    (mount.backing / "a").write_bytes(b"x" * 1000)
    mount.give(Rule(name="quota", do="quota", most_bytes=1500))
    fd = os.open(mount.folder / "b", os.O_WRONLY | os.O_CREAT)
    try:
        assert os.write(fd, b"y" * 700) == 500
        with pytest.raises(OSError, match="quota"):
            os.write(fd, b"y" * 200)
    finally:
        os.close(fd)
    assert "quota" in sh(mount, "echo more >>a").stderr
    assert sh(mount, "rm b && echo more >>a").returncode == 0
    assert mount.times("quota") >= 2


def test_a_change_can_wait_and_an_answer_can_be_late(mount: Mount) -> None:
    (mount.backing / "a").write_text("")
    mount.give(
        Rule(name="delay", do="delay", on=("unlink",), for_s=0.3),
        Rule(name="late", do="late", on=("mkdir",), for_s=0.3, jitter_s=0.01),
    )
    began_s = time.monotonic()
    thread = threading.Thread(target=os.mkdir, args=(mount.folder / "d",))
    thread.start()
    while not (mount.backing / "d").exists():
        time.sleep(0.005)
    assert thread.is_alive(), "it is done, and not yet answered"
    thread.join()
    os.unlink(mount.folder / "a")
    assert time.monotonic() - began_s >= 0.6


def test_what_hangs_goes_on_when_it_is_released(mount: Mount) -> None:
    (mount.backing / "sub").mkdir()
    mount.give(Rule(name="hang", do="hang", on=("mkdir",)))
    thread = threading.Thread(target=os.mkdir, args=(mount.folder / "sub/d",), daemon=True)
    thread.start()
    while not mount.times("hang"):
        time.sleep(0.005)
    assert not (mount.backing / "sub/d").exists()
    # In another folder: the kernel lets one change of a folder at a time through.
    assert sh(mount, "touch a && ls").stdout.split() == ["a", "sub"], "others are served meanwhile"
    mount.release()
    thread.join(10)
    assert (mount.backing / "sub/d").is_dir()


def test_a_lock_of_one_is_refused_to_another_and_locks_can_be_refused(mount: Mount) -> None:
    (mount.backing / "lock").write_text("")
    with open(mount.folder / "lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert sh(mount, "flock -n lock true").returncode != 0
    assert sh(mount, "flock -n lock true").returncode == 0
    mount.give(Rule(name="no locks", do="fail", on=("flock",), code="ENOLCK"))
    assert "No locks available" in sh(mount, "flock -n lock true").stderr


def test_lines_that_two_descriptors_append_do_not_mix(mount: Mount) -> None:
    sh(mount, "for i in {1..50}; do echo one >>f; done & for i in {1..50}; do echo two >>f; done; "
       "wait")  # fmt: skip
    assert sorted((mount.backing / "f").read_text().split()) == ["one"] * 50 + ["two"] * 50


def test_a_file_that_is_replaced_while_it_is_opened_is_read_all_the_same(mount: Mount) -> None:
    fs = FileSystem()
    (mount.backing / "a").write_bytes(b"x")
    mount.give(Rule(name="stale", do="fail", on=("open",), code="ESTALE", most=2))
    # Each try of ours is two of the kernel's.
    assert fs.read(f"{mount.folder}/a") == b"x"
    mount.give(Rule(name="gone", do="fail", on=("open",), code="ESTALE"))
    with pytest.raises(OSError, match="Stale"):
        fs.read(f"{mount.folder}/a")


def test_a_mount_is_gone_with_the_test_that_made_it_also_when_something_hangs(
    tmp_path: Path,
) -> None:
    stuck: list[subprocess.Popen[bytes]] = []

    def fails() -> None:
        with mounted(tmp_path, Rule(name="hang", do="hang", on=("mkdir",))) as mount:
            stuck.append(subprocess.Popen(["mkdir", str(mount.folder / "d")]))
            while not mount.times("hang"):
                time.sleep(0.01)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert f"{tmp_path}/mount" not in Path("/proc/self/mounts").read_text()
    assert stuck[0].wait(20) != 0


# ---------------------------------------------------------------- rules, without a mount


def test_a_rule_fires_by_share_by_every_nth_and_by_pattern() -> None:
    rules = Rules(seed=7)
    rules.give((Rule(name="share", do="fail", share=0.25),))
    hits = sum(bool(rules.firing("open", ("/a",))) for _ in range(400))
    assert 60 < hits < 140
    again = Rules(seed=7)
    again.give((Rule(name="share", do="fail", share=0.25),))
    assert sum(bool(again.firing("open", ("/a",))) for _ in range(400)) == hits
    rules.give((Rule(name="third", do="fail", every=3, paths=("/x/*",), most=2),))
    fired = [bool(rules.firing("open", ("/x/y/z",))) for _ in range(12)]
    assert fired == [False, False, True, False, False, True] + [False] * 6
    assert not rules.firing("open", ("/other",))


def test_a_rule_that_makes_no_sense_is_refused() -> None:
    for wrong in ({"do": "dream"}, {"do": "fail", "code": "EWHAT"}, {"do": "fail", "on": ("mv",)}):
        with pytest.raises(ValueError, match="rule r"):
            Rule(name="r", **wrong)
