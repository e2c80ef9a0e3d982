"""Gives items their final names, where nothing may be replaced unasked (docs/design/jobs.md).

If a name is taken by the very item that was to be named, an earlier run has named it; else ``--existing`` decides. What
gives way is exchanged for the item, and looked at once more: if it has changed since the decision, both are exchanged
back. If a file system knows no exchange, a file that is saved between the look and the rename is lost.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.close import held_open
from pcopy.fsio.existing import are_times_equal
from pcopy.fsio.identity import Identity, Likeness, identity_of
from pcopy.fsio.kernel.columns import Status
from pcopy.fsio.naming import Given, is_placeholder
from pcopy.fsio.new_file import clear_way
from pcopy.fsio.nodes import open_node
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import exchange_name, had_a_name, remove, verify_name
from pcopy.signature.items import BLOCK, CHARACTER, FILE
from pcopy.tasks.base.actions import Action, How
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Known, Place, Unnamed
from pcopy.tasks.files.existing import Existing, existing, look

_TRIES = 5
"""How often others may be quicker."""

_TYPES = {FILE: stat.S_IFREG, b"l": stat.S_IFLNK, b"p": stat.S_IFIFO, b"s": stat.S_IFSOCK}
_TYPES |= {CHARACTER: stat.S_IFCHR, BLOCK: stat.S_IFBLK}


class Naming:
    """Gives items their names in ``place``, where they wait, one after the other.

    None is moved there from another directory: whoever owns that may have put something of his own there, under the
    temporary name, and that would end in a directory of somebody else's.
    """

    def __init__(self, rank: Rank, place: Place) -> None:
        """Raises ``Problem``."""
        self._rank = rank
        self._place = place
        self._target = rank.open_target(place)
        self._device = rank.target_device(place)

    def give(self, name: bytes, item: Unnamed, known: Known) -> bool:
        """``item``, which holds what is ``known``, is called ``name`` now; False if what is there stays.

        Raises ``Problem``.
        """
        rank, place, target = self._rank, self._place, self._target
        new_name = rank.new_name(place, name)
        self._has_replaced = False
        self._item, self._known, self._name = item, known, new_name
        self._exchanged = exchange_name(rank.job.name, item.inode, new_name)
        if rank.job.run > 1:
            self._come_back()
        for _ in range(_TRIES):
            given = rank.namer.give(target, item.temporary, self._device, new_name)
            if given is Given.GIVEN:
                verify_name(target, new_name, item.inode)
                return True
            there = existing(rank, place, name)
            if there is not None and is_it(there, item, known):
                _remove_item(target, item)  # an earlier try, or an earlier run, gave it the name
                return self._settle(there)
            if there is not None and self._is_left_over(there):
                if self._rename(item.temporary, new_name):
                    return True
                continue
            if there is not None and not self._gives_way(there, item.temporary):
                return False
            if given is Given.GONE:
                raise Problem("rename", errno.ENOENT, text="its temporary file is gone", again=True)
            if there is not None and self._replace(there):
                self._has_replaced = True
                verify_name(target, new_name, item.inode)
                return True
        raise Problem("rename", errno.EAGAIN, text="what has its name is replaced all the time")

    def how(self, nanoseconds: int) -> How:
        """How the item has come about that was given its name last; to copy it took so many ``nanoseconds``."""
        return How(Action.REPLACE if self._has_replaced else Action.COPY, nanoseconds)

    def _gives_way(self, there: Existing, name: bytes) -> bool:
        """Return True if what is ``there`` may be replaced by the item, which is called ``name`` now; raises
        ``Problem``."""
        source = self._source()
        return there.may_replace(source) or there.has_other_text(source, self._target, name, on_source=False)

    def _source(self) -> Status:
        """Return what decides of the status of the item's source.

        The length of a symbolic link and the number of a device are those of the item itself, which is a copy of it.
        Raises ``Problem``.
        """
        known = self._known
        kind, size, device = _TYPES[known.kind], known.size, 0
        if known.kind != FILE:
            copies = (look(self._target, name) for name in (self._item.temporary, self._exchanged, self._name))
            made = next((each for each in copies if each is not None and each.st_ino == self._item.inode), None)
            if made is not None:
                size, device = made.st_size, made.st_rdev
        return Status(kind, size, device, known.version.mtime, 0)

    def _replace(self, there: Existing) -> bool:
        """What is ``there`` may give way; False: look again. Raises ``Problem``."""
        target, device, name = self._target, self._device, there.name
        if stat.S_ISDIR(there.status.st_mode):
            clear_way(target, name, there.status)
            self._has_replaced = True
            return False
        there.back_up()
        namer, aside = self._rank.namer, self._exchanged
        if not namer.exchanges(device):
            return self._rename(self._item.temporary, name)
        if look(target, aside) is not None:
            raise Problem("rename", errno.EEXIST, text=had_a_name([aside]))
        if not self._rename(self._item.temporary, aside):
            return False
        try:
            if not namer.exchange(target, aside, device, name):
                return self._rename(aside, name)
        except FileNotFoundError:
            self._come_back()
            return False
        except Problem:
            self._come_back()
            raise
        return self._settle(there)

    def _come_back(self) -> None:
        """The item has its temporary name again, if it was to be exchanged. Raises ``Problem``."""
        present = look(self._target, self._exchanged)
        if present is not None and present.st_ino == self._item.inode:
            self._rename(self._exchanged, self._item.temporary)
            remove(self._target, self._exchanged)  # what is one inode already is not renamed

    def _is_left_over(self, there: Existing) -> bool:
        """Was an earlier run killed while it gave the name? Raises ``Problem``."""
        rank = self._rank
        if rank.job.run == 1 or not is_placeholder(there.status):
            return False
        return rank.namer.needs_placeholders(self._target, self._device, rank.temporary_names.next())

    def _rename(self, old: bytes, new: bytes) -> bool:
        """Replaces what has the ``new`` name; False if one of the two is gone. Raises ``Problem``."""
        try:
            os.rename(old, new, src_dir_fd=self._target, dst_dir_fd=self._target)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Problem.of("rename", error) from error
        return True

    def _settle(self, there: Existing) -> bool:
        """What has come out of an exchange is removed, or goes back (False). Raises ``Problem``."""
        target, name, aside = self._target, there.name, self._exchanged
        left = look(target, aside)
        if left is None:
            return True
        replaced, source = there._replace(name=aside, status=left), self._source()
        if not (replaced.gives_way(source) or replaced.has_other_text(source, target, name, on_source=False)):
            self._take_back(name)
            return False
        if stat.S_ISDIR(left.st_mode):
            try:
                clear_way(target, aside, left)
            except Problem:
                self._take_back(name)
                raise
        else:
            remove(target, aside)
        return True

    def _take_back(self, name: bytes) -> None:
        """Exchanges once more. What was saved over the item meanwhile gets its name again at once."""
        exchange, aside = self._rank.namer.exchange, self._exchanged
        try:
            exchange(self._target, aside, self._device, name)
            came = look(self._target, aside)
            if came is None or came.st_ino == self._item.inode:
                self._come_back()
                return
            exchange(self._target, aside, self._device, name)
        except FileNotFoundError:
            pass
        raise Problem("rename", errno.ESTALE, text=f"it was replaced several times at once; {had_a_name([aside])}")


def is_it(there: Existing, item: Unnamed, known: Known) -> bool:
    """Is what is there this very item? Raises ``Problem``.

    Where inodes alone can be compared, size and time must be the source's, too.
    """
    present, mount = there.status, there.place.target_id.mount
    if present.st_ino != item.inode:
        return False
    with held_open(open_node(there.directory, there.name, on_source=False)) as held:
        found = identity_of(held, status_of(held), mount, made=True)
    likeness = Identity(mount, item.inode, item.mark).compare(found)
    if likeness is Likeness.UNTOLD:
        same_size = known.kind != FILE or present.st_size == known.size
        return same_size and are_times_equal(known.version.mtime, present.st_mtime_ns, 0)
    return likeness is Likeness.SAME


def _remove_item(directory: int, item: Unnamed) -> None:
    """If it has its temporary name; raises ``Problem``."""
    present = look(directory, item.temporary)
    if present is not None and present.st_ino == item.inode:
        remove(directory, item.temporary)


def discard(rank: Rank, home: Place, item: Unnamed, result: Result | None = None) -> None:
    """Removes the item, which gets no name; whatever else has its temporary name stays.

    A ``result`` tells of what can't be removed.
    """
    try:
        _remove_item(rank.open_target(home), item)
    except Problem as problem:
        if result is not None and problem.errno not in (errno.ENOENT, errno.ESTALE):  # its directory has gone
            name = os.fsdecode(item.temporary)
            text = f"a temporary file cannot be removed: {name}: {problem.operation}: {problem.strerror}"
            result.warn(home, b"", text)
