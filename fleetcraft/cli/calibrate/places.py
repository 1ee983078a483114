"""What commands of this group share: the scratch tree, the table's path, family keys, the figure.

Invariant: a word that is the key of a family is taken as it stands; a family is imported only in a
child, never here, unless it is built in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from fleetcraft.cli.session import Session
from fleetcraft.cli.stamping import stamp_made
from fleetcraft.errors import DataError, FleetError, UsageError
from fleetcraft.layout import calibration_record
from fleetcraft.trust import make_folders

if TYPE_CHECKING:
    from fleetcraft.batch_table import Table
    from fleetcraft.calibration.records import Calibration
    from fleetcraft.layout import Scratch

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


def scratch_of(session: Session) -> Scratch:
    """The scratch tree.

    Raises:
        ConfigError: Nothing says where it is.
    """
    from fleetcraft.layout import Scratch

    return Scratch(session.config.root)


def check_device(device: str) -> None:
    """Refuses what is no name of a device.

    Raises:
        UsageError: It is neither ``auto``, ``cpu``, ``cuda`` nor ``cuda:N``.
    """
    if not _DEVICE.fullmatch(device):
        raise UsageError(
            f"no device {device!r}; nothing was done",
            hint="auto, cpu, cuda or cuda:N",
            device=device,
        )


def table_path(session: Session) -> str:
    """The frozen table's file: the setting ``batch.table``, else that of the scratch tree."""
    return session.config.text("batch.table") or scratch_of(session).batch_table


def read_table_if_any(path: str) -> Table | None:
    """The table; None when there is no file.

    Raises:
        DataError: It was edited, is not safe, or cannot be read.
    """
    from fleetcraft.batch_table import read_table

    return read_table(path) if os.path.lexists(path) else None


def key_of(word: str) -> str:
    """The key of a family that was named by its key, as a built-in, or as FILE.py:NAME.

    Raises:
        UsageError: It is a file without such a family.
        ConfigError: The file cannot be imported.
    """
    from fleetcraft.calibration.family import BUILT_IN

    if word in BUILT_IN:
        from fleetcraft.calibration.family import find_family

        return find_family(word).key
    if is_file(word):
        from fleetcraft.cli.calibrate.asking import describe

        return describe(word).key
    return word


def is_file(word: str) -> bool:
    """Whether a word means a family in a file or module, and not a key."""
    return ":" in word


def calibrated_keys(scratch: Scratch) -> list[str]:
    """Keys of the families that have a folder of runs, in order."""
    try:
        names = sorted(os.listdir(scratch.calibration))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError(f"cannot list {scratch.calibration}: {error.strerror}") from error
    folders = [name for name in names if os.path.isdir(os.path.join(scratch.calibration, name))]
    return [name.replace("@", "/") for name in folders]


def unknown_family(word: str, known: Sequence[str]) -> FleetError:
    """The error for a family of which nothing is known here."""
    near = get_close_matches(word, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"fleetcraft calibrate run {word}"
    return FleetError(
        f"family {word!r} was never calibrated in this scratch tree, and has no frozen row",
        hint=hint,
        family=word,
        near=near,
    )


def draw(run: Calibration, folder: str, *, name: str = "") -> tuple[tuple[str, ...], str]:
    """Draws the figure of a run; the files, and why there are none.

    A figure is a help: what keeps it from being drawn is told, and is no failure of the command.
    """
    try:
        from fleetcraft.plots.calibration import NAME, plot_calibration
    except ImportError as error:
        return (), f"matplotlib cannot be imported: {error}"
    try:
        files = plot_calibration(run, folder, name=name or NAME).files
    except DataError as error:
        return (), error.message
    except OSError as error:
        return (), f"cannot write into {folder}: {error.strerror or error}"
    stamp_made(files, [(calibration_record(run.folder), None)], made_by="fleetcraft calibrate")
    return files, ""


def figure_place(path: str) -> tuple[str, str]:
    """Folder and name of a figure from what was typed: a folder, or a file ending in .png or .svg.

    Raises:
        UsageError: The folder cannot be made.
    """
    stem, suffix = os.path.splitext(path)
    folder, name = os.path.split(stem) if suffix in (".png", ".svg") else (path, "")
    try:
        make_folders(folder or ".", 0o755)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder {folder}: {error.strerror}; nothing was drawn", path=folder
        ) from error
    return folder or ".", name
