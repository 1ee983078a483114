"""One class from all evidence: which source decides, and what the others are worth.

Each source decides only what it alone can tell, in this order:

1. the first process was killed and the kernel's counter rose: HOST_OOM
2. the scheduler's state (OUT_OF_MEMORY, TIMEOUT, PREEMPTED)
3. a structured error file with a cause, the earliest first
4. the kernel's counter alone, unless the log holds a device's own out-of-memory error
5. a cause in an open episode of the log
6. a command that could not be started, a kill, a crash signal
7. consequences, in an error file, then in the log; a kill order; a dead node
8. any other exit code, dead ranks, silence: UNKNOWN

Invariant: a bare exit code or SIGABRT never outweighs a text that explains it, a kill is out of
memory only when a counter or the scheduler says so, and what progress has passed decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from fleetcraft.files import FileSystem
from fleetcraft.training.diagnosing.advice import advise
from fleetcraft.training.diagnosing.case import Case, device_oom_facts
from fleetcraft.training.diagnosing.episode import Episode, Episodes
from fleetcraft.training.diagnosing.error_files import read_error_files
from fleetcraft.training.diagnosing.hits import Hit
from fleetcraft.training.diagnosing.scan import LogScan
from fleetcraft.training.diagnosing.verdicts import decide
from fleetcraft.training.records import Crash, Diagnosis, LogFence, NodeEnd


def diagnose(
    *,
    episodes: Episodes | None = None,
    hits: Sequence[Hit] = (),
    ends: Sequence[NodeEnd] = (),
    slurm_state: str | None = None,
    slurm_exit: str = "",
    error_files: Sequence[str | os.PathLike[str]] = (),
    oom_kills: int | None = None,
    dead_ranks: Sequence[int] = (),
    quiet_s: float | None = None,
    step: int | None = None,
    fs: FileSystem | None = None,
) -> Diagnosis:
    """Says how a run died, from whatever is known of it.

    Args:
        episodes: The crash episodes of its logs, as they stand now.
        hits: Lines that are not in ``episodes`` yet; they count as one open episode.
        ends: How the command ended, by node.
        slurm_state: The state of its step or job as Slurm gives it, such as ``OUT_OF_MEMORY``.
        slurm_exit: Slurm's ``exit:signal`` of it, such as ``0:125``.
        error_files: What torchrun's ranks left (``TORCHELASTIC_ERROR_FILE``).
        oom_kills: How often the kernel's counter rose; None takes what ``ends`` say.
        dead_ranks: Ranks that are positively gone.
        quiet_s: Seconds since anything completed, when the watch has raised that.
        step: The last completed step.
        fs: The seam for the error files.

    Returns:
        The class with its evidence, the deciding one first. `Crash.NONE` when nothing says that
        it died; a crash that progress followed keeps its class and is not open.
    """
    case = Case(
        episode=_with_hits(episodes.open if episodes else None, hits),
        closed=episodes.last_closed if episodes else None,
        ends=tuple(ends),
        slurm_state=(slurm_state or "").strip(),
        slurm_exit=slurm_exit.strip(),
        errors=read_error_files(error_files, fs=fs),
        oom_kills=oom_kills,
        dead_ranks=tuple(sorted(set(dead_ranks))),
        quiet_s=quiet_s,
        step=step,
    )
    return _diagnosis(case)


def diagnose_logs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    fences: Sequence[LogFence] = (),
    error_files: Sequence[str | os.PathLike[str]] = (),
    fs: FileSystem | None = None,
) -> Diagnosis:
    """Says from its logs how a run died, whoever launched it.

    Args:
        paths: Its logs.
        fences: Where some of them stood when the attempt began; lines before never count.
        error_files: What torchrun's ranks left.
        fs: The seam.

    Raises:
        OSError: A log cannot be read.
    """
    episodes, step, _ = read_logs(paths, fences=fences, fs=fs)
    return diagnose(episodes=episodes, error_files=error_files, step=step, fs=fs)


def read_logs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    fences: Sequence[LogFence] = (),
    fs: FileSystem | None = None,
) -> tuple[Episodes, int | None, list[str]]:
    """Reads some logs once, to their ends.

    Returns:
        Their episodes, the last step they show, and what was passed over, such as a log that is no
        longer the one that was fenced.

    Raises:
        OSError: A log cannot be read.
    """
    by_path = {os.path.abspath(fence.path): fence for fence in fences}
    episodes = Episodes()
    steps: list[int] = []
    notes: list[str] = []
    for path in paths:
        with LogScan(path, fence=by_path.get(os.path.abspath(path)), fs=fs) as scan:
            hits = scan.look(final=True)
            scan.raise_trouble()
            episodes.feed(hits, None, (scan,))
            steps += [scan.step] if scan.step is not None else []
            notes += [scan.trouble] if scan.trouble else []
    return episodes, max(steps, default=None), notes


def _with_hits(episode: Episode | None, hits: Sequence[Hit]) -> Episode | None:
    for hit in hits:
        if episode is None:
            episode = Episode(hits=(hit,))
        elif hit not in episode.hits:
            episode = episode.with_hit(hit)
    return episode


def _diagnosis(case: Case) -> Diagnosis:
    deciding = decide(case)
    if deciding is None:
        return _passed(case)
    oom = case.device_oom() if deciding.crash is Crash.CUDA_OOM else None
    found = Diagnosis(
        crash=deciding.crash,
        episode_open=True,
        evidence=(deciding, *(one for one in case.evidence() if one != deciding)),
        step=case.last_step(),
        oom=None if oom is None else device_oom_facts(oom),
        ranks=case.ranks(deciding),
    )
    return msgspec.structs.replace(found, advice=advise(found))


def _passed(case: Case) -> Diagnosis:
    """Nothing stands: what was passed, if anything was, with its class."""
    crash = case.closed.deciding.crash if case.closed else Crash.NONE
    found = Diagnosis(crash=crash, evidence=case.evidence(), step=case.last_step())
    return msgspec.structs.replace(found, advice=advise(found))
