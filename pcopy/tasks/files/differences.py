"""Finds out what differs between an existing item of the target and its source, for the report of each item.

Nothing here is called if neither the user nor a report needs the outcomes of items.
"""

from __future__ import annotations

import os
import stat

from pcopy.fsio.attribute_names import XattrKind, xattr_kind
from pcopy.fsio.existing import are_times_equal, has_same_symlink_text
from pcopy.fsio.metadata_update import MetadataDifference, differing_status_fields, differing_xattr_kinds
from pcopy.fsio.nodes import proc_path_of_descriptor
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import source_item_status
from pcopy.tasks.base.actions import DifferingProperty
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.existing import ExistingItem, find_existing_item, item_status_or_none


def note_differences_of_names(rank: Rank, result: TaskResult, place: Place, names: list[bytes]) -> None:
    """Note what differs between the items ``names`` of the directory ``place`` and the existing items that will be
    replaced by their copies.
    """
    for name in names:
        try:
            source = source_item_status(rank.open_source_directory(place), name, follow=rank.copy_options.dereference)
            present = find_existing_item(rank, place, name)
        except Problem:  # the code that copies the item meets the error again and reports it
            continue
        if present is not None:
            note_differences(result, name, source, present)


def note_differences(result: TaskResult, name: bytes, source: os.stat_result, present: ExistingItem) -> None:
    """Note what differs between the item ``name``, whose status is ``source``, and the existing item ``present``."""
    result.item_recorder.note_differences(present.place, name, differences_of_item(name, source, present))


def differences_of_item(name: bytes, source: os.stat_result, present: ExistingItem) -> int:
    """Return what differs between the item ``name`` of the source, whose status is ``source``, and the existing item
    ``present``, as ``DifferingProperty`` bits. The contents of files are not compared.
    """
    rank, place = present.rank, present.place
    found = differences_of_status(rank, source, present.status)
    if found & DifferingProperty.TYPE:
        return found
    try:
        directory = rank.open_source_directory(place)
        if stat.S_ISLNK(source.st_mode) and not has_same_symlink_text(directory, name, present.directory, present.name):
            found |= DifferingProperty.CONTENT
    except Problem:  # the code that copies the item meets the error again and reports it
        return found
    source_path = proc_path_of_descriptor(directory) + b"/" + name
    return found | differences_of_xattrs(
        rank, source_path, proc_path_of_descriptor(present.directory) + b"/" + present.name
    )


def differences_of_copy(temporary: bytes, mtime: int, present: ExistingItem) -> int:
    """Return what differs between a complete copy, which has the name ``temporary``, and the existing item ``present``
    of the same directory, as ``DifferingProperty`` bits. ``mtime`` is the modification time of the source, which the
    copy may not have.
    """
    directory = present.directory
    try:
        made = item_status_or_none(directory, temporary)
    except Problem:
        return 0
    if made is None:
        return 0
    around = proc_path_of_descriptor(directory) + b"/"
    found = differences_of_status(present.rank, made, present.status)
    if found & DifferingProperty.TYPE:
        return found
    has_time = are_times_equal(mtime, present.status.st_mtime_ns, present.rank.copy_options.modify_window)
    found = found & ~DifferingProperty.TIME | DifferingProperty.TIME * (not has_time)
    if stat.S_ISLNK(made.st_mode):
        try:
            is_same = has_same_symlink_text(directory, temporary, directory, present.name, on_source=False)
        except Problem:
            return found
        found |= DifferingProperty.CONTENT * (not is_same)
    return found | differences_of_xattrs(present.rank, around + temporary, around + present.name)


def differences_of_status(rank: Rank, source: os.stat_result, present: os.stat_result) -> int:
    """Return what differs between the status of an item of the source and that of an existing item, as
    ``DifferingProperty`` bits.
    """
    if stat.S_IFMT(source.st_mode) != stat.S_IFMT(present.st_mode):
        return DifferingProperty.TYPE
    options, mode = rank.copy_options, source.st_mode
    owner, permissions, time = differing_status_fields(source, present, rank.options.preserve, options.modify_window)
    if options.existing in ("changed", "newer") and not stat.S_ISDIR(mode):  # these compare times in any case
        time |= not are_times_equal(source.st_mtime_ns, present.st_mtime_ns, options.modify_window)
    has_size, is_device = stat.S_ISREG(mode) or stat.S_ISLNK(mode), stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
    return (
        DifferingProperty.SIZE * (has_size and source.st_size != present.st_size)
        | DifferingProperty.TIME * time
        | DifferingProperty.MODE * permissions
        | DifferingProperty.OWNER * owner
        | DifferingProperty.CONTENT * (is_device and source.st_rdev != present.st_rdev)
    )


def differences_of_xattrs(rank: Rank, source: bytes, present: bytes) -> int:
    """Return what differs between the extended attributes of two items, as ``DifferingProperty`` bits; 0 if they cannot
    be read.

    Args:
        source: path of the item of the source.
        present: path of the existing item.
    """
    preserve = rank.options.preserve
    if not (preserve.xattr or preserve.acl):
        return 0
    try:
        kinds = differing_xattr_kinds(source, present, preserve, follow=rank.copy_options.dereference)
    except OSError:  # the code that copies the attributes meets the error again and reports it
        return 0
    return differences_of_xattr_kinds(kinds)


def differences_of_xattr_kinds(kinds: set[XattrKind]) -> int:
    """Return ``DifferingProperty`` bits for the ``kinds`` of extended attributes that differ."""
    return DifferingProperty.ACL * (XattrKind.ACL in kinds) | DifferingProperty.XATTR * bool(kinds - {XattrKind.ACL})


def differences_of_metadata(lacks: MetadataDifference) -> int:
    """Return ``DifferingProperty`` bits for ``lacks``, the metadata that an existing item shall get."""
    names = {xattr_kind(name) for name in (*(name for name, _ in lacks.set), *lacks.remove)}
    return (
        DifferingProperty.TIME * lacks.times
        | DifferingProperty.MODE * lacks.mode
        | DifferingProperty.OWNER * lacks.owner
        | differences_of_xattr_kinds(names)
    )
