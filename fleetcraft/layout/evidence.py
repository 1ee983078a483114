"""The paths of evidence: grids, results, manifests, receipts, gates, and what a file was made from.

Pure text, as all of the layout. Invariant: a name stands for one thing for ever, so what is
published under it is put there once and never replaced.
"""

from __future__ import annotations

import os

_ORIGIN_SUFFIX = ".origin.json"


class EvidencePaths:
    """The evidence room of one scratch tree.

    Names are ``[A-Za-z0-9][A-Za-z0-9._-]{0,63}``; whoever takes them from a user checks that.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.grids = f"{self.folder}/grids"
        self.results = f"{self.folder}/results"
        self.manifests = f"{self.folder}/manifests"
        self.receipts = f"{self.folder}/receipts"
        self.gates = f"{self.folder}/gates"

    def folders(self) -> tuple[str, ...]:
        """Every folder of the room, parents before children."""
        return (
            self.folder, self.grids, self.results, self.manifests, self.receipts, self.gates,
        )  # fmt: skip

    def grid(self, name: str) -> str:
        """Everything about one grid."""
        return f"{self.grids}/{name}"

    def grid_state(self, name: str, state: str) -> str:
        """Stands once the grid has reached that state."""
        return f"{self.grid(name)}/{state}.json"

    def result_set(self, name: str) -> str:
        """The folder of one set of result records, a file for each writer."""
        return f"{self.results}/{name}"

    def result_file(self, name: str, writer: str) -> str:
        """What one writer appended to a set, one JSON object a line."""
        return f"{self.result_set(name)}/{writer}.jsonl"

    def manifest(self, name: str) -> str:
        """A manifest that was kept under a name."""
        return f"{self.manifests}/{name}.json"

    def receipt(self, name: str) -> str:
        """What was proved of one archive."""
        return f"{self.receipts}/{name}.json"

    def gate(self, name: str) -> str:
        """What a gate decided, with the digests of what it looked at."""
        return f"{self.gates}/{name}.json"


def origin_file(path: str) -> str:
    """The file beside a figure or summary that says what it was made from."""
    return f"{path}{_ORIGIN_SUFFIX}"


def is_origin_file(path: str) -> bool:
    """Whether a path is such a file."""
    return path.endswith(_ORIGIN_SUFFIX)
