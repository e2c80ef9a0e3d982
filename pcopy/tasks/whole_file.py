"""Copies one regular file by one rank, under a temporary name: files with holes, replaced ones, middling ones."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import NamedTuple

from pcopy.fsio.attributes import apply_attributes, read_attributes
from pcopy.fsio.close import abandon, close_read, close_written
from pcopy.fsio.existing import alike
from pcopy.fsio.problem import MetadataProblem
from pcopy.fsio.source import Version, check_found, check_unchanged, open_source, status_of
from pcopy.fsio.temporary import create, put_in_place, remove
from pcopy.tasks import counts
from pcopy.tasks.context import Context, Result
from pcopy.tasks.targets import clear_way, look, may_replace
from pcopy.tasks.values import Place


class Settled(NamedTuple):
    """What became of a file: ``copied`` (else skipped), and the inode of the target that there is now.

    ``alike``: further names may be linked to it. What was skipped may be anything.
    """

    copied: bool
    size: int
    inode: int
    alike: bool = True


def copy_whole(
    context: Context, result: Result, place: Place, name: bytes, mount: int, inode: int
) -> Generator[None, None, Settled]:
    """Copies the file if it is wanted; raises ``Problem``, and leaves the old target then."""
    source = context.open_source(place)
    reading = open_source(source, name)
    try:
        status = status_of(reading, on_source=True)
        check_found(status, context.source_device(place, mount), inode)
        target = context.open_target(place)
        new_name = context.new_name(place, name)
        present = look(target, new_name)
        if present is not None and not may_replace(context, place, status, present):
            same = alike(status, present, context.options.modify_window)
            return Settled(False, status.st_size, present.st_ino, same)
        made = yield from _write(context, result, place, name, reading, status, target, new_name, present)
        return Settled(True, status.st_size, made)
    finally:
        close_read(reading)


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
) -> Generator[None, None, int]:
    version = Version.of(status)
    temporary = context.temporary_names.next()
    writing = create(target, temporary)
    renamed = False
    shortcoming: MetadataProblem | None = None
    try:
        try:
            new = status_of(writing)
            for moved in context.mover.fill(reading, writing, status, (status.st_dev, new.st_dev)):
                context.counters[counts.MOVED] += moved
                yield
            attributes = read_attributes(reading, status, context.options.preserve)
            check_unchanged(reading, version)
            try:
                applied = apply_attributes(
                    writing,
                    attributes,
                    context.options.preserve,
                    context.options.umask,
                    kept=present,
                    inherits=place.inherits,
                )
                result.applied(place, name, applied)
            except MetadataProblem as problem:
                shortcoming = problem
        except BaseException:
            abandon(writing)
            raise
        close_written(writing)
        clear_way(target, new_name, present)
        put_in_place(target, temporary, new_name, new.st_ino)
        renamed = True
    finally:
        if not renamed:
            remove(target, temporary)
    if shortcoming is not None:
        raise shortcoming  # the contents are whole and in their place
    return new.st_ino
