"""Conversion of batches whose rows are subtrees to C structures for the C backend. The batches are described in
``pcopy.fsio.backend.walk_batches``.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Generic

from pcopy.fsio.backend import _native
from pcopy.fsio.backend.batches import FileOperationBatch, ItemCounts
from pcopy.fsio.backend.columns import (
    ALL_COLUMNS,
    GROUP_COLUMN,
    OWNER_COLUMN,
    REQUIRED_TALLY_COLUMNS,
    BatchOutcomeColumns,
    ItemStatusColumns,
    OutcomeCode,
    column_of_zeros,
)
from pcopy.fsio.backend.native_batches import (
    PERMISSION_VALUE_COUNT,
    POINTER_TYPES,
    NativeBatch,
    mark_deferred_rows_for_slow_path,
    raise_unexpected_deferral,
    summed_item_counts,
    used_bytes,
)
from pcopy.fsio.backend.walk_batches import (
    ChangeTreesBatch,
    CompareTreesBatch,
    ListItemsBatch,
    ListItemsResult,
    ListPathsBatch,
    ListPathsResult,
    RemainingItems,
    RemoveTreesBatch,
    SubtreeFrontier,
    WalkBatch,
    WalkResult,
    WalkResultType,
)
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, has_capability

_ffi, _lib = _native.ffi, _native.lib

_TALLY_COLUMNS = REQUIRED_TALLY_COLUMNS | OWNER_COLUMN | GROUP_COLUMN
"""Mask of the columns that are needed to add a directory to sums."""


class NativeWalkBatch(NativeBatch, Generic[WalkResultType]):
    """Base of the classes for batches that walk subtrees, as C structures with pointers to their columns."""

    def __init__(self, kind: int, batch: WalkBatch[Any], result_type: type[WalkResultType]) -> None:
        number = len(batch)
        self.walk_result = result_type(BatchOutcomeColumns(number), ItemCounts(), {})
        super().__init__(kind, batch, self.walk_result, raise_unexpected_deferral)
        if len(batch.inodes) != number:
            raise ValueError(f"there are {len(batch.inodes)} inodes for {number} rows: each row needs one")
        self.tree: Any = _ffi.new("pk_tree *")
        self.directories: Any = _ffi.new("pk_directory[]", number)
        self.sums: Any = _ffi.new("pk_sums[]", number)
        tree, to = self.tree, self.batch
        tree.source_device, tree.most = batch.device, batch.max_names + 1
        tree.depth, tree.deadline = batch.depth, max(0, int(batch.deadline * 1e9))
        tree.filter = self.filter_pointer(batch.filters)
        to.tree, to.directories, to.sums = tree, self.directories, self.sums
        to.given.inode = self.column_pointer("uint64_t[]", batch.inodes)
        self.names = batch.names.split(b"/")

    def fill_in_batch_result(self) -> None:
        """Copy what C has found into the result. Raise ``MemoryError`` if C had no memory for it."""
        result, done = self.walk_result, int(OutcomeCode.DONE)
        codes = result.verdicts.codes
        mark_deferred_rows_for_slow_path(codes)
        if OutcomeCode.FAILED in codes:
            raise MemoryError
        result.counts = summed_item_counts(self.sums)
        result.frontiers = {
            row: _subtree_frontier(self.names[row], self.directories[row].frontier)
            for row, code in enumerate(codes)
            if code == done and self.directories[row].frontier.entered
        }
        result.letters = bytes(directory.letter for directory in self.directories)


class NativeListPathsBatch(NativeWalkBatch[ListPathsResult]):
    """A batch that returns the paths of all items in subtrees (``ListPathsBatch``), as a C structure."""

    def __init__(self, batch: ListPathsBatch) -> None:
        super().__init__(_lib.PK_PATHS, batch, ListPathsResult)
        self._path_prefix = _ffi.new("char[]", batch.path_prefix)
        self.batch.prefixes = self._path_prefix

    def fill_in_batch_result(self) -> None:
        super().fill_in_batch_result()
        self.walk_result.packed_paths = b"".join(used_bytes(directory.text) for directory in self.directories)


class NativeListItemsBatch(NativeWalkBatch[ListItemsResult]):
    """A batch that returns all items in subtrees (``ListItemsBatch``), as a C structure."""

    def __init__(self, batch: ListItemsBatch) -> None:
        super().__init__(_lib.PK_LOOK, batch, ListItemsResult)
        self._mask = self.tree.mask = batch.mask
        self.tree.kinds = batch.kinds
        if batch.column_sums is not None:
            if _TALLY_COLUMNS & ~batch.mask or batch.kinds:
                raise ValueError("a column that the sums need is missing")
            self._path_prefix = _ffi.new("char[]", batch.path_prefix)
            self.tree.tally, self.batch.prefixes = batch.column_sums.c_struct, self._path_prefix

    def fill_in_batch_result(self) -> None:
        super().fill_in_batch_result()
        sizes, result = _lib.pk_size_of_found(self.batch), self.walk_result
        kinds, inodes = _ffi.new("uint8_t[]", sizes.items), column_of_zeros("Q", sizes.items)
        text, above = _ffi.new("char[]", sizes.text), _ffi.new("char[]", sizes.above)
        entered = _ffi.new("pk_entered[]", sizes.directories)
        columns = _ffi.new("pk_columns *")
        rows = ItemStatusColumns(sizes.items, self._mask)
        for name, typecode, bit, _ in ALL_COLUMNS:
            if self._mask & bit:
                setattr(columns, name, _ffi.from_buffer(POINTER_TYPES[typecode], getattr(rows, name)))
        _lib.pk_copy_found(self.batch, columns, kinds, _ffi.from_buffer("uint64_t[]", inodes), text, entered, above)
        result.paths = _ffi.buffer(text)[:-1].split(b"\0") if sizes.items else []
        result.kinds, result.inodes = bytes(kinds), inodes
        result.rows = rows if self._mask else None
        result.packed_directories = _ffi.buffer(above)[:-1], _ffi.buffer(entered)[:]


class NativeRemoveTreesBatch(NativeWalkBatch[WalkResult]):
    """A batch that removes subtrees (``RemoveTreesBatch``), as a C structure."""

    def __init__(self, batch: RemoveTreesBatch) -> None:
        super().__init__(_lib.PK_REMOVE_TREE, batch, WalkResult)
        self.tree.mount = max(0, batch.mount)
        self.batch.flags = _lib.PK_BY_TYPE if batch.removes_by_type else 0


class NativeCompareTreesBatch(NativeWalkBatch[WalkResult]):
    """A batch that compares subtrees of two trees (``CompareTreesBatch``), as a C structure."""

    def __init__(self, batch: CompareTreesBatch) -> None:
        super().__init__(_lib.PK_COMPARE_TREES, batch, WalkResult)
        if len(batch.other_inodes) != len(batch.inodes):
            raise ValueError(f"there are {len(batch.inodes)} and {len(batch.other_inodes)} inodes: each row needs both")
        self.tree.target_device, self.tree.window = batch.other_device, batch.modify_window
        to = self.batch
        to.target = batch.target
        to.flags = batch.properties | (_lib.PK_OF_ITEMS if batch.are_items else 0)
        to.flags |= _lib.PK_OF_NAMES if batch.compares_names else 0
        self.tree.touched, self.tree.begun = batch.created_since, batch.changed_since
        to.wanted.inode = self.column_pointer("uint64_t[]", batch.other_inodes)


class NativeChangeTreesBatch(NativeWalkBatch[WalkResult]):
    """A batch that sets owners and modes of everything in subtrees (``ChangeTreesBatch``), as a C structure with
    pointers to its columns.
    """

    def __init__(self, batch: ChangeTreesBatch) -> None:
        super().__init__(_lib.PK_CHANGE, batch, WalkResult)
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


def native_walk_batch(batch: FileOperationBatch[Any]) -> NativeBatch:
    """Return an object that has a batch, whose rows are subtrees, as a C structure, and its result."""
    return _NATIVE_CLASS_BY_BATCH_CLASS[type(batch)](batch)


_NATIVE_CLASS_BY_BATCH_CLASS: dict[type[FileOperationBatch[Any]], Callable[[Any], NativeBatch]] = {
    ChangeTreesBatch: NativeChangeTreesBatch,
    CompareTreesBatch: NativeCompareTreesBatch,
    ListPathsBatch: NativeListPathsBatch,
    ListItemsBatch: NativeListItemsBatch,
    RemoveTreesBatch: NativeRemoveTreesBatch,
}
"""By class of a batch, the class of this module that converts it to a C structure."""


def _subtree_frontier(top: bytes, frontier: Any) -> SubtreeFrontier:
    """Return a ``pk_frontier``, of a row whose directory has the name ``top``, as an object of Python."""
    paths: list[bytes] = [top]
    parents, inodes = array("I", used_bytes(frontier.parents)), array("Q", used_bytes(frontier.inodes))
    for parent, name in zip(parents[1:], used_bytes(frontier.names).split(b"/")[1:], strict=True):
        paths.append(paths[parent] + b"/" + name)
    others = array("Q", used_bytes(frontier.other_inodes))
    remaining = list(_remaining_items(paths, inodes, others, frontier)) if frontier.left else []
    return SubtreeFrontier(paths, inodes, parents, remaining)


def _remaining_items(
    paths: list[bytes], inodes: array[int], others: array[int], frontier: Any
) -> Iterator[RemainingItems]:
    """Yield the remaining items of a ``pk_frontier``, by directory. Directories have these ``paths`` and ``inodes``;
    ``others`` are those on the second side, or zeros.
    """
    names = used_bytes(frontier.left_names).split(b"/")
    parents, numbers = array("I", used_bytes(frontier.left_parents)), array("Q", used_bytes(frontier.left_inodes))
    kinds = used_bytes(frontier.left_kinds)
    rows_by_parent: dict[int, list[int]] = {}
    for row, parent in enumerate(parents):
        rows_by_parent.setdefault(parent, []).append(row)
    for parent, rows in rows_by_parent.items():
        yield RemainingItems(
            paths[parent],
            inodes[parent],
            [names[row] for row in rows],
            [numbers[row] for row in rows],
            bytes([kinds[row] for row in rows]),
            others[parent],
        )
