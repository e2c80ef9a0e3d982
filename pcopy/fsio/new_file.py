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

from pcopy.fsio.attributes import Applied, Attributes, Handle, apply_attributes, free_from_acl
from pcopy.fsio.close import abandon, close_timed, close_written, has_late_times, let_go
from pcopy.fsio.data import set_size
from pcopy.fsio.half_written import beside
from pcopy.fsio.identity import Identity, identity_of
from pcopy.fsio.in_place import Over, drop_old_xattrs, incomplete, status_before
from pcopy.fsio.layout import PLAIN, LaidOut, Recipe, fewer_stripes, inherited, lay_out
from pcopy.fsio.nodes import Node, handle_of, make_node
from pcopy.fsio.preserve import Preserve
from pcopy.fsio.problem import MetadataProblem, Problem, failing, full_directory
from pcopy.fsio.source import status_of
from pcopy.fsio.temporary import create, is_undressed, put_in_place, remove, reopen, shown_by_server


class NewFile:
    """A new regular file. ``descriptor`` is open for writing until ``commit`` or ``close_and_keep``."""

    # Defaults are class attributes: setting them for each of many small files takes time.
    shortcoming: MetadataProblem | None = None
    """Error of metadata that could not be set; None if there was none."""
    other_layout = ""
    """Reason why the file does not have the wanted Lustre layout: it has fewer stripes, or the directory's default
    layout.
    """
    recipe: Recipe = PLAIN
    """Recipe of the layout that the file has."""
    _before: tuple[int, ...] = ()
    """Mode, owner and group of an existing file that is overwritten; empty for a new file."""
    _made: Identity | None = None
    _status: os.stat_result | None = None
    _is_done = False
    _is_extended = False
    _times: tuple[int, int] | None = None
    """Access and modification time in nanoseconds, to be set after the file is closed where closing changes them."""

    def __init__(self, directory: int, made_as: bytes, descriptor: int = -1, before: tuple[int, ...] = ()) -> None:
        """Wrap a file in the open ``directory`` that is called ``made_as``.

        Args:
            original_name: name with which the file was created; empty if it must never be removed.
            descriptor: descriptor that is open for writing; -1 if the file is opened later.
            before: mode, owner and group of an existing file that is overwritten.
        """
        self.descriptor = descriptor
        self._directory = directory
        self._made_as = made_as
        if before:
            self._before = before

    @classmethod
    def at(cls, directory: int, name: bytes, layout: Recipe = PLAIN) -> Self:
        """Create an empty file with mode 0600 as ``name``, which must be free. Raise ``Problem``."""
        new = cls(directory, name, create(directory, name, layout.flags))
        if layout is not PLAIN:
            new.other_layout = inherited(layout.impossible) if layout.impossible else new._lay_out(layout)
        return new

    def _lay_out(self, layout: Recipe) -> str:
        """Give the new file its ``layout``; return the reason if it is another one than wanted.

        If the server gives no layout of the wanted kind, the file is removed and created again with the default layout,
        because it may have none at all.
        """
        try:
            result = lay_out(self.descriptor, layout)
        except OSError as error:
            result = LaidOut(b"", error.strerror or "", serves=False)
        except BaseException:
            self._give_up()
            raise
        if not result.serves:
            self._give_up()
            self.descriptor = create(self._directory, self._made_as)
            return inherited(result.why)
        assert layout.attribute is not None
        self.recipe = layout._replace(attribute=(layout.attribute[0], result.value)) if result.why else layout
        return result.why and fewer_stripes(result.why)

    @classmethod
    def beside(cls, directory: int, temporary: bytes, *, layout: Recipe = PLAIN, over: Over | None = None) -> Self:
        """Create a file as ``create`` does, under a ``temporary`` name; with ``over``, wrap the existing file that it
        holds open instead.
        """
        if over is None:
            return cls.at(directory, temporary, layout)
        return cls(directory, b"", over.descriptor, over.before)

    @classmethod
    def again(cls, directory: int, made_as: bytes, made: Identity, before: tuple[int, ...] = ()) -> Self:
        """Return a file that another task created and kept (``made``); ``reopen`` opens it.

        Other tasks and later runs rely on the file. So it is removed only after a ``Problem``, not after another
        exception.
        """
        new = cls(directory, made_as, before=before)
        new._made = made
        return new

    def open_to_others(self, *, inherits: bool) -> tuple[int, ...]:
        """Make sure that other ranks can open the new file by its name; return the value for the parameter ``shown`` of
        ``reopen``.

        ``inherits_acl`` is True if the file may have inherited an ACL from its directory. Raise ``Problem``.
        """
        if inherits or not is_undressed(self.status):
            free_from_acl(self.descriptor)
            self._status = status_of(self.descriptor)
        return shown_by_server(self.status)

    def reopen(self, size: int, shown: tuple[int, ...] = (), *, extended: bool = True) -> None:
        """Open the file that another task created (``continue_kept``).

        Raise ``Problem`` unless it is that file and has this ``size`` in bytes.

        Args:
            shown: the value that ``open_to_others`` returned.
            extended: True if another task may have set the size before the contents were durable, as ``extend`` does.
        """
        assert self._made is not None
        self.descriptor = reopen(self._directory, self._made_as, self._made, size, shown)
        self._is_extended = extended

    def extend(self, size: int) -> None:
        """Set the size of the file, in bytes, before its contents are durable. Raise ``Problem``.

        A hole remains where nothing is written. ``commit`` brings the contents to stable storage.
        """
        set_size(self.descriptor, size)
        self._is_extended = True

    @property
    def awaits_storage(self) -> bool:
        """True if the contents must be brought to stable storage before the file gets its final name."""
        return self._is_extended

    def note_stored(self) -> None:
        """Record that the contents are on stable storage, so that ``commit`` does not sync them again."""
        self._is_extended = False

    @property
    def made_as(self) -> bytes:
        """Name with which the file was created."""
        return self._made_as

    @property
    def is_over(self) -> bool:
        """True if an existing file is overwritten."""
        return bool(self._before)

    @property
    def status(self) -> os.stat_result:
        """Status of the file when it was first read here. Raise ``Problem``."""
        if self._status is None:
            self._status = status_of(self.descriptor)
        return self._status

    def identity(self, mount: int) -> Identity:
        """Return the identity of the file. ``mount`` is the mount code of its directory. Raise ``Problem``."""
        return identity_of(self.descriptor, self.status, mount, made=True)

    def dress(
        self,
        attributes: Attributes,
        preserve: Preserve,
        umask: int,
        *,
        kept: os.stat_result | None = None,
        inherits: bool = False,
    ) -> Applied:
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
            if self._before:
                kept, inherits = status_before(self._before), True
                drop_old_xattrs(self.descriptor, attributes, preserve)
            applied = apply_attributes(self._handle(), attributes, preserve, umask, kept=kept, inherits=inherits)
        except MetadataProblem as problem:
            self.shortcoming = problem
            applied = Applied()
        if preserve.timestamps:
            self._times = attributes.atime, attributes.mtime
        if not self.other_layout:
            return applied
        return applied._replace(
            layout=self.other_layout, fewer=self.recipe.attribute[1] if self.recipe.attribute else b""
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
        inode = self.status.st_ino if self._made is None else self._made.inode
        self._close(sync, store=store and self._is_extended)
        if name != self._made_as:
            give_name(self._directory, self._made_as, name, inode, present, marked=marked)
        self._is_done = True

    def keep(self, *, sync: bool = False) -> None:
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
            self._give_up(removes=self._made is None or error is None or isinstance(error, Problem))
        except Problem as problem:
            if not isinstance(error, Problem):
                raise
            raise left_over(error, self._made_as, problem) from error
        if self._before and isinstance(error, Problem):
            raise incomplete(error) from error

    def _give_up(self, *, removes: bool = True) -> None:
        """Close the file, ignoring errors, and remove it unless ``removes`` is False or an existing file is
        overwritten.
        """
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            abandon(descriptor)
        if removes and self._made_as and not self._before:
            remove(self._directory, self._made_as)

    def _close(self, sync: bool, *, store: bool = False) -> None:
        """Close the descriptor, and set the times afterwards where closing changes them. Raise ``Problem``.

        ``sync`` and ``store`` are described at ``commit``.
        """
        descriptor, self.descriptor = self.descriptor, -1
        if self._times is None or not has_late_times(descriptor):
            close_written(descriptor, sync=sync, store=store)
        elif (error := close_timed(descriptor, *self._times, sync=sync, store=store)) and self.shortcoming is None:
            self.shortcoming = MetadataProblem("utimensat", error.errno or errno.EIO)

    def _handle(self) -> Handle:
        """Return the descriptor or path through which metadata is set."""
        return self.descriptor


class NewNode(NewFile):
    """A new symbolic link, FIFO, socket or device. ``descriptor`` is an O_PATH one."""

    @classmethod
    def made(cls, directory: int, name: bytes, node: Node, *, is_temporary: bool) -> Self:
        """Create ``name``, which must be free, with the type and contents of ``node``. Raise ``Problem``.

        The item is removed after an error only if the name ``is_temporary``: under any other name it may by then be an
        item of another process.
        """
        new = cls(directory, name if is_temporary else b"")
        try:
            new.descriptor, new._status = make_node(directory, name, node)
        except BaseException:
            new._give_up()
            raise
        return new

    def _close(self, sync: bool, *, store: bool = False) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        let_go(descriptor)

    def _handle(self) -> Handle:
        return handle_of(self.descriptor)


def left_over(problem: Problem, name: bytes, removal: Problem) -> Problem:
    """Return ``problem`` with a note that the new item ``name`` remains in the destination, because of
    ``removal``.
    """
    fields = problem.plain
    text = (
        f"{fields[2]}; the incomplete file {os.fsdecode(name)} is left, since it cannot be removed ({removal.strerror})"
    )
    return Problem.from_plain((*fields[:2], text, *fields[3:]))


def give_name(
    directory: int, temporary: bytes, name: bytes, inode: int, present: os.stat_result | None, *, marked: bool
) -> None:
    """Rename ``temporary`` to ``name`` in place of the item that is ``present`` there, and verify the result.

    Raise ``Problem``.

    Args:
        inode: inode number of the new item; after the rename ``name`` must have it.
        present: status of the existing item, None if there is none.
        marked: remove the mark file of ``name``, as for ``NewFile.commit``.
    """
    clear_way(directory, name, present)
    put_in_place(directory, temporary, name, inode)
    if marked:
        remove(directory, beside(name))


def clear_way(directory: int, name: bytes, present: os.stat_result | None) -> None:
    """Remove an empty directory ``name``, so that an item of another type can be renamed to it. Raise ``Problem``.

    Other items need not be removed, because rename(2) replaces them. A directory that is not empty is an error.
    """
    if present is not None and stat.S_ISDIR(present.st_mode):
        try:
            with failing("rmdir"), suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=directory)
        except Problem as problem:
            if problem.is_full:
                raise full_directory() from None
            raise
