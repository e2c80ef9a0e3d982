"""The phases of creating an archive and of extracting one, in their order.

The numbers that are missing belong to phases of other programs.
"""

from __future__ import annotations

from pcopy.tasks.base.phases import Phase

REPORT_PIECES = 2
"""Creation: ranks divide their members into pieces (consecutive members that one task writes), and report these to rank
0. Before that, the tree is walked and the names of each inode are collected.
"""
WRITE_PIECES = 4
"""Creation: rank 0 computes the offset of each piece, and the pieces are written."""
SYNC = int(Phase.SYNC)
"""Creation: each rank syncs what it has written (fsync)."""

COMPARE_NAMES = 1
"""Extraction: the ranks that own directories look for conflicting names. Before that, members are found and sent to
these ranks.
"""
RESOLVE_LINKS = 2
"""Extraction: rank 0 finds out which member each hard link refers to."""
UNPACK = 3
"""Extraction: everything but hard links is extracted."""
UNPACK_AGAIN = 4
"""Extraction: members whose directory could not be created in the phase UNPACK, because an item that was replaced since
was in the way.
"""
MAKE_LINKS = int(Phase.AGAIN)
"""Extraction: hard links are created."""
FINISH, SEAL = int(Phase.FINISH), int(Phase.SEAL)
"""Extraction: directories get their metadata. Those that this process cannot enter with their final mode come last
(SEAL).
"""
