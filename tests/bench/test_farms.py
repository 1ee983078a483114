"""The comparison of farms works with what is on PATH: the floor, xargs and fleetcraft itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
FARMS = REPO / "tests/bench/farms.py"


def test_one_command_measures_the_farms_on_path_and_writes_the_page(tmp_path: Path) -> None:
    page = tmp_path / "farms.md"
    argv = [
        sys.executable, str(FARMS), "--quick", "--only", "floor", "xargs", "fleetcraft",
        "--dir", str(tmp_path), "--out", str(page), "--tools", str(tmp_path / "tools"),
    ]  # fmt: skip

    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)

    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "## Not measured" not in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| fleetcraft |")]
    _, speed, start, worker, head = rows  # the first is that of the page's head
    assert float(speed[2]) > 0  # tasks a second
    assert float(speed[4]) > 1.0  # times the floor's CPU
    assert all(cell.rstrip(" |").endswith("s") for cell in start[1:])
    # Whoever is killed, every task is done, and who resumes types the same command again.
    assert worker[1:4] == ["worker", "0", "0"]
    assert (head[1], head[3]) == ("server or driver", "0")
    assert "run the same command again" in head[-1]
    assert not list(tmp_path.glob("fleetcraft-farms-*"))


def test_a_farm_that_cannot_be_had_is_named_with_its_reason(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from tests.bench.farms import plain\n"
        "from tests.bench.farms.peer import Missing, Tools\n"
        "try:\n"
        "    plain.parallel(Tools(folder=Path(sys.argv[2])))\n"
        "except Missing as error:\n"
        "    print(error)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(REPO), str(tmp_path)],
        env=os.environ | {"PATH": str(empty)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout.strip() == "no parallel on PATH, and no apt-get to fetch it with"
