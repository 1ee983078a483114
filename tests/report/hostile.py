"""A scratch tree in which everything that a stranger could name or print is an attack."""

from __future__ import annotations

import time
from pathlib import Path

from fleetcraft.layout import Scratch, State
from fleetcraft.spool.record import Outcome
from tests.report.fleets import ended, spool_of
from tests.telemetry.trees import lines, write_file

SCRIPT = "<script>document.title='taken'</script>"
IMAGE = "<img src=x onerror=document.title='taken'>"
FETCH = "<link rel=stylesheet href=http://example.org/a.css><iframe src=http://example.org>"
ESCAPE = "\x1b]0;taken\x07\x1b[2J"
BIDI = "\u202egnp.exe\u2066\u200b\ufeff"
TEMPLATE = "{{ 7 * 7 }}{% raw %}"
CLOSING = "</pre></details></style></title>-->]]>"
ALL = SCRIPT + IMAGE + FETCH + ESCAPE + BIDI + TEMPLATE + CLOSING


def hostile_fleet(root: Path) -> None:
    """Names, families, hosts, reasons, logs, markers and telemetry, all of them hostile."""
    root.mkdir(mode=0o700, exist_ok=True)
    spool = spool_of(root)
    now_s = time.time()
    family = "<b>bold</b>\"'onload=alert(1)"
    host = f"{SCRIPT}{ESCAPE}"
    for number in range(3):
        line = ended(
            f"t{number}",
            now_s - number,
            outcome=Outcome.FAILED,
            exit_code=1,
            host=host,
            reason=ALL if number else "",
        )
        log = (ALL + "\nError: " + ALL + "\n").encode() + b"\xff\xfe\x80\n"
        spool.task(f"t{number}", State.FAILED, [line], family=family, log=log)
    fine = ended("ok", now_s, host=BIDI + ALL)
    path = spool.task("ok", State.DONE, [fine], family=family, log=ALL)
    for name in ("<img src=x onerror=alert(1)>", "javascript:alert(1)", BIDI + ESCAPE, "\udcff"):
        strange = path.with_name(f"{name}.sh")
        strange.write_bytes(path.read_bytes())
        strange.chmod(0o700)
    tree = Scratch(str(root))
    (Path(tree.outer) / "STOP").write_text(ALL)
    folder = Path(tree.telemetry)
    write_file(folder, "<svg onload=alert(1)>", lines(now_s - 900, 25, status=f"bad{SCRIPT}"))
    write_file(folder, "n2", [*lines(now_s - 900, 25), f"{ALL}\n"])
    (folder / f"{IMAGE[:40]}_job7_20270115T070000Z.csv").mkdir()
