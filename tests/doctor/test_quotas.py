"""Quotas: the lines of real programs, and what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Verdict
from fleetcraft.doctor.quotas import (
    Quota,
    check_folders,
    check_quotas,
    judge_quota,
    parse_line,
)
from tests.slurm.fakes import FakePrograms

# As quota(1) of Debian's package quota 4.06 and lfs of Lustre 2.15 print them.
HEADING = "Filesystem  blocks   quota   limit   grace   files   quota   limit   grace"
PLAIN = "/dev/sda1  1234 10000 12000         56 1000 1200        "
OVER = "/dev/mapper/home  10500* 10000 12000 6days 56 1000 1200"
LUSTRE = "/scratch 123456789 0 1073741824 - 54321 0 1000000 -"
LUSTRE_OVER = "/scratch [1073741825]* 0 1073741824 - 54321* 0 50000 expired"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (PLAIN, ("/dev/sda1", 1234, 10000, 56, 1000)),
        (OVER, ("/dev/mapper/home", 10500, 10000, 56, 1000)),
        (LUSTRE, ("/scratch", 123456789, 1073741824, 54321, 1000000)),
        (LUSTRE_OVER, ("/scratch", 1073741825, 1073741824, 54321, 50000)),
        ("  20  1000 2000           5    0   0       ", ("", 20, 1000, 5, 0)),
    ],
)
def test_a_line_of_numbers_is_read(line: str, expected: tuple[str, int, int, int, int]) -> None:
    found = parse_line(line)
    assert found is not None
    assert expected == (
        found.place, found.used_kib, found.limit_kib, found.used_files, found.limit_files
    )  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        HEADING,
        "",
        "Disk quotas for user me (uid 1000): none",
        "/scratch 1 2 3",
        "/a 1 2 3 soon 4 5 6",
    ],
)
def test_what_is_no_line_of_numbers_is_not_read(line: str) -> None:
    assert parse_line(line) is None


@given(st.text())
def test_no_line_raises(line: str) -> None:
    parse_line(line)


@given(
    st.tuples(*[st.integers(0, 10**12)] * 6),
    st.sampled_from(["", "-", "none", "6days", "23:59"]),
    st.booleans(),
)
def test_every_line_of_the_form_is_read(numbers: tuple[int, ...], grace: str, passed: bool) -> None:
    used, soft, hard, files, soft_files, hard_files = numbers
    star = "*" if passed else ""
    line = f"/home {used}{star} {soft} {hard} {grace} {files} {soft_files} {hard_files} {grace}"
    found = parse_line(line)
    assert found is not None
    assert (found.used_kib, found.used_files) == (used, files)
    assert found.limit_kib == min([n for n in (soft, hard) if n], default=0)


@pytest.mark.parametrize(
    ("used", "limit", "files", "limit_files", "verdict"),
    [
        (10, 100, 1, 10, Verdict.OK),
        (95, 100, 1, 10, Verdict.ADVICE),
        (10, 100, 10, 10, Verdict.WRONG),
        (101, 100, 1, 10, Verdict.WRONG),
        (10**9, 0, 10**6, 0, Verdict.OK),
    ],
)
def test_a_quota_that_is_nearly_used_is_advice_and_a_full_one_wrong(
    used: int, limit: int, files: int, limit_files: int, verdict: Verdict
) -> None:
    quota = Quota(
        place="/home", used_kib=used, limit_kib=limit, used_files=files, limit_files=limit_files
    )
    assert judge_quota(quota).verdict is verdict


def case_of(tmp_path: Path, **environ: str) -> Case:
    return Case({"project_dir": str(tmp_path)}, environ)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePrograms:
    return FakePrograms(tmp_path, monkeypatch)


def test_the_quota_program_is_asked_where_it_is(programs: FakePrograms, tmp_path: Path) -> None:
    programs.write("quota", f"echo '{HEADING}'; echo '{OVER}'; exit 1")
    (found,) = check_quotas(case_of(tmp_path, PATH=str(programs.bin)))
    assert found.name == "quota on /dev/mapper/home"
    assert found.verdict is Verdict.WRONG


def test_a_quota_program_that_fails_leaves_the_quota_unknown(
    programs: FakePrograms, tmp_path: Path
) -> None:
    programs.write(
        "quota", "echo 'quota: error while getting quota: Connection refused' >&2; exit 1"
    )
    (found,) = check_quotas(case_of(tmp_path, PATH=str(programs.bin)))
    assert found.verdict is Verdict.UNKNOWN
    assert "Connection refused" in found.found


def test_without_a_quota_program_quotas_are_unknown_not_absent(tmp_path: Path) -> None:
    (found,) = check_quotas(case_of(tmp_path, PATH=str(tmp_path)))
    assert found.verdict is Verdict.UNKNOWN


def test_a_scratch_tree_on_quota_storage_is_advice(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    environ = {"FLEET_ROOT": str(tmp_path / "root"), "FLEET_STORAGE_QUOTA": str(tmp_path)}
    found = {one.name: one for one in check_folders(case_of(tmp_path, **environ))}
    assert found["scratch tree"].verdict is Verdict.ADVICE
    assert found["project"].verdict is Verdict.OK


def test_work_storage_that_is_not_there_is_wrong(tmp_path: Path) -> None:
    found = {
        one.name: one
        for one in check_folders(case_of(tmp_path, FLEET_STORAGE_WORK=str(tmp_path / "none")))
    }
    assert found["work"].verdict is Verdict.WRONG
