"""Crash episodes: what opens one, what closes it, and which of its lines names the class."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.training.diagnosing.episode import Episode, Episodes
from fleetcraft.training.diagnosing.hits import Hit
from fleetcraft.training.diagnosing.scan import LogScan
from fleetcraft.training.records import Crash, Role
from tests.training.diagnosing.corpus import elastic, steps, traceback
from tests.training.diagnosing.crashes import GLOO_CLOSED, OOM_SEED


def _hit(
    crash: Crash = Crash.CUDA_OOM, role: Role = Role.ROOT, step: int | None = None, **more: object
) -> Hit:
    return Hit(crash=crash, role=role, path="a.log", byte=0, line=1, text="", step=step, **more)  # type: ignore[arg-type]


def test_only_a_step_above_the_one_at_the_line_closes_an_episode() -> None:
    episodes = Episodes()
    episodes.feed([_hit()], 703)
    episodes.feed([], 702)
    episodes.feed([], 703)
    assert episodes.open is not None
    episodes.feed([], 704)
    assert (episodes.open, episodes.closed) == (None, 1)
    assert episodes.last_closed is not None


def test_no_step_and_no_time_close_nothing() -> None:
    episodes = Episodes()
    for _ in range(100):
        episodes.feed([], None)
    episodes.feed([_hit(step=703)], None)
    for _ in range(100):
        episodes.feed([], None)
    assert episodes.open is not None


def test_the_first_reported_step_after_a_line_is_no_progress_yet() -> None:
    episodes = Episodes()
    episodes.feed([_hit()], None)
    episodes.feed([], 5)
    assert episodes.open is not None
    episodes.feed([], 6)
    assert episodes.open is None


def test_new_lines_in_the_look_in_which_an_old_crash_was_passed_are_a_new_episode() -> None:
    episodes = Episodes()
    episodes.feed([_hit(Crash.CUDA_OOM)], 10)
    episodes.feed([_hit(Crash.DISK_FULL)], 50)
    assert episodes.open is not None
    assert episodes.open.deciding.crash is Crash.DISK_FULL
    assert episodes.closed == 1


def test_a_peer_that_completes_the_step_in_flight_does_not_hide_the_cause() -> None:
    episodes = Episodes()
    episodes.feed([_hit(Crash.CODE_ERROR)], 10)
    episodes.feed([], 11)
    episodes.feed([_hit(Crash.DIST_NETWORK, Role.CASCADE)], 11)
    assert episodes.open is not None
    assert episodes.open.deciding.crash is Crash.CODE_ERROR
    far = Episodes()
    far.feed([_hit(Crash.CODE_ERROR)], 10)
    far.feed([], 500)
    far.feed([_hit(Crash.DIST_NETWORK, Role.CASCADE)], 500)
    assert far.open is not None
    assert far.open.deciding.crash is Crash.DIST_NETWORK


def test_a_log_that_prints_every_tenth_step_keeps_its_cause_too(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "step 690\nstep 700\n" + traceback(OOM_SEED, "[rank1]: ") + "step 710\n"
        + traceback(GLOO_CLOSED, "[rank0]: ") + elastic(1)
    )  # fmt: skip
    episodes = Episodes()
    with LogScan(log) as scan:
        episodes.feed(scan.look(), None, (scan,))
    assert episodes.open is not None
    assert episodes.open.deciding.crash is Crash.CUDA_OOM


def test_clearing_up_alone_is_no_crash() -> None:
    episodes = Episodes()
    episodes.feed([_hit(Crash.CANCELLED, Role.TEARDOWN)], 3)
    assert episodes.open is None


def test_a_cause_outweighs_what_follows_from_it_whichever_comes_first() -> None:
    cascade = _hit(Crash.NCCL_WATCHDOG, Role.CASCADE)
    for hits in ((cascade, _hit()), (_hit(), cascade)):
        assert Episode(hits=hits).deciding.crash is Crash.CUDA_OOM


def test_without_a_cause_the_earliest_link_of_the_chain_decides() -> None:
    chain = [Crash.CHILD_FAILED, Crash.DIST_NETWORK, Crash.NCCL_WATCHDOG]
    episode = Episode(hits=tuple(_hit(crash, Role.CASCADE) for crash in chain))
    assert episode.deciding.crash is Crash.NCCL_WATCHDOG
    assert Episode(hits=episode.hits[:1]).deciding.crash is Crash.CHILD_FAILED


def test_an_error_raised_while_another_was_handled_counts_when_it_says_more() -> None:
    first = _hit(Crash.CODE_ERROR, rank=1)
    assert Episode(hits=(first, _hit(chained=True, rank=1))).deciding.crash is Crash.CUDA_OOM
    assert Episode(hits=(first, _hit(rank=1))).deciding.crash is Crash.CODE_ERROR
    assert Episode(hits=(first, _hit(chained=True, rank=2))).deciding.crash is Crash.CODE_ERROR


def test_logs_of_several_ranks_are_one_crash_and_the_earliest_cause_is_the_root(
    tmp_path: Path,
) -> None:
    texts = {
        "rank0.log": "2026-03-01 12:00:09,000 ERROR t: CUDA out of memory. Tried to allocate 2 GiB",
        "rank1.log": "2026-03-01 12:00:05,000 ERROR t: OSError: [Errno 28] No space left on device",
    }
    episodes, scans = Episodes(), []
    for name, text in texts.items():
        (tmp_path / name).write_text(steps(1, 5) + text + "\n")
        scans.append(LogScan(tmp_path / name))
    for scan in scans:
        episodes.feed(scan.look(), None, scans)
    for scan in scans:
        scan.close()
    assert episodes.open is not None
    assert episodes.open.deciding.crash is Crash.DISK_FULL
    assert len(episodes.open.hits) == 2


def test_of_very_many_lines_the_first_and_the_last_are_kept() -> None:
    episodes = Episodes()
    for n in range(1000):
        episodes.feed([_hit(step=n, at=str(n))], 7)
    assert episodes.open is not None
    assert (len(episodes.open.hits), episodes.open.left_out) == (32, 968)
    assert [episodes.open.hits[0].at, episodes.open.hits[-1].at] == ["0", "999"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=40))
def test_an_episode_is_open_exactly_while_no_later_step_was_above_its_lines(
    looks: list[tuple[bool, int]],
) -> None:
    episodes, base = Episodes(), None
    for crashed, step in looks:
        if base is not None and step > base:
            base = None
        if crashed:
            base = step
        episodes.feed([_hit()] if crashed else [], step)
        assert (episodes.open is not None) == (base is not None)
