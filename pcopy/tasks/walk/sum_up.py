"""Sums for ``--summary`` of pwalk. Each rank sums up what it finds. At the end of the walk, each rank sends its sums to
rank 0 (``WalkSumsRequestNote``, ``WalkSumsNote``).

Stripe layouts of files are read only on Lustre.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.layout import LUSTRE_TYPE
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.libc import type_of_file_system
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import WalkOptions
from pcopy.tasks.base.kind import NoteDiscardedOnResume
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import Place
from pcopy.walk.matching import DirectoryItems
from pcopy.walk.output_formats import BLOCK_BYTES
from pcopy.walk.walk_request import WalkRequest

if TYPE_CHECKING:
    from pcopy.tasks.walk.report_found import WalkOutputSink
    from pcopy.walk.layout_sums import AllLayoutSums, LayoutSums

LAYOUTS_PER_SLICE = 32
"""Number of files whose layouts a task reads before it lets other tasks run."""

_FILE = ord("f")
_IGNORED_ERRNOS = (errno.EACCES, errno.EPERM, errno.ENOENT)
"""Errors of reading the layout of a file that are ignored. A layout requires read permission, which a walk does not
need otherwise; and the file may have vanished.
"""


class WalkSumsOfRank:
    """The sums (of sizes, numbers, layouts) over all items that this rank has reported, for ``--summary``."""

    def __init__(self, rank: Rank) -> None:
        from pcopy.walk.sums import WalkSums

        self._rank = rank
        self._are_lustre: dict[int, bool] = {}
        """For each file system, by the code of its mount: True if it is Lustre. A file system whose type could not be
        determined is missing.
        """
        self.sums = WalkSums(WalkRequest(*rank.program_options(WalkOptions).walk).now, rank.backend)
        self.layouts: AllLayoutSums | None = None
        """Sums over the layouts of files; None until the first Lustre file system is found."""

    def packed_sums(self) -> tuple[bytes, bytes]:
        """Return the sums of items and the sums of layouts, both packed; the latter are empty if there is no Lustre
        file system.
        """
        return self.sums.sums_as_bytes(), b"" if self.layouts is None else self.layouts.sums_as_bytes()

    def record_listed_directory(self, place: Place, path: bytes, entries: int) -> None:
        """Record that the directory ``place``, which is reported as ``path``, was listed and has this number of
        entries.
        """
        self.sums.add_directory(path, entries)
        sums = self._layout_sums_at(place, path)
        if sums is None:
            return
        from pcopy.lustre.llapi import mdt_of_item

        try:
            mdt = mdt_of_item(self._rank.open_source_directory(place))
        except Problem:  # the directory has vanished since it was listed
            return
        if mdt >= 0:
            sums.add_directory(mdt)

    def needs_layouts(self, place: Place, path: bytes) -> bool:
        """Return True if the layouts of the files in directory ``place`` must be read, because it is on Lustre, or
        because its file system is not known yet. ``path`` is the path by which the directory is reported.
        """
        return self._layout_sums_at(place, path) is not None or place.source_id.mount_code not in self._are_lustre

    def add_layouts(
        self, result: TaskResult, place: Place, above: bytes, items: DirectoryItems
    ) -> TicketGenerator[None]:
        """Read the layouts of the regular files among ``items``, and add them to the sums. All items are in the
        directory ``place``, which is reported as ``above``. Do nothing if it is not on Lustre.

        A file whose layout cannot be read counts as failed, although it is reported.
        """
        if _FILE not in items.kinds:
            return
        sums = self._layout_sums_at(place, above)
        if sums is not None:
            rows = items.columns
            columns = zip(items.kinds, items.names, rows.size, rows.blocks, strict=True)
            yield from self._read_layouts(result, place, sums, [row[1:] for row in columns if row[0] == _FILE])

    def add_layout_of_root(
        self, result: TaskResult, place: Place, name: bytes, items: DirectoryItems
    ) -> TicketGenerator[None]:
        """Add the layout of a PATH of the command line, if it is a regular file. Its name is ``name``, in the directory
        ``place``; ``items`` contains only this file.
        """
        sums = self._layout_sums_at(place, items.names[0]) if items.kinds[0] == _FILE else None
        if sums is not None:
            yield from self._read_layouts(result, place, sums, [(name, items.columns.size[0], items.columns.blocks[0])])

    def _layout_sums_at(self, place: Place, path: bytes) -> LayoutSums | None:
        """Return the object to which the layouts of files in directory ``place`` are added. There is one for each file
        system. Return None if the file system is not Lustre, or if the directory has vanished.
        """
        mount = place.source_id.mount_code
        is_lustre = self._are_lustre.get(mount)
        if is_lustre is None:
            try:
                with errors_as_problem("statfs"):
                    is_lustre = type_of_file_system(self._rank.open_source_directory(place)) == LUSTRE_TYPE
            except Problem:  # the next directory of this file system is tried
                return None
            self._are_lustre[mount] = is_lustre
        if not is_lustre:
            return None
        if self.layouts is None:
            from pcopy.walk.layout_sums import AllLayoutSums

            self.layouts = AllLayoutSums()
        return self.layouts.layout_sums_of_mount(mount, path)

    def _read_layouts(
        self, result: TaskResult, place: Place, sums: LayoutSums, files: Sequence[tuple[bytes, int, int]]
    ) -> TicketGenerator[None]:
        """Read the layouts of files and add them to ``sums``. This needs no request to a server, since the files were
        just statted.

        Args:
            files: name, size in bytes, and number of 512-byte blocks of each file.
        """
        from pcopy.lustre.blob import InvalidLayoutError, parse_layout
        from pcopy.lustre.default_layout import read_layout
        from pcopy.lustre.layouts import proc_path_of_item

        for start in range(0, len(files), LAYOUTS_PER_SLICE):
            batch = files[start : start + LAYOUTS_PER_SLICE]
            yield from self._rank.throttle.charge_limits_and_wait(operations=len(batch))
            yield None
            for name, size, blocks in batch:
                try:
                    blob = read_layout(proc_path_of_item(self._rank.open_source_directory(place), name), follow=False)
                    sums.add(parse_layout(blob) if blob else None, size, BLOCK_BYTES * blocks)
                except InvalidLayoutError:
                    sums.add_file_with_unknown_layout(size)
                except OSError as error:
                    sums.add_file_with_unknown_layout(size)
                    if error.errno not in _IGNORED_ERRNOS:
                        result.count(counts.FOUND)
                        result.count_item_as_failed(
                            place, name, Problem.from_error("getstripe", error), retry=RetryMode.NEVER
                        )


class WalkSumsRequestNote(NoteDiscardedOnResume, code=105, doing="summing up"):
    """Message from rank 0 to each rank, once at the end of the walk: it makes the rank send its sums to rank 0."""

    def run(self, rank: Rank, result: TaskResult) -> None:
        result.spawn_task(WalkSumsNote(*rank.shared_instance(WalkSumsOfRank).packed_sums()), owner=0)


class WalkSumsNote(NoteDiscardedOnResume, code=106, doing="summing up"):
    """Message to rank 0: the sums of one rank over items (``packed_sums``) and over Lustre layouts
    (``packed_layouts``), both packed.
    """

    packed_sums: bytes
    packed_layouts: bytes

    def run(self, rank: Rank, result: TaskResult) -> None:
        cast("WalkOutputSink", rank.sink).add_sums_of_rank(self.packed_sums, self.packed_layouts)
