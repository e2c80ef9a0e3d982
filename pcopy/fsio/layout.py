"""Layouts of new files: on which servers their data lie.

On a file system with many servers (Lustre), each file has a layout, which it gets before its first byte and keeps. A
``Recipe`` describes how a file with a certain layout is created; files with the same layout share one. ``Layout``
answers for file systems without layouts; its subclass in ``pcopy.lustre.layouts`` answers for Lustre.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext

from pcopy.fsio.attributes import Handle
from pcopy.named import NamedTuple

LUSTRE = 0x0BD00BD0
"""The f_type of Lustre (statfs(2))."""


def _as_wanted(back: bytes) -> str:
    """Return an empty text: any layout is as wanted."""
    return ""


def _never(back: bytes) -> bool:
    """Return False: no other layout is accepted."""
    return False


class Recipe(NamedTuple):
    """How a file is created so that it gets its layout.

    Fields:
    - ``flags``: added to those of open(2).
    - ``attribute``: name and value of an extended attribute that is set while the file is empty; None: no attribute.
    - ``amiss``: takes the value that is read back, and returns how it differs from the wanted one; empty if it does
      not.
    - ``impossible``: why the file is created with the default layout although another one is wanted; empty if it is
      not.
    - ``serves``: takes the value that is read back, and returns True if the file keeps this layout although it differs:
      it is of the same kind, with fewer stripes.
    """

    flags: int = 0
    attribute: tuple[str, bytes] | None = None
    amiss: Callable[[bytes], str] = _as_wanted
    impossible: str = ""
    serves: Callable[[bytes], bool] = _never


PLAIN = Recipe()
"""The recipe of the default layout, which the directory and the file system determine."""


class Stripes(NamedTuple):
    """How the data of an open file are spread over its servers.

    Fields:
    - ``unit``: the largest stripe size, in bytes; 0: unknown.
    - ``size``: bytes that lie on one server before the next server follows.
    - ``osts``: the servers (OSTs), in turn. Empty unless the same servers hold the file from its first byte to its
      last.
    """

    unit: int = 0
    size: int = 0
    osts: tuple[int, ...] = ()


class Target(NamedTuple):
    """An open directory in which files are created, and its inode number.

    The number is kept, since reading it may cost a request to the file server.
    """

    descriptor: int
    inode: int


_UNKNOWN = Stripes()
_ONE_SERVER = (0,)


class Layout:
    """Decides the layouts of new files on one file system that is copied to; each rank has its own.

    This class is for file systems without layouts. ``pcopy.lustre.layouts`` overrides it.
    """

    is_plain = True
    """True if every recipe is ``PLAIN``, so that no file needs a call."""

    def of_file(self, source: int, status: os.stat_result, target: Target) -> Recipe:
        """Return the recipe for the copy of an open regular file with the given ``status``; raise ``Problem``."""
        return PLAIN

    def of_small_files(
        self, source: int, names: Sequence[bytes], sizes: Sequence[int], target: Target, *, follow: bool = False
    ) -> list[tuple[Recipe, list[int]]]:
        """Return recipes for the copies of small files; raise ``Problem``.

        Each recipe comes with the indices in ``names`` of the files that it is for; each file has one recipe.

        Args:
            source: descriptor of the directory that contains the files.
            sizes: their sizes in bytes.
            follow: True if symbolic links are followed.
        """
        return [(PLAIN, [*range(len(names))])]

    def directory_made(self, source: Handle, target: int) -> str:
        """Give the new, empty directory ``target`` the default layout of ``source``, which files created in it inherit.

        Return an error text; empty on success.
        """
        return ""

    def text_of(self, recipe: Recipe, target: Target) -> str:
        """Return a description, for the user, of the layout that files in ``target`` got by ``recipe``."""
        return ""

    def text_of_file(self, descriptor: int, recipe: Recipe, target: Target) -> str:
        """Return a description, for the user, of the layout of an open file.

        It may differ from that of ``recipe``, which Lustre may have refused.
        """
        return ""

    def lacks(self, directory: int, name: bytes) -> bool:
        """Return True if the file ``name`` in an open directory has no layout yet; raise ``Problem``.

        Such a file inherits a layout when it is opened for writing.
        """
        return False

    def stripes_of(self, descriptor: int) -> Stripes:
        """Return how the data of a file that was just created are spread over its servers."""
        return _UNKNOWN

    def shared(
        self, descriptor: int, group: int, *, insists: bool
    ) -> Generator[None, None, AbstractContextManager[None]]:
        """Return a context in which an open file is locked for the processes of one group; raise ``Problem``.

        The lock is a group lock of Lustre; all processes that write to the file take it. Yield while it is awaited.

        Args:
            group: number of the group lock; not 0.
            insists: False if the context may do without the lock.
        """
        yield from ()
        return nullcontext()

    def anchor(self, directory: int, server: int) -> int:
        """Return the descriptor of an anchor, or -1 if none is needed; raise ``OSError``.

        An anchor is a file without a name (O_TMPFILE) that the metadata server ``server`` keeps and that lies on all
        data servers (see ``pcopy.fsio.syncer``). ``server`` is one of ``servers_of`` the directory.
        """
        return -1

    def servers_of(self, directory: Target) -> tuple[int, ...]:
        """Return the metadata servers that keep the names in a directory."""
        return _ONE_SERVER


class LaidOut(NamedTuple):
    """The layout that a file has got.

    Fields:
    - ``value``: the value of the extended attribute.
    - ``why``: how it differs from the wanted one; empty if it does not.
    - ``serves``: True if the file keeps this layout.
    """

    value: bytes
    why: str
    serves: bool


def lay_out(descriptor: int, recipe: Recipe) -> LaidOut:
    """Set the layout of a new, empty file; return the layout that it has got; raise ``OSError``."""
    assert recipe.attribute is not None
    name, value = recipe.attribute
    os.setxattr(descriptor, name, value)
    back = os.getxattr(descriptor, name)
    why = recipe.amiss(back)
    return LaidOut(back, why, not why or recipe.serves(back))


def inherited(why: str) -> str:
    """Return the message that an item gets the layout of its directory instead of its own, because of ``why``."""
    return f"it gets the layout of its directory instead of its own: {why}"


def fewer_stripes(why: str) -> str:
    """Return the message that a file has a layout with fewer stripes than wanted, because of ``why``."""
    return f"fewer servers (OSTs) take new files: {why}"
