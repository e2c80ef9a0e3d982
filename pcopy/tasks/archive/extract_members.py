"""Extraction: ``SpawnExtractTasks`` divides the members that a rank owns into tasks; each ``ExtractMembers``
extracts some members of one directory, each ``ExtractDirectories`` the members of several small ones.

A directory is created when something is to be extracted into it, with the mode 0700. It gets its metadata at the end
(``finish_members``), or at once if it is complete and small (``small_directories``). A directory that no member
describes gets the default mode of a new directory.

Every path is resolved from the descriptor of the target, one component at a time, and without following symbolic links.
So no member can be written outside the target, whatever is in the target, or is created there meanwhile.

A *simple* member is a regular file whose headers state only name, mode, owner, mtime and size.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from operator import itemgetter

from pcopy.archive.member import HARD_LINK_MEMBER
from pcopy.fsio.attributes import ItemHandle, can_inherit_acl, has_default_acl, remove_inherited_directory_acls
from pcopy.fsio.backend.columns import pack_names, unpack_names
from pcopy.fsio.nodes import call_with_descriptor_or_path
from pcopy.fsio.problem import Problem, errors_as_problem
from pcopy.fsio.source import status_of_open_item
from pcopy.signature.items import type_byte
from pcopy.tasks.archive.extract_parts import should_extract_in_parts, spawn_extract_parts
from pcopy.tasks.archive.extracting import MemberExtractor
from pcopy.tasks.archive.finish_members import spawn_directory_finish_tasks
from pcopy.tasks.archive.forecast import preview_extracted_members
from pcopy.tasks.archive.found_members import MAX_MEMBERS_PER_TASK, FoundMembers
from pcopy.tasks.archive.link_members import CreateExtractedHardLinks
from pcopy.tasks.archive.make_members import make_simple_members
from pcopy.tasks.archive.members_to_extract import (
    NO_SIMPLE_MEMBERS,
    SIMPLE_MEMBER_WORDS,
    MemberToExtract,
    SimpleMemberColumns,
    directory_place_in_target,
    is_packed_directory,
    is_packed_simple_member,
)
from pcopy.tasks.archive.names import ConflictingNames, DirectoryMembers
from pcopy.tasks.archive.open_archive import OpenedArchive
from pcopy.tasks.archive.phases import MAKE_LINKS, UNPACK, UNPACK_AGAIN
from pcopy.tasks.archive.replaced_items import ExistingDirectories
from pcopy.tasks.archive.small_directories import can_unpack_directories, unpack_directories
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import ItemAction, unpack_action
from pcopy.tasks.base.kind import TaskKind, TaskSteps
from pcopy.tasks.base.rank import CALL_COST, Rank
from pcopy.tasks.base.result import RetryMode, TaskResult
from pcopy.tasks.files.existing import item_status_or_none
from pcopy.text import printable_path

_NAME_TAKEN_ERRNOS = (errno.ENOTDIR, errno.ELOOP)
"""Errors of opening a directory that mean that another item has its name."""
_SLICE_SECONDS = 0.02
"""Seconds after which a task leaves its remaining members to another task."""
EXTRACT_BATCH_BYTES = 4 << 20
"""Number of bytes of contents at which a task that extracts members is full: further members go to another task."""
_NO_ROWS = range(0)


class SpawnExtractTasks(TaskKind, code=145, doing="sorting members", is_note=False):
    """Task of each rank: spawn the tasks that extract the members of the directories that this rank owns."""

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> None:
        existing, members = rank.shared_instance(ExistingDirectories), rank.shared_instance(FoundMembers)
        for found in members.last_members_by_directory() if existing else ():
            for task in _extraction_tasks(found) if found.path in existing else ():
                result.spawn_task(task, EXTRACT_BATCH_BYTES // 4, owner=rank.number)
        tasks = (
            task
            for found in members.last_members_by_directory()
            if found.path not in existing
            for task in _extraction_tasks(found)
        )
        shares_tasks = rank.backend.runs_in_poll and not rank.throttle.is_on
        result.spawn_tasks_lazily(
            _tasks_for_several_directories(tasks) if shares_tasks else tasks, EXTRACT_BATCH_BYTES // 4, expands=False
        )


def _tasks_for_several_directories(tasks: Iterable[ExtractMembers]) -> Iterator[TaskKind]:
    """Generator: combine ``tasks`` for small directories, so that each of the yielded tasks has up to
    ``MAX_MEMBERS_PER_TASK`` members, and about ``EXTRACT_BATCH_BYTES``.
    """
    group, members, size = list[ExtractMembers](), 0, 0
    for task in tasks:
        of_task, bytes_of_task = task.member_count, len(task.values) + task.simple_bytes
        if group and (members + of_task > MAX_MEMBERS_PER_TASK or size + bytes_of_task > EXTRACT_BATCH_BYTES):
            yield _combined_task(group)
            group, members, size = [], 0, 0
        group.append(task)
        members, size = members + of_task, size + bytes_of_task
    if group:
        yield _combined_task(group)


def _combined_task(tasks: list[ExtractMembers]) -> TaskKind:
    return ExtractDirectories(tuple(tasks)) if len(tasks) > 1 else tasks[0]


def _extraction_tasks(found: DirectoryMembers) -> Iterator[ExtractMembers]:
    """Generator: yield the tasks that extract the members in ``found``: those of one directory, or some of them.

    A task gets some of the simple members (regular files without special metadata), which are created in batches, and
    some of the others.
    """
    names, values, others = found.names, found.values, found.superseded
    if len(values) == 1 and is_packed_directory(values[0]):
        yield ExtractMembers(marshal.dumps(values), others, found.path, b"", b"", found.is_leaf)
        return
    rest = list[bytes]()
    if any(map(itemgetter(0), values)):
        rest = [value for value in values if not is_packed_simple_member(value)]
        names = [name for name, value in zip(names, values, strict=True) if is_packed_simple_member(value)]
        values = list(filter(is_packed_simple_member, values))
    simple = SimpleMemberColumns(names, b"".join(values)).members_in_archive_order()
    cuts = (
        _ranges_of_batch_size(simple.sizes),
        _ranges_of_batch_size([MemberToExtract.unpack(value).member.size for value in rest]),
    )
    for part, of_rest in zip_longest(*cuts, fillvalue=_NO_ROWS):
        some = simple.selected_members(part) if len(part) < len(simple) else simple
        packed = marshal.dumps([rest[at] for at in of_rest])
        is_leaf = found.is_leaf and len(some) == len(simple) and len(of_rest) == len(rest)
        yield ExtractMembers(packed, others, found.path, pack_names(some.names), some.packed, is_leaf)
        others = 0


def _ranges_of_batch_size(sizes: Sequence[int]) -> Iterator[range]:
    """Yield ranges of indices into ``sizes`` (bytes); each range comprises about ``EXTRACT_BATCH_BYTES``."""
    start = size = 0
    if sum(sizes) >= EXTRACT_BATCH_BYTES:
        for at, each in enumerate(sizes):
            if at > start and size + each >= EXTRACT_BATCH_BYTES:
                yield range(start, at)
                start, size = at, 0
            size += each
    if sizes:
        yield range(start, len(sizes))


class ExtractMembers(TaskKind, code=146, doing="unpacking", is_note=False):
    """Task that extracts some members of the directory ``path``.

    Fields:
      values: the members that are not simple, packed.
      superseded: how many earlier members had the same names; these are counted as skipped.
      path: the path of the directory below the target.
      names: the names of the simple members (regular files whose headers state only name, mode, owner, mtime and size),
          packed.
      simple_members: the simple members, packed.
      is_leaf: True if nothing else than these members is created in the directory.

    If a job stops, its tasks are dropped where they have yielded, and the counts of a dropped task are lost. So a task
    that has created something does not yield any more: it leaves the remaining members to a new task.
    """

    values: bytes
    superseded: int
    path: bytes
    names: bytes
    simple_members: bytes
    is_leaf: bool = False

    def subject(self) -> None:
        return None

    @property
    def member_count(self) -> int:
        """Number of members to be extracted."""
        return len(marshal.loads(self.values)) + len(self.simple_members) // (8 * SIMPLE_MEMBER_WORDS)

    @property
    def simple_bytes(self) -> int:
        """Number of bytes of the contents of the simple members."""
        return sum(self.simple_columns().sizes) if self.simple_members else 0

    def other_members(self) -> list[MemberToExtract]:
        """Return the members that are not simple."""
        return [MemberToExtract.unpack(value, self.path) for value in marshal.loads(self.values)]

    def simple_columns(self) -> SimpleMemberColumns:
        """Return the simple members as columns."""
        return SimpleMemberColumns(unpack_names(self.names, len(self.simple_members)), self.simple_members)

    def task_for_files(self, simple: SimpleMemberColumns) -> ExtractMembers:
        """Return a task that extracts the members ``simple`` of this task, and no others."""
        return _remaining_task(self.path, [], simple)

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        directories = list[MemberToExtract]()
        yield from self.extract(rank, result, directories, has_begun=False)
        spawn_directory_finish_tasks(rank, result, directories)

    def extract(
        self, rank: Rank, result: TaskResult, directories: list[MemberToExtract], *, has_begun: bool
    ) -> TaskSteps:
        """Extract the members. Add the directory to ``directories``, which get their metadata at the end, if a member
        describes it. ``has_begun`` is True if the task has created something before, so that it must not yield.
        """
        path, members, simple = self.path, self.other_members(), self.simple_columns()
        result.count(counts.SKIPPED, self.superseded)
        rivals = rank.shared_instance(ConflictingNames)
        if rivals and rivals.may_affect(path, simple.names, members):
            every = [*members, *simple.members(path)]
            members, simple = list(_members_without_conflicts(rivals, every, result)), NO_SIMPLE_MEMBERS
            has_begun |= len(members) < len(every)
        if rank.options.dry_run:
            preview_extracted_members(rank, result, [*members, *simple.members(path)])
            return
        if not members and not simple:
            return
        has_directory = bool(members) and not members[0].name
        try:
            directory = open_or_create_directory(rank, result, path, replaces=has_directory)
            if has_directory:
                result.count(counts.DIRECTORIES)
                _report_directory(rank, result, path, type_byte(members[0].member.st_mode))
                directories.append(members.pop(0))
                if not members and not simple:
                    return
            status = status_of_open_item(directory)
            inherits = bool(path) and can_inherit_acl(directory, status.st_uid)
            rank.detect_times_set_on_close(directory, status.st_dev, result.notices)
        except Problem as problem:
            _handle_directory_open_failure(rank, result, _remaining_task(path, members, simple), problem)
            return
        remaining = yield from make_simple_members(rank, result, directory, path, simple, inherits=inherits)
        if remaining.not_started:
            result.spawn_task(
                _remaining_task(path, [], simple.selected_members(remaining.not_started)),
                len(remaining.not_started) * CALL_COST,
            )
        members += simple.selected_members(remaining.slow_path).members(path)
        has_begun |= bool(remaining.has_tried or has_directory or self.superseded)
        yield from _extract_one_by_one(rank, result, directory, path, members, inherits=inherits, has_begun=has_begun)


class ExtractDirectories(TaskKind, code=190, doing="unpacking", is_note=False):
    """Task that does the work of several other ``tasks``, which extract the members of small directories. So these
    share the fixed costs of a task.
    """

    tasks: tuple[ExtractMembers, ...]

    def subject(self) -> None:
        return None

    def run(self, rank: Rank, result: TaskResult) -> TaskSteps:
        """Let the backend create what it can, and run the tasks for the rest one after the other. After
        ``_SLICE_SECONDS``, or if the job is being stopped, leave the remaining ones to a new task.
        """
        directories, until = list[MemberToExtract](), time.monotonic() + _SLICE_SECONDS
        tasks, has_begun = list(self.tasks), False
        if can_unpack_directories(rank, result):
            tasks, has_begun, unprepared = yield from unpack_directories(rank, result, tasks, directories, until)
            for path in unprepared:
                _prepare_directory_of_backend(rank, result, path)
        for number, each in enumerate(tasks):
            if number and (time.monotonic() > until or rank.stop_reason is not None):
                rest = tasks[number:]
                result.spawn_task(_combined_task(rest), sum(each.member_count for each in rest) * CALL_COST)
                break
            yield from each.extract(rank, result, directories, has_begun=has_begun or number > 0)
        spawn_directory_finish_tasks(rank, result, directories)


def _report_directory(rank: Rank, result: TaskResult, path: bytes, kind: bytes) -> None:
    """Report that the directory ``path`` below the target, of the type ``kind``, was created or existed before."""
    action, differences = unpack_action(rank.shared_instance(ExistingDirectories).get(path, ItemAction.COPY))
    result.item_recorder.note_differences(directory_place_in_target(path), b"", differences)
    result.item_recorder.record_item_outcome(action, directory_place_in_target(path), b"", kind)


def _extract_one_by_one(
    rank: Rank,
    result: TaskResult,
    directory: int,
    path: bytes,
    members: list[MemberToExtract],
    *,
    inherits: bool,
    has_begun: bool,
) -> TaskSteps:
    """Extract ``members`` of the open ``directory`` one by one.

    Args:
        path: the path of the directory below the target.
        inherits: True if new items may inherit an ACL from the directory.
        has_begun: True if the task has created something before, so that it must not yield.
    """
    extracting = MemberExtractor(rank, result, directory, path, inherits=inherits)
    until, links = time.monotonic() + _SLICE_SECONDS, [each for each in members if each.member.kind == HARD_LINK_MEMBER]
    rest = [each for each in members if each.member.kind != HARD_LINK_MEMBER]
    rest.sort(key=lambda each: -each.data)  # members are taken from the end: so the archive is read in order
    while rest:
        each = rest[-1]
        if has_begun and (time.monotonic() > until or not extracting.is_extracted_in_one_step(each.member)):
            size = sum(each.member.size for each in rest)
            result.spawn_task(_remaining_task(path, rest, NO_SIMPLE_MEMBERS), size + len(rest) * CALL_COST)
            break
        rest.pop()
        has_begun = True
        try:
            if should_extract_in_parts(rank, directory, each.member):
                spawn_extract_parts(rank, result, directory, each)
            else:
                yield from extracting.extract_member(each)
        except Problem as problem:
            result.count_item_as_failed(
                directory_place_in_target(path), each.name, problem, each.member.size, retry=RetryMode.NEVER
            )
    if links:
        packed = marshal.dumps([each.pack_as_bytes() for each in links])
        result.spawn_task(CreateExtractedHardLinks(packed), len(links) * CALL_COST, phase=MAKE_LINKS)


def _remaining_task(path: bytes, members: Sequence[MemberToExtract], simple: SimpleMemberColumns) -> ExtractMembers:
    """Return a task that extracts the members of directory ``path`` that remain: ``members``, and ``simple`` ones."""
    values = marshal.dumps([each.pack_as_bytes() for each in members])
    return ExtractMembers(values, 0, path, pack_names(simple.names), simple.packed)


def _handle_directory_open_failure(rank: Rank, result: TaskResult, task: ExtractMembers, problem: Problem) -> None:
    """Handle the error ``problem``: the directory of ``task`` could not be opened or created.

    If another item has the name of the directory, the task is spawned again for a later phase (UNPACK_AGAIN): the
    directory can exist by then, if a member describes it. Otherwise all members of the task are reported as failed.
    """
    members, simple = task.other_members(), task.simple_columns()
    if problem.errno in _NAME_TAKEN_ERRNOS and result.phase == UNPACK:
        result.count(counts.FOR_LINK)
        result.spawn_task(task, (len(members) + len(simple)) * CALL_COST, phase=UNPACK_AGAIN)
        return
    of_members = _problem_of_missing_directory(problem, task.path)
    if of_members is not problem and not (
        members and not members[0].name
    ):  # the task does not contain the directory itself, so nobody else counts this failure
        parent, _, name = task.path.rpartition(b"/")
        rank.find_item_failure_reason(problem, directory_place_in_target(parent), name)
    for each in [*members, *simple.members(task.path)]:
        why = of_members if each.name else problem
        result.count_item_as_failed(
            directory_place_in_target(each.path), each.name, why, each.member.size, retry=RetryMode.NEVER
        )


def _problem_of_missing_directory(problem: Problem, path: bytes) -> Problem:
    """Return the error to report for each member of the directory ``path``, which could not be created because of
    ``problem``.

    The operation in it is not mkdir: a job stops after some failed operations that need space on a full file system,
    and one failed mkdir must not count once for each member.
    """
    if problem.operation != "mkdir":
        return problem
    text = f"the directory {printable_path(path)} could not be created"
    return Problem("open", problem.errno or errno.EIO, text=text)


def _members_without_conflicts(
    conflicting_names: ConflictingNames, members: Iterable[MemberToExtract], result: TaskResult
) -> Iterator[MemberToExtract]:
    """Generator: yield those of ``members`` that are to be extracted. The others cannot be, because a name belongs to a
    file and to a directory (``conflicting_names`` are the paths concerned); they are counted as skipped or failed.
    """
    for each in members:
        try:
            if conflicting_names.is_superseded(each):
                result.count(counts.SKIPPED)
            else:
                yield each
        except Problem as problem:
            result.count_item_as_failed(
                directory_place_in_target(each.path), each.name, problem, each.member.size, retry=RetryMode.NEVER
            )


def open_or_create_directory(rank: Rank, result: TaskResult, path: bytes, *, replaces: bool = False) -> int:
    """Return a descriptor of the directory ``path`` below the target. Create it, and missing directories above it.

    Raise ``Problem`` if that fails.

    Args:
        replaces: True if a member describes the directory. An item of its name that is no directory is removed then, as
            tar does.
    """
    directory = _open_existing_directory(rank, path)
    if directory >= 0:
        return directory
    at, parent = b"", rank.targets[0].open(b"")
    for name in path.split(b"/"):
        at = at + b"/" + name if at else name
        directory = _open_existing_directory(rank, at) if at != path else -1
        if directory >= 0:
            parent = directory
            continue
        try:
            parent = _create_directory(rank, result, parent, at, replaces=replaces and at == path)
        except Problem as problem:
            raise problem if at == path else _problem_of_missing_directory(problem, at) from None
    return parent


def _open_existing_directory(rank: Rank, path: bytes) -> int:
    """Return a descriptor of the directory ``path`` below the target; -1 if it does not exist or is no directory. Raise
    ``Problem`` if it cannot be opened for another reason.
    """
    try:
        return rank.targets[0].open(path)
    except Problem as problem:
        if not path or problem.errno not in (errno.ENOENT, *_NAME_TAKEN_ERRNOS):
            raise
        return -1


def _set_directory_mode(directory: ItemHandle, mode: int) -> None:
    """Set the permission bits of a directory. Raise ``Problem`` if that fails."""
    with errors_as_problem("chmod"):
        os.chmod(directory, mode)


def _create_directory(rank: Rank, result: TaskResult, parent: int, path: bytes, *, replaces: bool) -> int:
    """Create the directory ``path`` in the open directory ``parent``, and return its descriptor.

    It is no error if another rank has created the directory meanwhile. Raise ``Problem`` if it cannot be created.

    Args:
        replaces: True if a member describes the directory. An item of its name that is no directory is removed then,
            and the directory gets its mode later.
    """
    name = path.rpartition(b"/")[2]
    made = _make_private_directory(parent, name)
    if not made:
        present = item_status_or_none(parent, name)
        if present is not None and not stat.S_ISDIR(present.st_mode):
            if not replaces:
                existing_item = "a symbolic link" if stat.S_ISLNK(present.st_mode) else "a file"
                raise Problem(
                    "open", errno.ENOTDIR, text=f"{existing_item} has the name of the directory {printable_path(path)}"
                )
            rank.shared_instance(OpenedArchive).refuse_replacing_archive(present)
            with errors_as_problem("unlink"), suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
            made = _make_private_directory(parent, name)
    directory = rank.targets[0].open(path)
    if made and has_default_acl(directory):
        remove_inherited_directory_acls(directory)
    if made and not replaces:
        try:
            _give_mode_of_new_directory(rank, directory)
        except Problem as problem:  # members can be extracted into the directory all the same
            _warn_of_missing_mode(result, path, problem)
    return directory


def _prepare_directory_of_backend(rank: Rank, result: TaskResult, path: bytes) -> None:
    """Prepare the directory ``path``, which the backend has created and could not use."""
    try:
        directory = rank.targets[0].open(path)
        if has_default_acl(directory):
            remove_inherited_directory_acls(directory)
        _give_mode_of_new_directory(rank, directory)
    except Problem as problem:
        _warn_of_missing_mode(result, path, problem)


def _give_mode_of_new_directory(rank: Rank, directory: int) -> None:
    """Give an open directory the mode of a new one. Raise ``Problem`` if that fails."""
    mode = status_of_open_item(directory).st_mode & stat.S_ISGID | 0o777 & ~rank.options.umask
    call_with_descriptor_or_path(directory, lambda handle: _set_directory_mode(handle, mode))


def _warn_of_missing_mode(result: TaskResult, path: bytes, problem: Problem) -> None:
    text = f"the mode of a new directory could not be set: {problem.strerror}"
    result.warn_about_item(directory_place_in_target(path), b"", text)


def _make_private_directory(parent: int, name: bytes) -> bool:
    """Create a directory that only this user may enter: it gets its mode when everything in it was extracted. Return
    False if an item has its name. Raise ``Problem`` on failure.
    """
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        return False
    except OSError as error:
        raise Problem.from_error("mkdir", error) from error
    return True
