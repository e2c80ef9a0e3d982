"""The phases of creating an archive and of extracting one, in their order.

The numbers between them belong to other programs.
"""

from __future__ import annotations

from pcopy.tasks.base.phases import Phase

REPORT_PIECES = 2
"""Creation: ranks divide their members into pieces, and report these to rank 0. Before that the tree is walked, and
hard links are brought together."""
WRITE_PIECES = 4
"""Creation: rank 0 computes the offsets of all pieces, and the pieces are written."""
SYNC = int(Phase.SYNC)
"""Creation: each rank syncs what it has written."""

COMPARE_NAMES = 1
"""Extraction: the owners of directories look for conflicting names. Before that members are found, and sent to these
owners."""
RESOLVE_LINKS = 2
"""Extraction: rank 0 resolves hard links."""
UNPACK = 3
"""Extraction: members are extracted, except hard links."""
UNPACK_AGAIN = 4
"""Extraction: members whose directory could not be created before, because an item that is replaced by now was in the
way."""
MAKE_LINKS = int(Phase.AGAIN)
"""Extraction: hard links are created."""
FINISH, SEAL = int(Phase.FINISH), int(Phase.SEAL)
"""Extraction: directories get their metadata. Those that their owner cannot enter then come last (SEAL)."""
