"""FinishFile: a split file whose chunks are all there gets its metadata and its final name."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Generator
from contextlib import suppress

from pcopy.engine.task import Task
from pcopy.fsio.attributes import Attributes, apply_attributes, read_attributes
from pcopy.fsio.close import held_open
from pcopy.fsio.identity import Likeness, identity_of
from pcopy.fsio.layout import PLAIN, Recipe, Target
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.nodes import handle_of, open_node
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import check_unchanged, status_of
from pcopy.fsio.temporary import made_by, remove
from pcopy.named import NamedTuple
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import Action, How
from pcopy.tasks.base.kind import Gone, Kind, Steps
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Copy, Item, Known, OpenFile, Place, Unnamed
from pcopy.tasks.files.existing import Existing, existing, inherits_acl, look, may_be_marked, mends
from pcopy.tasks.files.layouts import layout_at, tell_layout
from pcopy.tasks.files.name_items import name_later
from pcopy.tasks.links.make_links import after_representative, representative_failed


class OfFile(Kind):
    """It is about a split file."""

    file: OpenFile

    def about(self) -> tuple[Place, bytes]:
        return self.file.item.names[0]

    @property
    def unmade(self) -> Item:
        return self.file.item

    def tell(self, task: Task, gone: Gone) -> None:
        gone.copies(self.file.temporary, self.places(), task.phase)


class FinishFile(OfFile, code=16, doing="finishing", is_note=True):
    """All chunks are there: metadata, and the final name. ``digest`` is the file's, ``chunk`` and ``writers`` as in
    ``Copy``."""

    digest: bytes
    chunk: int
    writers: bytes

    may_be_dropped = True

    @property
    def attempt(self) -> int:
        return self.file.item.attempt

    def discard(self, rank: Rank, since: int) -> None:
        if made_by(self.file.temporary)[0] >= since:
            discard(rank, self.file)

    def run(self, rank: Rank, result: Result) -> Steps:
        """In one slice once its contents are stored; the source must still be of the version that its chunks were
        copied from."""
        file, item = self.file, self.file.item
        known = Known(FILE, file.version.size, self.digest, file.version)
        copy = Copy(file.made, known, self.chunk, self.writers)
        now = time.monotonic_ns()
        took = now - rank.own(Opened).pop(file.temporary, now)
        try:
            unnamed, shortcoming, action = yield from _finish(self, rank, result)
        except MetadataProblem as problem:  # it is whole and in its place
            after_representative(rank, result, item, copy, shortcoming=problem)
        except Problem as problem:
            opened_failed(rank, result, file, problem)
        else:
            if unnamed is not None:
                name_later(result, item, unnamed, copy, shortcoming=shortcoming, took=took)
                return
            chunk, writers, how = self.chunk, self.writers, How(action, took)
            result.copied(item.place, item.name, known, alone=not item.links, chunk=chunk, writers=writers, how=how)
            after_representative(rank, result, item, copy)


class Opened(dict[bytes, int]):
    """When this rank opened the split files that it owns (monotonic, in nanoseconds), by their temporary names; of some
    nobody wants to know."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()


def discard(rank: Rank, file: OpenFile) -> None:
    """Remove the temporary file, if its directory is still there. A file that is written over is not pcopy's."""
    if file.over:
        return
    with suppress(Problem):  # the directory itself has gone or was replaced, which fails its items on its own
        remove(rank.open_target(file.item.place), file.temporary)


def opened_failed(rank: Rank, result: Result, file: OpenFile, problem: Problem) -> None:
    """The file was opened and is not copied.

    It may have changed since an earlier run copied parts of it, or that run has renamed it, and was ended before that
    was on record: it was no attempt of this run's.
    """
    item = file.item
    if problem.again and made_by(file.temporary)[0] < rank.job.run:
        item = item._replace(attempt=0)
        if problem.changed:
            text = "has changed since the job was interrupted; its copy begins anew"
            result.warn(item.place, item.name, text, on_source=True)
    elif file.over and not problem.changed:
        problem.again = False  # what has taken the file's place in this run is not written over
    representative_failed(rank, result, item, problem)


def _dressed_in_place(rank: Rank, result: Result, file: OpenFile, target: int, name: bytes) -> bool:
    """Has an earlier run renamed the file, and was stopped before that was on record? What can't be told is copied
    anew.

    It gets its metadata again: a power failure may have kept the rename and lost what went before it.
    """
    if rank.job.run == 1 or file.over or look(target, file.temporary) is not None or look(target, name) is None:
        return False
    options, attributes = rank.options, _read_source(rank, file).attributes
    with held_open(open_node(target, name, on_source=False)) as held:
        status = status_of(held)
        same = file.made.compare(identity_of(held, status, file.made.mount, made=True)) is Likeness.SAME
        whole = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size == file.version.size
        owners = os.geteuid(), attributes.uid, options.preserve.chown[0], *file.shown[1:]
        if not (same and whole and status.st_uid in owners):
            return False
        applied = apply_attributes(handle_of(held), attributes, options.preserve, options.umask, inherits=True)
        result.applied(file.item.place, file.item.name, applied)
    return True


class _Source(NamedTuple):
    """The status and metadata of what is copied, and the recipe of its copy."""

    status: os.stat_result
    attributes: Attributes
    recipe: Recipe


def _read_source(rank: Rank, file: OpenFile) -> _Source:
    """Raises ``Problem`` unless it is of the version that the chunks were copied from."""
    place, preserve = file.item.place, rank.options.preserve
    target = Target(rank.open_target(place), place.target_id.inode)
    with rank.reading(place, file.item.name) as reading:
        check_unchanged(reading, file.version)
        status = status_of(reading, on_source=True)
        recipe = PLAIN if file.over else layout_at(rank, place).of_file(reading, status, target)
        return _Source(status, read_attributes(reading, status, preserve), recipe)


def _gives_way(present: Existing, name: bytes, source: os.stat_result) -> bool:
    """When the file was split, what stays only if its contents are the same was compared, and what lacks metadata was
    not mended. Raises ``Problem``."""
    if present.may_replace(source) or present.is_compared(source):
        return True
    if not mends(present.rank):
        return False
    from pcopy.tasks.files.mend import is_dressed

    return not is_dressed(present.rank, present.place, name, source, present)


def _finish(
    task: FinishFile, rank: Rank, result: Result
) -> Generator[None, None, tuple[Unnamed | None, MetadataProblem | None, Action]]:
    """What is to be named yet, if that is left for later, and what is wrong with its metadata then; and whether it has
    replaced something."""
    file = task.file
    place, name = file.item.place, file.item.name
    target = rank.open_target(place)
    new_name = rank.new_name(place, name)
    options = rank.options
    rank.learn_times(target, rank.target_device(place), result.notices)
    named_later = rank.keeps and not file.over
    if not named_later and _dressed_in_place(rank, result, file, target, new_name):
        return None, None, Action.COPY
    with NewFile.again(target, rank.written_as(file), file.made, file.over) as new:
        new.reopen(file.version.size, file.shown, extended=not file.cloned)
        sync = rank.syncs_items(place)
        if not (file.over or named_later or sync):
            from pcopy.tasks.base.storing import stored  # most files are not split

            yield from stored(rank, new)
        source = _read_source(rank, file)
        present = None if file.over else existing(rank, place, name)
        there = None if present is None else present.status
        if present is not None and not named_later and not _gives_way(present, name, source.status):
            raise Problem("create", errno.EEXIST)  # it was not there when the file was split, nor compared with it
        layout = ""
        if not file.over:
            around = Target(target, place.target_id.inode)
            layout = layout_at(rank, place).text_of_file(new.descriptor, source.recipe, around)
        inherits = not file.over and inherits_acl(rank, place, target)
        applied = new.dress(source.attributes, options.preserve, options.umask, kept=there, inherits=inherits)
        if file.over or named_later:
            new.keep(sync=sync)
        else:
            if present is not None:
                present.back_up(source.status)
            new.commit(new_name, there, sync=sync, store=options.sync, marked=may_be_marked(rank, present))
    item = Unnamed(file.temporary, file.made.inode, file.made.mark) if named_later else None
    if file.over:
        result.written_over(place, name, file.made.inode, failed=new.shortcoming is not None)
    if new.shortcoming is not None and item is None:
        raise new.shortcoming
    if layout:
        tell_layout(rank, result, layout)
    result.applied(place, name, applied)  # not before it is copied: what fails is tried again
    return item, new.shortcoming, Action.REPLACE if file.over or present is not None else Action.COPY
