"""Sums of the layouts of files on Lustre, in bounded memory: number and size of stripes, patterns, pools, use of OSTs.

A layout says on which OST each stripe lies, but only the OSTs know how many bytes each object holds. The bytes per OST
are therefore an estimate: the size of a file is divided among its stripes; if fewer bytes are allocated (holes), all
parts are reduced in the same proportion. Stale mirrors count as empty. All other bytes are sizes of files. A file with
several hard links counts once for each of its names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.lustre.blob import (
    END_OF_FILE,
    EXTENSION_FLAG,
    INITIALISED_FLAG,
    MDT_PATTERN,
    OVERSTRIPED_FLAG,
    RELEASED_FLAG,
    STALE_FLAG,
    LayoutComponent,
    ParsedLayout,
    describe_layout,
)
from pcopy.text import printable_path

MAX_TABLE_ROWS = 4096
"""Maximum number of rows of a table of the summary of layouts; all other layouts, OSTs or pools are counted together in
one row. Otherwise a user who creates very many different layouts could exhaust the memory.
"""

OTHERS_ROW_NAME = "others"
"""Key of the row of a table in which all layouts or pools beyond ``MAX_TABLE_ROWS`` are counted together."""
OTHERS_ROW_NUMBER = -1
"""Key of the row of a table in which all OSTs, stripe counts or stripe sizes beyond ``MAX_TABLE_ROWS`` are counted
together.
"""

LAYOUT_CLASSES = (
    "raid0",
    "overstriped",
    "mdt",
    "composite",
    "self-extending",
    "mirrored",
    "released",
    "none yet",
    "unknown",
)
"""Classes in which files are counted by their layout on Lustre. If several apply to a file, it counts in the last one,
in this order.

- ``raid0``: stripes on OSTs. ``overstriped``: several stripes on one OST.
- ``mdt``: data on the MDT only.
- ``composite``: several components (PFL). ``self-extending``: components that extend themselves (SEL).
- ``mirrored``: mirrors (FLR).
- ``released``: data in an archive (HSM).
- ``none yet``: no layout yet.
- ``unknown``: a layout that could not be read, or is not known to pcopy.
"""

LayoutTables = dict[str, dict[Any, list[int]]]


class LayoutSums:
    """The sums of the layouts of all files on one Lustre file system, found by one rank or, after merging, by all
    ranks. ``path`` is the shortest path of a directory on the file system; it names the file system for users.
    """

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.tables: LayoutTables = {
            name: {}
            for name in ("layouts", "stripe_counts", "stripe_sizes", "patterns", "pools", "osts", "mdt", "mdts")
        }
        """Tables, by name. A row has a key and two numbers.

        - ``layouts``, ``stripe_counts``, ``stripe_sizes``, ``patterns``, ``pools``: number of files and sum of their
          sizes, by layout (as text), number of stripes, stripe size in bytes (0: no stripes), class, and pool.
        - ``osts``: number of objects and estimated bytes, by index of the OST.
        - ``mdt``: the only row, 0: number of files with data on their MDT, and estimated bytes there.
        - ``mdts``: number of directories, by index of the MDT; the second number is 0.
        """

    def add(self, striping: ParsedLayout | None, size: int, allocated: int) -> None:
        """Add a regular file and its layout to the tables.

        Args:
            striping: the layout of the file; None if it has none yet.
            size: its size in bytes.
            allocated: the bytes that are allocated for it.
        """
        if striping is None:
            self._add_to_table("patterns", "none yet", size)
            return
        self._add_to_table("layouts", describe_layout(striping.normalised_layout), size)
        self._add_to_table("patterns", name_of_layout_class(striping), size)
        for pool in striping.normalised_layout.pools or (b"",):
            self._add_to_table("pools", printable_path(pool), size)
        last = last_component_with_objects(striping)
        on_osts = not last.pattern & MDT_PATTERN
        self._add_to_table("stripe_counts", last.stripes if on_osts else 0, size)
        self._add_to_table("stripe_sizes", last.stripe_size if on_osts else 0, size)
        placed = [*_bytes_by_ost(striping, size)]
        whole = sum(part for _, part in placed)
        for ost, part in placed:
            part_allocated = part if allocated >= whole else part * allocated // whole
            self._add_to_table("mdt" if ost is None else "osts", ost or 0, part_allocated)

    def add_file_with_unknown_layout(self, size: int) -> None:
        """Count a file of ``size`` bytes whose layout could not be read, or is not known to pcopy."""
        self._add_to_table("patterns", "unknown", size)

    def add_directory(self, mdt: int) -> None:
        """Count a directory that is stored on the MDT with the index ``mdt``."""
        self._add_to_table("mdts", mdt, 0)

    def _add_to_table(self, table: str, key: str | int, size: int, number: int = 1) -> None:
        rows = self.tables[table]
        row = rows.get(key)
        if row is None:
            other = OTHERS_ROW_NUMBER if isinstance(key, int) else OTHERS_ROW_NAME
            row = rows.setdefault(key if len(rows) < MAX_TABLE_ROWS else other, [0, 0])
        row[0] += number
        row[1] += size

    def merge(self, tables: LayoutTables) -> None:
        """Add the tables of another rank for the same file system."""
        for name, rows in tables.items():
            for key, (number, size) in rows.items():
                self._add_to_table(name, key, size, number)


class AllLayoutSums:
    """The sums of the layouts of files on all Lustre file systems. The key is the mount code, a number of a file system
    that is the same on all hosts.
    """

    def __init__(self) -> None:
        self.by_mount: dict[int, LayoutSums] = {}

    def sums_as_bytes(self) -> bytes:
        """Return the sums as bytes, which this rank sends to rank 0 for ``merge``; empty if there are none."""
        return (
            dump_primitives([(mount, each.path, each.tables) for mount, each in self.by_mount.items()])
            if self.by_mount
            else b""
        )

    def merge(self, words: bytes) -> None:
        """Add the sums of another rank, as its method ``sums_as_bytes`` has returned them."""
        for mount, path, tables in load_primitives(words):
            self.layout_sums_of_mount(mount, path).merge(tables)

    def layout_sums_of_mount(self, mount: int, path: bytes) -> LayoutSums:
        """Return the layout sums of one Lustre file system, which has the mount code ``mount``; create them if there
        are none. ``path`` is a directory on it; the shortest such path represents the file system for users.
        """
        sums = self.by_mount.setdefault(mount, LayoutSums(path))
        if len(path) <= len(sums.path):
            sums.path = min(path, sums.path, key=lambda each: (len(each), each))
        return sums

    @property
    def sums_sorted_by_path(self) -> list[LayoutSums]:
        """The layout sums of each Lustre file system, sorted by the path that represents it."""
        return sorted(self.by_mount.values(), key=lambda each: each.path)


def name_of_layout_class(striping: ParsedLayout) -> str:
    """Return the class in which a file with this layout is counted, one of ``LAYOUT_CLASSES``."""
    components = striping.components
    if any(each.pattern & RELEASED_FLAG for each in components):
        return "released"
    if striping.mirrors > 1:
        return "mirrored"
    if any(each.flags & EXTENSION_FLAG for each in components):
        return "self-extending"
    if striping.is_composite:
        return "composite"
    if components[0].pattern & MDT_PATTERN:
        return "mdt"
    return "overstriped" if components[0].pattern & OVERSTRIPED_FLAG else "raid0"


def last_component_with_objects(striping: ParsedLayout) -> LayoutComponent:
    """Return the component of a layout whose number and size of stripes are counted for the file: in a composite
    layout, the last one that has objects; else the only one.
    """
    used = [each for each in striping.components if each.flags & INITIALISED_FLAG and not each.flags & EXTENSION_FLAG]
    return used[-1] if used else striping.components[0]


def _bytes_by_ost(striping: ParsedLayout, size: int) -> Iterator[tuple[int | None, int]]:
    """Yield where the bytes of a file of ``size`` bytes lie: for each of its objects the index of the OST (None for
    data on the MDT), and the number of bytes in the object.

    Stripes are counted from the beginning of the file, even if a component begins later.
    """
    for each in striping.components:
        if each.pattern & RELEASED_FLAG or (striping.is_composite and not each.flags & INITIALISED_FLAG):
            continue
        start, end = min(each.start, size), size if each.end == END_OF_FILE else min(each.end, size)
        if each.pattern & MDT_PATTERN:
            yield None, end - start
            continue
        for place, ost in enumerate(each.osts):
            before, until = (_bytes_in_object(at, place, each.stripe_size, len(each.osts)) for at in (start, end))
            yield ost, 0 if each.flags & STALE_FLAG else until - before


def _bytes_in_object(end: int, place: int, stripe: int, stripes: int) -> int:
    """Return how many of the first ``end`` bytes of a striped file lie in one of its objects.

    Args:
        place: index of the object among the stripes.
        stripe: stripe size in bytes.
        stripes: number of stripes.
    """
    if not stripe:
        return end if place == 0 else 0
    rounds, rest = divmod(end, stripe * stripes)
    return rounds * stripe + min(max(rest - place * stripe, 0), stripe)
