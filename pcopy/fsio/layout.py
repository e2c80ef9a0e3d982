"""Where the data of new files lie: asked when files and directories are created, and for the chunks of large files.

On a file system with many servers (Lustre) each file has a layout, which it gets before its first byte and keeps. A
``Recipe`` tells the layout of a new file; one recipe serves for all that are alike. ``Layout`` is what a file system
without layouts answers; ``pcopy.lustre.layouts`` has the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext

from pcopy.fsio.attributes import Handle
from pcopy.named import NamedTuple

LUSTRE = 0x0BD00BD0
"""The f_type of statfs(2)."""


def _as_wanted(back: bytes) -> str:
    return ""


def _never(back: bytes) -> bool:
    return False


class Recipe(NamedTuple):
    """How a file is created.

    ``flags`` are added to those of open(2); the extended ``attribute`` (name and value) is set as long as it is empty.
    What is read back of it then goes to ``amiss``, which returns why it is not what was wanted, or nothing. ``serves``
    returns True if it is of the same kind all the same, with fewer stripes: then the file keeps it.
    ``impossible`` tells why the file is made like any other, though something else is wanted.
    """

    flags: int = 0
    attribute: tuple[str, bytes] | None = None
    amiss: Callable[[bytes], str] = _as_wanted
    impossible: str = ""
    serves: Callable[[bytes], bool] = _never


PLAIN = Recipe()
"""As the directory and the file system say."""


class Stripes(NamedTuple):
    """How an open file lies on its servers: ``size`` bytes on one after the other, which are ``osts``; with the same
    servers from its first byte to its last, else there are none. ``unit`` is the largest stripe size (0: unknown)."""

    unit: int = 0
    size: int = 0
    osts: tuple[int, ...] = ()


class Target(NamedTuple):
    """An open directory in which files are made, and its inode: to ask for that may be a request to the file server."""

    descriptor: int
    inode: int


_UNKNOWN = Stripes()
_ONE_SERVER = (0,)


class Layout:
    """Of one file system that is copied to; each rank has its own. This one is for those that know no layouts."""

    is_plain = True
    """Does nothing here ever want another recipe than ``PLAIN``, so that nobody needs to ask for each file?"""

    def of_file(self, source: int, status: os.stat_result, target: Target) -> Recipe:
        """For the copy of a regular file that is open and has this ``status``; raises ``Problem``."""
        return PLAIN

    def of_small_files(
        self, source: int, names: Sequence[bytes], sizes: Sequence[int], target: Target, *, follow: bool = False
    ) -> list[tuple[Recipe, list[int]]]:
        """For the copies of small files of an open directory: each recipe with its rows, of which a row has one.
        ``follow`` symbolic links. Raises ``Problem``."""
        return [(PLAIN, [*range(len(names))])]

    def directory_made(self, source: Handle, target: int) -> str:
        """The directory ``target``, which is open and empty, gets what files in it shall inherit: as ``source`` has it.
        Tells what went wrong, or nothing."""
        return ""

    def text_of(self, recipe: Recipe, target: Target) -> str:
        """What files have got that were made there by this recipe, as people read it."""
        return ""

    def text_of_file(self, descriptor: int, recipe: Recipe, target: Target) -> str:
        """As ``text_of``, of one file that is open. Was it made by ``recipe``? Lustre may have refused that."""
        return ""

    def lacks(self, directory: int, name: bytes) -> bool:
        """Has the file ``name`` of an open directory no layout yet? It inherits one when it is opened to be written.
        Raises ``Problem``."""
        return False

    def stripes_of(self, descriptor: int) -> Stripes:
        """Those of a file that was just made."""
        return _UNKNOWN

    def shared(
        self, descriptor: int, group: int, *, insists: bool
    ) -> Generator[None, None, AbstractContextManager[None]]:
        """In the body of what is returned, the file, which is open for writing, is locked for all that name the same
        ``group`` (not 0); unless who asks ``insists``, perhaps not. Raises ``Problem``."""
        yield from ()
        return nullcontext()

    def anchor(self, directory: int, server: int) -> int:
        """A file without a name that one of ``servers_of`` the directory keeps, and that lies on all servers of data;
        -1 where none is needed. See ``pcopy.fsio.syncer``. Raises ``OSError``."""
        return -1

    def servers_of(self, directory: Target) -> tuple[int, ...]:
        """The metadata servers that keep the names in a directory."""
        return _ONE_SERVER


class LaidOut(NamedTuple):
    """The ``value`` of the attribute that a file has got, and why it is not what was wanted, or nothing. If it
    ``serves``, it is kept."""

    value: bytes
    why: str
    serves: bool


def lay_out(descriptor: int, recipe: Recipe) -> LaidOut:
    """Give a file that was just created, and is empty, its layout. Raises ``OSError``."""
    assert recipe.attribute is not None
    name, value = recipe.attribute
    os.setxattr(descriptor, name, value)
    back = os.getxattr(descriptor, name)
    why = recipe.amiss(back)
    return LaidOut(back, why, not why or recipe.serves(back))


def inherited(why: str) -> str:
    """Return what is said of an item that gets the layout of its directory."""
    return f"the layout of its directory serves instead of its own: {why}"


def fewer_stripes(why: str) -> str:
    """Return what is said of a file that keeps a layout with fewer stripes."""
    return f"fewer servers (OSTs) take new files: {why}"
