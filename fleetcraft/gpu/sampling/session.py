"""Sampling the GPUs of this process, in one session with the driver that lasts as long as it can.

Nothing is written here, and nothing waits. Invariant: one GPU's trouble is that GPU's row and no
other's; only a driver that answers nobody is an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fleetcraft.gpu import causes
from fleetcraft.gpu.nvml import DriverError, Library, Versions
from fleetcraft.gpu.sampling.card import Card
from fleetcraft.gpu.sampling.questions import Question, forms
from fleetcraft.gpu.sampling.samples import Device, Event, Sample
from fleetcraft.gpu.sampling.selection import (
    Choice,
    Listed,
    choose,
    count_listed,
    find_parent,
    look_at,
)
from fleetcraft.gpu.status import Status

__all__ = ["Device", "DriverError", "Event", "Sample", "Session", "Versions"]

_XID_EVENT = 0x8
"""Source: nvml.h, nvmlEventTypeXidCriticalError."""
_MOST_EVENTS = 256  # at a time; a broken GPU can send more than anybody reads
_NO_INSTANCE = 0xFFFFFFFF


class Session:
    """One session with the driver.

    All calls may block for as long as the driver likes. Calls for one device must not overlap;
    those for different devices may. Whoever sets no deadlines has `inventory` do everything; else
    `find` each of `count`, `find_parent` each of `wanted_slices`, `choose`, and `describe` each.

    Attributes:
        count: How many GPUs the driver lists.
        is_doubtful: Whether what was found may not be so any more: `find` and `choose` again.
    """

    def __init__(
        self,
        library: Library,
        count: int,
        *,
        wanted: Sequence[str] | None,
        known: Sequence[Device],
        earlier: Sequence[Device],
        interval_s: float,
    ) -> None:
        self._library = library
        self._wanted = wanted
        self._known = known
        self._earlier = earlier
        self._interval_s = interval_s
        self._host_bytes = _host_memory_bytes()
        self._cards: list[Card] = []
        self.count = count
        self.is_doubtful = True
        self._number = ctypes.c_uint()
        counting = library.functions("nvmlDeviceGetCount_v2")
        self._counting = Question(forms(counting, (), self._number))
        self._events: Any = None
        self._waiting: Question | None = None
        self._make_event_set()

    @classmethod
    def open(
        cls,
        wanted: Sequence[str] | None = None,
        *,
        known: Sequence[Device] = (),
        earlier: Sequence[Device] = (),
        interval_s: float = 30.0,
    ) -> Session:
        """Begins a session, and counts; looks into no GPU.

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
            count = count_listed(library)
        except DriverError:
            library.close()
            raise
        return cls(
            library, count, wanted=wanted, known=known, earlier=earlier, interval_s=interval_s
        )

    def close(self) -> None:
        """Ends the session."""
        if self._events is not None:
            self._library.ask("nvmlEventSetFree", self._events)
            self._events = None
        self._library.close()

    def versions(self) -> Versions:
        """What the driver says of itself."""
        return self._library.versions()

    # ---------------------------------------------------------------------------- which GPUs

    @property
    def wanted_slices(self) -> list[str]:
        """The slices that are wanted by name."""
        return [entry for entry in self._wanted or () if entry.startswith("MIG-")]

    def find(self, number: int) -> Listed:
        """Handle and UUID of one GPU, by the driver's number; a call into this GPU alone."""
        return look_at(self._library, number)

    def find_parent(self, entry: str) -> str:
        """The UUID of the GPU of a slice; empty when the driver does not tell it."""
        return find_parent(self._library, entry)

    def choose(self, listed: Sequence[Listed], parents: Mapping[str, str]) -> list[Device]:
        """Takes what was found; calls no driver. A GPU that was chosen before keeps its place.

        From then on the rows of one that was chosen before and is not listed are ``absent``, until
        it is listed again.

        Args:
            listed: What `find` said, for every number; without handle and UUID where it said
                nothing.
            parents: What `find_parent` said, by slice.

        Returns:
            The devices, as far as their names are known.
        """
        before = self._cards
        known = [card.known for card in before if not self._is_guessed(card)] or self._known
        choices = choose(listed, parents, self._wanted, known, self._earlier)
        cards = [self._card(choice, before) for choice in choices]
        for card in before:
            card.note_listed(listed)
        places = {id(card): place for place, card in enumerate(before)}
        cards.sort(key=lambda card: places.get(id(card), len(places)))
        self._cards = cards
        self.is_doubtful = False
        return [_at(position, card.known) for position, card in enumerate(cards)]

    def _is_guessed(self, card: Card) -> bool:
        """Whether its name is that of an earlier process alone, which its number stands for."""
        uuid = card.known.uuid
        told = card.handle is not None or any(device.uuid == uuid for device in self._known)
        return not told and any(device.uuid == uuid for device in self._earlier)

    def _card(self, choice: Choice, before: Sequence[Card]) -> Card:
        """The one that was chosen before, else a new one."""
        card = next((card for card in before if card.is_same(choice.device)), None)
        if card is not None:
            card.learn(choice.device)
        else:
            card = Card(
                self._library,
                choice.device,
                interval_s=self._interval_s,
                host_bytes=self._host_bytes,
                slices=choice.slices,
            )
        card.offer(choice.handle)
        return card

    def describe(self, device: Device) -> Device:
        """What one GPU is called, its memory and its slices; calls into this GPU alone."""
        card = self._cards[device.position]
        described = _at(device.position, card.device())
        self._watch(card)
        return described

    def inventory(self) -> list[Device]:
        """The devices of this session, the absent ones too, by the driver's number, in one go."""
        if self.is_doubtful:
            parents = {entry: self.find_parent(entry) for entry in self.wanted_slices}
            self.choose([self.find(number) for number in range(self.count)], parents)
        known = [_at(position, card.known) for position, card in enumerate(self._cards)]
        return [self.describe(device) for device in known]

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
        card = self._cards[device.position]
        rows = card.sample(now_s)
        if not card.is_watched:
            self._watch(card)
        return rows

    def drain(self, device: Device, now_s: float) -> None:
        """Collects one GPU's utilization samples for its next row.

        The driver keeps about a hundred of them, from 6 a second down to 1: where rows are further
        apart than some 15 s, a row covers all of its time only with a call of this in between.
        """
        self._cards[device.position].drain(now_s)

    def recount(self) -> int | None:
        """Asks how many GPUs the driver lists; the list `is_doubtful` where that has changed.

        So it is also while one is absent, which may have come back in another's stead.

        Returns:
            The number; None when the driver does not say.
        """
        if self._counting.ask():
            return None
        count = self._number.value
        self.is_doubtful |= count != self.count or any(card.is_absent for card in self._cards)
        self.count = count
        return self.count

    # ---------------------------------------------------------------------------- events

    def _make_event_set(self) -> None:
        code, events = self._library.ask("nvmlEventSetCreate")
        if code == 0:
            self._events = events
            self._data = self._library.binding.c_nvmlEventData_t()
            arguments = (events, ctypes.byref(self._data), ctypes.c_uint(0))
            functions = self._library.functions("nvmlEventSetWait_v2")
            self._waiting = Question([(one, arguments, self._data) for one in functions])

    def _watch(self, card: Card) -> None:
        """Asks for the XIDs of a GPU; one that has none to tell is a GPU like any other."""
        if self._events is not None and card.handle is not None and not card.is_watched:
            code, _ = self._library.ask(
                "nvmlDeviceRegisterEvents", card.handle, _XID_EVENT, self._events
            )
            card.is_watched = code in (0, causes.NOT_SUPPORTED)

    def events(self) -> list[Event]:
        """The XIDs since the last call. Does not wait for any, and looks into no GPU."""
        if self._waiting is None:
            return []
        found = []
        for _ in range(_MOST_EVENTS):
            if self._waiting.ask():
                break  # a timeout: nothing more; what else it may be shows in the rows
            if self._data.eventType & _XID_EVENT:
                found.append(self._event(self._data))
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


def _at(position: int, device: Device) -> Device:
    return msgspec.structs.replace(device, position=position)


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
