"""A source tree of all kinds of items: random items, large files, hard links across directories, read-only
directories."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.support.trees import MIB, random_tree
from tests.support.users import is_root

LARGE = (5 * MIB, 7 * MIB + 1, 16 * MIB, 9 * MIB - 3)
"""Sizes of files that are split with ``SPLIT``."""

BLOCKS = 64 << 10

SPLIT = ("--chunk-size", "1M", "--block-size", str(BLOCKS))

IN_THE_WAY = ("large-1", "sparse", "small", "many names/place-5/small")
"""Files that fail if a directory exists under their names: large ones and small ones."""


def make_dataset(path: Path, seed: int, *, files: int = 700, directories: int = 90, crossing: int = 60) -> None:
    """Create a tree at ``path``; equal seeds create equal trees. ``crossing`` inodes have names in several
    directories."""
    random_tree(path, seed, files=files, directories=directories, largest=6 * MIB, privileged=is_root())
    maker = random.Random(seed)
    many = path / "many names"
    places = [many / f"place-{number}" for number in range(12)]
    for place in places:
        place.mkdir(parents=True)
    for number in range(crossing):
        size = LARGE[0] if number < 2 else maker.randrange(1 << 14)
        first, *others = maker.sample(places, maker.randrange(2, 5))
        (first / f"linked-{number}").write_bytes(maker.randbytes(size))
        for other in others:
            os.link(first / f"linked-{number}", other / f"linked-{number}")
    for number, size in enumerate(LARGE):
        (path / f"large-{number}").write_bytes(maker.randbytes(size))
    with open(path / "sparse", "wb") as file:
        for start in range(0, 40 * MIB, 5 * MIB):
            file.seek(start)
            file.write(maker.randbytes(200_000))
        file.truncate(40 * MIB)
    for name in IN_THE_WAY[-2:]:
        (path / name).write_bytes(b"small")
    for place in places[::2]:
        place.chmod(0o555)
