"""Handling of an existing item that has the name of a new copy in the target.

An existing item may be the job's own, created by an earlier run (``ExistingItem.is_made_by_job``). The table shows when
it is taken for the job's own. "changed" is its ctime, "born" its time of birth; "before" and "after" refer to the start
of the job, with a tolerance for differing clocks. "keeping" stands for ``--existing newer``, ``skip`` or ``fail``: with
these an item is recognised by its identity alone (``pcopy.tasks.files.naming``).

| run   | option    | changed | born    | links | own |
| first | -         | -       | -       | -     | no  |
| later | keeping   | -       | -       | -     | no  |
| later | -         | before  | -       | -     | no  |
| later | -         | after   | before  | -     | no  |
| later | -         | after   | after   | -     | yes |
| later | -         | after   | unknown | -     | yes |
| later | --inplace | after   | before  | 1     | yes |
| later | --inplace | after   | before  | more  | no  |

If a directory treats names as equal that differ in case, the existing item may also be another item of the job. The new
item fails then (``refuse_name_collision``).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import can_inherit_acl
from pcopy.fsio.backend.columns import GROUP_COLUMN, OWNER_COLUMN
from pcopy.fsio.close import close_ignoring_errors, closing_descriptor
from pcopy.fsio.directories import is_directory_empty
from pcopy.fsio.existing import (
    ComparedStatus,
    ExistingItemDecision,
    are_times_equal,
    can_compare_contents,
    decision_for_existing_item,
    has_same_symlink_text,
    looks_like_copy,
)
from pcopy.fsio.identity import IdentityComparison, ItemIdentity, birth_time, identity_of_open_item
from pcopy.fsio.in_place import OverwrittenFile, open_file_for_overwrite
from pcopy.fsio.incomplete_mark import IncompleteFileMark, find_incomplete_file_mark, uncertain_file_mark_problem
from pcopy.fsio.layout import DEFAULT_LAYOUT_RECIPE, LayoutRecipe, TargetDirectory
from pcopy.fsio.new_file import remove_empty_directory_for_rename
from pcopy.fsio.nodes import open_o_path_descriptor
from pcopy.fsio.problem import (
    REPLACED_TEXT,
    Problem,
    TargetChangedProblem,
    directory_not_empty_problem,
    errors_as_problem,
)
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.temporary import is_private_file, remove_item_if_present
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import ArchiveOptions
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank, is_ctime_since_earlier_run
from pcopy.tasks.base.values import UNCREATED_TARGET_IDENTITY, Place
from pcopy.tasks.files.layouts import target_layout_policy

MAX_EXAMINATIONS = 3
"""Number of times that one attempt to copy an item examines the item which has its name in the target. It is examined
again if it has changed since it was last examined (``TargetChangedProblem``).

The ctime of an inode changes whenever a rank replaces another of its names. If the ctime still changes after so many
examinations, the attempt fails; the next attempt is made when the other names have been copied.
"""

_MODE_BITS_EMPOWERING_OTHERS = stat.S_ISUID | stat.S_ISGID | stat.S_IWGRP | stat.S_IWOTH
"""Mode bits that let other users write to a file, or run it with the rights of its owner or group."""


def item_status_or_none(directory: int, name: bytes) -> os.stat_result | None:
    """Return the status of ``name`` in the open ``directory``, without following a symbolic link; None if the name is
    free. Raise ``Problem`` on failure.
    """
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Problem.from_error("stat", error) from error


def target_status(rank: Rank, place: Place, name: bytes) -> os.stat_result | None:
    """Return the status of the item in the target to which the item ``name`` is copied; None if there is none, or its
    status cannot be read.
    """
    try:
        return item_status_or_none(rank.open_target_directory(place), rank.target_name(place, name))
    except Problem:
        return None


def should_update_metadata(rank: Rank) -> bool:
    """Return True if existing items that are kept get the metadata of their source. This requires ``--existing
    changed``.

    With ``--checksum`` it is done only together with ``--delete``, because then the whole destination is to equal the
    source. A repair does not do it: it copies items instead.
    """
    options = rank.copy_options
    return (
        options.compares_existing
        and (options.delete or not options.checksum)
        and rank.job.copies
        and rank.phase < Phase.REPAIR
    )


def owner_columns_if_needed(rank: Rank) -> int:
    """Return the columns OWNER and GROUP (bits of a column mask) if a scan must also read the owner of each item, to
    update metadata or to write an archive; else 0.
    """
    return (
        OWNER_COLUMN | GROUP_COLUMN
        if isinstance(rank.job.program, ArchiveOptions) or should_update_metadata(rank)
        else 0
    )


class ExistingItem(NamedTuple):
    """An existing item of the target that has the name of a new copy.

    Fields:
        rank: the rank that found it.
        place: the directory.
        directory: descriptor of the target directory.
        name: name in the target.
        status: status when the item was last examined.
    """

    rank: Rank
    place: Place
    directory: int
    name: bytes
    status: os.stat_result

    def is_from_earlier_run(self) -> bool:
        """Return True if an earlier run of this job created the item. Raise ``Problem`` if another item of this job, or
        another program, has taken the name (``refuse_name_collision``).
        """
        self.refuse_name_collision()
        return self.is_made_by_job()

    def refuse_name_collision(self) -> None:
        """Raise ``Problem`` if the existing item is another item of this job, whose name the directory treats as equal
        to this one (for example because it ignores case).

        Raise it also if another program created the item in a directory that this job has created.
        """
        if self.rank.phase < Phase.REPAIR and self._is_name_collision():
            text = (
                "something else has taken its name in the target meanwhile (does another job copy to the same place?)"
            )
            if self.rank.spellings.other_spellings(self.directory, self.name, self.status):
                text = "its name in the target is taken by another item of this job (does the file system ignore case?)"
            raise Problem("create", errno.EEXIST, text=text)

    def is_made_by_job(self) -> bool:
        """Return True if an earlier run of this job created the item. The caller knows already that no other item of
        this job has taken the name.

        Under ``--existing newer``, ``skip`` and ``fail`` this is always False: the job's own items are recognised by
        their identity alone (``pcopy.tasks.files.naming``).
        """
        return (
            not self.rank.names_late
            and self.rank.may_be_from_earlier_run(self.place, self.status)
            and not self._is_older_than_job()
        )

    def _is_older_than_job(self) -> bool:
        """Return True if the item was created before the job, as its time of birth shows, although its ctime is later:
        its ctime also changes when hard links to it are added or removed.

        With ``--inplace``, return False for a file with a single name, because an earlier run may have been overwriting
        it.
        """
        if stat.S_ISREG(self.status.st_mode) and self.rank.copy_options.inplace and self.status.st_nlink == 1:
            return False
        born = birth_time(self.directory, self.name)
        return bool(born) and not is_ctime_since_earlier_run(self.rank.job, self.place, born)

    def _is_name_collision(self) -> bool:
        """Return True if another item of this job, or another program, has taken the name since the job began. Raise
        ``Problem`` on failure.
        """
        rank, place = self.rank, self.place
        # Only in the first run: in a later one, an item that is older than the job shows that its directory is older,
        # too, whatever ``is_new`` says.
        is_new = place.is_new and rank.job.run == 1
        if is_new and not rank.names_late:
            return True
        if not is_new and not (rank.job.began and rank.is_changed_since_job_start(self.status)):
            return False
        return any(
            map(self._is_name_of_copied_item, rank.spellings.other_spellings(self.directory, self.name, self.status))
        )

    def _is_name_of_copied_item(self, name: bytes) -> bool:
        """Return True if this job copies an item to ``name`` in this target directory. Raise ``Problem`` on failure."""
        rank, root = self.rank, self.place.root
        if not os.path.sameopenfile(self.directory, rank.targets[root].open(b"")):
            return _directory_contains(rank.open_source_directory(self.place), name)
        roots = rank.job.roots  # the common target directory of all roots
        if any(root.name == name for root in roots):
            return True
        return any(
            _directory_contains(rank.sources[number].open(b""), name)
            for number, root in enumerate(roots)
            if not root.name
        )

    def may_be_replaced(self, source: ComparedStatus) -> bool:
        """Decide what happens to the item, which has the name of a copy of an item with the status ``source``. Return
        True if it may be replaced. Return False if it is kept and the copy is skipped. Raise ``Problem`` if the copy
        fails instead.

        An item that differed when it was verified is replaced, and so is one that an earlier run of this job created.
        If ``needs_content_comparison`` returns True, False only means that the contents must be compared.
        """
        rank, target, options = self.rank, self.status, self.rank.copy_options
        if rank.phase >= Phase.REPAIR:
            if rank.names_late and not self.may_be_replaced_under_keep_option(source):
                raise Problem(
                    "create", errno.EEXIST, text="the copy was changed after it was written, and is not replaced"
                )
            return True
        if self.is_from_earlier_run() and not stat.S_ISDIR(target.st_mode):
            return True
        half = self._incomplete_mark()
        if half is not None and (half.is_certain or looks_like_copy(source, target, 0)):
            return True
        decision = decision_for_existing_item(
            options.existing, options.modify_window, source, target, contents=options.checksum
        )
        if half is not None and decision is ExistingItemDecision.SKIP and not options.checksum:
            raise uncertain_file_mark_problem(self.name)
        if decision is ExistingItemDecision.FAIL:
            raise Problem("create", errno.EEXIST)
        if decision is ExistingItemDecision.REPLACE and (options.delete or rank.options.dry_run):
            self.refuse_nonempty_directory()
        return decision is ExistingItemDecision.REPLACE and (
            half is not None or not self._may_differ_in_time_only(source)
        )

    def refuse_nonempty_directory(self) -> None:
        """Raise ``Problem`` if the item is a directory that is not empty, which a copy cannot replace. This is found
        out before anything is copied.
        """
        if stat.S_ISDIR(self.status.st_mode) and not is_directory_empty(self.directory, self.name):
            raise directory_not_empty_problem()

    def may_be_replaced_under_keep_option(self, source: ComparedStatus) -> bool:
        """Return True if the item may be replaced by an item with the status ``source`` under ``--existing newer``,
        ``skip`` or ``fail``.

        In a repair, it may be replaced if it still has the time of its source: then no other program has written to the
        copy.
        """
        options = self.rank.copy_options
        if self.rank.phase >= Phase.REPAIR:
            return self.status.st_mtime_ns == source.st_mtime_ns
        if self._is_certainly_incomplete():
            return True
        return (
            decision_for_existing_item(options.existing, options.modify_window, source, self.status)
            is ExistingItemDecision.REPLACE
        )

    def has_other_link_text(
        self, source: ComparedStatus, directory: int, name: bytes, *, on_source: bool = True
    ) -> bool:
        """Return True if this item and another one are symbolic links, and this one must be replaced because its target
        text differs. It would otherwise be kept, because it has the right type, size and time.

        Texts are not compared with ``--existing skip`` or ``fail``, nor with ``newer`` if this link is later: then it
        is kept in any case. Raise ``Problem`` on failure.

        Args:
            source: status of the other link, or of the item of which that link is a copy.
            directory, name: descriptor of the directory of the other link, and its name.
            on_source: True if ``directory`` belongs to the source.
        """
        options, present = self.rank.copy_options, self.status
        if not (stat.S_ISLNK(source.st_mode) and stat.S_ISLNK(present.st_mode)):
            return False
        is_equal = are_times_equal(source.st_mtime_ns, present.st_mtime_ns, options.modify_window)
        is_later = present.st_mtime_ns > source.st_mtime_ns and not is_equal
        if not (options.compares_existing or (options.existing == "newer" and not is_later)):
            return False
        return not has_same_symlink_text(directory, name, self.directory, self.name, on_source=on_source)

    def _incomplete_mark(self) -> IncompleteFileMark | None:
        """Return the mark of the file which says that an ``--inplace`` job has written only a part of it: this job, or
        one that was given up. Return None if it has none. Only files that may have a mark are examined.
        """
        options, target = self.rank.copy_options, self.status
        if not stat.S_ISREG(target.st_mode) or not (options.inplace or is_private_file(target)):
            return None
        mark = find_incomplete_file_mark(self.directory, self.name, target)
        return mark if mark is not None and (mark.job == self.rank.job.name or options.existing != "fail") else None

    def _is_certainly_incomplete(self) -> bool:
        """Return True if the file has a mark of incompleteness that certainly belongs to it."""
        mark = self._incomplete_mark()
        return mark is not None and mark.is_certain

    def status_with_kept_mode(self, source: os.stat_result) -> os.stat_result | None:
        """Return the status of the item, whose mode the copy gets if the user does not preserve modes. Return None if
        its mode is not the user's, because the item is an incomplete copy that a killed run has left.

        Such a remainder has the mode of a new file (0600), and not yet the size or time of ``source``. An older file,
        or one that has a mark of incompleteness (``--inplace``), is not taken for such a remainder.
        """
        rank, present, preserve = self.rank, self.status, self.rank.options.preserve
        if preserve.mode or rank.names_late or stat.S_IMODE(present.st_mode) != 0o600:
            return present
        is_dated = present.st_mtime_ns == source.st_mtime_ns or not preserve.timestamps
        if present.st_size == source.st_size and is_dated:
            return present
        made_or_changed = min(present.st_ctime_ns, birth_time(self.directory, self.name))
        is_old = not is_ctime_since_earlier_run(rank.job, self.place, made_or_changed)
        return present if is_old or self._is_certainly_incomplete() else None

    def open_to_overwrite(
        self, source: os.stat_result, temporary: bytes, recipe: LayoutRecipe
    ) -> OverwrittenFile | None:
        """Open the file to be overwritten, and return it. Return None if it must be replaced by a new file instead, for
        example without ``--inplace``. Raise ``Problem`` on failure.

        Args:
            source: status of the source.
            temporary: a free name in the target directory.
            recipe: way in which a new file would be created, so that it gets its Lustre layout (striping).
        """
        rank = self.rank
        if not rank.copy_options.inplace:
            return None
        if recipe.attribute is not None and target_layout_policy(rank, self.place).lacks_layout(
            self.directory, self.name
        ):
            return None  # a run that created the file was killed before the file got its layout
        preserve, job = rank.options.preserve, rank.job.name
        return open_file_for_overwrite(self.directory, self.name, self.status, source, preserve, job, temporary)

    def may_get_hard_links(self, source: os.stat_result) -> bool:
        """Return True if the item may be kept and get hard links in other directories, which may belong to other users.

        Return False if it gives another user more power than a copy of an item with the status ``source`` would: by its
        owner, or by mode bits that permit others to write or to run it with the rights of its owner or group.
        """
        preserve, present = self.rank.options.preserve, self.status
        owner = preserve.chown[0] if preserve.chown[0] >= 0 else source.st_uid if preserve.ownership else os.geteuid()
        return (
            present.st_uid in (owner, os.geteuid())
            and not present.st_mode & ~source.st_mode & _MODE_BITS_EMPOWERING_OTHERS
        )

    def has_other_names_to_link(self, source: os.stat_result) -> bool:
        """Return True if the source has other names that are copied as hard links to this item. (If
        ``may_get_hard_links`` returns False, the caller then copies the item again and links them to the copy.)
        """
        return source.st_nlink > 1 and self.rank.options.preserve.links

    def item_identity(self) -> ItemIdentity:
        """Return the identity (mount code, inode number, and file handle or time of birth) by which the item is
        recognised later. Raise ``TargetChangedProblem`` if it has changed since it was examined, and ``Problem`` for
        other errors.
        """
        with self.open_if_unchanged() as descriptor:
            return identity_of_open_item(
                descriptor, status_of_open_item(descriptor), self.place.target_id.mount_code, created_by_job=False
            )

    @contextmanager
    def open_if_unchanged(self) -> Iterator[int]:
        """Context manager: open the item with O_PATH. Raise ``TargetChangedProblem`` if its status has changed since it
        was examined, and ``Problem`` for other errors.
        """
        with closing_descriptor(open_o_path_descriptor(self.directory, self.name, on_source=False)) as descriptor:
            if _status_fingerprint(status_of_open_item(descriptor)) != _status_fingerprint(self.status):
                raise TargetChangedProblem
            yield descriptor

    def item_with_current_status(self) -> ExistingItem | None:
        """Return the item that has the name now, with its status; None if the name is free now. Raise ``Problem`` on
        failure.
        """
        status = item_status_or_none(self.directory, self.name)
        return None if status is None else self._replace(status=status)

    def back_up_item(self, source: ComparedStatus | None = None) -> None:
        """Back up the item before it is replaced, if the user wants backups. Raise ``Problem`` on failure.

        Directories and items that this job created are not backed up. Times alone do not prove that this job created an
        item, because the user may have saved it after the job began. So it must also look like an item with the status
        ``source``.
        """
        rank = self.rank
        if not rank.copy_options.backup or stat.S_ISDIR(self.status.st_mode) or rank.phase >= Phase.REPAIR:
            return
        if source is not None and looks_like_copy(source, self.status, 0) and self.is_made_by_job():
            return
        from pcopy.tasks.files.backup import BackupDirectory

        rank.shared_instance(BackupDirectory).back_up_item(self.place, self.directory, self.name, self.status)

    def remove(self) -> None:
        """Remove the item, which is not a directory, to make room for a directory. Back it up before, if the user wants
        that. Raise ``Problem`` on failure.
        """
        self.back_up_item()
        with (
            errors_as_problem("unlink"),
            suppress(FileNotFoundError),
        ):  # no error if the backup has moved it, or another program has removed it
            os.unlink(self.name, dir_fd=self.directory)

    def needs_content_comparison(self, source: ComparedStatus) -> bool:
        """Return True if the item is kept only if its contents equal the source.

        This is so with ``--checksum``, if the item seems to differ in its time only, and if an unfinished job may have
        left it without its contents.
        """
        if self.rank.copy_options.checksum or self._may_differ_in_time_only(source):
            return True
        return (
            self.rank.copy_options.compares_existing
            and self.rank.may_lack_contents(self.status)
            and stat.S_ISREG(self.status.st_mode)
        )

    def _may_differ_in_time_only(self, source: ComparedStatus) -> bool:
        """Return True if the item seems to differ from its source in its time only, so that it may suffice to set the
        time if the contents are equal. With ``--checksum`` return False, because all contents are compared.
        """
        options, present = self.rank.copy_options, self.status
        if not options.compares_existing or options.checksum or not can_compare_contents(source, present):
            return False
        return not looks_like_copy(source, present, options.modify_window)


def find_existing_item(rank: Rank, place: Place, name: bytes) -> ExistingItem | None:
    """Return the item that exists in the target under the name of the copy of ``name``; None if that name is free.
    Raise ``Problem`` on failure.
    """
    if place.target_id == UNCREATED_TARGET_IDENTITY:
        return None
    directory, new_name = rank.open_target_directory(place), rank.target_name(place, name)
    status = item_status_or_none(directory, new_name)
    if status is None or (rank.phase == Phase.AGAIN and rank.options.dry_run and _is_deleted_in_dry_run(rank, status)):
        return None
    return ExistingItem(rank, place, directory, new_name, status)


def _is_deleted_in_dry_run(rank: Rank, status: os.stat_result) -> bool:
    """Return True if ``status`` is that of a directory that a real run would have deleted before. In the phase AGAIN of
    a dry run, items are examined that were deferred until the deletion; only directories that were reported as deleted
    can have their names.
    """
    return stat.S_ISDIR(status.st_mode) and rank.totals_at_phase_start()[counts.DELETED] > 0


def prepare_new_name(
    rank: Rank, directory: int, name: bytes, present: os.stat_result | None, source: os.stat_result | None = None
) -> bytes:
    """Return the name under which a new item is created that shall finally be called ``name`` in the open
    ``directory``. Usually this is a temporary name.

    A destination that cannot rename (``Options.sequential``) needs the final name at once: there the existing item is
    removed first, and ``name`` is returned. Raise ``Problem`` on failure, or if the existing item is the source itself.

    Args:
        present: status of the existing item of that name; None if there is none.
        source: status of the source, if it might be the existing item itself.
    """
    if not rank.options.sequential:
        return rank.temporary_names.next_name()
    if present is None:
        return name
    if source is not None and os.path.samestat(source, present) and present.st_nlink == 1:
        raise Problem("create", errno.EEXIST, text="the item in the target is the source itself")
    if stat.S_ISDIR(present.st_mode):
        remove_empty_directory_for_rename(directory, name, present)
    else:
        try:
            remove_item_if_present(directory, name)
        except Problem as problem:
            text = "the existing file has to be removed first, since the destination cannot rename files"
            raise Problem("replace", problem.errno or errno.EIO, text=text) from problem
    return name


@contextmanager
def mention_removal_in_problem(
    rank: Rank, directory: int, name: bytes, present: os.stat_result | None
) -> Iterator[None]:
    """Context manager: if its block raises a ``Problem``, add to the message that the existing item was removed. This
    applies only if ``prepare_new_name`` has removed an item; ``present`` is the status of that item, or None.
    """
    try:
        yield
    except Problem as problem:
        if not rank.options.sequential or present is None or type(problem) is not Problem:
            raise
        operation, number, text, on_source, changed, again = problem.problem_as_tuple
        if item_status_or_none(directory, name) is not None:
            raise
        text = f"{text}; the existing file has been removed already, since the destination cannot rename files"
        raise Problem.from_packed_tuple((operation, number, text, on_source, changed, again)) from problem


def overwritten_file_or_layout_recipe(
    rank: Rank, place: Place, present: ExistingItem | None, reading: int, status: os.stat_result, temporary: bytes
) -> tuple[OverwrittenFile | None, LayoutRecipe]:
    """Decide whether the existing item ``present`` is overwritten (``--inplace``) or a new file is created. Return the
    opened file and the default recipe, or None and the recipe for the new file: the way to create it so that it gets
    its Lustre layout. Raise ``Problem`` on failure.

    Args:
        reading: descriptor of the source.
        status: status of the source.
        temporary: a free name in the target directory.
    """
    target = TargetDirectory(rank.open_target_directory(place), place.target_id.inode)
    recipe = target_layout_policy(rank, place).layout_recipe_for_file(reading, status, target)
    over = None if present is None else present.open_to_overwrite(status, temporary, recipe)
    return (None, recipe) if over is None else (over, DEFAULT_LAYOUT_RECIPE)


def _directory_contains(source: int, name: bytes) -> bool:
    """Return True if the open source directory contains ``name``. Raise ``Problem`` on failure; the message names the
    source.
    """
    try:
        return item_status_or_none(source, name) is not None
    except Problem as problem:
        raise Problem(problem.operation, problem.errno or errno.EIO, on_source=True) from problem


def place_with_current_acl(rank: Rank, place: Place) -> Place:
    """Return ``place`` with ``inherits_acl`` determined anew: the target directory may have got a default ACL when its
    metadata was set. Raise ``Problem`` on failure.
    """
    if place.target_id == UNCREATED_TARGET_IDENTITY:
        return place
    target = rank.open_target_directory(place)
    return place._replace(inherits_acl=can_inherit_acl(target, status_of_open_item(target).st_uid))


def _status_fingerprint(status: os.stat_result) -> tuple[int, ...]:
    """Return a tuple of values of a status. If the item is replaced or changed, at least one of them differs."""
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size, status.st_uid, status.st_mode


def open_target_copy(rank: Rank, place: Place, name: bytes, made: ItemIdentity) -> tuple[int, bool]:
    """Return an O_PATH descriptor of the item ``name`` of the target directory, and True if it is certainly the inode
    ``made``.

    If the file system provides no reliable identities, the inode number suffices in a directory that only this user may
    write to, because no other user can have put another item there. Raise ``Problem`` if the item was removed or is
    another one.
    """
    directory = rank.open_target_directory(place)
    descriptor = open_o_path_descriptor(directory, rank.target_name(place, name), on_source=False)
    try:
        seen = identity_of_open_item(
            descriptor, status_of_open_item(descriptor), made.mount_code, created_by_job=bool(made.mark)
        )
        likeness = made.compare_with_identity(seen)
        if likeness is IdentityComparison.OTHER:
            raise Problem("link", errno.ESTALE, text=REPLACED_TEXT)
        return descriptor, likeness is IdentityComparison.SAME or _is_writable_by_us_only(
            status_of_open_item(directory)
        )
    except BaseException:
        close_ignoring_errors(descriptor)
        raise


def _is_writable_by_us_only(directory: os.stat_result) -> bool:
    """Return True if only this user may create names in a directory with this status."""
    return directory.st_uid == os.geteuid() and not directory.st_mode & 0o022


def inherits_acl(rank: Rank, place: Place, target: int) -> bool:
    """Return True if items created in the target directory of ``place`` inherit ACLs, which must be removed from them.
    ``target`` is its descriptor. Raise ``Problem`` on failure.

    In a later run the directory is examined again, because it may have got a default ACL since an earlier run recorded
    that it has none.
    """
    return place.inherits_acl or (rank.job.run > 1 and can_inherit_acl(target, status_of_open_item(target).st_uid))


def may_have_incomplete_mark(rank: Rank, present: object) -> bool:
    """Return True if there may be a sidecar for the item: a file in the same directory that marks the item as
    incomplete (``--inplace``).

    This is possible if an item exists in the target (``present`` is not None). It is also possible if an earlier run
    marked an item that was removed since.
    """
    return rank.copy_options.inplace and (present is not None or rank.job.run > 1)
