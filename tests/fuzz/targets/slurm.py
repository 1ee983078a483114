"""What Slurm's programs print: tables, cells, hostlists, settings; and what polls keep of it.

The samples are answers of real clusters (tests/slurm/answers). Not here: asking a real Slurm.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
from hypothesis import strategies as st

from fleetcraft.errors import SchedulerError
from fleetcraft.fleet.guard.ceilings import _own_cgroup
from fleetcraft.fleet.snapshot.gpus import count_gpus
from fleetcraft.slurm import accounting, commands, nodes, polls, queue, step_ends, tables
from fleetcraft.slurm.allocated import read_gpus
from tests.fuzz import folders
from tests.fuzz.strategies import damaged, documents, json_of, noise, plain_text
from tests.fuzz.target import Target

_ANSWERS = Path(__file__).resolve().parents[2] / "slurm" / "answers"


class Told:
    """Polls that give the same text to every question."""

    def __init__(self, **text_by_kind: str) -> None:
        self._texts = text_by_kind

    def ask(self, kind: str, argv: Sequence[str], **_: Any) -> polls.Answer:
        return polls.Answer(text=self._texts[kind.replace("-", "_")], age_s=0.0, fresh=True)


def _answers(pattern: str) -> list[bytes]:
    # An answer lists a whole cluster; a few of its rows show as much, and are read sooner.
    found = [path.read_bytes() for path in sorted(_ANSWERS.glob(f"*/{pattern}.txt"))]
    user = str(os.geteuid()).encode()
    return [one.replace(b"\x1f1000\x1f", b"\x1f" + user + b"\x1f")[:6000] for one in found]


def _table(pattern: str) -> st.SearchStrategy[str]:
    base = st.sampled_from(_answers(pattern))
    return plain_text(st.one_of(base, damaged(base), damaged(base), noise()))


def jobs(text: str) -> None:
    told = Told(squeue=text, scontrol=_CONFIG)
    for job in queue.my_jobs(told).jobs.values():  # type: ignore[arg-type]
        assert job.elements >= 0
        assert job.job_id.isdecimal()
        assert job.time_limit_s is None or job.time_limit_s >= 0


def steps(text: str) -> None:
    for step in queue.my_steps(Told(squeue=text, scontrol=_CONFIG)).steps:  # type: ignore[arg-type]
        assert "." in step


def node_list(text: str) -> None:
    for node in nodes.node_states(Told(sinfo=text)).nodes.values():  # type: ignore[arg-type]
        assert node.name
        assert node.gpus is None or node.gpus >= 0


def shares(text: str) -> None:
    told = Told(scontrol=_CONFIG, sshare=text, sacctmgr_user=_USERS)
    for user in ("root", accounting.my_name()):
        for tres in ("node", "gres/gpu", "cpu"):
            found = accounting.balance(told, "root", tres, user)  # type: ignore[arg-type]
            assert found.reason, "no reason is given"
            assert (found.status is accounting.Status.KNOWN) == (found.left_h is not None)


def limits(value: tuple[str, str, str]) -> None:
    users, associations, qos = value
    told = Told(
        scontrol=_CONFIG, sacctmgr_user=users, sacctmgr_assoc=associations, sacctmgr_qos=qos
    )
    for user in ("root", accounting.my_name()):
        accounting.limits(told, "", "", user)  # type: ignore[arg-type]


def recorded(value: tuple[str, str]) -> None:
    text, config = value
    told = Told(scontrol=config, sacct=text)
    with contextlib.suppress(SchedulerError):
        found = accounting.job_named(told, "fleet-1")  # type: ignore[arg-type]
        assert found == "" or found.isdecimal()
    step_ends.step_end(told, "8.0", "x")  # type: ignore[arg-type]


def setting(value: tuple[str, str]) -> None:
    text, name = value
    commands.read_setting(text, name)
    commands.read_cluster_name(text)


def job_gpus(text: str) -> None:
    with _no_programs():
        found = read_gpus("42", text)
    assert all(count >= 0 for count in found.values())


@contextlib.contextmanager
def _no_programs() -> Iterator[None]:
    """Lists of nodes in brackets are for scontrol to expand."""

    def expand(argv: Sequence[str], **_: Any) -> str:
        return "c1\nc2\n" if argv[-1] == "c[1-2]" else argv[-1]

    with mock.patch.object(commands, "run", expand):
        yield


def cells(text: str) -> None:
    count = tables.count_or_none(text)
    assert count is None or count >= 0
    seconds = tables.duration_s_or_none(text)
    assert seconds is None or seconds >= 0
    tables.time_or_none(text)
    tables.text_or_none(text)
    assert all(amount >= 0 for amount in tables.amounts(text).values())
    nodes.parse_state(text)
    counted = nodes.parse_gres(text)
    assert counted is None or all(number >= 0 for number in counted.values())
    nodes.gpus_in(counted)
    assert queue._count_elements(text) >= 0
    found = count_gpus(text)
    assert found is None or found >= 0
    _own_cgroup(text)


def long_table(rows: list[list[str]]) -> None:
    """What squeue prints of any texts is read as these texts."""
    header = "\x1f".join(title.partition("|")[0] for _, title in nodes._NODES.columns)
    text = "\x1e\n".join([header, *("\x1f".join(row) for row in rows), ""])
    read = nodes._NODES.read(text)
    assert [list(row.values()) for row in read.rows] == rows


def kept_poll(data: bytes) -> None:
    place = polls.Polls(folder=folders.fresh("polls"))
    path = f"{folders.folder()}/polls/squeue-x.answer"
    folders.write("polls/squeue-x.answer", data)
    found = place._known(path, 0.0, fresh=False, max_age_s=60.0)
    assert found is None or found.text is None or isinstance(found.text, str)


def kept_turn(data: bytes) -> None:
    path = folders.write("turn", data)
    fd = os.open(path, os.O_RDONLY)
    try:
        wait_s = polls._Turn(fd, "boot", lambda: 5.0, 10.0).wait_s
    finally:
        os.close(fd)
    assert 0.0 <= wait_s <= 10.0 * 2, f"a wait of {wait_s} s"


_CONFIG = (_ANSWERS / "22.05" / "scontrol-config.txt").read_text()
_USERS = (_ANSWERS / "22.05" / "sacctmgr-user.txt").read_text()
_DETAILS = """JobId=42 JobName=fleet
   UserId=me(1000) GroupId=me(1000) MCS_label=N/A
   JOB_GRES=gpu:4
     Nodes=c1 CPU_IDs=0-3 Mem=0 GRES=gpu:a100:2(IDX:0-1)
     Nodes=c[1-2] CPU_IDs=0-3 Mem=0 GRES=gpu:2(IDX:0-1),shard:8
"""
_CELLS = (
    "8812",
    "N/A",
    "UNLIMITED",
    "1+",
    "1-02:03:04",
    "02:03",
    "2-12",
    "INVALID",
    "1732998785",
    "",
    "cpu=5000,node=100,gres/gpu=8,mem=1T",
    "gpu:a100:3(S:0-1),gpu:v100:1,shard:8",
    "(null)",
    "idle~",
    "mixed+drain",
    "IDLE+CLOUD+POWERED_DOWN",
    "0-2,7,10-20:5%2",
    "gres/gpu:a100:4",
    "0-999999999999:1",
    "3-1",
    "1-2:0",
    "1::/user.slice\n4:pids:/x",
    "gpu:999999999999999999999",
)
_PLAIN = st.text(
    st.characters(exclude_characters="\x1e\x1f", exclude_categories=["Cs"]), max_size=8
)
_COLUMNS = len(nodes._NODES.columns)
TARGETS = (
    Target(
        name="slurm: squeue, jobs",
        values=_table("squeue-jobs*"),
        act=jobs,
        raises=(SchedulerError,),
    ),
    Target(
        name="slurm: squeue, steps",
        values=_table("squeue-steps*"),
        act=steps,
        raises=(SchedulerError,),
    ),
    Target(
        name="slurm: sinfo", values=_table("sinfo-nodes*"), act=node_list, raises=(SchedulerError,)
    ),
    Target(name="slurm: sshare", values=_table("sshare*"), act=shares),
    Target(
        name="slurm: sacctmgr",
        values=st.tuples(
            _table("sacctmgr-user*"), _table("sacctmgr-assoc*"), _table("sacctmgr-qos*")
        ),
        act=limits,
    ),
    Target(
        name="slurm: sacct",
        values=st.tuples(
            st.one_of(
                _table("sacct-steps*"),
                plain_text(
                    documents(
                        "JobIDRaw|JobName|Cluster|State|ExitCode\n8.0|x|c|FAILED|1:0\n"
                        "8.0|x|c|RUNNING|0:0\n",
                        "JobIDRaw\n8\n9\n",
                    )
                ),
            ),
            st.sampled_from([_CONFIG, ""]),
        ),
        act=recorded,
        raises=(SchedulerError,),
    ),
    Target(
        name="slurm: scontrol show config",
        values=st.tuples(
            _table("scontrol-config*"),
            st.sampled_from(["ClusterName", "AccountingStorageType", "PriorityType"]),
        ),
        act=setting,
        raises=(SchedulerError,),
    ),
    Target(
        name="slurm: GPUs of a job",
        values=plain_text(documents(_DETAILS)),
        act=job_gpus,
        raises=(SchedulerError,),
    ),
    Target(name="slurm: cells", values=plain_text(documents(*_CELLS, most=3)), act=cells),
    Target(
        name="slurm: table, printed and read",
        values=st.lists(st.lists(_PLAIN, min_size=_COLUMNS, max_size=_COLUMNS), max_size=4),
        act=long_table,
    ),
    Target(name="slurm: kept poll", values=json_of(polls._Poll), act=kept_poll),
    Target(
        name="slurm: turn of polls",
        values=st.one_of(
            json_of(polls._Noted),
            documents(msgspec.json.encode(polls._Noted(boot_id="boot", not_before_s=9.0))),
        ),
        act=kept_turn,
    ),
)
