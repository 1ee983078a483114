"""Every check, in the order in which it is made: its section, its limit, and how to make it.

The modules of the checks are loaded when they are needed. Invariant: a check that raises is an
unknown finding with the reason, never an end of the examination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

import msgspec

from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Finding, unknown
from fleetcraft.errors import FleetError

_PACKAGE = "fleetcraft.doctor"
_LIMIT_S = 20.0
_LATE_S = 60.0
_LONG_S = 150.0


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check.

    Attributes:
        section: The subject that its findings belong to.
        name: What it looks at.
        place: Module and function that make it.
        limit_s: After so long it is given up, and what it looked at is unknown.
        is_slow: Whether it is left out when it is to be quick.
        on_tree: Whether it looks at the scratch tree, and so hangs where that does.
    """

    section: str
    name: str
    place: str
    limit_s: float = _LIMIT_S
    is_slow: bool = False
    on_tree: bool = False

    @property
    def id(self) -> str:
        """Section and name, which no two checks share."""
        return f"{self.section}: {self.name}"


def _rows(section: str, *rows: Check) -> tuple[Check, ...]:
    return tuple(msgspec.structs.replace(row, section=section) for row in rows)


def _row(name: str, place: str, limit_s: float = _LIMIT_S, **more: bool) -> Check:
    return Check(section="", name=name, place=place, limit_s=limit_s, **more)


CHECKS: tuple[Check, ...] = (
    *_rows(
        "python",
        _row("python", "environment.check_python"),
        _row("fleetcraft", "environment.check_fleetcraft"),
        _row("packages", "environment.check_packages"),
        _row("local folders", "environment.check_local_folders"),
    ),
    *_rows("gpu", _row("driver", "driver.check_driver")),
    *_rows("torch", _row("torch", "torch_build.check_torch", _LONG_S, is_slow=True)),
    *_rows(
        "slurm",
        _row("programs", "scheduler.check_programs"),
        _row("controller", "scheduler.check_controller", 4 * _LATE_S, is_slow=True),
    ),
    *_rows(
        "scratch",
        _row("place", "scratch.check_place"),
        _row("mount", "scratch.check_mount", on_tree=True),
        _row("room", "scratch.check_room", on_tree=True),
        _row("semantics", "scratch.check_semantics", _LATE_S, on_tree=True),
    ),
    *_rows("clock", _row("file system's clock", "scratch.check_clock", on_tree=True)),
    *_rows(
        "caches",
        _row("paths", "cache_paths.check_caches", on_tree=True),
        _row("files", "cache_paths.check_cache_files", _LATE_S, is_slow=True, on_tree=True),
        _row("libraries", "cache_paths.check_libraries", _LONG_S, is_slow=True),
    ),
    *_rows(
        "quotas",
        _row("folders", "quotas.check_folders"),
        _row("quotas", "quotas.check_quotas", 2 * _LIMIT_S, is_slow=True),
    ),
    *_rows(
        "limits",
        _row("processes", "limits.check_processes"),
        _row("ulimits", "limits.check_ulimits"),
    ),
    *_rows(
        "project",
        _row("settings", "project.check_settings"),
        _row("folder", "project.check_project_folder"),
        _row("batch table", "project.check_batch_table", on_tree=True),
        _row("spools", "project.check_spools", _LATE_S, on_tree=True),
        _row("records", "project.check_spool_records", _LONG_S, is_slow=True, on_tree=True),
    ),
    *_rows("telemetry", _row("logger", "telemetry.check_logger", on_tree=True)),
)
GATE = "scratch: place"
"""The first look at the tree: where it hangs, the other checks of the tree are not made."""


def make(check: Check, case: Case) -> Iterator[Finding]:
    """Makes one check, and yields what it finds as it finds it.

    Args:
        check: Which.
        case: What it looks at.
    """
    for finding in _guarded(check, case):
        yield msgspec.structs.replace(finding, section=check.section)


def _guarded(check: Check, case: Case) -> Iterator[Finding]:
    try:
        yield from _function(check)(case)
    except FleetError as error:
        yield unknown(check.name, error.message, error.hint)
    except (OSError, MemoryError) as error:
        place = getattr(error, "filename", None)
        words = getattr(error, "strerror", None) or str(error) or "out of memory"
        yield unknown(check.name, f"{place}: {words}" if place else words)
    except Exception as error:  # a defect of one check must not hide the others
        why = f"this check failed: {type(error).__name__}: {error}"
        yield unknown(check.name, why, "report this; the other checks stand")


def _function(check: Check) -> Callable[[Case], Iterator[Finding]]:
    module, _, name = check.place.partition(".")
    found: Callable[[Case], Iterator[Finding]] = getattr(
        import_module(f"{_PACKAGE}.{module}"), name
    )
    return found
