"""What ``init`` and ``doctor`` say of each kind of mount, compared with what they should say.

Not here: work on such mounts. Invariant: a mount on which the protocol holds is made a spool on,
and one on which it does not is refused before a task can be enqueued.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.crash.mounts.fleet_work import Fleet, last_sentence
from tests.crash.mounts.mounting import mounted
from tests.crash.mounts.rules import Rule


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A property of a mount, and what has to be said of it.

    Attributes:
        init: The exit code of ``init``.
        says: Words that ``init`` must say.
        doctor: Findings of the scratch tree that are not ``ok``, with their verdicts; None where
            nothing is asked of the doctor.
    """

    name: str
    rules: tuple[Rule, ...]
    init: int
    says: str = ""
    doctor: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """What was said."""

    kind: Kind
    init: int
    said: str
    doctor: dict[str, str]

    @property
    def fault(self) -> str:
        """What was said wrongly; empty when all is right."""
        if self.init != self.kind.init:
            return f"init left with {self.init}: {self.said}"
        if self.kind.says not in self.said:
            return f"init said: {self.said}"
        if self.kind.doctor is not None and self.doctor != self.kind.doctor:
            return f"doctor said {self.doctor}"
        return ""


def _fail(code: str, *operations: str, **more: object) -> Rule:
    return Rule(name=code, do="fail", on=operations, code=code, **more)  # type: ignore[arg-type]


KINDS: tuple[Kind, ...] = (
    Kind(name="nothing amiss", rules=(), init=0, doctor={}),
    Kind(name="no flags of rename (EINVAL)", rules=(_fail("EINVAL", "rename2"),), init=0,
         doctor={}),
    Kind(name="no hard links (EPERM)", rules=(_fail("EPERM", "link"),), init=0,
         says="no hard links; identities are kept as folders", doctor={"hard links": "advice"}),
    Kind(name="no hard links (EOPNOTSUPP)", rules=(_fail("EOPNOTSUPP", "link"),), init=0,
         says="no hard links; identities are kept as folders", doctor={"hard links": "advice"}),
    Kind(name="a link answers EIO once, though it was made",
         rules=(Rule(name="lie", do="lie", on=("link",), code="EIO", most=1),), init=0),
    Kind(name="a link answers EIO", rules=(_fail("EIO", "link"),), init=5,
         says="cannot hold a spool"),
    Kind(name="a quota boundary between folders (EXDEV)",
         rules=(_fail("EXDEV", "rename", "rename2", across=True),), init=5,
         says="cannot hold a spool: moving a file"),
    Kind(name="every other rename lies (ENOENT)",
         rules=(Rule(name="lie", do="lie", on=("rename", "rename2"), code="ENOENT", every=2),),
         init=0),
    Kind(name="own changes listed 600 s late",
         rules=(Rule(name="late", do="stale", on=("readdir",), for_s=600.0, own=True),), init=0,
         doctor={"listing": "wrong"}),
    Kind(name="no locks (ENOLCK)", rules=(_fail("ENOLCK", "flock"),), init=0,
         doctor={"flock": "advice"}),
    Kind(name="no bytes left (EDQUOT)", rules=(Rule(name="full", do="quota", most_bytes=0),),
         init=5, says="Disk quota exceeded"),
    Kind(name="stale (ESTALE)", rules=(_fail("ESTALE", "*"),), init=5, says="Stale file handle"),
)  # fmt: skip


def greet(kind: Kind, base: Path) -> Greeting:
    """Asks both on such a mount."""
    notes = Path(tempfile.mkdtemp(dir=base, prefix="notes-"))
    with mounted(base, *kind.rules) as mount:
        fleet = Fleet([mount.folder / "tree"], notes, seed=0)
        code, out, err = fleet.say(0, "init")
        doctor: dict[str, str] = {}
        if kind.doctor is not None:
            _, told, _ = fleet.say(0, "doctor", "--quick", "--json")
            doctor = {
                finding["name"]: finding["verdict"]
                for finding in json.loads(told)["findings"]
                if finding["section"] == "scratch" and finding["verdict"] != "ok"
            }
        mount.give()
    said = last_sentence(err) if code else " ".join(out.split())
    return Greeting(kind=kind, init=code, said=said, doctor=doctor)
