"""A table is what was asked for, whole, or no answer; a cell is a number or nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fleetcraft.errors import NoAnswerError
from fleetcraft.slurm.tables import (
    BarTable,
    LongTable,
    count_or_none,
    duration_s_or_none,
    text_or_none,
    time_or_none,
)
from tests.slurm.fakes import long_table

LONG = LongTable(
    program="squeue", columns=(("JobID", "JOBID"), ("UserID", "UID|USER"), ("Name", "NAME"))
)
BAR = BarTable(program="sshare", columns=(("Account", "Account"), ("DefaultQOS", "Def QOS")))
TITLES = ["JOBID", "UID", "NAME"]


def test_a_long_table_is_asked_for_with_the_ends_of_its_fields() -> None:
    assert LONG.format == "JobID:\x1f,UserID:\x1f,Name:\x1e"


def test_free_text_may_hold_bars_quotes_tabs_and_newlines() -> None:
    names = ["a|b", 'say "hi"', "two\nlines\n", "\ttab; x", "", "NAME"]

    answer = LONG.read(long_table(TITLES, *(["1", "0", name] for name in names)))

    assert [row["Name"] for row in answer.rows] == names
    assert answer.cluster is None


def test_a_title_may_differ_between_versions() -> None:
    text = long_table(["JOBID", "USER", "NAME"], ["7", "0", "x"])

    assert LONG.read(text).rows == [{"JobID": "7", "UserID": "0", "Name": "x"}]


def test_the_line_above_the_header_names_the_cluster() -> None:
    answer = LONG.read("CLUSTER: gpu-2\n" + long_table(TITLES))

    assert (answer.cluster, answer.rows) == ("gpu-2", [])


def test_a_header_alone_is_the_answer_that_there_is_nothing() -> None:
    assert LONG.read(long_table(TITLES)).rows == []
    assert BAR.read("Account|Def QOS\n").rows == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "CLUSTER: gpu\n",
        "slurm_load_jobs error: Unable to contact slurm controller\n",
        long_table(["JOBID", "NAME"]),
        long_table(["JOBID", "UID", "NAME", "STATE"]),
        long_table(["UID", "JOBID", "NAME"]),
        long_table(["JobId", "UID", "NAME"]),
        "JOBID UID NAME\n",
        "7\x1f0\x1fx\x1e\n",
        "a banner\n" + long_table(TITLES),
        "CLUSTER: a\nCLUSTER: b\n" + long_table(TITLES),
    ],
)
def test_text_without_exactly_the_header_is_no_answer(text: str) -> None:
    with pytest.raises(NoAnswerError, match="squeue gave no answer"):
        LONG.read(text)


@pytest.mark.parametrize("cut", range(1, len(long_table(TITLES, ["7", "0", "x"]))))
def test_an_answer_that_is_cut_off_anywhere_is_none_or_still_whole(cut: int) -> None:
    text = long_table(TITLES, ["7", "0", "x"])

    try:
        answer = LONG.read(text[:-cut])
    except NoAnswerError:
        return
    # Only a cut between two rows cannot be seen.
    assert text[:-cut] == long_table(TITLES)
    assert answer.rows == []


@pytest.mark.parametrize("row", [["7", "0"], ["7", "0", "x", "y"], ["7"]])
def test_a_row_that_does_not_fit_makes_the_whole_no_answer(row: list[str]) -> None:
    with pytest.raises(NoAnswerError, match=r"row 2 has \d fields instead of 3"):
        LONG.read(long_table(TITLES, ["1", "0", "x"], row))


def test_what_is_no_header_is_shown_printable_and_short() -> None:
    with pytest.raises(NoAnswerError) as caught:
        LONG.read("\x1b[31mred" + "x" * 500)

    assert "\x1b" not in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    "text", ["", "Account|Def QOS", "Account|QOS\n", "Account\n", "Account|Def QOS\na|b|c\n"]
)
def test_a_table_with_bars_is_whole_or_no_answer(text: str) -> None:
    with pytest.raises(NoAnswerError, match="sshare gave no answer"):
        BAR.read(text)


def test_a_table_with_bars_is_read_by_field() -> None:
    assert BAR.format == "Account,DefaultQOS"
    assert BAR.read("Account|Def QOS\n  proj|\n").rows == [{"Account": "  proj", "DefaultQOS": ""}]


@pytest.mark.parametrize(
    ("cell", "seconds"),
    [
        ("0:00", 0),
        ("1:05", 65),
        ("29:59", 1799),
        ("10:00:00", 36000),
        ("1-00:00:00", 86400),
        ("1-02:30", 95400),
        ("365-00:00:01", 31536001),
        (" 5:00 ", 300),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("NOT_SET", None),
        ("N/A", None),
        ("NONE", None),
        ("Partition_Limit", None),
        ("", None),
        ("-1:00", None),
        ("30", None),
        ("1:2:3:4", None),
        ("\uff11:00", None),
    ],
)
def test_a_duration_is_a_number_only_where_it_is_one(cell: str, seconds: int | None) -> None:
    assert duration_s_or_none(cell) == seconds


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        ("0", 0),
        ("16", 16),
        (" 7 ", 7),
        ("16+", None),
        ("-1", None),
        ("N/A", None),
        ("", None),
        ("²", None),
    ],
)
def test_a_count_is_a_number_only_where_it_is_one(cell: str, count: int | None) -> None:
    assert count_or_none(cell) == count


@pytest.mark.parametrize(
    "cell",
    ["N/A", "Unknown", "NONE", "0", "", "2026-11-29T23:47:38", "9999999999999999", "Tomorr 12:00"],
)
def test_a_time_that_was_not_printed_in_seconds_is_none(cell: str) -> None:
    assert time_or_none(cell) is None


def test_a_time_is_aware() -> None:
    assert time_or_none("1795996058") == datetime(2026, 11, 29, 23, 47, 38, tzinfo=UTC)


@pytest.mark.parametrize("cell", ["(null)", "N/A", "None", "", "  "])
def test_the_words_for_nothing_are_none(cell: str) -> None:
    assert text_or_none(cell) is None
