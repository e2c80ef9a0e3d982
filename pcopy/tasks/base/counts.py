"""Indices of the counters in a rank's vector, one for each field of ``Totals``, and the counts of one task."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress, count

from pcopy.engine.task import Share
from pcopy.tasks.base.job import Totals
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.values import Place, label_of

COUNTERS = len(Totals._fields)
"""Number of counters."""

(
    FOUND, FOUND_BYTES, UNSCANNED,
    FILES, DIRECTORIES, SYMLINKS, SPECIAL, HARDLINKS, BYTES, MOVED,
    SKIPPED, SKIPPED_BYTES, DELETED, FAILED, FAILED_BYTES, CHANGED, VANISHED, EXCUSED, WARNINGS, UNSYNCED,
    FOR_LINK, FOR_NAME, FOR_FINISH, FOR_SEAL, FOR_REPAIR,
    TO_VERIFY, TO_VERIFY_BYTES, VERIFIED, VERIFIED_BYTES, REFUTED, EXTRA, CONFIRMED_BYTES,
    MENDED, TO_DELETE, FOR_AGAIN, EXCLUDED,
) = range(COUNTERS)  # fmt: skip

PUT_ASIDE: dict[int, int] = {
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
"""Counters of tasks that were deferred to a phase, by phase. A phase without deferred tasks is left out."""

_DUE = frozenset(PUT_ASIDE.values())
"""Counters that only say whether a phase is needed."""

_TOLD = frozenset((FAILED, FAILED_BYTES, CHANGED, VANISHED, EXCUSED, WARNINGS))
"""Counters whose every increment comes with a message to the user."""

_OF_KIND = {b"f": FILES, b"l": SYMLINKS, b"d": DIRECTORIES}


def of_kind(kind: bytes) -> int:
    """Return the counter of copied items with this type byte."""
    return _OF_KIND.get(kind, SPECIAL)


class Counted:
    """Counts of one task. In a job that can be resumed they are also kept for each directory."""

    __slots__ = ("_by_directory", "_counts", "_elsewhere", "_place", "_turned")

    def __init__(self, place: Place | None, *, by_directory: bool) -> None:
        """Create counts of 0.

        Args:
            place: the directory that the task is about, or None.
            by_directory: True if the counts of each directory are kept too.
        """
        self._place = place
        self._by_directory = by_directory
        self._counts = [0] * COUNTERS
        self._turned: bytes | None = None
        self._elsewhere: dict[bytes, dict[int, int]] = {}

    def turn_to(self, directory: tuple[int, bytes]) -> None:
        """Assign what is counted from now on to this directory (``Place.directory``), for a task that walks several
        directories.
        """
        self._turned = b"%d/%b" % directory if self._by_directory else None

    def turn_back(self) -> None:
        """Assign what is counted from now on to the directory that the task is about."""
        self._turned = None

    def count(self, counter: int, number: int = 1, place: Place | None = None) -> None:
        """Add ``number`` to a counter.

        Args:
            counter: index of the counter.
            place: the directory of the item, if it may be another than that of the task.
        """
        self._counts[counter] += number
        here, label = self._place, self._turned
        if place is not None:
            is_here = place is here or (here is not None and place.directory == here.directory)
            label = None if is_here else label_of(place)
        if label is not None:
            elsewhere = self._elsewhere.setdefault(label, {})
            elsewhere[counter] = elsewhere.get(counter, 0) + number

    def add_done(self, counters: list[int]) -> None:
        """Add the counts so far to ``counters``, for a task that is ended early.

        Counters of failures and warnings are left out, because their messages are not reported if the task does not end
        normally.
        """
        for counter in compress(count(), self._counts):
            if counter not in _TOLD:
                counters[counter] += self._counts[counter]

    def _shares(self) -> Iterator[Share]:
        """Yield the counts of each directory with its label. If the directory has vanished when the job is resumed,
        they are subtracted.
        """
        if not self._by_directory:
            return
        here = self._counts[:]
        for label, elsewhere in self._elsewhere.items():
            for counter, number in elsewhere.items():
                here[counter] -= number
            yield label, tuple(each for each in sorted(elsewhere.items()) if each[1] and each[0] not in _DUE)
        if self._place is not None:
            yield label_of(self._place), _shared(here)


def _shared(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    """Return pairs of counter and number for all numbers that are not 0, without the counters that only say whether a
    phase is needed.
    """
    return tuple((at, numbers[at]) for at in compress(count(), numbers) if at not in _DUE)
