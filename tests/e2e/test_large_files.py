"""Files that all ranks copy together: complete or absent under the final name, and sparse like the source."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import pcopy, show, succeed, summary
from tests.support.faults import slowed
from tests.support.files import noise
from tests.support.filesystems import Place
from tests.support.oracle import differences
from tests.support.processes import background, wait_for_temporary
from tests.support.walk import temporaries

MIB = 1 << 20


@pytest.mark.parametrize(("ranks", "launcher"), [(1, None), (2, None), (8, None), (3, "mpi")])
def test_large_file_is_copied_on_any_number_of_ranks(on: Place, ranks: int, launcher: str | None) -> None:
    place = on("xfs" if ranks == 2 else "tmpfs")
    block = os.urandom(MIB)
    with open(place / "file", "wb") as file:
        for number in range(300):
            file.write(b"%d" % number + block)
    reported = summary(
        succeed("--json", "--chunk-size", "16M", place / "file", place / "copy", ranks=ranks, launcher=launcher)
    )
    assert (reported["files"], reported["bytes"]) == (1, (place / "file").stat().st_size)
    assert differences(place / "file", place / "copy") == []
    assert temporaries(os.fsencode(place)) == []


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("chunk", ["16M", "17000000", "auto", "4M"])
def test_file_sizes_around_the_chunk_limits_are_copied(area: Path, chunk: str) -> None:
    """Sizes around the limits between small files, large files copied by one rank, and files split into chunks."""
    source = area / "source"
    source.mkdir()
    data = noise(50 * MIB)
    for number in (4 * MIB, 16 * MIB, 24 * MIB, 32 * MIB, 48 * MIB):
        for more in (-1, 0, 1):
            (source / f"{number + more}").write_bytes(data[: number + more])
    succeed("--chunk-size", chunk, source, area / "copy", ranks=2)
    assert differences(source, area / "copy") == []


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("ranks", [1, 3])
def test_sparse_file_stays_sparse(filesystem: Path, ranks: int) -> None:
    """A file of 1 GiB with holes at the start, across chunk limits and at the end."""
    with open(filesystem / "sparse", "wb") as file:
        file.truncate(1 << 30)
        for offset in (5 * MIB, 16 * MIB - 1, 33 * MIB, 600 * MIB + 17, 601 * MIB):
            file.seek(offset)
            file.write(b"island" * 1000)
    succeed("--chunk-size", "16M", filesystem / "sparse", filesystem / "copy", ranks=ranks)
    assert (filesystem / "copy").stat().st_blocks * 512 < 2 * MIB
    assert differences(filesystem / "sparse", filesystem / "copy") == []


def test_without_sparse_holes_are_filled(area: Path) -> None:
    with open(area / "sparse", "wb") as file:
        file.truncate(20 * MIB)
    succeed("--no-preserve", "sparse", area / "sparse", area / "copy")
    assert (area / "copy").stat().st_blocks * 512 >= 20 * MIB
    assert (area / "copy").read_bytes() == bytes(20 * MIB)


def test_hard_links_of_a_large_file_are_copied(area: Path) -> None:
    (area / "source/sub").mkdir(parents=True)
    (area / "source/one").write_bytes(noise(60 * MIB))
    for number in range(5):
        os.link(area / "source/one", area / f"source/sub/{number}")
    reported = summary(succeed("--json", "--chunk-size", "16M", area / "source", area / "copy", ranks=3))
    assert (reported["files"], reported["hardlinks"], reported["bytes"]) == (1, 5, 60 * MIB)
    assert differences(area / "source", area / "copy") == []


@contextmanager
def modified_repeatedly(action: Callable[[int], None]) -> Iterator[None]:
    """Repeat ``action`` in a thread, with an increasing count, until the context ends."""
    done = threading.Event()

    def modify() -> None:
        count = 0
        while not done.wait(0.001):
            count += 1
            action(count)

    thread = threading.Thread(target=modify)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("existing", [False, True], ids=["new", "replacing"])
@pytest.mark.parametrize("kind", ["growing", "shrinking", "rewritten"])
def test_file_that_changes_while_it_is_copied_fails(area: Path, kind: str, existing: bool) -> None:
    """A mixture of two states must not pass as a copy. The item fails as changed, and other items are copied."""
    source = area / "source"
    source.mkdir()
    (source / "other").write_bytes(b"x")
    size = 200 * MIB
    (source / "file").write_bytes(os.urandom(MIB) * 200)
    if existing:
        (area / "copy").mkdir()
        (area / "copy/file").write_bytes(b"old")
    actions: dict[str, Callable[[int], None]] = {
        "growing": lambda count: os.truncate(source / "file", size + count),
        "shrinking": lambda count: os.truncate(source / "file", size - count),
        "rewritten": lambda count: rewrite(source / "file", count),
    }
    with modified_repeatedly(actions[kind]):
        slow = slowed("pwrite64", 2)  # so that the file changes many times during the copy
        run = pcopy("--json", "-T", "--chunk-size", "16M", source, area / "copy", ranks=2, wrap=slow)
    assert run.returncode == 1, show(run)
    reported = summary(run)
    assert (reported["failed"], reported["changed"], reported["vanished"], reported["files"]) == (1, 1, 0, 1)
    assert b"file" in run.stderr, show(run)
    assert (area / "copy/other").read_bytes() == b"x"
    if existing:
        assert (area / "copy/file").read_bytes() == b"old"
    else:
        assert not (area / "copy/file").exists()
    assert temporaries(os.fsencode(area / "copy")) == []


def rewrite(path: Path, count: int) -> None:
    with open(path, "r+b") as file:
        file.seek(count * 4096 % (100 * MIB))
        file.write(b"changed")


@pytest.mark.parametrize("existing", [False, True], ids=["new", "replacing"])
def test_killed_run_leaves_no_partial_large_file(area: Path, existing: bool) -> None:
    """An existing file keeps its old content until the new one is complete."""
    with open(area / "file", "wb") as file:
        for _ in range(160):
            file.write(b"x" * MIB)
    (area / "copy").mkdir()
    if existing:
        (area / "copy/file").write_bytes(b"old")
    slow = slowed("pwrite64", 12)
    with background("--chunk-size", "16M", area / "file", area / "copy", ranks=2, wrap=slow) as run:
        wait_for_temporary(run, os.fsencode(area / "copy"))
        run.kill_all()
        assert run.survivors() == []
    if existing:
        assert (area / "copy/file").read_bytes() == b"old"
    else:
        assert not (area / "copy/file").exists()
