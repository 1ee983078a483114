"""Whole logs around the texts of `crashes` and `printed`: as printed, and as pipes spoil them.

Each transcript says which class it must have and whether its episode is open. Invariant: the corpus
is the same in every run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fleetcraft.training.records import Crash
from tests.training.diagnosing.crashes import EXCEPTIONS, GLOO_CLOSED
from tests.training.diagnosing.printed import HARMLESS, LINES


@dataclass(frozen=True)
class Transcript:
    """One log.

    Attributes:
        name: Which text, in which form.
        data: Its bytes.
        crash: The class that it must have.
        open: Whether the episode is open at its end.
        fence: Where the attempt began; 0 for the beginning.
    """

    name: str
    data: bytes
    crash: Crash
    open: bool
    fence: int = 0


_Form = Callable[[str, Crash], tuple[str | bytes, bool]]
_FRAMES = (
    '  File "/home/ann/train.py", line 211, in <module>',
    "    main()",
    '  File "/home/ann/train.py", line 187, in main',
    "    loss = model(batch)  # may raise RuntimeError: CUDA out of memory",
    "           ^^^^^^^^^^^^",
)
_CHAIN = "During handling of the above exception, another exception occurred:"
# Consequences: a chain or an older cause would rightly outweigh them.
_CONSEQUENCES = frozenset(
    {Crash.DIST_NETWORK, Crash.NCCL_WATCHDOG, Crash.CANCELLED, Crash.CHILD_FAILED}
)


def steps(first: int, last: int, form: str = "step {0} loss {1:.3f} tok/s 6900") -> str:
    """Lines of a healthy loop."""
    return "".join(form.format(n, 2.0 + 1 / (n + 1)) + "\n" for n in range(first, last + 1))


def traceback(exception: str, tag: str = "") -> str:
    """A traceback with its exception, each line behind a tag."""
    lines = ("Traceback (most recent call last):", *_FRAMES, exception)
    return "".join(f"{tag}{line}\n" for line in lines)


def elastic(rank: int, *, exit_code: int = 1, ranks: int = 2) -> str:
    """What torchrun's agent prints when a rank has failed."""
    head = "torch/distributed/elastic/multiprocessing/api.py"
    others = [one for one in range(ranks) if one != rank]
    closing = "".join(
        f"W0301 12:00:01.309000 9547 {head}:1028] Sending process {9573 + one} closing signal "
        "SIGTERM\n"
        for one in others
    )
    failures = "".join(
        f"[{n + 1}]:\n  time      : 2026-03-01_12:00:01\n  host      : node-03\n"
        f"  rank      : {one} (local_rank: {one})\n"
        f"  exitcode  : -15 (pid: {9573 + one})  (SIGTERM)\n"
        f"  error_file: <N/A>\n  traceback : Signal 15 (SIGTERM) received by PID {9573 + one}\n"
        for n, one in enumerate(others)
    )
    return (
        f"{closing}E0301 12:00:01.348000 9547 {head}:1002] failed (exitcode: {exit_code}) "
        f"local_rank: {rank} (pid: {9573 + rank}) of binary: /usr/bin/python\n"
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3/torch/distributed/run.py", line 1032, in <module>\n    main()\n'
        '  File "/usr/lib/python3/torch/distributed/launcher/api.py", line 383, in launch_agent\n'
        "    raise ChildFailedError(\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============================================================\ntrain.py FAILED\n"
        "------------------------------------------------------------\nFailures:\n"
        f"{failures}"
        "------------------------------------------------------------\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-01_12:00:00\n"
        f"  host      : node-03\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {exit_code} (pid: {9573 + rank}) \n  error_file: <N/A>\n"
        "  traceback : To enable traceback see: "
        "https://pytorch.org/docs/stable/elastic/errors.html\n"
        "============================================================\n"
    )


def _plain(text: str, crash: Crash) -> tuple[str, bool]:
    return steps(690, 703) + traceback(text), True


def _torchrun(text: str, crash: Crash) -> tuple[str, bool]:
    # The peer still completes and prints the step in which the other one died.
    return (
        steps(690, 703) + traceback(text, "[rank1]: ") + steps(704, 704)
        + traceback(GLOO_CLOSED, "[rank0]: ") + elastic(1)
    ), True  # fmt: skip


def _tee_in_colour(text: str, crash: Crash) -> tuple[str, bool]:
    body = steps(690, 703, "[default0]:\x1b[32mINFO\x1b[0m Step: {0} | loss {1:.3f}")
    error = traceback(text, "[default3]:")
    coloured = error.replace("Traceback", "\x1b[31mTraceback").replace("\n", "\x1b[0m\n")
    return body + coloured + elastic(3, ranks=4), True


def _crlf(text: str, crash: Crash) -> tuple[str, bool]:
    return (steps(690, 703) + traceback(text)).replace("\n", "\r\n"), True


def _bar(text: str, crash: Crash) -> tuple[str, bool]:
    bars = "".join(
        f"\r {n // 10}%|{'#' * (n % 10):<10}| {n}/1000 [00:{n % 60:02d}<03:32,  4.50it/s, loss=2.1]"
        for n in range(690, 704)
    )
    shards = "Loading checkpoint shards: 100%|##########| 4/4 [00:03<00:00,  1.20it/s]\n"
    return shards + bars + traceback(text), True


def _logged(text: str, crash: Crash) -> tuple[str, bool]:
    body = steps(690, 703, "2026-03-01 11:59:59,120 INFO trainer: global_step={0} loss={1:.3f}")
    tail = "srun: error: node-03: task 1: Exited with exit code 1\n"
    return body + traceback(text) + tail, True


def _labelled(text: str, crash: Crash) -> tuple[str, bool]:
    body = steps(690, 703, "0: iteration      {0}/   10000 | lm loss: {1:.3f}E+00 |")
    return body + traceback(
        text, "3: "
    ) + "srun: Job step aborted: Waiting up to 32 seconds\n", True


def _cut_head(text: str, crash: Crash) -> tuple[str, bool]:
    whole = traceback(text)
    return whole[whole.index("ain.py") :], True


def _cut_tail(text: str, crash: Crash) -> tuple[str, bool]:
    summary = elastic(1)
    whole = steps(690, 703) + traceback(text, "[rank1]: ")
    return whole + summary[: summary.index("Failures:")], True


def _half_line(text: str, crash: Crash) -> tuple[str, bool]:
    return (steps(690, 703) + traceback(text)).rstrip("\n"), True


def _recovered(text: str, crash: Crash) -> tuple[str, bool]:
    return steps(690, 703) + traceback(text) + "skipping this batch\n" + steps(704, 720), False


def _recovered_by_agent(text: str, crash: Crash) -> tuple[str, bool]:
    again = "I0301 12:00:02.000000 9547 torch/distributed/elastic/agent/server/api.py:900] "
    return (
        steps(690, 703) + traceback(text, "[rank1]: ") + elastic(1)
        + again + "Worker group FAILED. 3/3 attempts left; will restart worker group\n"
        + "resuming from step 700\n" + steps(701, 712)
    ), False  # fmt: skip


def _stamped(text: str, crash: Crash) -> tuple[str, bool]:
    lines = (steps(690, 703) + traceback(text)).splitlines(keepends=True)
    return "".join(f"2026-03-01T12:00:{n:02d}.123Z {line}" for n, line in enumerate(lines)), True


def _mixed_with_untagged(text: str, crash: Crash) -> tuple[str, bool]:
    lines = traceback(text).splitlines(keepends=True)
    late = "step 703 loss 2.001 tok/s 6900\n"
    return steps(690, 703) + "".join(lines[:3]) + late + "".join(lines[3:]), True


def _in_a_worker(text: str, crash: Crash) -> tuple[str, bool]:
    outer = traceback("RuntimeError: Caught an error in DataLoader worker process 0.")
    return steps(690, 703) + outer + "Original " + traceback(text), True


def _chained(text: str, crash: Crash) -> tuple[str, bool]:
    first = traceback("KeyError: 'cache'", "[rank0]: ")
    return steps(690, 703) + first + f"\n[rank0]: {_CHAIN}\n\n" + traceback(text, "[rank0]: "), True


def _interleaved(text: str, crash: Crash) -> tuple[str, bool]:
    ours = traceback(text, "[rank2]: ").splitlines(keepends=True)
    theirs = traceback(GLOO_CLOSED, "[rank0]: ").splitlines(keepends=True)
    mixed = "".join(a + b for a, b in zip(ours, theirs, strict=True))
    return steps(690, 703) + ours[0].rstrip("\n") + theirs[0] + mixed + elastic(2, ranks=3), True


def _spoiled(text: str, crash: Crash) -> tuple[bytes, bool]:
    noise = b"\xff\xfe\x00 tokens " + bytes(range(128, 256)) + b"\n" + b"x" * 70_000 + b"\n"
    body = (steps(690, 703) + traceback(text)).encode()
    return noise + body.replace(b"\nTrace", b"\n" + noise + b"Trace", 1), True


def _after_restart(text: str, crash: Crash) -> tuple[str, bool]:
    old = steps(690, 703) + traceback("ValueError: an old one") + "starting again\n"
    return old + steps(651, 690) + traceback(text), True


_FORMS: tuple[_Form, ...] = (
    _torchrun, _tee_in_colour, _crlf, _bar, _logged, _labelled, _cut_head, _cut_tail, _half_line,
    _recovered, _recovered_by_agent, _chained, _interleaved, _spoiled, _after_restart,
    _stamped, _mixed_with_untagged, _in_a_worker,
)  # fmt: skip
_NEED_A_CAUSE = frozenset({_chained, _after_restart, _in_a_worker})
_FORMS_EACH = 8


def transcripts() -> Iterator[Transcript]:
    """The corpus."""
    yield from _of_exceptions()
    yield from _of_lines()
    yield from _stale()
    yield from _of_harmless()


def _of_exceptions() -> Iterator[Transcript]:
    for number, (crash, text) in enumerate(EXCEPTIONS):
        forms = [_FORMS[(number + 5 * k) % len(_FORMS)] for k in range(3)]
        forms += [_FORMS[(number + 1 + 5 * k) % len(_FORMS)] for k in range(_FORMS_EACH - 3)]
        for form in (_plain, *forms):
            if form in _NEED_A_CAUSE and crash in _CONSEQUENCES:
                continue
            if form is _cut_head and "Error" not in text:
                continue  # without its traceback nothing says that this is an exception
            data, is_open = form(text, crash)
            yield _made(form.__name__, text, data, crash, is_open)


def _of_lines() -> Iterator[Transcript]:
    for crash, text in LINES:
        yield _made("at the end", text, steps(690, 703) + text + "\n", crash, True)
        yield _made("alone, cut off", text, text, crash, True)
        yield _made("passed", text, steps(690, 703) + text + "\n" + steps(704, 730), crash, False)


def _stale() -> Iterator[Transcript]:
    """Crashes of an attempt before this one, in the same file."""
    for crash, text in (*EXCEPTIONS[::3], *LINES[::3]):
        before = (steps(690, 703) + traceback(text) + elastic(0)).encode()
        after = b"starting again\n" + steps(640, 660).encode()
        yield Transcript(
            f"stale: {crash}: {text[:40]}", before + after, Crash.NONE, False, len(before)
        )
        # The fence stands in the middle of the line that would count.
        line = f"{text}\n".encode()
        cut = len(before) + len(line) // 2
        yield Transcript(
            f"across: {crash}: {text[:40]}", before + line + after, Crash.NONE, False, cut
        )


def _of_harmless() -> Iterator[Transcript]:
    for text in HARMLESS:
        quiet = steps(690, 703) + text + "\n"
        yield _made("harmless at the end", text, quiet, Crash.NONE, False)
        yield _made("harmless inside", text, quiet + steps(704, 706), Crash.NONE, False)
        logged = f"2026-03-01 12:00:00,123 WARNING trainer: {text}\n"
        yield _made("harmless, logged", text, steps(690, 703) + logged, Crash.NONE, False)
    everything = "\n".join(HARMLESS) + "\n"
    yield _made("all harmless", "", everything, Crash.NONE, False)
    yield _made("empty", "", "", Crash.NONE, False)


def _made(form: str, text: str, data: str | bytes, crash: Crash, is_open: bool) -> Transcript:
    raw = data.encode() if isinstance(data, str) else data
    label = re.sub(r"\s+", " ", text)[:60]
    return Transcript(f"{form.strip('_')}: {crash}: {label}", raw, crash, is_open)
