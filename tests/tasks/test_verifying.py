"""Copies that are read back and repaired, where files change at one chosen moment between two tasks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pcopy.tasks.verify.verify_items import VerifyItems
from tests.support.damages import flip
from tests.support.files import replace_by_fifo
from tests.tasks.one_rank import Copied, consistent, copy, once, root_of

LARGE = (5 << 20) + 256


@pytest.fixture
def trees(area: Path) -> tuple[Path, Path]:
    """A source with a file of each size class, a link and a directory, and an empty target."""
    source, target = area / "source", area / "target"
    target.mkdir()
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "small").write_bytes(b"small")
    (source / "sub" / "large").write_bytes(bytes(range(256)) * (LARGE // 256))
    (source / "sub" / "link").symlink_to("small")
    os.utime(source / "sub", (1, 1))
    return source, target


def verified(trees: tuple[Path, Path], damage: Callable[[Path, Path], None], *, repair: bool, ranks: int = 1) -> Copied:
    """Copy and verify. ``damage`` changes the directory ``sub`` of source and target after everything is copied and
    finished.
    """
    source, target = trees
    hook = once(VerifyItems, lambda: damage(source / "sub", target / "sub"))
    return copy(
        root_of(source, target), ranks=ranks, before=hook, hash="xxh3-128", verify=True, repair=repair,
        chunk_size=1, block_size=1 << 20,
    )  # fmt: skip


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def retarget(path: Path) -> None:
    path.unlink()
    path.symlink_to("other")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "small: first byte": lambda sub: flip(sub / "small", 0),
    "small: removed": lambda sub: (sub / "small").unlink(),
    "small: shorter": lambda sub: cut(sub / "small"),
    "small: longer": lambda sub: os.truncate(sub / "small", 6),
    "small: a FIFO": lambda sub: replace_by_fifo(sub / "small"),
    "large: first byte": lambda sub: flip(sub / "large", 0),
    "large: last byte": lambda sub: flip(sub / "large", LARGE - 1),
    "large: removed": lambda sub: (sub / "large").unlink(),
    "large: shorter": lambda sub: cut(sub / "large"),
    "large: longer": lambda sub: os.truncate(sub / "large", LARGE + 1),
    "link: a FIFO": lambda sub: replace_by_fifo(sub / "link"),
    "link: another target": lambda sub: retarget(sub / "link"),
    "link: removed": lambda sub: (sub / "link").unlink(),
}


@pytest.mark.parametrize("ranks", [1, 3])
def test_intact_files_are_verified(trees: tuple[Path, Path], ranks: int) -> None:
    totals = consistent(verified(trees, lambda _, __: None, repair=False, ranks=ranks))
    assert (totals.verified, totals.failed, totals.for_repair) == (5, 0, 0), "three items and two directories"
    assert totals.verified_bytes == LARGE + 5


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_item_is_found(trees: tuple[Path, Path], damage: str, ranks: int) -> None:
    copied = verified(trees, lambda _, sub: DAMAGES[damage](sub), repair=False, ranks=ranks)
    totals = consistent(copied)
    assert (totals.verified, totals.failed) == (4, 1)
    (failure,) = copied.failures
    assert failure.path == bytes(trees[1] / "sub" / damage.partition(":")[0])


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_item_is_repaired(trees: tuple[Path, Path], damage: str, ranks: int) -> None:
    source, target = trees
    copied = verified(trees, lambda _, sub: DAMAGES[damage](sub), repair=True, ranks=ranks)
    totals = consistent(copied)
    assert (totals.verified, totals.failed, copied.failures) == (5, 0, [])
    for name in ("small", "large"):
        assert (target / "sub" / name).read_bytes() == (source / "sub" / name).read_bytes()
    assert os.readlink(target / "sub" / "link") == "small"
    assert (target / "sub").stat().st_mtime == 1, "what is put into a directory anew changes its times"


def become_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inner").write_bytes(b"inner")


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("name", ["small", "large", "link"])
def test_source_that_becomes_a_directory_fails(trees: tuple[Path, Path], name: str, repair: bool) -> None:
    copied = verified(trees, lambda sub, _: become_directory(sub / name), repair=repair)
    totals = consistent(copied)
    assert (totals.verified, totals.failed, totals.changed) == (4, 1, 1)
    (failure,) = copied.failures
    assert failure.path == bytes(trees[0] / "sub" / name)


@pytest.mark.parametrize("repair", [False, True])
def test_changed_source_is_copied_again_or_fails(trees: tuple[Path, Path], repair: bool) -> None:
    copied = verified(trees, lambda sub, _: flip(sub / "small", 0), repair=repair)
    totals = consistent(copied)
    assert (totals.verified, totals.failed, totals.changed) == ((5, 0, 0) if repair else (4, 1, 1))
    if repair:
        assert (trees[1] / "sub" / "small").read_bytes() == (trees[0] / "sub" / "small").read_bytes()


@pytest.mark.parametrize("repair", [False, True])
def test_source_that_vanishes_before_verification_fails(trees: tuple[Path, Path], repair: bool) -> None:
    copied = verified(trees, lambda sub, _: (sub / "small").unlink(), repair=repair)
    totals = consistent(copied)
    assert (totals.verified, totals.failed, totals.vanished) == (4, 1, 1)
    assert [failure.errno for failure in copied.failures] == [errno.ENOENT]
