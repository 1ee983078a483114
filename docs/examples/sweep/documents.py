"""The small JSON documents that the scripts of this sweep hand to each other, and how they end.

Invariant: under a document's name there is a complete one or none, so a killed task leaves nothing
that the next task could mistake for a result.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetcraft.errors import DataError, FleetError

CLIP = "sweep.clip/1"
SCORE = "sweep.score/1"
TIMING = "sweep.timing/1"
PROMPTS = "sweep.prompts/1"


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_document(path: Path, schema: str, **fields: Any) -> None:
    """Writes one JSON object whose first field names its schema."""
    write_text(path, json.dumps({"schema": schema, **fields}, indent=2) + "\n")


def read_document(path: Path, *schemas: str) -> dict[str, Any] | None:
    """Reads a document of one of these schemas; None if the file holds another kind.

    Raises:
        DataError: If the file is missing or holds no JSON object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}", path=str(path)) from None
    if not isinstance(document, dict):
        raise DataError(f"{path} holds no JSON object", path=str(path))
    return document if document.get("schema") in schemas else None


def exit_with(main: Callable[[], None]) -> None:
    """Runs a script; an error that a person can act on becomes two lines and an exit code."""
    try:
        main()
    except FleetError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
