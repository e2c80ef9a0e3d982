"""Files that ``ptar -c`` cannot read: left out if they cannot be opened, otherwise marked as incomplete.

Strace makes reads fail. GNU tar and bsdtar read each archive as well.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pcopy.archive.incomplete import NamesOfIncompleteFiles, encoded_archive_trailer, read_archive_trailer
from tests.support.archives import MIB, ptar
from tests.support.command import Argument, Completed, show
from tests.support.faults import READS, Fault
from tests.support.users import NOBODY, require_root

SMALL, LARGE, SPARSE = "small", "large", "sparse"
MESSAGE = b"its contents are incomplete: they could not be read when it was archived"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a tree with a small file, a large file and one with holes; each of them may be unreadable."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name, size in (("before", 100), (SMALL, 5000), (LARGE, 12 * MIB), ("later", 3000)):
        (tree / name).write_bytes(os.urandom(MIB) * (size // MIB) + os.urandom(size % MIB))
    with (tree / SPARSE).open("wb") as file:
        file.write(os.urandom(MIB))
        file.truncate(3 * MIB)
        file.seek(2 * MIB)
        file.write(os.urandom(MIB // 2))
    return tree


def listed(archive: Path) -> list[str]:
    """Return the member names, which GNU tar and bsdtar list alike."""
    by_tar = subprocess.run(["tar", "-tf", archive], check=True, capture_output=True)
    by_bsdtar = subprocess.run(["bsdtar", "-tf", archive], check=True, capture_output=True)
    assert (by_tar.stderr, by_bsdtar.stderr) == (b"", b"")
    assert sorted(by_tar.stdout.split()) == sorted(by_bsdtar.stdout.split())
    return sorted(by_tar.stdout.decode().split())


def with_unreadable(tree: Path, victim: str, *words: str, ranks: int = 1, backend: str = "c", when: str = "1+") -> Path:
    """Archive ``tree`` while reading ``victim`` fails."""
    archive = tree.parent / "a.tar"
    fault = Fault(tree.parent / "log", READS, tree / victim, "EIO", when)
    env = {"PCOPY_BACKEND": backend}
    line: tuple[Argument, ...] = ("-c", "-f", archive, *words, "tree")
    done = ptar(*line, ranks=ranks, cwd=tree.parent, env=env, wrap=fault.wrap())
    fault.check()
    assert done.returncode == 1, show(done)
    assert b"tree/%b: read: Input/output error" % victim.encode() in done.stderr, show(done)
    assert b"6 found = 5 archived + 0 left out + 1 failed" in done.stdout, show(done)
    return archive


def check_reported(done: Completed, victim: str) -> None:
    assert done.returncode == 1, show(done)
    lines = [line for line in done.stderr.splitlines() if MESSAGE in line]
    assert len(lines) == 1, show(done)
    assert b"tree/" + victim.encode() in lines[0], show(done)


@pytest.mark.parametrize(
    ("victim", "way", "backend"),
    [
        (SMALL, "", "c"),
        (SMALL, "", "python"),
        (SMALL, "--gzip", "c"),
        (LARGE, "", "c"),
        (LARGE, "--zstd", "python"),
        (SPARSE, "", "c"),
        (SPARSE, "--zstd", "c"),
    ],
)
def test_unreadable_file_is_reported_whenever_the_archive_is_read(
    tree: Path, victim: str, way: str, backend: str
) -> None:
    # Reading the large file fails from the second call on: the data read before is archived.
    when = "2+" if victim == LARGE else "1+"
    archive = with_unreadable(tree, victim, *([way] if way else []), backend=backend, when=when)
    assert len(listed(archive)) == 6

    check_reported(ptar("-t", "-f", archive), victim)
    unpacked = tree.parent / "unpacked"
    unpacked.mkdir()
    done = ptar("-x", "-f", archive, "-C", unpacked, ranks=2, env={"PCOPY_BACKEND": backend})
    check_reported(done, victim)
    assert b"6 found = 5 unpacked + 0 left out + 1 failed" in done.stdout, show(done)
    signature = tree.parent / "signature"
    check_reported(ptar("-t", "-q", "-f", archive, "--signature", signature, ranks=2), victim)
    assert not signature.exists()

    for name in os.listdir(tree):
        data, expected = (unpacked / "tree" / name).read_bytes(), (tree / name).read_bytes()
        assert len(data) == len(expected)
        assert (data == expected) == (name != victim), name
    by_tar = tree.parent / "by_tar"
    by_tar.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", by_tar], check=True)
    subprocess.run(["diff", "-r", by_tar, unpacked], check=True)


def test_data_read_before_an_error_is_archived(tree: Path) -> None:
    archive = with_unreadable(tree, LARGE, when="2+")
    found = subprocess.run(["tar", "-xOf", archive, f"tree/{LARGE}"], check=True, capture_output=True).stdout
    begins = (tree / LARGE).read_bytes()
    assert found[:MIB] == begins[:MIB]
    assert found.endswith(bytes(MIB))


@pytest.mark.parametrize("way", ["--zstd", "--gzip"])
def test_recompressed_archive_keeps_the_list_of_incomplete_files(tree: Path, way: str) -> None:
    archive = with_unreadable(tree, SMALL)
    with archive.open("rb") as contents:
        stream = archive.with_suffix(".stream")
        program = {"--zstd": ["zstd", "-q", "-c"], "--gzip": ["gzip", "-c"]}
        stream.write_bytes(subprocess.run(program[way], stdin=contents, check=True, capture_output=True).stdout)
    check_reported(ptar("-t", "-f", stream), SMALL)
    unpacked = tree.parent / "unpacked"
    unpacked.mkdir()
    check_reported(ptar("-x", "-f", stream, "-C", unpacked), SMALL)


def test_only_selected_incomplete_files_are_reported(tree: Path) -> None:
    archive = with_unreadable(tree, SMALL)
    for words in (("tree/later",), ("--exclude", SMALL)):
        done = ptar("-t", "-f", archive, *words)
        assert (done.returncode, done.stderr) == (0, b""), show(done)
        done = ptar("-x", "-f", archive, "-C", tree.parent, *words)
        assert (done.returncode, done.stderr) == (0, b""), show(done)


def test_file_that_cannot_be_opened_is_not_archived(tree: Path) -> None:
    require_root("start a program as another user")
    (tree / SMALL).chmod(0)
    (tree / "later").chmod(0o000)
    (tree / "later").write_bytes(b"")
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", tree.parent], check=True)
    for path in (tree.parent, *tree.parent.parents):
        if path.stat().st_uid == 0 and not path.stat().st_mode & 1:
            path.chmod(path.stat().st_mode | 0o11)
    expected = {"tree/", "tree/before", f"tree/{LARGE}", f"tree/{SPARSE}", "tree/later"}
    archive = tree.parent / "a.tar"
    for words in ((), ("--zstd",)):
        done = ptar("-c", "-f", archive, *words, "tree", cwd=tree.parent, user=NOBODY)
        assert done.returncode == 1, show(done)
        assert b"tree/small: open: Permission denied" in done.stderr, show(done)
        assert b"6 found = 5 archived + 0 left out + 1 failed" in done.stdout, show(done)
        assert set(listed(archive)) == expected
        dry = ptar("-c", "--dry-run", "-f", archive, *words, "tree", cwd=tree.parent, user=NOBODY)
        assert dry.returncode == 1, show(dry)
        done = ptar("-t", "-q", "-f", archive)
        assert (done.returncode, done.stderr) == (0, b""), show(done)


def test_resumed_run_forgets_files_that_are_readable_again(tree: Path) -> None:
    archive = with_unreadable(tree, LARGE, "--resume", when="2+")
    check_reported(ptar("-t", "-q", "-f", archive), LARGE)
    done = ptar("-c", "--resume", "-f", archive, "tree", cwd=tree.parent)
    assert done.returncode == 0, show(done)
    done = ptar("-t", "-q", "-f", archive)
    assert (done.returncode, done.stderr) == (0, b""), show(done)


def test_damaged_list_of_incomplete_files_is_an_error(tree: Path) -> None:
    archive = with_unreadable(tree, SMALL)
    data = bytearray(archive.read_bytes())
    at = data.rindex(b"ustar")
    data[at] ^= 1
    archive.write_bytes(data)
    for words in (("-t",), ("-x", "-C", tree.parent)):
        done = ptar(*words, "-f", archive)
        assert done.returncode == 1, show(done)
        assert b"the list of incomplete files at the end of the archive is damaged" in done.stderr, show(done)
    done = ptar("-t", "-f", archive, "tree/absent")
    assert b"the list of incomplete files at the end of the archive is damaged" in done.stderr, show(done)
    assert b"tree/absent" in done.stderr, show(done)


def test_list_of_incomplete_files_is_read_in_bounded_memory(tree: Path) -> None:
    """Short names reach the limit of memory, 64 bytes each, before the limit of length."""
    names = {b"%x" % number for number in range(300_000)}
    listing = encoded_archive_trailer(NamesOfIncompleteFiles(names), 0)
    found = read_archive_trailer(lambda offset, size: listing[offset : offset + size], len(listing))
    assert found.has_more and len(found.names) * 64 < 16 << 20 and names.issuperset(found.names)
