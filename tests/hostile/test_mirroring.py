"""An ordinary user exchanges directories for links as fast as he can, while root mirrors into his tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.hostile.test_race import swapping
from tests.support.command import pcopy, show
from tests.support.files import write
from tests.support.filesystems import Place, remove
from tests.support.users import NOBODY, require_root

SWAPS = 2000
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
            write(safe / f"{file}", b"canary")
            write(safe / f"inner/{file}", b"canary")
        (lair / f"link-{number}").symlink_to(safe)
        pairs += [tree / f"{number}", lair / f"link-{number}"]
    subprocess.run(["chown", "-hR", f"{NOBODY}:{NOBODY}", lair], check=True)
    count = scratch / "count"
    with swapping(pairs, count):
        run = pcopy("--mirror", "--checkpoint", "none", f"{source}/", tree, ranks=2, timeout=60)
        swaps = int(count.read_bytes() or b"0")
    assert run.returncode in (0, 1), show(run)
    wanted = {"inner", *(f"{outer}{file}" for outer in ("", "inner/") for file in range(FILES))}
    return swaps, sorted(wanted - {str(path.relative_to(safe)) for path in safe.rglob("*")})


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_nothing_outside_is_deleted(kind: str, on: Place, area: Path) -> None:
    require_root("be attacked by an ordinary user")
    around, swaps = on(kind), 0
    while swaps < SWAPS:
        more, missing = attacked(around, area)
        swaps += more
        assert missing == []
