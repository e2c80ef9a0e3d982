"""What happens between the phases of a job, and how it ends; asked at rank 0 only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from pcopy import errors
from pcopy.engine.task import Spawn
from pcopy.fsio.identity import Identity
from pcopy.fsio.problem import Problem
from pcopy.tasks.codec import encode
from pcopy.tasks.context import SCAN_COST, Context
from pcopy.tasks.job import Job, Totals, mount_codes
from pcopy.tasks.phases import Phase
from pcopy.tasks.sign_values import DigestLevel, Entries, EntriesNote, ReadManifest, SendEntries, WriteManifest
from pcopy.tasks.signing import owner_of
from pcopy.tasks.values import NOWHERE, Place, ScanDir, ScanNames, SyncFiles, pack_numbers


class JobDirector:
    """Fills ``pcopy.engine.node.Director``. ``leaders`` are one rank of each host.

    ``status_of`` knows the exit status of some reasons to stop early; ``settle`` is asked at the end of a job whose
    items are all there: what it has to do with the signature, and the status.
    """

    def __init__(
        self,
        job: Job,
        leaders: Sequence[int],
        status_of: Callable[[str], int | None],
        context: Context,
        settle: Callable[[Totals], int] = lambda _: errors.OK,
    ) -> None:
        self._job = job
        self._status_of = status_of
        self._leaders = leaders
        self._context = context
        self._settle = settle
        self.totals = Totals()
        """The exact sums at the end of the last phase."""
        self.halted: str | None = None
        """Why the job ended before all was done, if it did. A reason that comes later counts no more."""

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        ranks = range(self._context.size)
        if phase == Phase.COPY:
            return self._begin()
        if phase in (Phase.SYNC, Phase.REPAIR_SYNC):
            return [Spawn(phase, encode(SyncFiles(None)), 0, owner=leader) for leader in self._leaders]
        if phase == Phase.STORE:
            return [Spawn(phase, encode(SyncFiles(None)), 0, owner=rank) for rank in ranks]
        if phase == Phase.SIGN:
            return [*self._common_root(), *(Spawn(phase, encode(SendEntries()), 0, owner=rank) for rank in ranks)]
        if phase > Phase.SIGN:
            depth = self._depth(phase)
            if depth < 0:
                return [Spawn(phase, encode(WriteManifest()), 0, owner=0)]
            return [Spawn(phase, encode(DigestLevel(depth)), 0, owner=rank) for rank in ranks]
        return []

    def _begin(self) -> Iterator[Spawn]:
        for number in range(len(self._job.roots)):
            yield self._root_task(number)
        if self._job.against:
            yield Spawn(int(Phase.COPY), encode(ReadManifest()), 0, owner=0)

    def _root_task(self, number: int) -> Spawn:
        root = self._job.roots[number]
        source_mount, target_mount = mount_codes(self._job.roots)[number]
        source_id, target_id = Identity(source_mount, root.source_id[1]), Identity(target_mount, root.target_id[1])
        if not root.item:
            return Spawn(int(Phase.COPY), encode(ScanDir(number, b"", source_id, None)), SCAN_COST, True)
        place = Place(number, b"", source_id, target_id if self._job.copies else NOWHERE, False, False)
        return Spawn(int(Phase.COPY), encode(ScanNames(place, root.item, 0)), SCAN_COST, True)

    def _common_root(self) -> Iterator[Spawn]:
        """Several sources are one dataset, a directory that none of them is."""
        if self._job.copies and len(self._job.roots) > 1:
            size = self._context.hashing.algorithm.size
            root = Entries(0, b"", b"", b"d", pack_numbers([0]), bytes(size), 0)
            owner = owner_of(b"", self._context.size)
            yield Spawn(int(Phase.SIGN), encode(EntriesNote((root,))), 0, owner=owner)

    def _depth(self, phase: int) -> int:
        """Of the directories that are digested in a phase; -1 for the phase after the last level."""
        return self._context.sign.deepest - (phase - Phase.LEVEL)

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        sums = self.totals = Totals(*totals)
        options = self._job.options
        if phase >= Phase.SIGN:
            last = Phase.LEVEL + self._context.sign.deepest + bool(options.manifest)
            return phase + 1 if phase < last else None
        repaired = bool(sums.for_repair)
        due = {
            Phase.LINK: sums.for_link,
            Phase.STORE: sums.for_name and options.sync,
            Phase.NAME: sums.for_name,
            Phase.FINISH: sums.for_finish,
            Phase.SEAL: sums.for_seal,
            Phase.SYNC: self._job.copies and options.sync,
            Phase.VERIFY: self._job.copies and options.verify,
            Phase.REPAIR: repaired,
            Phase.REPAIR_LINK: repaired,
            Phase.REPAIR_FINISH: repaired,
            Phase.REPAIR_SYNC: repaired,
            Phase.REPAIR_VERIFY: repaired,
            Phase.SIGN: self._context.signs and not sums.failed,
        }
        return next((int(later) for later, wanted in due.items() if later > phase and wanted), None)

    def status(self, totals: tuple[int, ...], halted: str | None) -> int:
        sums = self.totals = Totals(*totals)
        self.halted = halted
        if halted is not None:
            return self._status_of(halted) or (errors.STOPPED if self._job.copies else errors.REFUSED)
        self._remove_leftovers()
        if sums.found != sums.copied + sums.skipped + sums.failed:
            return errors.INTERNAL
        if sums.failed or sums.unsynced:
            return errors.INCOMPLETE if self._job.copies else errors.REFUSED
        return self._settle(sums)

    def _remove_leftovers(self) -> None:
        """Single items lie in a directory that no task finishes: the same one, if there are several."""
        number = next((number for number, root in enumerate(self._job.roots) if root.item), None)
        if number is None or not self._job.copies:
            return
        try:
            left = self._context.remove_leftovers(self._context.targets[number].open(b""))
            text = left and left.strerror
        except Problem as problem:
            text = f"temporary files may be left in the destination: {problem.operation}: {problem.strerror}"
        if text:
            self._context.tell((), (text,))
