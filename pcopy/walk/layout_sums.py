"""Sums of the layouts of files on Lustre, in bounded memory: number and size of stripes, patterns, pools, use of OSTs.

A layout says on which OST each stripe lies, but only the OSTs know how many bytes each object holds. The bytes per OST
are therefore an estimate: the size of a file divided among its stripes, and scaled down equally if less is allocated
(holes). Stale mirrors count as empty. All other bytes are file sizes. A file with several names counts once for each
name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.lustre.blob import (
    END_OF_FILE,
    EXTENSION,
    INITIALISED,
    ON_MDT,
    OVERSTRIPED,
    RELEASED,
    STALE,
    Component,
    Striping,
    describe_layout,
)
from pcopy.text import printable_path

MAX_ROWS = 4096
"""Maximum number of different layouts, OSTs or pools that are counted separately, since a user may create any number of
layouts.
"""

OTHER_NAME = "others"
"""Name of the row that collects all further layouts or pools."""
OTHER_NUMBER = -1
"""Number of the row that collects all further OSTs, counts or sizes."""

PATTERNS = ("raid0", "overstriped", "mdt", "composite", "self-extending", "mirrored", "released", "none yet", "unknown")
"""Classes of files by their layout. The last one that applies is counted.

- ``raid0``: stripes on OSTs. ``overstriped``: several stripes on one OST.
- ``mdt``: data on the MDT only.
- ``composite``: several components (PFL). ``self-extending``: components that extend themselves (SEL).
- ``mirrored``: mirrors (FLR).
- ``released``: data in an archive (HSM).
- ``none yet``: no layout yet.
- ``unknown``: a layout that could not be read, or is not known to pcopy.
"""

Tables = dict[str, dict[Any, list[int]]]


class LayoutSums:
    """The sums for one file system, of one rank or of all ranks. ``path`` is the shortest path of a directory on it."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.tables: Tables = {
            name: {}
            for name in ("layouts", "stripe_counts", "stripe_sizes", "patterns", "pools", "osts", "mdt", "mdts")
        }
        """Tables of rows with two numbers each.

        - Number of files, and their bytes: by ``layouts`` (as text), ``stripe_counts``, ``stripe_sizes`` (bytes; 0: no
          stripes), ``patterns``, ``pools``.
        - Number of objects, and estimated bytes: by ``osts``.
        - Number of files with data on their MDT, and estimated bytes there: row 0 of ``mdt``.
        - Number of directories: by ``mdts``.
        """

    def add(self, striping: Striping | None, size: int, allocated: int) -> None:
        """Add a regular file.

        Args:
            striping: its layout; None if it has none yet.
            size: its size in bytes.
            allocated: allocated bytes.
        """
        if striping is None:
            self._add("patterns", "none yet", size)
            return
        self._add("layouts", describe_layout(striping.normalised), size)
        self._add("patterns", pattern_of(striping), size)
        for pool in striping.normalised.pools or (b"",):
            self._add("pools", printable_path(pool), size)
        last = last_component_with_objects(striping)
        on_osts = not last.pattern & ON_MDT
        self._add("stripe_counts", last.stripes if on_osts else 0, size)
        self._add("stripe_sizes", last.stripe_size if on_osts else 0, size)
        placed = [*_bytes_by_ost(striping, size)]
        whole = sum(part for _, part in placed)
        for ost, part in placed:
            part_allocated = part if allocated >= whole else part * allocated // whole
            self._add("mdt" if ost is None else "osts", ost or 0, part_allocated)

    def add_unknown(self, size: int) -> None:
        """Add a file whose layout could not be read, or is not known to pcopy."""
        self._add("patterns", "unknown", size)

    def add_directory(self, mdt: int) -> None:
        """Add a directory that this MDT stores."""
        self._add("mdts", mdt, 0)

    def _add(self, table: str, key: str | int, size: int, number: int = 1) -> None:
        rows = self.tables[table]
        row = rows.get(key)
        if row is None:
            other = OTHER_NUMBER if isinstance(key, int) else OTHER_NAME
            row = rows.setdefault(key if len(rows) < MAX_ROWS else other, [0, 0])
        row[0] += number
        row[1] += size

    def merge(self, tables: Tables) -> None:
        """Add the tables of another rank for the same file system."""
        for name, rows in tables.items():
            for key, (number, size) in rows.items():
                self._add(name, key, size, number)


class AllLayoutSums:
    """The sums for all Lustre file systems, by mount code."""

    def __init__(self) -> None:
        self.by_mount: dict[int, LayoutSums] = {}

    def packed(self) -> bytes:
        """Return the packed sums, for ``merge``; empty if there are none."""
        return (
            dump_primitives([(mount, each.path, each.tables) for mount, each in self.by_mount.items()])
            if self.by_mount
            else b""
        )

    def merge(self, words: bytes) -> None:
        """Add the packed sums of another rank."""
        for mount, path, tables in load_primitives(words):
            self.sums_for(mount, path).merge(tables)

    def sums_for(self, mount: int, path: bytes) -> LayoutSums:
        """Return the sums for the file system of the directory ``path``."""
        sums = self.by_mount.setdefault(mount, LayoutSums(path))
        if len(path) <= len(sums.path):
            sums.path = min(path, sums.path, key=lambda each: (len(each), each))
        return sums

    @property
    def sorted_by_path(self) -> list[LayoutSums]:
        """The sums sorted by path."""
        return sorted(self.by_mount.values(), key=lambda each: each.path)


def pattern_of(striping: Striping) -> str:
    """Return the class of a layout, one of ``PATTERNS``."""
    components = striping.components
    if any(each.pattern & RELEASED for each in components):
        return "released"
    if striping.mirrors > 1:
        return "mirrored"
    if any(each.flags & EXTENSION for each in components):
        return "self-extending"
    if striping.is_composite:
        return "composite"
    if components[0].pattern & ON_MDT:
        return "mdt"
    return "overstriped" if components[0].pattern & OVERSTRIPED else "raid0"


def last_component_with_objects(striping: Striping) -> Component:
    """Return the component that determines the stripes of a file: the last one with objects in a composite layout."""
    used = [each for each in striping.components if each.flags & INITIALISED and not each.flags & EXTENSION]
    return used[-1] if used else striping.components[0]


def _bytes_by_ost(striping: Striping, size: int) -> Iterator[tuple[int | None, int]]:
    """Yield the OST of each object, or None for the MDT, and how many of the ``size`` bytes of the file lie there.

    The stripes of a component are counted from the beginning of the file, not of the component.
    """
    for each in striping.components:
        if each.pattern & RELEASED or (striping.is_composite and not each.flags & INITIALISED):
            continue
        start, end = min(each.start, size), size if each.end == END_OF_FILE else min(each.end, size)
        if each.pattern & ON_MDT:
            yield None, end - start
            continue
        for place, ost in enumerate(each.osts):
            before, until = (_bytes_in_object(at, place, each.stripe_size, len(each.osts)) for at in (start, end))
            yield ost, 0 if each.flags & STALE else until - before


def _bytes_in_object(end: int, place: int, stripe: int, stripes: int) -> int:
    """Return how many of the first ``end`` bytes of a file lie in the object with the index ``place``.

    Args:
        stripe: stripe size in bytes.
        stripes: number of stripes.
    """
    if not stripe:
        return end if place == 0 else 0
    rounds, rest = divmod(end, stripe * stripes)
    return rounds * stripe + min(max(rest - place * stripe, 0), stripe)
