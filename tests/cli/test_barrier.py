"""The barrier verbs: their exit codes are the answer."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Fleet


def test_the_command_says_ready_not_ready_and_unknown(bare_fleet: Fleet, tmp_path: Path) -> None:
    payload = tmp_path / "model.bin"
    payload.write_bytes(b"w" * 3000)
    path = str(tmp_path / "ready.json")
    assert bare_fleet("barrier", "check", path).code == 1
    assert bare_fleet.ok("barrier", "write", path, str(payload), "--json").json["files"] == 1
    assert bare_fleet.ok("barrier", "check", path, "--json").json["ready"] is True
    payload.write_bytes(b"")
    called = bare_fleet("barrier", "check", path)
    assert (called.code, "not ready" in called.out) == (1, True)
