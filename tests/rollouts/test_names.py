"""Every name in a queue reads back as what was written, and no two kinds read each other's.

Not here: what lies under the names.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.layout.rollouts import (
    HalfName,
    Paper,
    RefusedName,
    ReservationName,
    RolloutName,
    RolloutPaths,
    TransactionName,
    fenced_by,
    is_beat_temporary,
    parse_beat,
    parse_commit,
    parse_half,
    parse_ident,
    parse_paper,
    parse_refused_name,
    parse_reservation,
    parse_rollout,
    transaction_of_folder,
)

PACKAGE = Path(__file__).parents[2] / "fleetcraft/rollouts"
PATHS = RolloutPaths("/q")
WORDS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
streams = st.text(WORDS, min_size=1, max_size=64)
numbers = st.integers(0, 10**9)
tokens = st.text("0123456789abcdef", min_size=12, max_size=12)
records = st.builds(RolloutName, numbers, streams, numbers, numbers)
transactions = st.builds(TransactionName, numbers, numbers, tokens)


def base(path: str) -> str:
    return path.rpartition("/")[2]


@given(records, numbers, tokens)
def test_a_record_and_what_it_is_called_on_its_way_read_back(
    name: RolloutName, generation: int, digest: str
) -> None:
    half = base(PATHS.half_published(name, generation, digest + "beyond"))

    assert parse_rollout(str(name)) == name
    assert parse_half(half) == HalfName(name, generation, digest)
    assert parse_ident(base(PATHS.ident_file(*name.place))) == (name.sequence, name.sample)
    assert parse_rollout(half) is None


@given(streams, numbers, numbers, numbers, st.booleans())
def test_a_reservation_reads_back_whether_granted_or_asked(
    stream: str, sequence: int, sample: int, generation: int, asked: bool
) -> None:
    name = ReservationName(stream, sequence, sample, generation, asked)

    assert parse_reservation(base(PATHS.reservation(name))) == name


@given(transactions, numbers, tokens)
def test_a_transaction_reads_back_from_its_folder_and_its_papers(
    name: TransactionName, generation: int, token: str
) -> None:
    folder, text = PATHS.claim_folder(str(name)), str(name)
    fenced = PATHS.fenced_folder(text, generation, token)

    assert transaction_of_folder(base(folder)) == transaction_of_folder(base(fenced)) == name
    assert (fenced_by(folder), fenced_by(fenced)) == (None, generation)
    assert parse_paper(base(PATHS.intent(text))) == (name, Paper.INTENT)
    assert parse_paper(base(PATHS.prepared(text))) == (name, Paper.PREPARED)
    assert parse_paper(base(PATHS.rolled_back(text))) == (name, Paper.ROLLED_BACK)


@given(records, st.sampled_from(["lag", "duplicate_in_batch"]), tokens, tokens)
def test_a_refused_record_reads_back_and_its_reasons_are_none(
    record: RolloutName, refusal: str, token: str, again: str
) -> None:
    name = RefusedName(str(record), refusal, token)

    assert parse_refused_name(str(name)) == name
    assert parse_refused_name(name.reason) is None
    assert parse_refused_name(name.requeued_reason(again)) is None


@given(numbers, streams, tokens)
def test_commits_and_beats_read_back_and_their_temporaries_are_none(
    version: int, stream: str, token: str
) -> None:
    temporary = base(PATHS.beat_temporary(stream, token))

    assert parse_commit(base(PATHS.commit(version))) == version
    assert parse_commit(f"{base(PATHS.commit(version))}.{token}.tmp") is None
    assert parse_beat(base(PATHS.beat(stream))) == stream
    assert parse_beat(temporary) is None
    assert is_beat_temporary(temporary, stream)
    assert not is_beat_temporary(temporary, stream + "x")


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: file.stem)
def test_the_rollouts_spell_no_name_of_a_file(file: Path) -> None:
    code = re.sub(r'"""(.|\n)*?"""', "", file.read_text())
    code = re.sub(r"\{[^{}\n]*\}", "{}", code)

    assert re.findall(r'"[^"\n]*\.(?:json|tmp|asked|reason|cleared)\b[^"\n]*"', code) == []
