"""ABORT: asked for once, read by all, cleared under a dated name."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleetcraft.errors import SpoolError
from fleetcraft.rollouts.abort import abort_stands, ask_abort, clear_abort, read_abort
from tests.rollouts.producing import LIES, DisturbedFS, queue_in, with_fs


def test_the_first_request_stands_and_says_who_asked_and_why(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    assert not abort_stands(queue)
    first = ask_abort(queue, "reward model is wrong")
    second = ask_abort(queue, "something else", requester="me")
    assert (first.new, second.new) == (True, False)
    assert second.request == first.request == read_abort(queue)
    assert f"process {os.getpid()}" in first.request.requester
    assert abort_stands(queue)


def test_of_many_that_ask_at_once_one_is_first_and_all_see_it(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        asked = list(pool.map(lambda n: ask_abort(queue, f"reason {n}"), range(8)))
    assert sum(one.new for one in asked) == 1
    assert len({one.request.nonce for one in asked}) == 1


def test_clearing_keeps_what_was_asked_under_a_dated_name(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    asked = ask_abort(queue, "why").request
    cleared = clear_abort(queue)
    assert cleared is not None
    request, path = cleared
    assert request == asked
    assert Path(path).name.startswith("ABORT.cleared.2")
    assert not abort_stands(queue)
    assert clear_abort(queue) is None
    ask_abort(queue, "again")
    assert clear_abort(queue) is not None
    assert len(os.listdir(queue.paths.control)) == 2


def test_a_marker_that_cannot_be_understood_stands_all_the_same(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    Path(queue.paths.abort_marker).write_bytes(b"\x00")
    assert abort_stands(queue)
    request = read_abort(queue)
    assert request is not None
    assert "cannot be understood" in request.reason
    assert not ask_abort(queue, "mine").new


@pytest.mark.parametrize("code", LIES)
def test_a_rename_that_lies_about_its_success_clears_all_the_same(
    tmp_path: Path, code: int
) -> None:
    queue = queue_in(tmp_path)
    ask_abort(queue, "why")
    assert clear_abort(with_fs(queue, DisturbedFS(1, "lie", code))) is not None
    assert not abort_stands(queue)


def test_what_cannot_be_written_or_read_is_not_said_to_stand_or_not(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    with pytest.raises(SpoolError, match="cannot ask for ABORT"):
        ask_abort(with_fs(queue, DisturbedFS(1, "from", errno.ENOSPC)), "why")
    with pytest.raises(OSError, match="Input/output"):
        abort_stands(with_fs(queue, DisturbedFS(1, errno.EIO)))
    ask_abort(queue, "why")
    with pytest.raises(SpoolError, match="cannot clear ABORT"):
        clear_abort(with_fs(queue, DisturbedFS(1, errno.EACCES)))
    assert abort_stands(queue)
