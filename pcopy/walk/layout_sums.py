"""Layouts of files on Lustre, summed up in bounded memory: by number and size of stripes, pattern, pool; use of OSTs.

Layouts say which stripes lie on which OST, but nobody says how many bytes each holds without asking all OSTs. So bytes
of OSTs are an estimate: those of a file as its stripes divide them; where less is allocated (holes), each OST has the
same share of that. Stale mirrors count as empty. All other bytes are sizes of files. A file with several names counts
with each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.lustre.blob import (
    EXTENSION,
    INITIALISED,
    ON_MDT,
    OVERSTRIPED,
    RELEASED,
    STALE,
    TO_THE_END,
    Component,
    Striping,
    describe,
)
from pcopy.text import shown

MOST_ROWS = 4096
"""Different layouts, OSTs, pools that are told apart; a hostile owner may make any number of layouts."""

OTHERS = "others"
"""What all further ones are called."""
OTHER = -1
"""The same where rows have numbers."""

PATTERNS = ("raid0", "overstriped", "mdt", "composite", "self-extending", "mirrored", "released", "none yet", "unknown")
"""What a file is by its layout, the last one that fits: stripes on OSTs; several of them on one OST; data on the MDT
only; several components (PFL), which may extend themselves (SEL); mirrors (FLR); data in an archive (HSM); no layout
yet; and one that could not be read or is not known here."""

Tables = dict[str, dict[Any, list[int]]]


class LayoutSums:
    """Of one file system, as one rank has met it, or all ranks. ``path``: the shortest one of a directory there."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.tables: Tables = {
            name: {}
            for name in ("layouts", "stripe_counts", "stripe_sizes", "patterns", "pools", "osts", "mdt", "mdts")
        }
        """Rows with two numbers each. Files, and their bytes: by ``layouts`` in words, ``stripe_counts``,
        ``stripe_sizes`` (bytes; 0: no stripes), ``patterns``, ``pools``. Objects, and estimated bytes: by ``osts``.
        Files with data on their MDT, and estimated bytes there: the row 0 of ``mdt``. Directories: by ``mdts``."""

    def add(self, striping: Striping | None, size: int, allocated: int) -> None:
        """A regular file of ``size`` bytes, with so many ``allocated``; without ``striping`` it has no layout yet."""
        if striping is None:
            self._add("patterns", "none yet", size)
            return
        self._add("layouts", describe(striping.normal), size)
        self._add("patterns", pattern_of(striping), size)
        for pool in striping.normal.pools or (b"",):
            self._add("pools", shown(pool), size)
        last = last_used(striping)
        on_osts = not last.pattern & ON_MDT
        self._add("stripe_counts", last.stripes if on_osts else 0, size)
        self._add("stripe_sizes", last.size if on_osts else 0, size)
        placed = [*_placed(striping, size)]
        whole = sum(part for _, part in placed)
        for ost, part in placed:
            here = part if allocated >= whole else part * allocated // whole
            self._add("mdt" if ost is None else "osts", ost or 0, here)

    def add_unknown(self, size: int) -> None:
        """A file whose layout could not be read, or is none that is known here."""
        self._add("patterns", "unknown", size)

    def add_directory(self, mdt: int) -> None:
        """One that this MDT keeps."""
        self._add("mdts", mdt, 0)

    def _add(self, table: str, key: str | int, size: int, number: int = 1) -> None:
        rows = self.tables[table]
        row = rows.get(key)
        if row is None:
            other = OTHER if isinstance(key, int) else OTHERS
            row = rows.setdefault(key if len(rows) < MOST_ROWS else other, [0, 0])
        row[0] += number
        row[1] += size

    def merge(self, tables: Tables) -> None:
        """Adds what another rank has met of the same file system."""
        for name, rows in tables.items():
            for key, (number, size) in rows.items():
                self._add(name, key, size, number)


class AllLayoutSums:
    """Of all file systems, by their mount codes."""

    def __init__(self) -> None:
        self.met: dict[int, LayoutSums] = {}

    def words(self) -> bytes:
        """For ``merge``."""
        return (
            dump_primitives([(mount, each.path, each.tables) for mount, each in self.met.items()]) if self.met else b""
        )

    def merge(self, words: bytes) -> None:
        """Adds what another rank has met."""
        for mount, path, tables in load_primitives(words):
            self.at(mount, path).merge(tables)

    def at(self, mount: int, path: bytes) -> LayoutSums:
        """Of the file system of a directory."""
        sums = self.met.setdefault(mount, LayoutSums(path))
        if len(path) <= len(sums.path):
            sums.path = min(path, sums.path, key=lambda each: (len(each), each))
        return sums

    @property
    def in_order(self) -> list[LayoutSums]:
        """By path."""
        return sorted(self.met.values(), key=lambda each: each.path)


def pattern_of(striping: Striping) -> str:
    """One of ``PATTERNS``."""
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


def last_used(striping: Striping) -> Component:
    """The component that tells the stripes of a file: of a composite layout the last one that has objects."""
    used = [each for each in striping.components if each.flags & INITIALISED and not each.flags & EXTENSION]
    return used[-1] if used else striping.components[0]


def _placed(striping: Striping, size: int) -> Iterator[tuple[int | None, int]]:
    """The OST of each object, or None for the MDT, and how many of the ``size`` bytes of the file lie there.

    Stripes of a component begin with the file, not with the component.
    """
    for each in striping.components:
        if each.pattern & RELEASED or (striping.is_composite and not each.flags & INITIALISED):
            continue
        start, end = min(each.start, size), size if each.end == TO_THE_END else min(each.end, size)
        if each.pattern & ON_MDT:
            yield None, end - start
            continue
        for place, ost in enumerate(each.osts):
            before, until = (_up_to(at, place, each.size, len(each.osts)) for at in (start, end))
            yield ost, 0 if each.flags & STALE else until - before


def _up_to(end: int, place: int, stripe: int, stripes: int) -> int:
    """How many of the first ``end`` bytes lie in the object at that ``place`` of so many stripes."""
    if not stripe:
        return end if place == 0 else 0
    rounds, rest = divmod(end, stripe * stripes)
    return rounds * stripe + min(max(rest - place * stripe, 0), stripe)
