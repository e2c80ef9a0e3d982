"""Layouts of new files: on which servers their data lie.

On a file system with many servers (Lustre), each file has a layout: it says on which servers (OSTs) the bytes of the
file lie. A file gets the layout before its first byte and keeps it. A ``LayoutRecipe`` describes how a file with a
certain layout is created; files with the same layout share one. ``LayoutPolicy`` decides the layouts. It is for file
systems without layouts; its subclass in ``pcopy.lustre.layouts`` is for Lustre.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext

from pcopy.fast_named_tuple import NamedTuple
from pcopy.fsio.attributes import ItemHandle

LUSTRE_TYPE = 0x0BD00BD0
"""File system type of Lustre (f_type of statfs(2))."""


def _empty_layout_deviation_text(back: bytes) -> str:
    """Return an empty text: the layout of the file (``back``, the attribute value) does not differ from the wanted one.
    This is the default of ``LayoutRecipe.deviation``.
    """
    return ""


def _accepts_no_other_layout(back: bytes) -> bool:
    """Return False: the file may not keep a layout (``back``, the attribute value) that differs from the wanted one.
    This is the default of ``LayoutRecipe.is_acceptable``.
    """
    return False


class LayoutRecipe(NamedTuple):
    """How a file is created so that it gets its layout: on which servers its data lie.

    Fields:
    - ``flags``: further flags for the open(2) that creates the file.
    - ``attribute``: name and value of the extended attribute that sets the layout of the still empty file; None: the
      default layout.
    - ``deviation``: function that takes the attribute's value as read back, and returns, for a message, how the layout
      differs from the wanted one; empty if it does not.
    - ``fallback_reason``: why the file is created with the default layout although another one is wanted; else empty.
    - ``is_acceptable``: function that takes the attribute's value as read back, and returns True if the file keeps a
      layout that differs, because it is of the wanted kind but has fewer stripes.
    """

    flags: int = 0
    attribute: tuple[str, bytes] | None = None
    deviation: Callable[[bytes], str] = _empty_layout_deviation_text
    fallback_reason: str = ""
    is_acceptable: Callable[[bytes], bool] = _accepts_no_other_layout


DEFAULT_LAYOUT_RECIPE = LayoutRecipe()
"""The recipe of the default layout, which the directory and the file system determine."""


class FileStripes(NamedTuple):
    """How the data of a file are spread over the data servers.

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

    The number is stored here, since reading it again may cost a request to the file server.
    """

    descriptor: int
    inode: int


_UNKNOWN_STRIPES = FileStripes()
_ONLY_METADATA_SERVER = (0,)


class LayoutPolicy:
    """Decides the layouts of new files on one file system that is copied to; each rank has its own.

    This class is for file systems without layouts. ``pcopy.lustre.layouts`` overrides it.
    """

    uses_only_default = True
    """True if every recipe is ``DEFAULT_LAYOUT_RECIPE``, so that callers need not ask for the recipe of each file."""

    def layout_recipe_for_file(self, source: int, status: os.stat_result, target: TargetDirectory) -> LayoutRecipe:
        """Return how the copy of the open regular file ``source`` is created in the directory ``target``, so that it
        gets the right layout. ``status`` is the status of the source. Raise ``Problem``.
        """
        return DEFAULT_LAYOUT_RECIPE

    def layout_recipes_for_small_files(
        self,
        source: int,
        names: Sequence[bytes],
        sizes: Sequence[int],
        target: TargetDirectory,
        *,
        follow: bool = False,
    ) -> list[tuple[LayoutRecipe, list[int]]]:
        """Return how the copies of small files are created, so that they get the right layouts: pairs of a recipe and
        the indices in ``names`` of the files that are created by it. Raise ``Problem``.

        Each index is in exactly one pair.

        Args:
            source: descriptor of the directory that contains the files.
            names: names of the files.
            sizes: their sizes in bytes.
            target: directory in which the copies are created.
            follow: True if symbolic links are followed.
        """
        return [(DEFAULT_LAYOUT_RECIPE, [*range(len(names))])]

    def set_default_layout_of_directory(self, source: ItemHandle, target: int) -> str:
        """Give the new, empty directory ``target`` the default layout of the directory ``source``, which files that are
        created in ``target`` inherit.

        Return an error text; empty on success.
        """
        return ""

    def layout_description_of_recipe(self, recipe: LayoutRecipe, target: TargetDirectory) -> str:
        """Return a description, for the user, of the layout that files in the directory ``target`` get if they are
        created by ``recipe``; empty if the file system has no layouts.
        """
        return ""

    def layout_description_of_file(self, descriptor: int, recipe: LayoutRecipe, target: TargetDirectory) -> str:
        """Return a description, for the user, of the layout of an open file that was created by ``recipe`` in the
        directory ``target``.

        The layout may differ from that of ``recipe``, because Lustre may have refused that.
        """
        return ""

    def lacks_layout(self, directory: int, name: bytes) -> bool:
        """Return True if the file ``name`` in the open ``directory`` has no layout yet; raise ``Problem``. Such a file
        gets its layout from the directory when it is opened for writing.
        """
        return False

    def stripes_of_file(self, descriptor: int) -> FileStripes:
        """Return how the data of the open file ``descriptor``, which was just created, are spread over its servers."""
        return _UNKNOWN_STRIPES

    def group_lock(
        self, descriptor: int, group: int, *, is_required: bool
    ) -> Generator[None, None, AbstractContextManager[None]]:
        """Generator: return a context manager in whose block the open file ``descriptor`` is locked for the processes
        of one group; raise ``Problem``.

        On Lustre this is a group lock, which all processes that write parts of the file take. Yield while waiting for
        it.

        Args:
            descriptor: the open file.
            group: number of the group lock, the same for all processes that share it; not 0.
            is_required: False if the context manager may do nothing in case the lock cannot be taken.
        """
        yield from ()
        return nullcontext()

    def create_file_on_all_data_servers(self, directory: int, server: int) -> int:
        """Create an anchor, and return its descriptor, or -1 if this file system needs none; raise ``OSError``.

        An anchor is an open file without a name (O_TMPFILE) that has data on all data servers. Syncing it makes these
        servers, and the metadata server that stores the file, bring everything to storage (``pcopy.fsio.syncer``).

        Args:
            directory: an open directory on the file system.
            server: index of the metadata server, one of those that store the names in the directory.
        """
        return -1

    def metadata_server_indices(self, directory: TargetDirectory) -> tuple[int, ...]:
        """Return the indices of the metadata servers that store the names in ``directory``; (0,) if the file system has
        only one.
        """
        return _ONLY_METADATA_SERVER


class AssignedLayout(NamedTuple):
    """The layout that a file has got.

    Fields:
    - ``value``: the value of the extended attribute, as read back.
    - ``deviation``: how the layout differs from the wanted one, for a message; empty if it does not.
    - ``is_acceptable``: True if the file keeps this layout, because it is the wanted one or the recipe accepts it.
    """

    value: bytes
    deviation: str
    is_acceptable: bool


def set_layout(descriptor: int, recipe: LayoutRecipe) -> AssignedLayout:
    """Set the layout of the new, empty file ``descriptor`` to the one of ``recipe``, which must have an ``attribute``;
    return the layout that the file has then. Raise ``OSError``.
    """
    assert recipe.attribute is not None
    name, value = recipe.attribute
    os.setxattr(descriptor, name, value)
    back = os.getxattr(descriptor, name)
    why = recipe.deviation(back)
    return AssignedLayout(back, why, not why or recipe.is_acceptable(back))


def inherited_layout_message(why: str) -> str:
    """Return the message that an item gets the default layout of its directory instead of the wanted one. ``why`` is
    the reason.
    """
    return f"it gets the layout of its directory instead of its own: {why}"


def fewer_stripes_message(why: str) -> str:
    """Return the message that a file has got a layout with fewer stripes than wanted. ``why`` says how the layout
    differs.
    """
    return f"it has fewer stripes than requested, because fewer servers (OSTs) accept new files: {why}"
