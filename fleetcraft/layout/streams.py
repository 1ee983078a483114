"""The paths of streams: how far each has been sent to a service outside, and what is on its way.

Pure text, as all of the layout. Invariant: a stream has one folder for each project that it is sent
to, so two projects never share a place.
"""

from __future__ import annotations

import os

_ROOM = "streams"


class StreamPaths:
    """The paths of one stream.

    Args:
        root: The scratch tree.
        service: Where it is sent, such as ``wandb``.
        target: The project there, as ``PROJECT`` or ``ENTITY@PROJECT``.
        kind: ``runs`` or ``fleet``.
        name: What is followed.
    """

    def __init__(self, root: str, service: str, target: str, kind: str, name: str) -> None:
        self.room = f"{os.path.abspath(root)}/{_ROOM}"
        self.service = f"{self.room}/{service}"
        self.target = f"{self.service}/{target}"
        self.kind = f"{self.target}/{kind}"
        self.folder = f"{self.kind}/{name}"
        self.name = name
        self.lock = f"{self.folder}/lock"
        self.identity = f"{self.folder}/stream.json"
        self.cursor = f"{self.folder}/cursor.json"
        self.files = f"{self.folder}/files"
        """What the service's own library writes."""

    def folders(self) -> tuple[str, ...]:
        """Every folder, parents before children; the last two may hold files of others."""
        return (
            self.room, self.service, self.target, self.kind, self.folder, self.lock, self.files,
        )  # fmt: skip

    def session(self, number: int) -> str:
        """The rows of one session, until all of them have arrived."""
        return f"{self.folder}/session-{number:06d}.jsonl"
