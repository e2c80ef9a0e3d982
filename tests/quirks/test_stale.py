"""ESTALE of an open: the server has lost the item of a name, and the next look-up finds it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from pcopy.fsio import retries
from pcopy.fsio.directories import DirectoriesBelowRoot
from pcopy.fsio.problem import Problem
from pcopy.fsio.temporary import create_private_file
from tests.e2e.test_few_descriptors import backend_of
from tests.support.command import Argument, pcopy, show
from tests.support.oracle import differences
from tests.support.quirks import quirky

EACH = "stale=5"
"""Two of five opens fail: the kernel itself retries once after ESTALE."""

PROGRAMS: dict[str, tuple[str, list[str]]] = {
    "copy": ("pcopy", ["-T", "source", "mounted/new"]),
    "replace": ("pcopy", ["-T", "source", "mounted/copy"]),
    "in place": ("pcopy", ["--inplace", "-T", "source", "mounted/copy"]),
    "mirror": ("psync", ["source/", "mounted/copy"]),
    "compare": ("pverify", ["source", "mounted/like"]),
    "unpack": ("ptar", ["-x", "-f", "archive", "-C", "mounted/new"]),
    "mode": ("pchmod", ["go-w", "mounted/copy"]),
    "list": ("pwalk", ["mounted/copy"]),
    "remove": ("prm", ["-f", "mounted/copy"]),
    "broadcast": ("pbcast", ["source/inner/0", "source/inner/1", "source/inner/2", "mounted/empty"]),
}


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("which", PROGRAMS)
def test_stale_item_is_opened_again(area: Path, which: str, backend: str) -> None:
    source, backing = area / "source", area / "backing"
    for directory in ("inner/deep", "outer"):
        (source / directory).mkdir(parents=True)
        for number in range(4):
            (source / directory / f"../{number}").write_bytes(b"%d" % number)
    (source / "link").symlink_to("inner")
    for copy in ("like", "copy"):
        shutil.copytree(source, backing / copy, symlinks=True)
    for number in range(4):
        (backing / f"copy/inner/{number}").write_bytes(b"old")
    for empty in ("new", "empty"):
        (backing / empty).mkdir()
    shutil.make_archive(str(area / "archive"), "tar", source)
    os.rename(area / "archive.tar", area / "archive")
    if which == "copy":
        (backing / "new").rmdir()
    program, words = PROGRAMS[which]
    with quirky(backing, EACH) as mounted:
        here: dict[str, Path] = {"mounted": mounted, "source": source, "archive": area / "archive"}
        made: list[Argument] = []
        for word in words:
            first, slash, rest = word.partition("/")
            made.append(f"{here[first]}{slash}{rest}" if first in here else word)
        ranks = None if program == "pbcast" else 1
        run = pcopy(*made, program=program, ranks=ranks, env=backend_of(backend))
    assert run.returncode == 0, show(run)
    assert b"ESTALE" not in run.stderr, show(run)
    if which in ("copy", "replace", "in place", "mirror"):
        assert differences(source, backing / ("new" if which == "copy" else "copy")) == []


def test_retry_follows_no_symlink_and_compares_the_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that took the name between two attempts is refused as at the first attempt."""
    monkeypatch.setattr(retries, "RETRY_PAUSES", (0.0, 0.0, 0.0))
    (tmp_path / "directory").mkdir()
    (tmp_path / "elsewhere").mkdir()
    base = os.open(tmp_path, os.O_RDONLY)
    identity = DirectoriesBelowRoot(base, 1, on_source=False).identity_of_directory(b"directory")
    real = os.open
    tried: list[int] = []

    def replaced_by(make: str) -> None:
        def once_stale(name: bytes, flags: int, *rest: int, **options: int) -> int:
            if name == b"directory":
                tried.append(flags)
                if len(tried) == 1:
                    os.rename(tmp_path / "directory", tmp_path / f"before {make}")
                    if make == "link":
                        (tmp_path / "directory").symlink_to("elsewhere")
                    else:
                        (tmp_path / "directory").mkdir()
                    raise OSError(errno.ESTALE, "")
            return real(name, flags, *rest, **options)

        tried.clear()
        monkeypatch.setattr(os, "open", once_stale)

    replaced_by("link")
    with pytest.raises(Problem) as caught:
        DirectoriesBelowRoot(base, 1, on_source=False).open(b"directory", identity)
    assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP)
    assert len(tried) >= 2
    assert all(flags & os.O_NOFOLLOW for flags in tried)
    replaced_by("directory")
    with pytest.raises(Problem) as caught:
        DirectoriesBelowRoot(base, 1, on_source=False).open(b"directory", identity)
    assert caught.value.errno == errno.ESTALE
    assert len(tried) == 2
    os.close(base)


def test_creation_of_a_file_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[bytes] = []

    def stale(name: bytes, *rest: int, **options: int) -> int:
        tries.append(name)
        raise OSError(errno.ESTALE, "")

    monkeypatch.setattr(os, "open", stale)
    with pytest.raises(Problem):
        create_private_file(0, b"new")
    assert tries == [b"new"]
