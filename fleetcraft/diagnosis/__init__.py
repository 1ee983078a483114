"""How a process died: what its log, its device's error text and the kernel's counters say.

Evidence in, a word out; nothing is signalled or moved. Invariant: a kill counts as out of memory
only when the kernel's own counter rose meanwhile.
"""

from fleetcraft.diagnosis.attempt_log import device_ran_out as device_ran_out
from fleetcraft.diagnosis.device_oom import DeviceOom as DeviceOom
from fleetcraft.diagnosis.device_oom import judge_device_oom as judge_device_oom
from fleetcraft.diagnosis.device_oom import parse_device_oom as parse_device_oom
from fleetcraft.diagnosis.oom_counter import OomCounter as OomCounter
from fleetcraft.diagnosis.process_limits import process_limit_words as process_limit_words

__all__ = [
    "DeviceOom",
    "OomCounter",
    "device_ran_out",
    "judge_device_oom",
    "parse_device_oom",
    "process_limit_words",
]
