"""Samples of one file, and every line accounted for, whatever the file holds."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetcraft.errors import DataError
from fleetcraft.telemetry.reading.cells import Lines, distinct, number_or_none, numbers
from fleetcraft.telemetry.reading.lines import MAX_LINE_BYTES
from fleetcraft.telemetry.reading.reader import Chunk, FileReader
from fleetcraft.telemetry.reading.sources import Source
from fleetcraft.telemetry.reading.times import NO_TIME, parse_time_us, parse_times
from tests.telemetry.traces import (
    BEGIN_S,
    HEADER,
    OUR_HEADER,
    TOTAL_MIB,
    archive_row,
    archive_time,
    archived,
    bare_row,
    our_row,
    our_time,
    write_archive,
    write_ours,
)

OURS = "n1_job7_20260717T120000Z.csv"


def reader_of(path: Path, **options: object) -> FileReader:
    return FileReader(Source(path=str(path), name=path.name, node=path.stem), **options)  # type: ignore[arg-type]


def read(path: Path, **options: object) -> tuple[FileReader, Chunk]:
    """The whole file as one chunk."""
    reader = reader_of(path, **options)
    chunks = list(reader.chunks())
    if not chunks:
        return reader, Chunk(np.zeros(0, np.int64), np.zeros(0, np.int32), {})
    status = [chunk.status for chunk in chunks if chunk.status is not None]
    return reader, Chunk(
        np.concatenate([chunk.t_us for chunk in chunks]),
        np.concatenate([chunk.series for chunk in chunks]),
        {
            name: np.concatenate([chunk.values[name] for chunk in chunks])
            for name in chunks[0].values
        },
        np.concatenate(status) if status else None,
    )


def read_text(folder: Path, text: str | bytes, **options: object) -> tuple[FileReader, Chunk]:
    path = folder / "host.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path, **options)


def lines_of(reader: FileReader) -> int:
    counts = reader.counts
    return counts.rows + counts.rejected_total + counts.headers + counts.blank


# --------------------------------------------------------------------------------- plain files


def test_an_archive_is_one_series_with_its_numbers_in_order(tmp_path: Path) -> None:
    rows = [archive_row(0), archive_row(30.027, util_pct=0, power_w=77.91, mem_used_mib=3)]
    reader, got = read(write_archive(tmp_path, "host01.csv", rows))
    assert got.t_s.tolist() == [BEGIN_S, BEGIN_S + 30.027]
    assert [one.key for one in reader.series] == [""]
    assert got.values["util_pct"].tolist() == [97.0, 0.0]
    assert got.values["power_w"].tolist() == [250.5, 77.91]
    assert got.values["mem_used_mib"].tolist() == [30000.0, 3.0]
    assert (reader.zoned, reader.counts.kinds, reader.counts.rejected) == (False, {"gpu": 2}, {})
    assert reader.counts.missing == {}


def test_our_rows_belong_to_their_gpu_by_identity(tmp_path: Path) -> None:
    rows = [our_row(at, gpu, util_pct=10 * gpu) for at in (0, 30) for gpu in (0, 1, 2)]
    reader, got = read(write_ours(tmp_path, rows))
    assert [one.key for one in reader.series] == ["GPU-n1-0", "GPU-n1-1", "GPU-n1-2"]
    assert reader.series[1].gpu_index == "1"
    assert got.series.tolist() == [0, 1, 2, 0, 1, 2]
    assert got.values["util_pct"].tolist() == [0, 10, 20, 0, 10, 20]
    assert reader.zoned


def test_a_slice_is_a_series_beside_its_gpu(tmp_path: Path) -> None:
    rows = [
        our_row(0, status="mig", util_pct=""),
        our_row(0, kind="mig", mig_uuid="MIG-a", util_pct=""),
        our_row(0, kind="mig", mig_uuid="MIG-b", util_pct=""),
    ]
    reader, got = read(write_ours(tmp_path, rows), with_status=True)
    assert [one.key for one in reader.series] == ["GPU-n1-0", "MIG-a", "MIG-b"]
    assert {one.gpu_uuid for one in reader.series} == {"GPU-n1-0"}
    assert reader.counts.kinds == {"gpu": 1, "mig": 2}
    assert got.status is not None
    assert got.status.tolist() == ["mig", "ok", "ok"]


def test_rows_about_the_host_events_and_heartbeats_are_counted_and_no_samples(
    tmp_path: Path,
) -> None:
    rows = [
        our_row(0),
        bare_row(1, "event", gpu_uuid="GPU-n1-0", detail="Xid 79"),
        bare_row(2, "heartbeat", status="timeout"),
        bare_row(3, "host", host_load="1.5"),
        bare_row(4, "something-new"),
        bare_row(5, ""),
    ]
    reader, got = read(write_ours(tmp_path, rows))
    assert len(got.t_us) == 1
    assert reader.counts.kinds == {
        "gpu": 1, "event": 1, "heartbeat": 1, "host": 2, "something-new": 1,
    }  # fmt: skip
    assert lines_of(reader) == reader.counts.lines == 7


def test_rows_are_counted_by_status_whatever_they_are_about(tmp_path: Path) -> None:
    rows = [our_row(0), our_row(30, status="lost"), bare_row(30, "host", status="no_nvml")]
    reader, _ = read(write_ours(tmp_path, [*rows, bare_row(60, "host")]))
    assert reader.counts.statuses == {"ok": 1, "lost": 1, "no_nvml": 1}


def test_identity_that_only_later_rows_give_is_completed(tmp_path: Path) -> None:
    rows = [our_row(0, pci_bus_id=""), our_row(30)]
    reader, _ = read(write_ours(tmp_path, rows))
    assert len(reader.series) == 1
    assert reader.series[0].pci_bus_id == "00000000:00:00.0"


def test_a_file_without_the_column_kind_has_samples_and_rows_about_the_host(tmp_path: Path) -> None:
    text = f"timestamp,util_pct,gpu_uuid\n{our_time(0)},5,GPU-1\n{our_time(0)},,\n"
    reader, got = read_text(tmp_path, text)
    assert reader.counts.kinds == {"gpu": 1, "host": 1}
    assert got.values["util_pct"].tolist() == [5.0]
    assert np.isnan(got.values["power_w"]).all()
    assert reader.absent == {"power_w", "mem_used_mib", "mem_total_mib"}
    assert reader.counts.missing == {}


def test_what_nvidia_smi_writes_is_read_as_it_stands(tmp_path: Path) -> None:
    text = (
        "timestamp, index, uuid, memory.used [MiB], memory.total [MiB], utilization.gpu [%],"
        " power.draw [W], temperature.gpu\r\n"
        "2026/07/17 12:00:00.123, 0, GPU-1, 557 MiB, 97871 MiB, 0 %, 85.83 W, 31\r\n"
        "2026/07/17 12:00:00.125, 1, GPU-2, 558 MiB, 97871 MiB, 12 %, [N/A], 32\r\n"
    )
    columns = ("mem_used_mib", "mem_total_mib", "util_pct", "power_w", "temp_c")
    reader, got = read_text(tmp_path, text, columns=columns)
    assert [one.key for one in reader.series] == ["GPU-1", "GPU-2"]
    assert got.values["mem_used_mib"].tolist() == [557.0, 558.0]
    assert got.values["mem_total_mib"].tolist() == [97871.0, 97871.0]
    assert got.values["util_pct"].tolist() == [0.0, 12.0]
    assert got.values["temp_c"].tolist() == [31.0, 32.0]
    assert got.values["power_w"][0] == 85.83
    assert reader.counts.missing == {"power_w": {"[N/A]": 1}}


def test_the_time_need_not_be_the_first_column(tmp_path: Path) -> None:
    text = f"gpu_uuid,timestamp,util_pct\nGPU-1,{our_time(0)},7\nGPU-1,never,8\n"
    reader, got = read_text(tmp_path, text)
    assert got.values["util_pct"].tolist() == [7.0]
    assert reader.counts.rejected == {"bad_time": 1}


def test_a_bom_and_crlf_are_no_part_of_the_cells(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + f"{HEADER}\r\n{archive_row(0, power_w=9.5)}\r\n\r\n".encode()
    reader, got = read_text(tmp_path, text, hash_prefix=True)
    assert got.values["power_w"].tolist() == [9.5]
    assert (reader.counts.headers, reader.counts.blank, reader.counts.rejected) == (1, 1, {})
    assert reader.bytes_read == len(text)
    assert reader.sha256 == hashlib.sha256(text).hexdigest()


# ---------------------------------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("text", "iso", "zoned"),
    [
        ("2026-11-30T02:00:00.000Z", "2026-11-30T02:00:00+00:00", True),
        ("2026-11-30T02:00:00Z", "2026-11-30T02:00:00+00:00", True),
        ("2026-11-30T02:00:00.25Z", "2026-11-30T02:00:00.250000+00:00", True),
        ("2026-11-30T02:00:00.123456789Z", "2026-11-30T02:00:00.123456+00:00", True),
        ("2026-11-30T02:00:00.5+02:00", "2026-11-30T00:00:00.500000+00:00", True),
        ("2026-11-30 02:00:00-0530", "2026-11-30T07:30:00+00:00", True),
        ("2026-11-30T02:00:00 UTC", "2026-11-30T02:00:00+00:00", True),
        ("2026/07/10 19:52:46.493", "2026-07-10T19:52:46.493000+00:00", False),
        ("2026/07/10 19:52:46", "2026-07-10T19:52:46+00:00", False),
        ("2026-07-10T19:52:46.493", "2026-07-10T19:52:46.493000+00:00", False),
        ("  2024/02/29 00:00:00.000 ", "2024-02-29T00:00:00+00:00", False),
        ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999000+00:00", True),
    ],
)
def test_a_time_is_read_exactly_and_says_whether_it_names_its_zone(
    tmp_path: Path, text: str, iso: str, zoned: bool
) -> None:
    reader, got = read_text(tmp_path, f"{HEADER}\n{text},1,2,3,4\n")
    at = datetime.fromisoformat(iso) - datetime(1970, 1, 1, tzinfo=UTC)
    assert got.t_us.tolist() == [(at.days * 86400 + at.seconds) * 10**6 + at.microseconds]
    assert reader.zoned is zoned


@pytest.mark.parametrize(
    "text",
    ["2026/02/30 00:00:00.000", "2026/13/01 00:00:00", "2026/07/10 24:00:00",
     "2026/07-10 01:00:00", "2026/07/10 19:60:46.493", "2026/07/10 19:52:60.493",
     "2025/02/29 00:00:00", "0000/01/01 00:00:00", "2026/07/10", "20260710T195246Z",
     "2026/07/10 19:52:46.49x", "2026-07-10T19:52:46.493ZZ", "1784317946",
     "2026/07/10 19:52:46.", "0001-01-01T00:00:00+02:00", "9999-12-31T23:00:00-02:00",
     "2026/07/1", "", "²026/07/10 19:52:46.493"],
)  # fmt: skip
def test_what_is_no_time_rejects_its_row(tmp_path: Path, text: str) -> None:
    reader, got = read_text(tmp_path, f"{HEADER}\n{text},1,2,3,4\n{archive_row(0)}\n")
    assert len(got.t_us) == 1
    assert reader.counts.rejected == {"bad_time": 1}


@given(
    st.lists(
        st.tuples(
            st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
            st.sampled_from(["%Y/%m/%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]),
            st.sampled_from(["", ".ms", ".us"]),
            st.sampled_from(["", "Z", "+00:00", "-03:30"]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_many_times_at_once_are_read_as_each_alone(
    values: list[tuple[datetime, str, str, str]],
) -> None:
    texts = []
    for at, form, fraction, zone in values:
        part = {"": "", ".ms": f".{at.microsecond // 1000:03d}", ".us": f".{at.microsecond:06d}"}
        day = at.strftime(form.replace("%Y", f"{at.year:04d}"))
        texts.append(day + part[fraction] + zone)
    lines = Lines("".join(f"{text},1\n" for text in texts).encode())
    t_us, zoned = parse_times(lines, *lines.bounds(np.arange(len(texts)), 0, 2))
    for text, (at, _, fraction, zone), found, has_zone in zip(
        texts, values, t_us.tolist(), zoned, strict=True
    ):
        step = {"": 10**6, ".ms": 1000, ".us": 1}[fraction]
        us = (at - datetime(1970, 1, 1)) // (datetime.resolution) // step * step
        us += {"-03:30": 12_600 * 10**6}.get(zone, 0)
        assert (found, bool(has_zone)) == (us, bool(zone)) == parse_time_us(text)


# -------------------------------------------------------------------------------------- numbers


CELLS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.decimals(-1000, 1000, places=3).map(str),
    st.text("0123456789.-+eE_ %WnaifMB", max_size=24).map(lambda text: text.replace(",", "")),
)


@given(st.lists(CELLS, min_size=1, max_size=8))
def test_a_number_is_what_float_makes_of_its_text(texts: list[str]) -> None:
    lines = Lines("".join(f"x,{text}\n" for text in texts).encode())
    start, end = lines.bounds(np.arange(len(texts)), 1, 2)
    values, plain = numbers(lines, start, end)
    for text, value, is_plain in zip(texts, values.tolist(), plain, strict=True):
        alone = number_or_none(text.strip().encode())
        if is_plain:
            assert value == alone
            assert str(value) == str(abs(value) if value == 0 else alone)
        try:
            expected = float(text)
        except ValueError:
            expected = float("nan")
        if np.isfinite(expected) and "_" not in text and not text.strip()[:1].isalpha():
            assert alone == expected


@given(st.lists(st.text("ab,é", max_size=30).map(lambda t: t.replace(",", "")), max_size=20))
def test_equal_texts_have_one_code(texts: list[str]) -> None:
    lines = Lines("".join(f"x,{text}\n" for text in texts).encode())
    rows = np.arange(len(texts))
    codes, found = distinct(lines, *lines.bounds(rows, 1, 2)) if texts else (rows, [])
    assert [found[code].decode() for code in codes] == texts
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("column", "text", "reported"),
    [
        ("util_pct", "[N/A]", "[N/A]"),
        ("power_w", "[Not Supported]", "[Not Supported]"),
        ("power_w", "[Unknown Error]", "[Unknown Error]"),
        ("util_pct", "ERR!", "ERR!"),
        ("util_pct", "[GPU requires reset]", "[GPU requires reset]"),
        ("mem_used_mib", "", ""),
        ("util_pct", "-1", "out of range"),
        ("util_pct", "100.5", "out of range"),
        ("util_pct", "9223372036854775807", "out of range"),
        ("power_w", "-0.5", "out of range"),
        ("power_w", "1e400", "out of range"),
        ("mem_total_mib", "0", "out of range"),
        ("mem_used_mib", "50000", "more than the total"),
        ("power_w", "nan", "nan"),
        ("power_w", "-inf", "-inf"),
        ("power_w", "1_0", "1_0"),
        ("power_w", "0x1f", "0x1f"),
        ("util_pct", "\x1b[31mred", "�[31mred"),
    ],
)
def test_a_cell_without_a_usable_number_is_absent_and_counted_and_its_row_stays(
    tmp_path: Path, column: str, text: str, reported: str
) -> None:
    rows = [archive_row(0), archive_row(30, **{column: text})]
    reader, got = read(write_archive(tmp_path, "host.csv", rows))
    assert len(got.t_us) == 2
    assert np.isnan(got.values[column]).tolist() == [False, True]
    assert reader.counts.missing == {column: {reported: 1}}
    assert reader.counts.rejected == {}


@pytest.mark.parametrize(
    "text",
    ["0", "-0", "0.00", "100", "100.0", "+5", "1e1", ".5", "5.", "007", "92.030920993190389"],
)
def test_every_way_to_write_a_number_in_range_is_read(tmp_path: Path, text: str) -> None:
    reader, got = read(write_archive(tmp_path, "host.csv", [archive_row(0, util_pct=text)]))
    assert got.values["util_pct"].tolist() == [float(text)]
    assert reader.counts.missing == {}


def test_distinct_texts_of_missing_values_are_bounded(tmp_path: Path) -> None:
    rows = [archive_row(n, util_pct=f"bad{n}" + "x" * 100) for n in range(500)]
    reader, _ = read(write_archive(tmp_path, "host.csv", rows))
    texts = reader.counts.missing["util_pct"]
    assert sum(texts.values()) == 500
    assert len(texts) <= 32
    assert max(map(len, texts)) <= 40


def test_the_cause_of_an_empty_cell_is_counted_where_the_row_names_it(tmp_path: Path) -> None:
    rows = [
        our_row(0, power_w="", missing="power_w=unsupported energy_j=unsupported"),
        our_row(30, power_w="", util_pct="", missing="util_pct=lost power_w=lost"),
        our_row(60, power_w=""),
    ]
    reader, _ = read(write_ours(tmp_path, rows))
    assert reader.counts.missing == {"power_w": {"": 3}, "util_pct": {"": 1}}
    assert reader.counts.causes == {
        "power_w": {"unsupported": 1, "lost": 1},
        "util_pct": {"lost": 1},
    }


# ------------------------------------------------------------------------------ what is no row


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (HEADER, "header_again"),
        ("Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.", "sentence"),
        ("NVIDIA-SMI has failed, because it could not reach the driver", "sentence"),
        ("Field one, two, three, four, and five", "sentence"),
        (archive_row(5).rsplit(",", 1)[0], "wrong_columns"),
        (archive_row(5) + ",7", "wrong_columns"),
        (archive_row(5) + archive_row(6), "wrong_columns"),
        (archive_time(5), "wrong_columns"),
        ("3,97871,0", "wrong_columns"),
        (archive_row(5).replace(":", "-"), "bad_time"),
        (",3,97871,0,77.9", "bad_time"),
        ("x,3,97871,0,77.9", "bad_time"),
        (archive_row(5)[:30] + "\0\0\0" + archive_row(5)[33:], "nul_bytes"),
        ("\0" * 200, "nul_bytes"),
        ("\x01\x02\x03", "not_text"),
        ("9" * (MAX_LINE_BYTES + 1), "too_long"),
    ],
)
def test_a_line_that_is_no_row_is_counted_by_kind_with_its_place(
    tmp_path: Path, line: str, kind: str
) -> None:
    rows = [archive_row(0), line, archive_row(30)]
    reader, got = read(write_archive(tmp_path, "host.csv", rows))
    assert len(got.t_us) == 2
    assert reader.counts.rejected == {kind: 1}
    (example,) = reader.counts.examples[kind]
    assert (example.line, example.offset) == (3, len(HEADER) + len(archive_row(0)) + 2)
    assert example.excerpt[:10].isprintable()
    assert lines_of(reader) == reader.counts.lines == 4


def test_bytes_that_are_no_text_are_counted(tmp_path: Path) -> None:
    text = HEADER.encode() + b"\n\xff\xfe\xfa garbage\n" + archive_row(0).encode() + b"\n"
    reader, got = read_text(tmp_path, text)
    assert len(got.t_us) == 1
    assert reader.counts.rejected == {"not_text": 1}


def test_bytes_that_are_no_text_in_a_cell_of_words_do_not_lose_the_row(tmp_path: Path) -> None:
    text = f"{OUR_HEADER}\n{our_row(0, detail='@')}\n".encode().replace(b"@", b"\xff\xfe")
    reader, got = read_text(tmp_path, text)
    assert (len(got.t_us), reader.counts.rejected) == (1, {})


@pytest.mark.parametrize("cut", [1, 10, 24, 40])
def test_a_last_line_without_newline_is_torn_and_not_read(tmp_path: Path, cut: int) -> None:
    rows = [archive_row(0), archive_row(30)]
    path = write_archive(tmp_path, "host.csv", rows, tail=archive_row(60)[:cut])
    reader, got = read(path, hash_prefix=True)
    assert len(got.t_us) == 2
    assert reader.counts.rejected == {"torn_tail": 1}
    whole = path.read_bytes()[:-cut]
    assert (reader.bytes_read, reader.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())


def test_a_header_of_another_version_is_followed_by_both_writers(tmp_path: Path) -> None:
    rows = [
        archive_row(0, util_pct=1),
        "timestamp,util_pct,power_w,mem_used_mib,mem_total_mib,gpu_uuid",
        f"{archive_time(30)},2,200,30000,40960,GPU-1",
        archive_row(31, util_pct=3),
        "timestamp,power_w,util_pct,mem_used_mib,mem_total_mib,gpu_uuid",
        f"{archive_time(60)},200,4,30000,40960,GPU-1",
    ]
    reader, got = read(write_archive(tmp_path, "host.csv", rows))
    assert got.values["util_pct"].tolist() == [1, 2, 3, 4]
    assert [reader.series[number].key for number in got.series] == ["", "GPU-1", "", "GPU-1"]
    assert (reader.counts.headers, reader.counts.rejected) == (1, {"header_again": 2})


def test_a_row_that_a_full_disk_cut_short_is_none_of_an_archive(tmp_path: Path) -> None:
    whole = our_row(30, power_w=300)
    cut = whole[: whole.index(",300,") + 2]
    assert cut.count(",") == HEADER.count(",")
    reader, got = read_text(tmp_path, f"{OUR_HEADER}\n{our_row(0)}\n{cut}\n{our_row(60)}\n")
    assert [one.key for one in reader.series] == ["GPU-n1-0"]
    assert got.values["power_w"].tolist() == [250.5, 250.5]
    assert reader.counts.rejected == {"wrong_columns": 1}


def test_without_a_header_rows_of_the_archives_form_are_read_and_no_others(tmp_path: Path) -> None:
    rows = [archive_row(0), archive_row(30), "2026/07/17 12:00:00.000,1,2,3"]
    reader, got = read(write_archive(tmp_path, "host.csv", rows, header=""))
    assert got.values["power_w"].tolist() == [250.5, 250.5]
    assert (reader.counts.headers, reader.counts.rejected) == (0, {"wrong_columns": 1})


def test_a_file_of_ours_whose_beginning_became_zeros_keeps_its_rows(tmp_path: Path) -> None:
    text = "\0" * len(OUR_HEADER) + f"\n{our_row(0)}\n{our_row(30)}\n"
    reader, got = read_text(tmp_path, text)
    assert got.values["util_pct"].tolist() == [97.0, 97.0]
    assert (reader.series[0].key, reader.counts.rejected) == ("GPU-n1-0", {"nul_bytes": 1})


@pytest.mark.parametrize(
    ("text", "lines"),
    [("", 0), ("\n", 1), (f"{HEADER}\n", 1), (HEADER, 1), ("\n" * 5 + "  \n", 6)],
)
def test_a_file_without_rows_has_none_and_every_line_is_counted(
    tmp_path: Path, text: str, lines: int
) -> None:
    reader, got = read_text(tmp_path, text)
    assert len(got.t_us) == 0
    assert lines_of(reader) == reader.counts.lines == lines
    assert not reader.zoned


def test_a_megabyte_without_newline_is_torn_and_one_with_it_too_long(tmp_path: Path) -> None:
    megabyte = "7" * 1_000_000
    for chunk_bytes in (1 << 12, 4 << 20):
        rows = [archive_row(0), megabyte, archive_row(30)]
        path = write_archive(tmp_path, "host.csv", rows, tail=megabyte)
        reader, got = read(path, chunk_bytes=chunk_bytes, hash_prefix=True)
        assert len(got.t_us) == 2
        assert reader.counts.rejected == {"too_long": 1, "torn_tail": 1}
        assert reader.counts.lines == lines_of(reader) == 5
        whole = path.read_bytes()[: -len(megabyte)]
        assert reader.bytes_read == len(whole)
        assert reader.sha256 == hashlib.sha256(whole).hexdigest()


def test_a_prefix_is_read_and_hashed_as_if_the_file_ended_there(tmp_path: Path) -> None:
    rows = [archive_row(30 * n) for n in range(20)]
    path = write_archive(tmp_path, "host.csv", rows)
    early = read(path, hash_prefix=True)[0]
    with path.open("a") as file:
        file.writelines(f"{archive_row(600 + n)}\n" for n in range(5))
    reader, got = read(path, prefix_bytes=early.bytes_read, hash_prefix=True)
    assert (len(got.t_us), reader.sha256) == (20, early.sha256)
    assert reader.counts.rejected == {}


# ---------------------------------------------------------------------------------- whole files


def test_what_is_no_regular_file_is_an_error_without_blocking(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path / "pipe.csv", tmp_path, tmp_path / "gone.csv"):
        with pytest.raises(DataError, match=r"cannot read .*; read up to byte 0"):
            list(reader_of(path).chunks())


WRITER = """
import sys, time
path, header, row = sys.argv[1:]
with open(path, "ab", buffering=0) as file:
    file.write(header.encode() + b"\\n")
    print("go", flush=True)
    half = len(row) // 2
    while True:
        file.write(row[:half].encode())
        file.write(row[half:].encode() + b"\\n")
        time.sleep(0.0002)
"""


def test_a_file_that_grows_is_read_up_to_its_size_at_opening(tmp_path: Path) -> None:
    path = tmp_path / "host.csv"
    command = [sys.executable, "-c", WRITER, str(path), HEADER, archive_row(0)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"go\n"
            before = 0
            for _ in range(20):
                reader, got = read(path, chunk_bytes=4096)
                assert set(reader.counts.rejected) <= {"torn_tail"}
                assert lines_of(reader) == reader.counts.lines
                assert len(got.t_us) >= before
                assert set(got.values.get("power_w", np.zeros(0)).tolist()) <= {250.5}
                before = len(got.t_us)
        finally:
            writer.kill()
    assert before > 0
    assert path.stat().st_size > reader.bytes_read


def test_a_file_that_becomes_shorter_ends_there_and_is_said_to_have_shrunk(tmp_path: Path) -> None:
    path = write_archive(tmp_path, "host.csv", [archive_row(n) for n in range(500)])
    reader = reader_of(path, chunk_bytes=4096)
    chunks = reader.chunks()
    next(chunks)
    path.write_text(path.read_text()[:6000])
    assert sum(len(chunk.t_us) for chunk in chunks) < 499
    assert reader.shrank
    assert lines_of(reader) == reader.counts.lines


def test_the_archived_traces_are_read_whole() -> None:
    kinds: Counter[str] = Counter()
    for path in sorted((archived() / "hosts").glob("*.csv")):
        reader = reader_of(path)
        assert sum(len(chunk.t_us) for chunk in reader.chunks()) == reader.counts.rows
        assert (reader.counts.rejected, reader.counts.missing) == ({}, {})
        kinds.update(reader.counts.kinds)
    assert kinds == {"gpu": 68244}


# ------------------------------------------------------------------------------------- whatever


def expected_of(data: bytes) -> tuple[int, Counter[str]]:
    """Rows and what else there is of an archive, in the plainest way."""
    *lines, tail = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rows, other = 0, Counter({"torn_tail": 1} if tail else {})
    for line in lines:
        text = line.strip(b" \t\r")
        first, *more = [cell.strip(b" \t\r") for cell in text.split(b",")]
        if b"\0" in line:
            other["nul_bytes"] += 1
        elif not text:
            other["blank"] += 1
        elif first == b"timestamp":
            other["header"] += 1
        elif len(more) == 4 and parse_time_us(first.decode("ascii", "replace")):
            rows += 1
        else:
            other["no row"] += 1
    return rows, other


ROWS = st.integers(0, 10**6).map(lambda at: archive_row(at / 7).encode())
LINES = st.one_of(
    ROWS,
    ROWS,
    st.just(HEADER.encode()),
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    st.text("0123456789/:., -[]NA\0\r\t", max_size=60).map(str.encode),
    st.tuples(ROWS, st.integers(0, 60), st.binary(max_size=3)).map(
        lambda parts: (parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]).replace(b"\n", b"")
    ),
)


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    lines=st.lists(LINES, max_size=30),
    tail=st.binary(max_size=30),
    chunk_bytes=st.integers(1, 300),
)
def test_whatever_a_file_holds_every_line_is_accounted_for_once(
    tmp_path: Path, lines: list[bytes], tail: bytes, chunk_bytes: int
) -> None:
    data = b"".join(line + b"\n" for line in [HEADER.encode(), *lines]) + tail
    reader, got = read_text(tmp_path, data, chunk_bytes=chunk_bytes, hash_prefix=True)
    counts = reader.counts
    rows, other = expected_of(data)
    assert (len(got.t_us), counts.rows) == (rows, rows)
    assert lines_of(reader) == counts.lines == rows + other.total()
    assert counts.rejected.get("torn_tail", 0) == other["torn_tail"]
    assert counts.rejected.get("nul_bytes", 0) == other["nul_bytes"]
    assert counts.headers + counts.rejected.get("header_again", 0) == other["header"]
    assert reader.sha256 == hashlib.sha256(data[: data.rfind(b"\n") + 1]).hexdigest()

    again, same = read_text(tmp_path, data)
    assert (again.counts, again.bytes_read) == (counts, reader.bytes_read)
    assert same.t_us.tolist() == got.t_us.tolist()
    for column, values in same.values.items():
        np.testing.assert_array_equal(values, got.values[column])


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 1000), st.integers(0, 3), st.integers(0, 100)), max_size=40
    ),
    chunk_bytes=st.integers(200, 3000),
)
def test_our_rows_are_the_same_in_chunks_of_any_size(
    tmp_path: Path, rows: list[tuple[int, int, int]], chunk_bytes: int
) -> None:
    path = write_ours(tmp_path, [our_row(at, gpu, util_pct=util) for at, gpu, util in rows])
    reader, got = read(path, chunk_bytes=chunk_bytes)
    assert [
        (round(t_s - BEGIN_S), reader.series[number].gpu_index)
        for t_s, number in zip(got.t_s, got.series, strict=True)
    ] == [(at, str(gpu)) for at, gpu, _ in rows]
    if rows:
        assert got.values["util_pct"].tolist() == [util for _, _, util in rows]
        assert got.values["mem_total_mib"].tolist() == [TOTAL_MIB] * len(rows)


def test_no_time_is_not_a_time_that_could_be_read() -> None:
    found = parse_time_us("0001-01-01T00:00:00Z")
    assert found is not None
    assert found[0] > NO_TIME
