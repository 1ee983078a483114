"""Why a reading of a GPU lacks something: the closed set of causes that telemetry writes down.

Nothing here asks a driver. Invariant: a cause never stands for a value; the cell it explains is
empty.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The word in the ``status`` column, and in ``missing`` for single fields.

    Source: the table at the end of the telemetry format page; NVML API reference, "nvmlReturn_t".
    """

    OK = "ok"
    NO_NVML = "no_nvml"
    """There is no NVML library: a host without an NVIDIA driver."""
    DRIVER_NOT_LOADED = "driver_not_loaded"
    VERSION_MISMATCH = "version_mismatch"
    """Kernel module and library are of different versions, until a reboot or a module reload."""
    NO_PERMISSION = "no_permission"
    LOST = "lost"
    """The GPU fell off the bus."""
    RESET_REQUIRED = "reset_required"
    ABSENT = "absent"
    """It was there when the logger started, and the driver does not list it any more."""
    TIMEOUT = "timeout"
    """A call into the driver has not returned."""
    UNSUPPORTED = "unsupported"
    UNSUPPORTED_DRIVER = "unsupported_driver"
    """This driver lacks the function."""
    UNIFIED = "unified"
    """The GPU has no memory of its own; it is the host's."""
    INVALID = "invalid"
    """The driver answered with a value that cannot be, such as a total of 0."""
    MIG = "mig"
    """It is cut in slices, which have rows of their own."""
    UNKNOWN = "unknown"
