"""What is counted: where each of ``Totals``' fields stands in a rank's vector of counters, and what one task counts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress, count

from pcopy.engine.task import Share
from pcopy.tasks.base.job import Totals
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.values import Place, label_of

COUNTERS = len(Totals._fields)

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
"""The counter of the tasks that wait for a phase: if there are none, the phase is left out."""

_DUE = frozenset(PUT_ASIDE.values())

_TOLD = frozenset((FAILED, FAILED_BYTES, CHANGED, VANISHED, EXCUSED, WARNINGS))
"""With each a line is told."""

_OF_KIND = {b"f": FILES, b"l": SYMLINKS, b"d": DIRECTORIES}


def of_kind(kind: bytes) -> int:
    """The counter of copied items with this type byte."""
    return _OF_KIND.get(kind, SPECIAL)


class Counted:
    """What a task that is about ``place`` counts; ``by_directory``: also in which, for a job that may be resumed."""

    __slots__ = ("_by_directory", "_counts", "_elsewhere", "_place", "_turned")

    def __init__(self, place: Place | None, *, by_directory: bool) -> None:
        self._place = place
        self._by_directory = by_directory
        self._counts = [0] * COUNTERS
        self._turned: bytes | None = None
        self._elsewhere: dict[bytes, dict[int, int]] = {}

    def turn_to(self, directory: tuple[int, bytes]) -> None:
        """From now on what is counted is counted in this one (``Place.directory``) of several that the task goes
        through."""
        self._turned = b"%d/%b" % directory if self._by_directory else None

    def turn_back(self) -> None:
        """From now on it is counted in that which the task is about."""
        self._turned = None

    def count(self, counter: int, number: int = 1, place: Place | None = None) -> None:
        """``place`` is the directory of the item, where that may be another than the task's."""
        self._counts[counter] += number
        here, label = self._place, self._turned
        if place is not None:
            is_here = place is here or (here is not None and place.directory == here.directory)
            label = None if is_here else label_of(place)
        if label is not None:
            elsewhere = self._elsewhere.setdefault(label, {})
            elsewhere[counter] = elsewhere.get(counter, 0) + number

    def add_done(self, counters: list[int]) -> None:
        """What was done up to now; failures are left out, of which nobody hears if the task does not come to its
        end."""
        for counter in compress(count(), self._counts):
            if counter not in _TOLD:
                counters[counter] += self._counts[counter]

    def _shares(self) -> Iterator[Share]:
        """What was counted in which directory: if that has gone when the job is resumed, it counts no more."""
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
    """What is not 0, without what only tells that a phase is due."""
    return tuple((at, numbers[at]) for at in compress(count(), numbers) if at not in _DUE)
