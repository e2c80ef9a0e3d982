"""Handling of an existing item that has the name of a new copy in the target.

An existing item may be the job's own, created by an earlier run (``ExistingItem.is_made``). In the table, "before" and
"after" refer to the start of the job, with a tolerance for differing clocks. "keeping" stands for ``--existing newer``,
``skip`` or ``fail``: with these an item is recognised by its identity alone (``naming``).

| run   | option    | changed | born    | links | own |
| first | -         | -       | -       | -     | no  |
| later | keeping   | -       | -       | -     | no  |
| later | -         | before  | -       | -     | no  |
| later | -         | after   | before  | -     | no  |
| later | -         | after   | after   | -     | yes |
| later | -         | after   | unknown | -     | yes |
| later | --inplace | after   | before  | 1     | yes |
| later | --inplace | after   | before  | more  | no  |

If a directory treats names as equal that differ in case, the existing item may also be another item of the job. The
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
from pcopy.fsio.backend.columns import GROUP, OWNER
from pcopy.fsio.close import close_ignoring_errors, closed_at_end
from pcopy.fsio.directories import is_directory_empty
from pcopy.fsio.existing import (
    ComparedStatus,
    ExistingDecision,
    are_times_equal,
    can_compare_contents,
    decision_for_existing,
    has_same_link_text,
    looks_like_copy,
)
from pcopy.fsio.identity import Identity, IdentityComparison, birth_time, identity_of
from pcopy.fsio.in_place import OverwrittenFile, open_for_overwrite
from pcopy.fsio.incomplete_mark import IncompleteMark, find_mark, uncertain_mark_problem
from pcopy.fsio.layout import DEFAULT_RECIPE, Recipe, TargetDirectory
from pcopy.fsio.new_file import make_way_for_rename
from pcopy.fsio.nodes import open_without_access
from pcopy.fsio.problem import REPLACED_TEXT, Problem, TargetChanged, as_problem, directory_not_empty
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import is_private_file, remove_if_present
from pcopy.tasks.base import counts
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank, is_since_earlier_run
from pcopy.tasks.base.values import NOT_CREATED, Place
from pcopy.tasks.files.layouts import target_layout

MAX_EXAMINATIONS = 3
"""Number of times that one attempt examines an item of the target that has changed since it was last examined
(``TargetChanged``).

The ctime of an inode changes whenever a rank replaces another of its names. If it still changes after so many
examinations, the attempt fails; the next attempt is made when the other names have been copied.
"""

_POWER_OF_OTHERS = stat.S_ISUID | stat.S_ISGID | stat.S_IWGRP | stat.S_IWOTH
"""Mode bits that give other users power over a file."""


def status_or_none(directory: int, name: bytes) -> os.stat_result | None:
    """Return the status of ``name`` without following a symbolic link; None if the name is free. Raise ``Problem`` on
    failure.
    """
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Problem.from_error("stat", error) from error


def target_status(rank: Rank, place: Place, name: bytes) -> os.stat_result | None:
    """Return the status of the item that ``name`` is copied to in the target; None if there is none or it cannot be
    read.
    """
    try:
        return status_or_none(rank.open_target(place), rank.target_name(place, name))
    except Problem:
        return None


def updates_metadata(rank: Rank) -> bool:
    """Return True if existing items that are kept get the metadata of their source.

    With ``--checksum`` they do so only if the whole destination is to equal the source. They do not during a repair,
    which copies items instead.
    """
    options = rank.options
    return (
        options.compares_existing
        and (options.delete or not options.checksum)
        and rank.job.copies
        and rank.phase < Phase.REPAIR
    )


def owner_columns(rank: Rank) -> int:
    """Return the columns OWNER and GROUP if they are needed in addition to those of each scan, to update metadata or
    for an archive; else 0.
    """
    return OWNER | GROUP if rank.options.archive_file or updates_metadata(rank) else 0


class ExistingItem(NamedTuple):
    """An existing item of the target that has the name of a new copy.

    Fields:
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
        """Return True if an earlier run of this job created the item. Raise ``Problem`` as ``refuse_name_collision``
        does.
        """
        self.refuse_name_collision()
        return self.is_made_by_job()

    def refuse_name_collision(self) -> None:
        """Raise ``Problem`` if the existing item is another item of this job, whose name the directory treats as equal
        to this one.

        Raise it also if another program created the item in a directory that this job has created.
        """
        if self.rank.phase < Phase.REPAIR and self._is_name_collision():
            text = (
                "something else has taken its name in the target meanwhile (does another job copy to the same place?)"
            )
            if self.rank.spellings.other_spellings(self.directory, self.name, self.status):
                text = "its name in the target is taken by another item of this job (does the file system fold case?)"
            raise Problem("create", errno.EEXIST, text=text)

    def is_made_by_job(self) -> bool:
        """Return True as ``is_own`` does, for a name that no other item of this job can have taken.

        Under ``--existing newer``, ``skip`` and ``fail`` it is False: the job's own items are recognised by their
        identity alone (``naming``).
        """
        return (
            not self.rank.names_late
            and self.rank.may_be_from_earlier_run(self.place, self.status)
            and not self._is_older_than_job()
        )

    def _is_older_than_job(self) -> bool:
        """Return True if the item, which has changed since the job began, is older than the job.

        This is so if hard links to the file were added or removed. With ``--inplace`` a file with a single name is
        excluded, because an earlier run may have been overwriting it.
        """
        if stat.S_ISREG(self.status.st_mode) and self.rank.options.inplace and self.status.st_nlink == 1:
            return False
        born = birth_time(self.directory, self.name)
        return bool(born) and not is_since_earlier_run(self.rank.job, self.place, born)

    def _is_name_collision(self) -> bool:
        """Return True if another item of this job, or another program, has taken the name since the job began. Raise
        ``Problem`` on failure.
        """
        rank, place = self.rank, self.place
        # In a later run, an item that is older than the job shows that the directory is older, too.
        is_new = place.is_new and rank.job.run == 1
        if is_new and not rank.names_late:
            return True
        if not is_new and not (rank.job.began and rank.is_changed_since_job_start(self.status)):
            return False
        return any(map(self._is_made_here, rank.spellings.other_spellings(self.directory, self.name, self.status)))

    def _is_made_here(self, name: bytes) -> bool:
        """Return True if this job creates an item ``name`` in this target directory. Raise ``Problem`` on failure."""
        rank, root = self.rank, self.place.root
        if not os.path.sameopenfile(self.directory, rank.targets[root].open(b"")):
            return _contains(rank.open_source(self.place), name)
        roots = rank.job.roots  # this is the common target directory of all roots
        if any(root.name == name for root in roots):
            return True
        return any(
            _contains(rank.sources[number].open(b""), name) for number, root in enumerate(roots) if not root.name
        )

    def may_be_replaced(self, source: ComparedStatus) -> bool:
        """Return True if the item may be replaced by ``source``; False if it is kept and the copy is skipped. Raise
        ``Problem`` if the copy fails instead.

        An item that differed when it was verified is replaced, and so is one that an earlier run of this job created.
        If ``needs_comparison`` returns True, False only means that the contents must be compared.
        """
        rank, target, options = self.rank, self.status, self.rank.options
        if rank.phase >= Phase.REPAIR:
            if rank.names_late and not self.may_be_replaced_if_keeping(source):
                raise Problem("create", errno.EEXIST, text="it was changed since it was copied, and is not replaced")
            return True
        if self.is_from_earlier_run() and not stat.S_ISDIR(target.st_mode):
            return True
        half = self._incomplete_mark()
        if half is not None and (half.is_certain or looks_like_copy(source, target, 0)):
            return True
        decision = decision_for_existing(
            options.existing, options.modify_window, source, target, contents=options.checksum
        )
        if half is not None and decision is ExistingDecision.SKIP and not options.checksum:
            raise uncertain_mark_problem(self.name)
        if decision is ExistingDecision.FAIL:
            raise Problem("create", errno.EEXIST)
        if decision is ExistingDecision.REPLACE and (options.delete or options.dry_run):
            self.refuse_nonempty_directory()
        return decision is ExistingDecision.REPLACE and (half is not None or not self._may_differ_in_time_only(source))

    def refuse_nonempty_directory(self) -> None:
        """Raise ``Problem`` if the item is a directory that is not empty, before anything is copied that could not
        replace it.
        """
        if stat.S_ISDIR(self.status.st_mode) and not is_directory_empty(self.directory, self.name):
            raise directory_not_empty()

    def may_be_replaced_if_keeping(self, source: ComparedStatus) -> bool:
        """Return True if the item may be replaced by ``source`` under ``--existing newer``, ``skip`` or ``fail``.

        During a repair, it may be replaced if it still has the time of its source: no other program has written to the
        copy then.
        """
        options = self.rank.options
        if self.rank.phase >= Phase.REPAIR:
            return self.status.st_mtime_ns == source.st_mtime_ns
        if self._is_certainly_incomplete():
            return True
        return (
            decision_for_existing(options.existing, options.modify_window, source, self.status)
            is ExistingDecision.REPLACE
        )

    def has_other_link_text(
        self, source: ComparedStatus, directory: int, name: bytes, *, on_source: bool = True
    ) -> bool:
        """Return True if this is a symbolic link that must be replaced because its target text differs from that of
        another link.

        Texts are compared if the existing item would be kept because it looks like its source. This excludes
        ``--existing skip`` and ``fail``, and ``newer`` if the existing item is later. Raise ``Problem`` on failure.

        Args:
            source: status of the other link, or of the item that it is a copy of.
            directory, name: the other link in an open directory.
            on_source: True if ``directory`` belongs to the source.
        """
        options, present = self.rank.options, self.status
        if not (stat.S_ISLNK(source.st_mode) and stat.S_ISLNK(present.st_mode)):
            return False
        is_equal = are_times_equal(source.st_mtime_ns, present.st_mtime_ns, options.modify_window)
        is_later = present.st_mtime_ns > source.st_mtime_ns and not is_equal
        if not (options.compares_existing or (options.existing == "newer" and not is_later)):
            return False
        return not has_same_link_text(directory, name, self.directory, self.name, on_source=on_source)

    def _incomplete_mark(self) -> IncompleteMark | None:
        """Return the mark that says that the file is incomplete, written by this job or by an abandoned job; None if
        there is none.

        Only files that may have a mark are examined.
        """
        options, target = self.rank.options, self.status
        if not stat.S_ISREG(target.st_mode) or not (options.inplace or is_private_file(target)):
            return None
        mark = find_mark(self.directory, self.name, target)
        return mark if mark is not None and (mark.job == self.rank.job.name or options.existing != "fail") else None

    def _is_certainly_incomplete(self) -> bool:
        """Return True if the file is certainly incomplete."""
        mark = self._incomplete_mark()
        return mark is not None and mark.is_certain

    def status_to_keep(self, source: os.stat_result) -> os.stat_result | None:
        """Return the status of the item if the copy gets its mode, because modes are not preserved; None if the item is
        the remainder of a killed run.

        Such a remainder has the mode of a new file, and does not yet have the size or time of ``source``. A mark of an
        incomplete file is evidence, too.
        """
        rank, present, preserve = self.rank, self.status, self.rank.options.preserve
        if preserve.mode or rank.names_late or stat.S_IMODE(present.st_mode) != 0o600:
            return present
        is_dated = present.st_mtime_ns == source.st_mtime_ns or not preserve.timestamps
        if present.st_size == source.st_size and is_dated:
            return present
        made_or_changed = min(present.st_ctime_ns, birth_time(self.directory, self.name))
        is_old = not is_since_earlier_run(rank.job, self.place, made_or_changed)
        return present if is_old or self._is_certainly_incomplete() else None

    def open_to_overwrite(self, source: os.stat_result, temporary: bytes, recipe: Recipe) -> OverwrittenFile | None:
        """Open the file to be overwritten (``--inplace``); return None if it must be replaced by a new file. Raise
        ``Problem`` on failure.

        Args:
            source: status of the source.
            temporary: a free name.
            recipe: the layout that a new copy would get.
        """
        rank = self.rank
        if not rank.options.inplace:
            return None
        if recipe.attribute is not None and target_layout(rank, self.place).lacks_layout(self.directory, self.name):
            return None  # the run that created the file was killed before the file got its layout
        preserve, job = rank.options.preserve, rank.job.name
        return open_for_overwrite(self.directory, self.name, self.status, source, preserve, job, temporary)

    def is_linkable(self, source: os.stat_result) -> bool:
        """Return True if the item may be kept and get further hard links in directories of other users.

        It may not if a user could write to it, or give it away, who could not do so with a copy of ``source``.
        """
        preserve, present = self.rank.options.preserve, self.status
        owner = preserve.chown[0] if preserve.chown[0] >= 0 else source.st_uid if preserve.ownership else os.geteuid()
        return present.st_uid in (owner, os.geteuid()) and not present.st_mode & ~source.st_mode & _POWER_OF_OTHERS

    def has_links_to_copy(self, source: os.stat_result) -> bool:
        """Return True if ``source`` has other names that are to become hard links to this item. If it may not be
        linked, it is copied again.
        """
        return source.st_nlink > 1 and self.rank.options.preserve.links

    def identity(self) -> Identity:
        """Return the identity of the item. Raise ``Problem`` on failure."""
        with self.open_unchanged() as descriptor:
            return identity_of(descriptor, status_of(descriptor), self.place.target_id.mount_code, created_by_job=False)

    @contextmanager
    def open_unchanged(self) -> Iterator[int]:
        """Yield an O_PATH descriptor of the item. Raise ``TargetChanged`` if its status has changed since it was
        examined, and ``Problem`` for other errors.
        """
        with closed_at_end(open_without_access(self.directory, self.name, on_source=False)) as descriptor:
            if _status_version(status_of(descriptor)) != _status_version(self.status):
                raise TargetChanged
            yield descriptor

    def examine_again(self) -> ExistingItem | None:
        """Return the item that has the name now; None if the name is free. Raise ``Problem`` on failure."""
        status = status_or_none(self.directory, self.name)
        return None if status is None else self._replace(status=status)

    def back_up(self, source: ComparedStatus | None = None) -> None:
        """Back up the item, which will be replaced, if the user wants backups. Raise ``Problem`` on failure.

        Empty directories and items that this job created are not backed up. Clocks alone do not prove that the job
        created an item, so it must also look like ``source``: the user may have saved it after the job began, or
        shortly before.
        """
        rank = self.rank
        if not rank.options.backup or stat.S_ISDIR(self.status.st_mode) or rank.phase >= Phase.REPAIR:
            return
        if source is not None and looks_like_copy(source, self.status, 0) and self.is_made_by_job():
            return
        from pcopy.tasks.files.backup import BackupDirectory

        rank.instance(BackupDirectory).back_up(self.place, self.directory, self.name, self.status)

    def remove(self) -> None:
        """Remove the item to make room for a directory. Raise ``Problem`` on failure."""
        self.back_up()
        with (
            as_problem("unlink"),
            suppress(FileNotFoundError),
        ):  # the backup has moved it, or another program removed it
            os.unlink(self.name, dir_fd=self.directory)

    def needs_comparison(self, source: ComparedStatus) -> bool:
        """Return True if the item is kept only if its contents equal the source.

        This is so with ``--checksum``, if only its time differs, and if an unfinished job may have left it without its
        contents.
        """
        if self.rank.options.checksum or self._may_differ_in_time_only(source):
            return True
        return (
            self.rank.options.compares_existing
            and self.rank.may_lack_contents(self.status)
            and stat.S_ISREG(self.status.st_mode)
        )

    def _may_differ_in_time_only(self, source: ComparedStatus) -> bool:
        """Return True if the item differs from its source in its time only, so that it may suffice to set the time.
        With ``--checksum`` it is False.
        """
        options, present = self.rank.options, self.status
        if not options.compares_existing or options.checksum or not can_compare_contents(source, present):
            return False
        return not looks_like_copy(source, present, options.modify_window)


def find_existing_item(rank: Rank, place: Place, name: bytes) -> ExistingItem | None:
    """Return the existing item that has the name of the copy of ``name``; None if the name is free. Raise ``Problem``
    on failure.
    """
    if place.target_id == NOT_CREATED:
        return None
    directory, new_name = rank.open_target(place), rank.target_name(place, name)
    status = status_or_none(directory, new_name)
    if status is None or (rank.phase == Phase.AGAIN and rank.options.dry_run and _is_deleted_in_dry_run(rank, status)):
        return None
    return ExistingItem(rank, place, directory, new_name, status)


def _is_deleted_in_dry_run(rank: Rank, status: os.stat_result) -> bool:
    """Return True for a directory that a dry run has reported as deleted. No other item can be in the way of items that
    were deferred until deletion.
    """
    return stat.S_ISDIR(status.st_mode) and rank.totals_at_phase_start()[counts.DELETED] > 0


def prepare_name(
    rank: Rank, directory: int, name: bytes, present: os.stat_result | None, source: os.stat_result | None = None
) -> bytes:
    """Return the name under which an item is created that is to be called ``name`` in the open directory.

    Usually this is a temporary name. In a destination that cannot rename (``Options.sequential``) it is ``name``
    itself. The item ``present`` is removed then, unless it is the ``source``. Raise ``Problem`` on failure.
    """
    if not rank.options.sequential:
        return rank.temporary_names.next_name()
    if present is None:
        return name
    if source is not None and os.path.samestat(source, present) and present.st_nlink == 1:
        raise Problem("create", errno.EEXIST, text="it is the source itself")
    if stat.S_ISDIR(present.st_mode):
        make_way_for_rename(directory, name, present)
    else:
        try:
            remove_if_present(directory, name)
        except Problem as problem:
            text = "it has to be removed first, since a file cannot be renamed to it here"
            raise Problem("replace", problem.errno or errno.EIO, text=text) from problem
    return name


@contextmanager
def report_removal(rank: Rank, directory: int, name: bytes, present: os.stat_result | None) -> Iterator[None]:
    """Add to a ``Problem`` the information that ``prepare_name`` has removed the existing item
    ``present``, if it did.
    """
    try:
        yield
    except Problem as problem:
        if not rank.options.sequential or present is None or type(problem) is not Problem:
            raise
        operation, number, text, on_source, changed, again = problem.packed
        if status_or_none(directory, name) is not None:
            raise
        text = f"{text}; the existing file has been removed already, since files cannot be renamed here"
        raise Problem.from_packed((operation, number, text, on_source, changed, again)) from problem


def overwritten_or_recipe(
    rank: Rank, place: Place, present: ExistingItem | None, reading: int, status: os.stat_result, temporary: bytes
) -> tuple[OverwrittenFile | None, Recipe]:
    """Return the existing file, opened to be overwritten, or None and the recipe for a new file. Raise ``Problem`` on
    failure.

    Args:
        reading: descriptor of the source.
        status: its status.
        temporary: a free name.
    """
    target = TargetDirectory(rank.open_target(place), place.target_id.inode)
    recipe = target_layout(rank, place).recipe_for_file(reading, status, target)
    over = None if present is None else present.open_to_overwrite(status, temporary, recipe)
    return (None, recipe) if over is None else (over, DEFAULT_RECIPE)


def _contains(source: int, name: bytes) -> bool:
    """Return True if the open source directory contains ``name``. Raise ``Problem`` for the source's side."""
    try:
        return status_or_none(source, name) is not None
    except Problem as problem:
        raise Problem(problem.operation, problem.errno or errno.EIO, on_source=True) from problem


def with_current_acl(rank: Rank, place: Place) -> Place:
    """Return ``place`` with ``inherits`` determined anew. The directory may have got a default ACL when it was
    finished. Raise ``Problem`` on failure.
    """
    if place.target_id == NOT_CREATED:
        return place
    target = rank.open_target(place)
    return place._replace(inherits_acl=can_inherit_acl(target, status_of(target).st_uid))


def _status_version(status: os.stat_result) -> tuple[int, ...]:
    """Return the parts of a status that change if the item is replaced or changed."""
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size, status.st_uid, status.st_mode


def open_copy(rank: Rank, place: Place, name: bytes, made: Identity) -> tuple[int, bool]:
    """Return an O_PATH descriptor of the item ``made`` under this name, and whether it is certainly that item.

    If the file system provides no reliable identities, the inode number suffices in a directory that only this user may
    write to, because no other user can have put another item there. Raise ``Problem`` if the item was removed or is
    another one.
    """
    directory = rank.open_target(place)
    descriptor = open_without_access(directory, rank.target_name(place, name), on_source=False)
    try:
        seen = identity_of(descriptor, status_of(descriptor), made.mount_code, created_by_job=bool(made.mark))
        likeness = made.compare(seen)
        if likeness is IdentityComparison.OTHER:
            raise Problem("link", errno.ESTALE, text=REPLACED_TEXT)
        return descriptor, likeness is IdentityComparison.SAME or _is_writable_by_us_only(status_of(directory))
    except BaseException:
        close_ignoring_errors(descriptor)
        raise


def _is_writable_by_us_only(directory: os.stat_result) -> bool:
    """Return True if only this user may create names in the directory."""
    return directory.st_uid == os.geteuid() and not directory.st_mode & 0o022


def inherits_acl(rank: Rank, place: Place, target: int) -> bool:
    """Return True if items created in the open target directory of ``place`` must be freed from inherited ACLs. Raise
    ``Problem`` on failure.

    The answer that an earlier run recorded is not trusted, because the directory may have got a default ACL since.
    """
    return place.inherits_acl or (rank.job.run > 1 and can_inherit_acl(target, status_of(target).st_uid))


def may_have_mark(rank: Rank, present: object) -> bool:
    """Return True if a file in the same directory may mark the item as incomplete (``--inplace``).

    This is possible if an item exists (``present`` is not None), or if an earlier run marked one that was removed
    since.
    """
    return rank.options.inplace and (present is not None or rank.job.run > 1)
