"""Conversion of batches of directories for the C backend (``pcopy.fsio.kernel.directory_batches``)."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from pcopy.fsio.attributes import Attributes
from pcopy.fsio.close import late_times
from pcopy.fsio.kernel import _native
from pcopy.fsio.kernel.batches import Batch, Judged, OfNames, SyncDirectories
from pcopy.fsio.kernel.columns import (
    ATIME,
    COLUMNS,
    FOUND,
    GROUP,
    INODE,
    LINKS,
    MODE,
    MTIME,
    OWNER,
    Code,
    Rows,
    Verdicts,
)
from pcopy.fsio.kernel.directory_batches import (
    Common,
    CompareWithin,
    DoneWithin,
    Enter,
    Entered,
    Finish,
    LeftWithin,
    Look,
    Looked,
    MendWithin,
    Paths,
    RemoveWithin,
    Sibling,
    Summed,
    SumsWithin,
    ToldWithin,
    Within,
)
from pcopy.fsio.kernel.interface import Settings
from pcopy.fsio.kernel.native_batches import ALL_MODES, InC, flags_of, give_back
from pcopy.fsio.kernel.python import Work
from pcopy.fsio.preserve import CAP_CHOWN, CAP_DAC_OVERRIDE, capable

_ffi, _lib = _native.ffi, _native.lib

_LEFT = ("mode", "links", "mtime", "ctime", "inode", "size", "device")
"""Columns of the items that remain in a directory."""
_TYPES = {name: (typecode, array(typecode).itemsize) for name, typecode, *_ in COLUMNS}
"""Type code of ``array`` and bytes per value of each column."""
_NOTHING = Rows(0, FOUND | LINKS)
_EMPTY = Within(b"", b"", array("Q"), None)
_DIRECTORY = ord("d")


class DirectoriesInC(InC):
    """Base of converted ``Enter`` and ``Finish`` batches. Rows that C defers get the code ``CARE``."""

    def __init__(self, kind: int, settings: Settings, batch: Enter | Finish, result: Judged, target: int) -> None:
        super().__init__(kind, batch, result, _none)
        self._tree = _tree_of(batch.common)
        to = self.batch
        to.target = target
        to.umask = settings.umask
        to.flags = flags_of(settings)
        to.tree = self._tree

    def finish(self) -> None:
        give_back(self.result.verdicts.codes)


class EnterInC(DirectoriesInC):
    """An ``Enter`` batch, converted to pointers for the C code."""

    def __init__(self, settings: Settings, batch: Enter) -> None:
        number = len(batch)
        self._entered = Entered(Verdicts(number), 0, 0, {})
        super().__init__(_lib.PK_ENTER, settings, batch, self._entered, batch.target)
        if len(batch.inodes) != number:
            raise ValueError(f"there are {len(batch.inodes)} inodes for {number} rows: each row needs one")
        self._directories: Any = _ffi.new("pk_directory[]", number)
        self.batch.directories = self._directories
        self.batch.flags |= _lib.PK_LATE if late_times.get(batch.common.target_device) else 0
        self.batch.given.inode = self.pointer("uint64_t[]", batch.inodes)

    def finish(self) -> None:
        super().finish()
        entered, directories = self._entered, self._directories
        done = int(Code.DONE)
        entered.skipped = entered.skipped_bytes = 0
        for row, code in enumerate(entered.verdicts.codes):
            if code != done:
                continue
            found = directories[row]
            if found.is_finished:
                entered.skipped += found.skipped
                entered.skipped_bytes += found.skipped_bytes
            else:
                entered.left[row] = _sibling(found)


class LookInC(InC):
    """A ``Look`` batch, converted to pointers for the C code. Rows that C defers get the code ``CARE``."""

    def __init__(self, batch: Look) -> None:
        number = len(batch)
        self._looked = Looked(Verdicts(number), {})
        super().__init__(_lib.PK_LOOK, batch, self._looked, _none)
        if len(batch.inodes) != number:
            raise ValueError(f"there are {len(batch.inodes)} inodes for {number} rows: each row needs one")
        self._tree = tree = _ffi.new("pk_tree *")
        tree.source_device, tree.most, tree.mask, tree.kinds = batch.device, batch.most + 1, batch.mask, batch.kinds
        self._directories: Any = _ffi.new("pk_directory[]", number)
        if batch.tally is not None:
            tree.tally, tree.largest = batch.tally.pointer, batch.largest
        self._mask = batch.mask
        self._names = [name for name, _, bit, _ in COLUMNS if batch.mask & bit]
        to = self.batch
        to.tree, to.directories = tree, self._directories
        to.given.inode = self.pointer("uint64_t[]", batch.inodes)

    def finish(self) -> None:
        codes = self._looked.verdicts.codes
        give_back(codes)
        done = int(Code.DONE)
        found, directories = self._looked.found, self._directories
        for row, code in enumerate(codes):
            if code == done:
                found[row] = self._within(directories[row])

    def _within(self, found: Any) -> Within:
        """Return the contents that C has found in one directory."""
        number = found.left
        if not number:
            return _EMPTY
        kinds = _ffi.buffer(found.kinds, number)[:]
        inodes = array("Q")
        if _DIRECTORY in kinds:
            inodes.frombytes(_ffi.buffer(found.inodes, number * 8))
        summed = None
        if found.is_summed:
            summed = Summed(found.bytes, found.allocated, found.dress.uid, found.dress.gid)
            if not inodes:
                return Within(b"", kinds, inodes, None, summed)
        rows = _filled(found, self._mask, self._names) if self._mask and not summed else None
        return Within(_ffi.buffer(found.names, found.names_size)[:], kinds, inodes, rows, summed)


class WithinInC(InC):
    """Base of the batches that process the contents of directories. Rows that C defers get the code ``CARE``."""

    def __init__(
        self, kind: int, batch: MendWithin | CompareWithin | RemoveWithin | Paths, done: DoneWithin | None = None
    ) -> None:
        number = len(batch)
        self._done = done or DoneWithin(Verdicts(number), SumsWithin(), {})
        super().__init__(kind, batch, self._done, _none)
        self._tree: Any = _ffi.new("pk_tree *")
        self._directories: Any = _ffi.new("pk_directory[]", number)
        self._sums: Any = _ffi.new("pk_sums[]", number)
        to = self.batch
        to.tree, to.directories, to.sums = self._tree, self._directories, self._sums
        self._tree.most = batch.most + 1
        to.given.inode = self._inodes(batch.inodes)

    def _inodes(self, inodes: array[int]) -> Any:
        """Return a pointer to inode numbers. Raise ``ValueError`` unless there is one for each row."""
        if len(inodes) != self.number:
            raise ValueError(f"there are {len(inodes)} inodes for {self.number} rows: each row needs one")
        return self.pointer("uint64_t[]", inodes)

    def finish(self) -> None:
        result, directories = self._done, self._directories
        codes, width = result.verdicts.codes, len(SumsWithin._fields)
        give_back(codes)
        numbers = array("Q", _ffi.buffer(self._sums)[:])
        result.sums = SumsWithin(*(sum(numbers[column::width]) for column in range(width)))
        done = int(Code.DONE)
        for row, code in enumerate(codes):
            found = directories[row]
            if code == done and (number := found.left):
                names, kinds = _ffi.buffer(found.names, found.names_size)[:], _ffi.buffer(found.kinds, number)[:]
                inodes, others = (
                    array("Q", _ffi.buffer(each, 8 * number)[:] if each else b"")
                    for each in (found.inodes, found.rows.inode)
                )
                result.left[row] = LeftWithin(names, kinds, inodes, others)


class MendWithinInC(WithinInC):
    """A ``MendWithin`` batch, converted to pointers for the C code."""

    def __init__(self, batch: MendWithin) -> None:
        super().__init__(_lib.PK_MEND_WITHIN, batch)
        if not len(batch.modes) == len(batch.directory_modes) == ALL_MODES:
            raise ValueError("there is not one mode for each value of the permission bits")
        self._tree.source_device, self._tree.user = batch.device, os.geteuid()
        self._tree.flags = _lib.PK_POWERFUL if capable(CAP_DAC_OVERRIDE) else 0
        to = self.batch
        to.modes = self.pointer("uint16_t[]", batch.modes)
        to.directory_modes = self.pointer("uint16_t[]", batch.directory_modes)
        to.uid, to.gid = batch.uid, batch.gid


class CompareWithinInC(WithinInC):
    """A ``CompareWithin`` batch, converted to pointers for the C code."""

    def __init__(self, batch: CompareWithin) -> None:
        super().__init__(_lib.PK_COMPARE_WITHIN, batch)
        self._tree.source_device, self._tree.target_device = batch.devices
        self._tree.window = batch.window
        self.batch.target = batch.target
        self.batch.flags = batch.wanted
        self.batch.wanted.inode = self._inodes(batch.others)


class RemoveWithinInC(WithinInC):
    """A ``RemoveWithin`` batch, converted to pointers for the C code."""

    def __init__(self, batch: RemoveWithin) -> None:
        super().__init__(_lib.PK_REMOVE_WITHIN, batch)
        self._tree.source_device = batch.device


class PathsInC(WithinInC):
    """A ``Paths`` batch, converted to pointers for the C code."""

    def __init__(self, batch: Paths) -> None:
        self._told = ToldWithin(Verdicts(len(batch)), SumsWithin(), {})
        super().__init__(_lib.PK_PATHS, batch, self._told)
        self._tree.source_device = batch.device
        self._above = _ffi.new("char[]", batch.above)
        self.batch.prefixes = self._above

    def finish(self) -> None:
        super().finish()
        directories = self._directories
        found = (directories[row] for row, code in enumerate(self._done.verdicts.codes) if code == Code.DONE)
        texts = [_ffi.buffer(each.text, size)[:] for each in found if (size := each.text_size)]
        self._told.text = b"".join(texts)


class FinishInC(DirectoriesInC):
    """A ``Finish`` batch, converted to pointers for the C code."""

    def __init__(self, settings: Settings, batch: Finish) -> None:
        super().__init__(_lib.PK_FINISH, settings, batch, Judged(Verdicts(len(batch))), batch.directory)
        self.columns(self.batch.given, batch.rows, MODE | OWNER | GROUP | ATIME | MTIME | INODE)
        if not len(batch.marks) == len(batch.fresh) == len(batch):
            raise ValueError(f"there are {len(batch.marks)} marks for {len(batch)} rows: each row needs one")
        marks = bytearray(len(batch) * _lib.PK_MARK)
        for row, mark in enumerate(batch.marks):
            start = row * _lib.PK_MARK
            marks[start] = len(mark)
            marks[start + 1 : start + 1 + len(mark)] = mark
        self.batch.marks = self.pointer("uint8_t[]", marks)
        self.batch.plans = self.pointer("uint8_t[]", batch.fresh)


class SyncInC(InC):
    """A ``SyncDirectories`` batch, converted to pointers for the C code, which defers none of its rows."""

    def __init__(self, batch: SyncDirectories) -> None:
        number = len(batch.directories)
        rows = OfNames[Judged](batch.directories[0], b"/" * (number - 1))
        super().__init__(_lib.PK_SYNC, rows, Judged(Verdicts(number)), _none)
        self.batch.synced = self.pointer("int32_t[]", array("i", batch.directories))


def directories_in_c(settings: Settings, batch: Batch[Any]) -> InC | None:
    """Return the batch, converted to pointers for the C code, or None if it is not a batch of directories."""
    match batch:
        case Enter():
            return EnterInC(settings, batch)
        case Finish():
            return FinishInC(settings, batch)
    made = _WITHOUT_SETTINGS.get(type(batch))
    return made(batch) if made is not None else None


_WITHOUT_SETTINGS: dict[type[Batch[Any]], Callable[[Any], InC]] = {
    Look: LookInC,
    Paths: PathsInC,
    MendWithin: MendWithinInC,
    CompareWithin: CompareWithinInC,
    RemoveWithin: RemoveWithinInC,
    SyncDirectories: SyncInC,
}
"""Classes of the batches that need no settings, by the class of the batch."""


def _filled(found: Any, mask: int, names: Sequence[str]) -> Rows:
    """Return the columns that C has found for the items of a directory."""
    number, columns = found.left, found.rows
    rows = Rows.to_fill(number, mask)
    for name in names:
        typecode, size = _TYPES[name]
        setattr(rows, name, array(typecode, _ffi.buffer(getattr(columns, name), number * size)[:]))
    return rows


def _none() -> Work:
    """Raise ``AssertionError``: the C code never leaves directories to the Python code of this batch."""
    raise AssertionError("the C code deferred a directory, which Python does not process")


def _tree_of(common: Common) -> Any:
    """Return the settings of a batch of directories as a ``pk_tree`` of kernel.h."""
    chosen = (
        (common.in_new, _lib.PK_IN_NEW),
        (capable(CAP_DAC_OVERRIDE), _lib.PK_POWERFUL),
        (common.compares, _lib.PK_COMPARE),
        (common.links_apart, _lib.PK_LINKS),
        (common.copies, _lib.PK_COPY_NEW),
        (capable(CAP_CHOWN), _lib.PK_GIVING),
    )
    tree = _ffi.new("pk_tree *")
    tree.source_device, tree.target_device = common.source_device, common.target_device
    tree.shunned_device, tree.shunned_inode = common.shunned
    tree.touched, tree.window, tree.most = common.touched, common.window, common.most
    tree.user = os.geteuid()
    tree.flags = sum(flag for is_so, flag in chosen if is_so)
    return tree


def _sibling(found: Any) -> Sibling:
    """Return what C has found in a directory in which something remains to be done."""
    dress, number = found.dress, found.left
    rows, names = _NOTHING, b""
    if number:
        rows = _filled(found, FOUND | LINKS, _LEFT)
        names = _ffi.buffer(found.names, found.names_size)[:]
    mark = _ffi.buffer(found.mark, 1 + found.mark[0])[1:]
    attributes = Attributes(dress.mode, dress.uid, dress.gid, dress.atime, dress.mtime)
    is_fresh, is_anothers = bool(found.is_made), bool(found.is_anothers)
    return Sibling(
        attributes,
        found.inode,
        mark,
        is_fresh,
        is_anothers,
        names,
        rows,
        (found.skipped, found.skipped_bytes),
        (found.copied, found.copied_bytes),
    )
