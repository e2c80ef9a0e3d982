"""An ordinary user exchanges directories and files for links as fast as possible, while root removes the tree of this
user."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.hostile import canaries
from tests.hostile.canaries import attack_often, missing, plant
from tests.hostile.rules import RULES
from tests.hostile.test_race import ATTEMPTS
from tests.hostile.test_rules import without
from tests.support.command import pcopy
from tests.support.files import write
from tests.support.filesystems import Place, remove
from tests.support.users import require_root

DIRECTORIES, FILES = 60, 20
TOGETHER = (
    "directories are entered without following links",
    "a directory that is opened again is the one that was found",
)
"""Rules each of which is sufficient, so that both are disabled."""


def attacked(around: Path, scratch: Path, package: Path | None = None) -> tuple[int, list[str]]:
    """Remove a tree once, while names in it are exchanged for links; return the number of exchanges, and the missing
    files outside."""
    lair, tree, safe = around / "lair", around / "lair/tree", around / "safe"
    for earlier in (lair, safe):
        remove(earlier)
    pairs = []
    for number in range(DIRECTORIES):
        link = lair / f"link-{number}"
        write(tree / f"{number}/inner/0", b"plain")
        for file in range(FILES):
            write(tree / f"{number}/{file}", b"plain")
        link.symlink_to(safe)
        pairs += [tree / f"{number}", link]
    plant(safe, FILES)
    environment = {"PYTHONPATH": str(package)} if package else {}
    prm = partial(pcopy, "--yes", tree, ranks=2, env=environment, program="prm", timeout=60)
    swaps = canaries.attacked(lair, pairs, scratch / "count", prm)
    return swaps, missing(safe, FILES)


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_nothing_outside_the_tree_is_removed(kind: str, on: Place, area: Path) -> None:
    require_root("be attacked by an ordinary user")
    around = on(kind)
    attack_often(lambda: attacked(around, area))


def test_attack_does_harm_without_the_rule(on: Place, area: Path, tmp_path: Path) -> None:
    require_root("be attacked by an ordinary user")
    both = [rule for rule in RULES if rule.name in TOGETHER]
    assert len(both) == len(TOGETHER)
    package = without(both[0].edits + both[1].edits, tmp_path / "package")
    around = on("ext4")
    assert any(attacked(around, area, package)[1] for _ in range(ATTEMPTS))
