"""``--bwlimit`` and ``--oplimit``: all ranks together respect them, and the results are the same as without limits."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.command import Argument, pcopy, succeed
from tests.support.processes import background, wait_until

MIB = 1 << 20


def make_files(directory: Path, files: int, size: int) -> Path:
    directory.mkdir()
    for number in range(files):
        (directory / f"file{number}").write_bytes(os.urandom(1 << 10) * (size >> 10))
    return directory


def allocated_bytes(directory: Path) -> int:
    """Return the number of bytes allocated to the files in a directory."""
    try:
        return sum(entry.stat().st_blocks * 512 for entry in os.scandir(directory))
    except FileNotFoundError:
        return 0


def sample_allocated_bytes(directory: Path, *arguments: Argument) -> list[tuple[float, int]]:
    """Run pcopy on three ranks; return samples of the time in seconds and the allocated bytes of ``directory``."""
    found = []
    with background(*arguments, ranks=3) as run:
        while run.process.poll() is None:
            found.append((time.monotonic(), allocated_bytes(directory)))
            time.sleep(0.02)
        out, err = run.process.communicate()
        assert run.process.returncode == 0, out + err
        # The last bytes may have been written after the previous sample.
        found.append((time.monotonic(), allocated_bytes(directory)))
    return found


@pytest.mark.parametrize(("files", "size"), [(6, 16 * MIB), (1500, 64 << 10)])
def test_three_ranks_together_respect_the_bandwidth_limit(area: Path, files: int, size: int) -> None:
    """Large files are copied in pieces, small ones in batches. A busy machine copies more slowly, but never faster."""
    source, limit = make_files(area / "source", files, size), 32 * MIB
    found = sample_allocated_bytes(
        area / "copy", "--bwlimit", "32M/s", "--no-sync", "--checkpoint", "none", f"{source}/", area / "copy"
    )
    assert filecmp.cmpfiles(source, area / "copy", os.listdir(source), shallow=False)[0] == os.listdir(source)
    first = next(at for at, size in found if size)
    whole = files * size
    last = next(at for at, size in found if size >= 0.99 * whole)
    assert 0.9 * whole / limit <= last - first < 3 * whole / limit
    for at, before in found:
        later = [size for moment, size in found if at <= moment <= at + 1]
        assert later[-1] - before <= 1.35 * limit  # the limit, and the amount that a rank copies at a time


def test_metadata_operations_are_limited(area: Path) -> None:
    """Copying an empty file takes three operations: reading its status, creating it, and setting its metadata."""
    source = make_files(area / "source", 300, 0)
    began = time.monotonic()
    succeed("--oplimit", "450", "--no-sync", "--checkpoint", "none", f"{source}/", area / "copy", ranks=3)
    assert 1.8 <= time.monotonic() - began < 8
    assert sorted(os.listdir(area / "copy")) == sorted(os.listdir(source))


def test_job_with_a_tiny_limit_stops_immediately_on_a_signal(area: Path) -> None:
    """At this rate a file of 4 MiB takes a minute; it is copied in pieces, and signals are handled between them."""
    source = make_files(area / "source", 3, 4 * MIB)
    with background("--bwlimit", "64K", "--checkpoint", "none", f"{source}/", area / "copy", ranks=2) as run:
        began = time.monotonic()
        wait_until(lambda: allocated_bytes(area / "copy") > 0)
        time.sleep(1.5)
        assert allocated_bytes(area / "copy") <= (time.monotonic() - began + 0.5) * (64 << 10)
        run.send_signal(signal.SIGTERM)
        stopping = time.monotonic()
        _, err = run.process.communicate(timeout=60)
        assert time.monotonic() - stopping < 3
        assert run.process.returncode == 128 + signal.SIGTERM
        assert b"silent" not in err


@pytest.mark.parametrize("way", ["pverify", "verify"])
def test_reading_is_limited(area: Path, way: str) -> None:
    source = make_files(area / "source", 8, 2 * MIB)
    (area / "copy").mkdir()
    began = time.monotonic()
    if way == "pverify":
        done = pcopy("--create", area / "signature", "--bwlimit", "8M", source, ranks=2, program="pverify")
        least = 16 / 8
    else:  # copied, and read back
        done = pcopy("--verify", "--bwlimit", "16M", "--checkpoint", "none", source, area / "copy", ranks=2)
        least = 32 / 16
    assert done.returncode == 0, done.stderr
    assert 0.85 * least <= time.monotonic() - began < 8


@pytest.mark.parametrize("way", ["changed", "checksum", "decompress"])
def test_comparing_is_limited(area: Path, way: str) -> None:
    """Contents are compared if only the time differs, with --checksum, and if no seek table states the size."""
    source, copy = make_files(area / "source", 1, 12 * MIB), make_files(area / "copy", 0, 0)
    shutil.copy2(source / "file0", copy / "file0")
    words = ["--existing", "changed"]
    if way == "changed":
        os.utime(copy / "file0", (1, 1))
    elif way == "checksum":
        words = ["--checksum"]
    else:
        subprocess.run(["zstd", "-q", "--rm", source / "file0"], check=True)
        os.utime(source / "file0.zst", ns=(0, (copy / "file0").stat().st_mtime_ns))
        words.append("--decompress")
    began, inode = time.monotonic(), (copy / "file0").stat().st_ino
    run = succeed(*words, "--bwlimit", "2M", "--checkpoint", "none", f"{source}/", copy, ranks=1)
    assert 0.8 * 12 / 2 <= time.monotonic() - began < 20, run
    assert (copy / "file0").stat().st_ino == inode, "it was copied"


def test_removing_is_limited(area: Path) -> None:
    tree = make_files(area / "tree", 400, 0)
    began = time.monotonic()
    assert pcopy("--yes", "--oplimit", "500", tree, ranks=2, program="prm").returncode == 0
    assert time.monotonic() - began >= 1.3
    assert not tree.exists()


def test_changing_modes_is_limited(area: Path) -> None:
    """Listing a directory with many names costs no operations besides those for its items."""
    tree = make_files(area / "tree", 400, 0)
    done = pcopy("--json", "--oplimit", "250", "u+x", tree, ranks=2, program="pchmod")
    assert done.returncode == 0 and json.loads(done.stdout)["changed"] == 400, done.stdout
    assert 2.6 <= json.loads(done.stdout)["seconds"] < 4.6


@pytest.mark.parametrize("words", [("--bwlimit", "fast"), ("--bwlimit", "-1"), ("--oplimit", "1.5"), ("--bwlimit=",)])
def test_invalid_limit_is_refused(area: Path, words: tuple[str, ...]) -> None:
    done = pcopy(*words, area, area / "copy")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert words[0].partition("=")[0].encode() in done.stderr


def test_limit_without_a_unit_is_reported_as_bytes(area: Path) -> None:
    """rsync counts in KiB: a much too small limit should not go unnoticed."""
    (area / "empty").mkdir()
    reported = succeed("--bwlimit=10000", area / "empty", area / "copy").stderr
    assert b"--bwlimit: 10,000 bytes a second; a number alone is bytes (rsync's: 10000K)" in reported
    assert b"bytes a second" not in succeed("--bwlimit=10M", area / "empty", area / "copy-2").stderr


def test_repeated_command_applies_its_own_limits_to_the_resumed_job(area: Path) -> None:
    """With ``--checkpoint DIR`` the same command starts and resumes a job; its limits may differ between the runs."""
    words: list[Argument] = [
        "--checkpoint",
        area / "job",
        "-T",
        make_files(area / "source", 1, 12 * MIB),
        area / "copy",
    ]
    with background("--bwlimit", "64K", *words, ranks=1) as run:
        assert wait_until(lambda: run.process.poll() is not None or (area / "job/job").exists())
        run.send_signal(signal.SIGTERM)
        assert run.end(20) == 75
    begin = time.monotonic()
    succeed(*words)
    assert time.monotonic() - begin < 60  # with the limit of the first run it would take minutes
