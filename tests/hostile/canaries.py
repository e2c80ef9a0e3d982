"""Files outside of a tree, to which links lead while root works in the tree: none of them may be removed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.hostile.test_race import swapping
from tests.support.command import Completed, show
from tests.support.files import write
from tests.support.users import NOBODY

SWAPS = 2000
"""Number of exchanges of names that a test needs."""


def plant(safe: Path, files: int) -> None:
    for file in range(files):
        write(safe / f"{file}", b"canary")
        write(safe / f"inner/{file}", b"canary")


def attacked(lair: Path, pairs: list[Path], count: Path, work: Callable[[], Completed]) -> int:
    """Exchange the names of ``pairs`` as an ordinary user, who owns the ``lair``, while root does its ``work``; return
    the number of exchanges."""
    subprocess.run(["chown", "-hR", f"{NOBODY}:{NOBODY}", lair], check=True)
    with swapping(pairs, count):
        run = work()
        swaps = int(count.read_bytes() or b"0")
    assert run.returncode in (0, 1), show(run)
    return swaps


def missing(safe: Path, files: int) -> list[str]:
    wanted = {"inner", *(f"{outer}{file}" for outer in ("", "inner/") for file in range(files))}
    return sorted(wanted - {str(path.relative_to(safe)) for path in safe.rglob("*")})


def attack_often(attack: Callable[[], tuple[int, list[str]]]) -> None:
    """Attack until names were exchanged often enough; no file may ever be missing."""
    swaps = 0
    while swaps < SWAPS:
        more, lost = attack()
        swaps += more
        assert lost == []
