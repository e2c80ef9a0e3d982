"""Conversion of a ``ChangeTreesBatch`` to C structures for the C backend."""

from __future__ import annotations

import os

from pcopy.fsio.backend import _native
from pcopy.fsio.backend.batches import ItemCounts
from pcopy.fsio.backend.change_batches import ChangeTreesBatch, ChangeTreesResult
from pcopy.fsio.backend.columns import BatchOutcomeColumns
from pcopy.fsio.backend.native_batches import PERMISSION_VALUE_COUNT
from pcopy.fsio.backend.native_walk import NativeWalkBatch
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, has_capability

_lib = _native.lib


class NativeChangeTreesBatch(NativeWalkBatch):
    """A batch that sets owners and modes of everything in subtrees (``ChangeTreesBatch``), as a C structure with
    pointers to its columns.
    """

    def __init__(self, batch: ChangeTreesBatch) -> None:
        self._change_result = ChangeTreesResult(BatchOutcomeColumns(len(batch)), ItemCounts(), {})
        super().__init__(_lib.PK_CHANGE, batch, self._change_result)
        if not len(batch.modes) == len(batch.directory_modes) == PERMISSION_VALUE_COUNT:
            raise ValueError("there is not one mode for each value of the permission bits")
        if batch.kinds and len(batch.kinds) != self.row_count:
            raise ValueError(f"there are {len(batch.kinds)} types for {self.row_count} rows: each row needs one")
        self.tree.user = os.geteuid()
        self.tree.flags = _lib.PK_POWERFUL if has_capability(CAP_DAC_OVERRIDE) else 0
        to = self.batch
        to.kinds = self.column_pointer("uint8_t[]", batch.kinds)
        to.modes = self.column_pointer("uint16_t[]", batch.modes)
        to.directory_modes = self.column_pointer("uint16_t[]", batch.directory_modes)
        to.uid, to.gid = batch.uid, batch.gid

    def fill_in_batch_result(self) -> None:
        super().fill_in_batch_result()
        self._change_result.letters = bytes(self.directories[row].letter for row in range(self.row_count))
