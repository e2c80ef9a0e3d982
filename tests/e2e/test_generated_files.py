"""Files that the kernel generates when they are read: their st_size is 0 or one page, whatever their content."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import Argument, pcopy, show, succeed, summary
from tests.support.users import require_root

TOPOLOGY = Path("/sys/devices/system/cpu/cpu0/topology")
"""Files with an st_size of 4096 bytes, whose content is a few bytes that never change."""

ENDLESS = Path("/proc/self/pagemap")
"""A file of 8 bytes for each page of the address space: 256 GiB."""


def contents() -> dict[str, bytes]:
    """Return the content of each file by name, as read by cat(1)."""
    return {
        name: subprocess.run(["cat", TOPOLOGY / name], check=True, capture_output=True).stdout
        for name in os.listdir(TOPOLOGY)
    }


def in_directory(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in os.listdir(path)}


def in_archive(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.isfile()}
        return {os.path.basename(name): file.read() for name, file in files.items() if file is not None}


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_program_reads_generated_files_to_the_end(area: Path, backend: str, ranks: int) -> None:
    env, expected = {"PCOPY_BACKEND": backend}, contents()
    assert expected and all(len(data) < 4096 for data in expected.values())
    copies: dict[str, list[Argument]] = {
        "default": [],
        "verified": ["--verify", "--signature", area / "signature"],
        "not sparse": ["--no-preserve", "sparse"],
    }
    for name, words in copies.items():
        reported = summary(succeed("--json", *words, TOPOLOGY, area / name, ranks=ranks, env=env))
        assert (in_directory(area / name), reported["failed"]) == (expected, 0), name
        assert reported["bytes"] == sum(map(len, expected.values())), name
    succeed(f"{TOPOLOGY}/", area / "mirror", program="psync", ranks=ranks, env=env)
    assert in_directory(area / "mirror") == expected
    succeed("-cf", area / "a.tar", TOPOLOGY, program="ptar", ranks=ranks, env=env)
    assert in_archive(area / "a.tar") == expected
    made: list[Argument] = ["--create", area / "made", "--manifest", area / "manifest", TOPOLOGY]
    succeed(*made, program="pverify", ranks=ranks, env=env)
    succeed("--compare", "content", TOPOLOGY, area / "default", program="pverify", ranks=ranks, env=env)
    changed = next(iter(sorted(expected)))
    (area / "default" / changed).write_bytes(expected[changed].swapcase()[::-1] + b"!")
    run = pcopy("--compare", "content", TOPOLOGY, area / "default", program="pverify", ranks=ranks, env=env)
    assert run.returncode == 1 and changed.encode() in run.stdout, show(run)


@pytest.mark.parametrize("backend", ["c", "python"])
def test_endless_file_fails(area: Path, backend: str) -> None:
    env = {"PCOPY_BACKEND": backend}
    run = pcopy(ENDLESS, area / "copy", env=env)
    assert run.returncode == 1 and b"no end within 64 MiB" in run.stderr, show(run)
    assert os.listdir(area) == []


@pytest.fixture
def trace(tmp_path: Path) -> Iterator[Path]:
    """An instance of the kernel's tracing, with three messages in its buffer."""
    require_root("mount tracefs")
    point = tmp_path / "tracefs"
    point.mkdir()
    mounting = subprocess.run(["mount", "-t", "tracefs", "tracefs", point], check=False, capture_output=True)
    if mounting.returncode:
        pytest.skip(f"tracefs can't be mounted here: {mounting.stderr.decode()}")
    try:
        instance = point / "instances" / f"pcopy-{os.getpid()}"
        instance.mkdir()
        try:
            (instance / "trace_marker").write_bytes(b"one\ntwo\nthree\n")
            yield instance
        finally:
            instance.rmdir()
    finally:
        subprocess.run(["umount", point], check=True)


@pytest.mark.parametrize("backend", ["c", "python"])
def test_kernel_files_that_reading_consumes_are_not_read(area: Path, trace: Path, backend: str) -> None:
    def state() -> list[bytes]:
        return [(trace / name).read_bytes() for name in ("trace", "buffer_size_kb", "tracing_on")]

    env, before = {"PCOPY_BACKEND": backend}, state()
    filters: list[Argument] = [word for name in ("events", "options", "per_cpu") for word in ("--exclude", f"/{name}/")]
    runs: dict[str, list[Argument]] = {
        "pcopy": [f"{trace}/", area / "copy"],
        "ptar": ["-cf", area / "a.tar", trace],
        "pverify": ["--create", area / "signature", trace],
    }
    for program, words in runs.items():
        run = pcopy(*filters, *words, program=program, ranks=1, env=env)
        assert run.returncode != 0 and b"trace_pipe: open: it is not read" in run.stderr, show(run)
        assert state() == before, program
