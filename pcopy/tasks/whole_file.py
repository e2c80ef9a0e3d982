"""Copies one regular file by one rank, under a temporary name: files with holes, replaced ones, middling ones."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from pcopy.fsio.attributes import Applied, apply_attributes, read_attributes
from pcopy.fsio.close import abandon, close_read, close_written
from pcopy.fsio.compare import same_contents
from pcopy.fsio.existing import alike
from pcopy.fsio.identity import Identity, identity_of
from pcopy.fsio.in_place import drop_old_xattrs, incomplete, open_over, status_before
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import Version, check_found, check_unchanged, open_source, status_of
from pcopy.fsio.temporary import create, remove
from pcopy.signature.items import FILE
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.result import Result
from pcopy.tasks.targets import inherits_acl, is_linkable, kept_from, kept_identity, look, may_replace, put_over
from pcopy.tasks.unnamed import unnamed
from pcopy.tasks.values import Known, Place, Unnamed


class Settled(NamedTuple):
    """What became of an item: ``copied`` (else skipped), and which is the target that there is now.

    ``known`` is what the source holds. ``alike``: further names may be linked to the target; what was skipped may be
    anything. ``made`` is only told where such names are wanted. ``unnamed``: it is to be named yet, though its metadata
    may have a ``shortcoming``.
    """

    copied: bool
    known: Known
    made: Identity | None
    alike: bool = True
    unnamed: Unnamed | None = None
    shortcoming: MetadataProblem | None = None


def copy_whole(
    context: Context, result: Result, place: Place, name: bytes, mount: int, inode: int, *, linked: bool = False
) -> Generator[None, None, Settled]:
    """Copies the file if it is wanted; raises ``Problem``, and leaves the old target then.

    ``linked``: there may be further names of it.
    """
    with _checked(context, place, name, mount, inode) as (reading, status):
        target = context.open_target(place)
        new_name = context.new_name(place, name)
        present = look(target, new_name)
        if present is not None:
            skipped = yield from settled_already(
                context, place, reading, status, target, new_name, present, linked=linked
            )
            if skipped is not None:
                return skipped
        return (
            yield from _write(context, result, place, name, reading, status, target, new_name, present, linked=linked)
        )


@contextmanager
def _checked(
    context: Context, place: Place, name: bytes, mount: int, inode: int
) -> Generator[tuple[int, os.stat_result], None, None]:
    """The file, open for reading, and its status: it is the one that was found."""
    reading = open_source(context.open_source(place), name, follow=context.options.dereference)
    try:
        status = status_of(reading, on_source=True)
        check_found(status, context.source_device(place, mount), inode)
        yield reading, status
    finally:
        close_read(reading)


def what_stays(
    context: Context, place: Place, name: bytes, mount: int, inode: int
) -> Generator[None, None, Settled | None]:
    """As ``copy_whole``, where what is there stays; None if the file has to be copied. Raises ``Problem``."""
    with _checked(context, place, name, mount, inode) as (reading, status):
        target, new_name = context.open_target(place), context.new_name(place, name)
        present = look(target, new_name)
        if present is None:
            return None
        return (yield from settled_already(context, place, reading, status, target, new_name, present, linked=True))


def settled_already(
    context: Context,
    place: Place,
    reading: int,
    status: os.stat_result,
    target: int,
    new_name: bytes,
    present: os.stat_result,
    *,
    linked: bool,
) -> Generator[None, None, Settled | None]:
    """What is there stays, and why; None if it gives way to the file. Raises ``Problem``."""
    if may_replace(context, place, status, target, new_name, present):
        return None
    known = Known(FILE, status.st_size, b"", Version.of(status))
    if context.options.checksum:
        same = yield from same_contents(reading, status, target, new_name, present)
        if not same:
            return None
    else:
        same = context.options.compares and alike(status, present, context.options.modify_window)
    is_alike = same and is_linkable(context, status, present)
    made = kept_identity(place, target, new_name, present) if linked and is_alike else None
    return Settled(False, known, made, is_alike)


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
    *,
    linked: bool,
) -> Generator[None, None, Settled]:
    version = Version.of(status)
    options = context.options
    temporary = context.temporary_names.next()
    kept = kept_from(context, place, status, target, new_name, present)
    over = None
    if options.inplace and present is not None and kept is not None:
        over = open_over(target, new_name, present, status, options.preserve, context.job.name, temporary)
    if over is None:
        writing = create(target, temporary)
    else:
        writing, kept = over.descriptor, status_before(over.before)
    done = False
    shortcoming: MetadataProblem | None = None
    try:
        try:
            new = status_of(writing)
            made = identity_of(writing, new, place.target_id.mount, made=True) if linked else None
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
                    inherits=over is not None or inherits_acl(context, place, target),
                )
            except MetadataProblem as problem:
                applied, shortcoming = Applied(), problem
            item = unnamed(writing, temporary, new.st_ino) if context.keeps and over is None else None
        except BaseException:
            abandon(writing)
            raise
        close_written(writing, sync=context.syncs_items(place))
        if over is not None:
            result.written_over(place, name, new.st_ino, failed=shortcoming is not None)
        elif item is None:
            put_over(context, target, temporary, new_name, new.st_ino, present)
        done = True
    except Problem as problem:
        if over is not None:
            raise incomplete(problem) from problem
        raise
    finally:
        if not done and over is None:
            remove(target, temporary)
    if shortcoming is not None and item is None:
        shortcoming.made = made
        raise shortcoming  # the contents are whole and in their place
    result.applied(place, name, applied)  # not before it is copied: what fails is tried again
    known = Known(FILE, status.st_size, b"", version)
    if hasher is not None:
        known = Known(FILE, hasher.size, context.hashing.file(hasher), version)
    return Settled(True, known, made, unnamed=item, shortcoming=shortcoming)
