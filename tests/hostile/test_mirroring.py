"""An ordinary user exchanges directories for links as fast as possible, while root mirrors into the tree of this
user."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile import canaries
from tests.hostile.canaries import attack_often, missing, plant
from tests.support.command import pcopy
from tests.support.files import write
from tests.support.filesystems import Place, remove
from tests.support.users import require_root

DIRECTORIES, FILES = 40, 15


def attacked(around: Path, scratch: Path) -> tuple[int, list[str]]:
    """Mirror once; return the number of exchanges, and the missing files outside.

    Half of the directories are in the source, too, so that they are entered; the other half is deleted. Outside there
    are files with the names that would be deleted in either.
    """
    lair, tree, safe, source = around / "lair", around / "lair/tree", around / "safe", around / "source"
    for earlier in (lair, safe, source):
        remove(earlier)
    pairs = []
    for number in range(DIRECTORIES):
        if number % 2:
            write(source / f"{number}/inner/kept", b"plain")
        for file in range(FILES):
            write(tree / f"{number}/{file}", b"plain")
            write(tree / f"{number}/inner/{file}", b"plain")
        (lair / f"link-{number}").symlink_to(safe)
        pairs += [tree / f"{number}", lair / f"link-{number}"]
    plant(safe, FILES)
    words = "--mirror", "--checkpoint", "none", f"{source}/", tree
    swaps = canaries.attacked(lair, pairs, scratch / "count", lambda: pcopy(*words, ranks=2, timeout=60))
    return swaps, missing(safe, FILES)


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_nothing_outside_the_tree_is_deleted(kind: str, on: Place, area: Path) -> None:
    require_root("be attacked by an ordinary user")
    around = on(kind)
    attack_often(lambda: attacked(around, area))
