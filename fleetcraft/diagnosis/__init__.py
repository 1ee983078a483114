"""How a process died: what its log, its device's error text and the kernel's counters say.

Evidence in, a word out; nothing is signalled or moved. Invariant: a kill counts as out of memory
only when the kernel's own counter rose meanwhile. `device_oom` is imported by its own name: a
worker starts without its patterns.
"""

from fleetcraft.diagnosis.attempt_log import device_ran_out as device_ran_out
from fleetcraft.diagnosis.oom_counter import OomCounter as OomCounter
from fleetcraft.diagnosis.process_limits import process_limit_words as process_limit_words

__all__ = [
    "OomCounter",
    "device_ran_out",
    "process_limit_words",
]
