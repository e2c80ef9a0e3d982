"""Layouts of new files: on which servers their data lie.

On a file system with many servers (Lustre), each file has a layout, which it gets before its first byte and keeps. A
``Recipe`` describes how a file with a certain layout is created; files with the same layout share one. ``LayoutPolicy``
answers for file systems without layouts; its subclass in ``pcopy.lustre.layouts`` answers for Lustre.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import Handle

LUSTRE_TYPE = 0x0BD00BD0
"""The f_type of Lustre (statfs(2))."""


def _no_deviation(back: bytes) -> str:
    """Return an empty text: any layout is as wanted."""
    return ""


def _accepts_nothing(back: bytes) -> bool:
    """Return False: no other layout is accepted."""
    return False


class Recipe(NamedTuple):
    """How a file is created so that it gets its layout.

    Fields:
    - ``flags``: added to those of open(2).
    - ``attribute``: name and value of an extended attribute that is set while the file is empty; None: no attribute.
    - ``deviation``: takes the value that is read back, and returns how it differs from the wanted one; empty if it does
      not.
    - ``fallback_reason``: why the file is created with the default layout although another one is wanted; empty if it
      is not.
    - ``is_acceptable``: takes the value that is read back, and returns True if the file keeps this layout although it
      differs: it is of the same kind, with fewer stripes.
    """

    flags: int = 0
    attribute: tuple[str, bytes] | None = None
    deviation: Callable[[bytes], str] = _no_deviation
    fallback_reason: str = ""
    is_acceptable: Callable[[bytes], bool] = _accepts_nothing


DEFAULT_RECIPE = Recipe()
"""The recipe of the default layout, which the directory and the file system determine."""


class FileStripes(NamedTuple):
    """How the data of an open file are spread over its servers.

    Fields:
    - ``max_stripe_size``: the largest stripe size, in bytes; 0: unknown.
    - ``stripe_size``: bytes that lie on one server before the next server follows.
    - ``osts``: the servers (OSTs), in turn. Empty unless the same servers hold the file from its first byte to its
      last.
    """

    max_stripe_size: int = 0
    stripe_size: int = 0
    osts: tuple[int, ...] = ()


class TargetDirectory(NamedTuple):
    """An open directory in which files are created, and its inode number.

    The number is kept, since reading it may cost a request to the file server.
    """

    descriptor: int
    inode: int


_UNKNOWN_STRIPES = FileStripes()
_ONE_SERVER = (0,)


class LayoutPolicy:
    """Decides the layouts of new files on one file system that is copied to; each rank has its own.

    This class is for file systems without layouts. ``pcopy.lustre.layouts`` overrides it.
    """

    uses_only_default = True
    """True if every recipe is ``PLAIN``, so that no file needs a call."""

    def recipe_for_file(self, source: int, status: os.stat_result, target: TargetDirectory) -> Recipe:
        """Return the recipe for the copy of an open regular file with the given ``status``; raise ``Problem``."""
        return DEFAULT_RECIPE

    def recipes_for_small_files(
        self,
        source: int,
        names: Sequence[bytes],
        sizes: Sequence[int],
        target: TargetDirectory,
        *,
        follow: bool = False,
    ) -> list[tuple[Recipe, list[int]]]:
        """Return recipes for the copies of small files; raise ``Problem``.

        Each recipe comes with the indices in ``names`` of the files that it is for; each file has one recipe.

        Args:
            source: descriptor of the directory that contains the files.
            sizes: their sizes in bytes.
            follow: True if symbolic links are followed.
        """
        return [(DEFAULT_RECIPE, [*range(len(names))])]

    def set_directory_default(self, source: Handle, target: int) -> str:
        """Give the new, empty directory ``target`` the default layout of ``source``, which files created in it inherit.

        Return an error text; empty on success.
        """
        return ""

    def recipe_description(self, recipe: Recipe, target: TargetDirectory) -> str:
        """Return a description, for the user, of the layout that files in ``target`` got by ``recipe``."""
        return ""

    def file_description(self, descriptor: int, recipe: Recipe, target: TargetDirectory) -> str:
        """Return a description, for the user, of the layout of an open file.

        It may differ from that of ``recipe``, which Lustre may have refused.
        """
        return ""

    def lacks_layout(self, directory: int, name: bytes) -> bool:
        """Return True if the file ``name`` in an open directory has no layout yet; raise ``Problem``.

        Such a file inherits a layout when it is opened for writing.
        """
        return False

    def stripes_of_file(self, descriptor: int) -> FileStripes:
        """Return how the data of a file that was just created are spread over its servers."""
        return _UNKNOWN_STRIPES

    def group_lock(
        self, descriptor: int, group: int, *, is_required: bool
    ) -> Generator[None, None, AbstractContextManager[None]]:
        """Return a context in which an open file is locked for the processes of one group; raise ``Problem``.

        The lock is a group lock of Lustre; all processes that write to the file take it. Yield while it is awaited.

        Args:
            group: number of the group lock; not 0.
            is_required: False if the context may do without the lock.
        """
        yield from ()
        return nullcontext()

    def create_anchor(self, directory: int, server: int) -> int:
        """Return the descriptor of an anchor, or -1 if none is needed; raise ``OSError``.

        An anchor is a file without a name (O_TMPFILE) that the metadata server ``server`` keeps and that lies on all
        data servers (see ``pcopy.fsio.syncer``). ``server`` is one of ``servers_of`` the directory.
        """
        return -1

    def metadata_servers(self, directory: TargetDirectory) -> tuple[int, ...]:
        """Return the metadata servers that keep the names in a directory."""
        return _ONE_SERVER


class LayoutResult(NamedTuple):
    """The layout that a file has got.

    Fields:
    - ``value``: the value of the extended attribute.
    - ``deviation``: how it differs from the wanted one; empty if it does not.
    - ``is_acceptable``: True if the file keeps this layout.
    """

    value: bytes
    deviation: str
    is_acceptable: bool


def set_layout(descriptor: int, recipe: Recipe) -> LayoutResult:
    """Set the layout of a new, empty file; return the layout that it has got; raise ``OSError``."""
    assert recipe.attribute is not None
    name, value = recipe.attribute
    os.setxattr(descriptor, name, value)
    back = os.getxattr(descriptor, name)
    why = recipe.deviation(back)
    return LayoutResult(back, why, not why or recipe.is_acceptable(back))


def inherited_layout_message(why: str) -> str:
    """Return the message that an item gets the layout of its directory instead of its own, because of ``why``."""
    return f"it gets the layout of its directory instead of its own: {why}"


def fewer_stripes_message(why: str) -> str:
    """Return the message that a file has a layout with fewer stripes than wanted, because of ``why``."""
    return f"fewer servers (OSTs) take new files: {why}"
