"""Copies an item of the destination that should get another hard link, if the file system refuses the hard link."""

from __future__ import annotations

import os
import stat

from pcopy.fsio.attributes import read_item_metadata
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.new_file import NewFile, NewLinkOrSpecialFile
from pcopy.fsio.nodes import read_link_or_special_file
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.source import open_item_to_read, status_of_open_item
from pcopy.tasks.base.rank import Rank

_CHANGED_TEXT = "the item changed while it was copied (it was copied because the file system refuses a hard link to it)"
_PRESERVE_ALL = PreservedMetadataKinds()


def copy_target_item(rank: Rank, directory: int, name: bytes, present: os.stat_result, to: int, new_name: bytes) -> int:
    """Copy the item ``name`` of the open ``directory`` to ``new_name`` in the open directory ``to``, with all of its
    metadata.

    Return the inode number of the copy. On failure raise ``Problem`` (with EEXIST if the new name is taken); no copy
    remains then.

    Args:
        present: the status of the item. If another item has its name now, ``Problem`` is raised.
    """
    if stat.S_ISREG(present.st_mode):
        return _copy_target_file(rank, directory, name, present, to, new_name)
    try:
        node = read_link_or_special_file(directory, name, present.st_ino, _PRESERVE_ALL)
    except Problem as problem:  # It says that the source failed, but this item is in the target.
        raise Problem(problem.operation, problem.errno or 0, text=problem.strerror or "") from problem
    with NewLinkOrSpecialFile.create_link_or_special_file(to, new_name, node, is_temporary=True) as new:
        new.apply_metadata(node.attributes, _PRESERVE_ALL, rank.options.umask)
        if new.metadata_problem is not None:
            raise new.metadata_problem
        new.close_without_removing()
        return new.status.st_ino


def _copy_target_file(
    rank: Rank, directory: int, name: bytes, present: os.stat_result, to: int, new_name: bytes
) -> int:
    """Copy the regular file ``name`` of the open ``directory`` to ``new_name`` in the open directory ``to``, with all
    of its metadata. Return the inode number of the copy. Raise ``Problem`` on failure, or if the file is no longer the
    one with the status ``present``.
    """
    with errors_as_problem("open"):
        reading = open_item_to_read(directory, name)
    with closing_descriptor(reading), NewFile.create(to, new_name) as new:
        status = status_of_open_item(reading)
        if not os.path.samestat(status, present):
            raise Problem("open", 0, text=_CHANGED_TEXT)
        attributes = read_item_metadata(reading, status, _PRESERVE_ALL)
        devices = status.st_dev, new.status.st_dev
        for _ in rank.mover.copy_all_contents(reading, new.descriptor, status, devices, extend=new.extend_to_size):
            pass
        after = status_of_open_item(reading)
        if (after.st_size, after.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            raise Problem("read", 0, text=_CHANGED_TEXT)
        new.apply_metadata(attributes, _PRESERVE_ALL, rank.options.umask)
        if new.metadata_problem is not None:
            raise new.metadata_problem
        new.close_without_removing(sync=new.needs_sync and rank.options.sync)
        return new.status.st_ino
