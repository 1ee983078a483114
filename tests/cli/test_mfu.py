"""``fleetcraft mfu`` as people and programs call it."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Fleet


def words_of(text: str) -> list[str]:
    return text.split()


ROLLOUT = words_of("--params 1.3e9 --layers 30 --hidden 1536 --seq 32760 --forwards 100")
SECONDS = ["--seconds", "34.318398"]


def test_the_share_is_told_with_peak_source_and_assumptions(fleet: Fleet) -> None:
    value = fleet("mfu", "--device", "GB200", *ROLLOUT, *SECONDS, "--json").json
    assert value["schema"] == "fleetcraft.mfu/1"
    assert value["mfu_fraction"] == pytest.approx(0.330, abs=5e-4)
    assert value["peak_flop_per_s"] == 2.5e15
    assert "NVIDIA" in value["peak_source"]
    assert value["assumptions"]


def test_an_unknown_device_gives_no_number_and_says_so(fleet: Fleet) -> None:
    called = fleet("mfu", "--device", "H100", *ROLLOUT, *SECONDS, "--json")
    assert called.code == 1
    assert called.json["mfu_fraction"] is None
    assert called.json["peak_flop_per_s"] is None
    assert called.json["near"] == ["H100 SXM", "H100 PCIe", "H100 NVL"]
    text = fleet("mfu", "--device", "H100", *ROLLOUT, *SECONDS)
    assert "no number" in text.out
    assert "H100 PCIe" in text.out


def test_numbers_beyond_all_counting_are_refused(fleet: Fleet) -> None:
    huge = ["--params", "1e300", "--tokens", "1e300", "--forwards", "1", "--seconds", "1"]
    called = fleet("mfu", "--device", "GB200", *huge, "--json")
    assert called.code == 2
    assert "nothing was estimated" in called.error["message"]


def test_a_peak_may_be_given_on_the_callers_word(fleet: Fleet) -> None:
    value = fleet("mfu", "--peak", "1e15", *ROLLOUT, *SECONDS, "--json").json
    assert value["peak_source"] == "given by --peak"
    assert value["part"] is None
    assert value["mfu_fraction"] == pytest.approx(0.8246, abs=1e-4)


def test_more_than_the_peak_is_told_to_be_impossible(fleet: Fleet) -> None:
    called = fleet("mfu", "--device", "A100", *ROLLOUT, *SECONDS)
    assert called.code == 0
    assert "cannot be" in called.out


def test_training_on_several_gpus_is_reckoned_with_both(fleet: Fleet) -> None:
    words = words_of("--device A100 --params 1e9 --tokens 1e6 --forwards 10 --seconds 60")
    one = fleet("mfu", *words, "--json").json["mfu_fraction"]
    trained = fleet("mfu", *words, "--training", "--gpus", "3", "--json").json["mfu_fraction"]
    assert trained == pytest.approx(one)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "B200"], "--params, --forwards, --seconds, --seq are missing"),
        (words_of("--device B200 --params 0 --seq 1 --forwards 1 --seconds 1"), "above 0"),
        (words_of("--device B200 --params x --seq 1 --forwards 1 --seconds 1"), "no number"),
        (words_of("--device B200 --params 1 --tokens 1 --forwards 1 --seconds 1 --layers 2"),
         "--hidden, --seq are missing"),
    ],
)  # fmt: skip
def test_words_that_are_missing_or_wrong_are_named(
    fleet: Fleet, words: list[str], said: str
) -> None:
    called = fleet("mfu", *words)
    assert called.code == 2
    assert said in called.err


def test_the_known_parts_are_listed_with_their_sources(fleet: Fleet) -> None:
    value = fleet("mfu", "--devices", "--json").json
    names = {part["name"] for part in value["devices"]}
    assert {"A100", "H100 SXM", "GH200", "B200", "GB200 NVL72"} <= names
    assert "datasheet" in fleet("mfu", "--devices").out


@pytest.mark.parametrize(
    "more",
    ["--seq 1e200 --layers 1 --hidden 1 --seconds 1", "--seq 10 --seconds 1e300",
     f"--seq 10 --seconds 1 --gpus 1{'0' * 400}"],
    ids=["seq", "seconds", "gpus"],
)  # fmt: skip
def test_numbers_that_no_float_holds_are_usage_and_no_unknown_device(
    fleet: Fleet, more: str
) -> None:
    called = fleet("mfu", *words_of(f"--device GB200 --params 1 --forwards 1 {more}"))
    assert called.code == 2
    assert "no peak is known" not in called.out + called.err
