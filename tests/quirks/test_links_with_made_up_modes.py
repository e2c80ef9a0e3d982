"""Hard-linked files in a destination that shows fixed modes or owners: a second mirror copies none of them again.

Oracle: rsync (``--checksum``, without modes and owners), and the inode numbers of stat.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command import pcopy, show, summary
from tests.support.filesystems import scratch
from tests.support.quirks import quirky

SITUATIONS = [("c", "fixed_mode=0755"), ("python", "fixed_mode=0777"), ("c", "fixed_owner=65534")]


@pytest.mark.parametrize(("backend", "quirk"), SITUATIONS)
def test_second_mirror_copies_no_hard_link_again(backend: str, quirk: str) -> None:
    with scratch() as area:
        source, backing = area / "source", area / "backing"
        for path in (source / "a", source / "b", backing):
            path.mkdir(parents=True)
        (source / "a/file").write_bytes(b"content")
        (source / "a/large").write_bytes(bytes(9 << 20))
        (source / "a/symlink").symlink_to("file")
        for name in os.listdir(source / "a"):
            os.link(source / "a" / name, source / "b" / name, follow_symlinks=False)
        with quirky(backing, quirk) as tree:
            (tree / "copy").mkdir()
            inodes = []
            for _ in range(2):
                done = pcopy(
                    "--json", f"{source}/", tree / "copy", program="psync", ranks=2, env={"PCOPY_BACKEND": backend}
                )
                assert done.returncode == 0, show(done)
                inodes.append({path: path.lstat().st_ino for path in (backing / "copy").rglob("*")})
            totals = summary(done)
            counted = (totals["files"], totals["directories"], totals["hardlinks"], totals["skipped"])
            assert counted == (0, 0, 0, 9), show(done)  # six names of files and three directories
            assert inodes[0] == inodes[1]
            words = ["rsync", "-nrltc", "--omit-dir-times", "--itemize-changes", f"{source}/", str(tree / "copy")]
            assert subprocess.run(words, check=True, capture_output=True).stdout == b""
            assert not list(backing.rglob(".pcopy-*"))


@pytest.mark.parametrize("backend", ["c", "python"])
def test_copies_in_place_of_links_are_reported_once_with_their_number(backend: str) -> None:
    """The directory seems to belong to another user, and files have no handles."""
    with scratch() as area:
        source, backing = area / "source", area / "backing"
        source.mkdir()
        backing.mkdir()
        for number in range(3):
            (source / f"file{number}").write_bytes(b"%d" % number)
            os.link(source / f"file{number}", source / f"name{number}")
        with quirky(backing, "fixed_owner=65534") as tree:
            words: list[str | Path] = ["--json", "--no-preserve", "ownership", f"{source}/", tree / "copy"]
            done = pcopy(*words, ranks=1, env={"PCOPY_BACKEND": backend})
            assert subprocess.run(["diff", "-r", source, tree / "copy"], check=False).returncode == 0
        totals = summary(done)
        assert (done.returncode, totals["files"], totals["hardlinks"], totals["warnings"]) == (0, 6, 0, 3), show(done)
        assert done.stderr.count(b"its other names (hard links) become copies: ") == 1, show(done)
        assert b"(--no-preserve links makes such copies without a warning) (more warnings like this" in done.stderr, (
            show(done)
        )
