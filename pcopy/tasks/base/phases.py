"""The phases of a job, in their order. Each begins when the one before is over on every rank."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """COPY scans and copies; LINK makes hard links and tries again what changed while it was copied. Where nothing
    that exists may be replaced unasked, or something is to be deleted, STORE brings what was copied to stable
    storage; NAME gives names to what has temporary ones. COUNT counts what the source lacks, if no more than some
    items may be deleted, and DELETE deletes it; AGAIN copies what full directories were in the way of, which have
    gone by then. FINISH gives directories their metadata; SEAL does so for those that their owner could not enter
    afterwards; SYNC brings everything to stable storage; VERIFY reads the copies back. REPAIR copies what differed
    again, and its links, directories, sync and verification come after it. SIGN brings the entries to the owners of
    their directories; then each LEVEL of directories is digested, the deepest first, in a phase of its own; the
    manifest is written in the last one."""

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
    """What users are told: one name for all phases of the repair but its verification, and one for those of SIGN."""
    if phase >= Phase.SIGN:
        return "sign"
    if Phase.REPAIR <= phase < Phase.REPAIR_VERIFY:
        return "repair"
    if phase == Phase.REPAIR_VERIFY:
        return "reverify"
    return Phase(phase).name.lower()
