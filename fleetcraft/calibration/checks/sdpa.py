"""Attention backends of torch: which one runs, which can run, and pinning one of them.

Whether a family's own attention respects its mask is `masks`' question. Invariant: what is said to
be pinned did run, in a probe of this very process; a backend that cannot run is an error, since
torch would otherwise fall back in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from fleetcraft.errors import DeviceError, UsageError

BACKENDS: dict[str, SDPBackend] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# What each fused backend is called when it runs; the math backend leaves no op of its own.
# Source: names seen by a dispatch mode with torch 2.13; the first is what a CPU has.
_OPS = {
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_fused_attention_overrideable": "other",
}


class _Listening(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.heard: str | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = _OPS.get(func.overloadpacket.__name__)
        if name is not None:
            self.heard = name
        return func(*args, **(kwargs or {}))


def active_backend(device: str = "cpu", dtype: torch.dtype | None = None) -> str:
    """The backend that attention takes now, found by running it once on a tiny problem.

    Args:
        device: Where.
        dtype: Of the problem; float32 on CPU and bfloat16 elsewhere when None.

    Returns:
        A key of `BACKENDS`, or ``other``.

    Raises:
        RuntimeError: No backend that is switched on can run here; torch's own words.
    """
    if dtype is None:
        dtype = torch.float32 if device.startswith("cpu") else torch.bfloat16
    tiny = torch.zeros(1, 1, 8, 64, device=device, dtype=dtype)
    listening = _Listening()
    with torch.no_grad(), listening:
        scaled_dot_product_attention(tiny, tiny, tiny)
    return listening.heard or "math"


def usable_backends(device: str = "cpu", dtype: torch.dtype | None = None) -> dict[str, str]:
    """Every backend, with why it cannot run here; an empty text where it can."""
    found = {}
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(backend):
                ran = active_backend(device, dtype)
            found[name] = "" if ran == name else f"{ran} ran in its place"
        except RuntimeError as error:
            found[name] = str(error).partition(".")[0]
    return found


@contextmanager
def pinned(name: str, device: str = "cpu") -> Iterator[str]:
    """Pins one backend for what runs inside; an empty name pins none.

    Args:
        name: A key of `BACKENDS`, or empty.
        device: Where it will be used.

    Yields:
        The backend that runs.

    Raises:
        UsageError: There is no such backend.
        DeviceError: It cannot run here.
    """
    if not name:
        yield active_backend(device)
        return
    if name not in BACKENDS:
        raise UsageError(
            f"no attention backend {name!r}; nothing was pinned",
            hint=f"one of {', '.join(BACKENDS)}",
            backend=name,
        )
    with sdpa_kernel(BACKENDS[name]):
        try:
            ran = active_backend(device)
        except RuntimeError as error:
            raise _cannot_run(name, device, str(error).partition(".")[0]) from error
        if ran != name:
            raise _cannot_run(name, device, f"{ran} ran in its place")
        yield ran


def _cannot_run(name: str, device: str, why: str) -> DeviceError:
    usable = [backend for backend, reason in usable_backends(device).items() if not reason]
    return DeviceError(
        f"the attention backend {name!r} cannot run on {device}: {why}",
        hint=f"what can run here: {', '.join(usable) or 'none'}",
        backend=name,
        device=device,
    )


def plain_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, keep: torch.Tensor
) -> torch.Tensor:
    """Torch's own attention with a key-padding mask, as a correct caller writes it.

    Args:
        query: [B, H, Q, D].
        key: [B, H, K, D].
        value: [B, H, K, D].
        keep: bool [B, K], False where a key is padding.

    Returns:
        [B, H, Q, D].
    """
    return scaled_dot_product_attention(query, key, value, attn_mask=keep[:, None, None, :])


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
