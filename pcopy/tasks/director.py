"""What happens between the phases of a copy, and how it ends; asked at rank 0 only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pcopy import errors
from pcopy.engine.task import Spawn
from pcopy.tasks.context import SCAN_COST
from pcopy.tasks.job import Job, Totals, mount_codes
from pcopy.tasks.phases import Phase
from pcopy.tasks.values import Place, ScanDir, ScanNames, SyncFiles, encode


class CopyDirector:
    """Fills ``pcopy.engine.node.Director`` for a copy. ``leaders`` are one rank of each host."""

    def __init__(self, job: Job, leaders: Sequence[int], status_of: Callable[[str], int | None]) -> None:
        """``status_of`` knows the exit status of some reasons to stop early."""
        self._job = job
        self._status_of = status_of
        self._leaders = leaders
        self.totals = Totals()
        """The exact sums at the end of the last phase."""

    def first_tasks(self, phase: int) -> Iterable[Spawn]:
        if phase == Phase.COPY:
            return [self._root_task(number) for number in range(len(self._job.roots))]
        if phase == Phase.SYNC:
            return [Spawn(phase, encode(SyncFiles(-1)), 0, owner=leader) for leader in self._leaders]
        return []

    def _root_task(self, number: int) -> Spawn:
        root = self._job.roots[number]
        source_mount, target_mount = mount_codes(self._job.roots)[number]
        source_id, target_id = (source_mount, root.source_id[1]), (target_mount, root.target_id[1])
        if not root.item:
            return Spawn(int(Phase.COPY), encode(ScanDir(number, b"", source_id, None)), SCAN_COST, True)
        place = Place(number, b"", source_id, target_id, False, False)
        return Spawn(int(Phase.COPY), encode(ScanNames(place, root.item, 0)), SCAN_COST, True)

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        sums = self.totals = Totals(*totals)
        due = {Phase.LINK: sums.for_link, Phase.FINISH: sums.for_finish, Phase.SEAL: sums.for_seal}
        due[Phase.SYNC] = int(self._job.options.sync)
        return next((int(later) for later, tasks in due.items() if later > phase and tasks), None)

    def status(self, totals: tuple[int, ...], halted: str | None) -> int:
        self.totals = Totals(*totals)
        if halted is not None:
            return self._status_of(halted) or errors.STOPPED
        sums = self.totals
        if sums.found != sums.copied + sums.skipped + sums.failed:
            return errors.INTERNAL
        return errors.INCOMPLETE if sums.failed or sums.unsynced else errors.OK
