"""The driver's structures that are read at every sample, as plain memory.

The binding's own classes run Python for every attribute; these do not. Invariant: each has the
fields of its structure in nvml.h, in their order; a test compares their sizes with the binding's.
"""

from __future__ import annotations

import ctypes

MEMORY_V2 = 0x02000028
"""Source: nvml.h, nvmlMemory_v2: version and size of the structure."""
TEMPERATURE_V1 = 0x0100000C
"""Source: nvml.h, nvmlTemperature_v1."""


class Rates(ctypes.Structure):
    """``nvmlUtilization_t``."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class MemoryV1(ctypes.Structure):
    """``nvmlMemory_t``, in bytes; what is used includes what the driver reserves."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class MemoryV2(ctypes.Structure):
    """``nvmlMemory_v2_t``, in bytes."""

    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    )


class TemperatureV1(ctypes.Structure):
    """``nvmlTemperature_v1_t``; ``value`` in degrees Celsius."""

    _fields_ = (("version", ctypes.c_uint), ("sensor", ctypes.c_uint), ("value", ctypes.c_int))


class Number(ctypes.Union):
    """``nvmlValue_t``; its members in the order of ``nvmlValueType_t``."""

    _fields_ = (
        ("double", ctypes.c_double),
        ("uint", ctypes.c_uint),
        ("ulong", ctypes.c_ulong),
        ("ulonglong", ctypes.c_ulonglong),
        ("longlong", ctypes.c_longlong),
        ("int", ctypes.c_int),
        ("ushort", ctypes.c_ushort),
    )


MEMBERS = tuple(name for name, _ in Number._fields_)


class FieldValue(ctypes.Structure):
    """``nvmlFieldValue_t``."""

    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("number", Number),
    )


class SampleValue(ctypes.Structure):
    """``nvmlSample_t``."""

    _fields_ = (("timestamp_us", ctypes.c_ulonglong), ("number", Number))
