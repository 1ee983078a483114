"""The folder of one node below which compilers put what they generate: private, or not used.

What lies there is loaded into processes of this user, so nobody else may have put it there.
Invariant: a folder that somebody else owns or could write is refused, never repaired.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fleetcraft.caches.scope import CacheSettings, local_root
from fleetcraft.trust import make_folders, require_private_folder


def require_local_root(environ: Mapping[str, str], settings: CacheSettings) -> str:
    """Makes the node's folder for generated sources, or checks that it is private.

    Args:
        environ: Of it ``TMPDIR`` is used.
        settings: What the project says.

    Returns:
        The folder below which generated sources lie; it itself need not be there.

    Raises:
        UnsafeSpoolError: Somebody else owns it or can write it.
        OSError: It cannot be made or looked at.
    """
    root = local_root(environ, settings)
    private = os.path.dirname(root)
    make_folders(os.path.dirname(private))
    require_private_folder(private)
    return root
