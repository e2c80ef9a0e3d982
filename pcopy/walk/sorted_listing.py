"""A queue of batches of names of a large directory that returns the names sorted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pcopy.engine.backlog import OpenSpool
from pcopy.fsio.backend.columns import pack_names, unpack_names
from pcopy.signature.sorting import ExternalSorter
from pcopy.walk.listing import NAMES_PER_BATCH, NameBatchQueue


class SortedNameBatches(NameBatchQueue):
    """A queue of batches of names of one directory, joined by slashes. It returns all names in the order of their
    bytes, divided into batches again. It can be read once; names that do not fit into memory are in temporary files.
    """

    def __init__(self, open_spool: OpenSpool) -> None:
        super().__init__(open_spool)
        self._sorter = ExternalSorter(open_spool)

    def append(self, packed: bytes) -> None:
        self.batches_added += 1
        self._sorter.extend([(name, b"") for name in unpack_names(packed)])

    def __iter__(self) -> Iterator[bytes]:
        names = (name for name, _ in self._sorter.sorted())
        while some := [*islice(names, NAMES_PER_BATCH)]:
            yield pack_names(some)
        self._sorter.close()
