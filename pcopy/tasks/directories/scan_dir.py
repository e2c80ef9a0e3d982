"""ScanDir makes the target directory and lists the source, ScanNames looks at some names of a directory. Both hand the
items to the tool's visitor.

A new directory belongs to us alone (0700) until it is finished. One that exists keeps its owner and is not opened up;
if we are its owner and lack permissions in it, we give them to ourselves until it is finished.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator

from pcopy.engine.task import Task
from pcopy.engine.ticket import Stepwise
from pcopy.fsio.attributes import Attributes, Handle, drop_inherited_acls, may_inherit_acl, read_attributes
from pcopy.fsio.identity import Identity, birth_of
from pcopy.fsio.kernel.columns import unpack_names
from pcopy.fsio.layout import inherited
from pcopy.fsio.nodes import handle_of
from pcopy.fsio.patience import INTERRUPTED, patiently
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, capable
from pcopy.fsio.problem import Problem, failing
from pcopy.fsio.source import status_of
from pcopy.named import NamedTuple
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.dividing import Paces
from pcopy.tasks.base.kind import Divisible, Gone, Kind, Left, Steps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank, is_since
from pcopy.tasks.base.result import Result, Tried
from pcopy.tasks.base.values import NOWHERE, Place
from pcopy.tasks.directories.access import let_us_in, open_up
from pcopy.tasks.directories.finish_dir import FinishDir, SealDir, directory_failed, finish_again
from pcopy.tasks.directories.sync_files import FileSystems, SyncFiles
from pcopy.tasks.files.existing import Existing, look, looked_at_again, owners
from pcopy.tasks.files.layouts import layout_at
from pcopy.walk.listing import NAMES_AT_ONCE, Listing, NamesSpool, begin_list, spread
from pcopy.walk.visitor import visit

IN_PLACE = 64
"""Names that are looked at by who has listed them. Of more, others may take some, unless they are soon looked at."""

OF_DIRECTORY = 3
"""Operations of a directory that is scanned: it is opened and listed, and made on the other side."""

FinishLater = Callable[[Result, FinishDir], None]
"""Takes the task that gives a directory its metadata when everything in it is there."""


class ScanDir(Kind, code=1, doing="scanning", is_note=False):
    """Makes the directory ``path`` and finds what is in it. ``parent`` is the directory around it, None at a root.

    With the ``source_id`` NOWHERE it is whatever is there when the task runs. ``since`` as in ``Place``.
    """

    root: int
    path: bytes
    source_id: Identity
    parent: Place | None
    since: tuple[int, int] = (0, 0)

    effort = 0  # ``scan`` counts it

    def about(self) -> tuple[Place, bytes]:
        return self.only_read, b""

    @property
    def only_read(self) -> Place:
        """The directory, as long as nothing is made of it."""
        return Place(self.root, self.path, self.source_id, NOWHERE, False, False)

    def places(self) -> Iterator[Place]:
        """Not the one around it: that is only entered."""
        yield self.only_read

    def tell(self, task: Task, gone: Gone) -> None:
        if task.phase == Phase.COPY:
            gone.scans()

    def run(self, rank: Rank, result: Result) -> Steps:
        yield from self.scan(rank, result, lambda result, finish: result.spawn(finish, phase=Phase.FINISH))

    def scan(self, rank: Rank, result: Result, finish_later: FinishLater, *, made: bool = False) -> Steps:
        """Does it; ``finish_later`` gets what finishes the directory. ``made``: its target was made just now."""
        result.count(counts.UNSCANNED, -1)
        yield from rank.throttle.spend(operations=OF_DIRECTORY)
        task = self
        try:
            task = self.as_mounted(rank)
            if self.source_id == NOWHERE and task.parent is not None:
                finish_again(rank, result, task.parent, result.phase)
            begun = yield from task.begin(rank, result, made=made)
        except Problem as problem:
            # If the source is not the one that was found, nothing of it has been copied: any is taken then.
            is_another = problem.on_source and problem.errno == errno.ESTALE and task.parent is not None
            retry = task._replace(source_id=NOWHERE) if is_another else task
            result.fail(self.only_read, b"", problem, retry=retry)
            return
        if begun is None:
            result.count(counts.SKIPPED)
            result.items.did(Action.SKIP, self.only_read, b"", DIRECTORY)
            return
        place, is_copied = begun.place, begun.place.target_id != NOWHERE
        result.found_directory(place)
        if is_copied:
            note_device(rank, result, place)
        complete, entries = True, begun.listing.number
        try:
            entries = yield from _look_into(rank, result, begun)
        except Problem as problem:  # the rest of its names can't be read
            if is_copied:
                result.count(counts.DIRECTORIES)
                directory_failed(result, place, problem)
            else:
                result.fail(place, b"", problem, retry=Tried.NEVER)
            complete = False
        if is_copied:
            entries = entries if rank.signs else -1
            finish = FinishDir(place, begun.attributes, complete, entries, action=begun.action)
            to_be_finished(rank, result, finish, finish_later)
        elif complete:
            result.count(counts.SKIPPED if rank.job.copies else counts.DIRECTORIES)
            if rank.job.copies:
                result.items.did(Action.SKIP, place, b"", DIRECTORY)

    def begin(self, rank: Rank, result: Result, *, made: bool, lists: bool = True) -> Stepwise[_Begun | None]:
        """Opens the source, begins to list it if it ``lists``, and makes the target, unless it is only read.

        None if what exists is to stay, and nobody wants to read the source. Raises ``Problem``.
        """
        source = rank.sources[self.root].open(self.path, self.source_id)
        status = status_of(source, on_source=True)
        reads = not rank.job.copies or (self.parent is not None and self.parent.target_id == NOWHERE)
        if not (reads or self.is_left_out(rank)) and rank.is_target(self.root, status):
            raise Problem("scan", 0, on_source=True, text="this is the target itself, reached through the source")
        if rank.options.dereference and self.parent is not None:
            self._check_followed(rank, self.parent, source, status)
        handle: Handle = source
        listing = Listing()
        if self.is_left_out(rank) or not lists:
            handle = handle_of(source)  # it may be open for searching only
        else:
            listing = yield from begin_list(rank.kernel, source)  # an unreadable one fails before its copy is made
            if not listing.number:
                source = handle = self._still_there(rank, source)
        attributes = read_attributes(handle, status, rank.options.preserve)
        action = Action.COPY
        if result.items.is_wanted and not reads:
            from pcopy.tasks.directories.foreseen import action_of, target_of

            action = action_of(self, rank, attributes)
        if rank.options.dry_run and not reads:
            target = target_of(self, rank, status, action)
        else:
            target = None if reads else _make_target(self, rank, result, handle, status, made=made)
        if target is None and not rank.signs and rank.job.copies:
            return None
        return _Begun(target or self.only_read, attributes, source, listing, int(action))

    def as_mounted(self, rank: Rank) -> ScanDir:
        """The task with the identity of what is mounted there, if that was mounted after the directory was found.

        What was mounted there when the job began is known, and has been compared. Else it is new: An automounter mounts
        when a directory is entered, not when its status is asked for. Nobody else's directory comes in that way: it
        needs a mount, where a swapped directory would be on the file system around it.
        """
        if self.parent is None:
            return self
        sources = rank.sources[self.root]
        found = sources.identity(self.path)
        if self.source_id == NOWHERE:  # what a resumed job makes anew is whatever there is now
            above = sources.identity(self.parent.path)
            return self._replace(source_id=found, parent=self.parent._replace(source_id=above))
        is_mounted = self.path in sources.mounted or found.mount != self.parent.source_id.mount
        return self._replace(source_id=found) if is_mounted else self

    def is_left_out(self, rank: Rank) -> bool:
        """Does another file system begin here, of which ``--one-file-system`` wants no more than the mount point?"""
        around = self.parent
        return rank.options.one_file_system and around is not None and self.source_id.mount != around.source_id.mount

    def _still_there(self, rank: Rank, source: int) -> int:
        """A directory that was removed once it was open looks like an empty one: its descriptor again, or
        ``Problem``."""
        if status_of(source, on_source=True).st_nlink:
            return source
        rank.sources[self.root].forget(self.path)
        return rank.sources[self.root].open(self.path, self.source_id)

    def _check_followed(self, rank: Rank, parent: Place, source: int, status: os.stat_result) -> None:
        """Raises ``Problem`` if what a link has led to would have no end (``pcopy.walk.link_loops``)."""
        from pcopy.walk.link_loops import check_outside, check_repetition

        sources, place = rank.sources[self.root], self.only_read
        check_repetition(
            sources, self.path, status, lambda path: rank.shown(place._replace(path=path), b"", on_source=True)
        )
        name = self.path.rpartition(b"/")[2]
        with failing("open", on_source=True):
            entry = os.stat(name, dir_fd=rank.open_source(parent), follow_symlinks=False)
        names = [root.name for root in rank.job.roots if not root.item]
        around = rank.targets[0].open(b"")
        check_outside(source, status, around, names, all_the_way=stat.S_ISLNK(entry.st_mode))

    def leftovers(self, *, first: bool) -> Iterator[Left]:
        yield Left(self.root, self.path, True)

    def begun_now(self, since: tuple[int, int]) -> ScanDir:
        return self._replace(since=since)

    def try_again(self, rank: Rank, result: Result, phase: int) -> None:
        result.count(counts.UNSCANNED, 1, self.only_read)
        super().try_again(rank, result, phase)

    def puts_into(self) -> set[Place]:
        return {self.parent} if self.parent else set()


class ScanNames(Divisible, code=2, doing="scanning", is_note=False):
    """Stats ``names`` (joined by slashes) of a directory; ``attempt`` counts from 0, or is ``COPIED_BEFORE``."""

    attempt: int

    operation_count = 1
    least_items = 16  # as a task for the files among them comes of it

    def tell(self, task: Task, gone: Gone) -> None:
        if task.phase == Phase.COPY:
            gone.scans()

    def gathered(self, task: Task, gone: Gone) -> Iterator[Task]:
        yield task._replace(phase=int(Phase.COPY)) if task.phase == Phase.LINK else task

    def run(self, rank: Rank, result: Result) -> Steps:
        """A part of a large directory, or names that are tried again (and were found before)."""
        place = self.place
        try:
            source = rank.open_source(place)
            # No scan has looked at the directory that an item goes to.
            if (self.attempt or rank.job.roots[place.root].item) and place.target_id != NOWHERE:
                place = looked_at_again(rank, place)
        except Problem as problem:
            names = unpack_names(self.names)
            for name in names:
                result.fail(self.place, name, problem)
            if not self.attempt:
                result.count(counts.FOUND, len(names))
            return
        visitor = rank.visitor(rank, result, place, self.attempt)
        yield from visit(rank.kernel, source, self.names, visitor, follow=rank.options.dereference, also=owners(rank))

    def leftovers(self, *, first: bool) -> Iterator[Left]:
        """A name may be that of a directory."""
        yield from super().leftovers(first=first)
        for name in unpack_names(self.names):
            yield Left(self.place.root, os.path.join(self.place.path, name), True)

    def begun_now(self, since: tuple[int, int]) -> ScanNames:
        return self._replace(place=self.place._replace(since=since))

    def puts_into(self) -> set[Place]:
        return {self.place}


class _Begun(NamedTuple):
    """A directory whose ``source`` is open; it has a target if it is copied."""

    place: Place
    attributes: Attributes
    source: int
    listing: Listing
    action: int


def _look_into(rank: Rank, result: Result, begun: _Begun) -> Stepwise[int]:
    """Looks at the names if they are few, and leaves them to any rank if not; returns their number.

    Raises ``Problem`` if they can't all be read: those that could are looked at all the same.
    """
    place, listing = begun.place, begun.listing
    number, paces = listing.number, rank.own(Paces)
    is_quick = paces.are_quick(ScanNames.code, number) and not rank.throttle.is_on
    if not listing.is_large and (number <= IN_PLACE or is_quick):
        yield from rank.throttle.spend(operations=number)
        visitor, began = rank.visitor(rank, result, place, 0), time.monotonic()
        yield from visit(
            rank.kernel, begun.source, listing.names, visitor, follow=rank.options.dereference, also=owners(rank)
        )
        if number:
            paces.took(ScanNames.code, number, time.monotonic() - began)
        return number
    if not listing.is_large:
        result.spawn(ScanNames(place, listing.names, 0), number * CALL_COST, expands=True)
        return number
    spool = NamesSpool(rank.open_spool)
    try:
        return (yield from spread(listing, spool))
    finally:
        result.spawn_each((ScanNames(place, packed, 0) for packed in spool), NAMES_AT_ONCE * CALL_COST, expands=True)


def to_be_finished(rank: Rank, result: Result, finish: FinishDir, finish_later: FinishLater) -> None:
    """The directory gets its metadata in a later phase. If it is not ``counted``, it has failed already."""
    assert finish.attributes is not None
    if rank.options.dry_run:
        from pcopy.tasks.directories.foreseen import foresee_finish

        if finish.counted:
            foresee_finish(result, finish.place, finish.action)
    elif may_be_entered(finish.attributes):
        finish_later(result, finish)
    else:  # once its owner can't enter it, nothing below it can be finished
        result.spawn(SealDir(finish), owner=0)


def may_be_entered(attributes: Attributes) -> bool:
    """By us, once the directory has these?"""
    return bool(attributes.mode & stat.S_IXUSR) or capable(CAP_DAC_OVERRIDE)


def _make_target(
    task: ScanDir, rank: Rank, result: Result, handle: Handle, source: os.stat_result, *, made: bool
) -> Place | None:
    """The target directory, which was ``made`` just now, or is made unless it exists; None if what exists is to stay.
    ``handle`` and ``source`` are the directory that it is a copy of, and its status. Raises ``Problem``."""
    targets = rank.targets[task.root]
    path = rank.below_target(task.root, task.path)
    fresh = False
    if path:
        name = path.rpartition(b"/")[2]
        parent = rank.open_above(task.parent, task.root)
        around = task.parent or Place(task.root, b"", task.source_id, NOWHERE, False, False)
        around = around._replace(since=task.since)
        fresh = made or _make_directory(rank, around, parent, name, source)
        if not fresh or not capable(CAP_DAC_OVERRIDE):  # what it has inherited may keep us out of a new one, too
            present = look(parent, name)
            if present is None or not stat.S_ISDIR(present.st_mode):
                return None
            let_us_in(parent, name, present)
        targets.forget(path)
    target = targets.open(path)
    status = status_of(target)
    if not path and status.st_mode & 0o700 != 0o700:
        open_up(target, status)
    inherits = may_inherit_acl(target, status.st_uid)
    if fresh and inherits:
        drop_inherited_acls(target)
        if stat.S_IMODE(status.st_mode) & 0o777 != 0o700:  # it may have left us fewer permissions than were asked for
            with failing("chmod"):
                os.chmod(target, stat.S_IMODE(status.st_mode) & ~0o777 | 0o700)
        inherits = status.st_uid != os.geteuid()
    identity = targets.identity(path, made=fresh)
    place = Place(task.root, task.path, task.source_id, identity, fresh, inherits, task.since)
    if fresh and (why := layout_at(rank, place).directory_made(handle, target)):
        result.other_layout(place, b"", inherited(why))
    return place


def _make_directory(rank: Rank, around: Place, parent: int, name: bytes, source: os.stat_result) -> bool:
    """Makes ``name`` in ``parent``; False if something is there that stays. Raises ``Problem``."""
    for _ in range(2):
        try:
            patiently(lambda: os.mkdir(name, 0o700, dir_fd=parent), INTERRUPTED)
            return True
        except FileExistsError:
            pass
        except OSError as error:
            raise Problem.of("mkdir", error) from error
        present = look(parent, name)
        there = None if present is None else Existing(rank, around, parent, name, present)
        if present is not None and there is not None and stat.S_ISDIR(present.st_mode):
            # Until it is finished a directory that a job has made is nobody else's.
            is_unfinished = present.st_uid == os.geteuid() and stat.S_IMODE(present.st_mode) & ~stat.S_ISGID == 0o700
            own = there.is_own() and is_unfinished and not rank.keeps
            return own and is_since(rank.job, around, birth_of(parent, name))  # else we have only touched it
        if there is not None:
            if not there.may_replace(source):
                return False
            there.unlink()
    raise Problem("mkdir", errno.EEXIST)


def note_device(rank: Rank, result: Result, place: Place) -> None:
    """A file system below the target that is not the root's wants its own sync at the end."""
    if not rank.options.sync:
        return
    met = rank.own(FileSystems)
    try:
        if not met.knows(place):
            met.below(place)
            result.spawn(SyncFiles(place), phase=Phase.SYNC, owner=rank.number)
    except Problem as problem:
        result.count(counts.UNSYNCED)
        result.report(rank.shown(place, b"", on_source=False), problem)
