"""Sampling the GPUs of this process, in one session with the driver that lasts as long as it can.

Nothing is written here, and nothing waits. Invariant: one GPU's trouble is that GPU's row and no
other's; only a driver that answers nobody is an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import msgspec

from fleetcraft.gpu import causes
from fleetcraft.gpu.nvml import DriverError, Library, Versions
from fleetcraft.gpu.sampling.card import Card
from fleetcraft.gpu.sampling.samples import Device, Event, Sample
from fleetcraft.gpu.sampling.selection import choose, list_gpus, look_at
from fleetcraft.gpu.status import Status

__all__ = ["Device", "DriverError", "Event", "Sample", "Session", "Versions"]

_XID_EVENT = 0x8
"""Source: nvml.h, nvmlEventTypeXidCriticalError."""
_MOST_EVENTS = 256  # at a time; a broken GPU can send more than anybody reads
_NO_INSTANCE = 0xFFFFFFFF


class Session:
    """One session with the driver.

    All calls may block for as long as the driver likes. Calls for one device must not overlap;
    those for different devices may.
    """

    def __init__(self, library: Library, cards: list[Card], count: int) -> None:
        self._library = library
        self._cards = cards
        self._count = count
        self._events: Any = None
        self._watched: set[int] = set()
        self._watch()

    @classmethod
    def open(
        cls,
        wanted: Sequence[str] | None = None,
        *,
        known: Sequence[Device] = (),
        earlier: Sequence[Device] = (),
        interval_s: float = 30.0,
    ) -> Session:
        """Begins a session.

        Args:
            wanted: Which GPUs and slices, as `nvml.visible_gpus` names them: UUIDs, or the driver's
                numbers; None for all that the driver lists. One that it does not list is there
                all the same, and its rows say so.
            known: The devices of an earlier session. One of them that the driver does not list now
                is still expected, and one that it does not name keeps its name.
            earlier: The devices of an earlier process, for the names alone.
            interval_s: Between two samples of a GPU, for what the driver's buffer holds before the
                first.

        Raises:
            DriverError: The driver does not answer, or cannot say how many GPUs there are.
        """
        library = Library()
        try:
            listed = list_gpus(library)
        except DriverError:
            library.close()
            raise
        host_bytes = _host_memory_bytes()
        cards = []
        for position, choice in enumerate(choose(library, listed, wanted, known, earlier)):
            card = Card(
                library,
                msgspec.structs.replace(choice.device, position=position),
                interval_s=interval_s,
                host_bytes=host_bytes,
                slices=choice.slices,
            )
            card.connect(choice.handle)
            cards.append(card)
        return cls(library, cards, len(listed))

    def close(self) -> None:
        """Ends the session."""
        if self._events is not None:
            self._library.ask("nvmlEventSetFree", self._events)
            self._events = None
        self._library.close()

    def versions(self) -> Versions:
        """What the driver says of itself."""
        return self._library.versions()

    def inventory(self) -> list[Device]:
        """The devices of this session, the absent ones too, by the driver's number."""
        return [card.device() for card in self._cards]

    @property
    def gone(self) -> Status | None:
        """Why only a new session can help, after an answer that says so; else None."""
        return next((causes.status_of(card.gone) for card in self._cards if card.gone), None)

    def sample(self, device: Device, now_s: float) -> list[Sample]:
        """Reads one GPU: its row, and one for each of its slices. Raises nothing for its trouble.

        Args:
            device: One of `inventory`; an older record of it will do.
            now_s: This host's time, in seconds since 1970.
        """
        return self._cards[device.position].sample(now_s)

    def drain(self, device: Device, now_s: float) -> None:
        """Collects one GPU's utilization samples for its next row.

        The driver keeps about a hundred of them, from 6 a second down to 1: where rows are further
        apart than some 15 s, a row covers all of its time only with a call of this in between.
        """
        self._cards[device.position].drain(now_s)

    # ---------------------------------------------------------------------------- presence

    def recount(self) -> int | None:
        """Asks how many GPUs the driver lists, and where that has changed, which.

        From then on the rows of one that is not listed are ``absent``, until it is listed again.

        Returns:
            The number; None when the driver does not say.
        """
        code, count = self._library.ask("nvmlDeviceGetCount")
        if code:
            return None
        if count != self._count or any(card.is_absent for card in self._cards):
            listed = [look_at(self._library, number) for number in range(count)]
            uuids = {one.uuid for one in listed}
            nameless = any(not one.uuid for one in listed)
            for card in self._cards:
                # One that does not tell its name may be any of those that are missed.
                if card.known.uuid:
                    is_absent = card.known.uuid not in uuids and not nameless
                    if card.is_absent and not is_absent:
                        card.forget_handle()
                    card.is_absent = is_absent
            self._count = count
        return int(count)

    # ---------------------------------------------------------------------------- events

    def _watch(self) -> None:
        code, events = self._library.ask("nvmlEventSetCreate")
        if code:
            return
        self._events = events
        self._watch_cards()

    def _watch_cards(self) -> None:
        """Asks for the XIDs of each GPU; one that has none to tell is a GPU like any other."""
        for position, card in enumerate(self._cards):
            if card.handle is not None and position not in self._watched:
                code, _ = self._library.ask(
                    "nvmlDeviceRegisterEvents", card.handle, _XID_EVENT, self._events
                )
                if code in (0, causes.NOT_SUPPORTED):
                    self._watched.add(position)

    def events(self) -> list[Event]:
        """The XIDs since the last call. Does not wait for any."""
        if self._events is None:
            return []
        self._watch_cards()
        found = []
        for _ in range(_MOST_EVENTS):
            code, data = self._library.ask("nvmlEventSetWait_v2", self._events, 0)
            if code:
                break  # a timeout: nothing more; what else it may be shows in the rows
            if data.eventType & _XID_EVENT:
                found.append(self._event(data))
        return found

    def _event(self, data: Any) -> Event:
        address = _address(data.device)
        card = next((one for one in self._cards if _address(one.handle) == address), None)
        text, status = causes.xid_words(data.eventData)
        if data.gpuInstanceId != _NO_INSTANCE:
            text += f" in GPU instance {data.gpuInstanceId}"
        if card is None:
            return Event(uuid="", index=None, text=text, status=status)
        return Event(uuid=card.known.uuid, index=card.known.index, text=text, status=status)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value if handle is not None else None


def _host_memory_bytes() -> int:
    """The host's memory; 0 when it is not known. Source: proc(5), ``MemTotal`` in kB."""
    try:
        with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
            word, _, rest = file.readline().partition(":")
        return int(rest.split()[0]) * 1024 if word == "MemTotal" else 0
    except (OSError, ValueError, IndexError):
        return 0
