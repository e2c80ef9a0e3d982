"""A target whose name may be taken: what becomes of what is there."""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.attributes import may_inherit_acl
from pcopy.fsio.birth import birth_of
from pcopy.fsio.close import let_go
from pcopy.fsio.existing import Decision, Status, alike, decide
from pcopy.fsio.half_written import HalfWritten, beside, find, unsure
from pcopy.fsio.identity import Identity, Likeness, identity_of
from pcopy.fsio.nodes import open_node
from pcopy.fsio.problem import Problem
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import REPLACED, is_undressed, put_in_place, remove, reopen
from pcopy.tasks.context import Context, is_since
from pcopy.tasks.phases import Phase
from pcopy.tasks.values import OpenFile, Place

_OTHERS_POWER = stat.S_ISUID | stat.S_ISGID | stat.S_IWGRP | stat.S_IWOTH


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
    """As ``is_own``, where no other item of this job can have taken the name.

    Where nothing is replaced unasked, what the job has made is known by its identity alone (``pcopy.tasks.naming``).
    """
    if context.keeps:
        return False
    return context.is_ours(place, present) and not _was_there(context, place, directory, name, present)


def _was_there(context: Context, place: Place, directory: int, name: bytes, present: os.stat_result) -> bool:
    """Is an item of which something has changed older than the job? So is a file that further names were linked to, or
    that has lost one, and not so one that was being written over: it has one name."""
    if stat.S_ISREG(present.st_mode) and context.options.inplace and present.st_nlink == 1:
        return False
    born = birth_of(directory, name)
    return bool(born) and not is_since(context.job, place, born)


def _is_anothers(context: Context, place: Place, directory: int, name: bytes, present: os.stat_result) -> bool:
    is_new = place.fresh and context.job.run == 1  # later, what is older than the job shows that the directory is, too
    if is_new and not context.keeps:
        return True
    if not is_new and not (context.job.began and context.is_touched(present)):
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
    context: Context, place: Place, source: Status, directory: int, name: bytes, target: os.stat_result
) -> bool:
    """May ``target``, which is there as ``name``, give way to ``source``? False: it stays, and the item is skipped.

    What did not verify does, and what an earlier run of this job made. With ``--checksum`` False says only that their
    contents are to be compared. Raises ``Problem`` where the item fails instead.
    """
    if context.phase >= Phase.REPAIR:
        if context.keeps and not gives_way(context, source, directory, name, target):
            raise Problem("create", errno.EEXIST, text="it was changed since it was copied, and is not replaced")
        return True
    if is_own(context, place, directory, name, target) and not stat.S_ISDIR(target.st_mode):
        return True
    options = context.options
    half = _half_written(context, directory, name, target)
    if half is not None and (half.sure or alike(source, target, 0)):
        return True
    decision = decide(options.existing, options.modify_window, source, target, contents=options.checksum)
    if half is not None and decision is Decision.SKIP and not options.checksum:
        raise unsure(name)
    if decision is Decision.FAIL:
        raise Problem("create", errno.EEXIST)
    return decision is Decision.REPLACE


def _half_written(context: Context, directory: int, name: bytes, target: os.stat_result) -> HalfWritten | None:
    """Its mark, by this job or by one that nobody goes on with. Asked for what may well have one, not for each file."""
    options = context.options
    if not stat.S_ISREG(target.st_mode) or not (options.inplace or is_undressed(target)):
        return None
    mark = find(directory, name, target)
    return mark if mark is not None and (mark.job == context.job.name or options.existing != "fail") else None


def _is_half_written(context: Context, directory: int, name: bytes, target: os.stat_result) -> bool:
    mark = _half_written(context, directory, name, target)
    return mark is not None and mark.sure


def gives_way(context: Context, source: Status, directory: int, name: bytes, target: os.stat_result) -> bool:
    """Where nothing is replaced unasked: does ``target``, which is there as ``name``, give way to ``source``?

    What is repaired was a copy, and still has the source's time, unless somebody has written to it.
    """
    if context.phase >= Phase.REPAIR:
        return target.st_mtime_ns == source.st_mtime_ns
    if _is_half_written(context, directory, name, target):
        return True
    return decide(context.options.existing, context.options.modify_window, source, target) is Decision.REPLACE


def kept_from(
    context: Context,
    place: Place,
    source: os.stat_result,
    directory: int,
    name: bytes,
    present: os.stat_result | None,
) -> os.stat_result | None:
    """What there is, if the copy takes its mode where that is not preserved: not so what a run was killed over.

    Such an item has the mode of a new one, and not yet the source's size or time. (Where there is a mark, that tells.)
    """
    preserve = context.options.preserve
    if present is None or preserve.mode or context.keeps or stat.S_IMODE(present.st_mode) != 0o600:
        return present
    whole = present.st_size == source.st_size and (present.st_mtime_ns == source.st_mtime_ns or not preserve.timestamps)
    if whole or not context.is_ours(place, present) or not is_since(context.job, place, birth_of(directory, name)):
        return present
    return present if _is_half_written(context, directory, name, present) else None


def looked_at_again(context: Context, place: Place) -> Place:
    """``place`` with what is made in its target directory inherits now: since it was scanned, it may have been finished
    and have got a default ACL. Raises ``Problem``."""
    target = context.open_target(place)
    return place._replace(inherits=may_inherit_acl(target, status_of(target).st_uid))


def is_linkable(context: Context, source: os.stat_result, present: os.stat_result) -> bool:
    """May ``present``, which stays, get further names that lie in directories of others? Not if somebody could write to
    it, or give it away, who could not do so with a copy of ``source``."""
    preserve = context.options.preserve
    owner = preserve.chown[0] if preserve.chown[0] >= 0 else source.st_uid if preserve.ownership else os.geteuid()
    return present.st_uid in (owner, os.geteuid()) and not present.st_mode & ~source.st_mode & _OTHERS_POWER


def kept_identity(place: Place, directory: int, name: bytes, present: os.stat_result) -> Identity:
    """Which item it is that stays in the directory of ``place``, and had the status ``present``; raises ``Problem``."""
    held = open_node(directory, name, on_source=False)
    try:
        status = status_of(held)
        if _version(status) != _version(present):
            raise Problem("open", errno.ESTALE, text=REPLACED)
        return identity_of(held, status, place.target_id.mount, made=False)
    finally:
        let_go(held)


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size, status.st_uid, status.st_mode


def hold_copy(context: Context, place: Place, name: bytes, made: Identity) -> tuple[int, bool]:
    """A descriptor (O_PATH) of what was ``made`` and has this name, and whether it is that for certain.

    Where identities can't be told its number serves in a directory that is ours alone: nobody else can have put another
    item there. Raises ``Problem`` if it is gone, or another one.
    """
    directory = context.open_target(place)
    held = open_node(directory, context.new_name(place, name), on_source=False)
    try:
        seen = identity_of(held, status_of(held), made.mount, made=bool(made.mark))
        likeness = made.compare(seen)
        if likeness is Likeness.OTHER:
            raise Problem("link", errno.ESTALE, text=REPLACED)
        return held, likeness is Likeness.SAME or _is_ours_alone(status_of(directory))
    except BaseException:
        let_go(held)
        raise


def _is_ours_alone(directory: os.stat_result) -> bool:
    return directory.st_uid == os.geteuid() and not directory.st_mode & 0o022


def inherits_acl(context: Context, place: Place, target: int) -> bool:
    """Must what is made in the open directory of ``place`` be freed from ACLs? Raises ``Problem``.

    What an earlier run has recorded is looked at anew: since then the directory may have got a default ACL.
    """
    return place.inherits or (context.job.run > 1 and may_inherit_acl(target, status_of(target).st_uid))


def put_over(
    context: Context, directory: int, temporary: bytes, name: bytes, inode: int, present: os.stat_result | None
) -> None:
    """Gives the item ``inode`` its final name, in place of what is ``present`` and of a file beside it that marks that.

    Raises ``Problem``.
    """
    clear_way(directory, name, present)
    put_in_place(directory, temporary, name, inode)
    if context.options.inplace and (present is not None or context.job.run > 1):
        remove(directory, beside(name))


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
    return reopen(directory, context.written_as(file), file.made, file.version.size)
