"""Simple files are archived in batches: the archive equals that of single files, and GNU tar reads it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support import native
from tests.support.archives import ptar
from tests.support.command import Argument, show
from tests.support.users import is_root

SIZES = (0, 1, 511, 512, 513, 65_535, 65_536)
MANY = 2300
"""More files than one listing call returns."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree with simple files and other items between them."""
    native.require()
    tree = tmp_path_factory.mktemp("plain") / "tree"
    for number in range(30):
        (tree / f"small/{number}").mkdir(parents=True)
        for each in range(number % 5):
            (tree / f"small/{number}/{each}").write_bytes(b"%d" % each * 300)
    (tree / "many").mkdir()
    for number in range(MANY):
        (tree / f"many/{number * 7919 % MANY:05}").write_bytes(b"%d" % number)
    for number in range(0, MANY, 400):
        (tree / f"many/{number:05}-link").symlink_to("0")
        os.link(tree / f"many/{number + 1:05}", tree / f"many/{number:05}-hard")
    subprocess.run(("setfattr", "-n", "user.a", "-v", "b", "many/00500"), cwd=tree, check=True)
    (tree / "odd").mkdir()
    for size in SIZES:
        (tree / f"odd/{size}").write_bytes(os.urandom(size))
    for length in (89, 90, 91, 92, 200):  # tree/odd/ precedes it
        (tree / "odd" / ("n" * length)).write_bytes(b"long")
    for name, time in (
        ("whole", 10**18),
        ("early", 10**18 - 1),
        ("first", 1),
        ("before", -1),
        ("late", 9 * 10**18 + 1),
    ):
        (tree / "odd" / name).write_bytes(b"time")
        os.utime(tree / "odd" / name, ns=(time, time))
    with open(os.path.join(os.fsencode(tree), b"odd/\xff\n"), "wb") as file:
        os.fchmod(file.fileno(), 0o6741)
        if is_root():
            os.fchown(file.fileno(), 12345, 3_000_000)
    return tree


@pytest.mark.parametrize("options", [(), ("--zstd",), ("--signature",)], ids=" ".join)
def test_batches_of_files_give_the_same_archive_as_single_files(
    options: tuple[str, ...], tree: Path, tmp_path: Path
) -> None:
    """The Python backend processes each file separately."""
    made = []
    for backend, ranks, more in (("c", 2, ("--in-flight", "4")), ("c", 3, ()), ("python", 1, ())):
        words: list[Argument] = [*options, tmp_path / "signature"] if "--signature" in options else [*options]
        done = ptar(
            "-cf", tmp_path / "a.tar", *words, *more, "--json", "-C", tree.parent, "tree",
            ranks=ranks, env={"PCOPY_BACKEND": backend},
        )  # fmt: skip
        assert done.returncode == 0, show(done)
        reported = {key: value for key, value in json.loads(done.stdout).items() if key not in ("seconds", "ranks")}
        made.append((reported, (tmp_path / "a.tar").read_bytes()))
    assert made[0] == made[2]
    assert made[1] == made[2]


def test_gnu_tar_finds_no_difference(tree: Path, tmp_path: Path) -> None:
    done = ptar("-cf", tmp_path / "a.tar", "-C", tree.parent, "tree", ranks=2, env={"PCOPY_BACKEND": "c"})
    assert done.returncode == 0, show(done)
    compared = subprocess.run(
        ("tar", "-df", tmp_path / "a.tar", "-C", tree.parent, "--xattrs"), capture_output=True, check=False
    )
    assert (compared.returncode, compared.stdout, compared.stderr) == (0, b"", b"")
    listed = subprocess.run(("tar", "-tf", tmp_path / "a.tar"), capture_output=True, check=True).stdout
    found = sum(len(names) + len(files) for _, names, files in os.walk(tree))
    assert listed.count(b"\n") == found + 1


def test_archive_in_its_own_tree_is_left_out(tmp_path: Path) -> None:
    native.require()
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    for _ in range(2):
        done = ptar("-cf", tmp_path / "b.tar", "-C", tmp_path, ".", ranks=2)
        assert done.returncode == 0, show(done)
    listed = subprocess.run(("tar", "-tf", tmp_path / "b.tar"), capture_output=True, check=True).stdout
    assert listed == b"./\n./a\n./b\n./c\n"
