"""Servers that show other modes and owners than were set, and servers that set the time of a file when it is closed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bench.latency import mounted_slow
from tests.quirks.programs import CASES, run
from tests.support.command import Argument, pcopy, show
from tests.support.files import NOW, noise, write
from tests.support.quirks import quirky

MIB = 1 << 20
SIZES = {"empty": 0, "small": 9, "middle": 300_000, "large": 5 * MIB, "larger": 25 * MIB}
BACKENDS = ("c", "python")
IN_PARTS = (
    "copy",
    "copy without replacing",
    "in place",
    "mirror",
    "recode",
    "unpack",
    "archive",
    "archive, compressed",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("quirks") / "source"
    for name, size in SIZES.items():
        write(place / name, noise(size))
    for number in range(20):
        write(place / f"inner/deep/file{number}", b"%d" % number)
        write(place / f"beside/{number}/file", b"%d" % number)
    with (place / "sparse").open("wb") as file:
        file.truncate(3 * MIB)
    os.utime(place / "sparse", ns=(NOW, NOW))
    return place


def places(area: Path, case: str, source: Path) -> tuple[Path, Path]:
    """Return a separate path to the source, and an empty directory to be mounted."""
    own, backing = area / case / "source", area / case / "backing"
    backing.mkdir(parents=True)
    own.symlink_to(source)
    return own, backing


def times(directory: Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()
    }


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "quirks",
    [("fixed_mode=0755",), ("fixed_owner=65534",), ("fixed_mode=0644", "fixed_owner=12345")],
    ids=["mode", "owner", "both"],
)
def test_files_are_copied_where_the_server_shows_other_modes_or_owners(
    source: Path, area: Path, quirks: tuple[str, ...], backend: str
) -> None:
    for case in IN_PARTS:
        own, backing = places(area, case, source)
        with quirky(backing, *quirks) as mounted:
            copy = CASES[case](own, mounted, backend)
            found = subprocess.run(["diff", "-r", source, copy], capture_output=True, check=False)
            assert (found.returncode, found.stdout) == (0, b""), case
        assert not list(backing.rglob(".pcopy-*")), case


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("backend", BACKENDS)
def test_times_are_preserved_where_the_server_sets_them_at_close(source: Path, area: Path, backend: str) -> None:
    for case in CASES:
        if case.startswith("archive"):
            continue
        own, backing = places(area, case, source)
        with quirky(backing, "close_time") as mounted:
            copy = CASES[case](own, mounted, backend)
            assert times(copy) == times(source), case
        assert not list(backing.rglob(".pcopy-*")), case


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_one_file_is_created_to_examine_times(source: Path, area: Path, backend: str) -> None:
    """On ordinary file systems no other file takes an additional operation. The examination of rename before the job
    writes twice."""
    backing = area / "backing"
    backing.mkdir()
    with quirky(backing):
        pass  # skips the test if nothing can be mounted
    with mounted_slow(backing) as mounted:
        run("pcopy", f"{source}/inner/", mounted.path / "first", backend=backend, ranks=1)
        counts = mounted.operation_counts()
    assert counts["write"] == 20 + 1 + 2, counts
    assert sum(each.stat().st_size for each in (backing / "first/deep").iterdir()) == 30


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("error", ["EPERM", "EINVAL"])
def test_refused_owner_that_an_item_has_already_is_no_failure(area: Path, backend: str, error: str) -> None:
    """All files belong to one user there, and the server refuses every change of an owner."""
    owner = 12345
    source = area / "source"
    for name in ("file", "inner/file"):
        write(source / name, noise(9))
    os.link(source / "file", source / "inner/name")
    for path in (source, *source.rglob("*")):
        os.chown(path, owner, owner)
    archive = area / "archive"
    subprocess.run(["tar", "-cf", archive, "-C", source, "."], check=True)
    backing = area / "backing"
    backing.mkdir()
    copies: dict[str, tuple[Argument, ...]] = {
        "pcopy": (f"{source}/",),
        "psync": (f"{source}/",),
        "pcopy --chown": ("--chown", f"{owner}:{owner}", f"{source}/"),
        "pcopy --no-preserve": ("--no-preserve", "ownership", f"{source}/"),
    }
    with quirky(backing, f"fixed_owner={owner}", f"chown={error}") as mounted:
        for program, words in copies.items():
            for _again in range(2):  # also over existing files
                done = pcopy(
                    "-q", *words, mounted / program, program=program.split()[0], env={"PCOPY_BACKEND": backend}
                )
                assert done.returncode == 0, show(done)
        (mounted / "unpacked").mkdir()
        run("ptar", "-x", "-f", archive, "-C", mounted / "unpacked", backend=backend)
        for copy in mounted.iterdir():
            assert subprocess.run(["diff", "-r", source, copy], check=False).returncode == 0, copy
