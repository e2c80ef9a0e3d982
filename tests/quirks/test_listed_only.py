"""Directories that an ordinary user may list but not enter: only names and types are known."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import pcopy
from tests.support.users import NOBODY, require_root

WISHES = (
    "",
    "-name pi*",
    "-type p",
    "-type s,c,b",
    "! -type p",
    "-size 0",
    "-type p -size 0",
    "-mindepth 2",
    "-print -o -print",
)


@pytest.fixture
def tree(area: Path) -> Path:
    require_root("make devices, and run pwalk as another user")
    top = area / "top"
    for directory in (top, top / "inner", top / "inner/deep"):
        directory.mkdir()
        (directory / "file").touch()
        (directory / "link").symlink_to("file")
        os.mkfifo(directory / "pipe")
        os.mknod(directory / "character", 0o020600, os.makedev(1, 3))
        os.mknod(directory / "block", 0o060600, os.makedev(7, 0))
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/cwd/{os.path.relpath(directory)}/socket")
    (top / "inner").chmod(0o744)
    return top


def compare(tree: Path, backend: str, wish: str) -> None:
    words: list[Any] = ["find", tree, *wish.split()]
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    expected = subprocess.run(words, check=False, **user, cwd="/", capture_output=True)  # type: ignore[call-overload]
    for ranks in (1, 2):
        run = pcopy(
            tree, *wish.split(), ranks=ranks, user=NOBODY, env={"PCOPY_BACKEND": backend}, cwd="/", program="pwalk"
        )
        assert b"top" in expected.stdout
        assert sorted(run.stdout.splitlines()) == sorted(expected.stdout.splitlines())
        assert run.returncode == expected.returncode == 1
        assert b"pipe: stat" not in run.stderr or "-size" in wish


@pytest.mark.parametrize("backend", ["c", "python"])
def test_names_in_a_directory_without_search_permission_are_listed_like_find(tree: Path, backend: str) -> None:
    for wish in WISHES:
        compare(tree, backend, wish)


@pytest.mark.parametrize("backend", ["c", "python"])
def test_types_from_a_saved_listing_need_no_stat(tree: Path, backend: str) -> None:
    listing = tree.parent / f"{backend}.jsonl"
    saved = pcopy(tree, "--output", listing, program="pwalk", env={"PCOPY_BACKEND": backend})
    assert saved.returncode == 0, saved.stderr
    listing.chmod(0o644)
    run = pcopy("--from", listing, "-type", "p", "--print0", user=NOBODY, cwd="/", program="pwalk", ranks=2)
    assert run.returncode == 0, run.stderr
    found = subprocess.run(["find", tree, "-type", "p", "-print0"], capture_output=True, check=True)
    assert sorted(run.stdout.split(b"\0")) == sorted(found.stdout.split(b"\0"))
