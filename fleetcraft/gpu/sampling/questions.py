"""Questions to the driver about one GPU: functions bound to a handle and to memory for the answer.

The calls go past the binding's wrappers, into the library that it loaded: a wrapper makes new
objects for every call and an exception for every refusal, which is most of what a sample costs.
Invariant: what a driver or a GPU cannot answer is not asked again at every sample.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from fleetcraft.gpu import causes
from fleetcraft.gpu.sampling.layouts import MEMBERS, FieldValue, SampleValue

Function = Callable[..., int]
Form = tuple[Function, tuple[Any, ...], Any]
"""A function, its arguments, and the ctypes object among them that takes the answer."""

RETRY_ASKS = 120
"""After so many asks a GPU is asked again for what it did not support; an hour at 30 s."""
_NEVER = 1 << 62
_FIRST_ROOM = 128  # drivers keep about a hundred samples
_MOST_ROOM = 1 << 14  # one that always asks for more must not fill the memory


def forms(functions: list[Function], arguments: tuple[Any, ...], value: Any) -> list[Form]:
    """One form for each name of a function, its answer as the last argument."""
    whole = (*arguments, ctypes.byref(value))
    return [(function, whole, value) for function in functions]


class Question:
    """One question, in the forms that drivers of different ages know, and what came of it.

    A form that this driver lacks is not tried again; what the GPU does not support is asked for
    again after `RETRY_ASKS`; any other refusal is about this moment only.

    Attributes:
        value: Where the answer lies.
        form: Which form gave it, from 0.
    """

    def __init__(self, known: list[Form]) -> None:
        self._forms = known
        self._code = causes.FUNCTION_NOT_FOUND
        self._skip = 0 if known else _NEVER
        self.value: Any = None
        self.form = 0
        if known:
            self._function, self._arguments, self.value = known[0]

    def ask(self) -> int:
        """Asks, or knows better; 0 when `value` holds the answer, else NVML's code."""
        if self._skip:
            self._skip -= 1
            return self._code
        code = self._function(*self._arguments)
        return code and self._refused(code)

    def _refused(self, code: int) -> int:
        while code in causes.FUNCTION_MISSING and self.form + 1 < len(self._forms):
            self.form += 1
            self._function, self._arguments, self.value = self._forms[self.form]
            code = self._function(*self._arguments)
        if code in causes.FUNCTION_MISSING:
            self._code, self._skip = code, _NEVER
        elif code == causes.NOT_SUPPORTED:
            self._code, self._skip = code, RETRY_ASKS
        return code

    def number(self) -> float:
        """The answer, where it is one number."""
        return float(self.value.value)


class FieldQuestion(Question):
    """One field of the field-value query, which succeeds as a whole and fails field by field.

    Args:
        functions: ``nvmlDeviceGetFieldValues``.
        handle: The GPU.
        field: The field's id.
        scope: Of which part.
    """

    def __init__(self, functions: list[Function], handle: Any, field: int, scope: int) -> None:
        value = FieldValue(field=field, scope=scope)
        super().__init__(forms(functions, (handle, ctypes.c_int(1)), value))

    def ask(self) -> int:
        """Asks; see `Question.ask`."""
        if self._skip:
            self._skip -= 1
            return self._code
        value = self.value
        value.code = causes.UNKNOWN  # what a driver leaves as it was is no success
        code = self._function(*self._arguments) or value.code
        # A driver that has never heard of a field or scope calls it an invalid argument.
        return code and self._refused(
            causes.NOT_SUPPORTED if code == causes.INVALID_ARGUMENT else code
        )

    def number(self) -> float:
        """The answer, of whatever type the driver says it is."""
        kind = self.value.kind
        return float(getattr(self.value.number, MEMBERS[kind if kind < len(MEMBERS) else 1]))


class SampleBuffer(Question):
    """The driver's buffer of utilization samples, read into memory of our own.

    Args:
        functions: ``nvmlDeviceGetSamples``.
        handle: The GPU.
        kind: Which samples, an ``nvmlSamplingType_t``.
    """

    def __init__(self, functions: list[Function], handle: Any, kind: int) -> None:
        self._since_us = ctypes.c_ulonglong(0)
        self._type = ctypes.c_uint(0)
        self._count = ctypes.c_uint(0)
        self._first = (handle, ctypes.c_uint(kind), self._since_us, ctypes.byref(self._type))
        super().__init__([(function, (), None) for function in functions])
        self._make_room(_FIRST_ROOM)

    def _make_room(self, count: int) -> None:
        room = (SampleValue * count)()
        whole: Any = memoryview(room).cast("B")
        self._room = count
        self._views = {form: whole.cast(form) for form, _ in _VIEWS}
        self._arguments = (*self._first, ctypes.byref(self._count), room)

    def read(self, since_us: int) -> tuple[int, list[int], list[float]]:
        """The samples that are newer than a time stamp, oldest first.

        Args:
            since_us: A time stamp of the driver; 0 for all that it has.

        Returns:
            NVML's code, time stamps and values; both empty unless the code is 0.
        """
        self._since_us.value = since_us
        self._count.value = self._room
        code = self.ask()
        if code == causes.INSUFFICIENT_SIZE and self._room < _MOST_ROOM:
            self._make_room(2 * self._room)
            self._count.value = self._room
            code = self.ask()
        if code:
            return code, [], []
        end = self._count.value
        kind = self._type.value
        form, per_half = _VIEWS[kind if kind < len(_VIEWS) else 1]
        values: list[float] = self._views[form][
            per_half : 2 * per_half * end : 2 * per_half
        ].tolist()
        return 0, self._views["Q"][: 2 * end : 2].tolist(), values


# For each of nvmlValueType_t: memoryview's format, and how many of it make the eight bytes of a
# time stamp, behind which the value begins.
_VIEWS = (("d", 1), ("I", 2), ("Q", 1), ("Q", 1), ("q", 1), ("i", 2), ("H", 4))
