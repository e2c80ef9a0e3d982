"""Creation of one new item, from an empty temporary file to the finished file, or its removal.

    with NewFile.create_temporary(directory, temporary) as new:  # empty, mode 0600, owned by this process
        ...  # write to new.descriptor
        new.apply_metadata(attributes, preserve, umask)
        new.commit(name)  # close, make room, rename, verify the name

If the block ends without ``commit`` or ``close_and_keep``, by an error or not, the item is removed. ``close_and_keep``
closes the item and leaves it under the name with which it was created. There are two uses of that: another task
continues with the item (``continue_kept``) or names it later, or the item has had its final name from the start
(``create``).

An error ends the block with a ``Problem``. The exception is metadata that cannot be set: a file with wrong metadata,
and a message that says so, are better than no file. Such an error is recorded as the ``metadata_problem`` of the file.

Rule: a file whose size was set before its contents are durable gets its final name only after they are. Otherwise a
power failure could leave a file with the size and time of its source but without its data, and the next run would treat
that as a complete copy. Therefore ``commit`` of a file whose size was set by ``extend`` first brings the contents to
stable storage.

A file that is overwritten in place (``pcopy.fsio.in_place``) is never removed. Its mark records that it is incomplete,
and the ``Problem`` says so.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from types import TracebackType
from typing import Self

from pcopy.fsio.attributes import Attributes, Handle, MetadataOutcome, apply_attributes, remove_inherited_file_acl
from pcopy.fsio.close import (
    close_after_failure,
    close_after_write,
    close_and_set_times,
    close_ignoring_errors,
    must_set_times_after_close,
)
from pcopy.fsio.data import set_size
from pcopy.fsio.identity import Identity, identity_of
from pcopy.fsio.in_place import OverwrittenFile, incomplete_file_problem, original_status, remove_old_xattrs
from pcopy.fsio.incomplete_mark import sidecar_name
from pcopy.fsio.layout import (
    DEFAULT_RECIPE,
    LayoutResult,
    Recipe,
    fewer_stripes_message,
    inherited_layout_message,
    set_layout,
)
from pcopy.fsio.nodes import Node, create_node, path_of_descriptor
from pcopy.fsio.preserve import Preserve
from pcopy.fsio.problem import MetadataProblem, Problem, as_problem, directory_not_empty
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import (
    create_private_file,
    differing_status,
    is_private_file,
    remove_if_present,
    rename_and_verify,
    reopen_temporary,
)


class NewFile:
    """A new regular file. ``descriptor`` is open for writing until ``commit`` or ``close_and_keep``."""

    # Defaults are class attributes: setting them for each of many small files takes time.
    metadata_problem: MetadataProblem | None = None
    """Error of metadata that could not be set; None if there was none."""
    layout_reason = ""
    """Reason why the file does not have the wanted Lustre layout: it has fewer stripes, or the directory's default
    layout.
    """
    recipe: Recipe = DEFAULT_RECIPE
    """Recipe of the layout that the file has."""
    _original_mode_and_owner: tuple[int, ...] = ()
    """Mode, owner and group of an existing file that is overwritten; empty for a new file."""
    _kept_identity: Identity | None = None
    _status: os.stat_result | None = None
    _is_done = False
    _is_extended = False
    _times: tuple[int, int] | None = None
    """Access and modification time in nanoseconds, to be set after the file is closed where closing changes them."""

    def __init__(self, directory: int, made_as: bytes, descriptor: int = -1, before: tuple[int, ...] = ()) -> None:
        """Wrap a file in the open ``directory`` that is called ``made_as``.

        Args:
            made_as: name with which the file was created; empty if it must never be removed.
            descriptor: descriptor that is open for writing; -1 if the file is opened later.
            before: mode, owner and group of an existing file that is overwritten.
        """
        self.descriptor = descriptor
        self._directory = directory
        self._original_name = made_as
        if before:
            self._original_mode_and_owner = before

    @classmethod
    def create(cls, directory: int, name: bytes, layout: Recipe = DEFAULT_RECIPE) -> Self:
        """Create an empty file with mode 0600 as ``name``, which must be free. Raise ``Problem``."""
        new = cls(directory, name, create_private_file(directory, name, layout.flags))
        if layout is not DEFAULT_RECIPE:
            new.layout_reason = (
                inherited_layout_message(layout.fallback_reason)
                if layout.fallback_reason
                else new._apply_layout(layout)
            )
        return new

    def _apply_layout(self, layout: Recipe) -> str:
        """Give the new file its ``layout``; return the reason if it is another one than wanted.

        If the server gives no layout of the wanted kind, the file is removed and created again with the default layout,
        because it may have none at all.
        """
        try:
            result = set_layout(self.descriptor, layout)
        except OSError as error:
            result = LayoutResult(b"", error.strerror or "", is_acceptable=False)
        except BaseException:
            self._discard()
            raise
        if not result.is_acceptable:
            self._discard()
            self.descriptor = create_private_file(self._directory, self._original_name)
            return inherited_layout_message(result.deviation)
        assert layout.attribute is not None
        self.recipe = layout._replace(attribute=(layout.attribute[0], result.value)) if result.deviation else layout
        return result.deviation and fewer_stripes_message(result.deviation)

    @classmethod
    def create_temporary(
        cls, directory: int, temporary: bytes, *, layout: Recipe = DEFAULT_RECIPE, over: OverwrittenFile | None = None
    ) -> Self:
        """Create a file as ``create`` does, under a ``temporary`` name; with ``over``, wrap the existing file that it
        holds open instead.
        """
        if over is None:
            return cls.create(directory, temporary, layout)
        return cls(directory, b"", over.descriptor, over.original_mode_and_owner)

    @classmethod
    def continue_kept(cls, directory: int, made_as: bytes, made: Identity, before: tuple[int, ...] = ()) -> Self:
        """Return a file that another task created and kept (``made``); ``reopen`` opens it.

        Other tasks and later runs rely on the file. So it is removed only after a ``Problem``, not after another
        exception.
        """
        new = cls(directory, made_as, before=before)
        new._kept_identity = made
        return new

    def allow_reopening(self, *, inherits_acl: bool) -> tuple[int, ...]:
        """Make sure that other ranks can open the new file by its name; return the value for the parameter ``shown`` of
        ``reopen``.

        ``inherits_acl`` is True if the file may have inherited an ACL from its directory. Raise ``Problem``.
        """
        if inherits_acl or not is_private_file(self.status):
            remove_inherited_file_acl(self.descriptor)
            self._status = status_of(self.descriptor)
        return differing_status(self.status)

    def reopen(self, size: int, shown: tuple[int, ...] = (), *, extended: bool = True) -> None:
        """Open the file that another task created (``continue_kept``).

        Raise ``Problem`` unless it is that file and has this ``size`` in bytes.

        Args:
            shown: the value that ``allow_reopening`` returned.
            extended: True if another task may have set the size before the contents were durable, as ``extend`` does.
        """
        assert self._kept_identity is not None
        self.descriptor = reopen_temporary(self._directory, self._original_name, self._kept_identity, size, shown)
        self._is_extended = extended

    def extend(self, size: int) -> None:
        """Set the size of the file, in bytes, before its contents are durable. Raise ``Problem``.

        A hole remains where nothing is written. ``commit`` brings the contents to stable storage.
        """
        set_size(self.descriptor, size)
        self._is_extended = True

    @property
    def needs_sync(self) -> bool:
        """True if the contents must be brought to stable storage before the file gets its final name."""
        return self._is_extended

    def mark_synced(self) -> None:
        """Record that the contents are on stable storage, so that ``commit`` does not sync them again."""
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
        """Status of the file when it was first read here. Raise ``Problem``."""
        if self._status is None:
            self._status = status_of(self.descriptor)
        return self._status

    def identity(self, mount: int) -> Identity:
        """Return the identity of the file. ``mount`` is the mount code of its directory. Raise ``Problem``."""
        return identity_of(self.descriptor, self.status, mount, created_by_job=True)

    def apply_metadata(
        self,
        attributes: Attributes,
        preserve: Preserve,
        umask: int,
        *,
        existing: os.stat_result | None = None,
        inherits_acl: bool = False,
    ) -> MetadataOutcome:
        """Apply metadata as ``pcopy.fsio.attributes.apply_attributes`` does; errors become the ``metadata_problem`` of
        the file.

        Args:
            attributes: metadata of the source.
            preserve: the kinds of metadata to apply.
            existing: status of an existing file whose owner and mode are used where those of the source are not
                preserved.
            inherits_acl: True if the file may have inherited an ACL from its directory.
        """
        try:
            if self._original_mode_and_owner:
                existing, inherits_acl = original_status(self._original_mode_and_owner), True
                remove_old_xattrs(self.descriptor, attributes, preserve)
            applied = apply_attributes(
                self._metadata_handle(), attributes, preserve, umask, existing=existing, inherits_acl=inherits_acl
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
        marked: bool = False,
    ) -> None:
        """Close the finished file and rename it to ``name``. Raise ``Problem``.

        A file that was created as ``name`` is not renamed.

        Args:
            present: status of the existing item that is replaced, None if there is none.
            sync: bring the contents to stable storage before the rename, in any case.
            store: bring them there if the size was set before they were durable; False only with ``--no-sync``.
            marked: a mark file next to ``name`` may say that the existing file is half written; remove it.
        """
        inode = self.status.st_ino if self._kept_identity is None else self._kept_identity.inode
        self._close(sync, store=store and self._is_extended)
        if name != self._original_name:
            move_into_place(self._directory, self._original_name, name, inode, present, marked=marked)
        self._is_done = True

    def close_and_keep(self, *, sync: bool = False) -> None:
        """Close the file and leave it under the name that it has. Raise ``Problem``."""
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
            self._discard(removes=self._kept_identity is None or error is None or isinstance(error, Problem))
        except Problem as problem:
            if not isinstance(error, Problem):
                raise
            raise with_leftover_notice(error, self._original_name, problem) from error
        if self._original_mode_and_owner and isinstance(error, Problem):
            raise incomplete_file_problem(error) from error

    def _discard(self, *, removes: bool = True) -> None:
        """Close the file, ignoring errors, and remove it unless ``removes`` is False or an existing file is
        overwritten.
        """
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            close_after_failure(descriptor)
        if removes and self._original_name and not self._original_mode_and_owner:
            remove_if_present(self._directory, self._original_name)

    def _close(self, sync: bool, *, store: bool = False) -> None:
        """Close the descriptor, and set the times afterwards where closing changes them. Raise ``Problem``.

        ``sync`` and ``store`` are described at ``commit``.
        """
        descriptor, self.descriptor = self.descriptor, -1
        if self._times is None or not must_set_times_after_close(descriptor):
            close_after_write(descriptor, sync=sync, store=store)
        elif (
            error := close_and_set_times(descriptor, *self._times, sync=sync, store=store)
        ) and self.metadata_problem is None:
            self.metadata_problem = MetadataProblem("utimensat", error.errno or errno.EIO)

    def _metadata_handle(self) -> Handle:
        """Return the descriptor or path through which metadata is set."""
        return self.descriptor


class NewNode(NewFile):
    """A new symbolic link, FIFO, socket or device. ``descriptor`` is an O_PATH one."""

    @classmethod
    def create_node(cls, directory: int, name: bytes, node: Node, *, is_temporary: bool) -> Self:
        """Create ``name``, which must be free, with the type and contents of ``node``. Raise ``Problem``.

        The item is removed after an error only if the name ``is_temporary``: under any other name it may by then be an
        item of another process.
        """
        new = cls(directory, name if is_temporary else b"")
        try:
            new.descriptor, new._status = create_node(directory, name, node)
        except BaseException:
            new._discard()
            raise
        return new

    def _close(self, sync: bool, *, store: bool = False) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        close_ignoring_errors(descriptor)

    def _metadata_handle(self) -> Handle:
        return path_of_descriptor(self.descriptor)


def with_leftover_notice(problem: Problem, name: bytes, removal: Problem) -> Problem:
    """Return ``problem`` with a note that the new item ``name`` remains in the destination, because of
    ``removal``.
    """
    fields = problem.packed
    text = (
        f"{fields[2]}; the incomplete file {os.fsdecode(name)} is left, since it cannot be removed ({removal.strerror})"
    )
    return Problem.from_packed((*fields[:2], text, *fields[3:]))


def move_into_place(
    directory: int, temporary: bytes, name: bytes, inode: int, present: os.stat_result | None, *, marked: bool
) -> None:
    """Rename ``temporary`` to ``name`` in place of the item that is ``present`` there, and verify the result.

    Raise ``Problem``.

    Args:
        inode: inode number of the new item; after the rename ``name`` must have it.
        present: status of the existing item, None if there is none.
        marked: remove the mark file of ``name``, as for ``NewFile.commit``.
    """
    make_way_for_rename(directory, name, present)
    rename_and_verify(directory, temporary, name, inode)
    if marked:
        remove_if_present(directory, sidecar_name(name))


def make_way_for_rename(directory: int, name: bytes, present: os.stat_result | None) -> None:
    """Remove an empty directory ``name``, so that an item of another type can be renamed to it. Raise ``Problem``.

    Other items need not be removed, because rename(2) replaces them. A directory that is not empty is an error.
    """
    if present is not None and stat.S_ISDIR(present.st_mode):
        try:
            with as_problem("rmdir"), suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=directory)
        except Problem as problem:
            if problem.is_directory_not_empty:
                raise directory_not_empty() from None
            raise
