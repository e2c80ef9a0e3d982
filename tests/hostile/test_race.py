"""An ordinary user exchanges directories and files for links as fast as possible, while root copies."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.hostile.rules import RULES
from tests.hostile.stage import Stage, staged
from tests.hostile.test_rules import without
from tests.support.command import Completed, pcopy, show
from tests.support.filesystems import Place
from tests.support.preload import compiled
from tests.support.users import NOBODY, require_root

SWAPS = 10_000
DIRECTORIES, FILES = 80, 20
ATTEMPTS = 20
SWAPPER = Path(__file__).with_name("swapper.c")


class Race(NamedTuple):
    """A copy under attack: its end, the number of exchanges, and the harm that was done."""

    run: Completed
    swaps: int
    harm: list[str]


def build(stage: Stage) -> list[Path]:
    """Create trees on both sides; return the pairs of names to exchange: each is a directory or a file, and a link.

    In the target the links lie in the same directory: the attacker may rename directories of root there, but not move
    them elsewhere.
    """
    pairs = []
    for number in range(DIRECTORIES):
        pairs += _pair(stage.owned(stage.source / f"{number}"), stage.lair / f"{number}", stage.far)
        pairs += _pair(stage.owned(stage.target / f"{number}"), stage.target / f"away-{number}", stage.safe)
        for file in range(FILES):
            stage.owned(stage.source / f"{number}/{file}", b"plain" * 100)
    for number in range(FILES):
        for tree, outside in ((stage.source, stage.far), (stage.target, stage.safe)):
            link = stage.lair / f"{tree.name}-{number}"
            pairs += _pair(stage.owned(tree / f"file-{number}", b"plain"), link, outside / "canary")
    return pairs


def _pair(path: Path, link: Path, outside: Path) -> list[Path]:
    os.symlink(outside, link)
    return [path, link]


@contextmanager
def swapping(pairs: list[Path], count: Path) -> Iterator[None]:
    """Run the attacker; the file ``count`` contains the number of exchanges."""
    setpriv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    with open(count, "wb") as output:
        attacker = subprocess.Popen([*setpriv, compiled(SWAPPER), *pairs], stdin=subprocess.DEVNULL, stdout=output)
    try:
        yield
    finally:
        attacker.kill()
        attacker.wait()


def race(stage: Stage, pairs: list[Path], package: Path | None = None) -> Race:
    """Copy once, while the attacker exchanges names."""
    count = stage.scratch / "count"
    environment = {"PYTHONPATH": str(package)} if package else {}
    with swapping(pairs, count):
        run = pcopy(f"{stage.source}/", stage.target, ranks=2, env=environment, timeout=60)
        swaps = int(count.read_bytes() or b"0")
    assert run.returncode in (0, 1), show(run)
    return Race(run, swaps, stage.harm())


@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "xfs"])
def test_attacker_does_no_harm(kind: str, on: Place, area: Path) -> None:
    require_root("be attacked by an ordinary user")
    with staged(on(kind), area) as stage:
        pairs, swaps = build(stage), 0
        stage.begin()
        while swaps < SWAPS:
            one = race(stage, pairs)
            swaps += one.swaps
            assert one.harm == [], show(one.run)


def test_attack_does_harm_without_the_rule(on: Place, area: Path, tmp_path: Path) -> None:
    require_root("be attacked by an ordinary user")
    rule = next(rule for rule in RULES if rule.name == "directories are entered without following links")
    package = without(rule.edits, tmp_path / "package")
    with staged(on("ext4"), area) as stage:
        pairs = build(stage)
        stage.begin()
        assert any(race(stage, pairs, package).harm for _ in range(ATTEMPTS))
