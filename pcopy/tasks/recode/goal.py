"""Where a file that is compressed or decompressed goes, and what is done with what has its name there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from pcopy.fsio.attributes import Attributes, read_attributes
from pcopy.fsio.close import close_read
from pcopy.fsio.existing import are_times_equal, open_existing
from pcopy.fsio.layout import Recipe, Target
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.patience import patiently
from pcopy.fsio.problem import Problem, TargetChanged, failing
from pcopy.fsio.recode import SPAN, span_of
from pcopy.fsio.seekable_zstd import SeekTable, read_frames
from pcopy.fsio.source import Version, check_found, source_status, status_of
from pcopy.named import NamedTuple
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import Action
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.recoded import recoded_in, recoded_name
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.selected import Selected
from pcopy.tasks.base.values import UNMADE, Item, Known, Place
from pcopy.tasks.files.existing import EXAMINATIONS, Existing, inherits_acl, look, mends
from pcopy.tasks.files.layouts import Layouts, layout_at
from pcopy.tasks.verify.read_items import skipped
from pcopy.text import shown

_LONGEST_NAME = 255
"""Bytes of a name, on any file system of Linux."""


class Goal(NamedTuple):
    """The ``name`` that an item of ``place`` is to get in the target, and what is ``present`` under it."""

    rank: Rank
    place: Place
    name: bytes
    present: Existing | None

    @property
    def directory(self) -> int:
        """The target's, open; raises ``Problem``."""
        return self.rank.open_target(self.place)

    @property
    def target(self) -> Target:
        return Target(self.directory, self.place.target_id.inode)

    @property
    def there(self) -> os.stat_result | None:
        """The status of what is present."""
        return None if self.present is None else self.present.status

    def recipe(self, reading: int, status: os.stat_result) -> Recipe:
        """How the new file is made; the source is open, and has this ``status``. Raises ``Problem``."""
        return layout_at(self.rank, self.place).of_file(reading, status, self.target)


def goal_of(rank: Rank, item: Item) -> Goal:
    """Raises ``Problem``, also if the name belongs to another item of this job."""
    place, name = item.names[0]
    new_name = recoded_in(rank.job, place, name)
    assert new_name is not None  # others are no task of these kinds
    if len(new_name) > _LONGEST_NAME:
        text = f"its name in the target would be too long, with the ending: {shown(new_name)}"
        raise Problem("create", errno.ENAMETOOLONG, text=text)
    if _is_anothers(rank, place, new_name):
        text = f"its name in the target, {shown(new_name)}, is that of another item of the source"
        raise Problem("create", errno.EEXIST, text=text)
    if place.target_id == UNMADE:
        return Goal(rank, place, new_name, None)
    directory = rank.open_target(place)
    status = look(directory, new_name)
    present = None if status is None else Existing(rank, place, directory, new_name, status)
    return Goal(rank, place, new_name, present)


def _is_anothers(rank: Rank, place: Place, new_name: bytes) -> bool:
    """Is it the name of something else in the source that is copied, too? Whichever comes first, that one gets it."""
    roots = rank.job.roots
    if roots[place.root].item:
        return any(root.name == new_name for number, root in enumerate(roots) if number != place.root)
    if not _is_selected(rank, place, new_name):
        return False
    return not rank.options.files_from or _is_listed(rank, os.path.join(place.path, new_name))


def is_for_the_list(rank: Rank, item: Item) -> bool:
    """Is rank 0 to look whether the name that the item gets is listed, too (``--files-from``)? Raises ``Problem``."""
    if not rank.number or not rank.options.files_from:
        return False
    place, name = item.names[0]
    new_name = recoded_name(rank.options, name)
    return new_name is not None and len(new_name) <= _LONGEST_NAME and _is_selected(rank, place, new_name)


def _is_listed(rank: Rank, path: bytes) -> bool:
    from pcopy.tasks.directories.copy_listed import ListedPaths

    with failing("read the list of --files-from", on_source=True):
        return rank.own(ListedPaths).names(path)


def _is_selected(rank: Rank, place: Place, name: bytes) -> bool:
    """Is anything of this name in the source, and not filtered out? Raises ``Problem``."""
    directory = rank.open_source(place)
    try:
        status = source_status(directory, name)
        if rank.options.dereference and stat.S_ISLNK(status.st_mode):
            with suppress(Problem):  # one that leads nowhere is selected as a link
                status = source_status(directory, name, follow=True)
    except Problem as problem:
        if problem.errno == errno.ENOENT:
            return False
        raise
    return rank.own(Selected).takes_found(place, name, status)


@contextmanager
def checked(rank: Rank, item: Item) -> Iterator[tuple[int, os.stat_result]]:
    """The file of the source, open, and its status: it is the one that was found. Raises ``Problem``."""
    with rank.reading(item.place, item.name) as reading:
        status = status_of(reading, on_source=True)
        check_found(status, rank.source_device(item.place, item.mount), item.inode)
        yield reading, status


def level_of(rank: Rank) -> int:
    """That of ``--compress``."""
    return int(rank.options.compress.partition(":")[2])


def span_for(rank: Rank, place: Place, reading: int, size: int) -> int:
    """Bytes of each frame of a file of the source that is open (``pcopy.fsio.recode``); raises ``Problem``."""
    if size <= SPAN:
        return SPAN
    source = rank.open_source(place)
    layout = rank.own(Layouts).of(status_of(reading, on_source=True).st_dev, source)
    stripes = layout.stripes_of(reading)
    return span_of(size, stripes.size or stripes.unit)


def stays(result: Result, goal: Goal, item: Item, reading: int, status: os.stat_result) -> Generator[None, None, bool]:
    """Return True if what is there stays; the item counts as skipped then. Raises ``Problem``.

    What an earlier run of this job has made gives way, since only what is on record is known to be whole.
    """
    present = goal.present
    for examination in range(1, EXAMINATIONS + 1):
        if present is None:
            break
        try:
            return (yield from _stays(result, present, item, reading, status))
        except TargetChanged:
            if examination == EXAMINATIONS:
                raise
        present = present.examined_again()
    return False


def _stays(
    result: Result, present: Existing, item: Item, reading: int, status: os.stat_result
) -> Generator[None, None, bool]:
    """As ``stays``; raises ``TargetChanged`` if what is ``present`` is to be examined again."""
    rank = present.rank
    if present.is_own() and not stat.S_ISDIR(present.status.st_mode):
        return False
    options = rank.options
    is_sound = options.compares and not rank.is_doubted(present.status)  # else it may lack its contents
    is_current = is_sound and (yield from _is_current(rank, reading, status, present))
    if not is_current:
        if options.dry_run:
            present.refuse_full()
        return False
    action = Action.SKIP
    if mends(rank):
        from pcopy.tasks.files.mend import is_dressed, mended

        if not is_dressed(rank, item.place, item.name, status, present):
            left = mended(result, item.name, present, read_attributes(reading, status, options.preserve))
            if left is None:
                return False
            action = left[1]
    known = Known(FILE, status.st_size, b"", Version.of(status))
    skipped(rank, result, item.place, item.name, known, action)
    return True


def _is_current(rank: Rank, reading: int, status: os.stat_result, present: Existing) -> Generator[None, None, bool]:
    """Return True if ``present`` is what the source is compressed or decompressed to. Raises ``Problem``.

    Its time is equal to the source's, and the compressed file of the two has a seek table that fits it to the byte and
    states the size of the other one. (A file that was cut short, or was extended before it was filled, has none.) If
    the compressed source has no such table, the contents are compared.
    """
    there = present.status
    if not stat.S_ISREG(there.st_mode):
        return False
    if not are_times_equal(status.st_mtime_ns, there.st_mtime_ns, rank.options.modify_window):
        return False
    table = SeekTable.read(reading, status.st_size) if rank.options.decompress else None
    if table is not None:
        return table.size == there.st_size
    try:
        descriptor = open_existing(present.directory, present.name, there)
    except Problem:  # a target that cannot be read is replaced
        return False
    try:
        if rank.options.decompress:
            return (yield from _holds_contents(rank, descriptor, there.st_size, reading, status.st_size))
        return _states_size(descriptor, there.st_size, status.st_size)
    finally:
        close_read(descriptor)


def _states_size(compressed: int, length: int, size: int) -> bool:
    """Return True if a target of ``length`` bytes, which is open, has a seek table that states this ``size``."""
    try:
        table = SeekTable.read(compressed, length)
    except Problem:  # it is replaced
        return False
    return table is not None and table.size == size


def _holds_contents(rank: Rank, target: int, size: int, compressed: int, length: int) -> Generator[None, None, bool]:
    """Return True if an open file of ``size`` bytes holds what the open file ``compressed``, of ``length`` bytes, is
    decompressed to. Raises ``Problem``."""
    at = 0
    for piece in read_frames(compressed, length):
        if at + len(piece) > size or not _holds(target, at, piece):
            return False
        at += len(piece)
        yield
        yield from rank.throttle.spend(len(piece))
    return at == size


def _holds(target: int, at: int, piece: bytes) -> bool:
    """Return True if an open file has the bytes of ``piece`` at this offset; False also if it cannot be read there."""
    while piece:
        try:
            present = patiently(partial(os.pread, target, len(piece), at))
        except OSError:  # the target is replaced
            return False
        if not present or not piece.startswith(present):
            return False
        at, piece = at + len(present), piece[len(present) :]
    return True


def commit(
    result: Result, goal: Goal, item: Item, new: NewFile, status: os.stat_result, attributes: Attributes
) -> None:
    """The file is filled: it gets its metadata and its name. Raises ``Problem``; ``MetadataProblem`` if it is there and
    lacks some."""
    rank, place, present = goal.rank, goal.place, goal.present
    options = rank.options
    rank.learn_times(goal.directory, rank.target_device(place), result.notices)
    kept = None if present is None else present.kept_from(status)
    inherits = inherits_acl(rank, place, goal.directory)
    applied = new.dress(attributes, options.preserve, options.umask, kept=kept, inherits=inherits)
    if present is not None:
        present.back_up(status)
    new.commit(goal.name, goal.there, sync=rank.syncs_items(place), store=options.sync)
    if new.shortcoming is not None:
        raise new.shortcoming
    result.applied(place, item.name, applied)  # not before it is there: what fails is tried again
