"""``ptar -c`` on file systems that become full, and on btrfs: only the partial archive and its records remain."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.archives import MIB, ptar
from tests.support.command import Argument, show
from tests.support.filesystems import mounted
from tests.support.interrupted_archives import left

SIZES = {"tmpfs": 12 * MIB, "ext4": 40 * MIB, "xfs": 330 * MIB, "btrfs": 120 * MIB}
FREE = 12 * MIB
"""Bytes of free space for an archive, which needs more."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(200):
        (tree / f"{number}").write_bytes(os.urandom(100_000))
    return tree


def fill(place: Path, kind: str) -> None:
    """Fill a file system except for ``FREE`` bytes."""
    if kind == "tmpfs":
        return
    reported = os.statvfs(place)
    rest = reported.f_bavail * reported.f_frsize - FREE
    with (place / "ballast").open("wb") as file:
        for at in range(0, rest, MIB):
            file.write(bytes(min(MIB, rest - at)))
        os.fsync(file.fileno())


def make_room(place: Path, kind: str) -> None:
    if kind == "tmpfs":
        subprocess.run(["mount", "-o", "remount,size=60m", place], check=True)
    else:
        (place / "ballast").unlink()


@pytest.mark.parametrize(
    ("kind", "words", "ranks"),
    [
        ("tmpfs", (), 1),
        ("tmpfs", ("--zstd", "--resume"), 2),
        ("ext4", (), 2),
        ("xfs", ("--resume",), 1),
        ("btrfs", (), 2),
        ("btrfs", ("--zstd",), 1),
    ],
)
def test_archive_is_resumed_after_a_full_file_system(
    tree: Path, tmp_path: Path, kind: str, words: tuple[str, ...], ranks: int
) -> None:
    with mounted(kind, tmp_path, SIZES[kind]) as place:
        fill(place, kind)
        archive = place / "a.tar"
        line: tuple[Argument, ...] = ("-c", "-f", archive, *words, "tree")
        done = ptar(*line, ranks=ranks, cwd=tmp_path)
        assert done.returncode == 75, show(done)
        assert b"the archive cannot be written: write: No space left on device" in done.stderr, show(done)
        assert b"to continue with" in done.stdout, show(done)

        make_room(place, kind)
        done = ptar(*line, *(() if "--resume" in words else ("--resume",)), ranks=ranks, cwd=tmp_path)
        assert done.returncode == 0, show(done)
        found = re.search(rb"resumed: (\d+) of \d+ pieces", done.stdout)
        assert found is not None and int(found[1]) > 0, show(done)
        assert left(place) == []
        unpacked = tmp_path / "unpacked"
        unpacked.mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", unpacked], check=True)
        subprocess.run(["diff", "-r", tree, unpacked / "tree"], check=True)


@pytest.mark.parametrize("ranks", [1, 2])
def test_finished_run_leaves_no_records_on_btrfs(tree: Path, tmp_path: Path, ranks: int) -> None:
    with mounted("btrfs", tmp_path, SIZES["btrfs"]) as place:
        line: tuple[Argument, ...] = ("-c", "-q", "--checkpoint-interval", "0.00001", "-f", place / "a.tar", "tree")
        done = ptar(*line, ranks=ranks, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, b""), show(done)
        assert left(place) == []
