"""Items of DST that are hard links to one inode, while another rank replaces other links to it.

Each replaced link changes the status of the inode. Here a preloaded library removes another link to it between the
examination of an item and its opening, as another rank might. rsync gives the expected result.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.files import NOW, age_directories, write
from tests.support.oracle import differences
from tests.support.preload import preloaded
from tests.support.users import is_root

OPENED = Path(__file__).with_name("opened.c")
OLDER = NOW - 60 * 10**9
INCOMPLETE = 1
CONTENT = b"content" * 1000


def set_time(path: Path, time: int) -> None:
    os.utime(path, ns=(time, time), follow_symlinks=False)


def small_file(path: Path) -> None:
    write(path, CONTENT)


def large_file(path: Path) -> None:
    """Create a file that is large enough to be copied in chunks."""
    write(path, CONTENT * 800)


def symbolic_link(path: Path) -> None:
    path.symlink_to("text")


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def device(path: Path) -> None:
    if not is_root():
        pytest.skip("devices are for root")
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))


UPDATED_IN_PLACE = (small_file, large_file, symbolic_link)
"""Items whose metadata are updated in place if only their time differs; others are replaced."""

ITEMS = (small_file, large_file, symbolic_link, fifo, device)


class Way(NamedTuple):
    program: str
    options: tuple[Argument, ...] = ()


WAYS = {
    "psync": Way("psync"),
    "mirror": Way("pcopy", ("--mirror",)),
    "changed": Way("pcopy", ("--existing", "changed")),
    "checksum": Way("pcopy", ("--mirror", "--checksum")),
    "inplace": Way("pcopy", ("--mirror", "--inplace")),
    "backup": Way("pcopy", ("--mirror", "--backup", "BACKUP")),
}


class Trees(NamedTuple):
    source: Path
    copy: Path
    further: Path
    env: dict[str, str]


def make(area: Path, make_item: Callable[[Path], None], names: int, *, linked: bool = False) -> Trees:
    """Create an item that differs from its source only in its time and has ``names`` more links that will be removed.

    If ``linked`` is true, the source has two links, and DST lacks the second one.
    """
    source, copy, further = area / "source", area / "copy", area / "further"
    for tree, time in ((source, NOW), (copy, OLDER)):
        tree.mkdir()
        make_item(tree / "shared")
        set_time(tree / "shared", time)
    if linked:
        os.link(source / "shared", source / "second", follow_symlinks=False)
    further.mkdir()
    age_directories(copy)
    for number in range(names):
        os.link(copy / "shared", further / str(number), follow_symlinks=False)
    return Trees(source, copy, further, {**preloaded(OPENED), "PCOPY_TEST_FURTHER": str(further)})


def words(area: Path, way: Way, trees: Trees) -> list[Argument]:
    options = [area / "backup" if word == "BACKUP" else word for word in way.options]
    return ["--json", "--checkpoint", "none", *options, f"{trees.source}/", trees.copy]


@pytest.mark.parametrize("linked", [False, True], ids=["one name", "two names"])
@pytest.mark.parametrize("make_item", ITEMS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_item_whose_inode_loses_a_name_is_examined_again(
    area: Path, way: str, make_item: Callable[[Path], None], linked: bool
) -> None:
    trees = make(area, make_item, 2, linked=linked)
    totals = summary(succeed(*words(area, WAYS[way], trees), program=WAYS[way].program, env=trees.env))
    assert totals["failed"] == 0, totals
    if make_item in UPDATED_IN_PLACE and way != "checksum" and not linked:
        assert os.listdir(trees.further) == [], "nothing was changed between examination and opening"
    assert differences(trees.source, trees.copy) == []
    assert totals["skipped"] + totals["files"] + totals["symlinks"] + totals["special"] == 1, totals


@pytest.mark.parametrize("make_item", ITEMS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_inode_that_keeps_another_name_is_not_changed(area: Path, way: str, make_item: Callable[[Path], None]) -> None:
    """One link lies outside DST: the inode keeps its time."""
    trees = make(area, make_item, 2)
    other = area / "other"
    os.link(trees.copy / "shared", other, follow_symlinks=False)
    before = other.lstat()
    succeed(*words(area, WAYS[way], trees), program=WAYS[way].program, env=trees.env)
    after = other.lstat()
    assert (after.st_ino, after.st_mtime_ns, after.st_mode) == (before.st_ino, before.st_mtime_ns, before.st_mode)
    assert (trees.copy / "shared").lstat().st_ino != before.st_ino
    assert differences(trees.source, trees.copy) == []


def test_item_that_changes_at_each_examination_fails(area: Path) -> None:
    trees = make(area, small_file, 100)
    write(trees.copy / "extra", b"")
    outcome = pcopy(*words(area, WAYS["psync"], trees), program="psync", env=trees.env)
    assert outcome.returncode == INCOMPLETE, show(outcome)
    assert b"put in its place meanwhile" in outcome.stderr, show(outcome)
    assert (trees.copy / "extra").exists()
    assert (trees.copy / "shared").lstat().st_mtime_ns == OLDER
    assert 2 < 100 - len(os.listdir(trees.further)) < 10, "it is examined a few times"


def test_compressed_file_whose_inode_loses_a_name_is_examined_again(area: Path) -> None:
    """Only its mode differs, so that the mode is changed in place."""
    source, copy, further = area / "source", area / "copy", area / "further"
    write(source / "shared", CONTENT)
    further.mkdir()
    job = ("--json", "--checkpoint", "none", "--existing", "changed", "--compress", "zstd", f"{source}/", copy)
    succeed(*job)
    (source / "shared").chmod(0o604)
    for number in range(2):
        os.link(copy / "shared.zst", further / str(number))
    age_directories(copy)
    env = {**preloaded(OPENED), "PCOPY_TEST_FURTHER": str(further), "PCOPY_TEST_ENDING": ".zst"}
    totals = summary(succeed(*job, env=env))
    assert (totals["failed"], totals["skipped"], os.listdir(further)) == (0, 1, [])
    assert stat.S_IMODE((copy / "shared.zst").stat().st_mode) == 0o604
    assert subprocess.run(["zstd", "-dcq", copy / "shared.zst"], check=True, capture_output=True).stdout == CONTENT


@pytest.mark.parametrize("program", ["psync", "pcopy"])
def test_many_names_of_one_inode_are_replaced_by_several_ranks(area: Path, program: str) -> None:
    """One link of each pair has the contents of its source and another time."""
    source, copy = area / "source", area / "copy"
    for number in range(60):
        for side in "ab":
            write(source / side / str(number), bytes((ord(side),)) * 70_000)
            set_time(source / side / str(number), NOW)
        write(copy / "a" / str(number), b"a" * 70_000)
        set_time(copy / "a" / str(number), OLDER)
        (copy / "b").mkdir(exist_ok=True)
        os.link(copy / "a" / str(number), copy / "b" / str(number))
    options = () if program == "psync" else ("--mirror",)
    succeed("--checkpoint", "none", *options, f"{source}/", copy, program=program, ranks=3)
    assert differences(source, copy) == []
