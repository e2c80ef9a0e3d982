"""The names in a directory: listed patiently, and spread over the ranks where they are very many."""

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
"""A directory with as many names or more is looked at in batches of as many, by all ranks."""

IN_MEMORY = 4096
"""Batches that are held before a spool is opened: about a million names."""


MOST_REMEMBERED = 1 << 16
"""Names of one directory among which a repeated one is found for certain: some 6 MB."""


class _Once:
    """Drops the names that a directory lists a second time, as network file systems may while it changes.

    The last ``MOST_REMEMBERED`` names are remembered, and as many before them. Directories with fewer names than a
    batch has are examined by themselves, without memory.
    """

    def __init__(self) -> None:
        self._recent: set[bytes] = set()
        self._earlier: set[bytes] = set()

    def drop_repeated(self, listed: Listed) -> None:
        """Keep each name of the batch that was not listed before."""
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
    """The first names of a directory as they are ``listed``, each once."""

    def __init__(self, kernel: Kernel | None = None, listed: Listed | None = None) -> None:
        """Without a ``kernel`` of no directory."""
        self._kernel = kernel
        self.listed = listed or Listed(Verdicts(1))
        self._once = _Once()
        self._once.drop_repeated(self.listed)

    @property
    def names(self) -> bytes:
        """Of those that are listed at present."""
        return self.listed.names

    @property
    def number(self) -> int:
        """How many they are."""
        return self.listed.number

    @property
    def is_large(self) -> bool:
        """May there be more of them?"""
        return self.listed.rest is not None

    def go_on(self) -> Stepwise[bool]:
        """The next names instead of these; False if there are none. Raises ``Problem``, once there are none."""
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
    """Lists an open directory of either side, with kinds and inodes if it is ``detailed``.

    Raises ``Problem`` if an error stays, or is none that may pass.
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
    """Raises ``Problem`` if the names can't be read."""
    if listed.verdicts.codes[0] != Code.DONE:
        raise listed.verdicts.problem(0)


_HEAD = struct.Struct("=I")


def _pack_listed(listed: Listed) -> bytes:
    """Names alone, or with kinds and inodes, for ``unpack_listed``."""
    if not listed.kinds:
        return listed.names
    return b"".join((_HEAD.pack(listed.number), listed.kinds, listed.inodes.tobytes(), listed.names))


def unpack_listed(packed: bytes) -> tuple[bytes, bytes, bytes]:
    """Names, kinds and inodes of a directory that was listed with these."""
    (number,) = _HEAD.unpack_from(packed)
    inodes = _HEAD.size + number
    names = inodes + 8 * number
    return packed[names:], packed[_HEAD.size : inodes], packed[inodes:names]


class NamesSpool:
    """Packed names in the order in which they came, to be read once: a great many wait in a file, not in memory."""

    def __init__(self, open_spool: SpoolFactory) -> None:
        self._open_spool = open_spool
        self._held: list[bytes] = []
        self._spool: BinaryIO | None = None
        self.number = 0
        """How many have come."""

    def append(self, packed: bytes) -> None:
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
    """Puts all names into ``spool``, in batches (joined by slashes; ``unpack_listed``); returns their number. With some
    of them ``is_done`` may have done all that there is to do: they are left out.

    Raises ``Problem``; then the names that were read before it are there.
    """
    number = 0
    while True:
        if listing.number and not is_done(listing.listed):
            spool.append(_pack_listed(listing.listed))
        number += listing.number
        yield None
        if not (yield from listing.go_on()):
            return number
