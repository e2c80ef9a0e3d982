"""Sums of a walk in bounded memory: by type, size, age, depth and owner; the largest files and directories; unusual
items.

Each rank adds up what it finds, and rank 0 merges the sums of all ranks. A file with several hard links counts once for
each of its names.
"""

from __future__ import annotations

import stat
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from heapq import nsmallest
from itertools import compress
from operator import sub
from typing import TYPE_CHECKING, Any

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.fsio.backend.columns import (
    ATIME_COLUMN,
    BLOCKS_COLUMN,
    GROUP_COLUMN,
    LINKS_COLUMN,
    MODE_COLUMN,
    MTIME_COLUMN,
    OWNER_COLUMN,
    SIZE_COLUMN,
    ItemStatusColumns,
)
from pcopy.walk.matching import DirectoryItems
from pcopy.walk.output_formats import BLOCK_BYTES, TYPE_WORDS
from pcopy.walk.tree_sums import TreeSums

if TYPE_CHECKING:
    from pcopy.fsio.backend.interface import FileOperationBackend
    from pcopy.fsio.backend.walk_batches import EnteredDirectories

LARGEST_SHOWN = 20
"""Number of the largest files, and of the largest directories, that are listed by name."""

MAX_OWNERS = 1 << 16
"""Maximum number of users, and of groups, that are counted separately; the items of all others are counted together."""

OTHER_OWNERS_ID = -1
"""The id under which the items of all users (or groups) beyond ``MAX_OWNERS`` are counted together."""

MAX_COUNTED_DEPTH = 1000
"""Maximum depth that is counted separately: items at this number of levels below a PATH, or more, are counted
together.
"""

_DAY_NANOSECONDS = 86400 * 10**9
"""Number of nanoseconds of a day."""

AGE_CLASS_LIMITS = (1, 7, 30, 90, 180, 365, 730, 1825)
"""Limits in days of the classes by which items are counted by age. Class 0 is for times in the future, class 1 for ages
of less than a day, and so on; the last class is for ages of at least 1825 days.
"""

UNUSUAL_ITEM_KINDS = ("set_id", "world_writable", "future", "control_characters", "not_utf8", "sparse", "hard_linked")
"""Kinds of unusual items that are counted:

- ``set_id``: set-user-ID or set-group-ID files,
- ``world_writable``: items, except symbolic links and sticky directories, that everybody may write to,
- ``future``: items modified in the future,
- ``control_characters``: names with control characters,
- ``not_utf8``: names that are not valid UTF-8,
- ``sparse``: files with holes,
- ``hard_linked``: names of files with several hard links.
"""

_FILE_LETTER = ord("f")
_SUMMED_TYPES = [TYPE_WORDS[kind] for kind in b"fdlpscb"]
"""Words for the types, in the order of ``EnteredDirectories.kinds``."""


class WalkSums:
    """The sums of a walk for ``--summary``: numbers and bytes of items by type, size, age, depth and owner, the largest
    files, unusual items. Each rank has such an object; rank 0 merges those of all ranks.

    Args:
        now: time from which ages are counted, in nanoseconds since 1970.
        backend: the code for file system calls. If it is the one in C, it can also add up columns faster than Python.
    """

    NEEDED_COLUMNS = (
        MODE_COLUMN
        | LINKS_COLUMN
        | OWNER_COLUMN
        | GROUP_COLUMN
        | SIZE_COLUMN
        | BLOCKS_COLUMN
        | ATIME_COLUMN
        | MTIME_COLUMN
    )

    def __init__(self, now: int, backend: FileOperationBackend | None = None) -> None:
        self._now = now
        self._bounds = [*(now - days * _DAY_NANOSECONDS for days in reversed(AGE_CLASS_LIMITS)), now]
        """Limits of the classes of age as times, in nanoseconds since 1970, the oldest first. A time that equals a
        limit belongs to the older class.
        """
        self.backend_sums = None if backend is None else backend.new_column_sums(self._bounds)
        """Object of the C backend that adds up columns (fields of the status of many items); None: Python adds them up.
        The backend adds items to it directly if it lists and sums whole directories
        (``pcopy.fsio.backend.walk_batches.ListItemsBatch``).
        """
        self.types: Counter[str] = Counter()
        self.size = 0
        """Sum of the sizes of regular files in bytes. ``allocated`` is the sum of the bytes allocated for all items."""
        self.allocated = 0
        self.sizes: Counter[int] = Counter()
        """Number of regular files by the bit length of their size (0: empty, 1: 1 byte, 2: 2 or 3 bytes, ...).
        ``size_bytes`` has the sums of their sizes by the same keys.
        """
        self.size_bytes: Counter[int] = Counter()
        self.ages: dict[str, Counter[int]] = {name: Counter() for name in ("mtime", "atime", "mtime_bytes")}
        """Histograms by class of age (index in the classes of ``AGE_CLASS_LIMITS``; 0: the future): number of files by
        mtime and by atime, and bytes of files by mtime.
        """
        self.depths: Counter[int] = Counter()
        self.entries: Counter[int] = Counter()
        """Number of directories by the bit length of their number of entries."""
        self.owners: dict[str, dict[int, list[int]]] = {"users": {}, "groups": {}}
        """For users and for groups: by id, the number of items, the bytes of regular files, and the allocated bytes."""
        self.unusual: Counter[str] = Counter()
        self.holes = 0
        """Bytes in holes: the sizes of regular files minus their allocated bytes, where that is positive."""
        self.trees = TreeSums()
        """Sums for directories of the upper levels, with everything below them."""
        self._files: list[tuple[int, bytes]] = []
        self._directories: list[tuple[int, bytes]] = []

    def add(self, items: DirectoryItems, depth: int) -> None:
        """Add items of one directory to the sums. Their status must be known, with the columns of ``NEEDED_COLUMNS``.

        Args:
            depth: number of levels below a PATH of the command line; PATH itself has the depth 0.
        """
        rows, kinds = items.columns, items.kinds
        self._count_types(kinds, depth)
        self._count_unusual_names(items)
        size, allocated, largest = (self.backend_sums and self.backend_sums.add_rows(rows, kinds)) or self._add_columns(
            rows, kinds
        )
        if depth > 0:
            self.trees.add(items.above, depth - 1, len(kinds), size, allocated)
        _add_items_by_owner(self.owners["users"], rows.uid, items, (size, allocated))
        _add_items_by_owner(self.owners["groups"], rows.gid, items, (size, allocated))
        if _FILE_LETTER in kinds and largest > (least := self._size_threshold_of_largest_files(items.above)):
            above = items.above
            _merge_largest(
                self._files,
                [
                    (each, above + name)
                    for name, kind, each in zip(items.names, kinds, rows.size, strict=True)
                    if kind == _FILE_LETTER and each > least
                ],
            )

    def add_summed_directories(self, above: bytes, depth: int, entered: EnteredDirectories) -> None:
        """Add the directories that the C backend has listed and whose items it has added to ``backend_sums``. Only what
        the backend cannot add is done here: types, numbers of entries, depths, owners, and the sums of trees.

        Args:
            above: path of the parent of the directories, ending with a slash.
            depth: depth of the items in a directory whose path relative to ``above`` is a single name.
            entered: directories, some of which the backend has added to its sums.
        """
        for word, numbers in zip(_SUMMED_TYPES, entered.kinds, strict=True):
            self.types[word] += sum(numbers)
        names = "paths", "items", "sizes", "allocated", "users", "groups"
        columns = [list(compress(getattr(entered, name), entered.is_summed)) for name in names]
        paths, numbers, sizes, allocated, users, groups = columns
        self._count_directories(above, paths, numbers)
        add_tree, depths = self.trees.add, self.depths
        for path, number, size, occupied in zip(paths, numbers, sizes, allocated, strict=True):
            if number:
                level = depth + path.count(b"/")
                depths[min(level, MAX_COUNTED_DEPTH)] += number
                add_tree(b"%b%b/" % (above, path), level - 1, number, size, occupied)
        _add_directories_by_owner(self.owners["users"], users, numbers, sizes, allocated)
        _add_directories_by_owner(self.owners["groups"], groups, numbers, sizes, allocated)

    def _size_threshold_of_largest_files(self, above: bytes) -> int:
        """Return the size in bytes that a file in the directory ``above`` must exceed to be one of the largest files;
        -1 if any file is one.

        Of files with equal size, the one with the smaller path counts as larger. So the result does not depend on the
        order in which the ranks find the files.
        """
        if len(self._files) < LARGEST_SHOWN:
            return -1
        size, path = self._files[-1]
        return size if above > path else size - 1

    def _count_types(self, kinds: bytes, depth: int) -> None:
        for kind in set(kinds):
            self.types[TYPE_WORDS[kind]] += kinds.count(kind)
        self.depths[min(depth, MAX_COUNTED_DEPTH)] += len(kinds)

    def _add_columns(self, rows: ItemStatusColumns, kinds: bytes) -> tuple[int, int, int]:
        """Add the status of some items to the sums, in Python. ``rows`` are columns (arrays with one value per item),
        and ``kinds`` the letters of the types. Return the bytes of regular files, the allocated bytes of all items,
        and the size of the largest file.

        For speed, each column is processed as a whole.
        """
        allocated = BLOCK_BYTES * sum(rows.blocks)
        self.allocated += allocated
        self._count_unusual_modes(rows.mode)
        if max(rows.mtime, default=0) > self._now:
            self.unusual["future"] += sum(map(self._now.__lt__, rows.mtime))
        columns: tuple[Sequence[int], ...] = rows.size, rows.blocks, rows.links, rows.mtime, rows.atime
        if kinds.count(_FILE_LETTER) < len(kinds):
            are_files = bytes(map(_FILE_LETTER.__eq__, kinds))
            columns = tuple([*compress(column, are_files)] for column in columns)
        return (self._add_files(*columns), allocated, max(columns[0])) if columns[0] else (0, allocated, 0)

    def _count_unusual_modes(self, modes: Sequence[int]) -> None:
        for mode in set(modes):
            kind = stat.S_IFMT(mode)
            sticky = kind == stat.S_IFDIR and mode & stat.S_ISVTX
            if mode & stat.S_IWOTH and kind != stat.S_IFLNK and not sticky:
                self.unusual["world_writable"] += modes.count(mode)
            if mode & (stat.S_ISUID | stat.S_ISGID) and kind == stat.S_IFREG:
                self.unusual["set_id"] += modes.count(mode)

    def _add_files(
        self,
        sizes: Sequence[int],
        blocks: Sequence[int],
        links: Sequence[int],
        mtimes: Sequence[int],
        atimes: Sequence[int],
    ) -> int:
        """Add the status of regular files (at least one) to the sums, and return the sum of their sizes in bytes. Each
        argument has one value per file. Times are in nanoseconds since 1970, ``blocks`` in units of 512 bytes.
        """
        size = sum(sizes)
        self.size += size
        _add_to_histogram(self.sizes, self.size_bytes, list(map(int.bit_length, sizes)), sizes)
        _add_to_histogram(self.ages["mtime"], self.ages["mtime_bytes"], self._age_classes(mtimes), sizes)
        _add_to_histogram(self.ages["atime"], None, self._age_classes(atimes), sizes)
        if max(links) > 1:
            self.unusual["hard_linked"] += sum(map((1).__lt__, links))
        missing = list(map(sub, sizes, map(BLOCK_BYTES.__mul__, blocks)))
        if max(missing) > 0:
            holes = [each for each in missing if each > 0]
            self.unusual["sparse"] += len(holes)
            self.holes += sum(holes)
        return size

    def _age_classes(self, moments: Sequence[int]) -> list[int]:
        """Return the class of age (index in the classes of ``AGE_CLASS_LIMITS``) of each time, in nanoseconds since
        1970. If all have the same class, return a list with this class only.
        """
        oldest, newest = self._age_class(min(moments)), self._age_class(max(moments))
        return [oldest] if oldest == newest else list(map(self._age_class, moments))

    def _age_class(self, moment: int) -> int:
        """Return the class of age of a time in nanoseconds since 1970: 0 for the future, up to ``len(AGES) + 1`` for
        the oldest.
        """
        return len(self._bounds) - bisect_left(self._bounds, moment)

    def _count_unusual_names(self, items: DirectoryItems) -> None:
        """Count the items whose names have control characters or are not UTF-8."""
        joined = b"/".join(items.names)
        if joined.isascii() and joined.decode().isprintable():
            return
        for name in items.names:
            if any(byte < 32 or byte == 127 for byte in name):
                self.unusual["control_characters"] += 1
            try:
                name.decode()
            except UnicodeDecodeError:
                self.unusual["not_utf8"] += 1

    def add_directory(self, path: bytes, entries: int) -> None:
        """Count the directory ``path`` by its number of ``entries``, and list it if it is one of the largest so far."""
        self._count_directories(b"", [path], [entries])

    def _count_directories(self, above: bytes, paths: Sequence[bytes], entries: Sequence[int]) -> None:
        """Count directories by their numbers of entries, and list those that are among the largest so far. ``above`` is
        the common beginning of their paths.
        """
        self.entries.update(map(int.bit_length, entries))
        least, last = 0, b""
        if len(self._directories) == LARGEST_SHOWN:
            least, last = self._directories[-1]
        _merge_largest(
            self._directories,
            [
                (number, above + path)
                for path, number in zip(paths, entries, strict=True)
                if number > least or (number == least and (not last or above + path < last))
            ],
        )

    @property
    def largest_files(self) -> list[tuple[int, bytes]]:
        """Sizes and paths of the largest files, the largest first."""
        return self._files

    @property
    def largest_directories(self) -> list[tuple[int, bytes]]:
        """Numbers of entries and paths of the largest directories, the largest first."""
        return self._directories

    def sums_as_bytes(self) -> bytes:
        """Return the sums as bytes, which this rank sends to rank 0 for ``merge``. Nothing may be added afterwards."""
        self._merge_backend_sums()
        counters = [dict(each) for each in self._counters()]
        numbers = self.size, self.allocated, self.holes
        trees = self.trees.rows, self.trees.has_merged_trees
        return dump_primitives((counters, numbers, self.owners, self._files, self._directories, trees))

    def _merge_backend_sums(self) -> None:
        """Add the sums that the C backend has computed (``backend_sums``) to those of this object. Afterwards the
        backend adds up nothing more.
        """
        if self.backend_sums is None:
            return
        sums, classes = self.backend_sums.sums(), self.backend_sums.histograms()
        _merge_largest(self._files, self.backend_sums.largest_files())
        self.backend_sums = None
        self.size += sums.pop("bytes")
        self.allocated += sums.pop("allocated")
        self.holes += sums.pop("holes")
        self.unusual.update({key: number for key, number in sums.items() if number})
        self.sizes.update(classes["sizes"])
        self.size_bytes.update(classes["size_bytes"])
        self.ages["mtime"].update(classes["modified"])
        self.ages["mtime_bytes"].update(classes["modified_bytes"])
        self.ages["atime"].update(classes["read"])

    def merge(self, words: bytes) -> None:
        """Add the sums of another rank, as its method ``sums_as_bytes`` has returned them."""
        counters, numbers, owners, files, directories, trees = load_primitives(words)
        self.trees.merge(*trees)
        for mine, other in zip(self._counters(), counters, strict=True):
            mine.update(other)
        self.size += numbers[0]
        self.allocated += numbers[1]
        self.holes += numbers[2]
        for kind, other_owners in owners.items():
            own_owners = self.owners[kind]
            for number, values in other_owners.items():
                _add_to_sums_of_owner(own_owners, number, *values)
        _merge_largest(self._files, list(map(tuple, files)))
        _merge_largest(self._directories, list(map(tuple, directories)))

    def _counters(self) -> list[Counter[Any]]:
        return [
            self.types, self.sizes, self.size_bytes, *self.ages.values(), self.depths, self.entries, self.unusual
        ]  # fmt: skip


def _add_to_histogram(
    numbers: Counter[int], all_bytes: Counter[int] | None, classes: Sequence[int], sizes: Sequence[int]
) -> None:
    """Add files to a histogram, which counts files and their bytes by a class (of size or age).

    Args:
        numbers: number of files by class, which is changed.
        all_bytes: bytes of files by class, which is changed; None: they are not counted.
        classes: class of each file; a single element if all files have the same class.
        sizes: size of each file in bytes.
    """
    found = set(classes)
    if len(found) == 1:
        numbers[classes[0]] += len(sizes)
        if all_bytes is not None:
            all_bytes[classes[0]] += sum(sizes)
        return
    numbers.update(classes)
    if all_bytes is not None:
        for each, size in zip(classes, sizes, strict=True):
            all_bytes[each] += size


def _add_items_by_owner(
    known: dict[int, list[int]], numbers: array[int], items: DirectoryItems, whole: tuple[int, int]
) -> None:
    """Add items to the sums by owner.

    Args:
        known: the sums by user or group id, which are changed.
        numbers: user or group id of each of the ``items``.
        items: the items, which were statted.
        whole: bytes of regular files, and allocated bytes, of all items together; used if all have the same owner.
    """
    rows = items.columns
    if numbers == numbers[:1] * len(numbers):
        _add_to_sums_of_owner(known, numbers[0], len(numbers), *whole)
        return
    for number, kind, size, blocks in zip(numbers, items.kinds, rows.size, rows.blocks, strict=True):
        _add_to_sums_of_owner(known, number, 1, size if kind == _FILE_LETTER else 0, blocks * BLOCK_BYTES)


def _add_to_sums_of_owner(known: dict[int, list[int]], number: int, *values: int) -> None:
    row = known.setdefault(number if number in known or len(known) < MAX_OWNERS else OTHER_OWNERS_ID, [0, 0, 0])
    row[:] = [old + new for old, new in zip(row, values, strict=True)]


def _add_directories_by_owner(
    known: dict[int, list[int]],
    owners: Sequence[int],
    numbers: Sequence[int],
    sizes: Sequence[int],
    allocated: Sequence[int],
) -> None:
    """Add directories to the sums by owner (``known``), each of which contains items of one owner.

    Args:
        owners: user or group id of the items in each directory.
        numbers, sizes, allocated: number of items, bytes of regular files, and allocated bytes in each directory.
    """
    used = {owner for owner, number in zip(owners, numbers, strict=True) if number}
    if len(used) == 1:
        _add_to_sums_of_owner(known, used.pop(), sum(numbers), sum(sizes), sum(allocated))
        return
    for owner, number, *sums in zip(owners, numbers, sizes, allocated, strict=True):
        if number:
            _add_to_sums_of_owner(known, owner, number, *sums)


def _merge_largest(largest: list[tuple[int, bytes]], others: Sequence[Any]) -> None:
    """Insert ``others``, pairs (size, path), into the list of the largest files or directories, which is sorted by
    size. The list keeps at most ``LARGEST_SHOWN`` entries. Entries of equal size are ordered by path.
    """
    if others:
        largest[:] = nsmallest(LARGEST_SHOWN, [*largest, *others], key=lambda one: (-one[0], one[1]))
