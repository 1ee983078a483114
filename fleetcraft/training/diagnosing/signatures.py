"""The words that crashes leave in logs, what each means, and whether it is cause or consequence.

Tables of patterns, and the one pass over bytes that finds candidate lines. What a line says is
decided on its own words, after its head. Invariant: quoted words are no crash. A signature stands
where programs print it: at the beginning of a line, or behind a program's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from fleetcraft.training.records import Crash, Role


class Meaning(NamedTuple):
    """What a line says."""

    crash: Crash
    role: Role


class _Signature(NamedTuple):
    crash: Crash
    role: Role
    find: Callable[[str], re.Match[str] | None]


def _signature(crash: Crash, role: Role, patterns: tuple[str, ...]) -> _Signature:
    pattern = re.compile("|".join(patterns))
    # A search would try an anchored pattern at every place of the line.
    anchored = all(one.startswith("^") for one in patterns)
    return _Signature(crash, role, pattern.match if anchored else pattern.search)


def _root(crash: Crash, *patterns: str) -> _Signature:
    return _signature(crash, Role.ROOT, patterns)


def _cascade(crash: Crash, *patterns: str) -> _Signature:
    return _signature(crash, Role.CASCADE, patterns)


def _teardown(crash: Crash, *patterns: str) -> _Signature:
    return _signature(crash, Role.TEARDOWN, patterns)


# Every signature below has one of these in its line, a line of ordinary progress none. Where all
# words begin with one byte, memchr finds it, ten times as fast as many first letters. So the rare
# ones become one byte, which keeps places; words with common ones are searched for by themselves.
_RARE = b"EKLNPRSTWXx"
_FOLDED = b"\x01"
FOLD = bytes.maketrans(_RARE, _FOLDED * len(_RARE))
"""Makes one byte of the letters that words of `CANDIDATE` begin with."""
_CANDIDATES = (
    b"Err", b"xception", b"xitcode", b"xit code", b"xits with", b"Kill", b"Keyboard", b"Traceback",
    b"Terminated", b"To avoid", b"Watchdog", b"Segmentation", b"SIGKILL", b"SIGTERM", b"Some NCCL",
    b"Permission", b"Loss is", b"Read-only", b"xceeded", b"Xid", b"NaN", b"No module named",
)  # fmt: skip
CANDIDATE = re.compile(
    _FOLDED + b"(?:" + b"|".join(re.escape(word.translate(FOLD)[1:]) for word in _CANDIDATES) + b")"
)
"""First pass over folded bytes: where a line may bear a signature."""
CANDIDATE_WORDS = (
    b": error: ", b"left on device", b"command not found", b"watchdog", b"what():", b"ut of memory",
    b"on-finite",
)  # fmt: skip
"""The same for words that begin with common letters, over the bytes themselves."""
LOSS_CANDIDATE = re.compile(
    rb"loss(?: is |[\"']?\W{1,8}(?:tensor\(|-)?)(?:[Nn]a[Nn]|[Ii]nf|non-finite)\b"
)
"""The same for a loss that is no number."""

_OOM = (
    r"(?:CUDA|HIP|XPU|NPU) out of memory|MPS backend out of memory|CUDA error: out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|RESOURCE_EXHAUSTED: Out of memory"
    r"|CUDA driver error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|Cuda failure (?:\d+ )?'?out of memory|cuda(?:Malloc)?.* failed.*out of memory"
)
_ENOSPC = r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]"
_DENIED = r"\[Errno (?:13|1|30)\]|Permission denied|Operation not permitted|Read-only file system"
_HOST = (
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|\[Errno 12\]"
    r"|Cannot allocate memory|Unable to allocate [\d.]+ [KMGT]?i?B|std::bad_alloc"
    r"|running low on memory"
)

EXCEPTIONS = (
    _root(Crash.HOST_OOM, _HOST, r"^(?:\w+\.)*_?(?:Array)?MemoryError\b"),
    _root(Crash.CUDA_OOM, _OOM, r"^(?:\w+\.)*OutOfMemoryError\b"),
    _root(
        Crash.DISK_FULL,
        _ENOSPC,
        r"PytorchStreamWriter failed|inline_container\.cc.*unexpected pos"
        r"|Bus error\. It is possible that dataloader's workers are out of shared memory",
    ),
    _root(
        Crash.KILLED_UNCONFIRMED,
        r"DataLoader worker \(pid \d+\) is killed by signal: Killed",
        r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly",
        r"died with <Signals\.SIGKILL",
        r"terminated with signal SIGKILL",
        r"BrokenProcessPool",
        r"TerminatedWorkerError",
    ),
    _cascade(
        Crash.CANCELLED,
        r"^KeyboardInterrupt",
        r"SignalException: .*got signal",
        r"DataLoader worker \(pid \d+\) is killed by signal: (?:Terminated|Interrupt|Hangup)",
    ),
    _root(
        Crash.CHECKPOINT_INVALID,
        r"PytorchStreamReader failed",
        r"Error\(s\) in loading state_dict",
        r"UnpicklingError",
        r"SafetensorError",
        r"Error while deserializing header",
        r"Weights only load failed",
        r"Unable to load weights from (?:pytorch )?checkpoint",
        r"loaded state dict (?:contains|has)",
        r"(?:Missing|Unexpected) key\(s\) in state_dict",
        r"EOFError: Ran out of input",
        r"file in archive is not in a subdirectory",
        r"invalid header or archive is corrupted",
        r"(?:[Cc]heckpoint|shard)\S* .*(?:corrupt|truncat)",
    ),
    _cascade(Crash.CHECKPOINT_INVALID, r"CheckpointException ranks"),
    _root(
        Crash.NON_FINITE,
        r"\b(?:loss|gradient|norm|logits|activation)s?\b.{0,80}\b(?:is|are|became|contains?|was)\b"
        r".{0,20}\b(?:nan|NaN|inf|Inf|non-?finite|not finite)",
        r"[Nn]on-?finite\b.{0,40}(?:loss|grad|norm)",
        r"returned nan values",
        r"Minimum loss scale reached",
        r"[Nn]a[Nn] (?:loss|in loss|grad)",
        r"FloatingPointError",
        r"current loss scale already at minimum",
        r"so it cannot be clipped",
    ),
    _cascade(
        Crash.NCCL_WATCHDOG,
        r"[Ww]atchdog caught collective operation timeout",
        r"Some NCCL operations have failed or timed out",
        r"NCCL (?:communicator was aborted|.*timeout)",
    ),
    _cascade(
        Crash.CHILD_FAILED,
        r"ChildFailedError",
        r"ProcessExitedException",
        r"ProcessRaisedException",
        r"returned non-zero exit status",
        r"died with <Signals\.",
    ),
    _root(
        Crash.RENDEZVOUS,
        r"Rendezvous\w*(?:Error|Exception)\b",
        r"DistStoreError",
        r"waiting for clients\. \d+/\d+ clients joined",
    ),
    _cascade(
        Crash.DIST_NETWORK,
        r"ncclRemoteError",
        r"Connection closed by peer",
        r"Connection reset by peer",
        r"^ConnectionResetError",
        r"^BrokenPipeError",
        r"^EOFError",
        r"Broken pipe",
        r"failed to recv, got 0 bytes",
        r"Timed out waiting \d+ms for (?:recv|send)",
        r"Socket Timeout",
        r"NCCL Error 6",
        r"remote process exited",
    ),
    _root(
        Crash.DIST_NETWORK,
        r"DistNetworkError",
        r"ncclSystemError",
        r"NCCL Error 2",
        r"NET/(?:IB|Socket)",
        r"server socket has failed to listen",
        r"client socket has (?:failed to connect|timed out)",
        r"connectFullMesh failed",
        r"[Gg]loo.*(?:connect|transport|resolve)",
        r"EADDRINUSE",
        r"Address already in use",
        r"No route to host",
        r"Name or service not known",
        r"Temporary failure in name resolution",
        r"Network is unreachable",
    ),
    _root(Crash.PERMISSION, _DENIED, r"GatedRepoError", r"401 Client Error", r"403 Client Error"),
    # The device itself: no class of ours, and no bug of the run's code.
    _root(
        Crash.UNKNOWN,
        r"uncorrectable ECC error",
        r"unspecified launch failure",
        r"GPU (?:is lost|has fallen off the bus)",
        r"CUDA error: (?:unknown error|initialization error)",
        r"no CUDA-capable device",
        r"device\(s\) is/are busy or unavailable",
    ),
    # What a process of a broken group meets, without a word about why.
    _cascade(
        Crash.DIST_NETWORK, r"DistBackendError(?!.*(?:Duplicate GPU|InvalidUsage|invalid usage))"
    ),
)
"""For an exception's last line, ``Type: message``; the first that matches counts."""

_SRUN = r"srun: error: \S+: tasks? [\d,\-]+: "
_STEPD = r"slurmstepd: (?:error: )?"
_CANCELLED = r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+"
_WATCHDOG_ENDED = r"watchdog thread terminated with exception: CUDA error: "
LINES = (
    _root(Crash.CUDA_OOM, r"^(?:CUDA|HIP) out of memory\.?\s*$"),
    _root(
        Crash.HOST_OOM,
        rf"^{_STEPD}.*(?:oom[_-]kill|OOM Killed|Exceeded .*memory limit)",
        rf"^{_SRUN}Out Of Memory",
        r"^(?:\S+ kernel: )?(?:Memory cgroup o|O)ut of memory: Killed process \d",
        r"^(?:\S+ kernel: )?oom-kill:constraint=",
        r"^.{0,200}DefaultCPUAllocator: can't allocate",
        r"^\s*what\(\):\s+std::bad_alloc",
    ),
    _root(
        Crash.TIME_LIMIT,
        rf"^(?:{_STEPD}|srun: (?:error: )?)?{_CANCELLED} DUE TO TIME LIMIT",
        rf"^{_STEPD}.*DUE TO TIME LIMIT",
    ),
    _root(
        Crash.PREEMPTED,
        rf"^(?:{_STEPD}|srun: (?:error: )?)?{_CANCELLED} DUE TO PREEMPTION",
        rf"^{_STEPD}.*DUE TO PREEMPTION",
    ),
    _root(
        Crash.UNKNOWN,
        rf"^{_STEPD}.*DUE TO NODE FAILURE",
        r"^srun: error: Node failure on",
        r"^(?:\S+ kernel: )?NVRM: Xid",
    ),
    _root(Crash.CANCELLED, rf"^(?:{_STEPD}|srun: (?:error: )?)?{_CANCELLED} (?:\*\*\*|DUE TO)"),
    _root(
        Crash.KILLED_UNCONFIRMED,
        r"^\s*Killed\s*$",
        rf"^{_SRUN}Killed",
        r"^(?:\S+: )?line \d+:\s+\d+ Killed\b",
        r"^\S+\.sh: line \d+:\s+\d+ Killed\b",
        r"^(?:\[\d+\])?[+-]?\s*(?:\d+ )?Killed\s{2,}",
        r"^failed \(exitcode: -9\) local_rank",
    ),
    _cascade(
        Crash.KILLED_UNCONFIRMED,
        r"^\s*exitcode\s*: -9 \(pid",
        r"Signal 9 \(SIGKILL\) received by PID",
        r"exits with return code = -9\b",
    ),
    _root(Crash.UNKNOWN, rf"{_WATCHDOG_ENDED}(?:uncorrectable|unspecified|unknown)"),
    _root(
        Crash.CODE_ERROR,
        rf"{_WATCHDOG_ENDED}(?:an illegal|device-side|misaligned|invalid)",
        rf"^{_SRUN}Segmentation fault",
        r"^(?:Fatal Python error: )?Segmentation fault\b",
        r"^failed \(exitcode: -(?:11|4|8)\) local_rank",
        r"^(?:\S+: )?line \d+:\s+\d+ Segmentation fault",
        r"^\S*python[\d.]*: (?:can't open file|No module named|Error while finding)",
        r"^\S+: (?:line \d+: )?\S+: command not found$",
        r"^\S+\.py: error: ",
    ),
    _cascade(
        Crash.CANCELLED,
        rf"^{_SRUN}(?:Terminated|Interrupt)",
        r"^Received Signals\.SIGTERM death signal",
        r"^Received \d+ death signal",
    ),
    _cascade(
        Crash.CHILD_FAILED,
        r"^failed \(exitcode: -?\d+\) local_rank",
        r"^\s*exitcode\s*: -?\d+ \(pid",
        rf"^{_SRUN}(?:Exited with exit code|Aborted|Bus error)",
        r"exits with return code = -?\d",
        r"^(?:\S+: )?line \d+:\s+\d+ Aborted\b",
    ),
    _cascade(
        Crash.NCCL_WATCHDOG,
        r"^(?:.{0,80}\bRank \d+.{0,40})?Watchdog caught collective operation timeout",
        r"^(?:NCCL|Process group) watchdog thread terminated with exception",
        r"^ProcessGroupNCCL's watchdog got stuck",
        r"^Some NCCL operations have failed or timed out",
        r"^To avoid data inconsistency, we are taking the entire process down",
    ),
    _cascade(Crash.RENDEZVOUS, r"failed to send a keep-alive heartbeat to the rendezvous"),
    _teardown(Crash.RENDEZVOUS, r"has failed to shutdown the rendezvous"),
    _cascade(
        Crash.DIST_NETWORK,
        r"^.{0,120}gloo/transport/\S+ .*(?:Connection|Timed out|Broken pipe|recv)",
    ),
    _root(
        Crash.DISK_FULL,
        r"^[\w./-]+: .*: (?:No space left on device|Disk quota exceeded)\s*$",
        r"^[\w./-]+: (?:No space left on device|Disk quota exceeded)",
    ),
    _root(
        Crash.PERMISSION,
        r"^[\w./-]+: .*: (?:Permission denied|Operation not permitted|Read-only file system)\s*$",
        r"^[\w./-]+: (?:Permission denied|Read-only file system)\s*$",
    ),
    _teardown(
        Crash.CANCELLED,
        r"^Sending process \d+ closing signal",
        r"^srun: Job step aborted",
        r"^srun: forcing job termination",
        r"^Unable to shutdown process \d+ via",
    ),
)
"""For lines that are no exception's; each begins where the words begin."""

_ANYWHERE = (
    # With its number, and its own words before it: nobody quotes those together without quotes.
    _root(Crash.CUDA_OOM, r"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate [\d.]+ [KMG]iB"),
    _root(
        Crash.NON_FINITE,
        r"^(?:\S+ )?[Ll]oss is (?:nan|NaN|inf|non-finite)",
        r"\b(?:train[_/])?loss[\"']?\W{1,8}(?:tensor\()?-?(?:[Nn]a[Nn]|[Ii]nf)\b",
        r"^[Nn]on-finite (?:loss|grad)",
        r"^NaN loss",
        r"^NaN or Inf found",
    ),
)
# Before a signature on its line, these make it talk about a crash and not be one.
_TALK = re.compile(
    r"[\"'`\u201c\u2018<>#]|//|\b(?:no|not|without|never|if|when|grep|pattern|regex|match(?:es)?"
    r"|example|e\.g|such as|avoids?|prevents?|on_oom|for any|watch(?:es|ing)? for|looks? for"
    r"|like|says?|was|previous|earlier|last (?:run|attempt))\b",
    re.IGNORECASE,
)
_LOSS_TALK = re.compile(
    r"\b(?:no|not|without|never|if|when|val|valid\w*|eval\w*|test|dev|best|min|lowest|initial)"
    r"[\w /.-]*$|[`#]",
    re.IGNORECASE,
)
_UNCAUGHT = re.compile(r"^\s*what\(\):\s+")
EXCEPTION = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
    r"(?:Error|Exception|Interrupt|Exit|Timeout)(?:\(\w+\))?)(?::(?:\s(?P<message>.*))?)?$"
)
_FULL_NAME = re.compile(r"(?:[a-z_]\w*\.)+(?:[A-Z]\w*|error|gaierror|herror|timeout): ")
_ANY_TYPE = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?::(?:\s(?P<message>.*))?)?$")


def meaning_of_exception(text: str) -> Meaning:
    """What an exception says, from its last line ``Type: message``; CODE_ERROR if nothing more."""
    text = text.replace("\n", " ")
    for signature in EXCEPTIONS:
        if signature.find(text):
            return Meaning(signature.crash, signature.role)
    return Meaning(Crash.CODE_ERROR, Role.ROOT)


def is_exception(text: str, *, named: bool) -> bool:
    """Whether words are an exception's last line; unless ``named``, any class name will do."""
    return bool(EXCEPTION.match(text) or (not named and _ANY_TYPE.match(text)))


def is_qualified(text: str) -> bool:
    """Whether words begin with a class's full name, as an exception's last line does."""
    return _FULL_NAME.match(text) is not None


def meaning_of_line(rest: str) -> Meaning | None:
    """What a line's own words say; None when they are no crash's.

    An exception that says no more than that something was raised needs its traceback, which `lines`
    looks for, to be a cause.
    """
    for signature in LINES:
        found = signature.find(rest)
        if found and not (found.start() and _TALK.search(rest[: found.start()])):
            return Meaning(signature.crash, signature.role)
    if uncaught := _UNCAUGHT.match(rest):
        return meaning_of_exception(rest[uncaught.end() :])
    if EXCEPTION.match(rest):
        meaning = meaning_of_exception(rest)
        return meaning if meaning.crash is not Crash.CODE_ERROR else None
    return _anywhere(rest)


def _anywhere(rest: str) -> Meaning | None:
    if rest.startswith("    "):
        return None  # a source line of a traceback, or a nested dump
    for signature in _ANYWHERE:
        found = signature.find(rest)
        if found is None:
            continue
        talk = _LOSS_TALK if signature.crash is Crash.NON_FINITE else _TALK
        if not talk.search(rest[: found.start()]):
            return Meaning(signature.crash, signature.role)
    return None
