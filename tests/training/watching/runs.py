"""A simulated run for the watch: ranks that report, a clock that the test moves."""

from __future__ import annotations

from typing import Any

import msgspec

from fleetcraft.identity import HostId, ProcessId
from fleetcraft.training.plan.records import End, ProgressPlan, RunPlan
from fleetcraft.training.records import ProcessRecord, RankProgress, RankState
from fleetcraft.training.watching.census import RankSight
from fleetcraft.training.watching.watch import Sight, Watch

STEP_S = 19.0
SEED = RunPlan(
    run="drafters",
    command=("true",),
    look_s=1e6,  # the clock of these tests jumps
    end=End(step=1000),
    progress=ProgressPlan(
        tokens_per_step=32 * 1024, accumulation=4, tokens_per_s=6900.0, queues=("q_pre", "q_hs")
    ),
)
"""Source: TRAINING.md, second seed."""
QUEUES: dict[str, tuple[int, int | None]] = {"q_pre": (50, 50), "q_hs": (26, 50)}


def process(pid: int) -> ProcessRecord:
    return ProcessRecord(
        place=HostId("node1", "boot", "ns"), process=ProcessId(pid, 1), nonce="launch"
    )


class SimulatedRun:
    """Ranks by number; `at` moves the clock, `look` observes."""

    def __init__(self, plan: RunPlan, *, names: tuple[str, ...] = ("drafter-0",)) -> None:
        self.now_s = 0.0
        self.watch = Watch(plan, began_s=0.0)
        self.ranks = {
            rank: RankProgress(rank=rank, name=name, process=process(100 + rank))
            for rank, name in enumerate(names)
        }
        self.dead: set[int] = set()
        self.trouble = ""
        self.seen: dict[int, dict[str, Any]] = {}

    def set(self, rank: int, **told: Any) -> None:
        self.ranks[rank] = msgspec.structs.replace(
            self.ranks[rank], changed_s=self.now_s, lines=self.ranks[rank].lines + 1, **told
        )

    def step(self, rank: int, step: int, *, tokens: int = 0, **told: Any) -> None:
        total = (self.ranks[rank].tokens or 0) + tokens
        self.set(rank, step=step, tokens=total, step_changed_s=self.now_s, **told)

    def phase(self, rank: int, phase: str) -> None:
        self.set(rank, phase=phase, phase_since_s=self.now_s if phase else None)

    def census(self) -> list[RankState]:
        return [
            RankSight(
                rank=one.rank,
                name=one.name,
                alive=one.rank not in self.dead,
                process=one.process,
                step=one.step,
                **self.seen.get(one.rank, {}),
            )
            for one in self.ranks.values()
        ]

    def look(self) -> Sight:
        return self.watch.observe(self.ranks, self.census(), self.now_s, trouble=self.trouble)

    def run_steps(
        self, count: int, *, first: int = 0, step_s: float = STEP_S, tokens: int = 131_072
    ) -> Sight:
        """So many steps of every rank that is not dead, looked at after each."""
        alive = [rank for rank in self.ranks if rank not in self.dead]
        for step in range(first, first + count):
            self.now_s += step_s
            for rank in alive:
                self.step(rank, step, tokens=tokens // len(alive))
            sight = self.look()
        return sight
