"""A small program in place of the trial's own: it writes a journal, and then ends as it is told.

Its orders stand in ``fault``. It loads no torch, so that what is tested here is the parent's side.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from fleetcraft.calibration.trial.journal import Event, JournalWriter
from fleetcraft.calibration.trial.orders import Order

PROGRAM = "tests.calibration.trial.standin"
MIB = 1 << 20
OOM_TEXT = (
    "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 100.00 MiB of "
    "which 10.00 MiB is free. Of the allocated memory 80.00 MiB is allocated by PyTorch, and "
    "10.00 MiB is reserved by PyTorch but unallocated."
)


def main(order: Order) -> int:
    """One cycle of two phases; in the second what was ordered happens."""
    journal = JournalWriter(order.journal)
    journal.write(Event.BEGIN)
    journal.write(Event.ENVIRONMENT, device="stand-in", family="standin", identity="sha256:0")
    journal.write(Event.PASS_BEGIN, **{"pass": "memory"})
    where = {"pass": "memory", "cycle": 0}
    journal.write(Event.CYCLE_BEGIN, start_live_bytes=0, **where)
    journal.write(Event.PHASE_BEGIN, phase="load", **where)
    owners = [{"name": "model", "bytes": 7 * MIB}]
    journal.write(Event.PHASE_END, phase="load", peak_bytes=7 * MIB, owners=owners, **where)
    journal.write(Event.PHASE_BEGIN, phase="decode", **where)
    code = ACTS[order.fault](journal)
    if code:
        return code
    owners = [{"name": "pixels", "bytes": 9 * MIB}]
    journal.write(Event.PHASE_END, phase="decode", peak_bytes=9 * MIB, owners=owners, **where)
    journal.write(Event.CYCLE_END, **where)
    _time(journal)
    journal.write(Event.END, exit=0)
    journal.close()
    return 0


def _time(journal: JournalWriter) -> None:
    journal.write(Event.PASS_BEGIN, **{"pass": "time"})
    for cycle, wall_s in enumerate((0.5, 0.25, 0.25)):
        where = {"pass": "time", "cycle": cycle}
        journal.write(Event.PHASE_BEGIN, phase="decode", **where)
        journal.write(Event.PHASE_END, phase="decode", wall_s=wall_s, **where)
        journal.write(Event.CYCLE_END, wall_s=wall_s, **where)


def _fail(journal: JournalWriter, **fields: object) -> int:
    journal.write(Event.FAILED, phase="decode", **fields)
    journal.write(Event.END, exit=1)
    return 1


def _kill(journal: JournalWriter) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def _segfault(journal: JournalWriter) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def _grow(journal: JournalWriter) -> int:
    held = []
    for _ in range(64):
        held.append(bytearray(b"x") * (16 * MIB))
    return 0


def _alloc(journal: JournalWriter) -> int:
    try:
        _grow(journal)
    except MemoryError as error:
        return _fail(journal, kind="MemoryError", message=str(error))
    return 0


def _threads(journal: JournalWriter) -> int:
    stop = threading.Event()
    try:
        for _ in range(64):
            threading.Thread(target=stop.wait, daemon=True).start()
    except RuntimeError as error:
        return _fail(journal, kind="RuntimeError", message=str(error))
    finally:
        stop.set()
    return 0


def _quietly_refused(journal: JournalWriter) -> int:
    """As a program does that starts another one and does not look."""
    _threads_silently()
    return 0


def _threads_silently() -> None:
    stop = threading.Event()
    try:
        for _ in range(64):
            threading.Thread(target=stop.wait, daemon=True).start()
    except RuntimeError:
        pass
    finally:
        stop.set()


def _stall(journal: JournalWriter) -> int:
    time.sleep(600)
    return 0


def _family_of_sleepers(journal: JournalWriter) -> int:
    """A child in its own session and one that ignores TERM; both would outlive a careless stop."""
    for argv in (["sleep", "600"], [sys.executable, "-c", STUBBORN]):
        process = subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE)
        if argv[0] != "sleep":
            assert process.stdout is not None
            process.stdout.readline()
        journal.write(Event.PROGRESS, note=str(process.pid))
    time.sleep(600)
    return 0


STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); time.sleep(600)"
)


def _progress(journal: JournalWriter) -> int:
    """Slower in all than it may be silent, but never silent for so long."""
    for done in range(8):
        time.sleep(0.25)
        journal.write(Event.PROGRESS, done=done, total=8)
    return 0


def _partial(journal: JournalWriter) -> int:
    for name, state, how in (
        ("drafter0", "dead", "exit 1"), ("drafter1", "alive", ""), ("drafter2", "dead", "SIGKILL"),
    ):  # fmt: skip
        journal.write(Event.PARTICIPANT, name=name, state=state, how=how)
    time.sleep(600)
    return 0


def _torn(journal: JournalWriter) -> int:
    fd = os.open(journal.path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b'{"event": "phase_e')
    os._exit(3)


def _look(journal: JournalWriter) -> int:
    """Says what it finds itself in."""
    limit = resource.getrlimit(resource.RLIMIT_CORE)[0]
    told = {
        "sid": os.getsid(0), "pid": os.getpid(), "core": limit, "torch": "torch" in sys.modules,
        "stdin": os.readlink("/proc/self/fd/0"), "cgroup": open("/proc/self/cgroup").read(),  # noqa: SIM115
        "nproc": resource.getrlimit(resource.RLIMIT_NPROC)[0],
        "fds": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                      if os.path.lexists(f"/proc/self/fd/{fd}")),
        "death": _death_signal(), "oom_score": open("/proc/self/oom_score_adj").read().strip(),  # noqa: SIM115
    }  # fmt: skip
    journal.write(Event.PROGRESS, note=msgspec.json.encode(told).decode())
    print("words of the trial")
    return 0


def _death_signal() -> int:
    import ctypes

    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number), 0, 0, 0)
    return number.value


def _device_oom(journal: JournalWriter) -> int:
    return _fail(journal, kind="OutOfMemoryError", message=OOM_TEXT, **{"pass": "memory"})


def _leave(journal: JournalWriter) -> int:
    """Exit code 0 without a word, as a library does that calls exit()."""
    os._exit(0)


ACTS: dict[str, Callable[[JournalWriter], int]] = {
    "": lambda journal: 0,
    "kill": _kill,
    "segfault": _segfault,
    "grow": _grow,
    "alloc": _alloc,
    "threads": _threads,
    "quietly_refused": _quietly_refused,
    "stall": _stall,
    "sleepers": _family_of_sleepers,
    "progress": _progress,
    "partial": _partial,
    "torn": _torn,
    "look": _look,
    "device_oom": _device_oom,
    "exit": _leave,
}


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        sys.exit(main(msgspec.json.decode(file.read(), type=Order)))
