"""The corpus: every seeded crash is classified, and nothing stale, passed or quoted counts."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from fleetcraft.training.diagnosing.classify import diagnose_logs
from fleetcraft.training.diagnosing.fences import make_fence
from tests.training.diagnosing.corpus import Transcript, transcripts

_CORPUS = tuple(transcripts())
_FORMS: dict[str, list[Transcript]] = defaultdict(list)
for one in _CORPUS:
    _FORMS[one.name.split(":", 1)[0]].append(one)


def test_the_corpus_is_large_and_has_every_class() -> None:
    assert len(_CORPUS) >= 200
    assert len({one.crash for one in _CORPUS}) == 17
    assert sum(not one.open for one in _CORPUS) >= 60


@pytest.mark.parametrize("form", _FORMS)
def test_a_transcript_has_its_class_and_is_open_or_not(form: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    wrong = []
    for transcript in _FORMS[form]:
        log.write_bytes(transcript.data[: transcript.fence])
        fences = (make_fence(log),)
        log.write_bytes(transcript.data)
        found = diagnose_logs([log], fences=fences)
        if (found.crash, found.episode_open) != (transcript.crash, transcript.open):
            wrong.append((transcript.name, found.crash, found.episode_open, found.evidence[:1]))
    assert wrong == []
