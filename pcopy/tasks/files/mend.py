"""What is there and stays gets the metadata of its source, where that differs (``--existing changed``).

No data are copied for it: not for another owner, mode, ACL or attribute, nor for another time, if the contents are the
same. How it is done, and when a copy is made instead, stands in ``pcopy.fsio.mending``. A copy is made, too, if the
item is another user's, so that its time cannot be set; the copy belongs to the caller then.
"""

from __future__ import annotations

import errno
import os
import stat

from pcopy.fsio.attributes import Attributes, Handle, unread_problem
from pcopy.fsio.mending import Lacking, has_metadata, lacking, mend, same_xattrs
from pcopy.fsio.nodes import handle_of
from pcopy.fsio.preserve import CAP_FOWNER, capable
from pcopy.fsio.problem import MetadataProblem
from pcopy.fsio.server import shown_of_new_file
from pcopy.fsio.source import status_of
from pcopy.tasks.base import counts
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Place
from pcopy.tasks.files.existing import Existing, look


def is_dressed(rank: Rank, place: Place, name: bytes, source: os.stat_result, present: Existing) -> bool:
    """Has what is there all metadata of the item ``name`` of the source, which has this status? A quick look that opens
    nothing; False may also say that it can't tell. Raises ``Problem``."""
    preserve, window = rank.options.preserve, rank.options.modify_window
    if not has_metadata(source, present.status, preserve, window):
        return False
    if not (preserve.xattr or preserve.acl):
        return True
    around = handle_of(rank.open_source(place)), handle_of(present.directory)
    try:
        follow = rank.options.dereference
        return same_xattrs(b"/".join((around[0], name)), b"/".join((around[1], present.name)), preserve, follow=follow)
    except OSError:
        return False


def mended(result: Result, name: bytes, present: Existing, attributes: Attributes) -> tuple[Existing, Action] | None:
    """What is ``present`` gets what it lacks of ``attributes``, and counts as mended, if something has changed.

    Returns what is there then, and what was done; None if it has to be copied anew. Raises ``Problem``.
    """
    rank, place = present.rank, present.place
    with present.held() as held:
        before = status_of(held)
        lacks = _lacking_in_place(present, handle_of(held), before, attributes)
        if lacks is None:
            return None
        if not lacks.is_needed:
            if (problem := unread_problem(attributes.unread)) is not None:
                raise problem
            return present, Action.SKIP
        if rank.options.dry_run:
            result.count(counts.MENDED, 1, place)
            return present, Action.META
        try:
            applied = mend(handle_of(held), before, attributes, rank.options.preserve, lacks)
        except MetadataProblem as problem:
            is_refused = problem.errno in (errno.EPERM, errno.EACCES) and not problem.on_source
            if is_refused and _gives_way(present, before, lacks):
                return None
            raise
        has_changed = status_of(held).st_ctime_ns != before.st_ctime_ns
    result.applied(place, name, applied)
    if has_changed:
        rank.succeeded()
        result.count(counts.MENDED, 1, place)
    left = look(present.directory, present.name)
    if left is None:
        return None
    return present._replace(status=left), Action.META if has_changed else Action.SKIP


def _lacking_in_place(
    present: Existing, handle: Handle, status: os.stat_result, attributes: Attributes
) -> Lacking | None:
    """Return what the open item, which has this ``status``, lacks of ``attributes``, to be set without a copy.

    None if it has to be copied, as far as that is known before something is set. Raises ``Problem``.
    """
    rank = present.rank
    is_on_target = status.st_dev == rank.target_device(present.place)
    lacks = lacking(handle, status, attributes, rank.options.preserve, rank.options.modify_window)
    if lacks.is_needed and not (is_on_target and lacks.is_harmless(attributes, status)):
        lacks = _without_made_up(present, lacks, attributes)
    if not lacks.is_needed:
        return lacks
    is_refused = rank.options.dry_run and not capable(CAP_FOWNER) and _gives_way(present, status, lacks)
    return lacks if is_on_target and lacks.is_harmless(attributes, status) and not is_refused else None


def _gives_way(present: Existing, status: os.stat_result, lacks: Lacking) -> bool:
    """Return True if an item whose metadata this user may not set is replaced by a copy. Raises ``Problem``.

    It lacks the time, so that its contents have been compared; it is another user's file or symbolic link; and this
    user may replace it in its directory. With ``--inplace`` no file gets another inode for its metadata.
    """
    user = os.geteuid()
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
    if present.rank.options.inplace or not (lacks.times and is_plain) or status.st_uid == user:
        return False
    directory = status_of(present.directory)
    if directory.st_mode & stat.S_ISVTX and directory.st_uid != user and not capable(CAP_FOWNER):
        return False
    return os.access(handle_of(present.directory), os.W_OK | os.X_OK, effective_ids=True)


def _without_made_up(present: Existing, lacks: Lacking, attributes: Attributes) -> Lacking:
    """Return ``lacks`` without the mode and owner that the file system of ``present`` makes up.

    Such are CIFS and FUSE with fixed modes or owners, and NFS with root_squash. A new copy has no better mode or owner
    there than the present item, so nothing is copied for that. A dry run, which makes no file, does not find out.
    Raises ``Problem``.
    """
    if present.rank.options.dry_run:
        return lacks
    shown = shown_of_new_file(present.directory, present.rank.temporary_names.next())
    is_equal = stat.S_IMODE(present.status.st_mode) == stat.S_IMODE(attributes.mode)  # with the set-id bits
    has_mode = shown.has_other_mode or (shown.has_other_owner and is_equal)
    return lacks._replace(owner=lacks.owner and not shown.has_other_owner, mode=lacks.mode and not has_mode)


def is_copied_for_links(present: Existing, source: os.stat_result) -> bool:
    """True if ``present``, which looks like ``source`` and may not be linked, is copied anew so that the source's
    further names can become links to the copy. Raises ``Problem``."""
    if not present.has_further_names(source) or present.rank.options.dry_run:
        return present.has_further_names(source)
    shown = shown_of_new_file(present.directory, present.rank.temporary_names.next())
    return not (shown.has_other_owner or shown.has_other_mode)
