"""FinishFile: a split file whose chunks are all there gets its metadata and its final name."""

from __future__ import annotations

import errno
import os
import stat

from pcopy.engine.driver import Slices
from pcopy.fsio.attributes import Applied, Attributes, apply_attributes, read_attributes
from pcopy.fsio.close import close_read, close_written, let_go
from pcopy.fsio.identity import Likeness, identity_of
from pcopy.fsio.in_place import drop_old_xattrs, incomplete, status_before
from pcopy.fsio.nodes import handle_of, open_node
from pcopy.fsio.problem import MetadataProblem, Problem
from pcopy.fsio.source import check_unchanged, open_source, status_of
from pcopy.fsio.temporary import REPLACED, remove
from pcopy.signature.items import FILE
from pcopy.tasks.context import Context
from pcopy.tasks.link_group import after_representative
from pcopy.tasks.result import Result
from pcopy.tasks.split_file import opened_failed
from pcopy.tasks.targets import inherits_acl, look, may_replace, put_over, reopen_filled
from pcopy.tasks.unnamed import name_later
from pcopy.tasks.values import FinishFile, Known, OpenFile, Unnamed


def finish_file(task: FinishFile, context: Context, result: Result) -> Slices:
    """In one slice; the source must still be of the version that its chunks were copied from."""
    file = task.file
    place = file.split.place
    known = Known(FILE, file.version.size, task.digest, file.version)
    try:
        item, shortcoming = _finish(task, context, result)
    except MetadataProblem as problem:  # it is whole and in its place
        _link_others(task, context, result, known, problem)
    except Problem as problem:
        opened_failed(context, result, file, problem)
    else:
        if item is not None:
            chunk, writers = task.chunk, task.writers
            name_later(context, result, file.split, item, known, chunk=chunk, writers=writers, shortcoming=shortcoming)
            return result.outcome()
        alone, name = not file.split.links, file.split.name
        result.copied(place, name, known, alone=alone, chunk=task.chunk, writers=task.writers)
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
        task.file.made,
        known,
        chunk=task.chunk,
        writers=task.writers,
        shortcoming=shortcoming,
    )


def _is_in_place(context: Context, target: int, name: bytes, file: OpenFile) -> bool:
    """Has an earlier run renamed the file, and was stopped before that was on record? What can't be told is copied
    anew."""
    if context.job.run == 1 or file.over or look(target, file.temporary) is not None or look(target, name) is None:
        return False
    held = open_node(target, name, on_source=False)
    try:
        return _is_renamed(held, file, status_of(held))
    finally:
        let_go(held)


def _is_renamed(held: int, file: OpenFile, status: os.stat_result) -> bool:
    same = file.made.compare(identity_of(held, status, file.made.mount, made=True)) is Likeness.SAME
    return same and stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size == file.version.size


def _dress_again(
    context: Context, result: Result, file: OpenFile, target: int, name: bytes, attributes: Attributes
) -> None:
    """A power failure may have kept the rename and lost what went before it."""
    options, place = context.options, file.split.place
    held = open_node(target, name, on_source=False)
    try:
        status = status_of(held)
        owners = (os.geteuid(), attributes.uid, options.preserve.chown[0])
        if not _is_renamed(held, file, status) or status.st_uid not in owners:
            raise Problem("open", errno.ESTALE, text=REPLACED, again=True)
        applied = apply_attributes(handle_of(held), attributes, options.preserve, options.umask, inherits=True)
        result.applied(place, file.split.name, applied)
    finally:
        let_go(held)


def _finish(task: FinishFile, context: Context, result: Result) -> tuple[Unnamed | None, MetadataProblem | None]:
    """What is to be named yet, if that is left for later, and what is wrong with its metadata then."""
    file = task.file
    place, name = file.split.place, file.split.name
    target = context.open_target(place)
    new_name = context.new_name(place, name)
    shortcoming: MetadataProblem | None = None
    item = None
    named_later = context.keeps and not file.over
    renamed = not named_later and _is_in_place(context, target, new_name, file)
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
            return None, None
        present = status_before(file.over) if file.over else look(target, new_name)
        if present is not None and not (file.over or named_later):
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
                inherits=bool(file.over) or inherits_acl(context, place, target),
            )
        except MetadataProblem as problem:
            applied, shortcoming = Applied(), problem
        finally:
            if named_later:
                item = Unnamed(file.temporary, file.made.inode, file.made.mark)
            close_written(writing, sync=context.syncs_items(place))
        if file.over:
            result.written_over(place, name, file.made.inode, failed=shortcoming is not None)
        elif item is None:
            put_over(context, target, file.temporary, new_name, file.made.inode, present)
    except Problem as problem:
        if file.over:
            raise incomplete(problem) from problem
        remove(target, file.temporary)
        raise
    if shortcoming is not None and item is None:
        raise shortcoming
    result.applied(place, name, applied)  # not before it is copied: what fails is tried again
    return item, shortcoming
