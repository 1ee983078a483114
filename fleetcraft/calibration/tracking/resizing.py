"""Hearing of `UntypedStorage.resize_`, which is no op and which no dispatch mode sees.

Sharded training frees and refills parameters by it. What to do about it is the listener's.
Invariant: torch is as it was once the last listener has left.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Listener(Protocol):
    """Who wants to know."""

    def before_resize(self, storage: torch.UntypedStorage, size_bytes: int) -> None:
        """It may raise, and then nothing changes."""

    def after_resize(self, storage: torch.UntypedStorage) -> None:
        """It has its new size."""


_listeners: list[Listener] = []
_native_resize: Any = torch.UntypedStorage.resize_


def listen(listener: Listener) -> None:
    """From now on it hears."""
    _listeners.append(listener)
    torch.UntypedStorage.resize_ = _resize  # type: ignore[assignment, method-assign]


def leave(listener: Listener) -> None:
    """It hears no more."""
    _listeners.remove(listener)
    if not _listeners:
        del torch.UntypedStorage.resize_  # what it inherits is in sight again


def _resize(storage: torch.UntypedStorage, size_bytes: int) -> Any:
    for listener in _listeners:
        listener.before_resize(storage, size_bytes)
    changed = _native_resize(storage, size_bytes)
    for listener in _listeners:
        listener.after_resize(storage)
    return changed
