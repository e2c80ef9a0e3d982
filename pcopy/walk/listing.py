"""Listing of the names in a directory, with retries after transient errors, and their distribution over the ranks if
there are very many.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pcopy.engine.backlog import OpenSpool
from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ListNames, ListResult
from pcopy.fsio.backend.columns import RowCode, Verdicts, pack_names
from pcopy.fsio.backend.interface import Backend, await_ticket
from pcopy.fsio.problem import Problem, as_problem
from pcopy.fsio.retries import RETRY_PAUSES, TRANSIENT_ERRNOS, sleep_in_steps

NAMES_PER_BATCH = 256
"""Number of names from which on a directory is processed in batches of this size, by all ranks."""

MAX_BATCHES_IN_MEMORY = 4096
"""Number of batches that are kept in memory before a spool is opened: about a million names."""


MAX_REMEMBERED_NAMES = 1 << 16
"""Number of names of one directory among which a repeated one is certainly found: some 6 MB."""


class _DuplicateFilter:
    """Drops names that a directory lists a second time, as network file systems may while the directory changes.

    It remembers the last ``MAX_REMEMBERED_NAMES`` names, and as many before them. Directories with fewer names than one
    batch need no memory between batches.
    """

    def __init__(self) -> None:
        self._recent: set[bytes] = set()
        self._earlier: set[bytes] = set()

    def drop_repeated(self, listed: ListResult) -> None:
        """Remove from the batch all names that were listed before."""
        names = listed.names.split(b"/") if listed.name_count else []
        distinct = {*names}
        if len(distinct) < len(names) or not (self._recent.isdisjoint(distinct) and self._earlier.isdisjoint(distinct)):
            self._drop_rows(listed, names)
        if listed.next_batch is not None:
            self._recent |= distinct
            if len(self._recent) >= MAX_REMEMBERED_NAMES:
                self._recent, self._earlier = set(), self._recent

    def _drop_rows(self, listed: ListResult, names: list[bytes]) -> None:
        first = {name: row for row, name in reversed([*enumerate(names)])}
        rows = sorted(row for name, row in first.items() if name not in self._recent and name not in self._earlier)
        listed.names, listed.name_count = pack_names(names[row] for row in rows), len(rows)
        if listed.kinds:
            listed.kinds = bytes(listed.kinds[row] for row in rows)
            listed.inodes = array("Q", (listed.inodes[row] for row in rows))


class DirectoryListing:
    """The current batch of names of a directory, ``listed``, each name once."""

    def __init__(self, backend: Backend | None = None, listed: ListResult | None = None) -> None:
        """Without a ``backend`` it is the empty listing of no directory."""
        self._backend = backend
        self.listed = listed or ListResult(Verdicts(1))
        self._duplicates = _DuplicateFilter()
        self._duplicates.drop_repeated(self.listed)

    @property
    def names(self) -> bytes:
        """The names of the current batch, packed."""
        return self.listed.names

    @property
    def number(self) -> int:
        """The number of names in the current batch."""
        return self.listed.name_count

    @property
    def may_have_more(self) -> bool:
        """True if there may be further batches."""
        return self.listed.next_batch is not None

    def next_batch(self) -> TicketGenerator[bool]:
        """Read the next batch of names; return False if there is none. Raise ``Problem`` at the end if reading has
        failed.
        """
        if self._backend is None:
            return False
        while self.listed.next_batch is not None:
            self.listed = yield from await_ticket(self._backend, self._backend.submit(self.listed.next_batch))
            if not self.number:
                break
            self._duplicates.drop_repeated(self.listed)
            if self.number:
                return True
        _check(self.listed)
        return False


def list_directory(
    backend: Backend, directory: int, *, detailed: bool = False, on_source: bool = True
) -> TicketGenerator[DirectoryListing]:
    """List an open directory of either side; raise ``Problem`` if that fails, also after retries of transient errors.

    Args:
        detailed: True to get types and inode numbers as well.
    """
    for pause in (*RETRY_PAUSES, None):
        listed = yield from await_ticket(
            backend, backend.submit(ListNames(directory, NAMES_PER_BATCH, detailed, on_source))
        )
        try:
            _check(listed)
        except Problem as problem:
            if problem.errno not in TRANSIENT_ERRNOS or pause is None:
                raise
            yield from sleep_in_steps(pause)
            with as_problem("lseek", on_source=on_source):
                os.lseek(directory, 0, os.SEEK_SET)
        else:
            break
    return DirectoryListing(backend, listed)


def _check(listed: ListResult) -> None:
    """Raise ``Problem`` if the names could not be read."""
    if listed.verdicts.codes[0] != RowCode.DONE:
        raise listed.verdicts.problem(0)


_HEAD = struct.Struct("=I")


def _pack_listed(listed: ListResult) -> bytes:
    """Return the names of a batch, with types and inode numbers if it has them, for ``unpack_listed``."""
    if not listed.kinds:
        return listed.names
    return b"".join((_HEAD.pack(listed.name_count), listed.kinds, listed.inodes.tobytes(), listed.names))


def unpack_listed(packed: bytes) -> tuple[bytes, bytes, bytes]:
    """Return names, types and inode numbers of a batch that was packed with types."""
    (number,) = _HEAD.unpack_from(packed)
    inodes = _HEAD.size + number
    names = inodes + 8 * number
    return packed[names:], packed[_HEAD.size : inodes], packed[inodes:names]


class NameQueue:
    """A queue of packed batches of names, read once in the same order; a very long one is spilled to a file."""

    def __init__(self, open_spool: OpenSpool) -> None:
        self._open_spool = open_spool
        self._in_memory: list[bytes] = []
        self._spool: BinaryIO | None = None
        self.batches_added = 0
        """Number of batches that were added."""

    def append(self, packed: bytes) -> None:
        """Add a packed batch of names."""
        self.batches_added += 1
        if self._spool is None and len(self._in_memory) >= MAX_BATCHES_IN_MEMORY:
            self._spool = self._open_spool()
        if self._spool is None:
            self._in_memory.append(packed)
        else:
            self._spool.write(len(packed).to_bytes(8, "big") + packed)

    def __iter__(self) -> Iterator[bytes]:
        yield from self._in_memory
        if self._spool is not None:
            self._spool.seek(0)
            with self._spool:
                while head := self._spool.read(8):
                    yield self._spool.read(int.from_bytes(head, "big"))


def spool_names(
    listing: DirectoryListing, spool: NameQueue, is_done: Callable[[ListResult], bool] = lambda listed: False
) -> TicketGenerator[int]:
    """Put all names of a directory into ``spool``, in batches (``unpack_listed``); return their number.

    Raise ``Problem`` if the directory cannot be read to its end; the names read before it are in the spool then.

    Args:
        is_done: returns True if it has processed a batch completely; such a batch is not put into the spool.
    """
    number = 0
    while True:
        if listing.number and not is_done(listing.listed):
            spool.append(_pack_listed(listing.listed))
        number += listing.number
        yield None
        if not (yield from listing.next_batch()):
            return number
