"""FinishFile sets the metadata and the final name of a large file after all of its chunks were copied."""

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
    """Base class of tasks about a large ``file`` that is copied in chunks."""

    file: OpenFile

    def about(self) -> tuple[Place, bytes]:
        return self.file.item.names[0]

    @property
    def unmade(self) -> Item:
        return self.file.item

    def tell(self, task: Task, gone: Gone) -> None:
        """Record in ``gone`` the directories of the file, which its chunks do not contain."""
        gone.copies(self.file.temporary, self.places(), task.phase)


class FinishFile(OfFile, code=16, doing="finishing", is_note=True):
    """Task that sets the metadata and the final name of a file whose chunks are all copied.

    ``digest`` is the digest of the file; ``chunk`` and ``writers`` are as in ``Copy``.
    """

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
        """Finish the file in one slice, after its contents were stored. The source must still have the version from
        which the chunks were copied.
        """
        file, item = self.file, self.file.item
        known = Known(FILE, file.version.size, self.digest, file.version)
        copy = Copy(file.made, known, self.chunk, self.writers)
        now = time.monotonic_ns()
        took = now - rank.own(Opened).pop(file.temporary, now)
        try:
            unnamed, shortcoming, action = yield from _finish(self, rank, result)
        except MetadataProblem as problem:  # the copy is complete and has its final name
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
    """Time at which this rank opened each large file that it owns, by temporary name: monotonic, in nanoseconds.

    Files whose duration is not reported are missing.
    """

    def __init__(self, rank: Rank) -> None:
        super().__init__()


def discard(rank: Rank, file: OpenFile) -> None:
    """Remove the temporary file, if its directory still exists. An existing file that is overwritten is not removed."""
    if file.over:
        return
    with suppress(Problem):  # if the directory was removed or replaced, its items fail for that reason anyway
        remove(rank.open_target(file.item.place), file.temporary)


def opened_failed(rank: Rank, result: Result, file: OpenFile, problem: Problem) -> None:
    """Record the failure of a file that was opened and could not be copied completely.

    If an earlier run opened the file, the failure does not count as an attempt of this run: the source may have changed
    since, or that run may have renamed the copy and stopped before this was recorded.
    """
    item = file.item
    if problem.again and made_by(file.temporary)[0] < rank.job.run:
        item = item._replace(attempt=0)
        if problem.changed:
            text = "has changed since the job was interrupted; its copy begins anew"
            result.warn(item.place, item.name, text, on_source=True)
    elif file.over and not problem.changed:
        problem.again = False  # another item has replaced the file during this run: it must not be overwritten
    representative_failed(rank, result, item, problem)


def _dressed_in_place(rank: Rank, result: Result, file: OpenFile, target: int, name: bytes) -> bool:
    """Return True if an earlier run has renamed the copy and stopped before that was recorded. Raise ``Problem`` on
    failure.

    The copy gets its metadata again, because a power failure may have preserved the rename and lost the changes before
    it. If the identity of the copy is not certain, the file is copied again.
    """
    if rank.job.run == 1 or file.over or look(target, file.temporary) is not None or look(target, name) is None:
        return False
    options, attributes = rank.options, _read_source(rank, file).attributes
    with held_open(open_node(target, name, on_source=False)) as descriptor:
        status = status_of(descriptor)
        same = file.made.compare(identity_of(descriptor, status, file.made.mount, made=True)) is Likeness.SAME
        whole = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size == file.version.size
        owners = os.geteuid(), attributes.uid, options.preserve.chown[0], *file.shown[1:]
        if not (same and whole and status.st_uid in owners):
            return False
        applied = apply_attributes(handle_of(descriptor), attributes, options.preserve, options.umask, inherits=True)
        result.applied(file.item.place, file.item.name, applied)
    return True


class _Source(NamedTuple):
    """Status and metadata of the source, and the layout recipe of its copy."""

    status: os.stat_result
    attributes: Attributes
    recipe: Recipe


def _read_source(rank: Rank, file: OpenFile) -> _Source:
    """Return the status and metadata of the source. Raise ``Problem`` if it is not of the version from which the chunks
    were copied.
    """
    place, preserve = file.item.place, rank.options.preserve
    target = Target(rank.open_target(place), place.target_id.inode)
    with rank.reading(place, file.item.name) as reading:
        check_unchanged(reading, file.version)
        status = status_of(reading, on_source=True)
        recipe = PLAIN if file.over else layout_at(rank, place).of_file(reading, status, target)
        return _Source(status, read_attributes(reading, status, preserve), recipe)


def _gives_way(present: Existing, name: bytes, source: os.stat_result) -> bool:
    """Return True if the existing item may be replaced by the copy. Raise ``Problem`` on failure.

    When the file was split, the contents of the existing item were compared, if they had to be, and its metadata was
    not updated.
    """
    if present.may_replace(source) or present.is_compared(source):
        return True
    if not mends(present.rank):
        return False
    from pcopy.tasks.files.mend import is_dressed

    return not is_dressed(present.rank, present.place, name, source, present)


def _finish(
    task: FinishFile, rank: Rank, result: Result
) -> Generator[None, None, tuple[Unnamed | None, MetadataProblem | None, Action]]:
    """Set the metadata of the file, and its final name unless it is named later.

    Return the unnamed copy if it is named later (else None), the problem with its metadata (or None), and the action
    that was taken. Raise ``Problem`` on failure.
    """
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
            from pcopy.tasks.base.storing import stored  # imported late: most files are not split

            # Stored before the rename, so that after a power failure no file has its final name without its contents.
            yield from stored(rank, new)
        source = _read_source(rank, file)
        present = None if file.over else existing(rank, place, name)
        present_status = None if present is None else present.status
        if present is not None and not named_later and not _gives_way(present, name, source.status):
            raise Problem("create", errno.EEXIST)  # it was created after the file was split, and was not compared
        layout = ""
        if not file.over:
            around = Target(target, place.target_id.inode)
            layout = layout_at(rank, place).text_of_file(new.descriptor, source.recipe, around)
        inherits = not file.over and inherits_acl(rank, place, target)
        applied = new.dress(source.attributes, options.preserve, options.umask, kept=present_status, inherits=inherits)
        if file.over or named_later:
            new.keep(sync=sync)
        else:
            if present is not None:
                present.back_up(source.status)
            new.commit(new_name, present_status, sync=sync, store=options.sync, marked=may_be_marked(rank, present))
    item = Unnamed(file.temporary, file.made.inode, file.made.mark) if named_later else None
    if file.over:
        result.written_over(place, name, file.made.inode, failed=new.shortcoming is not None)
    if new.shortcoming is not None and item is None:
        raise new.shortcoming
    if layout:
        tell_layout(rank, result, layout)
    result.applied(place, name, applied)  # only after the copy has succeeded: an item that fails is tried again
    return item, new.shortcoming, Action.REPLACE if file.over or present is not None else Action.COPY
