"""A batch table on disk: what is read is what was written, or nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetcraft.batch_table import Table, make_table, read_table, write_table
from fleetcraft.batch_table.reading import MAX_BYTES
from fleetcraft.batch_table.records import content, hash_of
from fleetcraft.batch_table.writing import to_yaml
from fleetcraft.errors import BatchRefusedError, DataError
from tests.batch_table.rows import FAMILY, ROW, changed, table

USUAL = make_table({FAMILY: ROW, "demo": changed(ROW, device__mem_mib=None, next=None, batch=1)})
BYTES = to_yaml(USUAL).encode()


def put(folder: Path, data: bytes | str, mode: int = 0o600) -> str:
    path = folder / "batch-table.yaml"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    path.chmod(mode)
    return str(path)


def refused(path: str) -> BatchRefusedError:
    with pytest.raises(BatchRefusedError) as caught:
        read_table(path)
    assert caught.value.exit_code == 7
    return caught.value


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "batch-table.yaml")
    write_table(path, USUAL)
    assert read_table(path) == USUAL
    assert os.stat(path).st_mode & 0o777 == 0o600


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(place=st.integers(0, len(BYTES) - 1), bit=st.integers(0, 7))
def test_one_flipped_bit_changes_no_meaning_or_is_refused(
    tmp_path: Path, place: int, bit: int
) -> None:
    data = bytearray(BYTES)
    data[place] ^= 1 << bit
    path = put(tmp_path, bytes(data))
    found, problem = None, ""
    try:
        found = read_table(path)
    except BatchRefusedError as error:
        problem = error.message
    assert found == USUAL or "hash" in problem or "schema" in problem


def test_every_changed_value_is_refused_for_the_hash(tmp_path: Path) -> None:
    text = BYTES.decode()
    for old, new in (
        ("batch: 4", "batch: 5"),
        ("97871", "97872"),
        ("2.13.0", "2.13.1"),
        ("sdpa: flash", "sdpa: math"),
        ("expandable_segments:True", "expandable_segments:False"),
        ("throughput_gain: -0.02", "throughput_gain: 0.02"),
        ("demo:", "demi:"),
        ("    timed_batch: 1\n", ""),
    ):
        assert old in text
        error = refused(put(tmp_path, text.replace(old, new)))
        assert error.facts["field"] == "hash"
        assert "hash" in error.message


def test_a_hash_that_was_edited_too_does_not_fit_either(tmp_path: Path) -> None:
    text = BYTES.decode()
    flipped = "0" if USUAL.hash[-1] != "0" else "1"
    assert refused(put(tmp_path, text.replace(USUAL.hash, USUAL.hash[:-1] + flipped)))


def test_key_order_comments_and_style_do_not_matter(tmp_path: Path) -> None:
    document = yaml.safe_load(BYTES)
    document["families"] = dict(reversed(document["families"].items()))
    for row in document["families"].values():
        for name in list(row)[::2]:
            row[name] = row.pop(name)
    for flow in (False, True):
        text = yaml.safe_dump(document, sort_keys=False, default_flow_style=flow, width=40)
        assert read_table(put(tmp_path, f"# mine\n{text}# end\n")) == USUAL


def test_the_hash_is_the_same_on_every_machine() -> None:
    # Worked out by hand from the canonical JSON with sha256sum.
    row = changed(ROW, next=None, evidence=(), device__name="NVIDIA Ü")
    text = (
        '{"families":{"f":{"batch":4,"device":{"mem_mib":97871,"name":"NVIDIA Ü"},'
        f'"evidence":[],"identity":"{ROW.identity}","next":null,'
        '"peak":{"device_mib":30120,"host_mib":20480,"owner":"pixels","phase":"decode"},'
        '"reason":"compute_saturated","stack":{"alloc":"expandable_segments:True",'
        '"sdpa":"flash","torch":"2.13.0"},"timed_batch":1}}}'
    )
    import hashlib

    assert make_table({"f": row}).hash == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no mapping"),
        ("- 1\n", "no mapping"),
        ("schema: [", "no table in line"),
        ("a: 1\na: 1\n", "stands twice"),
        ("a: &x 1\nb: *x\n", "alias"),
        ("a: &x {b: 1}\n<<: *x\n", "no text|alias"),
        ("1: 2\n", "no text"),
        ("a: " + "[" * 40 + "]" * 40 + "\n", "nested too deeply"),
        (b"a: \xff\n", "no table"),
        ("a: !!python/object:os.system {}\n", "no table"),
    ],
)
def test_what_is_no_plain_mapping_is_refused(
    tmp_path: Path, text: str | bytes, problem: str
) -> None:
    error = refused(put(tmp_path, text))
    assert error.facts["field"] == "hash"
    assert re.search(problem, error.message)


@pytest.mark.parametrize(
    "value", [".nan", ".inf", "2026-01-01", "!!binary aGk=", "!!set {a, b}", "{1: 2}"]
)
def test_a_value_that_json_has_no_word_for_is_refused(tmp_path: Path, value: str) -> None:
    path = put(tmp_path, f"schema: fleetcraft.batch-table/1\nhash: x\nfamilies: {value}\n")
    assert refused(path).facts["field"] == "hash"


def signed(families: object, **more: object) -> str:
    document = {"families": families, **more}
    head = {"schema": "fleetcraft.batch-table/1", "hash": hash_of(document)}
    return yaml.safe_dump({**head, **document}, sort_keys=False)


def test_a_signed_table_with_unknown_or_wrong_fields_is_refused(tmp_path: Path) -> None:
    row = content({"f": ROW})["families"]["f"]
    assert read_table(put(tmp_path, signed({"f": row}))).families["f"] == ROW
    for families, more in (
        ({"f": {**row, "btach": 1}}, {}),
        ({"f": {**row, "device": {**row["device"], "x": 1}}}, {}),
        ({"f": {**row, "batch": 0}}, {}),
        ({"f": {**row, "batch": True}}, {}),
        ({"f": {**row, "batch": "4"}}, {}),
        ({"f": {**row, "batch": 4.0}}, {}),
        ({"f": {**row, "timed_batch": 5}}, {}),
        ({"f": {**row, "identity": "sha256:1"}}, {}),
        ({"f": {k: v for k, v in row.items() if k != "next"}}, {}),
        ({"a b": row}, {}),
        ({"f": row}, {"notes": "x"}),
        (None, {}),
        ([row], {}),
    ):
        with pytest.raises(DataError, match="bad batch table"):
            read_table(put(tmp_path, signed(families, **more)))


def test_a_table_of_another_schema_is_refused_by_name(tmp_path: Path) -> None:
    error = refused(put(tmp_path, BYTES.replace(b"batch-table/1", b"batch-table/2")))
    assert error.facts["field"] == "schema"


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_a_table_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    error = refused(put(tmp_path, BYTES, mode))
    assert error.facts["field"] == "permissions"
    assert "can write" in error.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_table_of_another_user_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, BYTES)
    os.chown(path, 12345, 0)
    assert refused(path).facts["field"] == "permissions"


def test_what_cannot_be_read_or_is_no_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_table(str(tmp_path / "none.yaml"))
    with pytest.raises(DataError, match="larger than 1 MiB"):
        read_table(put(tmp_path, b"#" * (MAX_BYTES + 1)))
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(DataError, match="no regular file"):
        read_table(str(tmp_path / "fifo"))


def test_a_link_is_followed(tmp_path: Path) -> None:
    path = put(tmp_path, BYTES)
    (tmp_path / "link.yaml").symlink_to(path)
    assert read_table(str(tmp_path / "link.yaml")) == USUAL


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    name=st.text(max_size=30),
    torch=st.sampled_from(["2.13", "1:30", "no", "0x10", "1e3", "~", "2026-01-01", "", " a", "="]),
    gain=st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
    key=st.from_regex(r"[A-Za-z0-9._/+-]{1,20}", fullmatch=True),
)
def test_any_row_comes_back_as_it_was(
    tmp_path: Path, name: str, torch: str, gain: float | None, key: str
) -> None:
    row = changed(ROW, device__name=name, stack__torch=torch, next__throughput_gain=gain)
    try:
        made: Table = make_table({key: row})
    except ValueError:  # half a surrogate pair is no text
        return
    path = str(tmp_path / "any.yaml")
    (tmp_path / "any.yaml").unlink(missing_ok=True)
    write_table(path, made)
    assert read_table(path) == made


def test_one_row_alone_is_a_table() -> None:
    assert table().families[FAMILY] == ROW
