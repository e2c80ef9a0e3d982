"""FinishFile: a split file whose chunks are all there gets its metadata and its final name."""

from __future__ import annotations

import errno

from pcopy.engine.driver import Slices
from pcopy.fsio.attributes import Applied, Attributes, apply_attributes, read_attributes
from pcopy.fsio.close import close_read, close_written, let_go
from pcopy.fsio.in_place import drop_old_xattrs, incomplete, status_before
from pcopy.fsio.nodes import handle_of, open_node
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import check_unchanged, open_source, status_of
from pcopy.fsio.temporary import put_in_place, remove
from pcopy.signature.items import FILE
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.link_group import after_representative
from pcopy.tasks.result import Result
from pcopy.tasks.split_file import opened_failed
from pcopy.tasks.targets import clear_way, look, may_replace, reopen_filled
from pcopy.tasks.values import FinishFile, Known, OpenFile


def finish_file(task: FinishFile, context: Context, result: Result) -> Slices:
    """In one slice; the source must still be of the version that its chunks were copied from."""
    file = task.file
    place = file.split.place
    known = Known(FILE, file.version.size, task.digest, file.version)
    try:
        _finish(task, context, result)
    except MetadataProblem as problem:  # it is whole and in its place
        _link_others(task, context, result, known, problem)
    except Problem as problem:
        opened_failed(context, result, file, problem)
    else:
        context.succeeded()
        result.count(counts.FILES)
        result.count(counts.BYTES, known.size)
        alone, name = not file.split.links, file.split.name
        result.digested(place, name, known, counts.FILES, verify=alone, chunk=task.chunk, writers=task.writers)
        _link_others(task, context, result, known)
    return result.outcome()
    yield


def _link_others(
    task: FinishFile, context: Context, result: Result, known: Known, shortcoming: Problem | None = None
) -> None:
    after_representative(
        context,
        result,
        task.file.split,
        task.file.temporary_inode,
        known,
        chunk=task.chunk,
        writers=task.writers,
        shortcoming=shortcoming,
    )


def _is_in_place(target: int, name: bytes, file: OpenFile) -> bool:
    present = look(target, name)
    return (
        present is not None
        and not file.over
        and (present.st_ino, present.st_size) == (file.temporary_inode, file.version.size)
        and look(target, file.temporary) is None
    )


def _dress_again(
    context: Context, result: Result, file: OpenFile, target: int, name: bytes, attributes: Attributes
) -> None:
    """A power failure may have kept the rename and lost what went before it."""
    options, place = context.options, file.split.place
    held = open_node(target, name, on_source=False)
    try:
        if status_of(held).st_ino != file.temporary_inode:
            raise Problem("open", errno.ESTALE, text="something else was put in its place meanwhile")
        applied = apply_attributes(handle_of(held), attributes, options.preserve, options.umask)
        result.applied(place, file.split.name, applied)
    finally:
        let_go(held)


def _finish(task: FinishFile, context: Context, result: Result) -> None:
    file = task.file
    place, name = file.split.place, file.split.name
    target = context.open_target(place)
    new_name = context.new_name(place, name)
    shortcoming: MetadataProblem | None = None
    renamed = context.job.run > 1 and _is_in_place(target, new_name, file)
    try:
        reading = open_source(context.open_source(place), name, follow=context.options.dereference)
        try:
            check_unchanged(reading, file.version)
            status = status_of(reading, on_source=True)
            attributes = read_attributes(reading, status, context.options.preserve)
        finally:
            close_read(reading)
        options = context.options
        if renamed:  # by an earlier run, which was stopped before that was on record
            _dress_again(context, result, file, target, new_name, attributes)
            return
        present = status_before(file.over) if file.over else look(target, new_name)
        if present is not None and not file.over:
            gives_way = may_replace(context, place, status, target, new_name, present)
            if not (gives_way or options.checksum):  # which has compared it
                raise Problem("create", errno.EEXIST)  # it was not there when the file was split
        writing = reopen_filled(context, target, file)
        try:
            if file.over:
                drop_old_xattrs(writing, attributes, options.preserve)
            applied = apply_attributes(
                writing,
                attributes,
                options.preserve,
                options.umask,
                kept=present,
                inherits=place.inherits or bool(file.over),
            )
        except MetadataProblem as problem:
            applied, shortcoming = Applied(), problem
        finally:
            close_written(writing, sync=context.syncs_items(place))
        if not file.over:
            clear_way(target, new_name, present)
            put_in_place(target, file.temporary, new_name, file.temporary_inode)
    except Problem as problem:
        if file.over:
            raise incomplete(problem) from problem
        remove(target, file.temporary)
        raise
    if shortcoming is not None:
        raise shortcoming
    result.applied(place, name, applied)  # not before it is copied: what fails is tried again
