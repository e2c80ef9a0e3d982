"""Copies one regular file by one rank, under a temporary name: files with holes, replaced ones, middling ones."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import NamedTuple

from pcopy.fsio.attributes import Applied, apply_attributes, read_attributes
from pcopy.fsio.close import abandon, close_read, close_written
from pcopy.fsio.compare import same_contents
from pcopy.fsio.existing import alike
from pcopy.fsio.in_place import drop_old_xattrs, incomplete, open_over
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import Version, check_found, check_unchanged, open_source, status_of
from pcopy.fsio.temporary import create, put_in_place, remove
from pcopy.signature.items import FILE
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.result import Result
from pcopy.tasks.targets import clear_way, kept_from, look, may_replace
from pcopy.tasks.values import Known, Place


class Settled(NamedTuple):
    """What became of an item: ``copied`` (else skipped), and the inode of the target that there is now.

    ``known`` is what the source holds. ``alike``: further names may be linked to the target; what was skipped may be
    anything.
    """

    copied: bool
    known: Known
    inode: int
    alike: bool = True


def copy_whole(
    context: Context, result: Result, place: Place, name: bytes, mount: int, inode: int
) -> Generator[None, None, Settled]:
    """Copies the file if it is wanted; raises ``Problem``, and leaves the old target then."""
    source = context.open_source(place)
    reading = open_source(source, name, follow=context.options.dereference)
    try:
        status = status_of(reading, on_source=True)
        check_found(status, context.source_device(place, mount), inode)
        target = context.open_target(place)
        new_name = context.new_name(place, name)
        present = look(target, new_name)
        if present is not None:
            skipped = yield from settled_already(context, place, reading, status, target, new_name, present)
            if skipped is not None:
                return skipped
        made, known = yield from _write(context, result, place, name, reading, status, target, new_name, present)
        return Settled(True, known, made)
    finally:
        close_read(reading)


def settled_already(
    context: Context,
    place: Place,
    reading: int,
    status: os.stat_result,
    target: int,
    new_name: bytes,
    present: os.stat_result,
) -> Generator[None, None, Settled | None]:
    """What is there stays, and why; None if it gives way to the file. Raises ``Problem``."""
    if may_replace(context, place, status, target, new_name, present):
        return None
    known = Known(FILE, status.st_size, b"", Version.of(status))
    if context.options.checksum:
        same = yield from same_contents(reading, status, target, new_name, present)
        return Settled(False, known, present.st_ino) if same else None
    return Settled(False, known, present.st_ino, alike(status, present, context.options.modify_window))


def _write(
    context: Context,
    result: Result,
    place: Place,
    name: bytes,
    reading: int,
    status: os.stat_result,
    target: int,
    new_name: bytes,
    present: os.stat_result | None,
) -> Generator[None, None, tuple[int, Known]]:
    """The new file's inode, and what it holds."""
    version = Version.of(status)
    options = context.options
    kept = kept_from(context, place, status, target, new_name, present)
    over = None
    if options.inplace and present is not None:
        over = open_over(target, new_name, present, status, options.preserve)
    temporary = context.temporary_names.next()
    writing = create(target, temporary) if over is None else over
    done = False
    shortcoming: MetadataProblem | None = None
    try:
        try:
            new = status_of(writing)
            hasher = context.hasher()
            for moved in context.mover.fill(reading, writing, status, (status.st_dev, new.st_dev), hasher):
                context.counters[counts.MOVED] += moved
                yield
            attributes = read_attributes(reading, status, options.preserve)
            check_unchanged(reading, version)
            try:
                if over is not None:
                    drop_old_xattrs(writing, attributes, options.preserve)
                applied = apply_attributes(
                    writing,
                    attributes,
                    options.preserve,
                    options.umask,
                    kept=kept,
                    inherits=place.inherits or over is not None,
                )
            except MetadataProblem as problem:
                applied, shortcoming = Applied(), problem
        except BaseException:
            abandon(writing)
            raise
        close_written(writing, sync=context.syncs_items(place))
        if over is None:
            clear_way(target, new_name, present)
            put_in_place(target, temporary, new_name, new.st_ino)
        done = True
    except Problem as problem:
        if over is not None:
            raise incomplete(problem) from problem
        raise
    finally:
        if not done and over is None:
            remove(target, temporary)
    if shortcoming is not None:
        raise shortcoming  # the contents are whole and in their place
    result.applied(place, name, applied)  # not before it is copied: what fails is tried again
    if hasher is None:
        return new.st_ino, Known(FILE, status.st_size, b"", version)
    return new.st_ino, Known(FILE, hasher.size, context.hashing.file(hasher), version)
