"""Where the data of new files lie: asked when files and directories are created, and for the unit of chunks.

On a file system with many servers (Lustre) each file has a layout, which it gets before its first byte and keeps. A
``Recipe`` tells the layout of a new file or directory; one recipe serves for all that are alike.
"""

from __future__ import annotations

import os

from pcopy.fsio.attributes import Handle
from pcopy.fsio.problem import failing
from pcopy.named import NamedTuple


class Recipe(NamedTuple):
    """How a file or directory is created.

    ``flags`` are added to those of open(2); the extended ``attribute`` (name and value) is set as long as it is empty.
    A chunk has ``unit`` bytes or more where that is not 0: the stripe size.
    """

    flags: int = 0
    attribute: tuple[str, bytes] | None = None
    unit: int = 0


PLAIN = Recipe()
"""As the directory and the file system say."""


class Layout:
    """Chooses recipes; one per rank. Nobody can ask for a layout yet, so all are plain."""

    def of_file(self, source: int, status: os.stat_result) -> Recipe:
        """For the copy of a regular file that is open and has this ``status``; raises ``Problem``."""
        return PLAIN

    def of_small_files(self, source: int) -> Recipe:
        """For the copies of small files of an open directory, which are made together; raises ``Problem``."""
        return PLAIN

    def of_directory(self, source: Handle) -> Recipe:
        """For the copy of an open directory: what is made in it later gets that, too. Raises ``Problem``."""
        return PLAIN


def lay_out(descriptor: int, recipe: Recipe) -> None:
    """Gives what was just created, and is empty, its layout; raises ``Problem``."""
    if recipe.attribute is not None:
        name, value = recipe.attribute
        with failing(f"setxattr {name}"):
            os.setxattr(descriptor, name, value)
