"""Creation of the hard links in an archive, after all other items were extracted."""

from __future__ import annotations

import errno
import marshal
import os
import stat
import time
from contextlib import suppress

from pcopy.archive.member import safe_member_path
from pcopy.fsio.problem import HARD_LINK_UNSUPPORTED_ERRNOS, Problem
from pcopy.fsio.temporary import remove_item_if_present, rename_and_verify
from pcopy.tasks.archive.members_to_extract import MemberToExtract, directory_place_in_target
from pcopy.tasks.archive.open_archive import OpenedArchive
from pcopy.tasks.archive.replaced_items import note_existing_item
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import HARD_LINK_TYPE_BYTE, ItemAction, TimedCopyAction
from pcopy.tasks.base.hashing import UNKNOWN_VERSION, item_type_byte
from pcopy.tasks.base.kind import TaskKind
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import ContentInfo
from pcopy.tasks.files.existing import item_status_or_none, prepare_new_name
from pcopy.text import printable_path

_SLICE_SECONDS = 0.02
"""Seconds after which a task leaves its remaining links to another task."""
_LINK_REFUSED_TEXT = "the file system refuses this hard link: the name is a copy of its own"
"""Warning about a hard link that the file system refuses."""


class CreateExtractedHardLinks(TaskKind, code=147, doing="making hard links", is_note=False):
    """Task that creates hard links to extracted items.

    ``values`` are the links, all of one directory, as packed ``MemberToExtract``.
    """

    values: bytes

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> None:
        """Create links without a yield, so that every link that was created is counted even if the job stops."""
        until, values = time.monotonic() + _SLICE_SECONDS, marshal.loads(self.values)
        for number, value in enumerate(values):
            if number and time.monotonic() > until:
                rest = values[number:]
                result.spawn_task(CreateExtractedHardLinks(marshal.dumps(rest)), len(rest) * CALL_COST)
                break
            each = MemberToExtract.unpack(value)
            place = directory_place_in_target(each.path)
            try:
                copied, replaced = _make_link(rank, result, each)
            except Problem as problem:
                result.count_item_as_failed(place, each.name, problem, retry=RetryMode.NEVER)
            else:
                if copied is None:
                    result.count(counts.HARDLINKS)
                    action = ItemAction.REPLACE if replaced else ItemAction.COPY
                    result.item_recorder.record_item_outcome(action, place, each.name, HARD_LINK_TYPE_BYTE)
                else:
                    result.warn_once(place, each.name, _LINK_REFUSED_TEXT)
                    known = ContentInfo(item_type_byte(copied), _counted_file_size(copied), b"", UNKNOWN_VERSION)
                    how = TimedCopyAction.action_given_existing_item(replaced or None)
                    result.count_copied_item(place, each.name, known, is_only_name=False, how=how)


def _counted_file_size(status: os.stat_result) -> int:
    """Return the size in bytes that is counted for an item with this ``status``: 0 unless it is a regular file."""
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _make_link(rank: Rank, result: TaskResult, each: MemberToExtract) -> tuple[os.stat_result | None, bool]:
    """Create the hard link ``each`` in the target; an existing item of its name is replaced.

    Return None if the link was created or existed already. If the file system refuses the link, make a copy and return
    the status of the item that was copied. The second value is True if an item had the name before. Raise ``Problem``
    if neither a link nor a copy is possible.
    """
    first = safe_member_path(each.member.link)
    targets = rank.targets[0]
    parent, _, name = first.rpartition(b"/")
    try:
        source = targets.open(parent)
        target_status = item_status_or_none(source, name)
    except Problem as problem:
        if problem.errno != errno.ENOENT:
            text = f"its target {printable_path(first)} cannot be examined"
            raise Problem("link", problem.errno or errno.EIO, text=text) from problem
        target_status = None
    if target_status is None:
        text = f"its target {printable_path(first)} does not exist: it failed, or was not selected"
        raise Problem("link", errno.ENOENT, text=each.problem_text or text)
    directory = targets.open(each.path)
    present = item_status_or_none(directory, each.name)
    if present is not None and (present.st_dev, present.st_ino) == (target_status.st_dev, target_status.st_ino):
        return None, True
    rank.shared_instance(OpenedArchive).refuse_replacing_archive(present)
    note_existing_item(rank, result, directory, each, present)
    made_as = each.name if present is None else prepare_new_name(rank, directory, each.name, present)
    copied = _link_or_copy(rank, source, name, target_status, directory, made_as)
    if made_as != each.name:
        try:
            rename_and_verify(directory, made_as, each.name, target_status.st_ino if copied is None else copied)
        except Problem:
            with suppress(Problem):
                remove_item_if_present(directory, made_as)
            raise
    return None if copied is None else target_status, present is not None


def _link_or_copy(
    rank: Rank, source: int, name: bytes, status: os.stat_result, directory: int, made_as: bytes
) -> int | None:
    """Create a further name for an item, as a hard link, or as a copy if the file system refuses the link.

    Return None for a link, and the inode number of a copy. Raise ``Problem`` if neither is possible.

    Args:
        source, name: the open directory of the item, and its name there.
        status: the status of the item.
        directory, made_as: the open directory of the new name, and that name, which does not exist yet.
    """
    try:
        os.link(name, made_as, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
        return None
    except OSError as error:
        if error.errno not in HARD_LINK_UNSUPPORTED_ERRNOS or stat.S_ISDIR(
            status.st_mode
        ):  # a directory cannot get another hard link
            raise Problem.from_error("link", error) from error
    from pcopy.tasks.files.second_copy import copy_target_item

    return copy_target_item(rank, source, name, status, directory, made_as)
