"""The kinds of trouble that the fleet is put through on a FUSE mount, each as a set of rules.

Not here: how rules act (`passthrough`) and what is done on the mount (`fleet_work`). Invariant:
each one names what it stands for on real file systems.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.crash.mounts.rules import Rule


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """One row of the table.

    Attributes:
        name: A few words.
        means: What it stands for.
        rules: What the mount does.
        always: Also while the tree is made, and to the end: a property of the mount and not an
            accident that passes.
        clients: Mounts over one backing folder, as many hosts have one server.
        least: How often its rules must have fired for the row to count.
    """

    name: str
    means: str
    rules: tuple[Rule, ...]
    always: bool = False
    clients: int = 1
    least: int = 5


def _lie(code: str, *operations: str, share: float = 0.04) -> Rule:
    return Rule(name=f"lie {code}", do="lie", on=operations, code=code, share=share)


def _fail(code: str, *operations: str, share: float = 0.02) -> Rule:
    return Rule(name=f"fail {code}", do="fail", on=operations, code=code, share=share)


_RENAMES = ("rename", "rename2")
_NO_FLAGS = Rule(name="no flags", do="fail", on=("rename2",), code="EINVAL")
_NO_LINKS = Rule(name="no links", do="fail", on=("link",), code="EPERM")

TROUBLES: tuple[Trouble, ...] = (
    Trouble(name="none", means="the passthrough itself, for comparison", rules=(), least=0),
    Trouble(
        name="late",
        means="a busy server: each change waits up to 40 ms, some looks too",
        rules=(
            Rule(name="late change", do="delay", on=("changes",), jitter_s=0.04),
            Rule(name="late answer", do="late", on=("getattr", "open"), jitter_s=0.05, share=0.05),
        ),
    ),
    Trouble(
        name="renames that lie, ENOENT",
        means="NFS: a rename that is sent again after its answer was lost",
        rules=(_lie("ENOENT", *_RENAMES),),
    ),
    Trouble(
        name="changes that lie, EIO",
        means="a server that fails after it has done it",
        rules=(_lie("EIO", *_RENAMES, "link", "unlink", "mkdir", "create", "write"),),
    ),
    Trouble(
        name="links and creates that lie, EEXIST",
        means="NFS: a link or an exclusive create that is sent again",
        rules=(_lie("EEXIST", "link", "create", "mkdir"),),
    ),
    Trouble(
        name="changes that fail, EIO",
        means="a server or disk with errors",
        rules=(_fail("EIO", "changes"),),
    ),
    Trouble(
        name="looks that fail, EIO",
        means="a server that cannot read, now and then",
        rules=(
            _fail("EIO", "readdir", "open", "read"),
            Rule(name="no facts", do="fail", on=("getattr",), code="EIO", share=0.002),
        ),
    ),
    Trouble(
        name="no space, now and then",
        means="a disk at its limit: ENOSPC of creates and writes",
        rules=(_fail("ENOSPC", "create", "write", "mkdir", share=0.03),),
    ),
    Trouble(
        name="quota",
        means="EDQUOT of every byte above a limit, with short writes, in half of the time",
        rules=(),
    ),
    Trouble(
        name="server reboots, ESTALE",
        means="everything is stale for 1.2 s of every 4 s",
        rules=(
            Rule(name="reboot", do="fail", on=("*",), code="ESTALE", period_s=4.0, on_s=1.2),
        ),
    ),
    Trouble(
        name="stale listings and facts",
        means="NFS: two clients, each sees the other's changes up to 2 s late",
        rules=(Rule(name="stale", do="stale", on=("readdir", "getattr"), for_s=2.0),),
        always=True, clients=2,
    ),
    Trouble(
        name="no flags of rename",
        means="NFS and many FUSE mounts: RENAME_NOREPLACE answers EINVAL",
        rules=(_NO_FLAGS,),
        always=True,
    ),
    Trouble(
        name="no hard links",
        means="some FUSE, SMB and object mounts: link answers EPERM",
        rules=(_NO_LINKS,),
        always=True,
    ),
    Trouble(
        name="neither, and two clients",
        means="no flags, no hard links, listings 1 s late, renames that lie",
        rules=(
            _NO_FLAGS, _NO_LINKS,
            Rule(name="stale", do="stale", on=("readdir", "getattr"), for_s=1.0),
            Rule(name="lie ENOENT", do="lie", on=("rename",), code="ENOENT", share=0.03,
                 paths=("*/taskq/*",)),
        ),
        always=True, clients=2,
    ),
    Trouble(
        name="hangs",
        means="a server that answers no change for 3 s, twice",
        rules=(), least=2,
    ),
)  # fmt: skip
BY_NAME = {trouble.name: trouble for trouble in TROUBLES}
QUOTA = Rule(name="quota", do="quota")
HANG = Rule(name="hang", do="hang", on=("changes",))
