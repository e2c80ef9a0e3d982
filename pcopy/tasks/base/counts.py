"""The counts of one task, and the index of each counter. A rank's counters are a list of numbers, one for each field of
``JobCounters``, in that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress, count

from pcopy.engine.task import CountsOfLabels, Share
from pcopy.tasks.base.job import JobCounters
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.values import Place, directory_counts_label

NUMBER_OF_COUNTERS = len(JobCounters._fields)
"""Number of counters: length of the list of counts that each rank has."""

(
    FOUND, FOUND_BYTES, UNSCANNED,
    FILES, DIRECTORIES, SYMLINKS, SPECIAL, HARDLINKS, BYTES, MOVED,
    SKIPPED, SKIPPED_BYTES, DELETED, FAILED, FAILED_BYTES, CHANGED, VANISHED, EXCUSED, WARNINGS, UNSYNCED,
    FOR_LINK, FOR_NAME, FOR_FINISH, FOR_SEAL, FOR_REPAIR,
    TO_VERIFY, TO_VERIFY_BYTES, VERIFIED, VERIFIED_BYTES, REFUTED, EXTRA, CONFIRMED_BYTES,
    MENDED, TO_DELETE, FOR_AGAIN, EXCLUDED,
) = range(NUMBER_OF_COUNTERS)  # fmt: skip

DEFERRED_COUNTERS: dict[int, int] = {
    Phase.LINK: FOR_LINK,
    Phase.NAME: FOR_NAME,
    Phase.AGAIN: FOR_AGAIN,
    Phase.FINISH: FOR_FINISH,
    Phase.SEAL: FOR_SEAL,
    Phase.REPAIR: FOR_REPAIR,
    Phase.REPAIR_FINISH: FOR_REPAIR,
    Phase.REPAIR_SYNC: FOR_REPAIR,
    Phase.REPAIR_VERIFY: FOR_REPAIR,
}
"""Counters of the tasks that were deferred to a later phase, by that phase. If such a counter is 0 on all ranks, the
phase is left out.
"""

_COUNTERS_WITHOUT_LABEL = frozenset((*DEFERRED_COUNTERS.values(), TO_DELETE, DELETED))
"""Counters that are not recorded for directories: those that only say whether a later phase has any task, and those of
deletions. Items that were deleted remain counted, and a resumed job counts anew those that are to be deleted.
"""

_FAILURE_COUNTERS = frozenset((FAILED, FAILED_BYTES, CHANGED, VANISHED, EXCUSED, WARNINGS))
"""Counters of failures and warnings. A task that increases one of them also has a message about it for the user."""

_COPIED_COUNTER_BY_TYPE = {b"f": FILES, b"l": SYMLINKS, b"d": DIRECTORIES}


def copied_counter(kind: bytes) -> int:
    """Return the index of the counter of copied items for items with the type byte ``kind``."""
    return _COPIED_COUNTER_BY_TYPE.get(kind, SPECIAL)


def directory_counter(place: Place) -> int:
    """Return the index of the counter in which the target directory of ``place`` is counted when it is complete: that
    of skipped items if its metadata were right before the job, else that of copied directories.
    """
    return SKIPPED if place.is_unchanged else DIRECTORIES


class TaskCounts:
    """Counts of one task. In a job that can be resumed they are also kept for each directory, so that those of a
    directory that vanished can be subtracted.
    """

    __slots__ = ("_by_directory", "_counts", "_current_label", "_labelled", "_other_directories", "_place", "_shares")

    def __init__(self, place: Place | None, *, by_directory: bool) -> None:
        """Create counts of 0.

        Args:
            place: the directory that the task is about, or None.
            by_directory: True if counts are also kept for each directory.
        """
        self._place = place
        self._by_directory = by_directory
        self._counts = [0] * NUMBER_OF_COUNTERS
        self._current_label: bytes | None = None
        self._other_directories: dict[bytes, dict[int, int]] = {}
        self._shares: list[CountsOfLabels] = []
        self._labelled = [0] * NUMBER_OF_COUNTERS  # sums of ``_shares``

    def set_counted_directory(self, directory: tuple[int, bytes]) -> None:
        """Count for ``directory`` from now on, in a task that walks several directories. ``directory`` is the index of
        its root and its path (``Place.key``).
        """
        self._current_label = b"%d/%b" % directory if self._by_directory else None

    def reset_counted_directory(self) -> None:
        """Count from now on for the directory that the task is about."""
        self._current_label = None

    def count(self, counter: int, number: int = 1, place: Place | None = None) -> None:
        """Add ``number`` to a counter.

        Args:
            counter: index of the counter.
            place: the directory of the item; needed if it may be another one than that of the task.
        """
        self._counts[counter] += number
        here, label = self._place, self._current_label
        if place is not None:
            is_here = place is here or (here is not None and place.key == here.key)
            label = None if is_here else directory_counts_label(place)
        if label is not None:
            elsewhere = self._other_directories.setdefault(label, {})
            elsewhere[counter] = elsewhere.get(counter, 0) + number

    def count_excluded_items(self, number: int = 1) -> None:
        """Count items as found, and as skipped because filters exclude them."""
        for counter in (FOUND, SKIPPED, EXCLUDED):
            self.count(counter, number)

    def count_in_directories(self, ancestor: Place, packed_paths: bytes, columns: dict[int, Sequence[int]]) -> None:
        """Add to counters for several directories.

        Args:
            ancestor: a directory that contains the directories.
            packed_paths: their paths relative to it, joined by zero bytes.
            columns: numbers to add, one for each directory, by index of the counter.
        """
        for counter, numbers in columns.items():
            number = sum(numbers)
            self._counts[counter] += number
            self._labelled[counter] += number
        if self._by_directory:
            prefix = directory_counts_label(ancestor) + (b"/" if ancestor.path else b"")
            self._shares.append(CountsOfLabels(prefix, packed_paths, tuple(columns), tuple(columns.values())))

    def add_counts_of_unfinished_task(self, counters: list[int]) -> None:
        """Add the counts so far to ``counters``, the counters of the rank, for a task that ends before it is done.

        Counts of failures and warnings are left out: the messages of a task that does not end normally are lost, and
        every such count must have its message.
        """
        for counter in compress(count(), self._counts):
            if counter not in _FAILURE_COUNTERS:
                counters[counter] += self._counts[counter]

    def _counts_by_directory(self) -> Iterator[Share]:
        """Yield the counts of each directory with its label (``directory_counts_label``), for the record of the task.
        If the directory has vanished when the job is resumed, these counts are subtracted.
        """
        if not self._by_directory:
            return
        here = [number - labelled for number, labelled in zip(self._counts, self._labelled, strict=True)]
        yield from self._shares
        for label, elsewhere in self._other_directories.items():
            for counter, number in elsewhere.items():
                here[counter] -= number
            if share := tuple(
                each for each in sorted(elsewhere.items()) if each[1] and each[0] not in _COUNTERS_WITHOUT_LABEL
            ):
                yield label, share
        if self._place is not None and (share := _recorded_counts(here)):
            yield directory_counts_label(self._place), share


def _recorded_counts(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    """Return pairs (index of the counter, number) for all ``numbers`` that are not 0 and are recorded for
    directories.
    """
    return tuple((at, numbers[at]) for at in compress(count(), numbers) if at not in _COUNTERS_WITHOUT_LABEL)
