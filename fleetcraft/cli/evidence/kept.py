"""What commands over files of evidence share: the room where names are kept.

Invariant: a call that gives paths alone needs no scratch tree.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fleetcraft.cli.session import Session
from fleetcraft.errors import ConfigError

if TYPE_CHECKING:
    from fleetcraft.layout.evidence import EvidencePaths


def kept_room(session: Session) -> EvidencePaths | None:
    """The evidence room of the scratch tree; None where nothing says where that is."""
    from fleetcraft.layout import Scratch
    from fleetcraft.layout.evidence import EvidencePaths

    root = session.config.text("root")
    return EvidencePaths(Scratch(root).evidence) if root else None


def require_room(session: Session) -> EvidencePaths:
    """The evidence room, where something is to be kept.

    Raises:
        ConfigError: Nothing says where the scratch tree is, or it is not there.
    """
    from fleetcraft.layout import Scratch
    from fleetcraft.layout.evidence import EvidencePaths

    root = session.config.root
    if not os.path.isdir(root):
        raise ConfigError(
            f"no scratch tree at {root}; nothing was written",
            hint="fleetcraft init makes it, or name a file with -o",
            root=root,
        )
    return EvidencePaths(Scratch(root).evidence)
