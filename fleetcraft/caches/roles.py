"""The table of roles: which variables decide each, in which order, as the libraries read them.

Data only. Invariant: each row is the order of one library's own source, which it names; the first
variable that is set decides, also when it is empty, since that is what ``os.getenv`` does.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from fleetcraft.caches.records import Role


class Reads(StrEnum):
    """What a library does with a variable's text.

    ``raw`` leaves it alone, ``home`` replaces a leading ``~``, ``full`` that and then ``$NAME``.
    """

    RAW = "raw"
    HOME = "home"
    FULL = "full"


class Step(NamedTuple):
    """One variable of a chain: ``below`` is appended and ``reads`` applied; then both once more."""

    variable: str
    below: str = ""
    reads: Reads = Reads.FULL
    then: str = ""
    again: Reads = Reads.RAW


class Chain(NamedTuple):
    """How one role is resolved.

    ``default`` is below the home folder. ``library`` is the package that reads the variables;
    ``ignored`` are variables of this role that it no longer reads.
    """

    library: str
    steps: tuple[Step, ...]
    default: str
    ignored: tuple[str, ...] = ()


_HF = ".cache/huggingface"
_OLD_TRANSFORMERS = (
    "TRANSFORMERS_CACHE", "PYTORCH_TRANSFORMERS_CACHE", "PYTORCH_PRETRAINED_BERT_CACHE",
)  # fmt: skip
_HUB_STEPS = (
    Step("HF_HUB_CACHE"),
    Step("HUGGINGFACE_HUB_CACHE"),
    Step("HF_HOME", then="hub", again=Reads.FULL),
    Step("XDG_CACHE_HOME", "huggingface", then="hub", again=Reads.FULL),
)

CHAINS = {
    # Source: constants.py of huggingface_hub 2.4.
    Role.HF_HOME: Chain(
        "huggingface_hub", (Step("HF_HOME"), Step("XDG_CACHE_HOME", "huggingface")), _HF
    ),
    Role.HUB: Chain("huggingface_hub", _HUB_STEPS, f"{_HF}/hub"),
    Role.ASSETS: Chain(
        "huggingface_hub",
        (
            Step("HF_ASSETS_CACHE"),
            Step("HUGGINGFACE_ASSETS_CACHE"),
            Step("HF_HOME", then="assets", again=Reads.FULL),
            Step("XDG_CACHE_HOME", "huggingface", then="assets", again=Reads.FULL),
        ),
        f"{_HF}/assets",
    ),
    Role.XET: Chain(
        "huggingface_hub",
        (
            Step("HF_XET_CACHE", reads=Reads.RAW),
            Step("HF_HOME", then="xet"),
            Step("XDG_CACHE_HOME", "huggingface", then="xet"),
        ),
        f"{_HF}/xet",
    ),
    # Source: config.py of datasets 2.x. It replaces no $NAME, and nothing in its own variable.
    Role.DATASETS: Chain(
        "datasets",
        (
            Step("HF_DATASETS_CACHE", reads=Reads.RAW),
            Step("HF_HOME", reads=Reads.HOME, then="datasets"),
            Step("XDG_CACHE_HOME", "huggingface", Reads.HOME, then="datasets"),
        ),
        f"{_HF}/datasets",
    ),
    # Source: utils/hub.py of transformers 5.24, which takes the hub's path and no variable.
    Role.TRANSFORMERS: Chain("transformers", _HUB_STEPS, f"{_HF}/hub", ignored=_OLD_TRANSFORMERS),
    # Source: utils/hub.py of transformers 5.24, utils/constants.py of diffusers 0.42.
    Role.MODULES: Chain(
        "transformers",
        (
            Step("HF_MODULES_CACHE", reads=Reads.RAW),
            Step("HF_HOME", then="modules"),
            Step("XDG_CACHE_HOME", "huggingface", then="modules"),
        ),
        f"{_HF}/modules",
    ),
    # Source: hub.py of torch 2.13, _get_torch_home and get_dir.
    Role.TORCH_HUB: Chain(
        "torch",
        (
            Step("TORCH_HOME", reads=Reads.HOME, then="hub"),
            Step("XDG_CACHE_HOME", "torch", Reads.HOME, then="hub"),
        ),
        ".cache/torch/hub",
        ignored=("TORCH_HUB", "TORCH_MODEL_ZOO"),
    ),
    # Source: knobs.py of Triton 3.x. Inductor puts its own kernels below its graphs where the
    # variable is not set (_inductor/runtime/cache_dir_utils.py of torch 2.13).
    Role.TRITON: Chain(
        "triton",
        (
            Step("TRITON_CACHE_DIR", reads=Reads.RAW),
            Step("TRITON_HOME", ".triton/cache", Reads.RAW),
        ),
        ".triton/cache",
    ),
    # Source: utils/cpp_extension.py and _appdirs.py of torch 2.13.
    Role.EXTENSIONS: Chain(
        "torch",
        (
            Step("TORCH_EXTENSIONS_DIR", reads=Reads.RAW),
            Step("XDG_CACHE_HOME", "torch_extensions", Reads.RAW),
        ),
        ".cache/torch_extensions",
    ),
    # Source: CUDA C++ Programming Guide, "CUDA Environment Variables": CUDA_CACHE_PATH.
    Role.CUDA: Chain("cuda", (Step("CUDA_CACHE_PATH", reads=Reads.RAW),), ".nv/ComputeCache"),
}
"""Every role but Inductor's, whose default is no path below home; see `resolve`."""

TRANSFORMERS_BEFORE_5 = Chain(
    "transformers",
    (*(Step(name, reads=Reads.RAW) for name in _OLD_TRANSFORMERS), *_HUB_STEPS),
    f"{_HF}/hub",
)
"""Source: utils/hub.py of transformers 4.x."""

INDUCTOR_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
INDUCTOR_LIBRARY = "torch"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
TOKEN_PATH = "HF_TOKEN_PATH"
VARIABLES = frozenset(
    {step.variable for chain in CHAINS.values() for step in chain.steps}
    | {name for chain in CHAINS.values() for name in chain.ignored}
    | {INDUCTOR_VARIABLE, TOKEN_PATH, *OFFLINE}
)
"""Every variable that can move a cache, or let it be filled."""
