"""Creation of one new item, from an empty temporary file to the finished file, or its removal.

    with NewFile.create_temporary(directory, temporary) as new:  # empty, mode 0600, owned by this process
        ...  # write to new.descriptor
        new.apply_metadata(attributes, preserve, umask)
        new.commit(name)  # close, remove an empty directory in the way, rename, check the name

If the block ends without ``commit`` or ``close_without_removing``, by an error or not, the item is removed.
``close_without_removing`` closes the item and leaves it under the name with which it was created. There are two uses of
that: another task continues with the item (``from_file_of_other_task``) or names it later, or the item has had its
final name from the start (``create``).

An error ends the block with a ``Problem``. The exception is metadata that cannot be set: a file with wrong metadata,
and a message that says so, are better than no file. Such an error is recorded as the ``metadata_problem`` of the file.

Rule: a file whose size was set before its contents are durable gets its final name only after they are. Otherwise a
power failure could leave a file with the size and time of its source but without its data, and the next run would take
it for a complete copy. Therefore ``commit`` of a file whose size was set by ``extend_to_size`` first brings the
contents to stable storage.

A file that is overwritten in place (``--inplace``, ``pcopy.fsio.in_place``) is never removed. It has a mark that shows
that it is incomplete, and the ``Problem`` says so, too.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from types import TracebackType
from typing import Self

from pcopy.fsio.attributes import (
    ItemHandle,
    ItemMetadata,
    MetadataOutcome,
    apply_item_metadata,
    remove_inherited_file_acl,
)
from pcopy.fsio.close import (
    close_after_failure,
    close_after_write,
    close_and_set_times,
    close_ignoring_errors,
    must_set_times_after_close,
)
from pcopy.fsio.data import set_file_size
from pcopy.fsio.identity import ItemIdentity, identity_of_open_item
from pcopy.fsio.in_place import (
    OverwrittenFile,
    incomplete_file_problem,
    remove_xattrs_of_overwritten_file,
    status_before_overwrite,
)
from pcopy.fsio.incomplete_mark import sidecar_name
from pcopy.fsio.layout import (
    DEFAULT_LAYOUT_RECIPE,
    AssignedLayout,
    LayoutRecipe,
    fewer_stripes_message,
    inherited_layout_message,
    set_layout,
)
from pcopy.fsio.nodes import LinkOrSpecialFile, create_link_or_special_file, proc_path_of_descriptor
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.problem import MetadataProblem, Problem, directory_not_empty_problem, errors_as_problem
from pcopy.fsio.source import status_of_open_item
from pcopy.fsio.temporary import (
    create_private_file,
    is_private_file,
    remove_item_if_present,
    rename_and_verify,
    reopen_temporary_file,
    unusual_status_of_new_file,
)


class NewFile:
    """A new regular file that is being written, or (``is_overwriting``) an existing one that is overwritten.
    ``descriptor`` is open for writing until ``commit`` or ``close_without_removing``; -1 before ``reopen``.
    """

    # Defaults are class attributes: setting them for each of many small files takes time.
    metadata_problem: MetadataProblem | None = None
    """First error of setting the metadata of the file; None if there was none. The file is kept in spite of such an
    error.
    """
    layout_reason = ""
    """Reason, for a message, why the file has another Lustre layout than wanted (fewer stripes, or the directory's
    default layout); empty if it has the wanted one.
    """
    recipe: LayoutRecipe = DEFAULT_LAYOUT_RECIPE
    """Describes the layout that the file has: which servers hold its data (``pcopy.fsio.layout``)."""
    _original_mode_and_owner: tuple[int, ...] = ()
    """Mode, owner and group of an existing file before it was overwritten; empty for a new file."""
    _kept_identity: ItemIdentity | None = None
    _status: os.stat_result | None = None
    _is_done = False
    _is_extended = False
    _times: tuple[int, int] | None = None
    """Access and modification time in nanoseconds since 1970, set once more after the file is closed on servers where
    closing changes them; None: not known yet.
    """

    def __init__(
        self, directory: int, original_name: bytes, descriptor: int = -1, before: tuple[int, ...] = ()
    ) -> None:
        """Create the object for a file ``original_name`` in the open ``directory``; nothing is opened or created.

        Args:
            original_name: name with which the file was created; empty if it must never be removed.
            descriptor: descriptor that is open for writing; -1 if the file is opened later.
            before: mode, owner and group of an existing file that is overwritten.
        """
        self.descriptor = descriptor
        self._directory = directory
        self._original_name = original_name
        if before:
            self._original_mode_and_owner = before

    @classmethod
    def create(cls, directory: int, name: bytes, layout: LayoutRecipe = DEFAULT_LAYOUT_RECIPE) -> Self:
        """Create an empty file with mode 0600 as ``name``, which must be free, with the given layout. Raise
        ``Problem``. If the layout cannot be set, the file gets the default layout, and ``layout_reason`` says why.
        """
        new = cls(directory, name, create_private_file(directory, name, layout.flags))
        if layout is not DEFAULT_LAYOUT_RECIPE:
            new.layout_reason = (
                inherited_layout_message(layout.fallback_reason)
                if layout.fallback_reason
                else new._apply_layout(layout)
            )
        return new

    def _apply_layout(self, layout: LayoutRecipe) -> str:
        """Give the new, empty file the ``layout`` that is wanted. Return, for a message, why the file has another
        layout; empty if it has the wanted one.

        If the file got no acceptable layout, it is removed and created again with the default layout, because it may
        have none at all.
        """
        try:
            result = set_layout(self.descriptor, layout)
        except OSError as error:
            result = AssignedLayout(b"", error.strerror or "", is_acceptable=False)
        except BaseException:
            self._close_and_remove()
            raise
        if not result.is_acceptable:
            self._close_and_remove()
            self.descriptor = create_private_file(self._directory, self._original_name)
            return inherited_layout_message(result.deviation)
        assert layout.attribute is not None
        self.recipe = layout._replace(attribute=(layout.attribute[0], result.value)) if result.deviation else layout
        return result.deviation and fewer_stripes_message(result.deviation)

    @classmethod
    def create_temporary_file(
        cls,
        directory: int,
        temporary: bytes,
        *,
        layout: LayoutRecipe = DEFAULT_LAYOUT_RECIPE,
        over: OverwrittenFile | None = None,
    ) -> Self:
        """Create an empty file with mode 0600 and the given ``layout`` under a free ``temporary`` name, and return an
        object for it. If ``over`` is given, create nothing: return an object for the existing file that ``over`` has
        open and that is overwritten. Raise ``Problem``.
        """
        if over is None:
            return cls.create(directory, temporary, layout)
        return cls(directory, b"", over.descriptor, over.original_mode_and_owner)

    @classmethod
    def from_file_of_other_task(
        cls, directory: int, original_name: bytes, made: ItemIdentity, before: tuple[int, ...] = ()
    ) -> Self:
        """Return an object for a file that another task created and kept; ``reopen`` opens the file.

        Other tasks and later runs may continue with the file. So it is removed only after a ``Problem``, not after
        another exception, such as a cancellation.

        Args:
            directory: the open directory that contains the file.
            original_name: name with which the file was created.
            made: identity of the file.
            before: mode, owner and group of an existing file that is overwritten; empty for a new file.
        """
        new = cls(directory, original_name, before=before)
        new._kept_identity = made
        return new

    def allow_reopening_by_other_ranks(self, *, inherits_acl: bool) -> tuple[int, ...]:
        """Make sure that other ranks can open the new file by its name: remove an ACL that it has inherited. Return the
        mode and owner that the server shows for the file; empty if they are the usual ones. The ranks pass this value
        to ``reopen``, which recognises the file by it.

        ``inherits_acl`` is True if the file may have inherited an ACL from its directory. Raise ``Problem``.
        """
        if inherits_acl or not is_private_file(self.status):
            remove_inherited_file_acl(self.descriptor)
            self._status = status_of_open_item(self.descriptor)
        return unusual_status_of_new_file(self.status)

    def reopen(self, size: int, shown: tuple[int, ...] = (), *, extended: bool = True) -> None:
        """Open the file that another task created and kept; this object was made by ``from_file_of_other_task``.

        Raise ``Problem`` if the name leads to another file by now, or if the file does not have this ``size`` in bytes.

        Args:
            size: size of the file in bytes.
            shown: mode and owner that the server showed for the new file, as ``allow_reopening_by_other_ranks``
                returned them; empty if they are the usual ones.
            extended: True if another task may have set the size before the contents were durable. Then ``commit``
                brings the contents to stable storage.
        """
        assert self._kept_identity is not None
        self.descriptor = reopen_temporary_file(self._directory, self._original_name, self._kept_identity, size, shown)
        self._is_extended = extended

    def extend_to_size(self, size: int) -> None:
        """Set the size of the file to ``size`` bytes before its contents are durable. Raise ``Problem``.

        Where nothing is written, a hole remains. ``commit`` brings the contents to stable storage before it renames the
        file.
        """
        set_file_size(self.descriptor, size)
        self._is_extended = True

    @property
    def needs_sync(self) -> bool:
        """True if the contents must be brought to stable storage before the file gets its final name."""
        return self._is_extended

    def mark_synced(self) -> None:
        """Record that the contents are on stable storage, so that ``commit`` does not sync them once more."""
        self._is_extended = False

    @property
    def original_name(self) -> bytes:
        """Name with which the file was created."""
        return self._original_name

    @property
    def is_overwriting(self) -> bool:
        """True if an existing file is overwritten."""
        return bool(self._original_mode_and_owner)

    @property
    def status(self) -> os.stat_result:
        """Status of the file, read when this property is first used. Raise ``Problem``."""
        if self._status is None:
            self._status = status_of_open_item(self.descriptor)
        return self._status

    def file_identity(self, mount: int) -> ItemIdentity:
        """Return the identity by which other ranks recognise the file: mount code, inode number and mark. ``mount`` is
        the mount code of its directory, a number for the file system. Raise ``Problem``.
        """
        return identity_of_open_item(self.descriptor, self.status, mount, created_by_job=True)

    def apply_metadata(
        self,
        attributes: ItemMetadata,
        preserve: PreservedMetadataKinds,
        umask: int,
        *,
        existing: os.stat_result | None = None,
        inherits_acl: bool = False,
    ) -> MetadataOutcome:
        """Apply owner, extended attributes, mode, ACLs and times (``pcopy.fsio.attributes.apply_item_metadata``). An
        error is stored as the ``metadata_problem`` of the file and not raised.

        Args:
            attributes: metadata of the source.
            preserve: the kinds of metadata to apply.
            umask: bits that the mode does not get if modes are not preserved.
            existing: status of an existing file whose owner and mode are used where those of the source are not
                preserved.
            inherits_acl: True if the file may have inherited an ACL from its directory.
        """
        try:
            if self._original_mode_and_owner:
                existing, inherits_acl = status_before_overwrite(self._original_mode_and_owner), True
                remove_xattrs_of_overwritten_file(self.descriptor, attributes, preserve)
            applied = apply_item_metadata(
                self._handle_to_set_metadata(),
                attributes,
                preserve,
                umask,
                existing=existing,
                inherits_acl=inherits_acl,
            )
        except MetadataProblem as problem:
            self.metadata_problem = problem
            applied = MetadataOutcome()
        if preserve.timestamps:
            self._times = attributes.atime, attributes.mtime
        if not self.layout_reason:
            return applied
        return applied._replace(
            layout_reason=self.layout_reason, reduced_layout=self.recipe.attribute[1] if self.recipe.attribute else b""
        )

    def commit(
        self,
        name: bytes,
        present: os.stat_result | None = None,
        *,
        sync: bool = False,
        store: bool = True,
        has_sidecar: bool = False,
    ) -> None:
        """Close the finished file and rename it to ``name``. Raise ``Problem``.

        A file that was created as ``name`` is not renamed.

        Args:
            present: status of the existing item that is replaced, None if there is none.
            sync: bring the contents to stable storage before the rename, in any case.
            store: bring the contents there if ``extend_to_size`` has set the size before; False only with
                ``--no-sync``.
            has_sidecar: True if there may be a sidecar, a mark file of ``--inplace`` that says that the existing file
                ``name`` is half written; it is removed.
        """
        inode = self.status.st_ino if self._kept_identity is None else self._kept_identity.inode
        self._close(sync, store=store and self._is_extended)
        if name != self._original_name:
            rename_to_final_name(self._directory, self._original_name, name, inode, present, has_sidecar=has_sidecar)
        self._is_done = True

    def close_without_removing(self, *, sync: bool = False) -> None:
        """Close the file and leave it under the name that it has, so that the end of the block does not remove it. With
        ``sync``, bring the contents to stable storage first. Raise ``Problem``.
        """
        self._close(sync)
        self._is_done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_done:
            return
        try:
            self._close_and_remove(removes=self._kept_identity is None or error is None or isinstance(error, Problem))
        except Problem as problem:
            if not isinstance(error, Problem):
                raise
            raise problem_with_leftover_notice(error, self._original_name, problem) from error
        if self._original_mode_and_owner and isinstance(error, Problem):
            raise incomplete_file_problem(error) from error

    def _close_and_remove(self, *, removes: bool = True) -> None:
        """Close the file, ignoring errors, and remove it; do not remove it if ``removes`` is False or if it is an
        existing file that is overwritten.
        """
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            close_after_failure(descriptor)
        if removes and self._original_name and not self._original_mode_and_owner:
            remove_item_if_present(self._directory, self._original_name)

    def _close(self, sync: bool, *, store: bool = False) -> None:
        """Close the file; on servers where closing changes the times, set them once more after that. Raise ``Problem``.

        Args:
            sync: bring the contents to stable storage by fsync(2) first.
            store: if ``sync`` is False, bring the contents there by fdatasync(2) first.
        """
        descriptor, self.descriptor = self.descriptor, -1
        if self._times is None or not must_set_times_after_close(descriptor):
            close_after_write(descriptor, sync=sync, store=store)
        elif (
            error := close_and_set_times(descriptor, *self._times, sync=sync, store=store)
        ) and self.metadata_problem is None:
            self.metadata_problem = MetadataProblem("utimensat", error.errno or errno.EIO)

    def _handle_to_set_metadata(self) -> ItemHandle:
        """Return the descriptor, or the path below /proc/self/fd, through which the metadata of the item are set."""
        return self.descriptor


class NewLinkOrSpecialFile(NewFile):
    """A new symbolic link, FIFO, socket or device. ``descriptor`` is an O_PATH descriptor."""

    @classmethod
    def create_link_or_special_file(
        cls, directory: int, name: bytes, node: LinkOrSpecialFile, *, is_temporary: bool
    ) -> Self:
        """Create an item ``name``, which must be free, with the type of ``node`` and its link text or device number;
        return an object for it. Raise ``Problem``.

        ``is_temporary``: True if ``name`` is a temporary name. Only then the item is removed after an error; any other
        name may belong to an item of another process by then.
        """
        new = cls(directory, name if is_temporary else b"")
        try:
            new.descriptor, new._status = create_link_or_special_file(directory, name, node)
        except BaseException:
            new._close_and_remove()
            raise
        return new

    def _close(self, sync: bool, *, store: bool = False) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        close_ignoring_errors(descriptor)

    def _handle_to_set_metadata(self) -> ItemHandle:
        return proc_path_of_descriptor(self.descriptor)


def problem_with_leftover_notice(problem: Problem, name: bytes, removal: Problem) -> Problem:
    """Return ``problem``, the error of a copy, with the addition to its text that the new item ``name`` remains in the
    destination, because its removal failed with the error ``removal``.
    """
    fields = problem.problem_as_tuple
    text = (
        f"{fields[2]}; the incomplete file {os.fsdecode(name)} is left, since it cannot be removed ({removal.strerror})"
    )
    return Problem.from_packed_tuple((*fields[:2], text, *fields[3:]))


def rename_to_final_name(
    directory: int, temporary: bytes, name: bytes, inode: int, present: os.stat_result | None, *, has_sidecar: bool
) -> None:
    """Rename ``temporary`` to ``name``, replacing the existing item ``present``, and check that ``name`` leads to the
    new item.

    Raise ``Problem``.

    Args:
        inode: inode number of the new item; after the rename ``name`` must have it.
        present: status of the existing item, None if there is none.
        has_sidecar: remove the sidecar of ``name``, the mark file of ``--inplace``.
    """
    remove_empty_directory_for_rename(directory, name, present)
    rename_and_verify(directory, temporary, name, inode)
    if has_sidecar:
        remove_item_if_present(directory, sidecar_name(name))


def remove_empty_directory_for_rename(directory: int, name: bytes, present: os.stat_result | None) -> None:
    """Remove the item ``name`` if it is an empty directory, so that an item of another type can be renamed to that
    name. Raise ``Problem``. ``present`` is the status of the item; None if there is none.

    Other items need not be removed, because rename(2) replaces them. A directory that is not empty is an error.
    """
    if present is not None and stat.S_ISDIR(present.st_mode):
        try:
            with errors_as_problem("rmdir"), suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=directory)
        except Problem as problem:
            if problem.is_directory_not_empty_error:
                raise directory_not_empty_problem() from None
            raise
