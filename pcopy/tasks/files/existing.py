"""A target whose name may be taken: what is done with the item that has it.

Is it the job's own, made by an earlier run? Before and after are meant of the job's start, with some grace; ``keeping``
is ``--existing newer``, ``skip`` or ``fail``: then an item is known by its identity alone (``naming``).

| run   | option    | changed | born    | links | own |
| first | -         | -       | -       | -     | no  |
| later | keeping   | -       | -       | -     | no  |
| later | -         | before  | -       | -     | no  |
| later | -         | after   | before  | -     | no  |
| later | -         | after   | after   | -     | yes |
| later | -         | after   | unknown | -     | yes |
| later | --inplace | after   | before  | 1     | yes |
| later | --inplace | after   | before  | more  | no  |

(``Existing.is_made``. Where a directory folds case, what is there may also be another item of the job, which fails the
item: ``refuse_anothers``.)
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pcopy.fsio.attributes import may_inherit_acl
from pcopy.fsio.close import held_open, let_go
from pcopy.fsio.directories import is_empty
from pcopy.fsio.existing import Decision, Status, alike, are_times_equal, decide, may_be_compared, same_link
from pcopy.fsio.half_written import HalfWritten, find, unsure
from pcopy.fsio.identity import Identity, Likeness, birth_of, identity_of
from pcopy.fsio.in_place import Over, open_over
from pcopy.fsio.kernel.columns import GROUP, OWNER
from pcopy.fsio.layout import PLAIN, Recipe, Target
from pcopy.fsio.new_file import clear_way
from pcopy.fsio.nodes import open_node
from pcopy.fsio.problem import REPLACED, Problem, TargetChanged, failing, full_directory
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import is_undressed, remove
from pcopy.named import NamedTuple
from pcopy.tasks.base import counts
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank, is_since
from pcopy.tasks.base.values import UNMADE, Place
from pcopy.tasks.files.layouts import layout_at

EXAMINATIONS = 3
"""How often one attempt examines an item of the target that has changed since it was examined (``TargetChanged``).

Each of its other names that a rank replaces changes the ctime of an inode. Those that are still replaced after that
many examinations fail the attempt; the next one is made when the others have been copied.
"""

_OTHERS_POWER = stat.S_ISUID | stat.S_ISGID | stat.S_IWGRP | stat.S_IWOTH


def look(directory: int, name: bytes) -> os.stat_result | None:
    """The status of ``name`` itself, None if it is free; raises ``Problem``."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Problem.of("stat", error) from error


def status_there(rank: Rank, place: Place, name: bytes) -> os.stat_result | None:
    """What ``name`` is in the target; None if that can't be told."""
    try:
        return look(rank.open_target(place), rank.new_name(place, name))
    except Problem:
        return None


def mends(rank: Rank) -> bool:
    """Does what is there, and stays, get the metadata of its source? ``--checksum`` asks for contents only, but where
    all is to be equal. (What is repaired is copied.)
    """
    options = rank.options
    return (
        options.compares and (options.delete or not options.checksum) and rank.job.copies and rank.phase < Phase.REPAIR
    )


def owners(rank: Rank) -> int:
    """The columns that are wanted beside those of each scan, for that or for an archive: whose an item is."""
    return OWNER | GROUP if rank.options.archive_file or mends(rank) else 0


class Existing(NamedTuple):
    """What is there as ``name`` in ``directory`` (open), the target of ``place``: the ``status`` that it had."""

    rank: Rank
    place: Place
    directory: int
    name: bytes
    status: os.stat_result

    def is_own(self) -> bool:
        """Is it this very item, made by an earlier run? Raises ``Problem`` as ``refuse_anothers`` does."""
        self.refuse_anothers()
        return self.is_made()

    def refuse_anothers(self) -> None:
        """Raises ``Problem`` if it is another item of this job, whose name the directory takes for the same.

        Or if somebody else has made it meanwhile in a directory that this job has made.
        """
        if self.rank.phase < Phase.REPAIR and self._is_anothers():
            text = (
                "something else has taken its name in the target meanwhile (does another job copy to the same place?)"
            )
            if self.rank.spellings.others(self.directory, self.name, self.status):
                text = "its name in the target is taken by another item of this job (does the file system fold case?)"
            raise Problem("create", errno.EEXIST, text=text)

    def is_made(self) -> bool:
        """As ``is_own``, where no other item of this job can have taken the name.

        Where nothing is replaced unasked, what the job has made is known by its identity alone (``naming``).
        """
        return not self.rank.keeps and self.rank.is_ours(self.place, self.status) and not self._was_there()

    def _was_there(self) -> bool:
        """Is an item of which something has changed older than the job? So is a file that further names were linked to,
        or that has lost one, and not so one that was being written over: it has one name."""
        if stat.S_ISREG(self.status.st_mode) and self.rank.options.inplace and self.status.st_nlink == 1:
            return False
        born = birth_of(self.directory, self.name)
        return bool(born) and not is_since(self.rank.job, self.place, born)

    def _is_anothers(self) -> bool:
        rank, place = self.rank, self.place
        is_new = place.fresh and rank.job.run == 1  # later, what is older than the job shows that the directory is, too
        if is_new and not rank.keeps:
            return True
        if not is_new and not (rank.job.began and rank.is_touched(self.status)):
            return False
        return any(map(self._is_made_here, rank.spellings.others(self.directory, self.name, self.status)))

    def _is_made_here(self, name: bytes) -> bool:
        """Does this job make something that is called ``name`` in this target directory? Raises ``Problem``."""
        rank, root = self.rank, self.place.root
        if not os.path.sameopenfile(self.directory, rank.targets[root].open(b"")):
            return _holds(rank.open_source(self.place), name)
        roots = rank.job.roots  # all of them go there
        if any(root.name == name for root in roots):
            return True
        return any(_holds(rank.sources[number].open(b""), name) for number, root in enumerate(roots) if not root.name)

    def may_replace(self, source: Status) -> bool:
        """May it give way to ``source``? False: it stays, and the item is skipped.

        What did not verify does, and what an earlier run of this job made. If it ``is_compared``, False says only that
        their contents are to be. Raises ``Problem`` where the item fails instead.
        """
        rank, target, options = self.rank, self.status, self.rank.options
        if rank.phase >= Phase.REPAIR:
            if rank.keeps and not self.gives_way(source):
                raise Problem("create", errno.EEXIST, text="it was changed since it was copied, and is not replaced")
            return True
        if self.is_own() and not stat.S_ISDIR(target.st_mode):
            return True
        half = self._half_written()
        if half is not None and (half.sure or alike(source, target, 0)):
            return True
        decision = decide(options.existing, options.modify_window, source, target, contents=options.checksum)
        if half is not None and decision is Decision.SKIP and not options.checksum:
            raise unsure(self.name)
        if decision is Decision.FAIL:
            raise Problem("create", errno.EEXIST)
        if decision is Decision.REPLACE and (options.delete or options.dry_run):
            self.refuse_full()
        return decision is Decision.REPLACE and (half is not None or not self._differs_in_time(source))

    def refuse_full(self) -> None:
        """Raises ``Problem`` if it is a directory that is in the way, before anything is copied for that."""
        if stat.S_ISDIR(self.status.st_mode) and not is_empty(self.directory, self.name):
            raise full_directory()

    def gives_way(self, source: Status) -> bool:
        """Where nothing is replaced unasked: does it give way to ``source``?

        What is repaired was a copy, and still has the source's time, unless somebody has written to it.
        """
        options = self.rank.options
        if self.rank.phase >= Phase.REPAIR:
            return self.status.st_mtime_ns == source.st_mtime_ns
        if self._is_half_written():
            return True
        return decide(options.existing, options.modify_window, source, self.status) is Decision.REPLACE

    def has_other_text(self, source: Status, directory: int, name: bytes, *, on_source: bool = True) -> bool:
        """Return True if this is a symbolic link that must be replaced because its text is not that of the symbolic
        link ``name`` in ``directory`` (open), which has the status ``source`` or is a copy of such an item.

        Texts are compared where the present item stays because it looks like its source, thus not with ``--existing
        skip`` or ``fail``, nor with ``newer`` if the present item is later. ``on_source``: the side of ``directory``.
        Raises ``Problem``.
        """
        options, present = self.rank.options, self.status
        if not (stat.S_ISLNK(source.st_mode) and stat.S_ISLNK(present.st_mode)):
            return False
        is_equal = are_times_equal(source.st_mtime_ns, present.st_mtime_ns, options.modify_window)
        is_later = present.st_mtime_ns > source.st_mtime_ns and not is_equal
        if not (options.compares or (options.existing == "newer" and not is_later)):
            return False
        return not same_link(directory, name, self.directory, self.name, on_source=on_source)

    def _half_written(self) -> HalfWritten | None:
        """Its mark, by this job or by one that nobody goes on with. Asked for what may well have one, not for each
        file."""
        options, target = self.rank.options, self.status
        if not stat.S_ISREG(target.st_mode) or not (options.inplace or is_undressed(target)):
            return None
        mark = find(self.directory, self.name, target)
        return mark if mark is not None and (mark.job == self.rank.job.name or options.existing != "fail") else None

    def _is_half_written(self) -> bool:
        mark = self._half_written()
        return mark is not None and mark.sure

    def kept_from(self, source: os.stat_result) -> os.stat_result | None:
        """Its status, if the copy takes its mode where that is not preserved: not so what a run was killed over.

        Such an item has the mode of a new one, and not yet the source's size or time. (Where there is a mark, that
        tells.)
        """
        rank, present, preserve = self.rank, self.status, self.rank.options.preserve
        if preserve.mode or rank.keeps or stat.S_IMODE(present.st_mode) != 0o600:
            return present
        is_dated = present.st_mtime_ns == source.st_mtime_ns or not preserve.timestamps
        if present.st_size == source.st_size and is_dated:
            return present
        made_or_changed = min(present.st_ctime_ns, birth_of(self.directory, self.name))
        is_old = not is_since(rank.job, self.place, made_or_changed)
        return present if is_old or self._is_half_written() else None

    def open_over(self, source: os.stat_result, temporary: bytes, recipe: Recipe) -> Over | None:
        """It is opened to be written over by ``source``, a new copy of which is made by ``recipe``; None where it has
        to be replaced. ``temporary`` is a free name. Raises ``Problem``."""
        rank = self.rank
        if not rank.options.inplace:
            return None
        if recipe.attribute is not None and layout_at(rank, self.place).lacks(self.directory, self.name):
            return None  # whoever has made it was killed before it got its layout
        preserve, job = rank.options.preserve, rank.job.name
        return open_over(self.directory, self.name, self.status, source, preserve, job, temporary)

    def is_linkable(self, source: os.stat_result) -> bool:
        """May it stay and get further names that lie in directories of others? Not if somebody could write to it, or
        give it away, who could not do so with a copy of ``source``."""
        preserve, present = self.rank.options.preserve, self.status
        owner = preserve.chown[0] if preserve.chown[0] >= 0 else source.st_uid if preserve.ownership else os.geteuid()
        return present.st_uid in (owner, os.geteuid()) and not present.st_mode & ~source.st_mode & _OTHERS_POWER

    def has_further_names(self, source: os.stat_result) -> bool:
        """Has the ``source`` any that are to become links to this? If it may not be linked, it is copied anew."""
        return source.st_nlink > 1 and self.rank.options.preserve.links

    def identity(self) -> Identity:
        with self.held() as held:
            return identity_of(held, status_of(held), self.place.target_id.mount, made=False)

    @contextmanager
    def held(self) -> Iterator[int]:
        """A descriptor (O_PATH) of this very item, as it was when it was looked at; raises ``Problem``, which is
        ``TargetChanged`` if its status is another one."""
        with held_open(open_node(self.directory, self.name, on_source=False)) as held:
            if _version(status_of(held)) != _version(self.status):
                raise TargetChanged
            yield held

    def examined_again(self) -> Existing | None:
        """Return what has the name now; None if it is free. Raises ``Problem``."""
        status = look(self.directory, self.name)
        return None if status is None else self._replace(status=status)

    def back_up(self, source: Status | None = None) -> None:
        """It is going to be replaced: where the user wants that, it is kept elsewhere. Raises ``Problem``.

        Not so an empty directory, nor what this job has made. Clocks alone do not tell that: it looks like the
        ``source``, too. Else it may have been saved since the job began, or shortly before.
        """
        rank = self.rank
        if not rank.options.backup or stat.S_ISDIR(self.status.st_mode) or rank.phase >= Phase.REPAIR:
            return
        if source is not None and alike(source, self.status, 0) and self.is_made():
            return
        from pcopy.tasks.files.backup import Backup

        rank.own(Backup).keep(self.place, self.directory, self.name, self.status)

    def unlink(self) -> None:
        """It gives way to a directory; raises ``Problem``."""
        self.back_up()
        with failing("unlink"), suppress(FileNotFoundError):  # it has been moved, or has gone
            os.unlink(self.name, dir_fd=self.directory)

    def is_compared(self, source: Status) -> bool:
        """Does it stay only if its contents are the same? So with ``--checksum``, where its time alone differs, and
        where a job that has not finished may have left it without its contents."""
        if self.rank.options.checksum or self._differs_in_time(source):
            return True
        return self.rank.options.compares and self.rank.is_doubted(self.status) and stat.S_ISREG(self.status.st_mode)

    def _differs_in_time(self, source: Status) -> bool:
        """Alone: may it have to be given another time only? (With ``--checksum`` nobody asks.)"""
        options, present = self.rank.options, self.status
        if not options.compares or options.checksum or not may_be_compared(source, present):
            return False
        return not alike(source, present, options.modify_window)


def existing(rank: Rank, place: Place, name: bytes) -> Existing | None:
    """What has the name in the target that ``name`` of the source is to get; raises ``Problem``."""
    if place.target_id == UNMADE:
        return None
    directory, new_name = rank.open_target(place), rank.new_name(place, name)
    status = look(directory, new_name)
    if status is None or (rank.phase == Phase.AGAIN and rank.options.dry_run and _would_be_gone(rank, status)):
        return None
    return Existing(rank, place, directory, new_name, status)


def _would_be_gone(rank: Rank, status: os.stat_result) -> bool:
    """Is it a directory that a dry run has told to be deleted? Nothing else is in the way of what waits for that."""
    return stat.S_ISDIR(status.st_mode) and rank.begun_with()[counts.DELETED] > 0


def name_to_make(
    rank: Rank, directory: int, name: bytes, present: os.stat_result | None, source: os.stat_result | None = None
) -> bytes:
    """Return the name under which an item is made that is to be called ``name`` in an open directory.

    That is a temporary name. In a destination that cannot rename (``Options.sequential``) it is ``name`` itself, and
    what is ``present`` there is removed; unless it is the ``source``. Raises ``Problem``.
    """
    if not rank.options.sequential:
        return rank.temporary_names.next()
    if present is None:
        return name
    if source is not None and os.path.samestat(source, present) and present.st_nlink == 1:
        raise Problem("create", errno.EEXIST, text="it is the source itself")
    if stat.S_ISDIR(present.st_mode):
        clear_way(directory, name, present)
    else:
        try:
            remove(directory, name)
        except Problem as problem:
            text = "it has to be removed first, since a file cannot be renamed to it here"
            raise Problem("replace", problem.errno or errno.EIO, text=text) from problem
    return name


@contextmanager
def stating_removal(rank: Rank, directory: int, name: bytes, present: os.stat_result | None) -> Iterator[None]:
    """Add to a ``Problem`` that what was ``present`` as ``name`` is not there any more, if ``name_to_make`` has removed
    it."""
    try:
        yield
    except Problem as problem:
        if not rank.options.sequential or present is None or type(problem) is not Problem:
            raise
        operation, number, text, on_source, changed, again = problem.plain
        if look(directory, name) is not None:
            raise
        text = f"{text}; the existing file has been removed already, since files cannot be renamed here"
        raise Problem.from_plain((operation, number, text, on_source, changed, again)) from problem


def over_or_new(
    rank: Rank, place: Place, present: Existing | None, reading: int, status: os.stat_result, temporary: bytes
) -> tuple[Over | None, Recipe]:
    """What is ``present``, opened to be written over; else None, and by which recipe a new file is made. The source is
    open, and has this ``status``; ``temporary`` is a free name. Raises ``Problem``."""
    target = Target(rank.open_target(place), place.target_id.inode)
    recipe = layout_at(rank, place).of_file(reading, status, target)
    over = None if present is None else present.open_over(status, temporary, recipe)
    return (None, recipe) if over is None else (over, PLAIN)


def _holds(source: int, name: bytes) -> bool:
    try:
        return look(source, name) is not None
    except Problem as problem:
        raise Problem(problem.operation, problem.errno or errno.EIO, on_source=True) from problem


def looked_at_again(rank: Rank, place: Place) -> Place:
    """``place`` with what is made in its target directory inherits now: since it was scanned, it may have been finished
    and have got a default ACL. Raises ``Problem``."""
    if place.target_id == UNMADE:
        return place
    target = rank.open_target(place)
    return place._replace(inherits=may_inherit_acl(target, status_of(target).st_uid))


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size, status.st_uid, status.st_mode


def hold_copy(rank: Rank, place: Place, name: bytes, made: Identity) -> tuple[int, bool]:
    """A descriptor (O_PATH) of what was ``made`` and has this name, and whether it is that for certain.

    Where identities can't be told its number serves in a directory that is ours alone: nobody else can have put another
    item there. Raises ``Problem`` if it is gone, or another one.
    """
    directory = rank.open_target(place)
    held = open_node(directory, rank.new_name(place, name), on_source=False)
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


def inherits_acl(rank: Rank, place: Place, target: int) -> bool:
    """Must what is made in the open directory of ``place`` be freed from ACLs? Raises ``Problem``.

    What an earlier run has recorded is looked at anew: since then the directory may have got a default ACL.
    """
    return place.inherits or (rank.job.run > 1 and may_inherit_acl(target, status_of(target).st_uid))


def may_be_marked(rank: Rank, present: object) -> bool:
    """May there be a file beside what is ``present`` that marks it as half written? Or beside what has gone since."""
    return rank.options.inplace and (present is not None or rank.job.run > 1)
