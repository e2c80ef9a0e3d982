"""``ptar -c`` on trees of many directories, which the C backend describes several at once: GNU tar unpacks what was
archived.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.archives import ptar
from tests.support.command import Argument, show
from tests.support.interrupted_archives import assert_same, go_on, interrupt, made
from tests.support.oracle import differences
from tests.support.users import is_root


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small directories, a chain of 40 levels, and a directory of 1,500; some have items that are not simple."""
    tree = tmp_path_factory.mktemp("tree") / "tree"
    for number in range(300):
        place = tree / f"{number % 7}" / f"d{number}"
        place.mkdir(parents=True)
        for file in range(number % 4):
            (place / f"f{file}").write_bytes(os.urandom(number * 37 % 2000))
    for name in ("0/d7", "1/d8/sub", "3/d3"):
        (tree / name).mkdir(exist_ok=True)
        (tree / name / "link").symlink_to("f1")
    os.link(tree / "1/d1/f0", tree / "5/d5/again")
    (tree / "6/d6/large").write_bytes(bytes(70_000))
    os.setxattr(tree / "6/d13", "user.mark", b"value")
    (tree / "2/d2" / ("n" * 120)).write_bytes(b"name")
    (tree / "4/d4/a-b").mkdir()
    (tree / "4/d4/a").mkdir()
    (tree / "4/d4/a/x").write_bytes(b"x")
    chain = tree / "chain" / "/".join("c" * 40)
    chain.mkdir(parents=True)
    (chain / "end").write_bytes(b"end")
    for number in range(1500):
        (tree / "many" / f"{number}").mkdir(parents=True)
    (tree / "many/1000/f").write_bytes(b"many")
    if is_root():
        os.chown(tree / "0/d0", 4242, 4343)
    return tree


def archive(tree: Path, place: Path, *words: Argument, ranks: int) -> Path:
    done = ptar("-c", "-q", *words, "-f", place / "a.tar", "-C", tree.parent, "tree", ranks=ranks)
    assert done.returncode == 0, show(done)
    return place / "a.tar"


def order_key(member: tarfile.TarInfo) -> list[tuple[int, bytes]]:
    """The order of the archive: a directory, other items in it by name, then its subdirectories with their contents."""
    *above, last = os.fsencode(member.name).split(b"/")
    return [*((1, name) for name in above), (int(member.isdir()), last)]


@pytest.mark.parametrize("words", [(), ("--zstd",), pytest.param(("--in-flight", "4"), marks=pytest.mark.c_backend)])
def test_gnu_tar_unpacks_the_tree(words: tuple[str, ...], tree: Path, tmp_path: Path) -> None:
    made_by = []
    for ranks in (1, 3):
        (tmp_path / f"{ranks}").mkdir()
        made_by.append(archive(tree, tmp_path / f"{ranks}", *words, ranks=ranks))
    assert_same(*made_by)
    place = tmp_path / "place"
    place.mkdir()
    compression = words if words == ("--zstd",) else ()
    subprocess.run(["tar", *compression, "--xattrs", "-xpf", made_by[0]], cwd=place, check=True)
    assert differences(tree, place / "tree") == []


def test_members_have_one_order(tree: Path, tmp_path: Path) -> None:
    with tarfile.open(archive(tree, tmp_path, ranks=2)) as read:
        members = read.getmembers()
    assert members == sorted(members, key=order_key)
    listed = subprocess.run(["find", "tree", "-print0"], cwd=tree.parent, check=True, capture_output=True).stdout
    assert sorted(os.fsencode(member.name) for member in members) == sorted(listed.split(b"\0")[:-1])


def test_summary_counts_each_item_once(tree: Path, tmp_path: Path) -> None:
    for words in ((), ("--dry-run",), ("--log", tmp_path / "log")):
        done = ptar("-c", "--json", *words, "-f", tmp_path / "a.tar", "-C", tree.parent, "tree", ranks=2)
        assert done.returncode == 0, show(done)
        numbers = subprocess.run(["find", tree, "-printf", "%y"], check=True, capture_output=True, text=True).stdout
        for text in (f'"found": {len(numbers)}', f'"directories": {numbers.count("d")}', '"failed": 0'):
            assert text.encode() in done.stdout, (text, show(done))
    logged = (tmp_path / "log").read_bytes().splitlines()
    assert len(logged) == len(numbers)


def test_resume_keeps_pieces_of_small_directories(tmp_path: Path) -> None:
    """The first run records nine pieces. With threads, pieces would be those of single directories."""
    tree = tmp_path / "tree"
    for number in range(2000):
        (tree / f"{number}").mkdir(parents=True)
        (tree / f"{number}" / "f").write_bytes(b"%d" % number)
    whole = made(tree, "whole.tar")
    interrupt(tree, "--in-flight", "1", ranks=1, calls=20)
    assert go_on(tree, "--in-flight", "1", ranks=1)["pieces_resumed"] >= 8
    assert_same(whole, tree.parent / "a.tar")
