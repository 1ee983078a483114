"""Following a file of lines: places, torn ends, files that are other ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.streaming.tailing import Place, Tail
from fleetcraft.training.progress.reading import MAX_LINE_BYTES


def again(path: Path, place: Place) -> Tail:
    """As another process goes on: the place went through a file."""
    return Tail(str(path), msgspec.json.decode(msgspec.json.encode(place), type=Place))


@given(
    lines=st.lists(
        st.binary(max_size=40).filter(lambda b: b"\n" not in b and b.strip()), max_size=30
    ),
    cuts=st.lists(st.integers(0, 1200), max_size=6),
)
def test_whatever_pieces_a_file_grows_by_each_line_comes_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("tail") / "rank.jsonl"
    whole = b"".join(line + b"\n" for line in lines)
    path.write_bytes(b"")
    place, seen, before = Place(), [], 0
    for cut in [*sorted(min(cut, len(whole)) for cut in cuts), len(whole)]:
        with path.open("ab") as file:
            file.write(whole[before:cut])
        before = cut
        tail = again(path, place)
        seen += tail.lines()
        place = tail.place
    assert seen == lines


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\ntw")
    tail = Tail(str(path))
    assert tail.lines() == [b"one"]
    assert tail.lines() == []
    with path.open("ab") as file:
        file.write(b"o\n")
    assert again(path, tail.place).lines() == [b"two"]


def test_a_small_chunk_says_that_there_is_more(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"".join(b"%05d\n" % n for n in range(100)))
    tail = Tail(str(path))
    first = tail.lines(60)
    assert (len(first), tail.more) == (10, True)
    while tail.more:
        first += tail.lines(60)
    assert first == [b"%05d" % n for n in range(100)]


@pytest.mark.parametrize("new", [b"other words\nthat are new\n", b"x\n"])
def test_a_file_that_is_another_one_is_read_from_its_beginning(tmp_path: Path, new: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\ntwo\nthree\n")
    tail = Tail(str(path))
    tail.lines()
    path.write_bytes(new)
    later = again(path, tail.place)
    assert later.lines() == new.split()[:0] + new.rstrip(b"\n").split(b"\n")
    assert later.replaced == 1


def test_a_line_that_is_too_long_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\n" + b"x" * (3 * MAX_LINE_BYTES) + b"\ntwo\n")
    place, seen, too_long = Place(), [], 0
    for _ in range(8):
        tail = again(path, place)
        seen += tail.lines(MAX_LINE_BYTES + 1)
        too_long += tail.too_long
        place = tail.place
    assert seen == [b"one", b"two"]
    assert too_long == 1


def test_a_link_or_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "f")
    for name in ("link", "."):
        with pytest.raises(OSError, match="symbolic link|regular file|directory"):
            Tail(str(tmp_path / name)).lines()
