"""FinishDirs: set the metadata of several sibling directories in one task; ``FinishDir`` describes the semantics."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from pcopy.engine.ticket import Stepwise
from pcopy.fsio.attributes import Attributes, has_common_times
from pcopy.fsio.identity import Identity
from pcopy.fsio.kernel.columns import INODE, Code, Rows, pack_names, unpack_names
from pcopy.fsio.kernel.directory_batches import DRESSED, Common, Finish
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.kind import Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.siblings import OfSiblings
from pcopy.tasks.base.values import Place, pack_numbers, unpack_numbers
from pcopy.tasks.directories.finish_dir import FinishDir
from pcopy.tasks.directories.plain import open_plain

_ACTION = 2
"""Bit offset of the ``Action`` in the state of a directory; lower bits are flags."""


class FinishDirs(OfSiblings, code=9, doing="finishing directories in", is_note=False):
    """As ``FinishDir``, for the sub-directories ``names`` of ``place``; each of them counts as copied.

    One column per field, with one row per name:

    - ``sources``, ``targets``: inode numbers, packed.
    - ``marks``: the mark of each target (``pcopy.fsio.identity``).
    - ``states``: one byte each. Bit 0 is set if this job created the directory, bit 1 if items in it inherit ACLs; the
      bits above hold the ``Action`` to report.
    - ``attributes``: packed columns of ``DRESSED``.
    """

    sources: bytes
    targets: bytes
    marks: tuple[bytes, ...]
    states: bytes
    attributes: bytes

    def chosen(self, rows: Sequence[int]) -> FinishDirs:
        """Return the same task for these ``rows`` only."""
        names, number = unpack_names(self.names), self.items
        sources, targets = unpack_numbers(self.sources), unpack_numbers(self.targets)
        return FinishDirs(
            self.place,
            pack_names(names[row] for row in rows),
            pack_numbers([sources[row] for row in rows]),
            pack_numbers([targets[row] for row in rows]),
            tuple(self.marks[row] for row in rows),
            bytes(self.states[row] for row in rows),
            Rows.unpacked(self.attributes, number, DRESSED).chosen(rows).packed(),
        )

    def each(self) -> list[FinishDir]:
        """Return one ``FinishDir`` for each row."""
        columns = unpack_names(self.names), unpack_numbers(self.sources), unpack_numbers(self.targets), self.marks
        rows = Rows.unpacked(self.attributes, self.items, DRESSED)
        dressed = zip(rows.mode, rows.uid, rows.gid, rows.atime, rows.mtime, strict=True)
        parent, source_mount, target_mount = self.place, self.place.source_id.mount, self.place.target_id.mount
        finishes = []
        for name, source, target, mark, state, fields in zip(*columns, self.states, dressed, strict=True):
            place = Place(
                parent.root,
                os.path.join(parent.path, name),
                Identity(source_mount, source),
                Identity(target_mount, target, mark),
                bool(state & 1),
                bool(state & 2),
                parent.since,
            )
            finishes.append(FinishDir(place, Attributes(*fields), True, -1, action=state >> _ACTION))
        return finishes

    def held(self) -> Iterator[FinishDir]:
        return iter(self.each())

    def run(self, rank: Rank, result: Result) -> Steps:
        """Finish the directories in one batch of the backend; those that the backend cannot finish
        are done one by one.
        """
        codes = yield from self._finish_plain(rank)
        done = codes.count(Code.DONE)
        if done == self.items and not (rank.job.began or result.items.is_wanted):
            result.count(counts.DIRECTORIES, done)
            return
        place = self.place
        above = place.path + b"/" if place.path else b""
        slow = {} if done == self.items else dict(enumerate(self.each()))
        for row, name in enumerate(unpack_names(self.names)):
            result.turn_to((place.root, above + name))
            if codes[row] == Code.DONE:
                result.count(counts.DIRECTORIES)
                result.items.did(Action(self.states[row] >> _ACTION), place, name, DIRECTORY)
            else:
                yield from slow[row].run(rank, result)
                yield None
        result.turn_back()

    def _finish_plain(self, rank: Rank) -> Stepwise[bytes]:
        """Finish as many directories as possible in one batch; return the ``Code`` of each row (0
        if nothing was done).
        """
        place, number = self.place, self.items
        target = open_plain(rank, place, unpack_names(self.names))
        if target is None:
            return bytes(number)
        rows = Rows.unpacked(self.attributes, number, DRESSED)
        rows.mask |= INODE
        rows.inode = unpack_numbers(self.targets)
        fresh = bytes(state & 1 for state in self.states)
        common = Common(*rank.devices(place))
        batch = Finish(target, self.names, rows, self.marks, fresh, common)
        finished = yield from rank.done(batch)
        return bytes(finished.verdicts.codes)


class Finishes:
    """Collects directories of ``place`` that are to be finished, and spawns one task for them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._names: list[bytes] = []
        self._sources: list[int] = []
        self._targets: list[int] = []
        self._marks: list[bytes] = []
        self._states = bytearray()
        self._rows = Rows(0, DRESSED)

    def add(self, result: Result, finish: FinishDir) -> None:
        """Add a directory to the common task; spawn ``finish`` as a task of its own if it does not fit into the
        columns.
        """
        parent, place, attributes = self._place, finish.place, finish.attributes
        above, _, name = place.path.rpartition(b"/")
        mounts = place.source_id.mount, place.target_id.mount
        if (
            attributes is None
            or attributes.xattrs
            or attributes.unread
            or not has_common_times(attributes.atime, attributes.mtime)
            or (finish.counted, finish.entries, finish.again) != (True, -1, False)
            or (above, *mounts) != (parent.path, parent.source_id.mount, parent.target_id.mount)
            or place.since != parent.since
        ):
            result.spawn(finish, phase=Phase.FINISH)
            return
        state = place.fresh + 2 * place.inherits + (finish.action << _ACTION)
        self.add_plain(name, place.source_id.inode, place.target_id, attributes, state)

    def add_plain(self, name: bytes, source: int, target: Identity, attributes: Attributes, state: int) -> None:
        """Add a directory of ``place`` whose times every file system can store; ``state`` as in ``FinishDirs``."""
        self._names.append(name)
        self._sources.append(source)
        self._targets.append(target.inode)
        self._marks.append(target.mark)
        self._states.append(state)
        rows = self._rows
        rows.mode.append(attributes.mode)
        rows.uid.append(attributes.uid)
        rows.gid.append(attributes.gid)
        rows.atime.append(attributes.atime)
        rows.mtime.append(attributes.mtime)
        rows.number += 1

    def spawn(self, result: Result) -> None:
        """Spawn one task for all directories that were added."""
        if not self._names:
            return
        sources, targets = pack_numbers(self._sources), pack_numbers(self._targets)
        columns = sources, targets, tuple(self._marks), bytes(self._states), self._rows.packed()
        result.spawn(FinishDirs(self._place, pack_names(self._names), *columns), phase=Phase.FINISH)
