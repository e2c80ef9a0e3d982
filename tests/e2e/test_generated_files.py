"""Files that the kernel generates as they are read: their st_size is a page, or 0, whatever a read returns."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.command import Argument, pcopy, show, succeed, summary

TOPOLOGY = Path("/sys/devices/system/cpu/cpu0/topology")
"""Files of 4096 bytes by their st_size, of which a read returns a few: always the same ones."""

ENDLESS = Path("/proc/self/pagemap")
"""8 bytes for each page that a process could have: 256 GiB."""


def contents() -> dict[str, bytes]:
    """By name, as cat(1) reads them."""
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


@pytest.mark.parametrize("kernel", ["c", "python"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_program_has_what_can_be_read_to_the_end(area: Path, kernel: str, ranks: int) -> None:
    env, expected = {"PCOPY_KERNEL": kernel}, contents()
    assert expected and all(len(data) < 4096 for data in expected.values())
    copies: dict[str, list[Argument]] = {
        "default": [],
        "verified": ["--verify", "--signature", area / "signature"],
        "not sparse": ["--no-preserve", "sparse"],
    }
    for name, words in copies.items():
        told = summary(succeed("--json", *words, TOPOLOGY, area / name, ranks=ranks, env=env))
        assert (in_directory(area / name), told["failed"]) == (expected, 0), name
        assert told["bytes"] == sum(map(len, expected.values())), name
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


@pytest.mark.parametrize("kernel", ["c", "python"])
def test_a_file_without_end_fails(area: Path, kernel: str) -> None:
    env = {"PCOPY_KERNEL": kernel}
    run = pcopy(ENDLESS, area / "copy", env=env)
    assert run.returncode == 1 and b"no end within 64 MiB" in run.stderr, show(run)
    assert os.listdir(area) == []
