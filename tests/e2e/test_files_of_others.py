"""Existing files of other users with the contents of the source and another modification time.

Only the owner may set the time of a file. Therefore such files are replaced, as by rsync.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.command import Argument, pcopy, show, summary
from tests.support.files import NOW, write
from tests.support.users import NOBODY, require_root

ANOTHER = 4242
MIB = 1 << 20
EARLIER = NOW - 7 * 10**9
FILES = {"empty": 0, "small": 9, "middle": 300_000, "large": 3 * MIB}

PROGRAMS: dict[str, tuple[str, list[Argument], int]] = {
    "pcopy": ("pcopy", ["--existing", "changed"], 1),
    "psync": ("psync", [], 1),
    "in parts": ("psync", ["--chunk-size", "1M"], 2),
    "compressed": ("pcopy", ["--compress", "zstd", "--existing", "changed"], 1),
}
"""Program, options and ranks."""


@pytest.fixture
def own(area: Path) -> Path:
    """A directory that belongs to an ordinary user and contains a ``source``."""
    require_root("make files of others")
    area.chmod(0o755)
    place = area / "own"
    for name, size in FILES.items():
        write(place / "source" / name, bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    (place / "source/link").symlink_to("small")
    os.utime(place / "source/link", ns=(NOW, NOW), follow_symlinks=False)
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return place


def run_as_user(own: Path, case: str, backend: str, *options: Argument) -> subprocess.CompletedProcess[bytes]:
    program, words, ranks = PROGRAMS[case]
    words = [*words, *options, "--json", "--checkpoint", "none", f"{own}/source/", own / "copy"]
    return pcopy(*words, program=program, ranks=ranks, user=NOBODY, env={"PCOPY_BACKEND": backend})


def give_away(own: Path) -> list[Path]:
    """Give all files and links of the copy to another user, and set another time; return their paths."""
    paths = [path for path in (own / "copy").rglob("*") if path.is_symlink() or path.is_file()]
    for path in paths:
        os.chown(path, ANOTHER, ANOTHER, follow_symlinks=False)
        os.utime(path, ns=(EARLIER, EARLIER), follow_symlinks=False)
    return paths


def owners(paths: list[Path]) -> set[int]:
    return {path.lstat().st_uid for path in paths}


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("case", PROGRAMS)
def test_files_of_other_users_are_replaced(own: Path, case: str, backend: str) -> None:
    first = run_as_user(own, case, backend)
    assert first.returncode == 0, show(first)
    paths = give_away(own)
    predicted = summary(run_as_user(own, case, backend, "--dry-run"))
    assert owners(paths) == {ANOTHER}
    run = run_as_user(own, case, backend)
    assert run.returncode == 0, show(run)
    reported = summary(run)
    assert (reported["files"], reported["symlinks"], reported["mended"], reported["failed"]) == (len(FILES), 1, 0, 0)
    for key in ("found", "files", "symlinks", "mended", "failed", "skipped"):
        assert predicted[key] == reported[key], key
    assert owners(paths) == {NOBODY}
    assert {path.lstat().st_mtime_ns for path in paths} == {NOW}
    if case != "compressed":
        words = ["rsync", "-rlptgoDn", "--checksum", "--out-format=%n %i", f"{own}/source/", f"{own}/copy"]
        found = subprocess.run(words, capture_output=True, check=True, text=True).stdout
        assert not [line for line in found.splitlines() if not line.startswith("./")], found
    again = summary(run_as_user(own, case, backend))
    # The directory is skipped as well: nothing in it changes.
    assert (again["files"], again["directories"], again["mended"], again["skipped"]) == (0, 0, 0, len(paths) + 1)


SITUATIONS = ("inplace", "sticky", "read-only")


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("case", ["psync", "in parts"])
def test_files_of_other_users_fail_where_they_cannot_be_replaced(own: Path, case: str, situation: str) -> None:
    assert run_as_user(own, case, "").returncode == 0
    for side in (own / "source", own / "copy"):
        (side / "link").unlink()
        os.utime(side, ns=(NOW, NOW))  # the metadata of the directory itself is equal
    paths = give_away(own)
    if situation != "inplace":
        os.chown(own / "copy", 0, 0)
        (own / "copy").chmod(0o1777 if situation == "sticky" else 0o755)
    inodes = [path.stat().st_ino for path in paths]
    options = ["--inplace"] if situation == "inplace" else []
    run = run_as_user(own, case, "", *options)
    assert run.returncode == 1, show(run)
    assert run.stderr.count(b"utimensat: Operation not permitted") == len(paths), show(run)
    assert [path.stat().st_ino for path in paths] == inodes
    assert owners(paths) == {ANOTHER}


@pytest.mark.parametrize("backend", ["c", "python"])
def test_file_is_replaced_although_its_attribute_is_refused_first(own: Path, backend: str) -> None:
    """The user may not write the file, so that setting the attribute fails before setting the time."""
    try:
        os.setxattr(own / "source/small", "user.some", b"value")
    except OSError:
        pytest.skip("the file system has no attributes")
    shutil.copytree(own / "source", own / "copy", symlinks=True)
    os.chown(own / "copy", NOBODY, NOBODY)
    os.removexattr(own / "copy/small", "user.some")
    paths = give_away(own)
    run = run_as_user(own, "psync", backend)
    assert run.returncode == 0, show(run)
    assert owners(paths) == {NOBODY}
    assert os.getxattr(own / "copy/small", "user.some") == b"value"
