"""Targets of files that are recoded (compressed or decompressed): their names, and what is done with existing items of
these names.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import ItemMetadata, read_item_metadata
from pcopy.fsio.close import close_after_read
from pcopy.fsio.existing import are_times_equal, open_existing_file
from pcopy.fsio.layout import LayoutRecipe, TargetDirectory
from pcopy.fsio.new_file import NewFile
from pcopy.fsio.problem import Problem, TargetChangedProblem, errors_as_problem
from pcopy.fsio.recode import USUAL_FRAME_SIZE, compression_frame_size_for_file
from pcopy.fsio.retries import call_with_retries
from pcopy.fsio.seekable_zstd import SeekTable, read_decompressed_pieces
from pcopy.fsio.source import FileContentVersion, check_is_file_found_by_scan, source_item_status, status_of_open_item
from pcopy.signature.items import FILE
from pcopy.tasks.base.actions import ItemAction
from pcopy.tasks.base.job_filters import JobFilter
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.recoded_names import recoded_file_name, recoded_target_name
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import UNCREATED_TARGET_IDENTITY, ContentInfo, Item, Place
from pcopy.tasks.files.existing import (
    MAX_EXAMINATIONS,
    ExistingItem,
    inherits_acl,
    item_status_or_none,
    should_update_metadata,
)
from pcopy.tasks.files.layouts import LayoutPoliciesAndCounts, target_layout_policy
from pcopy.tasks.verify.read_items import count_skipped_or_spawn_read
from pcopy.text import printable_path

_LONGEST_NAME = 255
"""Largest number of bytes of a file name, on any file system of Linux (NAME_MAX)."""


class RecodeTarget(NamedTuple):
    """Where a file of the source directory ``place`` goes when it is recoded (compressed or decompressed).

    ``name`` is its name in the target directory, with or without the ending of the compressed format. ``present`` is
    the existing item of that name, or None.
    """

    rank: Rank
    place: Place
    name: bytes
    present: ExistingItem | None

    @property
    def directory_descriptor(self) -> int:
        """The descriptor of the target directory. Raise ``Problem`` if it cannot be opened."""
        return self.rank.open_target_directory(self.place)

    @property
    def target_directory(self) -> TargetDirectory:
        """The target directory, as the functions that choose a layout (Lustre: striping) need it."""
        return TargetDirectory(self.directory_descriptor, self.place.target_id.inode)

    @property
    def existing_item_status(self) -> os.stat_result | None:
        """The status of the existing item; None if there is none."""
        return None if self.present is None else self.present.status

    def layout_recipe(self, reading: int, status: os.stat_result) -> LayoutRecipe:
        """Return how the new file is to be created, so that it gets its layout on the file system (Lustre: striping).
        ``reading`` is the open source file, ``status`` its status.

        Raise ``Problem`` if the layout of the source cannot be read.
        """
        return target_layout_policy(self.rank, self.place).layout_recipe_for_file(
            reading, status, self.target_directory
        )


def target_of_recoded_file(rank: Rank, item: Item) -> RecodeTarget:
    """Return the target of the file ``item``: its new name, and the existing item of that name.

    Raise ``Problem`` if the new name is too long, is also that of another item that is copied, or cannot be examined.
    """
    place, name = item.names[0]
    new_name = recoded_target_name(rank.job, place, name)
    assert new_name is not None  # these tasks exist only for files that are recoded
    if len(new_name) > _LONGEST_NAME:
        text = f"its name in the target would be too long (more than 255 bytes): {printable_path(new_name)}"
        raise Problem("create", errno.ENAMETOOLONG, text=text)
    if _is_name_taken(rank, place, new_name):
        text = f"its name in the target, {printable_path(new_name)}, is that of another item of the source"
        raise Problem("create", errno.EEXIST, text=text)
    if place.target_id == UNCREATED_TARGET_IDENTITY:
        return RecodeTarget(rank, place, new_name, None)
    directory = rank.open_target_directory(place)
    status = item_status_or_none(directory, new_name)
    present = None if status is None else ExistingItem(rank, place, directory, new_name, status)
    return RecodeTarget(rank, place, new_name, present)


def _is_name_taken(rank: Rank, place: Place, new_name: bytes) -> bool:
    """Return True if the name that a file gets in the target belongs to another item: the source has an item
    ``new_name`` in the same directory, ``place``, and copies it as well.

    That item gets the name in the target, whichever of the two is copied first.
    """
    roots = rank.job.roots
    if roots[place.root].item:
        return any(root.name == new_name for number, root in enumerate(roots) if number != place.root)
    if not _is_source_item_selected(rank, place, new_name):
        return False
    return not rank.copy_options.list_file or _is_path_listed(rank, os.path.join(place.path, new_name))


def must_be_recoded_by_rank_0(rank: Rank, item: Item) -> bool:
    """Return True if ``item`` must be passed to rank 0, because only rank 0 can recode it. That is so with
    ``--from``, if the source also has an item of the name that the recoded file gets.

    Only rank 0 knows the list, and can check whether that item is in it. Raise ``Problem`` if the source cannot be
    examined.
    """
    if not rank.number or not rank.copy_options.list_file:
        return False
    place, name = item.names[0]
    new_name = recoded_file_name(rank.copy_options, name)
    return new_name is not None and len(new_name) <= _LONGEST_NAME and _is_source_item_selected(rank, place, new_name)


def _is_path_listed(rank: Rank, path: bytes) -> bool:
    """Return True if the list of ``--from`` contains ``path``. Raise ``Problem`` if the list cannot be read."""
    from pcopy.tasks.directories.copy_listed import ListedPaths

    with errors_as_problem("read the list of --from", on_source=True):
        return rank.shared_instance(ListedPaths).has_path_or_parent(path)


def _is_source_item_selected(rank: Rank, place: Place, name: bytes) -> bool:
    """Return True if the source has an item ``name`` that the filters do not exclude. Raise ``Problem`` if it cannot be
    examined.
    """
    directory = rank.open_source_directory(place)
    try:
        status = source_item_status(directory, name)
        if rank.copy_options.dereference and stat.S_ISLNK(status.st_mode):
            with suppress(Problem):  # a dangling symbolic link is selected as a link
                status = source_item_status(directory, name, follow=True)
    except Problem as problem:
        if problem.errno == errno.ENOENT:
            return False
        raise
    return rank.shared_instance(JobFilter).selects_item(place, name, status)


@contextmanager
def open_checked_source_of_item(rank: Rank, item: Item) -> Iterator[tuple[int, os.stat_result]]:
    """Context manager: open the source file of ``item``, and provide its descriptor and its status.

    Raise ``Problem`` if it cannot be opened, or is not the file that the scan has found.
    """
    with rank.open_source_file(item.place, item.name) as reading:
        status = status_of_open_item(reading, on_source=True)
        check_is_file_found_by_scan(status, rank.source_device(item.place, item.mount), item.inode)
        yield reading, status


def compression_level(rank: Rank) -> int:
    """Return the compression level that the option ``--compress`` states."""
    return int(rank.copy_options.compress.partition(":")[2])


def source_bytes_per_frame(rank: Rank, place: Place, reading: int, size: int) -> int:
    """Return how many bytes of the source each frame of the compressed file holds. (A frame is compressed by itself;
    larger files with wider stripes get larger frames.)

    Raise ``Problem`` if the layout of the open source file ``reading`` cannot be read.
    """
    if size <= USUAL_FRAME_SIZE:
        return USUAL_FRAME_SIZE
    source = rank.open_source_directory(place)
    layout = rank.shared_instance(LayoutPoliciesAndCounts).layout_policy_of_device(
        status_of_open_item(reading, on_source=True).st_dev, source
    )
    stripes = layout.stripes_of_file(reading)
    return compression_frame_size_for_file(size, stripes.stripe_size or stripes.max_stripe_size)


def skip_if_up_to_date(
    result: TaskResult, goal: RecodeTarget, item: Item, reading: int, status: os.stat_result
) -> Generator[None, None, bool]:
    """If the existing item in the target is up to date and stays, count the source as skipped, and return True. Return
    False if it must be replaced, or if there is none.

    A file that an earlier run of this job has created is replaced, because only files that are recorded as done are
    known to be complete. Raise ``Problem`` if the existing item cannot be examined.
    """
    present = goal.present
    for examination in range(1, MAX_EXAMINATIONS + 1):
        if present is None:
            break
        try:
            return (yield from _skip_if_up_to_date_once(result, present, item, reading, status))
        except TargetChangedProblem:
            if examination == MAX_EXAMINATIONS:
                raise
        present = present.item_with_current_status()
    return False


def _skip_if_up_to_date_once(
    result: TaskResult, present: ExistingItem, item: Item, reading: int, status: os.stat_result
) -> Generator[None, None, bool]:
    """If the existing item ``present`` is up to date and stays, count the source as skipped, and return True; otherwise
    return False.

    Raise ``TargetChangedProblem`` if the existing item has changed meanwhile, and must be examined again.
    """
    rank = present.rank
    if present.is_from_earlier_run() and not stat.S_ISDIR(present.status.st_mode):
        return False
    is_sound = rank.copy_options.compares_existing and not rank.may_lack_contents(
        present.status
    )  # otherwise its contents may be incomplete
    is_current = is_sound and (yield from _is_existing_file_up_to_date(rank, reading, status, present))
    if not is_current:
        if rank.options.dry_run:
            present.refuse_nonempty_directory()
        return False
    action = ItemAction.SKIP
    if should_update_metadata(rank):
        from pcopy.tasks.files.update_metadata import has_source_metadata, update_existing_metadata

        if not has_source_metadata(rank, item.place, item.name, status, present):
            updated = update_existing_metadata(
                result, item.name, present, read_item_metadata(reading, status, rank.options.preserve)
            )
            if updated is None:
                return False
            action = updated[1]
    known = ContentInfo(FILE, status.st_size, b"", FileContentVersion.from_status(status))
    count_skipped_or_spawn_read(rank, result, item.place, item.name, known, action)
    return True


def _is_existing_file_up_to_date(
    rank: Rank, reading: int, status: os.stat_result, present: ExistingItem
) -> Generator[None, None, bool]:
    """Return True if the existing file ``present`` is what the source would be compressed or decompressed to.

    Its mtime must equal that of the source, and the seek table of the compressed file must state the size of the other
    file. The table must fit the compressed file to the byte: a truncated file has none, and neither has a file whose
    size was set before it was written. If a compressed source has no such table, the contents are compared. Raise
    ``Problem`` if the source cannot be read.
    """
    target_status = present.status
    if not stat.S_ISREG(target_status.st_mode):
        return False
    if not are_times_equal(status.st_mtime_ns, target_status.st_mtime_ns, rank.copy_options.modify_window):
        return False
    table = SeekTable.read(reading, status.st_size) if rank.copy_options.decompress else None
    if table is not None:
        return table.content_size == target_status.st_size
    try:
        descriptor = open_existing_file(present.directory, present.name, target_status)
    except Problem:  # a target that cannot be opened is replaced
        return False
    try:
        if rank.copy_options.decompress:
            return (
                yield from _has_decompressed_contents(rank, descriptor, target_status.st_size, reading, status.st_size)
            )
        return _seek_table_states_size(descriptor, target_status.st_size, status.st_size)
    finally:
        close_after_read(descriptor)


def _seek_table_states_size(compressed: int, length: int, size: int) -> bool:
    """Return True if the open target file ``compressed``, which has ``length`` bytes, has a seek table that states
    ``size``.
    """
    try:
        table = SeekTable.read(compressed, length)
    except Problem:  # a target that cannot be read is replaced
        return False
    return table is not None and table.content_size == size


def _has_decompressed_contents(
    rank: Rank, target: int, size: int, compressed: int, length: int
) -> Generator[None, None, bool]:
    """Return True if the open file ``target`` of ``size`` bytes contains exactly the decompressed contents of the open
    file ``compressed``, which has ``length`` bytes.

    Raise ``Problem`` if the compressed file cannot be read.
    """
    at = 0
    for piece in read_decompressed_pieces(compressed, length):
        if at + len(piece) > size or not _has_bytes_at(target, at, piece):
            return False
        at += len(piece)
        yield
        yield from rank.throttle.charge_limits_and_wait(len(piece))
    return at == size


def _has_bytes_at(target: int, at: int, piece: bytes) -> bool:
    """Return True if the open file ``target`` has the bytes of ``piece`` at the offset ``at``. If it cannot be read
    there, return False.
    """
    while piece:
        try:
            present = call_with_retries(partial(os.pread, target, len(piece), at))
        except OSError:  # a target that cannot be read is replaced
            return False
        if not present or not piece.startswith(present):
            return False
        at, piece = at + len(present), piece[len(present) :]
    return True


def commit_recoded_file(
    result: TaskResult, goal: RecodeTarget, item: Item, new: NewFile, status: os.stat_result, attributes: ItemMetadata
) -> None:
    """Apply the metadata ``attributes`` to the complete file ``new``, and rename it to its final name in the target
    ``goal``.

    Raise ``Problem`` if that fails; ``MetadataProblem`` if the file exists but lacks some metadata.
    """
    rank, place, present = goal.rank, goal.place, goal.present
    options = rank.options
    rank.detect_times_set_on_close(goal.directory_descriptor, rank.target_device(place), result.notices)
    mode_source = None if present is None else present.status_with_kept_mode(status)
    inherits = inherits_acl(rank, place, goal.directory_descriptor)
    applied = new.apply_metadata(
        attributes, options.preserve, options.umask, existing=mode_source, inherits_acl=inherits
    )
    if present is not None:
        present.back_up_item(status)
    new.commit(goal.name, goal.existing_item_status, sync=rank.syncs_each_file(place), store=options.sync)
    if new.metadata_problem is not None:
        raise new.metadata_problem
    result.record_applied_metadata(
        place, item.name, applied
    )  # only after success, because a failed attempt is repeated
