"""An ordinary user exchanges directories for links as fast as he can, while root mirrors into his tree."""

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
    """Mirrors once: how often names were exchanged, and what is missing outside.

    Half of the directories are in the source, too, so that they are looked into; the others go. Outside there are files
    of the names that would go in either.
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
def test_nothing_outside_is_deleted(kind: str, on: Place, area: Path) -> None:
    require_root("be attacked by an ordinary user")
    around = on(kind)
    attack_often(lambda: attacked(around, area))
