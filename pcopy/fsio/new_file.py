"""The life of one new item: made, filled, dressed, named; or nothing is left.

    with NewFile.beside(directory, temporary) as new:    # empty, mode 0600, ours
        ...                                              # write to new.descriptor
        new.dress(attributes, preserve, umask)
        new.commit(name)                                 # closed, the way cleared, renamed, looked at

If the block ends without ``commit`` or ``keep``, by an error or not, the item is removed. ``keep`` closes the item
and leaves it under the name that it was made with: another task goes on with it (``again``) or names it later, or it
has its final name from the start (``at``). An error ends the block with a ``Problem``. Only metadata that can't be set
don't: a file with wrong metadata, and a line that says so, are better than no file. They are its ``shortcoming``.

Rule: a file whose size was set before its contents are durable gets its final name only after they are. Otherwise a
loss of power may leave a file with the size and time of its source and without its data, which the next run would take
for a copy. So ``commit`` of a file that was given its size by ``extend`` brings its contents to stable storage first.

A file that is written over in place (``pcopy.fsio.in_place``) is never removed: its mark tells that it is not whole,
and so does the ``Problem``.
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
    """A regular file; ``descriptor`` is open for writing until ``commit`` or ``keep``."""

    # What a small file has in common with all others is not set for each.
    shortcoming: MetadataProblem | None = None
    other_layout = ""
    """The reason for another layout than the wanted one: it has fewer stripes, or is inherited."""
    recipe: Recipe = PLAIN
    """The recipe of the layout that the file has got."""
    _before: tuple[int, ...] = ()
    _made: Identity | None = None
    _status: os.stat_result | None = None
    _is_done = False
    _is_extended = False
    _times: tuple[int, int] | None = None
    """Access and modification; they are set after the file is closed where that changes them."""

    def __init__(self, directory: int, made_as: bytes, descriptor: int = -1, before: tuple[int, ...] = ()) -> None:
        """``before``: mode, owner and group that a file had which is written over."""
        self.descriptor = descriptor
        self._directory = directory
        self._made_as = made_as
        if before:
            self._before = before

    @classmethod
    def at(cls, directory: int, name: bytes, layout: Recipe = PLAIN) -> Self:
        """An empty file that nobody else may read, as ``name``, which must be free. Raises ``Problem``."""
        new = cls(directory, name, create(directory, name, layout.flags))
        if layout is not PLAIN:
            new.other_layout = inherited(layout.impossible) if layout.impossible else new._lay_out(layout)
        return new

    def _lay_out(self, layout: Recipe) -> str:
        """If it gets no layout of the kind that is wanted, it is made once more: it may have none at all."""
        try:
            given = lay_out(self.descriptor, layout)
        except OSError as error:
            given = LaidOut(b"", error.strerror or "", serves=False)
        except BaseException:
            self._give_up()
            raise
        if not given.serves:
            self._give_up()
            self.descriptor = create(self._directory, self._made_as)
            return inherited(given.why)
        assert layout.attribute is not None
        self.recipe = layout._replace(attribute=(layout.attribute[0], given.value)) if given.why else layout
        return given.why and fewer_stripes(given.why)

    @classmethod
    def beside(cls, directory: int, temporary: bytes, *, layout: Recipe = PLAIN, over: Over | None = None) -> Self:
        """As ``at``, for a name of ours; or ``over``, a file that is open to be written over."""
        if over is None:
            return cls.at(directory, temporary, layout)
        return cls(directory, b"", over.descriptor, over.before)

    @classmethod
    def again(cls, directory: int, made_as: bytes, made: Identity, before: tuple[int, ...] = ()) -> Self:
        """The file that another task has ``made`` and kept; it is opened by ``reopen``.

        Other tasks and later runs rely on it: it is not removed for an exception that says nothing about it.
        """
        new = cls(directory, made_as, before=before)
        new._made = made
        return new

    def open_to_others(self, *, inherits: bool) -> tuple[int, ...]:
        """Make sure that other ranks can open the new file by its name; return what ``reopen`` needs as ``shown``.

        ``inherits``: the file may have got an ACL from its directory. Raises ``Problem``.
        """
        if inherits or not is_undressed(self.status):
            free_from_acl(self.descriptor)
            self._status = status_of(self.descriptor)
        return shown_by_server(self.status)

    def reopen(self, size: int, shown: tuple[int, ...] = (), *, extended: bool = True) -> None:
        """Opens what is there ``again``; raises ``Problem`` unless it is what was made, and has this ``size``.

        ``shown``: what ``open_to_others`` returned.
        ``extended``: another task may have given it its size before its contents were durable, as ``extend``.
        """
        assert self._made is not None
        self.descriptor = reopen(self._directory, self._made_as, self._made, size, shown)
        self._is_extended = extended

    def extend(self, size: int) -> None:
        """Set the size of the file before its contents are durable; raise ``Problem``.

        A hole remains where nothing is written. ``commit`` brings the contents to stable storage.
        """
        set_size(self.descriptor, size)
        self._is_extended = True

    @property
    def awaits_storage(self) -> bool:
        """True if the contents must be on stable storage before the file gets its final name, and are not yet."""
        return self._is_extended

    def note_stored(self) -> None:
        """Note that the contents are on stable storage: ``commit`` need not wait for that any more."""
        self._is_extended = False

    @property
    def made_as(self) -> bytes:
        """The name under which it was made."""
        return self._made_as

    @property
    def is_over(self) -> bool:
        """Is an existing file written over?"""
        return bool(self._before)

    @property
    def status(self) -> os.stat_result:
        """Its status when it was asked for first; raises ``Problem``."""
        if self._status is None:
            self._status = status_of(self.descriptor)
        return self._status

    def identity(self, mount: int) -> Identity:
        """``mount`` is the code of its directory's; raises ``Problem``."""
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
        """Gives it its metadata, as ``pcopy.fsio.attributes.apply_attributes``; what fails is its ``shortcoming``."""
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
        """It is whole, and called ``name`` from now on, instead of what is ``present`` there; raises ``Problem``.

        A file that was made as ``name`` has that already. ``sync``: its contents are on stable storage before.
        ``store``: so are those of a file whose size was set before its contents were durable; False only with
        ``--no-sync``. ``marked``: a file beside ``name`` may say that the present one is half written, and is removed.
        """
        inode = self.status.st_ino if self._made is None else self._made.inode
        self._close(sync, store=store and self._is_extended)
        if name != self._made_as:
            give_name(self._directory, self._made_as, name, inode, present, marked=marked)
        self._is_done = True

    def keep(self, *, sync: bool = False) -> None:
        """Closes it and leaves it under the name that it has; raises ``Problem``."""
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
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            abandon(descriptor)
        if removes and self._made_as and not self._before:
            remove(self._directory, self._made_as)

    def _close(self, sync: bool, *, store: bool = False) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if self._times is None or not has_late_times(descriptor):
            close_written(descriptor, sync=sync, store=store)
        elif (error := close_timed(descriptor, *self._times, sync=sync, store=store)) and self.shortcoming is None:
            self.shortcoming = MetadataProblem("utimensat", error.errno or errno.EIO)

    def _handle(self) -> Handle:
        return self.descriptor


class NewNode(NewFile):
    """A symbolic link, FIFO, socket or device; ``descriptor`` is an O_PATH one."""

    @classmethod
    def made(cls, directory: int, name: bytes, node: Node, *, is_temporary: bool) -> Self:
        """``name``, which must be free, like ``node``; raises ``Problem``.

        Unless the name ``is_temporary`` nothing is removed: nobody can tell by then whose the item is that has it.
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


def left_over(problem: Problem, name: bytes, kept: Problem) -> Problem:
    """Return ``problem``, and add that the new item ``name`` is left in the destination, as ``kept`` states."""
    plain = problem.plain
    text = f"{plain[2]}; the incomplete file {os.fsdecode(name)} is left, since it cannot be removed ({kept.strerror})"
    return Problem.from_plain((*plain[:2], text, *plain[3:]))


def give_name(
    directory: int, temporary: bytes, name: bytes, inode: int, present: os.stat_result | None, *, marked: bool
) -> None:
    """The item ``inode``, which is ``temporary``, is called ``name`` from now on, instead of what is ``present`` there.

    ``marked`` as for ``NewFile.commit``. Raises ``Problem``.
    """
    clear_way(directory, name, present)
    put_in_place(directory, temporary, name, inode)
    if marked:
        remove(directory, beside(name))


def clear_way(directory: int, name: bytes, present: os.stat_result | None) -> None:
    """Makes room for a rename to ``name``: of a directory only an empty one gives way. Raises ``Problem``."""
    if present is not None and stat.S_ISDIR(present.st_mode):
        try:
            with failing("rmdir"), suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=directory)
        except Problem as problem:
            if problem.is_full:
                raise full_directory() from None
            raise
