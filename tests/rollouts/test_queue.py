"""A queue on disk: made once, opened by all, counted by names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.errors import ConfigError, DataError, SpoolError, UsageError
from fleetcraft.layout.rollouts import RolloutName, parse_rollout
from fleetcraft.rollouts.queue import RolloutQueue, check_settings, require_stream
from fleetcraft.rollouts.records import Settings
from tests.rollouts.producing import QuickFS, queue_in, settings_for


def test_a_queue_is_made_once_and_opened_with_what_it_was_made_with(tmp_path: Path) -> None:
    made = queue_in(tmp_path, max_lag=3)
    again = queue_in(tmp_path, max_lag=3)
    opened = RolloutQueue.open(made.paths.folder)
    assert made.settings == again.settings == opened.settings
    assert {os.stat(folder).st_mode & 0o777 for folder in made.paths.folders()} == {0o700}


def test_other_settings_are_refused_and_both_values_are_named(tmp_path: Path) -> None:
    queue_in(tmp_path, max_lag=3)
    with pytest.raises(ConfigError, match="max_lag 3 against 4") as raised:
        queue_in(tmp_path, max_lag=4)
    assert raised.value.exit_code == 3
    assert RolloutQueue.open(f"{tmp_path}/q").settings.max_lag == 3


@pytest.mark.parametrize(
    ("given_", "word"),
    [
        ({"batch": 6, "group": 4}, "no multiple"),
        ({"low_water": 3}, "low_water 3 is below batch 4"),
        ({"high_water": 4}, "high_water 4 is below low_water 5"),
        ({"fresh_s": 0.01}, "fresh_s"),
        ({"run": "a.b"}, "no name"),
        ({"batch": 0}, "batch is 0"),
        ({"max_lag": -1}, "max_lag"),
        ({"group": 0}, "group is 0"),
    ],
)
def test_settings_under_which_all_would_wait_make_no_queue(
    tmp_path: Path, given_: dict[str, int], word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        queue_in(tmp_path, **given_)
    assert not (tmp_path / "q").exists()


def test_the_seeds_numbers_are_the_defaults_and_fit_together() -> None:
    seed = Settings(run="wan")
    check_settings(seed)
    assert (seed.batch, seed.high_water, seed.low_water, seed.max_lag) == (64, 160, 80, 8)


def test_a_folder_without_a_queue_is_a_mistake_in_the_call(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="no trajectory queue") as raised:
            RolloutQueue.open(str(folder))
        assert raised.value.exit_code == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema":"later/9","run":"wan"}'])
def test_settings_that_cannot_be_understood_are_bad_data(tmp_path: Path, content: bytes) -> None:
    queue = queue_in(tmp_path)
    Path(queue.paths.settings).write_bytes(content)
    with pytest.raises(DataError, match="cannot read what") as raised:
        RolloutQueue.open(queue.paths.folder)
    assert raised.value.exit_code == 7


def test_a_folder_that_cannot_be_made_is_said_and_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "q").write_text("a file")
    with pytest.raises(SpoolError, match="cannot make a trajectory queue"):
        RolloutQueue.create(f"{tmp_path}/q", settings_for(), fs=QuickFS())


@pytest.mark.parametrize("stream", ["", "a.b", "a/b", "..", "x" * 65, "a b", "ü"])
def test_a_stream_that_is_no_part_of_a_file_name_is_refused(stream: str) -> None:
    with pytest.raises(UsageError, match="bad stream name"):
        require_stream(stream)


def test_counting_reads_names_alone(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    paths = queue.paths
    os.mkdir(paths.claim_folder("v000003-1-abc"))
    for path in (
        f"{paths.pending}/{RolloutName(0, 's', 1, 0)}",
        f"{paths.pending}/.nfs0001",
        f"{paths.reserved}/s.00000002.000.1",
        f"{paths.reserved}/s.00000003.000.1.asked",
        f"{paths.claim_folder('v000003-1-abc')}/{RolloutName(0, 's', 0, 0)}",
        f"{paths.quarantine}/v000000.t.00000000.000.lag.abc.json",
        f"{paths.quarantine}/v000000.t.00000000.000.lag.abc.reason",
        paths.commit(1),
        paths.commit(2),
        f"{paths.commits}/v000003.json.0f.tmp",
    ):
        Path(path).touch()
    counts = queue.counts()
    assert (counts.pending, counts.reserved, counts.claimed) == (1, 1, 1)
    assert (counts.quarantined, counts.consumed, counts.version) == (1, 8, 2)


@settings(max_examples=100, deadline=None)
@given(
    st.builds(
        RolloutName,
        st.integers(0, 10**8),
        st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
        st.integers(0, 10**10),
        st.integers(0, 10**4),
    )
)
def test_every_record_name_is_read_back_as_it_was_written(name: RolloutName) -> None:
    assert parse_rollout(str(name)) == name


def test_the_folder_above_a_queue_is_made_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "scratch" / "rollouts" / "wan"

    RolloutQueue.create(str(folder), Settings(run="wan"))

    assert RolloutQueue.open(str(folder)).settings.run == "wan"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
