"""A directory that lists each name twice, as network file systems may: each item is processed and counted once.

Oracles: find, rsync (``tests.support.oracle``), tar.
"""

from __future__ import annotations

import json
import os
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pcopy.engine.ticket import TicketGenerator
from pcopy.fsio.backend.batches import ListNamesBatch, ListNamesResult
from pcopy.fsio.backend.columns import BatchOutcomeColumns, OutcomeCode
from pcopy.walk import listing
from tests.support.command import Completed, pcopy, show
from tests.support.filesystems import scratch
from tests.support.oracle import differences
from tests.support.quirks import quirky

BACKENDS = ("c", "python")
ITEMS = 311


@pytest.fixture
def backing() -> Iterator[Path]:
    with scratch() as area:
        top = area / "backing/tree"
        for name in ("many", "d/empty"):
            (top / name).mkdir(parents=True)
        for number in range(300):
            (top / "many" / str(number)).write_bytes(b"%d" % number)
        for name in ("a", "b"):
            (top / "d" / name).write_bytes(name.encode())
        os.truncate(top / "d/b", 9 << 20)
        os.link(top / "d/a", top / "d/link")
        (top / "d/symlink").symlink_to("a")
        os.mkfifo(top / "d/fifo")
        (top / "d/deep").mkdir()
        (top / "d/deep/file").write_bytes(b"deep")
        assert len([*top.rglob("*")]) + 1 == ITEMS
        yield top.parent


def run(backend: str, program: str, *words: str | Path, cwd: Path | None = None) -> Completed:
    done = pcopy(*words, program=program, ranks=2, cwd=cwd, env={"PCOPY_BACKEND": backend})
    assert done.returncode == 0, show(done)
    return done


def totals(backend: str, program: str, *words: str | Path, cwd: Path | None = None) -> dict[str, Any]:
    done = run(backend, program, "--json", *words, cwd=cwd)
    reported: dict[str, Any] = json.loads(done.stdout)
    assert (reported.get("found", ITEMS), reported["failed"], reported.get("warnings", 0)) == (ITEMS, 0, 0), show(done)
    return reported


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_programs_process_each_item_once(backing: Path, backend: str) -> None:
    area, copy = backing.parent, backing.parent / "copy"
    with quirky(backing, "twice") as mounted:
        tree = mounted / "tree"
        assert len(os.listdir(tree)) == 4, "the directory lists each name once"
        paths = run(backend, "pwalk", ".", "-print0", cwd=tree).stdout.split(b"\0")
        found = subprocess.run(["find", ".", "-print0"], cwd=backing / "tree", check=True, capture_output=True).stdout
        assert sorted(paths) == sorted(found.split(b"\0"))
        assert totals(backend, "pcopy", f"{tree}/", copy)["copied"] == ITEMS
        assert differences(backing / "tree", copy) == []
        compared = totals(backend, "pverify", tree, copy)
        assert (compared["files"], compared["directories"]) == (2 * 304, 2 * 5)
        totals(backend, "ptar", "-cf", area / "archive.tar", ".", cwd=tree)
        members = subprocess.run(["tar", "-tf", area / "archive.tar"], check=True, capture_output=True).stdout
        assert members.count(b"\n") == ITEMS
        (tree / "many/extra").touch()
        assert totals(backend, "psync", "--dry-run", f"{copy}/", tree)["actions"]["delete"] == 1
        assert totals(backend, "psync", f"{copy}/", tree)["deleted"] == 1
        totals(backend, "pchmod", "g+w", tree)
        assert totals(backend, "prm", "--dry-run", tree)["removed"] == ITEMS
        assert totals(backend, "prm", "-f", tree)["removed"] == ITEMS
        assert os.listdir(backing) == []


class Batches:
    """A backend whose listing consists of the given batches."""

    def __init__(self, *batches: tuple[bytes, ...]) -> None:
        self._batches = [*batches]

    def next(self) -> ListNamesResult:
        names = self._batches.pop(0)
        verdicts = BatchOutcomeColumns(1)
        verdicts.codes[0] = OutcomeCode.DONE
        numbers = array("Q", range(10, 10 + len(names)))
        rest = ListNamesBatch(0) if self._batches else None
        return ListNamesResult(verdicts, b"/".join(names), len(names), b"f" * len(names), numbers, rest)


def listed(backend: Batches, monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int]]:
    """All names with their inode numbers, as a ``DirectoryListing`` yields them."""

    def waited(*_: object) -> TicketGenerator[ListNamesResult]:
        return backend.next()
        yield

    class Submitted:
        def submit_batch(self, batch: object) -> None: ...

    monkeypatch.setattr(listing, "await_ticket", waited)
    begun = listing.DirectoryListing(Submitted(), backend.next())  # type: ignore[arg-type]
    all_names: list[tuple[bytes, int]] = []
    is_more = True
    while is_more:
        if begun.name_count:
            all_names += zip(begun.names.split(b"/"), begun.listed.inodes, strict=True)
        steps = begun.read_next_batch()
        try:
            while True:
                next(steps)
        except StopIteration as ended:
            is_more = ended.value
    return all_names


def test_names_repeated_in_a_later_batch_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of repeated names only does not end the listing."""
    backend = Batches((b"a", b"b", b"a"), (b"b", b"a"), (b"c", b"b"))
    assert listed(backend, monkeypatch) == [(b"a", 10), (b"b", 11), (b"c", 10)]


def test_number_of_remembered_names_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_REMEMBERED_NAMES", 2)
    backend = Batches((b"a", b"b"), (b"c", b"d"), (b"c",), (b"e", b"a"))
    assert [name for name, _ in listed(backend, monkeypatch)] == [b"a", b"b", b"c", b"d", b"e", b"a"]
