"""Listing of the names in a directory, with retries after transient errors, and their distribution over the ranks if
there are very many.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable, Iterator
from typing import BinaryIO

from pcopy.engine.backlog import SpoolFactory
from pcopy.engine.ticket import Stepwise
from pcopy.fsio.kernel.batches import List, Listed
from pcopy.fsio.kernel.columns import Code, Verdicts, pack_names
from pcopy.fsio.kernel.interface import Kernel, waited
from pcopy.fsio.patience import PASSING, PAUSES, naps
from pcopy.fsio.problem import Problem, failing

NAMES_AT_ONCE = 256
"""Number of names from which on a directory is processed in batches of this size, by all ranks."""

IN_MEMORY = 4096
"""Number of batches that are kept in memory before a spool is opened: about a million names."""


MOST_REMEMBERED = 1 << 16
"""Number of names of one directory among which a repeated one is certainly found: some 6 MB."""


class _Once:
    """Drops names that a directory lists a second time, as network file systems may while the directory changes.

    It remembers the last ``MOST_REMEMBERED`` names, and as many before them. Directories with fewer names than one
    batch need no memory between batches.
    """

    def __init__(self) -> None:
        self._recent: set[bytes] = set()
        self._earlier: set[bytes] = set()

    def drop_repeated(self, listed: Listed) -> None:
        """Remove from the batch all names that were listed before."""
        names = listed.names.split(b"/") if listed.number else []
        distinct = {*names}
        if len(distinct) < len(names) or not (self._recent.isdisjoint(distinct) and self._earlier.isdisjoint(distinct)):
            self._drop(listed, names)
        if listed.rest is not None:
            self._recent |= distinct
            if len(self._recent) >= MOST_REMEMBERED:
                self._recent, self._earlier = set(), self._recent

    def _drop(self, listed: Listed, names: list[bytes]) -> None:
        first = {name: row for row, name in reversed([*enumerate(names)])}
        rows = sorted(row for name, row in first.items() if name not in self._recent and name not in self._earlier)
        listed.names, listed.number = pack_names(names[row] for row in rows), len(rows)
        if listed.kinds:
            listed.kinds = bytes(listed.kinds[row] for row in rows)
            listed.inodes = array("Q", (listed.inodes[row] for row in rows))


class Listing:
    """The current batch of names of a directory, ``listed``, each name once."""

    def __init__(self, kernel: Kernel | None = None, listed: Listed | None = None) -> None:
        """Without a ``kernel`` it is the empty listing of no directory."""
        self._kernel = kernel
        self.listed = listed or Listed(Verdicts(1))
        self._once = _Once()
        self._once.drop_repeated(self.listed)

    @property
    def names(self) -> bytes:
        """The names of the current batch, packed."""
        return self.listed.names

    @property
    def number(self) -> int:
        """The number of names in the current batch."""
        return self.listed.number

    @property
    def is_large(self) -> bool:
        """True if there may be further batches."""
        return self.listed.rest is not None

    def go_on(self) -> Stepwise[bool]:
        """Read the next batch of names; return False if there is none. Raise ``Problem`` at the end if reading has
        failed.
        """
        if self._kernel is None:
            return False
        while self.listed.rest is not None:
            self.listed = yield from waited(self._kernel, self._kernel.submit(self.listed.rest))
            if not self.number:
                break
            self._once.drop_repeated(self.listed)
            if self.number:
                return True
        _check(self.listed)
        return False


def begin_list(kernel: Kernel, directory: int, *, detailed: bool = False, on_source: bool = True) -> Stepwise[Listing]:
    """List an open directory of either side; raise ``Problem`` if that fails, also after retries of transient errors.

    Args:
        detailed: True to get types and inode numbers as well.
    """
    for pause in (*PAUSES, None):
        listed = yield from waited(kernel, kernel.submit(List(directory, NAMES_AT_ONCE, detailed, on_source)))
        try:
            _check(listed)
        except Problem as problem:
            if problem.errno not in PASSING or pause is None:
                raise
            yield from naps(pause)
            with failing("lseek", on_source=on_source):
                os.lseek(directory, 0, os.SEEK_SET)
        else:
            break
    return Listing(kernel, listed)


def _check(listed: Listed) -> None:
    """Raise ``Problem`` if the names could not be read."""
    if listed.verdicts.codes[0] != Code.DONE:
        raise listed.verdicts.problem(0)


_HEAD = struct.Struct("=I")


def _pack_listed(listed: Listed) -> bytes:
    """Return the names of a batch, with types and inode numbers if it has them, for ``unpack_listed``."""
    if not listed.kinds:
        return listed.names
    return b"".join((_HEAD.pack(listed.number), listed.kinds, listed.inodes.tobytes(), listed.names))


def unpack_listed(packed: bytes) -> tuple[bytes, bytes, bytes]:
    """Return names, types and inode numbers of a batch that was packed with types."""
    (number,) = _HEAD.unpack_from(packed)
    inodes = _HEAD.size + number
    names = inodes + 8 * number
    return packed[names:], packed[_HEAD.size : inodes], packed[inodes:names]


class NamesSpool:
    """A queue of packed batches of names, read once in the same order; a very long one is spilled to a file."""

    def __init__(self, open_spool: SpoolFactory) -> None:
        self._open_spool = open_spool
        self._held: list[bytes] = []
        self._spool: BinaryIO | None = None
        self.number = 0
        """Number of batches that were added."""

    def append(self, packed: bytes) -> None:
        """Add a packed batch of names."""
        self.number += 1
        if self._spool is None and len(self._held) >= IN_MEMORY:
            self._spool = self._open_spool()
        if self._spool is None:
            self._held.append(packed)
        else:
            self._spool.write(len(packed).to_bytes(8, "big") + packed)

    def __iter__(self) -> Iterator[bytes]:
        yield from self._held
        if self._spool is not None:
            self._spool.seek(0)
            with self._spool:
                while head := self._spool.read(8):
                    yield self._spool.read(int.from_bytes(head, "big"))


def spread(
    listing: Listing, spool: NamesSpool, is_done: Callable[[Listed], bool] = lambda listed: False
) -> Stepwise[int]:
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
        if not (yield from listing.go_on()):
            return number
