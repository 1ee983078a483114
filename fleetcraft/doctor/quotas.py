"""What is left of quotas, and what lies on storage with a small one.

`quota` and `lfs quota` are asked where they are installed; other systems have their own programs,
which are not. Invariant: no quota program means that quotas are unknown, not that there are none.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from shlex import quote

import msgspec

from fleetcraft.caches.mounts import is_below
from fleetcraft.doctor.case import Case, ask_program, last_line
from fleetcraft.doctor.findings import Finding, advice, ok, unknown, wrong
from fleetcraft.doctor.mounts import mount_of, room_on
from fleetcraft.errors import FleetError
from fleetcraft.fleet.launch.caches import quota_folders
from fleetcraft.units import format_bytes

_LIMIT_S = 15.0
_NEAR_PERCENT = 90
_NUMBER = re.compile(r"\[?([0-9]{1,20})\]?\*?")
_TIME = re.compile(r"-|none|expired|\d+(?:days?|hours?|:\d\d)|(?:\d+[dhms]){1,4}", re.ASCII)
_KIB = 1024


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a quota program; a limit of 0 is none.

    Attributes:
        place: The file system, as the program calls it.
        used_kib: In use.
        limit_kib: The smaller of the limits that are set.
        used_files: Files in use.
        limit_files: The same for files.
    """

    place: str
    used_kib: int
    limit_kib: int
    used_files: int
    limit_files: int


def check_folders(case: Case) -> Iterator[Finding]:
    """Home, scratch, work and project: what is free, and what lies on a quota folder."""
    config = case.config
    folders = {
        "home": os.path.expanduser("~"),
        "project": config.project_dir,
        "work": config.text("storage.work"),
    }
    for name, folder in folders.items():
        if folder:
            yield _room(name, folder)
    # A tree in the home folder is right on a machine of one's own, and rarely on a cluster.
    small = quota_folders(config) or (["~"] if shutil.which("sbatch") else [])
    if case.root and (inside := _inside(case.root, small)):
        yield advice(
            "scratch tree",
            f"{case.root} lies on storage with a small quota ({inside}, storage.quota)",
            "scratch storage: logs, checkpoints and telemetry grow",
            "fleetcraft --root DIR init on scratch, and root: DIR in fleet.yaml",
        )


def _inside(path: str, folders: list[str]) -> str:
    real = os.path.realpath(path)
    for folder in folders:
        if is_below(real, os.path.realpath(os.path.expanduser(folder))):
            return folder
    return ""


def _room(name: str, folder: str) -> Finding:
    try:
        room = room_on(folder)
    except OSError as error:
        hint = "name another one in fleet.yaml" if name == "work" else f"ls -ld {quote(folder)}"
        return wrong(name, f"{folder}: {error.strerror}", "a folder that can be used", hint)
    mount = mount_of(folder)
    kind = mount.kind if mount else "an unknown file system"
    found = f"{folder} on {kind}, {format_bytes(room.free_bytes)} free"
    if room.free_bytes == 0 or room.free_files == 0:
        what = "bytes" if room.free_bytes == 0 else "files"
        hint = f"du -xh -d1 {quote(folder)} | sort -h shows what is large"
        return wrong(name, f"{found}: no {what} are left", "room", hint)
    return ok(name, found)


def check_quotas(case: Case) -> Iterator[Finding]:
    """What the quota programs say of this user."""
    asked = False
    if program := _find("quota", case):
        asked = True
        yield from _asked("quota", [program, "-w", "-u"], "")
    if program := _find("lfs", case):
        for point in _lustre_mounts(case):
            asked = True
            argv = [program, "quota", "-q", "-u", str(os.geteuid()), point]
            yield from _asked(f"lfs quota {point}", argv, point)
    if not asked:
        yield unknown(
            "quotas",
            "no program that tells of quotas could be asked here (quota; lfs for Lustre), so what "
            "they leave is not known",
            "the site's own program tells it (mmlsquota, beegfs-ctl --getquota, myquota)",
        )


def _find(program: str, case: Case) -> str | None:
    return shutil.which(program, path=case.environ.get("PATH"))


def _lustre_mounts(case: Case) -> list[str]:
    folders = (os.path.expanduser("~"), case.root, case.config.text("storage.work"))
    mounts = [mount_of(folder) for folder in folders if folder and os.path.exists(folder)]
    return sorted({mount.point for mount in mounts if mount and mount.kind == "lustre"})


def _asked(name: str, argv: list[str], place: str) -> Iterator[Finding]:
    try:
        code, out, err = ask_program(argv, _LIMIT_S)
    except FleetError as error:
        yield unknown(name, error.message)
        return
    quotas = [q for line in out.splitlines() if (q := parse_line(line, place)) is not None]
    if quotas:
        yield from (judge_quota(quota) for quota in quotas)
    elif code or err.strip():
        # quota ends with 1 both when a quota is passed and when it fails.
        said = last_line(err) or f"it ended with status {code}"
        yield unknown(name, f"{name} did not tell: {said}")
    else:
        yield ok(name, "no quota of this user")


def parse_line(line: str, place: str = "") -> Quota | None:
    """Reads one line of ``quota -w`` or ``lfs quota -q``; None for a heading or another line.

    The columns are blocks in KiB, quota, limit, grace, files, quota, limit, grace; a star marks
    what is passed, and a grace that does not run is a dash or nothing at all.

    Args:
        line: The line.
        place: What the file system is called, if the line may not say.

    Source: quota(1) and lfs-quota(1).
    """
    words = line.split()
    if len(words) < 6:
        return None
    first, rest = (words[0], words[1:]) if not _NUMBER.fullmatch(words[0]) else ("", words)
    numbers = []
    for word in rest:
        if number := _NUMBER.fullmatch(word):
            numbers.append(int(number[1]))
        elif not _TIME.fullmatch(word):
            return None
    if len(numbers) != 6:
        return None
    used, soft, hard, files, soft_files, hard_files = numbers
    return Quota(
        place=place or first,
        used_kib=used,
        limit_kib=_smaller(soft, hard),
        used_files=files,
        limit_files=_smaller(soft_files, hard_files),
    )


def _smaller(soft: int, hard: int) -> int:
    return min((limit for limit in (soft, hard) if limit), default=0)


def judge_quota(quota: Quota) -> Finding:
    """Whether a quota is nearly or wholly used."""
    name = f"quota on {quota.place}"
    bytes_ = f"{format_bytes(quota.used_kib * _KIB)} of {_of_bytes(quota.limit_kib)}"
    files = f"{quota.used_files:,} of {f'{quota.limit_files:,}' if quota.limit_files else 'any'}"
    found = f"{bytes_}, {files} files"
    share = max(
        _percent(quota.used_kib, quota.limit_kib), _percent(quota.used_files, quota.limit_files)
    )
    hint = "remove or move what is not needed; fleetcraft caches show says where caches lie"
    if share >= 100:
        return wrong(name, found, "less than the quota", hint)
    if share >= _NEAR_PERCENT:
        return advice(name, found, f"less than {_NEAR_PERCENT} percent", hint)
    return ok(name, found)


def _of_bytes(limit_kib: int) -> str:
    return format_bytes(limit_kib * _KIB) if limit_kib else "any"


def _percent(used: int, limit: int) -> float:
    return 100 * used / limit if limit else 0.0
