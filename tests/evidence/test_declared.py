"""What people declare is read as plain values with their lines, or refused with a line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.errors import ConfigError
from fleetcraft.evidence.declared import read_declared
from fleetcraft.evidence.release.gate_file import read_gate_file
from fleetcraft.evidence.release.grid_file import read_grid_file
from fleetcraft.identity import sha256_hex


def test_values_know_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\nb:\n- x\n- true\nc: 2026-01-02\nd: 1.5\n")

    found, digest = read_declared(str(path))

    values = found.mapping("it")
    assert (values["a"].whole("a"), values["a"].line) == (1, 1)
    assert [(item.value, item.line) for item in values["b"].items("b")] == [("x", 3), (True, 4)]
    assert (values["c"].text("c"), values["d"].number("d")) == ("2026-01-02", 1.5)
    assert digest == sha256_hex(path.read_bytes())


@pytest.mark.parametrize(
    "data",
    [
        b"a: &x [1]\nb: *x\n",
        b"\xff\xfe\x00",
        b"a: &x [*x]\n",
        b"a: 1\n---\nb: 2\n",
        b"? [a]\n: b\n",
        b"a: 0o8x: b",
    ],
)
def test_what_is_no_plain_yaml_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError):
        read_declared(str(path))


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_declared(str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match="cannot read"):
        read_declared(str(tmp_path))
    (tmp_path / "big").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        read_declared(str(tmp_path / "big"))


_words = st.sampled_from(
    ["name", "arms", "seeds", "mechanical", "check", "files", ": ", "- ", "[", "]", "{", "}", ",",
     "\n", "  ", "'", '"', "*a", "&a", "!!", "~", "1", "x", ".nan", "2026-01-01", "\t", "|", "é"]
)  # fmt: skip


@settings(max_examples=150)
@given(parts=st.lists(_words, max_size=30))
def test_whatever_stands_there_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text("".join(parts))
    for read in (read_declared, read_grid_file, read_gate_file):
        with contextlib.suppress(ConfigError):
            read(str(path))  # type: ignore[operator]
