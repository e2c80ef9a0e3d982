"""``ChangeTreesBatch``: a batch that changes owners and modes of everything in subtrees. Only the C backend has it."""

from __future__ import annotations

from array import array

from pcopy.fsio.backend.batches import UNCHANGED_VALUE
from pcopy.fsio.backend.walk_batches import WalkBatch, WalkResult


class ChangeTreesResult(WalkResult):
    """The result of ``ChangeTreesBatch``.

    ``letters`` has a byte for each row with the code ``DONE``, which says what remains to be done with the item of the
    row itself: 0 for nothing; otherwise it is a letter as in ``ChangeTreesBatch``.
    """

    letters: bytes = b""


class ChangeTreesBatch(WalkBatch[ChangeTreesResult]):
    """Set the same owner and group for items of one directory and everything below those that are directories, and
    change the permission bits by two tables from old to new bits. A directory is changed before it is entered; if this
    process might lose access to it, it is changed after everything below it.

    When the time is over, rows that were not begun get the code ``CANCELLED``. A row with the code ``SLOW_PATH`` was
    neither changed nor counted. A remaining item has one of these letters:

    - ``?``: the batch cannot process it.
    - ``!``: another item took its name.
    - ``x``: a directory that was entered, and that must be changed after everything below it.
    - the letter of its type: it was not begun.

    Fields:
        kinds: letters of the types of the rows, as listed. Empty: the rows are directories that were changed and
            counted already, so that only their contents are processed.
        modes: array of type "H": the new permission bits of items that are not directories, by the old ones (0 to
            4095).
        directory_modes: an array like ``modes``, for directories.
        uid: the new owner, or ``UNCHANGED_VALUE`` (``pcopy.fsio.backend.batches``).
        gid: the new group, or ``UNCHANGED_VALUE``.
    """

    row_kind = "changed subtree"

    kinds: bytes
    modes: array[int]
    directory_modes: array[int]
    uid: int = UNCHANGED_VALUE
    gid: int = UNCHANGED_VALUE
