"""The phases of a job, in their order. A phase begins only when the one before it has ended on all ranks."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """A phase of a job: the tasks of a phase begin only when all tasks of the one before it have ended, on all ranks.
    The numbers are in the order in which phases run. A phase without tasks is left out.

    - COPY scans the source and copies.
    - LINK creates hard links, and retries items that changed while they were copied.
    - STORE brings copies to stable storage before NAME or DELETE. It is used if existing items must not be replaced
      without permission (``--existing newer``, ``skip``, ``fail``), or if something is to be deleted.
    - NAME renames copies from their temporary names to their final names.
    - COUNT counts the extra items of the destination, if the number of deletions is limited.
    - DELETE deletes the extra items.
    - AGAIN copies items whose target name was taken by a directory that DELETE has removed.
    - FINISH sets the metadata of directories.
    - SEAL sets the metadata of those directories that their owner cannot enter afterwards.
    - SYNC brings everything to stable storage.
    - VERIFY reads the copies back.
    - REPAIR copies items again that differed from their source. REPAIR_LINK, REPAIR_FINISH, REPAIR_SYNC and
      REPAIR_VERIFY do for these items what LINK, FINISH, SYNC and VERIFY do for all.
    - SIGN sends the items of a signature to the ranks that digest their directories.
    - LEVEL digests directories, one phase for each depth, the deepest first. The manifest is written in the last one.
    """

    COPY = 0
    LINK = 1
    STORE = 2
    NAME = 3
    COUNT = 4
    DELETE = 5
    AGAIN = 6
    FINISH = 7
    SEAL = 8
    SYNC = 9
    VERIFY = 10
    REPAIR = 11
    REPAIR_LINK = 12
    REPAIR_FINISH = 13
    REPAIR_SYNC = 14
    REPAIR_VERIFY = 15
    SIGN = 16
    LEVEL = 17


def phase_name(phase: int) -> str:
    """Return the name of a phase for users. All phases of a repair except REPAIR_VERIFY have one name, and so do SIGN
    and LEVEL.
    """
    if phase >= Phase.SIGN:
        return "sign"
    if Phase.REPAIR <= phase < Phase.REPAIR_VERIFY:
        return "repair"
    if phase == Phase.REPAIR_VERIFY:
        return "reverify"
    return Phase(phase).name.lower()
