"""FinishFile: a split file whose chunks are all there gets its metadata and its final name."""

from __future__ import annotations

import errno

from pcopy.engine.driver import Slices
from pcopy.fsio.attributes import apply_attributes, read_attributes
from pcopy.fsio.close import close_read, close_written
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import check_unchanged, open_source, status_of
from pcopy.fsio.temporary import put_in_place, remove, reopen
from pcopy.tasks.context import Context, Result
from pcopy.tasks.copy_files import count_settled
from pcopy.tasks.link_group import after_representative
from pcopy.tasks.split_file import split_failed
from pcopy.tasks.targets import clear_way, look, may_replace
from pcopy.tasks.values import FinishFile


def finish_file(task: FinishFile, context: Context, result: Result) -> Slices:
    """In one slice; the source must still be of the version that its chunks were copied from."""
    file = task.file
    place = file.split.place
    try:
        _finish(task, context, result)
    except MetadataProblem as problem:  # it is whole and in its place
        result.fail(place, file.split.name, problem, file.version.size)
        after_representative(context, result, file.split, file.temporary_inode)
    except Problem as problem:
        split_failed(context, result, file.split, problem)
    else:
        count_settled(context, result, True, file.version.size)
        after_representative(context, result, file.split, file.temporary_inode)
    return result.outcome()
    yield


def _finish(task: FinishFile, context: Context, result: Result) -> None:
    file = task.file
    place, name = file.split.place, file.split.name
    target = context.open_target(place)
    new_name = context.new_name(place, name)
    shortcoming: MetadataProblem | None = None
    try:
        reading = open_source(context.open_source(place), name)
        try:
            check_unchanged(reading, file.version)
            status = status_of(reading, on_source=True)
            attributes = read_attributes(reading, status, context.options.preserve)
        finally:
            close_read(reading)
        present = look(target, new_name)
        if present is not None and not may_replace(context, place, status, present):
            raise Problem("create", errno.EEXIST)  # it was not there when the file was split
        writing = reopen(target, file.temporary, file.temporary_inode)
        try:
            options = context.options
            applied = apply_attributes(
                writing, attributes, options.preserve, options.umask, kept=present, inherits=place.inherits
            )
            result.applied(place, name, applied)
        except MetadataProblem as problem:
            shortcoming = problem
        finally:
            close_written(writing)
        clear_way(target, new_name, present)
        put_in_place(target, file.temporary, new_name, file.temporary_inode)
    except Problem:
        remove(target, file.temporary)
        raise
    if shortcoming is not None:
        raise shortcoming
