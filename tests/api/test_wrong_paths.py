"""Paths and words that would mean something else to the program are refused before it starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pcopy
from tests.support.command import REPOSITORY

REFUSED: dict[str, Callable[[Path], object]] = {
    "NUL in a listed path": lambda tree: pcopy.remove(tree, from_=["keep\0other"]),
    "empty listed path": lambda tree: pcopy.remove(tree, from_=[""]),
    "NUL in a path": lambda tree: pcopy.remove(f"{tree}\0"),
    "NUL in a text": lambda tree: pcopy.copy(tree, tree.parent / "copy", exclude="a\0b"),
    "text that cannot be encoded": lambda tree: pcopy.remove(f"{tree}/\ud800"),
    "no path to remove": lambda _: pcopy.remove([]),
    "no path to copy": lambda tree: pcopy.copy([], tree),
    "no path to walk": lambda _: list(pcopy.walk([])),
    "no member": lambda tree: pcopy.extract(tree / "absent.tar", tree, []),
    "no job to resume": lambda _: pcopy.resume(None),  # type: ignore[arg-type]
    "no job to discard": lambda _: pcopy.discard(),
    "negative mode": lambda tree: pcopy.change_modes(tree, -1),
    "option as a test": lambda tree: list(pcopy.walk(tree, [f"--output={tree}/written.txt"])),
    "path as a test": lambda tree: list(pcopy.walk(tree, ["/etc"])),
    "progress of a walk": lambda tree: list(pcopy.walk(tree, progress=print)),  # type: ignore[call-overload,call-arg,unused-ignore]
    "fixed option of copytree": lambda tree: pcopy.copytree(tree, tree.parent / "copy", dereference=True),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("case", REFUSED)
def test_request_is_refused_and_changes_nothing(case: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("keep", "other"):
        (tree / name).write_bytes(b"contents")
    with pytest.raises(pcopy.InvalidOption):
        REFUSED[case](tree)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["keep", "other", "tree"]


def test_copytree_follows_a_link_that_is_the_source(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").write_bytes(b"contents")
    (tmp_path / "link").symlink_to("real")
    pcopy.copytree(tmp_path / "link", tmp_path / "copy", symlinks=True)
    assert not (tmp_path / "copy").is_symlink()
    assert (tmp_path / "copy/file").read_bytes() == b"contents"


def test_copytree_into_itself_raises_an_error_of_shutil(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with pytest.raises(shutil.Error):
        pcopy.copytree(tmp_path / "tree", tmp_path / "tree/inner")
    assert not list((tmp_path / "tree").iterdir())


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_list_works_without_standard_streams(closed: tuple[int, ...], tmp_path: Path) -> None:
    for name in ("listed", "other"):
        (tmp_path / name).write_bytes(b"contents")
    close = "; ".join(f"os.close({number})" for number in closed)
    code = f"import os, pcopy; {close}; pcopy.remove({str(tmp_path)!r}, from_=['listed'])"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, cwd=REPOSITORY, check=False, timeout=60).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_interrupted_wait_says_how_to_resume(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(50_000_000))

    def interrupt(_: pcopy.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        pcopy.copy(tmp_path / "source", tmp_path / "copy", bwlimit="1M", progress=interrupt)
    (job,) = [job.job for job in pcopy.jobs() if job.destination == str(tmp_path / "copy")]
    assert caught.value.__notes__ == [f"the job is kept; to resume it: pcopy.resume({job!r})"]
    pcopy.discard(job)
