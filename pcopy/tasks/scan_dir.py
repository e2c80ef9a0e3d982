"""ScanDir: makes the target directory, finds what the source holds, and spawns what copies it.

A new directory belongs to us alone (0700) until it is finished. One that exists keeps its owner and is not opened up;
if we are its owner and lack permissions in it, we give them to ourselves until it is finished.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator
from itertools import chain, islice

from pcopy.engine.driver import Slices
from pcopy.fsio.attributes import Handle, drop_inherited_acls, may_inherit_acl, read_attributes
from pcopy.fsio.birth import birth_of
from pcopy.fsio.directories import list_names
from pcopy.fsio.nodes import handle_of
from pcopy.fsio.patience import PASSING, PAUSES, naps
from pcopy.fsio.preserve import CAP_DAC_OVERRIDE, capable
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.tasks import counts
from pcopy.tasks.context import CALL_COST, Context, is_since
from pcopy.tasks.entering import let_us_in, open_up
from pcopy.tasks.fail_dir import directory_failed
from pcopy.tasks.finish_again import finish_again
from pcopy.tasks.followed import check_followed
from pcopy.tasks.names_spool import NamesSpool
from pcopy.tasks.phases import Phase
from pcopy.tasks.result import Result, Tried
from pcopy.tasks.scan_names import Sorter
from pcopy.tasks.targets import is_own, look, may_replace
from pcopy.tasks.values import NOWHERE, FinishDir, Place, ScanDir, ScanNames, SealDir, SyncFiles, pack_names

NAMES_AT_ONCE = 2048
"""A directory with more names than that is statted in batches of as many, by all ranks."""


def scan_dir(task: ScanDir, context: Context, result: Result) -> Slices:
    """One directory; what it holds becomes tasks."""
    result.count(counts.UNSCANNED, -1)
    place = Place(task.root, task.path, task.source_id, NOWHERE, False, False)
    try:
        is_anew = task.source_id == NOWHERE
        task = _as_mounted(task, context)
        if is_anew and task.parent is not None:
            finish_again(context, result, task.parent, result.phase)
        source = context.sources[task.root].open(task.path, task.source_id)
        status = status_of(source, on_source=True)
        reads = not context.job.copies or (task.parent is not None and task.parent.target_id == NOWHERE)
        if not reads and context.is_target(task.root, status):
            raise Problem("scan", 0, on_source=True, text="this is the target itself, reached through the source")
        if context.options.dereference:
            check_followed(context, task, source, status)
        handle: Handle = source
        listing: Iterator[bytes] = iter(())
        first: list[bytes] = []
        if _is_left_out(task, context):
            handle = handle_of(source)  # it may be open for searching only
        else:
            listing, first = yield from _begin_list(source)  # an unreadable one fails before its copy is made
            if not first:
                source = handle = _still_there(task, context, source)
        attributes = read_attributes(handle, status, context.options.preserve)
        made = None if reads else _make_target(task, context, status)
        if made is None and not context.signs:
            result.count(counts.SKIPPED)
            return result.outcome()
        place = made or place._replace(source_id=task.source_id)  # nothing of it is copied, but it is read
    except Problem as problem:
        result.fail(place, b"", problem, retry=_whatever_is_there(task, problem))
        return result.outcome()
    result.found_directory(place)
    if made is not None:
        _note_device(context, result, place)
    complete, entries = True, len(first)
    try:
        if len(first) <= NAMES_AT_ONCE:
            sorter = Sorter(context, result, place)
            for _ in sorter.sort(source, first):
                yield
            sorter.finish()
        else:
            entries = yield from _spread(context, result, place, chain(first, listing))
    except Problem as problem:  # the rest of its names can't be read
        if made is None:
            result.fail(place, b"", problem, retry=Tried.NEVER)
        else:
            result.count(counts.DIRECTORIES)
            directory_failed(context, result, place, problem)
        complete = False
    if made is None:
        _count_read(context, result, complete)
    else:
        finish = FinishDir(place, attributes, complete, entries if context.signs else -1)
        _spawn_finish(result, finish, seals=not attributes.mode & stat.S_IXUSR)
    return result.outcome()


def _count_read(context: Context, result: Result, complete: bool) -> None:
    """A directory that was read and not copied, unless it has failed."""
    if complete:
        result.count(counts.SKIPPED if context.job.copies else counts.DIRECTORIES)


def _as_mounted(task: ScanDir, context: Context) -> ScanDir:
    """The task with the identity of what is mounted there, if that was mounted after the directory was found.

    What was mounted there when the job began is known, and has been compared. Else it is new:
    An automounter mounts when a directory is entered, not when its status is asked for. Nobody else's directory comes
    in that way: it needs a mount, where a swapped directory would be on the file system around it.
    """
    if task.parent is None:
        return task
    if task.source_id == NOWHERE:  # what a resumed job makes anew is whatever there is now
        above = context.sources[task.root].identity(task.parent.path)
        found = context.sources[task.root].identity(task.path)
        return task._replace(source_id=found, parent=task.parent._replace(source_id=above))
    sources = context.sources[task.root]
    found = sources.identity(task.path)
    is_mounted = task.path in sources.mounted or found[0] != task.parent.source_id[0]
    return task._replace(source_id=found) if is_mounted else task


def _whatever_is_there(task: ScanDir, problem: Problem) -> ScanDir:
    """What a resumed job does: of a source that is another one than was found nothing has been copied."""
    is_another = problem.on_source and problem.errno == errno.ESTALE and task.parent is not None
    return task._replace(source_id=NOWHERE) if is_another else task


def _is_left_out(task: ScanDir, context: Context) -> bool:
    """Does another file system begin here, of which ``--one-file-system`` wants no more than the mount point?"""
    if not context.options.one_file_system or task.parent is None:
        return False
    return task.source_id[0] != task.parent.source_id[0]


def _still_there(task: ScanDir, context: Context, source: int) -> int:
    """A directory that was removed once it was open looks like an empty one: its descriptor again, or ``Problem``."""
    if status_of(source, on_source=True).st_nlink:
        return source
    context.sources[task.root].forget(task.path)
    return context.sources[task.root].open(task.path, task.source_id)


def _begin_list(source: int) -> Generator[None, None, tuple[Iterator[bytes], list[bytes]]]:
    """The directory's names, and the first of them, patiently; raises ``Problem``."""
    for pause in PAUSES:
        listing = list_names(source)
        try:
            return listing, list(islice(listing, NAMES_AT_ONCE + 1))
        except Problem as problem:
            if problem.errno not in PASSING:
                raise
        yield from naps(pause)
        _rewind(source)
    listing = list_names(source)
    return listing, list(islice(listing, NAMES_AT_ONCE + 1))


def _rewind(source: int) -> None:
    try:
        os.lseek(source, 0, os.SEEK_SET)
    except OSError as error:
        raise Problem.of("lseek", error, on_source=True) from error


def _spread(context: Context, result: Result, place: Place, names: Iterator[bytes]) -> Generator[None, None, int]:
    """A large directory: its names travel in batches, which wait in a spool if they are very many.

    Returns their number. What was read before a ``Problem`` is spawned all the same.
    """
    spool = NamesSpool(context.open_spool)
    batch: list[bytes] = []
    number = 0
    try:
        for name in names:
            number += 1
            batch.append(name)
            if len(batch) == NAMES_AT_ONCE:
                spool.append(pack_names(batch))
                batch.clear()
                yield
    finally:
        if batch:
            spool.append(pack_names(batch))
        result.spawn_each((ScanNames(place, packed, 0) for packed in spool), NAMES_AT_ONCE * CALL_COST, expands=True)
    return number


def _make_target(task: ScanDir, context: Context, source: os.stat_result) -> Place | None:
    """The target directory, made unless it exists; None if what exists is to stay. Raises ``Problem``."""
    targets = context.targets[task.root]
    path = context.below_target(task.root, task.path)
    fresh = False
    if path:
        name = path.rpartition(b"/")[2]
        parent = context.open_above(task.parent, task.root)
        around = task.parent or Place(task.root, b"", task.source_id, NOWHERE, False, False)
        around = around._replace(since=task.since)
        fresh = _make_directory(context, around, parent, name, source)
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
        _take_all_rights(target, status)
        inherits = status.st_uid != os.geteuid()
    identity = targets.identity(path, made=fresh)
    return Place(task.root, task.path, task.source_id, identity, fresh, inherits, task.since)


def _take_all_rights(target: int, made: os.stat_result) -> None:
    """What was inherited may have left us less than was asked for; raises ``Problem``."""
    if stat.S_IMODE(made.st_mode) & 0o777 != 0o700:
        try:
            os.chmod(target, stat.S_IMODE(made.st_mode) & ~0o777 | 0o700)
        except OSError as error:
            raise Problem.of("chmod", error) from error


def _make_directory(context: Context, around: Place, parent: int, name: bytes, source: os.stat_result) -> bool:
    """Makes ``name`` in ``parent``; False if something is there that stays. Raises ``Problem``."""
    for _ in range(2):
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
            return True
        except FileExistsError:
            pass
        except OSError as error:
            raise Problem.of("mkdir", error) from error
        present = look(parent, name)
        if present is not None and stat.S_ISDIR(present.st_mode):
            own = is_own(context, around, parent, name, present) and _is_unfinished(present) and not context.keeps
            return own and is_since(context.job, around, birth_of(parent, name))  # else we have only touched it
        if present is not None:
            if not may_replace(context, around, source, parent, name, present):
                return False
            try:
                os.unlink(name, dir_fd=parent)
            except OSError as error:
                raise Problem.of("unlink", error) from error
    raise Problem("mkdir", errno.EEXIST)


def _is_unfinished(present: os.stat_result) -> bool:
    """Until it is finished a directory that a job has made is nobody else's."""
    return present.st_uid == os.geteuid() and stat.S_IMODE(present.st_mode) & ~stat.S_ISGID == 0o700


def _note_device(context: Context, result: Result, place: Place) -> None:
    """A file system below the target that is not the root's wants its own sync at the end."""
    device = context.target_device(place)
    if context.options.sync and device not in context.synced:
        try:
            context.open_for_sync(place)
        except Problem as problem:
            result.count(counts.UNSYNCED)
            result.report(context.shown(place, b"", on_source=False), problem)
        else:
            result.spawn(SyncFiles(place), phase=Phase.SYNC, owner=context.rank)


def _spawn_finish(result: Result, finish: FinishDir, *, seals: bool) -> None:
    """Once its owner can't enter it (it ``seals``), nothing below it can be finished."""
    if seals and not capable(CAP_DAC_OVERRIDE):
        result.spawn(SealDir(finish), owner=0)
    else:
        result.spawn(finish, phase=Phase.FINISH)
