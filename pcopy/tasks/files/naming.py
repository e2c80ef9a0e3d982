"""Gives copies their final names if nothing may be replaced without permission: with ``--existing newer``, ``skip`` or
``fail`` (docs/design/jobs.md).

If the final name already leads to the copy itself, an earlier run has given it that name. Any other existing item is
handled as ``--existing`` says. To replace an existing item, its name is exchanged with that of the copy
(RENAME_EXCHANGE), and it is examined once more: if it has changed since the decision, the exchange is undone. If the
file system cannot exchange two names, a file that another program saves between the examination and the rename is lost.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.backend.columns import ItemStatusRow
from pcopy.fsio.close import closing_descriptor
from pcopy.fsio.existing import are_times_equal
from pcopy.fsio.identity import IdentityComparison, ItemIdentity, identity_of_open_item
from pcopy.fsio.naming import RenameResult, is_placeholder_file
from pcopy.fsio.new_file import remove_empty_directory_for_rename
from pcopy.fsio.nodes import open_o_path_descriptor
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.temporary import leftover_notice, name_during_exchange, remove_item_if_present, verify_name_has_inode
from pcopy.signature.items import BLOCK_DEVICE, CHARACTER_DEVICE, FILE
from pcopy.tasks.base.actions import ItemAction, TimedCopyAction
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import ContentInfo, Place, UnnamedCopy
from pcopy.tasks.files.existing import ExistingItem, find_existing_item, item_status_or_none

_MAX_NAMING_TRIES = 5
"""Number of attempts to give a copy its name, if other programs use the name at the same time."""

_MODE_TYPE_BITS = {FILE: stat.S_IFREG, b"l": stat.S_IFLNK, b"p": stat.S_IFIFO, b"s": stat.S_IFSOCK}
"""File type bits of st_mode, by the type byte of a signature."""
_MODE_TYPE_BITS |= {CHARACTER_DEVICE: stat.S_IFCHR, BLOCK_DEVICE: stat.S_IFBLK}


class CopyNamer:
    """Gives copies that have temporary names in the target directory of ``place`` their final names there.

    No copy is moved here from another directory: the owner of that directory could have put an item of his own under
    the temporary name, and that item would then be moved into a directory of another user.
    """

    def __init__(self, rank: Rank, place: Place) -> None:
        """Open the target directory of ``place``. Raise ``Problem`` on failure."""
        self._rank = rank
        self._place = place
        self._target = rank.open_target_directory(place)
        self._device = rank.target_device(place)

    def give_final_name(self, name: bytes, item: UnnamedCopy, known: ContentInfo) -> bool:
        """Rename the copy ``item`` to the final name of the item ``name``. Return False if an existing item is kept
        instead. Raise ``Problem`` on failure.

        Args:
            name: name of the item in the source.
            item: the copy: its temporary name, inode number and mark (file handle or time of birth).
            known: type, size, digest and version of the contents of the copy.
        """
        rank, place, target = self._rank, self._place, self._target
        new_name = rank.target_name(place, name)
        self._has_replaced, self.differences = False, 0
        self._item, self._known, self._name = item, known, new_name
        self._exchanged = name_during_exchange(rank.job.name, item.inode, new_name)
        if rank.job.run > 1:
            self._restore_temporary_name()
        for _ in range(_MAX_NAMING_TRIES):
            given = rank.namer.rename(target, item.temporary, self._device, new_name)
            if given is RenameResult.RENAMED:
                verify_name_has_inode(target, new_name, item.inode)
                return True
            present = find_existing_item(rank, place, name)
            if present is not None and is_same_copy(present, item, known):
                _remove_temporary_copy(target, item)  # an earlier attempt or run has given the copy its name
                return self._finish_name_exchange(present)
            if present is not None and self._is_old_placeholder(present):
                if self._rename_if_present(item.temporary, new_name):
                    return True
                continue
            if present is not None and not self._may_replace_existing_item(present, item.temporary):
                return False
            if given is RenameResult.SOURCE_MISSING:
                raise Problem(
                    "rename", errno.ENOENT, text="the temporary file of the copy no longer exists", may_retry=True
                )
            if present is not None and self._replace_existing_item(present):
                self._has_replaced = True
                verify_name_has_inode(target, new_name, item.inode)
                return True
        raise Problem("rename", errno.EAGAIN, text="other programs keep replacing the item of this name in the target")

    def _find_differences(self, present: ExistingItem) -> None:
        """Find out what differs between the copy and the existing item ``present``, which it will replace."""
        from pcopy.tasks.files.differences import differences_of_copy

        self.differences = differences_of_copy(self._item.temporary, self._known.version.mtime, present)

    def action_of_copy(self, nanoseconds: int) -> TimedCopyAction:
        """Return action and duration of the copy that was named last, for the report of each item: REPLACE if it
        replaced an item, else COPY. ``nanoseconds`` is the duration.
        """
        return TimedCopyAction(ItemAction.REPLACE if self._has_replaced else ItemAction.COPY, nanoseconds)

    def _may_replace_existing_item(self, present: ExistingItem, name: bytes) -> bool:
        """Return True if the existing item ``present`` may be replaced by the copy, which has the temporary name
        ``name``. Raise ``Problem`` if the copy fails instead.
        """
        source = self._source_status()
        return present.may_be_replaced(source) or present.has_other_link_text(
            source, self._target, name, on_source=False
        )

    def _source_status(self) -> ItemStatusRow:
        """Return those parts of the source's status from which the decision is made whether an existing item is
        replaced. Raise ``Problem`` on failure.

        Type, size and time are those that were recorded with the copy. The length of a symbolic link and the number of
        a device are read from the copy.
        """
        known = self._known
        kind, size, device = _MODE_TYPE_BITS[known.kind], known.size, 0
        if known.kind != FILE:
            copies = (
                item_status_or_none(self._target, name) for name in (self._item.temporary, self._exchanged, self._name)
            )
            made = next((each for each in copies if each is not None and each.st_ino == self._item.inode), None)
            if made is not None:
                size, device = made.st_size, made.st_rdev
        return ItemStatusRow(kind, size, device, known.version.mtime, 0)

    def _replace_existing_item(self, present: ExistingItem) -> bool:
        """Replace the existing item ``present`` by the copy. Return False if the name must be examined again, because
        it changed meanwhile or is free now. Raise ``Problem`` on failure.
        """
        target, device, name = self._target, self._device, present.name
        if self._rank.options.itemize:
            self._find_differences(present)
        if stat.S_ISDIR(present.status.st_mode):
            remove_empty_directory_for_rename(target, name, present.status)
            self._has_replaced = True
            return False
        present.back_up_item()
        namer, aside = self._rank.namer, self._exchanged
        if not namer.may_support_name_exchange(device):
            return self._rename_if_present(self._item.temporary, name)
        if item_status_or_none(target, aside) is not None:
            raise Problem("rename", errno.EEXIST, text=leftover_notice([aside]))
        if not self._rename_if_present(self._item.temporary, aside):
            return False
        try:
            if not namer.exchange_names(target, aside, device, name):
                return self._rename_if_present(aside, name)
        except FileNotFoundError:
            self._restore_temporary_name()
            return False
        except Problem:
            self._restore_temporary_name()
            raise
        return self._finish_name_exchange(present)

    def _restore_temporary_name(self) -> None:
        """Rename the copy back to its temporary name, if it still has the name that it got for an exchange of names.
        Raise ``Problem`` on failure.
        """
        present = item_status_or_none(self._target, self._exchanged)
        if present is not None and present.st_ino == self._item.inode:
            self._rename_if_present(self._exchanged, self._item.temporary)
            # rename(2) does nothing if both names are links to one inode, so the name may still exist.
            remove_item_if_present(self._target, self._exchanged)

    def _is_old_placeholder(self, present: ExistingItem) -> bool:
        """Return True if the existing item is a placeholder: an empty file that reserves the name on a file system
        without RENAME_NOREPLACE. An earlier run created it and was killed before it could give the name. Raise
        ``Problem`` on failure.
        """
        rank = self._rank
        if rank.job.run == 1 or not is_placeholder_file(present.status):
            return False
        return rank.namer.needs_placeholders(self._target, self._device, rank.temporary_names.next_name())

    def _rename_if_present(self, old: bytes, new: bytes) -> bool:
        """Rename ``old`` to ``new``; an existing item ``new`` is replaced. Return False if ``old`` does not exist.
        Raise ``Problem`` on failure.
        """
        try:
            os.rename(old, new, src_dir_fd=self._target, dst_dir_fd=self._target)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Problem.from_error("rename", error) from error
        return True

    def _finish_name_exchange(self, present: ExistingItem) -> bool:
        """Complete the replacement of the existing item ``present`` after its name was exchanged with that of the copy:
        examine the replaced item once more. Remove it and return True; or, if it has changed so that it may not be
        replaced, undo the exchange and return False. Raise ``Problem`` on failure.
        """
        target, name, aside = self._target, present.name, self._exchanged
        status = item_status_or_none(target, aside)
        if status is None:
            return True
        replaced, source = present._replace(name=aside, status=status), self._source_status()
        if not (
            replaced.may_be_replaced_under_keep_option(source)
            or replaced.has_other_link_text(source, target, name, on_source=False)
        ):
            self._undo_name_exchange(name)
            return False
        if stat.S_ISDIR(status.st_mode):
            try:
                remove_empty_directory_for_rename(target, aside, status)
            except Problem:
                self._undo_name_exchange(name)
                raise
        else:
            remove_item_if_present(target, aside)
        return True

    def _undo_name_exchange(self, name: bytes) -> None:
        """Exchange the names of the copy and the replaced item once more.

        If another program has replaced the copy meanwhile, that program's item gets its name back at once, and
        ``Problem`` is raised.
        """
        exchange, aside = self._rank.namer.exchange_names, self._exchanged
        try:
            exchange(self._target, aside, self._device, name)
            came = item_status_or_none(self._target, aside)
            if came is None or came.st_ino == self._item.inode:
                self._restore_temporary_name()
                return
            exchange(self._target, aside, self._device, name)
        except FileNotFoundError:
            pass
        raise Problem(
            "rename", errno.ESTALE, text=f"other programs replaced it several times; {leftover_notice([aside])}"
        )


def is_same_copy(present: ExistingItem, item: UnnamedCopy, known: ContentInfo) -> bool:
    """Return True if the existing item ``present`` is the copy ``item``. Raise ``Problem`` on failure.

    If the file system provides no more than inode numbers to compare, size and mtime must also equal those in
    ``known``.
    """
    status, mount = present.status, present.place.target_id.mount_code
    if status.st_ino != item.inode:
        return False
    with closing_descriptor(open_o_path_descriptor(present.directory, present.name, on_source=False)) as descriptor:
        found = identity_of_open_item(descriptor, status_of_open_item(descriptor), mount, created_by_job=True)
    likeness = ItemIdentity(mount, item.inode, item.mark).compare_with_identity(found)
    if likeness is IdentityComparison.UNKNOWN:
        same_size = known.kind != FILE or status.st_size == known.size
        return same_size and are_times_equal(known.version.mtime, status.st_mtime_ns, 0)
    return likeness is IdentityComparison.SAME


def _remove_temporary_copy(directory: int, item: UnnamedCopy) -> None:
    """Remove the copy ``item`` from the open ``directory``, if it still has its temporary name. Raise ``Problem`` on
    failure.
    """
    present = item_status_or_none(directory, item.temporary)
    if present is not None and present.st_ino == item.inode:
        remove_item_if_present(directory, item.temporary)


def remove_unnamed_copy(rank: Rank, home: Place, item: UnnamedCopy, result: TaskResult | None = None) -> None:
    """Remove the copy ``item``, which will get no final name, from the target directory of ``home``. If another item
    has its temporary name, that item is kept.

    If the copy cannot be removed, this is reported in ``result``, if given.
    """
    try:
        _remove_temporary_copy(rank.open_target_directory(home), item)
    except Problem as problem:
        if result is not None and problem.errno not in (
            errno.ENOENT,
            errno.ESTALE,
        ):  # without an error if the directory was removed
            name = os.fsdecode(item.temporary)
            text = f"a temporary file cannot be removed: {name}: {problem.operation}: {problem.strerror}"
            result.warn_about_item(home, b"", text)
