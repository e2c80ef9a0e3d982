"""What is copied and has no name yet: where nothing is overwritten unasked, items wait for NAME under temporary names.

So an item is whole and on stable storage before it has its name, and the task that gives it the name is on record with
the item's identity. Whatever else is found under a name, in this run or in a later one, is not the job's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pcopy.fsio.close import let_go
from pcopy.fsio.identity import mark_of
from pcopy.fsio.nodes import open_node
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import remove
from pcopy.tasks.context import CALL_COST, Context
from pcopy.tasks.hashing import Gathered
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result
from pcopy.tasks.values import Known, NameGroup, NameItems, Place, SplitFile, Unnamed, pack_names, pack_numbers


def unnamed(descriptor: int, temporary: bytes, inode: int) -> Unnamed:
    """What is open, and was made as ``temporary``."""
    return Unnamed(temporary, inode, mark_of(descriptor, made=True))


def unnamed_at(target: int, temporary: bytes) -> Unnamed:
    """As ``unnamed`` for what is not open any more; raises ``Problem``."""
    held = open_node(target, temporary, on_source=False)
    try:
        return unnamed(held, temporary, status_of(held).st_ino)
    finally:
        let_go(held)


class Waiting:
    """The items of one task, all of one directory, that are to be named."""

    def __init__(self, context: Context, place: Place, attempt: int) -> None:
        self._context = context
        self._place = place
        self._attempt = attempt
        self._temporaries: list[bytes] = []
        self._items: list[Unnamed] = []
        self._known = Gathered()
        self._made = 0, b""

    def made(self, descriptor: int) -> None:
        """For ``pcopy.fsio.kernel``: a file is whole; it is added next, unless its closing fails."""
        self._made = os.fstat(descriptor).st_ino, mark_of(descriptor, made=True)

    def add(
        self, result: Result, split: SplitFile, item: Unnamed, known: Known, shortcoming: MetadataProblem | None
    ) -> None:
        """One more. If not all of its metadata could be set, it has a task of its own, which tells that."""
        self._temporaries.append(item.temporary)
        if shortcoming is not None:
            name_later(self._context, result, split, item, known, shortcoming=shortcoming)
            return
        self._items.append(item)
        self._known.add(split.name, known)

    def add_file(self, name: bytes, temporary: bytes, status: os.stat_result, size: int, digest: bytes) -> None:
        """One that was just ``made``."""
        self._temporaries.append(temporary)
        self._items.append(Unnamed(temporary, *self._made))
        self._known.add_file(name, status, size, digest, 0)

    @contextmanager
    def spawned(self, result: Result) -> Iterator[None]:
        """What was added in here is handed over at the end, or removed if the task is closed before that."""
        try:
            yield
        except GeneratorExit:
            with suppress(Problem):  # its directory has gone
                target = self._context.open_target(self._place)
                for temporary in self._temporaries:
                    remove(target, temporary)
            raise
        self._spawn(result)

    def _spawn(self, result: Result) -> None:
        items = self._items
        if not items:
            return
        known = self._known
        task = NameItems(
            self._place,
            pack_names(known.names),
            pack_names([item.temporary for item in items]),
            pack_numbers([item.inode for item in items]),
            tuple(item.mark for item in items),
            *known.columns,
            self._attempt,
            self._context.hosts.here,
        )
        result.spawn(task, len(items) * CALL_COST // 4, phase=naming_phase(result))


def name_later(
    context: Context,
    result: Result,
    split: SplitFile,
    item: Unnamed,
    known: Known,
    *,
    chunk: int = 0,
    writers: bytes = b"",
    shortcoming: MetadataProblem | None = None,
) -> None:
    """One item, with further names perhaps; as ``pcopy.tasks.link_group.after_representative``."""
    writers = writers or bytes((context.hosts.here,))
    lacks = None if shortcoming is None else shortcoming.plain
    task = NameGroup(split, item, known, chunk, writers, lacks)
    result.spawn(task, CALL_COST, phase=naming_phase(result))


def naming_phase(result: Result) -> int:
    """When what is copied now gets its name: later than that it was synced by itself."""
    return max(Phase.NAME, result.phase)
