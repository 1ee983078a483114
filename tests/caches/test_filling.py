"""First use of a model: one download for all, verified, read-only, or the hub as it was."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from fleetcraft.caches.commanding import CommandFailedError
from fleetcraft.caches.filled import read_filled
from fleetcraft.caches.filling import fill
from fleetcraft.caches.hub import HubFiles, parse_repo
from fleetcraft.caches.publishing import Publisher
from fleetcraft.caches.snapshots import read_snapshot
from fleetcraft.caches.writing import take_turn
from fleetcraft.errors import DataError, FleetError, UsageError
from fleetcraft.layout.caches import CachePaths, HubPaths
from tests.caches.hub_caches import (
    COMMIT,
    SHARDS,
    contents,
    flip_a_bit,
    make_repo,
    sharded_model,
)
from tests.caches.stopping import WAYS, Killed, StopsAt, release

REPO = "org/tiny"
FOLDER = "models--org--tiny"


class Download:
    """A program that does what a download does: it notes that it ran, and what it found."""

    def __init__(self, tmp_path: Path) -> None:
        self.origin = tmp_path / "origin"
        self.log = tmp_path / "runs.log"
        self._script = tmp_path / "download.py"

    def command(self, *more: str, ends: str = "pass") -> list[str]:
        origin = str(self.origin / FOLDER)
        code = f"""
            import os, shutil, signal, sys, time
            hub = os.environ["HF_HUB_CACHE"]
            repo = os.path.join(hub, {FOLDER!r})
            had = sorted(os.listdir(repo + "/blobs")) if os.path.isdir(repo + "/blobs") else []
            with open({str(self.log)!r}, "a") as log:
                log.write("run %d\\n" % len(had))
            for here, _, names in os.walk({origin!r}):
                there = os.path.join(repo, os.path.relpath(here, {origin!r}))
                os.makedirs(there, exist_ok=True)
                for name in names:
                    old, new = os.path.join(here, name), os.path.join(there, name)
                    if os.path.islink(old):
                        os.path.lexists(new) and os.unlink(new)
                        os.symlink(os.readlink(old), new)
                    elif os.path.basename(here) != "blobs" or not os.path.exists(new):
                        shutil.copyfile(old, new)
            {ends}
        """
        self._script.write_text(textwrap.dedent(code))
        return [sys.executable, str(self._script), *more]

    @property
    def runs(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def download(tmp_path: Path) -> Download:
    found = Download(tmp_path)
    make_repo(found.origin, sharded_model(), listed=sharded_model())
    return found


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def paths(tmp_path: Path) -> CachePaths:
    return CachePaths(str(tmp_path / "caches"))


def test_what_a_command_fetched_is_proved_published_and_read_only(
    download: Download, hub: Path, paths: CachePaths
) -> None:
    report = fill(paths, str(hub), REPO, download.command())

    assert (report.ran, report.level, report.files) == (True, "reread", 6)
    assert report.published is not None
    assert report.published.proved == 6
    assert contents(hub) == contents(download.origin)
    blobs = (hub / FOLDER / "blobs").iterdir()
    assert {stat.S_IMODE(blob.stat().st_mode) & 0o222 for blob in blobs} == {0}
    (record,) = read_filled(paths, parse_repo(REPO), COMMIT)
    assert (len(record.files), record.command[0]) == (6, sys.executable)


def test_a_second_call_downloads_nothing(download: Download, hub: Path, paths: CachePaths) -> None:
    fill(paths, str(hub), REPO, download.command())

    again = fill(paths, str(hub), REPO, download.command())

    assert (again.ran, again.level, len(download.runs)) == (False, "sized", 1)


def test_what_was_there_before_is_proved_and_nothing_is_downloaded(
    download: Download, paths: CachePaths
) -> None:
    report = fill(paths, str(download.origin), REPO, download.command())

    assert (report.ran, report.level, download.runs) == (False, "reread", [])


def test_a_snapshot_without_a_listing_may_lack_files_so_the_command_runs(
    download: Download, hub: Path, paths: CachePaths
) -> None:
    make_repo(hub, {"config.json": b'{"model_type": "tiny"}'})

    report = fill(paths, str(hub), REPO, download.command())

    assert (report.ran, report.files) == (True, 6)
    assert read_snapshot(str(hub), REPO).complete


def test_another_command_may_ask_for_more(
    download: Download, hub: Path, paths: CachePaths, tmp_path: Path
) -> None:
    everything = sharded_model() | {"README.md": b"r"}
    make_repo(download.origin, {}, listed=everything, refs=())
    part = fill(paths, str(hub), REPO, download.command("some files"))
    make_repo(download.origin, {"README.md": b"r"})

    same = fill(paths, str(hub), REPO, download.command("some files"))
    more = fill(paths, str(hub), REPO, download.command("all files"))

    assert (part.absent, same.ran, more.ran, more.absent) == (("README.md",), False, True, ())


def test_blobs_that_the_hub_has_are_lent_to_the_command(
    download: Download, hub: Path, paths: CachePaths
) -> None:
    make_repo(hub, {SHARDS[0]: sharded_model()[SHARDS[0]]})

    fill(paths, str(hub), REPO, download.command())

    assert download.runs == ["run 1"]


@pytest.mark.parametrize(
    ("code", "match"),
    [
        ("sys.exit(3)", "failed with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by signal 9"),
    ],
)
def test_a_command_that_fails_leaves_the_hub_as_it_was_and_its_files_for_the_next(
    download: Download, hub: Path, paths: CachePaths, code: str, match: str
) -> None:
    make_repo(hub, {"config.json": b"old"}, folder="models--org--other")
    before = contents(hub)

    with pytest.raises(CommandFailedError, match=match) as caught:
        fill(paths, str(hub), REPO, download.command(ends=code))

    assert (caught.value.exit_code, contents(hub)) == (1, before)
    assert fill(paths, str(hub), REPO, download.command()).ran
    assert download.runs == ["run 0", "run 6"]


def test_a_fresh_call_drops_what_an_earlier_one_left(
    download: Download, hub: Path, paths: CachePaths
) -> None:
    with pytest.raises(CommandFailedError):
        fill(paths, str(hub), REPO, download.command(ends="sys.exit(1)"))

    fill(paths, str(hub), REPO, download.command(), fresh=True)

    assert download.runs == ["run 0", "run 0"]


def test_a_corrupt_download_is_not_published_and_is_fetched_again_by_the_next(
    download: Download, hub: Path, paths: CachePaths
) -> None:
    shard = download.origin / FOLDER / "snapshots" / COMMIT / SHARDS[1]
    good = shard.read_bytes()
    flip_a_bit(shard)

    with pytest.raises(DataError, match="is corrupt in") as caught:
        fill(paths, str(hub), REPO, download.command())

    assert contents(hub) == {}
    assert "that file was removed" in caught.value.hint
    shard.resolve().write_bytes(good)
    assert fill(paths, str(hub), REPO, download.command()).ran
    assert download.runs == ["run 0", "run 5"]


def test_an_incomplete_download_is_not_published(
    download: Download, hub: Path, paths: CachePaths
) -> None:
    (download.origin / FOLDER / "snapshots" / COMMIT / SHARDS[1]).unlink()

    with pytest.raises(DataError, match="names absent shards"):
        fill(paths, str(hub), REPO, download.command())

    assert contents(hub) == {}


def test_a_command_that_wrote_elsewhere_is_told_so(
    download: Download, hub: Path, paths: CachePaths
) -> None:
    with pytest.raises(DataError, match="is not in the hub that it was given"):
        fill(paths, str(hub), REPO, ["true"])


def test_a_program_that_is_not_there_is_the_users_mistake(hub: Path, paths: CachePaths) -> None:
    with pytest.raises(UsageError, match="no such program"):
        fill(paths, str(hub), REPO, ["no-such-program-anywhere"])


def test_the_command_is_online_and_sees_one_hub_by_every_name(
    download: Download, hub: Path, paths: CachePaths, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    names = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_HUB_OFFLINE"]
    names = [*names, "HF_HOME"]
    ends = f"open({str(told)!r}, 'w').write(repr([os.environ.get(n) for n in {names!r}]))"

    fill(
        paths, str(hub), REPO, download.command(ends=ends),
        environ={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": "/home/me/hf"},
    )  # fmt: skip

    one, two, three, offline, home = eval(told.read_text())
    assert one == two == three != str(hub)
    assert (offline, home) == (None, "/home/me/hf")


def test_repositories_that_came_along_are_published_too(
    download: Download, hub: Path, paths: CachePaths
) -> None:
    along = download.origin / "models--org--vae"
    make_repo(download.origin, {"config.json": b"{}"}, folder=along.name)
    ends = f"shutil.copytree({str(along)!r}, hub + '/models--org--vae', symlinks=True)"

    report = fill(paths, str(hub), REPO, download.command(ends=ends))

    assert report.others == (f"org/vae@{COMMIT[:12]}",)
    assert read_snapshot(str(hub), "org/vae").complete


_FILLS = """
import sys
from fleetcraft.caches import writing
from fleetcraft.caches.filling import fill
from fleetcraft.layout.caches import CachePaths, HubPaths
writing._BEAT_S = 0.05
root, hub, *command = sys.argv[1:]
report = fill(CachePaths(root), hub, "org/tiny", command, wait_s=60, tell=lambda text: None)
print(report.ran, report.level)
"""


def start(paths: CachePaths, hub: Path, command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _FILLS, paths.root, str(hub), *command],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_two_callers_at_once_download_one_shard_once(
    download: Download, hub: Path, paths: CachePaths
) -> None:
    command = download.command()

    both = [start(paths, hub, command) for _ in range(2)]
    said = sorted(process.communicate(timeout=60)[0].split()[0] for process in both)

    assert [process.returncode for process in both] == [0, 0]
    assert (said, len(download.runs)) == (["False", "True"], 1)
    assert read_snapshot(str(hub), REPO).complete


@pytest.mark.parametrize("way", WAYS)
def test_whatever_operation_of_publishing_fails_a_second_call_completes(
    in_memory: Path, way: str
) -> None:
    files = {"config.json": b"{}", "m/model.safetensors": b"w" * 50}
    error, after = WAYS[way]

    def publish(hub: Path, fs: HubFiles) -> None:
        private = HubPaths(str(hub)).private_hub(parse_repo(REPO).folder).root
        if not os.path.exists(private):
            make_repo(Path(private), files, listed=files)
        held = take_turn(str(hub), parse_repo(REPO), purpose="a test")
        assert held is not None
        with held:
            Publisher(read_snapshot(private, REPO), str(hub), held=held, own=True, fs=fs).run()

    fs = StopsAt(0, None)
    publish(in_memory / "counted", fs)
    wanted = contents(in_memory / "counted")
    assert fs.count > 15
    for at in range(1, fs.count + 1):
        hub = in_memory / f"at-{at}"
        with contextlib.suppress(Killed, FleetError):
            publish(hub, StopsAt(at, error, after=after))
        assert contents(hub) in ({}, wanted), at
        release(hub)
        publish(hub, HubFiles())
        assert contents(hub) == wanted, at


def await_file(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"{path} does not appear"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_caller_that_is_ended_takes_its_command_along_and_the_next_completes(
    download: Download, hub: Path, paths: CachePaths, tmp_path: Path, number: signal.Signals
) -> None:
    started = tmp_path / "started"
    ends = f"open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(300)"
    process = start(paths, hub, download.command(ends=ends))
    await_file(started)
    pid = int(started.read_text() or 0)

    process.send_signal(number)
    process.communicate(timeout=60)

    assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143}[number]
    assert contents(hub) == {}
    until = time.monotonic() + 60
    while pid and os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < until, "the command lives on"
        time.sleep(0.02)
    second = start(paths, hub, download.command())
    assert second.communicate(timeout=60)[0].split() == ["True", "reread"]
    assert read_snapshot(str(hub), REPO).complete


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_others_put_beside_a_part_that_was_filled_is_proved_before_it_counts(
    download: Download, hub: Path, paths: CachePaths, when: str
) -> None:
    whole = sharded_model()
    shutil.rmtree(download.origin)
    make_repo(download.origin, {"config.json": whole["config.json"]}, listed=whole)
    others = {path: data for path, data in whole.items() if path != "config.json"}

    def put_others() -> None:
        make_repo(hub, others, listed=whole)
        flip_a_bit(hub / FOLDER / "snapshots" / COMMIT / SHARDS[1])

    if when == "before":
        put_others()
    fill(paths, str(hub), REPO, download.command("config.json"))
    if when == "after":
        put_others()

    with pytest.raises(DataError, match=f"{SHARDS[1]} of org/tiny is corrupt"):
        fill(paths, str(hub), REPO, download.command("everything"))
