"""What is fed to readers: true documents, the same ones damaged, and noise.

Damage is what disks, editors, other programs and other people do: bytes flipped, cut, doubled,
fields swapped, numbers out of range, other encodings, NULs, other line ends, byte order marks,
lines without end. Not here: which documents; the targets bring samples or record types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import msgspec
from hypothesis import strategies as st

ODD_PIECES = (
    b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n\n", b"\x1b[31m",
    b"\xe2\x80\xa8", b"\xc2\x85", b"\x1c", b"\x0b\x0c", "\u0661\u0662".encode(), "\u00b2".encode(),
    "\uff11".encode(), b"9" * 25, b"9" * 5000, b"-1", b"-0", b"1e999", b"NaN", b"Infinity", b"nan",
    b"0x10", b"1_0", b" ", b"\t", b'"', b"'", b"\\", b"\\u0000", b"\\ud800", b"{}", b"[]", b"null",
    b"true", b":", b"=", b",", b"|", b"..", b"/../", b"%", b"*", b"&a", b"*a",
    b"!!python/name:os.x",
    b"[" * 50_000, b"x" * 70_000,
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**400, -(10**30), 0.5, -0.0,
    1e308, 5e-324, "", " ", "\0", "x" * 5000, "\u0661", "\u2028", "9" * 5000, "NaN", "-1", "1e999",
    "../../x", "/", ".", [], {}, [[]], [None], {"": None}, {"a": {"a": {}}},
)  # fmt: skip
_KINDS, _PLACES = 16, 1 << 16
_ACCIDENT = st.integers(0, (1 << 32) - 1)
"""One accident in one number, its kind, place and detail: a draw for each of them costs hypothesis
more than most readers take for the whole document."""


def damaged(base: st.SearchStrategy[bytes], most: int = 4) -> st.SearchStrategy[bytes]:
    """Bytes of the base with a few accidents."""
    return st.builds(_damage, base, st.lists(_ACCIDENT, max_size=most))


def _damage(data: bytes, accidents: list[int]) -> bytes:
    for accident in accidents:
        kind, rest = accident % _KINDS, accident // _KINDS
        place, detail = rest % _PLACES, rest // _PLACES
        data = _ACCIDENTS[kind % len(_ACCIDENTS)](data, place * len(data) // _PLACES, detail)
    return data


def _flip(data: bytes, at: int, detail: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << detail % 8]) + data[at + 1 :] if data else data


def _cut(data: bytes, at: int, detail: int) -> bytes:
    return data[:at]


def _remove(data: bytes, at: int, detail: int) -> bytes:
    return data[:at] + data[at + 1 + detail % 9 :]


def _insert(data: bytes, at: int, detail: int) -> bytes:
    return data[:at] + ODD_PIECES[detail % len(ODD_PIECES)] + data[at:]


def _replace_word(data: bytes, at: int, detail: int) -> bytes:
    """Another value where one stands: between two marks of punctuation."""
    begin, end = at, at
    while begin > 0 and data[begin - 1] not in _MARKS:
        begin -= 1
    while end < len(data) and data[end] not in _MARKS:
        end += 1
    return data[:begin] + ODD_PIECES[detail % len(ODD_PIECES)] + data[end:]


_MARKS = b" \t\n,:=|\"'()[]{}<>\x1f\x1e"


def _double_line(data: bytes, at: int, detail: int) -> bytes:
    line = data.rfind(b"\n", 0, at) + 1
    end = data.find(b"\n", at) + 1 or len(data)
    return data[:end] + data[line:end] + data[end:]


def _drop_line(data: bytes, at: int, detail: int) -> bytes:
    line = data.rfind(b"\n", 0, at) + 1
    return data[:line] + data[data.find(b"\n", at) + 1 or len(data) :]


def _swap_lines(data: bytes, at: int, detail: int) -> bytes:
    return _swapped(data, b"\n", at, detail)


def _swap_fields(data: bytes, at: int, detail: int) -> bytes:
    return _swapped(data, (b",", b"|", b" ", b":", b"\x1f", b".")[detail % 6], at, detail // 6)


def _swapped(data: bytes, mark: bytes, at: int, detail: int) -> bytes:
    parts = data.split(mark)
    one, other = at % len(parts), (at + 1 + detail) % len(parts)
    parts[one], parts[other] = parts[other], parts[one]
    return mark.join(parts)


def _other_line_ends(data: bytes, at: int, detail: int) -> bytes:
    return data.replace(b"\n", (b"\r\n", b"\r", b"\n\n", b"", b"\x00\n")[detail % 5])


def _other_encoding(data: bytes, at: int, detail: int) -> bytes:
    codec = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7")[detail % 5]
    return data.decode("utf-8", "replace").encode(codec, "replace")


def _twice(data: bytes, at: int, detail: int) -> bytes:
    return data + (b"", b"\n", b"\0")[detail % 3] + data


_ACCIDENTS: tuple[Callable[[bytes, int, int], bytes], ...] = (
    _flip, _cut, _remove, _insert, _insert, _replace_word, _replace_word, _replace_word,
    _double_line, _drop_line, _swap_lines, _swap_fields, _other_line_ends, _other_encoding, _twice,
    _flip,
)  # fmt: skip


def noise(max_size: int = 200) -> st.SearchStrategy[bytes]:
    """Bytes that resemble nothing, and pieces of which trouble is known."""
    return st.one_of(
        st.binary(max_size=max_size),
        st.lists(st.sampled_from(ODD_PIECES), max_size=4).map(b"".join),
    )


def documents(*samples: bytes | str, most: int = 4) -> st.SearchStrategy[bytes]:
    """Samples, mostly damaged, and sometimes noise."""
    raw = [one.encode() if isinstance(one, str) else one for one in samples]
    base = damaged(st.sampled_from(raw), most)
    return st.one_of(base, base, base, base, noise())


def mixed(*bases: st.SearchStrategy[bytes], most: int = 4) -> st.SearchStrategy[bytes]:
    """Drawn documents, mostly damaged, and sometimes noise."""
    base = damaged(st.one_of(*bases), most)
    return st.one_of(base, base, base, base, noise())


def as_text(source: st.SearchStrategy[bytes]) -> st.SearchStrategy[str]:
    """The same as text: what is no UTF-8 becomes surrogates, as in file names and arguments."""
    return source.map(lambda data: data.decode("utf-8", "surrogateescape"))


def plain_text(source: st.SearchStrategy[bytes]) -> st.SearchStrategy[str]:
    """The same as text that can be encoded, as a reader has it that replaces what is no UTF-8."""
    return source.map(lambda data: data.decode("utf-8", "replace"))


def texts(*samples: str, most: int = 3) -> st.SearchStrategy[str]:
    """Short texts: samples, damaged ones and noise."""
    return as_text(documents(*samples, most=most))


# ------------------------------------------------------------------------------- records as JSON


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as msgspec knows it, which its decoder accepts."""
    return _of_info(msgspec.inspect.type_info(kind))


_TEXT = st.one_of(
    st.sampled_from(["", "a", "c1", "8812", "run-7", "0" * 64, "2026-11-29T20:33:05.123Z", "a/b",
                     "\u00e9\u4e2d", "\u2028", "<b>", "\x1b[1m", "%s {0}", "../x", "a" * 300]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)  # fmt: skip
_WHOLE = st.one_of(
    st.integers(-3, 12), st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, -(2**63), 10**6])
)
_REAL = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 0.5, 1e-300, 1e300, 30.0]),
)


def _of_info(info: Any) -> st.SearchStrategy[Any]:  # noqa: PLR0912 - a table of types
    mi = msgspec.inspect
    match info:
        case mi.StructType() | mi.DataclassType():
            return _of_struct(info)
        case mi.StrType():
            return _TEXT
        case mi.BoolType():
            return st.booleans()
        case mi.IntType():
            return _WHOLE
        case mi.FloatType():
            return _REAL
        case mi.NoneType():
            return st.none()
        case mi.UnionType():
            return st.one_of(*(_of_info(one) for one in info.types))
        case mi.LiteralType():
            return st.sampled_from(info.values)
        case mi.EnumType():
            return st.sampled_from(list(info.cls))
        case mi.VarTupleType():
            return st.lists(_of_info(info.item_type), max_size=3).map(tuple)
        case mi.TupleType():
            return st.tuples(*(_of_info(one) for one in info.item_types))
        case mi.ListType():
            return st.lists(_of_info(info.item_type), max_size=3)
        case mi.FrozenSetType() | mi.SetType():
            made = frozenset if isinstance(info, mi.FrozenSetType) else set
            return st.lists(_of_info(info.item_type), max_size=3).map(made)
        case mi.DictType():
            return st.dictionaries(_of_info(info.key_type), _of_info(info.value_type), max_size=3)
        case mi.AnyType() | mi.RawType():
            return st.one_of(st.none(), _TEXT, _WHOLE, st.lists(_WHOLE, max_size=2))
        case _:
            raise TypeError(f"no strategy for {info}")


def _of_struct(info: Any) -> st.SearchStrategy[Any]:
    @st.composite
    def build(draw: st.DrawFn) -> Any:
        given = {}
        for field in info.fields:
            if field.required or draw(st.booleans()):
                given[field.name] = draw(_of_info(field.type))
        return info.cls(**given)

    return build()


def odd_json(base: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """JSON of builtins with some of its values and keys exchanged for odd ones."""

    @st.composite
    def build(draw: st.DrawFn) -> bytes:
        value = msgspec.to_builtins(draw(base))
        for _ in range(draw(st.integers(0, 3))):
            value = _odd_inside(value, draw)
        return _json(value)

    return build()


def _odd_inside(value: Any, draw: st.DrawFn) -> Any:
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value, key=str)))
        kind = draw(st.integers(0, 5))
        if kind == 0:
            return {name: item for name, item in value.items() if name != key}
        if kind == 1:
            return {**value, draw(_TEXT): draw(st.sampled_from(ODD_VALUES))}
        return {**value, key: _odd_inside(value[key], draw)}
    if isinstance(value, list | tuple) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], _odd_inside(value[at], draw), *value[at + 1 :]]
    return draw(st.sampled_from(ODD_VALUES))


def _json(value: Any) -> bytes:
    def default(other: Any) -> Any:
        return other.value if isinstance(other, Enum) else str(other)

    return json.dumps(value, default=default, ensure_ascii=False).encode("utf-8", "replace")


DEEP_JSON = (b"[" * 50_000, b'{"a":' * 50_000, b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}")
"""Deeper than any stack, so that what comes of them does not depend on who calls."""


def json_of(kind: Any, *more: bytes) -> st.SearchStrategy[bytes]:
    """Documents of a record type: true, with odd values, damaged, too deep, and noise."""
    values = values_of(kind)
    true = values.map(msgspec.json.encode)
    odd = odd_json(values)
    return st.one_of(
        true,
        odd,
        odd,
        damaged(true),
        damaged(odd, 2),
        st.sampled_from([*DEEP_JSON, *more]),
        noise(),
    )


_canonical = msgspec.json.Encoder(order="deterministic").encode


def same_json(one: object, other: object) -> bool:
    """Whether two records are the same, a NaN being itself and 0.0 not -0.0."""
    return _canonical(one) == _canonical(other)


def sampled(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    """One of some values."""
    return st.sampled_from(list(values))
