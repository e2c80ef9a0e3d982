"""A target whose name may be taken: what becomes of what is there."""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.attributes import may_inherit_acl
from pcopy.fsio.birth import birth_of
from pcopy.fsio.existing import Decision, decide
from pcopy.fsio.in_place import status_before, while_written
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import reopen
from pcopy.tasks.context import Context, is_since
from pcopy.tasks.phases import Phase
from pcopy.tasks.values import OpenFile, Place


def look(directory: int, name: bytes) -> os.stat_result | None:
    """The status of ``name`` itself, None if it is free; raises ``Problem``."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Problem.of("stat", error) from error


def is_own(context: Context, place: Place, directory: int, name: bytes, present: os.stat_result) -> bool:
    """Is what is there as ``name`` in a target directory (a descriptor) this very item, made by an earlier run?

    Raises ``Problem`` as ``refuse_anothers`` does.
    """
    refuse_anothers(context, place, directory, name, present)
    return is_made(context, place, directory, name, present)


def refuse_anothers(context: Context, place: Place, directory: int, name: bytes, present: os.stat_result) -> None:
    """Raises ``Problem`` if it is another item of this job, whose name the directory takes for the same."""
    if context.phase < Phase.REPAIR and _is_anothers(context, place, directory, name, present):
        text = "its name in the target is taken by another item of this job (does the file system fold case?)"
        raise Problem("create", errno.EEXIST, text=text)


def is_made(context: Context, place: Place, directory: int, name: bytes, present: os.stat_result) -> bool:
    """As ``is_own``, where no other item of this job can have taken the name."""
    return context.is_ours(place, present) and not _was_there(context, place, directory, name, present)


def _was_there(context: Context, place: Place, directory: int, name: bytes, present: os.stat_result) -> bool:
    """Is an item of which something has changed older than the job? So is a file that further names were linked to, or
    that has lost one, and not so one that was being written over: it has one name."""
    if stat.S_ISREG(present.st_mode) and context.options.inplace and present.st_nlink == 1:
        return False
    born = birth_of(directory, name)
    return bool(born) and not is_since(context.job, place, born)


def _is_anothers(context: Context, place: Place, directory: int, name: bytes, present: os.stat_result) -> bool:
    if place.fresh and context.job.run == 1:  # later, what is older than the job shows that the directory is older too
        return True
    if not context.job.began or not context.is_touched(present):
        return False
    others = context.spellings.others(directory, name, present)
    return any(_is_made_here(context, place, directory, other) for other in others)


def _is_made_here(context: Context, place: Place, directory: int, name: bytes) -> bool:
    """Does this job make something that is called ``name`` in this target directory? Raises ``Problem``."""
    if not os.path.sameopenfile(directory, context.targets[place.root].open(b"")):
        return _holds(context.open_source(place), name)
    roots = context.job.roots  # all of them go there
    if any(root.name == name for root in roots):
        return True
    return any(_holds(context.sources[number].open(b""), name) for number, root in enumerate(roots) if not root.name)


def _holds(source: int, name: bytes) -> bool:
    try:
        return look(source, name) is not None
    except Problem as problem:
        raise Problem(problem.operation, problem.errno or errno.EIO, on_source=True) from problem


def may_replace(
    context: Context, place: Place, source: os.stat_result, directory: int, name: bytes, target: os.stat_result
) -> bool:
    """May ``target``, which is there as ``name``, give way to ``source``? False: it stays, and the item is skipped.

    What did not verify does, and what an earlier run of this job made. With ``--checksum`` False says only that their
    contents are to be compared. Raises ``Problem`` where the item fails instead.
    """
    if context.phase >= Phase.REPAIR:
        return True
    if is_own(context, place, directory, name, target) and not stat.S_ISDIR(target.st_mode):
        return True
    options = context.options
    decision = decide(options.existing, options.modify_window, source, target, contents=options.checksum)
    if decision is Decision.FAIL:
        raise Problem("create", errno.EEXIST)
    return decision is Decision.REPLACE


def kept_from(
    context: Context,
    place: Place,
    source: os.stat_result,
    directory: int,
    name: bytes,
    present: os.stat_result | None,
) -> os.stat_result | None:
    """What there is, if the copy takes its mode where that is not preserved: not so what a run was killed over.

    Such an item has the mode of a new one, and not yet the source's size or time.
    """
    preserve = context.options.preserve
    if present is None or preserve.mode or stat.S_IMODE(present.st_mode) != 0o600:
        return present
    whole = present.st_size == source.st_size and (present.st_mtime_ns == source.st_mtime_ns or not preserve.timestamps)
    if whole or not context.is_ours(place, present) or not is_since(context.job, place, birth_of(directory, name)):
        return present
    return None


def looked_at_again(context: Context, place: Place) -> Place:
    """``place`` with what is made in its target directory inherits now: since it was scanned, it may have been finished
    and have got a default ACL. Raises ``Problem``."""
    target = context.open_target(place)
    return place._replace(inherits=may_inherit_acl(target, status_of(target).st_uid))


def clear_way(directory: int, name: bytes, present: os.stat_result | None) -> None:
    """Makes room for a rename to ``name``: of a directory only an empty one gives way. Raises ``Problem``."""
    if present is not None and stat.S_ISDIR(present.st_mode):
        try:
            os.rmdir(name, dir_fd=directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Problem.of("rmdir", error) from error


def reopen_filled(context: Context, directory: int, file: OpenFile) -> int:
    """The file that a split one is being copied into, for writing; raises ``Problem`` if it is no longer that."""
    name, inode, size = context.written_as(file), file.temporary_inode, file.version.size
    if not file.over:
        return reopen(directory, name, inode, size)
    uid, _, mode = while_written(status_before(file.over), context.options.preserve)
    return reopen(directory, name, inode, size, uid=uid, mode=mode)
