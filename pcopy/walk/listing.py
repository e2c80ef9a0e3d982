"""Listing of the names in a directory, with retries after transient errors, and their distribution over the ranks if
there are very many.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pcopy.engine.backlog import OpenSpool
from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ListNamesBatch, ListNamesResult
from pcopy.fsio.backend.columns import BatchOutcomeColumns, OutcomeCode, pack_names
from pcopy.fsio.backend.interface import FileOperationBackend, await_ticket
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import RETRY_PAUSES, TRANSIENT_ERRNOS, sleep_in_steps

NAMES_PER_BATCH = 256
"""Number of names of a directory that are read, and processed, together. A directory with more names is divided into
several batches, which any rank may process.
"""

MAX_BATCH_BYTES_IN_MEMORY = 4 << 20
"""Bytes of packed names of one directory that are kept in memory, some 200,000 short names. All other names are written
to a temporary file.
"""


MAX_REMEMBERED_NAMES = 1 << 16
"""If a directory lists a name twice, the second one is certainly dropped if fewer than this number of other names lie
between. Remembering them takes some 6 MB of memory.
"""


class _DuplicateFilter:
    """Drops names that the listing of a directory contains a second time. Network file systems may do so while a
    directory changes.

    The filter remembers between ``MAX_REMEMBERED_NAMES`` and twice as many of the latest names. If a directory consists
    of a single batch, nothing is remembered.
    """

    def __init__(self) -> None:
        self._recent: set[bytes] = set()
        self._earlier: set[bytes] = set()

    def drop_repeated_names(self, listed: ListNamesResult) -> None:
        """Remove from ``listed``, the next batch of names, all names that occur twice in it or were in an earlier
        batch.
        """
        names = listed.names.split(b"/") if listed.name_count else []
        distinct = {*names}
        if len(distinct) < len(names) or not (self._recent.isdisjoint(distinct) and self._earlier.isdisjoint(distinct)):
            self._drop_rows(listed, names)
        if listed.next_batch is not None:
            self._recent |= distinct
            if len(self._recent) >= MAX_REMEMBERED_NAMES:
                self._recent, self._earlier = set(), self._recent

    def _drop_rows(self, listed: ListNamesResult, names: list[bytes]) -> None:
        first = {name: row for row, name in reversed([*enumerate(names)])}
        rows = sorted(row for name, row in first.items() if name not in self._recent and name not in self._earlier)
        listed.names, listed.name_count = pack_names(names[row] for row in rows), len(rows)
        if listed.kinds:
            listed.kinds = bytes(listed.kinds[row] for row in rows)
            listed.inodes = array("Q", (listed.inodes[row] for row in rows))


class DirectoryListing:
    """The names of one directory, read batch by batch; no name occurs twice. ``listed`` is the current batch."""

    def __init__(self, backend: FileOperationBackend | None = None, listed: ListNamesResult | None = None) -> None:
        """Create a listing whose first batch of names is ``listed``. Without arguments it is an empty listing.

        Args:
            backend: the code that reads the other batches.
        """
        self._backend = backend
        self.listed = listed or ListNamesResult(BatchOutcomeColumns(1))
        self._duplicates = _DuplicateFilter()
        self._duplicates.drop_repeated_names(self.listed)

    @property
    def names(self) -> bytes:
        """The names of the current batch, joined by slashes."""
        return self.listed.names

    @property
    def name_count(self) -> int:
        """The number of names in the current batch."""
        return self.listed.name_count

    @property
    def may_have_more_batches(self) -> bool:
        """True if the end of the directory was not reached yet, so that there may be further batches."""
        return self.listed.next_batch is not None

    def read_next_batch(self) -> TicketGenerator[bool]:
        """Generator: read the next batch of names into ``listed``, and return True; return False at the end of the
        directory. It yields while the rank may handle messages. Raise ``Problem`` if the directory could not be read
        to its end.
        """
        if self._backend is None:
            return False
        while self.listed.next_batch is not None:
            self.listed = yield from await_ticket(self._backend, self._backend.submit_batch(self.listed.next_batch))
            if not self.name_count:
                break
            self._duplicates.drop_repeated_names(self.listed)
            if self.name_count:
                return True
        _check_directory_was_listed(self.listed)
        return False


def list_directory(
    backend: FileOperationBackend, directory: int, *, detailed: bool = False, on_source: bool = True
) -> TicketGenerator[DirectoryListing]:
    """Generator: read the first batch of names of an open directory, and return the listing, which reads the others.
    Transient errors are retried. Raise ``Problem`` if the directory cannot be read.

    Args:
        detailed: True to get types and inode numbers as well.
        on_source: True for a directory of the source, False for one of the target; errors are reported accordingly.
    """
    for pause in (*RETRY_PAUSES, None):
        listed = yield from await_ticket(
            backend, backend.submit_batch(ListNamesBatch(directory, NAMES_PER_BATCH, detailed, on_source))
        )
        try:
            _check_directory_was_listed(listed)
        except Problem as problem:
            if problem.errno not in TRANSIENT_ERRNOS or pause is None:
                raise
            yield from sleep_in_steps(pause)
            with errors_as_problem("lseek", on_source=on_source):
                os.lseek(directory, 0, os.SEEK_SET)
        else:
            break
    return DirectoryListing(backend, listed)


def _check_directory_was_listed(listed: ListNamesResult) -> None:
    """Raise ``Problem`` if the directory could not be read when the batch ``listed`` was to be filled."""
    if listed.verdicts.codes[0] != OutcomeCode.DONE:
        raise listed.verdicts.problem(0)


_NAME_COUNT_FIELD = struct.Struct("=I")


def _pack_name_batch(listed: ListNamesResult) -> bytes:
    """Return a batch of names of a directory as bytes: the names joined by slashes. If the batch has types and inode
    numbers, these are included, in the form that ``unpack_name_batch`` reads.
    """
    if not listed.kinds:
        return listed.names
    return b"".join((_NAME_COUNT_FIELD.pack(listed.name_count), listed.kinds, listed.inodes.tobytes(), listed.names))


def unpack_name_batch(packed: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the names (joined by slashes), the type bytes, and the inode numbers (8 bytes each) of a batch of names
    with types that ``_pack_name_batch`` has packed.
    """
    (number,) = _NAME_COUNT_FIELD.unpack_from(packed)
    inodes = _NAME_COUNT_FIELD.size + number
    names = inodes + 8 * number
    return packed[names:], packed[_NAME_COUNT_FIELD.size : inodes], packed[inodes:names]


class NameBatchQueue:
    """A queue of packed batches of names of one directory, which tasks process later. It can be read once, in the order
    in which batches were added. Batches beyond ``MAX_BATCH_BYTES_IN_MEMORY`` are written to a temporary file.
    """

    def __init__(self, open_spool: OpenSpool) -> None:
        self._open_spool = open_spool
        self._in_memory: deque[bytes] = deque()
        self._bytes_in_memory = 0
        self._spool: BinaryIO | None = None
        self.batches_added = 0
        """Number of batches that were added so far."""

    def append(self, packed: bytes) -> None:
        """Add ``packed``, a batch of names as ``_pack_name_batch`` returns it, to the end of the queue."""
        self.batches_added += 1
        if self._spool is None and self._bytes_in_memory >= MAX_BATCH_BYTES_IN_MEMORY:
            self._spool = self._open_spool()
        if self._spool is None:
            self._in_memory.append(packed)
            self._bytes_in_memory += len(packed)
        else:
            self._spool.write(len(packed).to_bytes(8, "big") + packed)

    def __iter__(self) -> Iterator[bytes]:
        while self._in_memory:
            yield self._in_memory.popleft()
        if self._spool is not None:
            self._spool.seek(0)
            with self._spool:
                while head := self._spool.read(8):
                    yield self._spool.read(int.from_bytes(head, "big"))


def queue_names_of_directory(
    listing: DirectoryListing, spool: NameBatchQueue, is_done: Callable[[ListNamesResult], bool] = lambda listed: False
) -> TicketGenerator[int]:
    """Generator: read a directory to its end, and add its names to the queue ``spool``, in batches. Return the number
    of all names. It yields while the rank may handle messages.

    Raise ``Problem`` if the directory cannot be read to its end; the names before the error are in ``spool`` then.

    Args:
        listing: the listing of the directory, with its first batch.
        spool: the queue that gets the batches.
        is_done: is called with each batch. If it returns True, it has processed all names of the batch itself, and the
            batch is not added to ``spool``.
    """
    number = 0
    while True:
        if listing.name_count and not is_done(listing.listed):
            spool.append(_pack_name_batch(listing.listed))
        number += listing.name_count
        yield None
        if not (yield from listing.read_next_batch()):
            return number
