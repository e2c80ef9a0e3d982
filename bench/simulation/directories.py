"""Simulated jobs that scan and copy directories of equal small files.

The items are determined beforehand, but not the tasks: these depend on how the ranks divide them. The code that divides
them is that of pcopy (``tasks.base.dividing``).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.simulation.workloads import Workload
from pcopy.engine.task import NewTask, Task
from pcopy.errors import InvariantBroken
from pcopy.tasks.base.dividing import MIN_DIVISIBLE_COST, ItemDurations, portion_slices
from pcopy.tasks.base.rank import CALL_COST, SCAN_COST
from pcopy.tasks.copying import MAX_BATCH_FILES
from pcopy.tasks.directories.scan_dir import MAX_NAMES_IN_SCAN, ScanNames
from pcopy.tasks.files.copy_files import CopyFiles
from pcopy.walk.listing import NAMES_PER_BATCH

_TOP, _DIRECTORY, _NAMES, _FILES = range(4)


class CallCounts(NamedTuple):
    """The numbers of system calls for a directory, for the status of a name, and for the copy of a file.

    ``seconds`` is the time of each call.
    """

    seconds: float
    directory: int = 12
    name: int = 1
    file: int = 8


class DivisionRules(NamedTuple):
    """How names of a directory become tasks.

    A rank that has listed a directory with up to ``max_in_place`` names processes them itself. For more, it creates
    tasks of ``names_per_task`` names. ``divides``: True if such tasks are divided when ranks need work.
    """

    max_in_place: int = MAX_NAMES_IN_SCAN
    names_per_task: int = NAMES_PER_BATCH
    divides: bool = True


FORMER_RULES = DivisionRules(2048, 2048, False)
"""The rules of pcopy before tasks could be divided."""


class DirectoriesWorkload(Workload):
    """A job with ``directories`` directories of ``files`` files each. With one directory, the job begins in it."""

    def __init__(self, directories: int, files: int, calls: CallCounts, rules: DivisionRules) -> None:
        super().__init__()
        self._directories = directories
        self._files = files
        self._calls = calls
        self._rules = rules
        self._paces: dict[int, ItemDurations] = {}
        self._uncopied_files = directories * files
        self.seconds = array("d")

    @property
    def tasks(self) -> int:
        """The number of tasks that have run."""
        return len(self.seconds)

    @property
    def unfinished(self) -> int:
        """The number of files that are not copied yet."""
        return self._uncopied_files

    def first_tasks_of_phase(self) -> list[NewTask]:
        """Return the task with which the job begins."""
        return [self._task(_TOP if self._directories > 1 else _DIRECTORY, 0, self._directories)]

    def task_seconds(self, payload: bytes) -> float:
        """Return the time of a task, in seconds: the time of its system calls."""
        kind, start, end = _unpacked(payload)
        calls, items = self._calls, end - start
        if kind == _TOP:
            number = calls.directory + items * calls.name
        elif kind == _DIRECTORY:
            number = calls.directory + (self._files * calls.name if self._files <= self._rules.max_in_place else 0)
        else:
            number = items * (calls.name if kind == _NAMES else calls.file)
        return number * calls.seconds

    def finish_task(self, payload: bytes, rank: int = 0) -> list[NewTask]:
        """Mark a task as done, and return the tasks that it spawns.

        Raise ``InvariantBroken`` if files are copied twice.
        """
        kind, start, end = _unpacked(payload)
        self.seconds.append(self.task_seconds(payload))
        if kind in (_NAMES, _FILES):
            self._paces_of(rank).record_duration(kind, end - start, self.task_seconds(payload))
        if kind == _TOP:
            return [self._task(_DIRECTORY, number, number + 1) for number in range(end)]
        if kind == _DIRECTORY:
            is_few = self._files <= self._rules.max_in_place
            return [*self._batches(_FILES if is_few else _NAMES, 0, self._files)]
        if kind == _NAMES:
            return [*self._batches(_FILES, start, end)]
        self._uncopied_files -= end - start
        if self._uncopied_files < 0:
            raise InvariantBroken("files are copied twice")
        return []

    def divide(self, task: Task, rank: int, *, hungry: bool) -> Sequence[NewTask]:
        kind, start, end = _unpacked(task.payload)
        if not self._rules.divides or kind not in (_NAMES, _FILES) or task.cost < MIN_DIVISIBLE_COST:
            return ()
        least = ScanNames.min_items_per_portion if kind == _NAMES else CopyFiles.min_items_per_portion
        portions = self._paces_of(rank).task_portion_count(kind, end - start, least, hungry=hungry)
        if portions < 2:
            return ()
        return [self._task(kind, start + at.start, start + at.stop) for at in portion_slices(end - start, portions)]

    def _paces_of(self, rank: int) -> ItemDurations:
        """Return what a rank has measured: how long items of each kind of task take on it."""
        if rank not in self._paces:
            self._paces[rank] = ItemDurations()
        return self._paces[rank]

    def _batches(self, kind: int, start: int, end: int) -> Iterator[NewTask]:
        """Yield tasks for the names or files from ``start`` to ``end``."""
        most = MAX_BATCH_FILES if kind == _FILES else self._rules.names_per_task
        for at in range(start, end, most):
            yield self._task(kind, at, min(end, at + most))

    def _task(self, kind: int, start: int, end: int) -> NewTask:
        """Return a task for the items from ``start`` to ``end``."""
        payload = b"".join(number.to_bytes(4, "big") for number in (kind, start, end))
        cost = SCAN_COST if kind < _NAMES else (end - start) * CALL_COST
        return NewTask(0, payload, cost, kind != _FILES)


def _unpacked(payload: bytes) -> tuple[int, int, int]:
    """Return the type, start and end of a task."""
    kind, start, end = (int.from_bytes(payload[at : at + 4], "big") for at in (0, 4, 8))
    return kind, start, end
