"""What a family's cycle is handed: its batch, its phases, its noise, and places to leave results.

How phases are measured is a meter's business, in `meters`. Invariant: what a sample is given here
depends on the seed of the run and the sample's number, never on the batch or on the device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fleetcraft.calibration.trial.findings import (
    Finding,
    autograd_retained,
    output_empty,
    owner_outlived,
)
from fleetcraft.calibration.trial.journal import Event, JournalWriter
from fleetcraft.calibration.trial.meters import Meter
from fleetcraft.calibration.trial.noise import Noise
from fleetcraft.calibration.trial.orders import Pass
from fleetcraft.calibration.trial.outputs import empty_files, what_is_wrong
from fleetcraft.calibration.trial.participants import PARTICIPANTS_FOLDER, Participants
from fleetcraft.errors import UsageError
from fleetcraft.files import replace_atomically
from fleetcraft.trust import make_folders

if TYPE_CHECKING:
    from fleetcraft.video import EncoderSettings

T = TypeVar("T")
WRITE_PHASE = "write"
_PROGRESS_S = 0.1


class Context:
    """One cycle's view of its trial.

    Args:
        batch: Samples of the cycle.
        device: Where to compute, as torch spells it.
        fault: The fault that the family is asked to have; empty for none.
        folder: Where its files go; it is made when the first is written.
        seed: Of the run.
        pass_name: The pass that runs the cycle.
        cycle: Its number within the pass.
        journal: What happens is told here; None tells nobody.
        meter: What measures the phases; None measures nothing.

    Attributes:
        samples: The numbers of its samples.
        findings: What was found wrong so far.
    """

    def __init__(
        self,
        *,
        batch: int = 1,
        device: str = "cpu",
        fault: str = "",
        folder: str = ".",
        seed: int = 0,
        pass_name: Pass = Pass.CHECKS,
        cycle: int = 0,
        journal: JournalWriter | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.batch = batch
        self.device = device
        self.fault = fault
        self.folder = folder
        self.seed = seed
        self.pass_name = pass_name
        self.samples = range(batch)
        self.findings: list[Finding] = []
        self.current_phase = ""
        self.last_phase = ""
        self._where = {"pass": pass_name, "cycle": cycle}
        self._journal = journal
        self._meter = meter or Meter()
        self._grad: bool | None = None
        self._releases: tuple[str, ...] = ()
        self._noise = Noise(seed)
        self._written: list[str] = []
        self._told_at = 0.0

    @property
    def is_preflight(self) -> bool:
        """Whether tensors are fake: shapes are real, values are not there."""
        return self.pass_name is Pass.PREFLIGHT

    def variant(self, *, batch: int | None = None, device: str | None = None) -> Context:
        """The same trial with another batch or device, its noise at the start, unmeasured."""
        return Context(
            batch=self.batch if batch is None else batch,
            device=self.device if device is None else device,
            fault=self.fault,
            folder=self.folder,
            seed=self.seed,
            pass_name=self.pass_name,
        )

    # -- phases

    @contextmanager
    def phase(
        self, name: str, *, grad: bool | None = None, releases: Sequence[str] = ()
    ) -> Iterator[None]:
        """A part of the cycle that is measured on its own; phases do not nest.

        Args:
            name: Its name; a second phase of the same name in a cycle is added to the first.
            grad: False says that nothing may be saved for a backward pass at its end. It switches
                no gradients off: that is the cycle's own affair, and this is how it is checked.
            releases: Owners that must be gone at its end.

        Raises:
            UsageError: Another phase is running, or an owner to release was never registered.
        """
        self.begin(name, grad=grad, releases=releases)
        try:
            yield
        except BaseException:
            self.interrupt()
            raise
        self.end()

    def begin(self, name: str, *, grad: bool | None = None, releases: Sequence[str] = ()) -> None:
        """Begins a phase where a block cannot be used; as `phase`."""
        if self.current_phase:
            raise UsageError(
                f"phase {name!r} begins inside phase {self.current_phase!r}",
                hint="phases do not nest: end the first, or use ctx.scope(...) inside it",
            )
        if not name:
            raise UsageError("a phase needs a name")
        self._meter.pause()
        self._tell(Event.PHASE_BEGIN, phase=name)
        self.current_phase = self.last_phase = name
        self._grad = grad
        self._releases = (releases,) if isinstance(releases, str) else tuple(releases)
        self._meter.begin(name)

    def end(self) -> None:
        """Ends the phase that `begin` began."""
        name = self.current_phase
        if not name:
            raise UsageError("ctx.end() without a phase", hint="call ctx.begin(NAME) first")
        fields = self._meter.end(name, self._releases)
        self.current_phase = ""
        self._require_owners(name)
        found = self._judge(name, fields)
        self.findings += found
        self._tell(Event.PHASE_END, phase=name, **fields, findings=found)
        self._meter.resume()

    def interrupt(self) -> None:
        """Ends the phase that runs, if one does, by an exception that is on its way.

        What is known of it is written down, and nothing is judged.
        """
        name, self.current_phase = self.current_phase, ""
        if name:
            fields = self._meter.interrupted(name)
            self._tell(Event.PHASE_END, phase=name, interrupted=True, **fields)

    def _require_owners(self, name: str) -> None:
        known = self._meter.owners()
        for owner in self._releases:
            if owner not in known:
                near = get_close_matches(owner, known, n=1)
                raise UsageError(
                    f"phase {name!r} releases {owner!r}, which was never registered",
                    hint=f"did you mean {near[0]!r}?"
                    if near
                    else f"register it with ctx.own({owner!r}, ...)",
                )

    def _judge(self, name: str, fields: dict[str, Any]) -> list[Finding]:
        found = []
        retained = fields.get("autograd_bytes")
        if self._grad is False and retained:
            found.append(autograd_retained(name, retained))
        held = fields.get("held_bytes", {})
        found += [owner_outlived(name, owner, size) for owner, size in held.items() if size]
        if name == WRITE_PHASE:
            self._written += empty_files(self.folder)
        return found + self._look_at_outputs(name)

    def _look_at_outputs(self, phase: str) -> list[Finding]:
        """Findings about files that were told of since the last look."""
        paths = dict.fromkeys(self._written)
        self._written.clear()
        wrong = {path: what_is_wrong(path) for path in paths}
        return [output_empty(phase, path, why) for path, why in wrong.items() if why]

    def finish(self) -> None:
        """Ends the cycle: looks at files that were told of outside of phases.

        Raises:
            UsageError: A phase is still open.
        """
        if self.current_phase:
            name = self.current_phase
            self.interrupt()
            raise UsageError(f"the cycle ended inside phase {name!r}", hint="call ctx.end()")
        self._meter.pause()
        self.findings += self._look_at_outputs(self.last_phase)
        self._meter.resume()

    # -- owners

    def own(self, name: str, obj: T) -> T:
        """Registers what an object reaches under a name, weakly: the cycle can still drop it.

        Args:
            name: Of the owner, such as ``model`` or ``probe.kv``. Gradients of a module become
                an owner of their own, ``NAME.grad``.
            obj: A module, an optimizer, a tensor, or lists and dicts of them.

        Returns:
            The object itself.
        """
        self._meter.own(name, obj)
        return obj

    def scope(self, name: str) -> AbstractContextManager[None]:
        """Names what is made inside and claimed by nobody: ``unowned:NAME``."""
        return self._meter.scope(name)

    # -- noise

    def generator(self, sample: int) -> torch.Generator:
        """The generator of one sample, on the CPU whatever the device, at wherever it has got to.

        It starts from the run's seed and the sample's number alone, and is made once a cycle.
        """
        return self._noise.generator(sample)

    def generators(self, batch: int | None = None) -> list[torch.Generator]:
        """The generators of the first ``batch`` samples, as diffusers takes them."""
        return [self.generator(sample) for sample in range(self.batch if batch is None else batch)]

    def restart_noise(self) -> None:
        """Puts every generator to its start, as at the beginning of a cycle."""
        self._noise.restart()

    def noise(
        self, shape: Sequence[int], batch: int | None = None, *, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Normal noise for the first ``batch`` samples; further calls of a cycle draw on.

        Drawn in float32 on the CPU and moved, so that all devices and types start from one noise.

        Args:
            shape: Of one sample.
            batch: How many; all when None.
            dtype: Of the result; float32 when None.

        Returns:
            [batch, *shape] on the context's device; row i is bit-equal to what sample i alone
            draws.
        """
        return self.noise_for(range(self.batch if batch is None else batch), shape, dtype=dtype)

    def noise_for(
        self, samples: Sequence[int], shape: Sequence[int], *, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Normal noise for these samples; as `noise`."""
        return self._noise.normal(samples, shape).to(
            device=self.device, dtype=dtype or torch.float32
        )

    # -- results

    def path(self, name: str) -> str:
        """A place for a file of this cycle; its folder is there."""
        path = os.path.join(self.folder, name)
        if not self.is_preflight:
            make_folders(os.path.dirname(path) or ".")
        return path

    def write_video(
        self,
        frames: Any,
        *,
        name: str = "sample",
        encoder: str | EncoderSettings = "h264-sdr-v1",
        fps: float = 24,
    ) -> list[str]:
        """Writes one video a sample, and has them looked at when the phase ends.

        Args:
            frames: [T, H, W, 3] or [B, T, H, W, 3]; see `fleetcraft.video.as_uint8_frames`.
            name: Stem of the files.
            encoder: A profile of `fleetcraft.video`, or settings.
            fps: Frames per second.

        Returns:
            Their paths. On fake tensors nothing is written.
        """
        single = len(frames.shape) == 4
        clips = [frames] if single else frames
        paths = [f"{name}.mp4"] if single else [f"{name}-{i:03d}.mp4" for i in range(len(clips))]
        paths = [self.path(path) for path in paths]
        if self.is_preflight:
            return paths
        from fleetcraft.video import write_video

        settings = _settings(encoder)
        for path, clip in zip(paths, clips, strict=True):
            write_video(path, clip, fps=fps, encoder=settings)
            self.wrote(path)
        return paths

    def wrote(self, path: str) -> None:
        """Tells of a file that the cycle made itself; it is looked at when the phase ends."""
        if not self.is_preflight:
            self._written.append(os.path.abspath(path))

    def save(self, obj: Any, name: str) -> str:
        """Saves with `torch.save`, whole or not at all.

        Returns:
            Its path. On fake tensors nothing is written.
        """
        path = self.path(name)
        if self.is_preflight:
            return path
        temporary = f"{path}.{os.getpid()}.part"
        try:
            torch.save(obj, temporary)
            replace_atomically(temporary, path)
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)
        self.wrote(path)
        return path

    # -- being watched

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Says that the phase goes on, so that it does not count as stalled.

        Told at most ten times a second; the last of a total always.
        """
        now = time.monotonic()
        if now - self._told_at < _PROGRESS_S and done != total:
            return
        self._told_at = now
        self._tell(
            Event.PROGRESS, phase=self.current_phase, done=done, total=total, note=note[:200]
        )

    def participants(
        self,
        commands: Mapping[str, Sequence[str]],
        *,
        patience_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> Participants:
        """Processes that take part, each a command; see `Participants`.

        On fake tensors nothing is started, and all are done at once.

        Raises:
            UsageError: There is none.
        """
        if not commands:
            raise UsageError("no participants were given; nothing was started")
        return Participants(
            {} if self.is_preflight else commands,
            folder=os.path.join(self.folder, PARTICIPANTS_FOLDER),
            phase=self.current_phase,
            patience_s=patience_s,
            tell=lambda **fields: self._tell(Event.PARTICIPANT, phase=self.current_phase, **fields),
            env=env,
        )

    def _tell(self, event: Event, **fields: Any) -> None:
        if self._journal is not None:
            self._journal.write(event, **self._where, **fields)


def _settings(encoder: str | EncoderSettings) -> EncoderSettings:
    if not isinstance(encoder, str):
        return encoder
    from fleetcraft.video.profiles import encoder_profile

    return encoder_profile(encoder)
