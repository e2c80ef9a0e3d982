"""``ScanDir`` creates a target directory and lists its source; ``ScanNames`` examines some names of a directory. Both
pass the items that they find to a visitor, which decides what is done with them.

A new directory has mode 0700 until it gets its final metadata. An existing directory keeps its owner. If this process
owns an existing directory and lacks permissions in it, they are added until the directory gets its final metadata.
Directories of other users are not changed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator

from pcopy.engine.task import Task
from pcopy.engine.ticket import TicketGenerator
from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import (
    ItemHandle,
    ItemMetadata,
    can_inherit_acl,
    read_item_metadata,
    remove_inherited_directory_acls,
)
from pcopy.fsio.backend.columns import unpack_names
from pcopy.fsio.identity import ItemIdentity, birth_time
from pcopy.fsio.layout import inherited_layout_message
from pcopy.fsio.nodes import proc_path_of_descriptor
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, has_capability
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.retries import NOTHING_DONE_ERRNOS, call_with_retries
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.items import DIRECTORY
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import DifferingProperty, ItemAction, pack_action
from pcopy.tasks.base.dividing import ItemDurations
from pcopy.tasks.base.kind import DivisibleTask, LeftoverLocation, MissingDirectories, TaskKind, TaskSteps
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import CALL_COST, Rank, is_ctime_since_earlier_run
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.base.values import NO_DIRECTORY_IDENTITY, Place
from pcopy.tasks.directories.access import (
    grant_owner_access,
    grant_owner_access_to_open_directory,
    must_restore_mode,
)
from pcopy.tasks.directories.finish_dir import (
    FinishDir,
    FinishDirLastNote,
    report_failed_directory,
    spawn_finish_dir_task_once,
)
from pcopy.tasks.directories.sync_files import SyncFileSystems, TargetFileSystems
from pcopy.tasks.files.existing import (
    ExistingItem,
    item_status_or_none,
    owner_columns_if_needed,
    place_with_current_acl,
)
from pcopy.tasks.files.layouts import target_layout_policy
from pcopy.walk.listing import (
    NAMES_PER_BATCH,
    DirectoryListing,
    NameBatchQueue,
    list_directory,
    queue_names_of_directory,
)
from pcopy.walk.visitor import stat_and_visit_names

MAX_NAMES_IN_SCAN = 64
"""Number of names up to which the task that lists a directory also stats them. For more names it spawns tasks, which
other ranks may take, unless the names can be statted quickly.
"""

OPERATIONS_PER_DIRECTORY = 3
"""Number of metadata operations that ``--oplimit`` counts for the scan of one directory: open, list, and create in the
target.
"""

FinishTaskReceiver = Callable[[TaskResult, FinishDir], None]
"""Type of a function that receives the task by which a directory gets its final metadata, and sees to it that the task
is spawned, by itself or combined with others.
"""


class ScanDir(TaskKind, code=1, doing="scanning", is_note=False):
    """Task that creates the target of the directory ``path`` and finds the items in its source.

    Fields:
        root: index of the root in ``Job.roots``.
        path: path of the directory below its root.
        source_id: identity that the source directory must have. ``NO_DIRECTORY_IDENTITY`` accepts whatever directory
            exists when the task runs.
        parent: the directory that contains it; None for the directory of a root itself.
        since: the first run that may have created items in the target directory, and its start (``Place.first_run``).
    """

    root: int
    path: bytes
    source_id: ItemIdentity
    parent: Place | None
    since: tuple[int, int] = (0, 0)

    estimated_operations = 0  # ``scan_directory`` charges the operations itself

    def subject(self) -> tuple[Place, bytes]:
        return self.source_place, b""

    @property
    def source_place(self) -> Place:
        """The source directory as a ``Place`` without a target, to open it."""
        return Place(self.root, self.path, self.source_id, NO_DIRECTORY_IDENTITY, False, False)

    def contained_directory_places(self) -> Iterator[Place]:
        """Yield the directory itself. ``parent`` is not included, because the task only enters it."""
        yield self.source_place

    def register_for_resume(self, task: Task, missing: MissingDirectories) -> None:
        if task.phase == Phase.COPY:
            missing.record_expected_scan()

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        yield from self.scan_directory(
            rank, result, lambda result, finish: result.spawn_task(finish, phase=Phase.FINISH)
        )

    def scan_directory(
        self, rank: Rank, result: TaskResult, finish_later: FinishTaskReceiver, *, is_target_new: bool = False
    ) -> TaskSteps:
        """Scan the directory: create its target, pass its items to the visitor, and have it get its metadata later.

        Args:
            finish_later: function that gets the task by which this directory gets its final metadata.
            is_target_new: True if the caller has just created the target directory.
        """
        result.count(counts.UNSCANNED, -1)
        yield from rank.throttle.charge_limits_and_wait(operations=OPERATIONS_PER_DIRECTORY)
        task = self
        try:
            task = self.with_identity_after_mount(rank)
            if self.source_id == NO_DIRECTORY_IDENTITY and task.parent is not None:
                spawn_finish_dir_task_once(rank, result, task.parent, result.phase)
            begun = yield from task.open_source_and_create_target(rank, result, is_target_new=is_target_new)
        except Problem as problem:
            # ESTALE: the source is not the directory that was found, and nothing of it has been copied. The retry
            # therefore accepts any directory with this name.
            is_another = problem.on_source and problem.errno == errno.ESTALE and task.parent is not None
            retry = task._replace(source_id=NO_DIRECTORY_IDENTITY) if is_another else task
            result.count_item_as_failed(self.source_place, b"", problem, retry=retry)
            return
        if begun is None:
            result.count(counts.SKIPPED)
            result.item_recorder.record_item_outcome(ItemAction.SKIP, self.source_place, b"", DIRECTORY)
            return
        place, is_copied = begun.place, begun.place.target_id != NO_DIRECTORY_IDENTITY
        result.collect_directory_entry(place)
        if is_copied:
            ensure_device_synced(rank, result, place)
        complete, entries = True, begun.listing.name_count
        try:
            entries = yield from _stat_names_or_spawn_tasks(rank, result, begun)
        except Problem as problem:  # the remaining names cannot be read
            if is_copied:
                result.count(counts.directory_counter(place))
                report_failed_directory(result, place, problem)
            else:
                result.count_item_as_failed(place, b"", problem, retry=RetryMode.NEVER)
            complete = False
        if is_copied:
            entries = entries if rank.collects_signature_entries else -1
            finish = FinishDir(place, begun.attributes, complete, entries, action=begun.action)
            schedule_finish_dir_task(rank, result, finish, finish_later)
        elif complete:
            result.count(counts.SKIPPED if rank.job.copies else counts.DIRECTORIES)
            if rank.job.copies:
                result.item_recorder.record_item_outcome(ItemAction.SKIP, place, b"", DIRECTORY)

    def open_source_and_create_target(
        self, rank: Rank, result: TaskResult, *, is_target_new: bool, should_list: bool = True
    ) -> TicketGenerator[_OpenedDirectory | None]:
        """Open the source directory, begin to list it, and create the target directory, unless the source is only read.

        Return None if an item that is no directory has the name in the target and is kept, and the source need not be
        read. Raise ``Problem`` if the source cannot be opened or listed, or if the target cannot be created.

        Args:
            is_target_new: True if the caller has just created the target directory.
            should_list: False if the source shall not be listed.
        """
        source = rank.sources[self.root].open(self.path, self.source_id)
        status = status_of_open_item(source, on_source=True)
        reads = not rank.job.copies or (self.parent is not None and self.parent.target_id == NO_DIRECTORY_IDENTITY)
        if not (reads or self.is_excluded_mount_point(rank)) and rank.is_root_target(self.root, status):
            raise Problem("scan", 0, on_source=True, text="this is the target itself, reached through the source")
        if rank.copy_options.dereference and self.parent is not None:
            self._refuse_symlink_loop(rank, self.parent, source, status)
        handle: ItemHandle = source
        listing = DirectoryListing()
        if self.is_excluded_mount_point(rank) or not should_list:
            handle = proc_path_of_descriptor(
                source
            )  # a path, because the descriptor may be O_PATH if this process may only search the directory
        else:
            # Listed before the target is created: an unreadable directory leaves no empty copy.
            listing = yield from list_directory(rank.backend, source)
            if not listing.name_count:
                source = handle = self._reopen_source_if_removed(rank, source)
        attributes = read_item_metadata(handle, status, rank.options.preserve)
        target, action = None, 0
        if rank.options.dry_run and not reads:
            from pcopy.tasks.directories.forecast import foreseen_target

            target, action = foreseen_target(self, rank, status, attributes)
        elif not reads:
            target, action, attributes = _create_target(
                self, rank, result, handle, status, attributes, is_target_new=is_target_new
            )
        if target is None and not rank.collects_signature_entries and rank.job.copies:
            return None
        if not result.item_recorder.is_recording:
            action = 0
        return _OpenedDirectory(target or self.source_place, attributes, source, listing, action)

    def with_identity_after_mount(self, rank: Rank) -> ScanDir:
        """Return the task, with the identity that the source directory has now if a file system was mounted over it
        after it was found. Otherwise return the task unchanged: if another directory has its path, opening it will
        fail. Raise ``Problem`` on failure.

        File systems that were mounted there when the job began are recorded and were compared. A later one is accepted
        only if it is an automount: an automounter mounts it when a directory is opened, not on stat(2). Another user
        cannot inject a directory in this way, because that requires a mount. A directory that was only exchanged would
        be on the file system of its parent.

        If ``source_id`` is ``NO_DIRECTORY_IDENTITY``, as in the retry of a resumed job, whatever directory exists now
        is accepted.
        """
        if self.parent is None:
            return self
        sources = rank.sources[self.root]
        found = sources.identity_of_directory(self.path)
        if self.source_id == NO_DIRECTORY_IDENTITY:  # a retry in a resumed job copies whatever directory exists now
            above = sources.identity_of_directory(self.parent.path)
            return self._replace(source_id=found, parent=self.parent._replace(source_id=above))
        is_mounted = self.path in sources.expected_mounts or found.mount_code != self.parent.source_id.mount_code
        return self._replace(source_id=found) if is_mounted else self

    def is_excluded_mount_point(self, rank: Rank) -> bool:
        """Return True if another file system is mounted on this directory and ``--one-file-system`` is given: then only
        the directory itself is copied, without its contents.
        """
        parent = self.parent
        return (
            rank.options.one_file_system
            and parent is not None
            and self.source_id.mount_code != parent.source_id.mount_code
        )

    def _reopen_source_if_removed(self, rank: Rank, source: int) -> int:
        """Return a descriptor of the source directory, whose open descriptor ``source`` was listed as empty. Raise
        ``Problem`` if it no longer exists.

        A directory that is removed after it was opened seems to be empty. Its link count is 0 then, and the path is
        opened again.
        """
        if status_of_open_item(source, on_source=True).st_nlink:
            return source
        rank.sources[self.root].discard_directory(self.path)
        return rank.sources[self.root].open(self.path, self.source_id)

    def _refuse_symlink_loop(self, rank: Rank, parent: Place, source: int, status: os.stat_result) -> None:
        """Raise ``Problem`` if a symbolic link that leads to this directory would be followed without end
        (``pcopy.walk.link_loops``).

        Args:
            parent: the directory that contains this one.
            source, status: descriptor and status of the directory.
        """
        from pcopy.walk.link_loops import refuse_directory_inside_target, refuse_link_to_ancestor

        sources, place = rank.sources[self.root], self.source_place
        refuse_link_to_ancestor(
            sources,
            self.path,
            status,
            lambda path: rank.path_for_display(place._replace(path=path), b"", on_source=True),
        )
        name = self.path.rpartition(b"/")[2]
        with errors_as_problem("open", on_source=True):
            entry = os.stat(name, dir_fd=rank.open_source_directory(parent), follow_symlinks=False)
        names = [root.name for root in rank.job.roots if not root.item]
        top = rank.targets[0].open(b"")
        refuse_directory_inside_target(source, status, top, names, checks_all_parents=stat.S_ISLNK(entry.st_mode))

    def locations_of_leftover_files(self, *, after_first_run: bool) -> Iterator[LeftoverLocation]:
        yield LeftoverLocation(self.root, self.path, True)

    def with_first_run(self, since: tuple[int, int]) -> ScanDir:
        return self._replace(since=since)

    def spawn_retry(self, rank: Rank, result: TaskResult, phase: int) -> None:
        result.count(counts.UNSCANNED, 1, self.source_place)
        super().spawn_retry(rank, result, phase)

    def directories_written_by_retry(self) -> set[Place]:
        return {self.parent} if self.parent else set()


class ScanNames(DivisibleTask, code=2, doing="scanning", is_note=False):
    """Task that stats ``names`` (joined by slashes) in a source directory and passes the items to the visitor, which
    has them copied. The names are a part of a large directory, or they are tried again.

    ``attempt`` is the number of earlier attempts in this run, from 0, or ``REPAIR_ATTEMPT``.
    """

    attempt: int

    operations_per_item = 1
    min_items_per_portion = 16  # each portion spawns at least one task of its own for the files in it

    def register_for_resume(self, task: Task, missing: MissingDirectories) -> None:
        if task.phase == Phase.COPY:
            missing.record_expected_scan()

    def tasks_regathering_links(self, task: Task, missing: MissingDirectories) -> Iterator[Task]:
        yield task._replace(phase=int(Phase.COPY)) if task.phase == Phase.LINK else task

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Stat the names and pass the items to the visitor. Names with an ``attempt`` above 0 were counted as found
        before.
        """
        place = self.place
        try:
            source = rank.open_source_directory(place)
            # On a later attempt, and for a root that is a single file, no scan of this run has examined the target
            # directory: its default ACL must be known before items are created in it.
            if (self.attempt or rank.job.roots[place.root].item) and place.target_id != NO_DIRECTORY_IDENTITY:
                place = place_with_current_acl(rank, place)
        except Problem as problem:
            names = unpack_names(self.names)
            for name in names:
                result.count_item_as_failed(self.place, name, problem)
            if not self.attempt:
                result.count(counts.FOUND, len(names))
            return
        yield from _stat_and_visit_names(rank, result, place, source, self.names, self.attempt)

    def locations_of_leftover_files(self, *, after_first_run: bool) -> Iterator[LeftoverLocation]:
        """Yield the places in which temporary files may remain: the directory itself, and each name as a directory
        below it, because the types of the names are not known yet.
        """
        yield from super().locations_of_leftover_files(after_first_run=after_first_run)
        for name in unpack_names(self.names):
            yield LeftoverLocation(self.place.root, os.path.join(self.place.path, name), True)

    def with_first_run(self, since: tuple[int, int]) -> ScanNames:
        return self._replace(place=self.place._replace(first_run=since))

    def directories_written_by_retry(self) -> set[Place]:
        return {self.place}


class ScanSortedNames(ScanNames, code=159, doing="scanning", is_note=False):
    """Task that does the same as ``ScanNames`` with names that follow each other in the order of their bytes. It is not
    divided, so that each visitor gets the same names in each run.
    """

    min_items_per_portion = 1 << 30


class _OpenedDirectory(NamedTuple):
    """A directory that ``ScanDir.open_source_and_create_target`` has opened.

    Fields:
        place: the directory; it has a target if it is copied.
        attributes: metadata of the source.
        source: descriptor of the source.
        listing: the names in the source.
        action: packed action (``pack_action``) that is reported for the directory.
    """

    place: Place
    attributes: ItemMetadata
    source: int
    listing: DirectoryListing
    action: int


def _stat_and_visit_names(
    rank: Rank, result: TaskResult, place: Place, source: int, names: bytes, attempt: int
) -> TaskSteps:
    """Return a generator that stats the ``names`` (joined by slashes) in ``place``, whose source has the descriptor
    ``source``, and passes the items to the visitor.
    """
    visitor, follow = rank.visitor(rank, result, place, attempt), rank.copy_options.dereference
    columns = owner_columns_if_needed(rank)
    return stat_and_visit_names(rank.backend, source, names, visitor, follow=follow, extra_columns=columns)


def _stat_names_or_spawn_tasks(rank: Rank, result: TaskResult, begun: _OpenedDirectory) -> TicketGenerator[int]:
    """Stat the names of the opened directory ``begun`` and pass the items to the visitor, if they are few or quickly
    statted; otherwise spawn tasks for them. Return the number of names.

    Raise ``Problem`` if not all names can be read. Those that could be read are processed in any case.
    """
    place, listing = begun.place, begun.listing
    number, paces = listing.name_count, rank.shared_instance(ItemDurations)
    is_quick = paces.is_too_quick_to_divide(ScanNames.code, number) and not rank.throttle.is_on
    if not listing.may_have_more_batches and (number <= MAX_NAMES_IN_SCAN or is_quick):
        yield from rank.throttle.charge_limits_and_wait(operations=number)
        began = time.monotonic()
        yield from _stat_and_visit_names(rank, result, place, begun.source, listing.names, 0)
        if number:
            paces.record_duration(ScanNames.code, number, time.monotonic() - began)
        return number
    if not listing.may_have_more_batches:
        result.spawn_task(ScanNames(place, listing.names, 0), number * CALL_COST, expands=True)
        return number
    spool, kind = NameBatchQueue(rank.open_spool), ScanNames
    if rank.visitor(rank, result, place, 0).needs_sorted_names:
        from pcopy.walk.sorted_listing import SortedNameBatches

        spool, kind = SortedNameBatches(rank.open_spool), ScanSortedNames
    try:
        return (yield from queue_names_of_directory(listing, spool))
    finally:
        result.spawn_tasks_lazily(
            (kind(place, packed, 0) for packed in spool), NAMES_PER_BATCH * CALL_COST, expands=True
        )


def schedule_finish_dir_task(
    rank: Rank, result: TaskResult, finish: FinishDir, finish_later: FinishTaskReceiver
) -> None:
    """Have the directory of ``finish`` get its metadata in a later phase; in a dry run count it at once.

    A directory that its owner cannot enter afterwards, or whose mode is restored, gets its metadata last of all
    (``FinishDirLastNote``); any other is passed to ``finish_later``, which spawns the task. If
    ``finish.counts_as_copied`` is False, the directory has failed already and is not counted.
    """
    assert finish.attributes is not None
    if rank.options.dry_run:
        from pcopy.tasks.directories.forecast import count_dry_run_directory

        if finish.counts_as_copied:
            count_dry_run_directory(result, finish.place, finish.action)
    elif can_enter_with_mode(finish.attributes) and not must_restore_mode(rank, finish.place, finish.attributes):
        finish_later(result, finish)
    else:  # last of all: once its owner cannot enter it, no directory below it can get its metadata
        result.spawn_task(FinishDirLastNote(finish), owner=0)


def can_enter_with_mode(attributes: ItemMetadata) -> bool:
    """Return True if this process can still enter a directory of its own that has these ``attributes``."""
    return bool(attributes.mode & stat.S_IXUSR) or has_capability(CAP_DAC_OVERRIDE)


def _create_target(
    task: ScanDir,
    rank: Rank,
    result: TaskResult,
    handle: ItemHandle,
    source: os.stat_result,
    attributes: ItemMetadata,
    *,
    is_target_new: bool,
) -> tuple[Place | None, int, ItemMetadata]:
    """Create or open the target directory. Return the ``Place``, the packed action that is reported for it (COPY or
    REPLACE if the job has created it, else META or SKIP), and ``attributes``, with the mode of an existing directory if
    modes are not preserved. The ``Place`` is None if an item that is no directory has the name and is kept. Raise
    ``Problem`` on failure.

    Args:
        handle: the source directory, from which the default Lustre layout (striping) is read.
        source: status of the source directory.
        attributes: metadata of the source directory, which the target gets later.
        is_target_new: True if the caller has just created the target directory.
    """
    targets = rank.targets[task.root]
    path = rank.path_below_target(task.root, task.path)
    made, present = ItemAction.SKIP, None
    if path:
        name = path.rpartition(b"/")[2]
        parent = rank.open_target_parent(task.parent, task.root)
        parent_place = task.parent or Place(task.root, b"", task.source_id, NO_DIRECTORY_IDENTITY, False, False)
        parent_place = parent_place._replace(first_run=task.since)
        made = ItemAction.COPY
        if not is_target_new:
            made, present = _create_directory(rank, parent_place, parent, name, source)
        if present is not None and not stat.S_ISDIR(present.st_mode):
            return None, pack_action(ItemAction.SKIP, 0), attributes
        grant_owner_access(parent, name, present)  # inherited ACLs may deny access to a new directory, too
        targets.discard_directory(path)
    fresh = made is not ItemAction.SKIP
    target = targets.open(path)
    status = status_of_open_item(target)
    if not path and status.st_mode & 0o700 != 0o700:
        # A path, because the descriptor is an O_PATH one if this process may not read the directory.
        grant_owner_access_to_open_directory(proc_path_of_descriptor(target), status)
        targets.discard_directory(path)
        target = targets.open(path)
    inherits = can_inherit_acl(target, status.st_uid)
    if fresh and inherits:
        remove_inherited_directory_acls(target)
        if stat.S_IMODE(status.st_mode) & 0o777 != 0o700:  # an inherited ACL masks the mode that mkdir(2) was given
            with errors_as_problem("chmod"):
                os.chmod(target, stat.S_IMODE(status.st_mode) & ~0o777 | 0o700)
        inherits = status.st_uid != os.geteuid()
    identity = targets.identity_of_directory(path, created_by_job=fresh)
    place = Place(task.root, task.path, task.source_id, identity, fresh, inherits, task.since)
    differences = int(DifferingProperty.TYPE) if made is ItemAction.REPLACE else 0
    if not fresh:
        from pcopy.tasks.directories.forecast import existing_directory_action

        made, differences = existing_directory_action(rank, place, target, present or status, attributes)
        if not rank.options.preserve.mode:
            attributes = attributes._replace(mode=(present or status).st_mode)
        place = place._replace(is_unchanged=made is ItemAction.SKIP)
    if fresh and (reason := target_layout_policy(rank, place).set_default_layout_of_directory(handle, target)):
        result.warn_of_unwanted_layout(place, b"", inherited_layout_message(reason))
    return place, pack_action(made, differences), attributes


def _create_directory(
    rank: Rank, parent_place: Place, parent: int, name: bytes, source: os.stat_result
) -> tuple[ItemAction, os.stat_result | None]:
    """Create the directory ``name`` with mode 0700 in the open directory ``parent``. An existing item that is no
    directory is replaced if that is allowed. Raise ``Problem`` on failure.

    Return COPY if the directory was created by this job, now or in an earlier run; REPLACE if it has replaced another
    item; SKIP if an existing item is kept. The second value is the status of an existing directory, or of a kept item.

    Args:
        parent_place: the directory that contains it.
        source: status of the source directory.
    """
    made = ItemAction.COPY
    for _ in range(2):
        try:
            call_with_retries(lambda: os.mkdir(name, 0o700, dir_fd=parent), NOTHING_DONE_ERRNOS)
            return made, None
        except FileExistsError:
            pass
        except OSError as error:
            raise Problem.from_error("mkdir", error) from error
        present = item_status_or_none(parent, name)
        existing = None if present is None else ExistingItem(rank, parent_place, parent, name, present)
        if present is not None and existing is not None and stat.S_ISDIR(present.st_mode):
            # A directory that a job has created belongs to its user and has mode 0700 until it gets its metadata.
            is_unfinished = present.st_uid == os.geteuid() and stat.S_IMODE(present.st_mode) & ~stat.S_ISGID == 0o700
            is_this_jobs = existing.is_from_earlier_run() and is_unfinished and not rank.names_late
            # An older birth time means that this job has only changed the directory's metadata.
            is_new = is_this_jobs and is_ctime_since_earlier_run(rank.job, parent_place, birth_time(parent, name))
            return (ItemAction.COPY if is_new else ItemAction.SKIP), present
        if existing is not None:
            if not existing.may_be_replaced(source):
                return ItemAction.SKIP, present
            existing.remove()
            made = ItemAction.REPLACE
    raise Problem("mkdir", errno.EEXIST)


def ensure_device_synced(rank: Rank, result: TaskResult, place: Place) -> None:
    """Have the file system of the target directory of ``place`` synced at the end of the job: spawn a
    ``SyncFileSystems`` task if no other task does so, because the file system is mounted below the target of the root.

    If the file system cannot be opened for that, this is counted and reported.
    """
    if not rank.options.sync:
        return
    met = rank.shared_instance(TargetFileSystems)
    try:
        if not met.will_sync_file_system(place):
            met.open_target_file_system(place)
            result.spawn_task(SyncFileSystems(place), phase=Phase.SYNC, owner=rank.number)
    except Problem as problem:
        result.count(counts.UNSYNCED)
        result.report_failure(rank.path_for_display(place, b"", on_source=False), problem)
