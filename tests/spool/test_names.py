"""Names, owners and durations as text: what is accepted, and how it is read back."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetcraft.errors import BadNameError, UsageError
from fleetcraft.identity import OWNER_MAX_BYTES, Owner
from fleetcraft.layout import SpoolPaths, parse_claim, parse_log, task_of
from fleetcraft.spool.names import (
    NAME_MAX_BYTES,
    check_dependency,
    check_name,
    first_in_order,
    matches,
    near,
)
from fleetcraft.units import MAX_DURATION_S, format_clock, parse_duration_s
from tests.spool.strategies import owners, raw_text, task_names

PATHS = SpoolPaths("/s")
LONGEST_FILE_NAME = 255


def file_name(path: str) -> str:
    return path.rpartition("/")[2]


@given(task_names(), owners())
@example("a.sh.1.2.3.4", Owner("1", "2", "3", "4"))
@example("a.sh.", Owner("1", "2", "3", "4"))
def test_a_claim_is_parsed_from_the_right_whatever_its_task_is_called(
    name: str, owner: Owner
) -> None:
    assert parse_claim(file_name(PATHS.claim(name, owner))) == (name, owner)


@given(task_names(), st.integers(1, 10**6))
def test_a_log_is_parsed_from_the_right_whatever_its_task_is_called(name: str, number: int) -> None:
    assert parse_log(file_name(PATHS.log(name, number))) == (name, number)


@given(raw_text())
def test_a_file_that_is_no_claim_is_none(text: str) -> None:
    parsed = parse_claim(text)
    assert parsed is None or file_name(PATHS.claim(*parsed)) == text


@given(raw_text())
@example("t.\u0663.log")
@example("t.007.log")
def test_a_file_that_is_no_log_is_none(text: str) -> None:
    parsed = parse_log(text)
    if parsed is not None:
        assert parse_log(file_name(PATHS.log(*parsed))) == parsed


@given(raw_text())
def test_an_owner_is_read_back_or_refused(text: str) -> None:
    owner = Owner.parse(text)
    assert owner is None or str(owner) == text


def test_an_owner_knows_its_launch_and_lease() -> None:
    owner = Owner.parse("8812.0.3.k3x9q2ab-4")
    assert owner is not None
    assert owner.launch == "k3x9q2ab"
    assert owner.lease_name == "8812.0.k3x9q2ab"


def test_an_owner_that_is_too_long_is_none() -> None:
    assert Owner.parse(f"{'j' * OWNER_MAX_BYTES}.0.0.t-1") is None


def test_the_longest_name_with_the_longest_owner_is_one_file_name() -> None:
    owner = Owner("j" * (OWNER_MAX_BYTES - 8), "0", "0", "t-1")
    assert len(str(owner)) <= OWNER_MAX_BYTES
    assert len(file_name(PATHS.claim("n" * NAME_MAX_BYTES, owner))) <= LONGEST_FILE_NAME


@given(raw_text())
def test_an_accepted_name_is_one_safe_file_name(text: str) -> None:
    try:
        name = check_name(text)
    except BadNameError:
        return
    assert name.isascii()
    assert "/" not in name
    assert not name.startswith((".", "-"))
    assert task_of(file_name(PATHS.waiting_record(name))) == name


@pytest.mark.parametrize(
    "name", ["", ".a", "-a", "_a", "a b", "a/b", "a\n", "é", "a" * 181, "\udcff"]
)
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(BadNameError):
        check_name(name)


@pytest.mark.parametrize("text", ["a/*", "* *", "$(x)*", "a{b,c}*", "\n*"])
def test_a_bad_pattern_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        check_dependency(text)


def test_a_glob_matches_names_as_the_shell_would_but_not_the_task_that_asks() -> None:
    names = ["enc-1", "enc-2", "enc-x", "dec-1"]
    assert matches("enc-[0-9]", names, but="") == ["enc-1", "enc-2"]
    assert matches("enc-[!0-9]", names, but="") == ["enc-x"]
    assert matches("*-1", names, but="dec-1") == ["enc-1"]
    assert matches("enc", names, but="") == []


def test_near_names_are_nearest_first() -> None:
    assert near("gen-00071", ["gen-00017", "gen-00070", "other"])[0] == "gen-00070"


@given(st.integers(1, MAX_DURATION_S))
def test_a_duration_reads_back_as_it_was_written(seconds: int) -> None:
    assert parse_duration_s(format_clock(seconds)) == seconds


@given(
    st.one_of(
        raw_text(),
        st.from_regex(r"\d{1,500}[smhd:]?\d{0,4}(:\d{1,3})?", fullmatch=True),
        st.from_regex(r"\d+-\d+(:\d+)?(:\d+)?", fullmatch=True),
    )
)
@example("9" * 400 + "h")
@example("9" * 5000 + ":00")
@example("9" * 5000 + "-00:00")
def test_any_text_is_a_duration_in_range_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert 1 <= parse_duration_s(text) <= MAX_DURATION_S


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:40:00", 2400), ("40:00", 2400), ("1-00:00:00", 86400), ("1-12:00", 129600),
        ("90s", 90), ("1.5h", 5400), ("2 d", 172800), (" 5m ", 300), ("100:00:00", 360000),
    ],
)  # fmt: skip
def test_durations_are_read_as_slurm_and_people_write_them(text: str, seconds: int) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0s", "90", "00:00:00", "1:60", "-5s", "367d", "1h30m", "0.2s"]
)
def test_a_time_that_is_no_usable_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a usable duration"):
        parse_duration_s(text)


@given(
    st.lists(st.lists(st.text("abc", min_size=1, max_size=3), max_size=9), max_size=9),
    st.integers(0, 12),
    st.sampled_from(["", "b", "cc"]),
)
def test_the_first_names_are_those_of_the_sorted_list(
    batches: list[list[str]], limit: int, after: str
) -> None:
    whole = sorted(name for batch in batches for name in batch if name > after)
    assert first_in_order(batches, limit, after=after) == (whole[:limit], len(whole))
