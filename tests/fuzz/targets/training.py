"""What training reads: progress lines, logs of crashes, error files, checkpoints, run folders."""

from __future__ import annotations

import contextlib
import os

import msgspec
from hypothesis import strategies as st

from fleetcraft.diagnosis.attempt_log import device_ran_out
from fleetcraft.diagnosis.device_oom import judge_device_oom, parse_device_oom
from fleetcraft.errors import ConfigError, DataError
from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import RunPaths
from fleetcraft.training.checkpoint import claims, records
from fleetcraft.training.checkpoint.records import Manifest, Note, RankDone
from fleetcraft.training.diagnosing import classify, error_files, prefixes
from fleetcraft.training.diagnosing.recorded import read_recorded
from fleetcraft.training.diagnosing.scan import LogScan
from fleetcraft.training.launching.epochs import Epochs, Healthy
from fleetcraft.training.launching.order import Order
from fleetcraft.training.launching.reading import read_record
from fleetcraft.training.plan.built import BuiltReport, read_built
from fleetcraft.training.plan.run_file import read_run_file
from fleetcraft.training.progress.lines import parse_line
from fleetcraft.training.records import Crash, Epoch
from fleetcraft.training.supervision.history import age_s, read_history, this_moment
from fleetcraft.training.supervision.journal import read_events
from fleetcraft.training.supervision.status_file import Status, read_status
from tests.fuzz import folders
from tests.fuzz.strategies import documents, json_of, plain_text, same_json, sampled, values_of
from tests.fuzz.target import Target


def progress(data: bytes) -> None:
    line = parse_line(data)
    assert line.step is None or line.step >= 0
    assert line.tokens is None or line.tokens >= 0
    for depth, capacity in (line.queues or {}).values():
        assert depth >= 0
        assert capacity is None or capacity >= 0


def device_oom(text: str) -> None:
    found = parse_device_oom(text)
    if found is not None:
        sizes = msgspec.structs.asdict(found).values()
        assert all(size is None or size >= 0 for size in sizes), f"a negative size in {found}"
        assert judge_device_oom(found) in ("fragmentation", "neighbour", "capacity")
        assert judge_device_oom(found, neighbour_bytes=1 << 30)


def attempt_log(data: bytes) -> None:
    device_ran_out(folders.write("a.1.log", data))


def crash_log(data: bytes) -> None:
    found = classify.diagnose_logs([folders.write("rank.log", data)])
    assert found.crash
    assert found.step is None or found.step >= 0
    msgspec.json.encode(found)  # it goes into the journal


def crash_log_in_pieces(value: tuple[bytes, int]) -> None:
    """A log that grows says in the end what it says when read whole."""
    data, place = value
    cut = place * len(data) >> 16
    path = folders.write("rank.log", data)
    whole = classify.diagnose_logs([path]).crash
    folders.write("rank.log", data[:cut])
    with LogScan(path) as scan:
        scan.look(final=False)
        with open(path, "ab") as file:
            file.write(data[cut:])
        scan.look(final=True)
        scan.raise_trouble()
    assert classify.diagnose_logs([path]).crash == whole


def line_head(text: str) -> None:
    head = prefixes.read_head(text)
    assert head.rank is None or head.rank >= 0


def error_file(data: bytes) -> None:
    path = folders.write("attempt_0/3/error.json", data)
    found = error_files.read_error_files([path, f"{path}.not-there"])
    for one in found.evidence:
        assert one.rank == 3 or one.crash is Crash.NONE
        msgspec.json.encode(one)


def manifest(data: bytes) -> None:
    with contextlib.suppress(ValueError):  # the documented error of these three
        read = records.read_manifest(data, "/c/step-1")
        again = records.read_manifest(records.write_manifest(read), "/c/step-1")
        assert msgspec.structs.replace(again, sha256="") == msgspec.structs.replace(read, sha256="")
        assert read.kind
    with contextlib.suppress(ValueError):
        records.read_rank(data)
    with contextlib.suppress(ValueError):
        records.read_note(data)


def resume_claim(data: bytes) -> None:
    paths = RunPaths(folders.fresh("run"))
    path = paths.resume_claim("train", "1", "2")
    folders.write(os.path.relpath(path, folders.folder()), data)
    found = claims.read_claims(paths, "train")
    assert all((one.task and one.have <= one.want) or one.name for one in found)


def declared_end(data: bytes) -> None:
    paths = RunPaths(folders.fresh("run"))
    folders.write("run/end.json", data)
    claims.read_declared(paths)


def status(data: bytes) -> None:
    read_status(folders.write("status.json", data))


def status_round_trip(value: Status) -> None:
    path = folders.write("status.json", msgspec.json.encode(value))
    found = read_status(path)
    assert found is not None
    assert same_json(found, value)


def events(data: bytes) -> None:
    path = folders.write("events.jsonl", data)
    found = read_events(path)
    lines = sum(bool(line.strip()) for line in data.split(b"\n"))
    assert len(found.events) + found.bad_lines == lines
    read_history((), found.events)
    for one in found.events:
        assert age_s(one.get("moment"), str(one.get("at")), this_moment()) >= 0


def launch_order(data: bytes) -> None:
    read_record(FileSystem(), folders.write("order.json", data), Order)


def epoch(data: bytes) -> None:
    paths = RunPaths(folders.fresh("run"))
    path = paths.epoch(1)
    folders.write(os.path.relpath(path, folders.folder()), data)
    Epochs(paths, FileSystem()).get(1)


def healthy(data: bytes) -> None:
    paths = RunPaths(folders.fresh("run"))
    folders.write(os.path.relpath(paths.healthy(1), folders.folder()), data)
    Epochs(paths, FileSystem()).healthy(1)


def built(data: bytes) -> None:
    paths = RunPaths(folders.fresh("run")).attempt(1)
    folders.write(os.path.relpath(paths.built_file(0), folders.folder()), data)
    found = read_built(paths)
    assert len(found.reports) + len(found.problems) == 1


def run_file(data: bytes) -> None:
    plan = read_run_file(folders.write("run.yaml", data))
    assert plan.command


def recorded(data: bytes) -> None:
    paths = RunPaths(folders.fresh("run"))
    for path in (paths.epoch(1), paths.events, paths.status):
        folders.write(os.path.relpath(path, folders.folder()), data)
    read_recorded(paths)


_PROGRESS = (
    b'{"step":17,"tokens":4096,"loss":0.5,"queues":{"load":3,"out":[2,8]},"metrics":{"lr":1e-4},'
    b'"device_memory_bytes":123456,"at":"2026-07-17T12:00:00Z"}',
    b'{"hello":true,"host":"c1","boot_id":"b","pid_namespace":"pid:[1]","pid":7,"start_ticks":9,'
    b'"nonce":"n","world_size":8,"name":"train"}',
    b'{"phase":"evaluation","loss":NaN,"metrics":{"a":Infinity,"b":"-inf"}}',
    b'{"step":1.0}',
)
_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.15 GiB of which 1.06 GiB is free. Process 1234 has 3.00 GiB memory in use. "
    "Including non-PyTorch memory, this process has 75.08 GiB memory in use. 70.00 GiB allowed; "
    "Of the allocated memory 70.35 GiB is allocated by PyTorch, and 3.13 GiB is reserved by "
    "PyTorch but unallocated.",
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 39.59 GiB total "
    "capacity; 37.00 GiB already allocated; 10.19 MiB free; 38.00 GiB reserved in total "
    "by PyTorch)",
    "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total "
    "capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)",
)
_LOG = (
    "step 10/100 loss 0.5\n[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "train.py", line 7, in <module>\n[rank3]:     main()\n'
    f"[rank3]: {_OOM[0]}\n[rank0]:[E717 12:00:00.000 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog "
    "caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000) "
    "ran for 600001 milliseconds before timing out.\n"
    "srun: error: c1: task 3: Out Of Memory\n"
    "slurmstepd: error: Detected 1 oom_kill event in StepId=8.0.\n",
    "Traceback (most recent call last):\n  File \"x.py\", line 1, in <module>\nKeyError: 'a'\n\n"
    "During handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "x.py", line 3, in f\nValueError: b\n',
    "  0%|          | 3/100 [00:01<00:30,  3.2it/s]\r  4%|4 | 4/100 [00:02<00:31, 3.1it/s]\n"
    "Segmentation fault (core dumped)\nFatal Python error: Bus error\n"
    '{"level":"error","message":"RuntimeError: NCCL error: unhandled system error","rank":2}\n'
    "2026-07-17 12:00:00,123 ERROR [trainer.py:5] loss is nan at step 12\n",
    "exitcode  : -9 (pid: 77)\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 78)\n"
    "No space left on device\ngloo timeout\nConnection reset by peer\n",
)
_ERROR_FILES = (
    b'{"message":{"message":"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.",'
    b'"extraInfo":{"py_callstack":"x","timestamp":"1732998785"}}}',
    b'{"message":"KeyError: 1"}',
    b'{"message":{"extraInfo":{"timestamp":1e300}}}',
    b'{"message":{"extraInfo":{"timestamp":' + b"9" * 400 + b"}}}",
    b"[" * 100_000,
)
_EVENTS = (
    b'{"schema":"fleetcraft.run_event/1","event":"outcome","attempt":1,"at":"2026-07-17T12:00:00Z",'
    b'"moment":{"boot_id":"b","boot_s":5.0},"diagnosis":{"crash":"none"},"done":true}\n'
    b'{"schema":"fleetcraft.run_event/1","event":"anew","after":3}\n'
    b'{"schema":"fleetcraft.run_event/1","event":"resumed","after":-1,"checkpoint":7}\n',
)
_RUN_FILE = (
    b"run: wan\ncommand: [python, train.py]\nbudgets:\n  total: {restarts: 8, wall: 12h}\n"
    b"watch:\n  patience: 90s\ncheckpoint:\n  folder: ckpt\nladder:\n  - knob: batch\n"
    b"    values: [8, 4]\n",
    b"run: wan\ncommand: python train.py\nenv: {A: '1'}\n",
    b"a: &a [*a]\n",
    b"? [a]\n: b\n",
    b"run: !!python/object:os.system x\ncommand: 2026-01-01\n",
    b"<<: [a, b]\nrun: x\n",
)
_DEEP = b"[" * 100_000
TARGETS = (
    Target(name="training: progress line", values=documents(*_PROGRESS), act=progress),
    Target(name="training: device OOM", values=plain_text(documents(*_OOM)), act=device_oom),
    Target(name="training: log of an attempt", values=documents(*_OOM), act=attempt_log),
    Target(name="training: log of a crash", values=documents(*_LOG, most=6), act=crash_log),
    Target(
        name="training: log of a crash in pieces",
        values=st.tuples(documents(*_LOG, most=2), st.integers(0, 1 << 16)),
        act=crash_log_in_pieces,
    ),
    Target(
        name="training: head of a log line",
        values=plain_text(documents(*(line for text in _LOG for line in text.split("\n") if line))),
        act=line_head,
    ),
    Target(name="training: error file", values=documents(*_ERROR_FILES), act=error_file),
    Target(
        name="training: checkpoint records",
        values=st.one_of(json_of(Manifest), json_of(RankDone), json_of(Note)),
        act=manifest,
    ),
    Target(
        name="training: resume claim",
        values=json_of(claims.ResumeClaim, _DEEP),
        act=resume_claim,
        raises=(DataError,),
    ),
    Target(
        name="training: declared end",
        values=json_of(claims.DeclaredEnd, _DEEP),
        act=declared_end,
        raises=(DataError,),
    ),
    Target(name="training: status", values=json_of(Status, _DEEP), act=status, raises=(DataError,)),
    Target(
        name="training: status, written and read", values=values_of(Status), act=status_round_trip
    ),
    Target(
        name="training: events",
        values=st.one_of(documents(*_EVENTS), sampled([_DEEP])),
        act=events,
    ),
    Target(
        name="training: order", values=json_of(Order, _DEEP), act=launch_order, raises=(DataError,)
    ),
    Target(name="training: epoch", values=json_of(Epoch, _DEEP), act=epoch, raises=(DataError,)),
    Target(
        name="training: healthy epoch",
        values=json_of(Healthy, _DEEP),
        act=healthy,
        raises=(DataError,),
    ),
    Target(name="training: what was built", values=json_of(BuiltReport, _DEEP), act=built),
    Target(
        name="training: run file", values=documents(*_RUN_FILE), act=run_file, raises=(ConfigError,)
    ),
    Target(
        name="training: what a run has left",
        values=st.one_of(documents(*_EVENTS), sampled([_DEEP]), json_of(Status)),
        act=recorded,
        raises=(DataError,),
    ),
)
