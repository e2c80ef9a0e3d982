"""``ptar -c --resume`` continues a compressed archive: all recorded frames before the first missing one are reused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.archives import MIB, ptar, small_file_system
from tests.support.command import Argument, pverify, show
from tests.support.held import held
from tests.support.interrupted_archives import (
    SOON,
    STRACE,
    assert_same,
    damaged,
    go_on,
    interrupt,
    left,
    made,
    replaced,
    truncated,
)
from tests.support.oracle import differences

HOW = ("--zstd", "--gzip")
FILES = 2400
DIRECTORIES = 12
"""The files of one directory fill about three quarters of a frame."""

per_compression = pytest.mark.parametrize("how", HOW)


def text(seed: int, size: int) -> bytes:
    """Return data that compresses quickly."""
    return (b"%08d" % seed * 1000 + os.urandom(64)) * (size // 8064) + b"." * (size % 8064)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tree; next to it are the archives of single runs with each compression."""
    tree = tmp_path_factory.mktemp("first") / "tree"
    for number in range(FILES):
        directory = tree / f"d{number % DIRECTORIES:02}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number:04}").write_bytes(os.urandom(8) * (number % 97))
    for number in (2, 5, 9):
        (tree / f"d{number:02}/large").write_bytes(text(number, 17 * MIB + number))
    with open(tree / "d04/sparse", "wb") as file:
        file.truncate(12 * MIB)
        for at in (MIB, 11 * MIB):
            file.seek(at)
            file.write(os.urandom(300_001))
    os.link(tree / "d03/f0003", tree / "zz-link")
    (tree / "to").symlink_to("nowhere")
    (tree / "empty").touch()
    for how in HOW:
        made(tree, whole_name(how), how)
    return tree


@pytest.fixture
def tree(first: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-a", first, tmp_path / "tree"], check=True)
    return tmp_path / "tree"


def whole_name(how: str) -> str:
    return f"whole{how}.tar"


def assert_equals_single_run(tree: Path, first: Path, how: str) -> None:
    assert_same(first.parent / whole_name(how), tree.parent / "a.tar")


def held_run(tree: Path, how: str, when: int, ranks: int, call: str = "fsync") -> Any:
    """Return a run of which one rank stops at the call number ``when``."""
    words: list[Argument] = ["-c", "-q", how, *SOON, "-f", tree.parent / "a.tar", "-C", tree.parent, "tree"]
    return held(tree.parent / "log", *words, program="ptar", ranks=ranks, calls=(call,), when=str(when))


@per_compression
@pytest.mark.parametrize(("ranks", "calls", "then"), [(1, 4, 3), (1, 21, 2), (3, 3, 1), (3, 8, 4)])
def test_resume_completes_a_compressed_archive_after_a_killed_rank(
    how: str, ranks: int, calls: int, then: int, tree: Path, first: Path, tmp_path: Path
) -> None:
    interrupt(tree, how, ranks=ranks, calls=calls)
    summary = go_on(tree, how, ranks=then)
    assert summary["pieces_resumed"] is not None
    assert ranks > 1 or summary["pieces_resumed"] > 0
    assert (summary["found"], summary["failed"], summary["files"]) == (FILES + 20, 0, FILES + 5)
    assert_equals_single_run(tree, first, how)


@per_compression
def test_resume_completes_a_compressed_archive_after_killed_jobs(
    how: str, tree: Path, first: Path, tmp_path: Path
) -> None:
    """The job is killed several times; the first run records 8 frames."""
    for ranks, when in ((1, 18), (3, 6), (2, 11), (4, 5)):
        with held_run(tree, how, when, ranks) as run:
            run.run.kill_all()
            assert run.run.survivors() == []
        (tree.parent / "log").unlink()
    summary = go_on(tree, how, ranks=2)
    assert summary["pieces_resumed"] >= 4
    assert_equals_single_run(tree, first, how)
    archive = tree.parent / "a.tar"
    subprocess.run([how[2:], "-tq"], stdin=archive.open("rb"), check=True)
    place = tmp_path / "place"
    place.mkdir()
    subprocess.run(["tar", how, "-xpf", archive], cwd=place, check=True)
    assert differences(tree, place / "tree") == []
    listed = subprocess.run(["tar", how, "-tf", archive], check=True, stdout=subprocess.PIPE).stdout
    assert len(listed.splitlines()) == summary["found"]
    shutil.rmtree(place / "tree")
    done = ptar("-x", "-q", "-f", archive, "-C", place, ranks=2)
    assert done.returncode == 0, show(done)
    assert differences(tree, place / "tree") == []


@per_compression
def test_resume_does_not_read_archived_files_again(how: str, tree: Path, first: Path) -> None:
    """A single rank that is killed at the 24th call has recorded 11 of about 20 frames."""
    interrupt(tree, how, ranks=1, calls=24)
    log = tree.parent / "reads"
    summary = go_on(tree, how, ranks=1, wrap=[*STRACE, "-o", str(log), "-e", "trace=openat"])
    assert_equals_single_run(tree, first, how)
    assert summary["pieces_resumed"] >= 7
    opened = {line.split('"')[1] for line in log.read_text().splitlines() if '"f' in line}
    assert FILES / 4 < len(opened) < FILES * 3 / 4


@per_compression
def test_partly_archived_large_file_is_not_read_from_its_start(how: str, tree: Path, first: Path) -> None:
    for each in tree.glob("d0[0-4]/f*"):
        each.unlink()
    made(tree, "whole.tar", how)
    interrupt(tree, how, ranks=1, calls=8)  # the first frame and two of the three of d02/large are recorded
    log = tree.parent / "reads"
    go_on(tree, how, ranks=3, wrap=[*STRACE, "-y", "-o", str(log), "-e", "trace=preadv,preadv2,read,pread64"])
    read = sum("d02/large" in line for line in log.read_text().splitlines())
    assert_same(tree.parent / "whole.tar", tree.parent / "a.tar")
    assert 0 < read < sum("d05/large" in line for line in log.read_text().splitlines()) / 2


@per_compression
def test_signature_is_correct_after_a_resume(how: str, tree: Path, first: Path) -> None:
    one, other = tree.parent / "one.sig", tree.parent / "other.sig"
    made(tree, "whole.tar", how, "--signature", one)
    interrupt(tree, how, "--signature", other, ranks=1, calls=24)
    assert go_on(tree, how, "--signature", other, ranks=3)["pieces_resumed"] > 0
    assert_equals_single_run(tree, first, how)
    lines = zip(one.read_text().splitlines(), other.read_text().splitlines(), strict=True)
    assert all(line == same or line.startswith("created:") for line, same in lines)
    assert pverify(other, tree).returncode == 0


def grown(tree: Path) -> None:
    (tree / "d04/f0004").write_bytes(b"longer" * 1000)


def rewritten(tree: Path) -> None:
    """Change the second part of a large file without changing its size and times."""
    status = (tree / "d02/large").stat()
    with open(tree / "d02/large", "r+b") as file:
        file.seek(9 * MIB)
        file.write(os.urandom(100))
    os.utime(tree / "d02/large", ns=(status.st_atime_ns, status.st_mtime_ns))


def shrunk(tree: Path) -> None:
    """Remove files, so that the archive becomes smaller than the partial one."""
    for path in tree.glob("d0[5-9]/*"):
        path.unlink()


@per_compression
@pytest.mark.parametrize("change", [grown, rewritten, shrunk])
def test_resume_archives_changed_files_again(how: str, change: Callable[[Path], None], tree: Path) -> None:
    interrupt(tree, how, ranks=1, calls=34)
    change(tree)
    whole = made(tree, "whole.tar", how)
    assert go_on(tree, how, ranks=2)["pieces_resumed"] > 0
    assert_same(whole, tree.parent / "a.tar")
    subprocess.run(["tar", how, "-df", tree.parent / "a.tar"], cwd=tree.parent, check=True)


@per_compression
def test_records_overwritten_by_another_layout_are_not_used(how: str, tree: Path, first: Path) -> None:
    """Records of the first run are invalid where the second run has overwritten the archive.

    Ranks other than 0 create the frames that contain d04.
    """
    interrupt(tree, how, ranks=3, calls=10)
    interrupt(tree, how, "--exclude", "d04", ranks=1, calls=14)
    go_on(tree, how, ranks=2)
    assert_equals_single_run(tree, first, how)


@per_compression
@pytest.mark.parametrize("name", ["d01/f2389", "d02/large"])
def test_failed_file_is_archived_again_on_resume(how: str, name: str, tree: Path, first: Path) -> None:
    """Frames from the failed file on are not reused: the file has another size then, and its successors move."""
    wrap = [*STRACE[:3], "-o", "/dev/null", "-P", str(tree / name)]
    wrap += ["-e", "inject=read,pread64,preadv,preadv2:error=EIO"]
    words: list[Argument] = ["-c", "-q", how, *SOON, "-f", tree.parent / "a.tar", "-C", tree.parent, "tree"]
    done = ptar(*words, "--max-errors", "1", ranks=1, wrap=wrap)
    assert done.returncode == 75, show(done)
    assert any(name.endswith(".made") for name in left(tree.parent))
    go_on(tree, how, ranks=2)
    assert_equals_single_run(tree, first, how)


@per_compression
def test_full_file_system_is_reported(how: str, tree: Path, first: Path) -> None:
    half = (first.parent / whole_name(how)).stat().st_size // 2
    with small_file_system(tree.parent / "small", 1) as small:
        subprocess.run(["mount", "-o", f"remount,size={half // 4096 * 4096}", small], check=True)
        words: list[Argument] = ["-c", how, *SOON, "-f", small / "a.tar", "-C", tree.parent, "tree"]
        done = ptar(*words, ranks=2)
        assert done.returncode == 75, show(done)
        assert b"No space left" in done.stderr
        assert left(small)
        subprocess.run(["mount", "-o", "remount,size=64M", small], check=True)
        done = ptar(*words, ranks=3)
        assert done.returncode == 0, show(done)
        assert b"resumed: " in done.stdout
        assert b"resumed: 0 of" not in done.stdout
        assert left(small) == []
        assert_same(first.parent / whole_name(how), small / "a.tar")


def test_signal_keeps_the_partial_compressed_archive(tree: Path, first: Path) -> None:
    words: list[Argument] = ["-c", "-q", "--zstd", "--resume", "-f", tree.parent / "a.tar", "-C", tree.parent, "tree"]
    with held(tree.parent / "log", *words, program="ptar", ranks=1, calls=("pwrite64",), when="12") as run:
        run.run.send_signal(signal.SIGTERM)
        done = run.go_on()
    assert done.returncode == 75, show(done)
    assert b"to continue with" in done.stdout
    assert go_on(tree, "--zstd", ranks=2)["pieces_resumed"] > 0
    assert_equals_single_run(tree, first, "--zstd")


def records_of_one_rank_lost(place: Path) -> None:
    """Remove the records of one rank, so that frames in between are not recorded."""
    os.unlink(place / min(name for name in left(place) if name.endswith(".made")))


@per_compression
@pytest.mark.parametrize("damage", [damaged, replaced, truncated, records_of_one_rank_lost])
def test_invalid_records_are_ignored_on_resume(
    how: str, damage: Callable[[Path], None], tree: Path, first: Path
) -> None:
    interrupt(tree, how, ranks=2, calls=11)
    damage(tree.parent)
    go_on(tree, how, ranks=2)
    assert_equals_single_run(tree, first, how)


@pytest.mark.parametrize(("one", "other"), [HOW, HOW[::-1], ("--zstd", "--sort=name"), ("--sort=name", "--gzip")])
def test_resume_with_another_compression_starts_over(one: str, other: str, tree: Path, first: Path) -> None:
    interrupt(tree, one, ranks=1, calls=20)
    whole = made(tree, "whole.tar", other)
    assert go_on(tree, other, ranks=2)["pieces_resumed"] == 0
    assert_same(whole, tree.parent / "a.tar")


@per_compression
def test_no_records_are_written_without_sync(how: str, tree: Path) -> None:
    words: list[Argument] = ["-c", "-q", how, "--no-sync", *SOON[1:], "-f", tree.parent / "a.tar"]
    log = tree.parent / "calls"
    wrap = [*STRACE, "-o", str(log), "-e", "trace=openat"]
    done = ptar(*words, "-C", tree.parent, "tree", ranks=2, wrap=wrap)
    assert done.returncode == 0, show(done)
    calls = log.read_text()
    assert ".archive" in calls
    assert ".made" not in calls
