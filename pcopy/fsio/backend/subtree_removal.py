"""``RemoveTreesBatch``: a batch that removes subtrees. Only the C backend has it."""

from __future__ import annotations

from pcopy.fsio.backend.walk_batches import WalkBatch, WalkResult


class RemoveTreesBatch(WalkBatch[WalkResult]):
    """Open directories, remove everything in them and below, and then the directories themselves.

    A row with the code ``DONE`` that is not in ``WalkResult.frontiers`` was removed. ``WalkResult.counts`` has the
    removed items; of these, ``directories`` includes the rows. When the time is over, rows that were not begun get the
    code ``CANCELLED``. In a row with the code ``SLOW_PATH`` nothing was removed.

    A remaining item has the letter ``d`` if it is a directory that was not entered, ``?`` if it could not be removed,
    and the letter of its type if it was not tried. A directory of a frontier below and in which nothing remains could
    not be removed itself.

    Fields:
        mount: the mount (``pcopy.fsio.mounted.mount_id_of``) on which all directories must be.
        removes_by_type: True to remove items by name and type of the listing, without reading their status. Then the
            bytes of the files are not counted.
    """

    mount: int
    removes_by_type: bool = False
