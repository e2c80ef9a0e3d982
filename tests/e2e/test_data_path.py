"""Options for the contents of large files: ``--direct``, ``--drop-cache``, ``--reflink`` and ``--fsync``."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.command import pcopy, show, succeed, summary
from tests.support.faults import Fault, slowed
from tests.support.files import noise
from tests.support.filesystems import Place, mounted
from tests.support.processes import background, wait_for_temporary, wait_until
from tests.support.traces import READING, WRITING, Trace
from tests.support.walk import temporaries

MIB = 1 << 20
SIZES = (4 * MIB + 1, 9 * MIB + 4095, 20 * MIB)
"""Sizes of large files in bytes; some end in the middle of a sector or page."""


def make_tree(tree: Path) -> None:
    """Create large files of ``SIZES``, a sparse one, and small ones."""
    tree.mkdir()
    for size in SIZES:
        (tree / f"of {size}").write_bytes(os.urandom(MIB) * (size // MIB) + os.urandom(size % MIB))
    with open(tree / "sparse", "wb") as file:
        file.truncate(40 * MIB + 77)
        for at in (0, 9 * MIB + 5, 33 * MIB):
            file.seek(at)
            file.write(os.urandom(300_000))
    for number in range(40):
        (tree / f"small {number}").write_bytes(os.urandom(number * 1000))
    subprocess.run(["sync", "-f", tree], check=True)


def assert_copied(tree: Path, copy: Path) -> None:
    """Assert that all contents are equal, and that the sparse file stayed sparse."""
    subprocess.run(["diff", "-r", tree, copy], check=True)
    subprocess.run(["sync", "-f", copy], check=True)
    assert (copy / "sparse").stat().st_blocks * 512 < 4 * MIB
    assert temporaries(os.fsencode(copy)) == []


def cached_bytes(path: Path) -> int:
    """Return how many bytes of a file are in the page cache."""
    if not shutil.which("fincore"):
        pytest.skip("there is no fincore here")
    reported = subprocess.run(["fincore", "-n", "-b", "-o", "RES", path], check=True, capture_output=True, text=True)
    return int(reported.stdout)


def lines(trace: Path) -> list[str]:
    return [line for log in sorted(trace.iterdir()) for line in log.read_text(errors="replace").splitlines()]


OPTIONS = (
    ("--direct",),
    ("--drop-cache",),
    ("--direct", "--drop-cache"),
    ("--reflink", "never"),
    ("--fsync",),
    ("--direct", "--fsync", "--hash", "blake3"),
    ("--drop-cache", "--hash", "xxh3-128"),
)


@pytest.mark.in_turn(8)
@pytest.mark.parametrize("chunk", ["auto", "4M"])
@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_all_data_path_options_copy_the_same_content(filesystem: Path, options: tuple[str, ...], chunk: str) -> None:
    make_tree(filesystem / "tree")
    succeed("--chunk-size", chunk, *options, "-T", filesystem / "tree", filesystem / "copy", ranks=2)
    assert_copied(filesystem / "tree", filesystem / "copy")


@pytest.mark.parametrize("chunk", ["auto", "4M"])
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_direct_copy_bypasses_the_page_cache(on: Place, area: Path, kind: str, chunk: str) -> None:
    place = on(kind)
    for size in SIZES:
        (place / "file").write_bytes(os.urandom(size))
        subprocess.run(["sync", "-f", place], check=True)
        subprocess.run(["dd", f"of={place}/file", "oflag=nocache", "conv=notrunc,fdatasync", "count=0"],
                       check=True, capture_output=True)  # fmt: skip
        trace = Trace(area / f"trace-{size}", "fcntl", "pwrite64", *READING)
        options = ("--direct", "--reflink", "never", "--chunk-size", chunk, "-T")
        succeed(*options, place / "file", place / "copy", ranks=2, wrap=trace.wrap())
        assert cached_bytes(place / "copy") <= 64 << 10  # the part of a page at the end
        assert cached_bytes(place / "file") <= 64 << 10
        subprocess.run(["cmp", place / "file", place / "copy"], check=True)
        asked = [line for line in lines(area / f"trace-{size}") if re.search(r"F_SETFL.*\|O_DIRECT\b", line)]
        assert any(f"<{place}/file>" in line for line in asked)
        assert any(f"<{place}/.pcopy-" in line for line in asked)
        (place / "copy").unlink()


@pytest.mark.parametrize("chunk", ["auto", "4M"])
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_drop_cache_leaves_no_pages_in_the_cache(on: Place, area: Path, kind: str, chunk: str) -> None:
    place = on(kind)
    (place / "file").write_bytes(noise(33 * MIB + 7))
    subprocess.run(["sync", "-f", place], check=True)
    assert cached_bytes(place / "file") > 33 * MIB
    trace = Trace(area / "trace", "fadvise64", "sync_file_range")
    options = ("--drop-cache", "--reflink", "never", "--no-sync", "--chunk-size", chunk)
    succeed(*options, place / "file", place / "copy", ranks=2, wrap=trace.wrap())
    assert cached_bytes(place / "copy") == 0
    assert cached_bytes(place / "file") == 0
    reported = [line for line in lines(area / "trace") if "POSIX_FADV_DONTNEED) = 0" in line]
    assert any(f"<{place}/file>" in line for line in reported)
    assert any(f"<{place}/.pcopy-" in line for line in reported)
    subprocess.run(["cmp", place / "file", place / "copy"], check=True)


def test_drop_cache_with_verify_leaves_few_pages_in_the_cache(on: Place) -> None:
    """The system may read ahead for one rank what another rank has already dropped from the cache."""
    place = on("ext4")
    (place / "file").write_bytes(noise(33 * MIB + 7))
    succeed("--drop-cache", "--verify", place / "file", place / "copy", ranks=2)
    assert cached_bytes(place / "copy") <= 8 * MIB


def is_cloned(path: Path) -> bool:
    """Return True if the file shares all of its extents with another."""
    subprocess.run(["sync", "-f", path], check=True)
    reported = subprocess.run(["filefrag", "-v", path], check=True, capture_output=True, text=True).stdout
    extents = [line for line in reported.splitlines() if re.match(r"\s+\d+:", line)]
    assert extents
    return all("shared" in line for line in extents)


@pytest.mark.parametrize("when", ["auto", "never", "always"])
def test_reflink_option_decides_which_files_are_cloned(on: Place, area: Path, when: str) -> None:
    xfs = on("xfs")
    (xfs / "tree").mkdir()
    (xfs / "tree/large").write_bytes(noise(9 * MIB))
    (xfs / "tree/small").write_bytes(os.urandom(9000))
    (xfs / "tree/empty").touch()
    trace = Trace(area / "trace", "ioctl", *WRITING)
    succeed("--reflink", when, "-T", xfs / "tree", xfs / "copy", ranks=2, wrap=trace.wrap())
    subprocess.run(["diff", "-r", xfs / "tree", xfs / "copy"], check=True)
    assert is_cloned(xfs / "copy/large") == (when != "never")
    assert is_cloned(xfs / "copy/small") == (when == "always")
    calls = lines(area / "trace")
    if when == "never":
        assert not [line for line in calls if "FICLONE" in line or line.startswith("copy_file_range")]


def test_reflink_always_fails_files_that_cannot_be_cloned(on: Place, area: Path) -> None:
    for kind in ("tmpfs", "ext4"):
        place = on(kind)
        (place / "tree").mkdir()
        (place / "tree/large").write_bytes(noise(40 * MIB))
        (place / "tree/small").write_bytes(b"small")
        (place / "tree/empty").touch()
        run = pcopy("--reflink", "always", "--json", "-T", place / "tree", place / "copy", ranks=2)
        assert run.returncode == 1, show(run)
        reported = summary(run)
        assert (reported["files"], reported["failed"]) == (1, 2)
        assert run.stderr.count(b"it cannot be cloned, which --reflink always requires (") == 2, show(run)
        assert [path.name for path in (place / "copy").iterdir()] == ["empty"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("chunk", ["auto", "4M"])
def test_files_are_synced_before_they_are_renamed(on: Place, area: Path, ranks: int, chunk: str) -> None:
    place = on("ext4")
    make_tree(place / "tree")
    (place / "copy").mkdir()
    (place / "copy/small 3").write_bytes(b"old")
    trace = Trace(area / "trace", "fsync", "rename", "renameat", "renameat2", "close", "pwrite64", "write")
    wrap = trace.wrap()
    wrap[1] = "-f"  # one log, in the order of time
    wrap[5] = str(area / "trace/all")
    succeed("--fsync", "--no-sync", "--chunk-size", chunk, "-T", place / "tree", place / "copy", ranks=ranks, wrap=wrap)
    assert_copied(place / "tree", place / "copy")
    dirty: set[str] = set()
    renamed, synced = 0, 0
    for line in lines(area / "trace"):
        names = re.findall(rf"<{re.escape(str(place))}/copy/([^>]*)>", line)
        if re.search(r"\b(pwrite64|write)\(", line) and names:
            dirty.add(names[0])
        elif "fsync(" in line and names:
            dirty.discard(names[0])
            synced += 1
        elif "rename" in line and (temporary := re.search(r'"(\.pcopy-[^"]*)"', line)):
            assert temporary[1] not in dirty, line
            renamed += 1
        elif "close(" in line and names:
            assert names[0] not in dirty, line
    assert renamed >= len(SIZES) + 2
    assert synced >= 40


FAULTS = (
    # call, error, when, status, reported operation
    ("fallocate", "ENOSPC", "1+", 1, b"fallocate"),
    ("fallocate", "EOPNOTSUPP", "1+", 0, b""),
    ("fallocate", "EINTR", "1", 0, b""),
    ("sync_file_range", "EIO", "1+", 1, b"sync_file_range"),
    ("sync_file_range", "ENOSYS", "1+", 0, b""),
    ("preadv", "EIO", "2", 0, b""),
    ("preadv", "EIO", "2+", 1, b"read"),
    ("pwrite64", "EIO", "3", 1, b"write"),
    ("pwrite64", "ENOSPC", "3", 1, b"write"),
)


@pytest.mark.parametrize("options", [(), ("--direct",), ("--drop-cache", "--hash", "blake3")], ids=" ".join)
@pytest.mark.parametrize("row", FAULTS, ids=lambda row: " ".join(map(str, row[:3])))
def test_fault_of_a_data_path_call_fails_the_file_or_is_tolerated(
    on: Place, area: Path, row: tuple[str, str, str, int, bytes], options: tuple[str, ...]
) -> None:
    call, error, when, status, reported = row
    place = on("ext4")
    if call == "sync_file_range" and "--direct" in options:
        return
    (place / "file").write_bytes(noise(30 * MIB + 5))
    (place / "copy").mkdir()
    subprocess.run(["sync", "-f", place], check=True)
    fault = Fault(area / "log", [call, "preadv2"] if call == "preadv" else [call], None, error, when)
    run = pcopy(*options, place / "file", place / "copy", ranks=1, wrap=fault.wrap())
    fault.check()
    assert run.returncode == status, show(run)
    if status:
        assert reported in run.stderr, show(run)
        assert list((place / "copy").iterdir()) == []
    else:
        subprocess.run(["cmp", place / "file", place / "copy/file"], check=True)


@pytest.mark.parametrize("call", ["pwrite64", "preadv2"])
def test_refused_direct_io_falls_back_to_buffered_io(on: Place, area: Path, call: str) -> None:
    place = on("xfs")
    (place / "file").write_bytes(noise(30 * MIB + 5))
    fault = Fault(area / "log", [call], None, "EINVAL", "2")
    succeed("--direct", "--reflink", "never", place / "file", place / "copy", ranks=1, wrap=fault.wrap())
    fault.check()
    subprocess.run(["cmp", place / "file", place / "copy"], check=True)


@pytest.mark.parametrize("options", [(), ("--direct",), ("--drop-cache",)], ids=" ".join)
def test_full_file_system_is_reported(area: Path, options: tuple[str, ...]) -> None:
    """The allocation of the full size fails early, and no partial file appears under the final name."""
    (area / "file").write_bytes(noise(64 * MIB))
    for kind in ("ext4", "xfs", "tmpfs"):
        with mounted(kind, area, size=(320 if kind == "xfs" else 48) << 20) as full:
            if kind == "xfs":
                subprocess.run(["fallocate", "-l", "220M", full / "other"], check=True)
            before = sorted(path.name for path in full.iterdir())
            run = pcopy("--force", *options, area / "file", full / "copy", ranks=2)
            assert run.returncode in (1, 75), show(run)
            assert b"No space left on device" in run.stderr, show(run)
            assert sorted(path.name for path in full.iterdir() if not path.name.startswith(".pcopy-")) == before


@pytest.mark.parametrize("ranks", [1, 2])
def test_resumed_job_continues_within_a_large_file(area: Path, ranks: int) -> None:
    """Each chunk of a sequence is recorded separately."""
    (area / "file").write_bytes(noise(8 * MIB) * 20)
    (area / "copy").mkdir()
    state = {"XDG_STATE_HOME": str(area / "state")}
    arguments = ("--chunk-size", "16M", area / "file", area / "copy")
    with background(*arguments, ranks=ranks, env=state, wrap=slowed("pwrite64", 20)) as run:
        wait_for_temporary(run, os.fsencode(area / "copy"))
        (under_way,) = (area / "copy").iterdir()
        assert wait_until(lambda: under_way.stat().st_blocks * 512 > 72 * MIB)
        run.send_signal(signal.SIGTERM)
        _, err = run.process.communicate(timeout=60)
        assert run.process.returncode == 75, err
    trace = Trace(area / "trace", "pwrite64")
    run_again = pcopy("--resume", ranks=ranks, env=state, wrap=trace.wrap())
    assert run_again.returncode == 0, show(run_again)
    subprocess.run(["cmp", area / "file", area / "copy/file"], check=True)
    written = trace.moved(under_way, WRITING)
    assert 16 * MIB <= written <= 96 * MIB
