"""Recovery by a fleet's own launcher: it lives as long as the job, so it sees leases fall silent.

A pass costs one listing of each ``running/`` and a read of each lease there; Slurm is asked only
when a lease is in doubt. Invariant: what is not known is left alone, and why is said once and not
at every pass; what was said and has passed is forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from fleetcraft.errors import FleetError
from fleetcraft.fleet.judge import LeaseWatch, SlurmTruth, ask_slurm
from fleetcraft.slurm.polls import Polls
from fleetcraft.spool.recovery import (
    AskOwner,
    RecoveryReport,
    StopSurvivors,
    ask_this_machine,
    recover,
)
from fleetcraft.spool.tree import SpoolTree, describe_problem

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class FleetRecovery:
    """Recovers claims of dead workers: `run` every few seconds of a fleet, `run_here` at its end.

    Args:
        trees: The spools; one that is not there yet is passed over.
        polls: How Slurm is asked.
        stop_survivors: Stops what a gone owner's attempt left running on this host.
        note: Told what a person should know.
    """

    def __init__(
        self,
        trees: Sequence[SpoolTree],
        polls: Polls,
        *,
        stop_survivors: StopSurvivors | None,
        note: Callable[[str], None],
    ) -> None:
        self._trees = trees
        self._polls = polls
        self._stop_survivors = stop_survivors
        self._note = note
        self._listen = LeaseWatch()
        self._said: set[str] = set()
        self._stays: set[str] = set()

    def run(self, truth: SlurmTruth | None = None) -> RecoveryReport:
        """One pass over every spool.

        Args:
            truth: What Slurm says, not asked anything yet: claims are to be seen first.

        Returns:
            What was done, added up; ``unknown`` and ``alive`` count the claims that stay.
        """
        known = truth or SlurmTruth(self._polls)

        def judge() -> AskOwner:
            nonlocal known
            if known.was_asked:
                # An answer about one spool is older than the look at the claims of the next.
                known = SlurmTruth(self._polls)
            return ask_slurm(known, self._listen)

        return self._pass(judge, self._tell)

    def run_here(self) -> RecoveryReport:
        """A last pass, about owners on this host alone: it asks nobody and waits for nothing.

        Without it a task outlives a launcher whose last worker was killed, where Slurm does not
        end what left the step's processes.
        """
        return self._pass(ask_this_machine, self._tell_moved)

    def _pass(
        self, judge: Callable[[], AskOwner], tell: Callable[[RecoveryReport], None]
    ) -> RecoveryReport:
        total = RecoveryReport()
        self._stays = set()
        for tree in self._trees:
            try:
                report = recover(tree, judge(), stop_survivors=self._stop_survivors)
            except FileNotFoundError:
                continue
            except (OSError, FleetError) as error:
                self._say_once("the recovery pass failed", describe_problem(error))
                continue
            tell(report)
            total.recovered += report.recovered
            total.rolled_forward += report.rolled_forward
            total.unknown += report.unknown
            total.alive += report.alive
            total.unanswered += report.unanswered
            total.items += report.items
        self._said = self._stays
        return total

    def _tell(self, report: RecoveryReport) -> None:
        self._tell_moved(report)
        for item in report.items:
            if not item.to:
                self._say_once(f"{item.task!r} stays with {item.owner}", item.reason)

    def _tell_moved(self, report: RecoveryReport) -> None:
        for item in report.items:
            if item.to:
                self._note(f"{item.action} {item.task!r} to {item.to}: {item.reason}")

    def _say_once(self, what: str, reason: str) -> None:
        """Says what was not so at the last pass; an age in the reason makes it no news."""
        kind = f"{what}: {_NUMBER.sub('#', reason)}"
        if kind not in self._said and kind not in self._stays:
            self._note(f"{what}: {reason}")
        self._stays.add(kind)
