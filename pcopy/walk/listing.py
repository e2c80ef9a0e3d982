"""The names in a directory: listed patiently, and spread over the ranks where they are very many."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from itertools import chain, islice
from typing import BinaryIO, NamedTuple

from pcopy.engine.backlog import SpoolFactory
from pcopy.fsio.directories import list_names
from pcopy.fsio.patience import PASSING, PAUSES, naps
from pcopy.fsio.problem import Problem, failing

NAMES_AT_ONCE = 2048
"""A directory with more names than that is looked at in batches of as many, by all ranks."""

IN_MEMORY = 512
"""Batches that are held before a spool is opened: about a million names."""


class Listing(NamedTuple):
    """The ``first`` names of a directory, at most one more than ``NAMES_AT_ONCE``, and the ``rest``, as it is read."""

    first: list[bytes]
    rest: Iterator[bytes]

    @property
    def is_large(self) -> bool:
        return len(self.first) > NAMES_AT_ONCE


NOTHING = Listing([], iter(()))


def begin_list(directory: int) -> Generator[None, None, Listing]:
    """Lists an open directory; raises ``Problem`` if an error stays, or is none that may pass."""
    for pause in PAUSES:
        try:
            return _listing(directory)
        except Problem as problem:
            if problem.errno not in PASSING:
                raise
        yield from naps(pause)
        with failing("lseek", on_source=True):
            os.lseek(directory, 0, os.SEEK_SET)
    return _listing(directory)


def _listing(directory: int) -> Listing:
    names = list_names(directory)
    return Listing(list(islice(names, NAMES_AT_ONCE + 1)), names)


class NamesSpool:
    """Packed names in the order in which they came, to be read once: a great many wait in a file, not in memory."""

    def __init__(self, open_spool: SpoolFactory) -> None:
        self._open_spool = open_spool
        self._held: list[bytes] = []
        self._spool: BinaryIO | None = None

    def append(self, packed: bytes) -> None:
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


def spread(listing: Listing, spool: NamesSpool) -> Generator[None, None, int]:
    """Puts all names into ``spool``, in batches (joined by slashes); returns their number.

    Raises ``Problem``; then the names that were read before it are there.
    """
    batch: list[bytes] = []
    number = 0
    try:
        for name in chain(listing.first, listing.rest):
            number += 1
            batch.append(name)
            if len(batch) == NAMES_AT_ONCE:
                spool.append(b"/".join(batch))
                batch.clear()
                yield
    finally:
        if batch:
            spool.append(b"/".join(batch))
    return number
