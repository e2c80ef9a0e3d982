"""Copying of one regular file by one rank, under a temporary name: files with holes, existing files that are replaced,
and medium-sized files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from pcopy.fsio.attributes import read_attributes
from pcopy.fsio.close import close_read, let_go
from pcopy.fsio.existing import alike, same_contents
from pcopy.fsio.identity import Identity, mark_of
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import MetadataProblem, TargetChanged
from pcopy.fsio.source import Version, check_found, check_unchanged, open_source, status_of
from pcopy.named import NamedTuple
from pcopy.signature.items import FILE
from pcopy.signature.tree import ContentHasher
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import AFRESH, Action, How
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import UNMADE, Item, Known, Unnamed
from pcopy.tasks.files.existing import (
    EXAMINATIONS,
    Existing,
    existing,
    inherits_acl,
    may_be_marked,
    mends,
    name_to_make,
    over_or_new,
    stating_removal,
)
from pcopy.tasks.files.layouts import laid_out
from pcopy.tasks.verify.read_items import skipped

if TYPE_CHECKING:
    from pcopy.tasks.base.storing import StoredTogether


class Settled(NamedTuple):
    """Outcome of an item that was copied or skipped. The item was counted already, unless ``unnamed`` is set.

    Fields:
        known: type, size, digest and version of the source.
        made: identity of the item in the target, if further names may be linked to it; else None. For a skipped item it
            is None unless that item equals the source.
        unnamed: the copy, if it still has its temporary name; else None.
        shortcoming: the problem with its metadata, or None.
        how: action and duration of the copy.
    """

    known: Known
    made: Identity | None
    unnamed: Unnamed | None = None
    shortcoming: MetadataProblem | None = None
    how: How = AFRESH

    @property
    def is_kept(self) -> bool:
        """True if the item existed and was kept, and gets no further names."""
        return self.unnamed is None and self.made is None


def would_be(known: Known) -> Settled:
    """Return the outcome, in a dry run, of an item that would be created."""
    return Settled(known, UNMADE)


def copy_whole(
    rank: Rank, result: Result, item: Item, *, linked: bool, together: StoredTogether | None = None
) -> Generator[None, None, Settled]:
    """Copy the file, by its first name, unless the existing item is kept. Raise ``Problem``; the existing item is
    unchanged then.

    Args:
        linked: True if further names of the inode may be found later. An item with further names is verified together
            with its links.
        together: if given, a file that must be on stable storage before it gets its name is added to it; the next step
            must come after these files were stored.
    """
    began = time.monotonic_ns()
    with _checked(rank, item) as opened:
        reading, status = opened.descriptor, opened.status
        present = existing(rank, item.place, item.name)
        present, stays = yield from settled_already(result, item.name, present, reading, status, linked=linked)
        if stays is not None:
            opened.stays = True
            return stays
        if rank.options.dry_run:
            settled = would_be(Known(FILE, status.st_size, b"", Version.of(status)))
        else:
            place, source = item.place, (reading, status)
            rank.learn_times(rank.open_target(place), rank.target_device(place), result.notices)
            present_status = None if present is None else present.status
            with stating_removal(rank, rank.open_target(place), rank.new_name(place, item.name), present_status):
                settled = yield from _write(rank, result, item, source, present, linked=linked, together=together)
    took = 0 if rank.options.dry_run else time.monotonic_ns() - began
    settled = settled._replace(how=How.over(present, took))
    if settled.unnamed is None:
        result.copied(item.place, item.name, settled.known, alone=not item.links, how=settled.how)
    return settled


class _Opened:
    """A file of the source, open for reading.

    ``stays`` is True if the existing item was kept and counted already, so that an error on closing must not fail the
    file.
    """

    def __init__(self, descriptor: int, status: os.stat_result) -> None:
        self.descriptor = descriptor
        self.status = status
        self.stays = False


@contextmanager
def _checked(rank: Rank, item: Item) -> Generator[_Opened, None, None]:
    """Open the file for reading, and close it at the end. Raise ``Problem`` if it is not the file that was found."""
    reading = open_source(rank.open_source(item.place), item.name, follow=rank.options.dereference)
    stays = False
    try:
        status = status_of(reading, on_source=True)
        check_found(status, rank.source_device(item.place, item.mount), item.inode)
        opened = _Opened(reading, status)
        yield opened
        stays = opened.stays
    finally:
        (let_go if stays else close_read)(reading)


def what_stays(rank: Rank, result: Result, item: Item) -> Generator[None, None, Settled | None]:
    """Count the item as skipped if the existing item is kept, and return the outcome; return None if the file must be
    copied. Raise ``Problem`` on failure.
    """
    with _checked(rank, item) as opened:
        opened.stays = True  # if it is not kept, the file is opened again to be copied
        present = existing(rank, item.place, item.name)
        reading, status = opened.descriptor, opened.status
        return (yield from settled_already(result, item.name, present, reading, status, linked=True))[1]


def settled_already(
    result: Result, name: bytes, present: Existing | None, reading: int, status: os.stat_result, *, linked: bool
) -> Generator[None, None, tuple[Existing | None, Settled | None]]:
    """Return the existing item of the target (or None), and the outcome of the file ``name`` if the existing item is
    kept.

    The file counts as skipped then. The outcome is None if there is no existing item, or if it is replaced.

    An item that has changed since it was examined is examined again. Raise ``Problem`` on failure.
    """
    for examination in range(1, EXAMINATIONS + 1):
        if present is None or present.may_replace(status):
            break
        try:
            return present, (yield from _settled(result, name, present, reading, status, linked=linked))
        except TargetChanged:
            if examination == EXAMINATIONS:
                raise
        present = present.examined_again()
    return present, None


def _settled(
    result: Result, name: bytes, present: Existing, reading: int, status: os.stat_result, *, linked: bool
) -> Generator[None, None, Settled | None]:
    """Do the same as ``settled_already`` for an existing item that is kept if its contents equal the source. Raise
    ``TargetChanged`` if it must be examined again.
    """
    rank, options = present.rank, present.rank.options
    known = Known(FILE, status.st_size, b"", Version.of(status))
    if present.is_compared(status):
        same = yield from same_contents(reading, status, present.directory, present.name, present.status, rank.throttle)
        if not same:
            return None
    else:
        same = options.compares and alike(status, present.status, options.modify_window)
    # Decided before its metadata is updated: another user may have opened the file for writing before that.
    may_link = linked and same and present.is_linkable(status)
    action = Action.SKIP
    if mends(rank):
        from pcopy.tasks.files.mend import is_copied_for_links, is_dressed, mended

        if not is_dressed(rank, present.place, name, status, present):
            if linked and same and not may_link and is_copied_for_links(present, status):
                return None
            updated = mended(result, name, present, read_attributes(reading, status, options.preserve))
            if updated is None:
                return None
            present, action = updated
    made = present.identity() if may_link else None
    skipped(rank, result, present.place, name, known, action)
    return Settled(known, made)


def _write(
    rank: Rank,
    result: Result,
    item: Item,
    source: tuple[int, os.stat_result],
    present: Existing | None,
    *,
    linked: bool,
    together: StoredTogether | None,
) -> Generator[None, None, Settled]:
    """Copy the file, and return the outcome. ``source`` is an open descriptor and its status. Raise ``Problem`` on
    failure.
    """
    reading, status = source
    (place, name), version = item.names[0], Version.of(status)
    options = rank.options
    target, new_name = rank.open_target(place), rank.new_name(place, name)
    present_status = None if present is None else present.status
    kept = None if present is None else present.kept_from(status)
    temporary = name_to_make(rank, target, new_name, present_status, status)
    over, recipe = over_or_new(rank, place, None if kept is None else present, reading, status, temporary)
    with NewFile.beside(target, temporary, layout=recipe, over=over) as new:
        made = new.identity(place.target_id.mount) if linked else None
        hasher, size = yield from _filled(rank, reading, status, new)
        attributes = read_attributes(reading, status, options.preserve)
        check_unchanged(reading, version)
        inherits = over is None and inherits_acl(rank, place, target)
        applied = new.dress(attributes, options.preserve, options.umask, kept=kept, inherits=inherits)
        inode, sync = new.status.st_ino, rank.syncs_items(place)
        named_later = rank.keeps and over is None
        unnamed = Unnamed(temporary, inode, mark_of(new.descriptor, made=True)) if named_later else None
        if over is None and unnamed is None:
            if not sync and new.awaits_storage:
                from pcopy.tasks.base.storing import stored  # imported late: few files have holes

                yield from stored(rank, new, together)
            if present is not None:
                present.back_up(status)
            new.commit(new_name, present_status, sync=sync, store=options.sync, marked=may_be_marked(rank, present))
        else:
            new.keep(sync=sync)
    if over is not None:
        result.written_over(place, name, inode, failed=new.shortcoming is not None)
    shortcoming = new.shortcoming
    if shortcoming is not None and unnamed is None:
        shortcoming.made = made
        raise shortcoming  # the contents are complete and under their final name
    if over is None:
        laid_out(rank, result, place, new.recipe if new.other_layout else recipe, target, 1)
    result.applied(place, name, applied)  # only after the copy has succeeded: an item that fails is tried again
    known = Known(FILE, size, rank.hashing.file(hasher) if hasher is not None else b"", version)
    return Settled(known, made, unnamed, shortcoming)


def _filled(
    rank: Rank, reading: int, status: os.stat_result, new: NewFile
) -> Generator[None, None, tuple[ContentHasher | None, int]]:
    """Write the contents of the new file. Return the hasher of the contents, if digests are computed, and the size in
    bytes.

    The size of files that are generated when they are read (/proc) is known only then. Raise ``Problem`` on failure.
    """
    devices, hasher, size = (status.st_dev, new.status.st_dev), rank.hasher(), 0
    with closing(rank.mover.fill(reading, new.descriptor, status, devices, hasher, extend=new.extend)) as steps:
        for moved in steps:  # a thread that copies ends before the files are closed
            rank.counters[counts.MOVED] += moved
            size += moved
            yield
    return hasher, size
