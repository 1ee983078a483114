"""The door to PyAV: its import, and its errors turned into sentences.

Only modules of this package import from here, and nothing light imports those.
Invariant: no exception class of PyAV leaves this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fleetcraft.errors import ConfigError, DataError

try:
    import av
    from av.video.frame import VideoFrame
    from av.video.reformatter import ColorRange, Colorspace, Interpolation
except ImportError as error:
    raise ConfigError(
        "cannot read or write video: PyAV (module 'av') is not installed",
        hint="pip install 'fleetcraft[video]'",
    ) from error

# Source: the exact conversion flags came with PyAV 18.0; 17.1 and older lack them.
if not hasattr(Interpolation, "ACCURATE_RND"):
    raise ConfigError(
        f"cannot read or write video: PyAV {av.__version__} is too old, expected 18 or newer",
        hint="pip install --upgrade 'fleetcraft[video]'",
    )

__all__ = [
    "ColorRange",
    "Colorspace",
    "Interpolation",
    "VideoFrame",
    "av",
    "file_url",
    "translated",
]


def file_url(path: str) -> str:
    """A path as libav takes it, so that a colon in a name is no protocol.

    Args:
        path: Any path of the file system.
    """
    return f"file:{path}"


@contextmanager
def translated(path: str, action: str, hint: str = "") -> Iterator[None]:
    """Turns errors of PyAV and of the operating system into one `DataError`.

    Args:
        path: The file that is worked on.
        action: What is being done, as in "cannot <action> <path>".
        hint: The next step for the user.

    Raises:
        DataError: Instead of any error that PyAV or the file system raises inside.
    """
    try:
        yield
    except (av.error.FFmpegError, OSError) as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"cannot {action} {path}: {reason}", hint=hint, path=path) from error
