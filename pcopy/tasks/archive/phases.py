"""The phases of making an archive, and of unpacking one, in their order; numbers between belong to other programs."""

from __future__ import annotations

from pcopy.tasks.base.phases import Phase

TELL = 2
"""Of making: owners of directories tell rank 0 of their pieces. Before it the tree is walked, and hard links meet."""
PLACE = 4
"""Rank 0 tells where they begin, and they are written."""
SYNC = int(Phase.SYNC)
"""Each rank brings what it has written to storage."""

COMPARE = 1
"""Of unpacking: before it members are found and come to the owners of their directories. These compare names."""
FOLLOW = 2
"""Rank 0 follows links."""
UNPACK = 3
"""Members are unpacked."""
UNPACK_AGAIN = 4
"""Those that something was in the way of, where a directory is by now."""
LINKS = int(Phase.AGAIN)
"""Further names are linked to them."""
FINISH, SEAL = int(Phase.FINISH), int(Phase.SEAL)
"""Directories get their metadata; those last that their owner cannot enter then."""
