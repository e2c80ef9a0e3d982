"""ScanDir creates a target directory and lists its source; ScanNames examines some names of a directory. Both pass the
items to the tool's visitor.

A new directory has mode 0700 until it is finished. An existing directory keeps its owner. If this process owns an
existing directory and lacks permissions in it, it adds them until the directory is finished; directories of other users
are not changed.
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
"""Number of names up to which the task that lists a directory also stats them. More names become tasks that other ranks
may take, unless they can be statted quickly.
"""

OF_DIRECTORY = 3
"""Metadata operations that one scanned directory counts for ``--oplimit``: open, list, and create on the other side."""

FinishLater = Callable[[Result, FinishDir], None]
"""A function that receives the task which sets a directory's metadata once its contents are complete."""


class ScanDir(Kind, code=1, doing="scanning", is_note=False):
    """Creates the target of the directory ``path`` and finds the items in its source.

    Fields:

    - ``root``: number of the root. ``path``: path of the directory below it.
    - ``source_id``: identity that the source must have. ``NOWHERE`` accepts whatever directory exists when the task
      runs.
    - ``parent``: the directory that contains it; None for the top of a root.
    - ``since``: as in ``Place``.
    """

    root: int
    path: bytes
    source_id: Identity
    parent: Place | None
    since: tuple[int, int] = (0, 0)

    effort = 0  # ``scan`` counts the operations itself

    def about(self) -> tuple[Place, bytes]:
        return self.only_read, b""

    @property
    def only_read(self) -> Place:
        """The directory as a ``Place`` without a target."""
        return Place(self.root, self.path, self.source_id, NOWHERE, False, False)

    def places(self) -> Iterator[Place]:
        """Yield the directory itself, but not ``parent``, which is only entered."""
        yield self.only_read

    def tell(self, task: Task, gone: Gone) -> None:
        if task.phase == Phase.COPY:
            gone.scans()

    def run(self, rank: Rank, result: Result) -> Steps:
        yield from self.scan(rank, result, lambda result, finish: result.spawn(finish, phase=Phase.FINISH))

    def scan(self, rank: Rank, result: Result, finish_later: FinishLater, *, made: bool = False) -> Steps:
        """Scan the directory: create its target, find its items, and pass the finishing task to ``finish_later``.

        Args:
            finish_later: receives the ``FinishDir`` of this directory.
            made: True if the target directory has just been created by the caller.
        """
        result.count(counts.UNSCANNED, -1)
        yield from rank.throttle.spend(operations=OF_DIRECTORY)
        task = self
        try:
            task = self.as_mounted(rank)
            if self.source_id == NOWHERE and task.parent is not None:
                finish_again(rank, result, task.parent, result.phase)
            begun = yield from task.begin(rank, result, made=made)
        except Problem as problem:
            # ESTALE: the source is not the directory that was found, and nothing of it has been copied. The retry
            # therefore accepts any directory with this name.
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
        except Problem as problem:  # the remaining names cannot be read
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
        """Open the source, start listing it, and create the target unless the directory is only read.

        Return None if an existing item is kept in its place and the source need not be read. Raise ``Problem`` if the
        source cannot be opened or listed, or the target cannot be created.

        Args:
            made: True if the target directory has just been created by the caller.
            lists: False if the source is not to be listed.
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
            handle = handle_of(source)  # the descriptor may be O_PATH (search permission only)
        else:
            # Listed before the target is created: an unreadable directory leaves no empty copy.
            listing = yield from begin_list(rank.kernel, source)
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
        """Return the task with the identity of the file system that is mounted there, if it was mounted after the
        directory was found; raise ``Problem``.

        File systems that were mounted there when the job began are recorded and have been compared. A later one is
        accepted only if it is an automount: an automounter mounts when a directory is opened, not on stat(2). Another
        user cannot inject a directory this way, because that requires a mount; a swapped directory would be on the same
        file system as its parent.
        """
        if self.parent is None:
            return self
        sources = rank.sources[self.root]
        found = sources.identity(self.path)
        if self.source_id == NOWHERE:  # a resumed job copies whatever directory exists now
            above = sources.identity(self.parent.path)
            return self._replace(source_id=found, parent=self.parent._replace(source_id=above))
        is_mounted = self.path in sources.mounted or found.mount != self.parent.source_id.mount
        return self._replace(source_id=found) if is_mounted else self

    def is_left_out(self, rank: Rank) -> bool:
        """Return True if another file system begins here and ``--one-file-system`` excludes everything but the mount
        point.
        """
        parent = self.parent
        return rank.options.one_file_system and parent is not None and self.source_id.mount != parent.source_id.mount

    def _still_there(self, rank: Rank, source: int) -> int:
        """Return a descriptor of the source directory, which was listed as empty; raise ``Problem`` if it no longer
        exists.

        A directory that is removed after it was opened lists as empty. In that case (no links remain) the path is
        opened again.
        """
        if status_of(source, on_source=True).st_nlink:
            return source
        rank.sources[self.root].forget(self.path)
        return rank.sources[self.root].open(self.path, self.source_id)

    def _check_followed(self, rank: Rank, parent: Place, source: int, status: os.stat_result) -> None:
        """Raise ``Problem`` if following a symbolic link to this directory would never end (``pcopy.walk.link_loops``).

        Args:
            source: descriptor of the directory; ``status`` is its status.
        """
        from pcopy.walk.link_loops import check_outside, check_repetition

        sources, place = rank.sources[self.root], self.only_read
        check_repetition(
            sources, self.path, status, lambda path: rank.shown(place._replace(path=path), b"", on_source=True)
        )
        name = self.path.rpartition(b"/")[2]
        with failing("open", on_source=True):
            entry = os.stat(name, dir_fd=rank.open_source(parent), follow_symlinks=False)
        names = [root.name for root in rank.job.roots if not root.item]
        top = rank.targets[0].open(b"")
        check_outside(source, status, top, names, all_the_way=stat.S_ISLNK(entry.st_mode))

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
    """Stats ``names`` (joined by slashes) of a directory and passes the items to the visitor.

    ``attempt`` counts from 0, or is ``COPIED_BEFORE``. The names are part of a large directory, or are tried again.
    """

    attempt: int

    operation_count = 1
    least_items = 16  # since each portion spawns a task of its own for the files in it

    def tell(self, task: Task, gone: Gone) -> None:
        if task.phase == Phase.COPY:
            gone.scans()

    def gathered(self, task: Task, gone: Gone) -> Iterator[Task]:
        yield task._replace(phase=int(Phase.COPY)) if task.phase == Phase.LINK else task

    def run(self, rank: Rank, result: Result) -> Steps:
        """Stat the names and pass them to the visitor. Names with an ``attempt`` above 0 have been counted as found
        before.
        """
        place = self.place
        try:
            source = rank.open_source(place)
            # The target directory was not examined by a scan of this run: examine it before items are created in it.
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
        """Yield the directory, and each name, which may be that of a sub-directory."""
        yield from super().leftovers(first=first)
        for name in unpack_names(self.names):
            yield Left(self.place.root, os.path.join(self.place.path, name), True)

    def begun_now(self, since: tuple[int, int]) -> ScanNames:
        return self._replace(place=self.place._replace(since=since))

    def puts_into(self) -> set[Place]:
        return {self.place}


class _Begun(NamedTuple):
    """A directory that ``begin`` has opened: ``source`` is its descriptor, and ``place`` has a
    target if it is copied.
    """

    place: Place
    attributes: Attributes
    source: int
    listing: Listing
    action: int


def _look_into(rank: Rank, result: Result, begun: _Begun) -> Stepwise[int]:
    """Stat the names of the directory if they are few; otherwise spawn tasks for them. Return the number of names.

    Raise ``Problem`` if not all names can be read; those that could be read are processed in any case.
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
    """Arrange that the directory gets its metadata in a later phase, or count it immediately in a dry run.

    Directories that their owner cannot enter afterwards go to ``SealDir``, all others to ``finish_later``. If
    ``finish`` is not ``counted``, the directory has failed already.
    """
    assert finish.attributes is not None
    if rank.options.dry_run:
        from pcopy.tasks.directories.foreseen import foresee_finish

        if finish.counted:
            foresee_finish(result, finish.place, finish.action)
    elif may_be_entered(finish.attributes):
        finish_later(result, finish)
    else:  # finished last: nothing below it can be finished once its owner cannot enter it
        result.spawn(SealDir(finish), owner=0)


def may_be_entered(attributes: Attributes) -> bool:
    """Return True if this process can still enter a directory that has these ``attributes``."""
    return bool(attributes.mode & stat.S_IXUSR) or capable(CAP_DAC_OVERRIDE)


def _make_target(
    task: ScanDir, rank: Rank, result: Result, handle: Handle, source: os.stat_result, *, made: bool
) -> Place | None:
    """Create or open the target directory; return its ``Place``, or None if an existing item is kept. Raise
    ``Problem``.

    Args:
        handle: the source directory, for its file layout.
        source: status of the source directory.
        made: True if the target has just been created by the caller.
    """
    targets = rank.targets[task.root]
    path = rank.below_target(task.root, task.path)
    fresh = False
    if path:
        name = path.rpartition(b"/")[2]
        parent = rank.open_above(task.parent, task.root)
        parent_place = task.parent or Place(task.root, b"", task.source_id, NOWHERE, False, False)
        parent_place = parent_place._replace(since=task.since)
        fresh = made or _make_directory(rank, parent_place, parent, name, source)
        # Inherited ACLs may deny this process access to a new directory, too.
        if not fresh or not capable(CAP_DAC_OVERRIDE):
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
        if stat.S_IMODE(status.st_mode) & 0o777 != 0o700:  # an inherited ACL masks the mode that mkdir(2) was given
            with failing("chmod"):
                os.chmod(target, stat.S_IMODE(status.st_mode) & ~0o777 | 0o700)
        inherits = status.st_uid != os.geteuid()
    identity = targets.identity(path, made=fresh)
    place = Place(task.root, task.path, task.source_id, identity, fresh, inherits, task.since)
    if fresh and (reason := layout_at(rank, place).directory_made(handle, target)):
        result.other_layout(place, b"", inherited(reason))
    return place


def _make_directory(rank: Rank, parent_place: Place, parent: int, name: bytes, source: os.stat_result) -> bool:
    """Create the directory ``name`` in ``parent`` with mode 0700, replacing another item if that is allowed; raise
    ``Problem``.

    Return True if the directory counts as created by this job, False if an existing item is kept.

    Args:
        parent_place: the directory that contains it; ``parent`` is the descriptor of its target.
        source: status of the source directory.
    """
    for _ in range(2):
        try:
            patiently(lambda: os.mkdir(name, 0o700, dir_fd=parent), INTERRUPTED)
            return True
        except FileExistsError:
            pass
        except OSError as error:
            raise Problem.of("mkdir", error) from error
        present = look(parent, name)
        existing = None if present is None else Existing(rank, parent_place, parent, name, present)
        if present is not None and existing is not None and stat.S_ISDIR(present.st_mode):
            # A directory that a job has created has mode 0700 and no other users until it is finished.
            is_unfinished = present.st_uid == os.geteuid() and stat.S_IMODE(present.st_mode) & ~stat.S_ISGID == 0o700
            is_this_jobs = existing.is_own() and is_unfinished and not rank.keeps
            # An older birth time means that this job has only changed the directory's metadata.
            return is_this_jobs and is_since(rank.job, parent_place, birth_of(parent, name))
        if existing is not None:
            if not existing.may_replace(source):
                return False
            existing.unlink()
    raise Problem("mkdir", errno.EEXIST)


def note_device(rank: Rank, result: Result, place: Place) -> None:
    """Spawn a ``SyncFiles`` task if the target directory lies on a file system that would not be synced otherwise.

    Such file systems are mounted below the root's target. A failure is counted and reported.
    """
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
