"""Done tasks whose declared end is missing: found, and resumed once, through the spool.

A pass looks at one run: the task's record says that it is done, `claims` says whether that is so,
and a missing end becomes one claim and one task of the same name. Invariant: what cannot be told
resumes nothing, and the task that is enqueued is written down in its claim before it is enqueued.
"""

from __future__ import annotations

import shlex
from enum import StrEnum

import msgspec

from fleetcraft.errors import DataError, NoSuchTaskError, SpoolError
from fleetcraft.files import FileSystem
from fleetcraft.layout import Lane, State
from fleetcraft.layout.runs import RunPaths
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import Published, complete_publication, enqueue
from fleetcraft.spool.tree import Location, SpoolTree
from fleetcraft.training.checkpoint.claims import (
    DeclaredEnd,
    EndCheck,
    ResumeClaim,
    check_end,
    claim_resume,
    read_claims,
    read_declared,
    resume_name,
    store_of,
)
from fleetcraft.training.checkpoint.records import Kind


class Standing(StrEnum):
    """How a run's claim to be done stands."""

    NO_END = "no_end"
    """It declares none, so there is nothing to check."""
    NOT_CLAIMED = "not_claimed"
    """Its task is not done, so nothing is claimed."""
    VALID = "valid"
    INVALID = "invalid"
    """The end is missing, and one resume may be claimed."""
    RESUMED = "resumed"
    """This pass claimed the resume: said once for each, whoever asks."""
    RESUMING = "resuming"
    """A resume that was claimed before waits or runs; a pass may have had to enqueue it."""
    ASKS = "asks"
    """Somebody must decide: only weights are there, or nothing, or the resume came no further."""
    UNKNOWN = "unknown"


class RunClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass found of one run.

    Attributes:
        run: Its name.
        task: The task whose being done is the claim.
        standing: How that stands.
        reason: Why.
        have: The step of the checkpoint that may be resumed from.
        kind: What that checkpoint is.
        want: The declared step.
        resume: The name of the resume in the spool.
    """

    run: str
    task: str = ""
    standing: Standing
    reason: str
    have: int | None = None
    kind: Kind | None = None
    want: int | None = None
    resume: str = ""


def look_at_run(
    paths: RunPaths,
    tree: SpoolTree,
    *,
    resume: bool = False,
    from_weights: bool = False,
    by: str = "",
    fs: FileSystem | None = None,
) -> RunClaim:
    """One pass over one run.

    The order matters: the task's state, then its checkpoints, then the claims. A checkpoint that a
    resume has written is so never seen without the claim of that resume.

    Args:
        paths: The run's.
        tree: The spool that holds its task.
        resume: Claim and enqueue the resume; else only say that it could be.
        from_weights: Consent to a resume from a checkpoint that is not EXACT.
        by: Who asks.
        fs: The seam for the run's own records.

    Raises:
        SpoolError: The resume's name belongs to another task, or the spool cannot be written.
    """
    try:
        declared = read_declared(paths, fs=fs)
        if declared is None:
            return RunClaim(
                run=paths.name, standing=Standing.NO_END, reason="the run declares no end"
            )
        return _Pass(paths, tree, declared, fs).look(resume, from_weights, by)
    except (DataError, OSError) as error:
        reason = error.message if isinstance(error, DataError) else f"{error.strerror or error}"
        return RunClaim(run=paths.name, standing=Standing.UNKNOWN, reason=reason)


class _Pass:
    """One look at a run that declares an end."""

    def __init__(
        self, paths: RunPaths, tree: SpoolTree, declared: DeclaredEnd, fs: FileSystem | None
    ) -> None:
        self._paths = paths
        self._tree = tree
        self._fs = fs
        self._end = declared.end
        self._task = declared.end.task or paths.name
        self._store = store_of(paths, declared, fs=fs)
        self._checked: EndCheck | None = None

    def look(self, resume: bool, from_weights: bool, by: str) -> RunClaim:
        """What stands, and the resume where it is wanted and may be."""
        done = self._find(self._task)
        if done is None or done.state is not State.DONE:
            where = f"is {done.state.value}" if done else "is not in the spool"
            return self._says(Standing.NOT_CLAIMED, f"task {self._task} {where}")
        checked = self._checked = check_end(self._end, self._store, self._paths)
        if checked.answer is None:
            return self._says(Standing.UNKNOWN, checked.reason)
        if checked.answer:
            return self._says(Standing.VALID, checked.reason)
        claims = read_claims(self._paths, self._task, fs=self._fs)
        standing, reason, name = self._standing_of(claims)
        if standing is not Standing.INVALID or not resume:
            return self._says(standing, f"{checked.reason}; {reason}", name)
        return self._resume(done, claims, from_weights, by, name)

    def _standing_of(self, claims: tuple[ResumeClaim, ...]) -> tuple[Standing, str, str]:
        """What earlier resumes mean for a further one."""
        assert self._checked is not None
        have, want = self._checked.have, self._end.step
        for claim in claims:
            location = self._find(claim.name)
            if location is None:
                return Standing.INVALID, "its resume was claimed but not enqueued", claim.name
            if location.state is State.FAILED:
                return Standing.ASKS, f"its resume {claim.name} failed", claim.name
            if location.state is not State.DONE:
                where = location.state.value
                return Standing.RESUMING, f"its resume {claim.name} is {where}", claim.name
        if have is None or want is None:
            return Standing.ASKS, "there is no checkpoint of a step to resume from", ""
        name = resume_name(self._task, have.step, want)
        if any(claim.have >= have.step for claim in claims):
            return Standing.ASKS, f"its resume {name} is done and came no further", name
        return Standing.INVALID, f"resume from step {have.step}, {have.kind.value}", name

    def _resume(
        self,
        done: Location,
        claims: tuple[ResumeClaim, ...],
        from_weights: bool,
        by: str,
        name: str,
    ) -> RunClaim:
        assert self._checked is not None
        reason = self._checked.reason
        claim = next((claim for claim in claims if claim.name == name), None)
        mine = False
        if claim is None:
            have, want = self._checked.have, self._end.step
            assert have is not None
            assert want is not None
            if have.kind is not Kind.EXACT and not from_weights:
                lacks = ", ".join(have.missing)
                why = f"step {have.step} holds weights only (missing: {lacks})"
                return self._says(Standing.ASKS, f"{reason}; {why}", name)
            mine = claim_resume(self._paths, self._task, have, want, by=by, fs=self._fs)
            claims = read_claims(self._paths, self._task, fs=self._fs)
            claim = next((claim for claim in claims if claim.name == name), None)
            if claim is None:
                return self._says(Standing.UNKNOWN, "the claim is not to be seen", name)
        # Whoever won: a claim whose winner was killed is completed by the next pass.
        published = enqueue(self._tree, self._spec(done, claim), if_absent=True)
        if mine:
            return self._says(Standing.RESUMED, f"{reason}; {name} was enqueued", name)
        how = "is enqueued" if published is Published.ALREADY_THERE else "was enqueued just now"
        return self._says(Standing.RESUMING, f"{reason}; {name}, claimed before, {how}", name)

    def _spec(self, done: Location, claim: ResumeClaim) -> TaskSpec:
        """The done task once more, told from where; a function of its record and the claim."""
        spec = self._tree.read(done.path).spec
        told = (
            f"export FLEET_RESUME_FROM={shlex.quote(claim.checkpoint)} "
            f"FLEET_RESUME_KIND={claim.kind.value}"
        )
        return msgspec.structs.replace(
            spec,
            name=claim.name,
            command=f"{told}\n{spec.command}",
            after=(),
            after_files=(),
            # A frozen grid binds lane last to tasks that it declares, and this is none of them.
            lane=Lane.PLAIN if spec.lane is Lane.LAST else spec.lane,
        )

    def _find(self, name: str) -> Location | None:
        """Where a task is; None where the spool positively has no task of that name.

        Raises:
            DataError: Its record is in no folder, which is no answer.
        """
        try:
            return self._tree.find_or_complete(name, complete_publication)
        except NoSuchTaskError:
            return None
        except SpoolError as error:
            raise DataError(error.message, hint=error.hint) from error

    def _says(self, standing: Standing, reason: str, resume: str = "") -> RunClaim:
        have = self._checked.have if self._checked else None
        return RunClaim(
            run=self._paths.name,
            task=self._task,
            standing=standing,
            reason=reason,
            have=have.step if have else None,
            kind=have.kind if have else None,
            want=self._end.step,
            resume=resume,
        )
