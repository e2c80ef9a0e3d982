"""File systems whose listings show other inode numbers than stat(2): an overlay without xino, and FUSE.

Oracles: find, rsync (``tests.support.oracle``), tar.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import Completed, pcopy, show, summary
from tests.support.filesystems import mounted, scratch, unmount
from tests.support.oracle import differences
from tests.support.users import require_root

BACKENDS = ("c", "python")


@contextmanager
def overlay() -> Iterator[tuple[Path, Path]]:
    """Yield a new directory and an overlay whose listings show other inode numbers; it contains a small tree."""
    require_root("mount an overlay")
    with scratch() as area, mounted("ext4", area, size=64 << 20) as upper:
        lower, point = area / "lower", area / "overlay"
        for path in (lower, point, upper / "changed", upper / "work"):
            path.mkdir()
        make_tree(lower)
        layers = f"lowerdir={lower},upperdir={upper / 'changed'},workdir={upper / 'work'},xino=off"
        if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, point], check=False).returncode:
            pytest.skip("this kernel can't mount an overlay")
        try:
            yield area, point
        finally:
            unmount(point)


def make_tree(top: Path) -> None:
    for name in ("d/e/f", "many/a", "many/b"):
        (top / name).mkdir(parents=True)
    for number in range(300):
        (top / "many" / f"file{number}").write_bytes(b"%d" % number)
    (top / "d/e/f/deep").write_bytes(b"deep")
    (top / "d/e/link").symlink_to("f/deep")
    os.link(top / "many/file1", top / "d/one")


def lists_other_inodes(directory: Path) -> bool:
    with os.scandir(directory) as entries:
        return any(entry.inode() != os.lstat(entry.path).st_ino for entry in entries)


def found(top: Path) -> set[bytes]:
    return {*subprocess.run(["find", ".", "-print0"], cwd=top, check=True, capture_output=True).stdout.split(b"\0")}


def run(backend: str, program: str, *words: str | Path, cwd: Path | None = None) -> Completed:
    done = pcopy(*words, program=program, ranks=2, cwd=cwd, env={"PCOPY_BACKEND": backend})
    assert done.returncode == 0, show(done)
    return done


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_programs_enter_every_directory(backend: str) -> None:
    with overlay() as (area, tree):
        assert lists_other_inodes(tree), "the overlay lists the inode numbers of stat"
        check_programs(backend, area, tree)


def check_programs(backend: str, area: Path, tree: Path) -> None:
    """Walk, compare, copy, archive, change, mirror and remove ``tree``."""
    source, copy, archive = area / "source", area / "copy", area / "archive.tar"
    assert {*run(backend, "pwalk", ".", "-print0", cwd=tree).stdout.split(b"\0")} == found(tree)
    subprocess.run(["cp", "-a", f"{tree}/.", source], check=True)
    run(backend, "pverify", tree, source)
    run(backend, "pcopy", f"{tree}/", copy)
    assert differences(source, copy) == []
    run(backend, "ptar", "-cf", archive, ".", cwd=tree)
    subprocess.run(["tar", "-df", archive], cwd=tree, check=True)
    run(backend, "pchmod", "-q", "g+w", tree)
    assert {path for path in tree.rglob("*") if not (path.is_symlink() or path.stat().st_mode & 0o020)} == set()
    check_mirror(backend, source, tree)
    run(backend, "prm", "-q", "-f", tree / "many", tree / "d/e")
    assert found(tree) == {b"", b".", b"./d", b"./d/one"}


def check_mirror(backend: str, source: Path, tree: Path) -> None:
    for name in ("d/extra", "d/e/f/extra", "many/a/new/extra", "new/below/extra"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(b"extra")
    done = run(backend, "psync", f"{source}/", tree, "--json")
    assert (summary(done)["deleted"], done.stderr.count(b"mounted")) == (7, 0), show(done)
    assert differences(source, tree) == []
