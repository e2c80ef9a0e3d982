"""Every quirk, every program, both backends: a correct copy, or a clear error and no files left."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from bench.latency import SlowMount, can_mount, mounted_slow
from tests.quirks.cells import CELLS, Outcome, World, complaints, reported, show
from tests.quirks.table import TABLE, Expected, Row, expected
from tests.quirks.world import clone, make_tree, same
from tests.support import command, native
from tests.support.extent import everything, in_turn, seed
from tests.support.filesystems import remove, scratch

MOST = 5
"""Largest number of paths in a message."""

CHOSEN, OTHERS = 3, 1
"""Number of cells of a row in a short run: of the listed cells, and of the other ones."""


@pytest.fixture(scope="module")
def original() -> Iterator[Path]:
    with scratch() as place:
        make_tree(place / "tree")
        yield place / "tree"


@pytest.fixture
def odd(original: Path) -> Iterator[SlowMount]:
    """The file system. Each row has its own, since the kernel caches which operations are not implemented."""
    if not can_mount():
        pytest.skip("it takes root and libfuse3-dev")
    with scratch() as place:
        (place / "backing").mkdir()
        with mounted_slow(place / "backing") as mounted:
            yield mounted


def cells_of(row: Row, backend: str) -> list[str]:
    """Return the programs to run: all, or a selection that changes each day."""
    if everything():
        return list(CELLS)
    listed = [cell for cell in CELLS if cell in row.cells]
    others = [cell for cell in CELLS if cell not in row.cells]
    whose = f"{row.quirks} {backend}"
    return [cell for part, most in ((listed, CHOSEN), (others, OTHERS)) if part for cell in in_turn(part, most, whose)]


def backends_of(row: Row) -> list[str]:
    """Return both backends, or one of them, alternating by day."""
    known = ["python"] if native.why_not() else ["c", "python"]
    return known if everything() else [known[(seed() + crc32(row.quirks.encode())) % len(known)]]


def judged(world: World, outcome: Outcome, wanted: Expected) -> Iterator[str]:
    """Yield what is wrong with a cell."""
    yield from (
        line for line in complaints(world, outcome) if not line.startswith(tuple(wanted.ignored & {"left over"}))
    )
    if outcome.run.returncode not in wanted.statuses:
        yield f"status {outcome.run.returncode}, not {wanted.statuses}"
    known = {getattr(errno, name) for name in wanted.errnos}
    if known and (more := outcome.errnos() - known):
        yield f"other errors: {[errno.errorcode.get(number, number) for number in more]}"
    if outcome.run.returncode in (0, 1):
        silent = [
            f"{path!r}: {word} {properties}"
            for path, (word, properties) in reported(world, outcome).items()
            if word not in wanted.ignored and (not properties or set(properties) - wanted.ignored)
        ]
        if silent:
            yield f"differs, and nothing reports it: {', '.join(sorted(silent)[:MOST])} ({len(silent)})"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.quirks or 'none'}-{at}") for at, row in enumerate(TABLE)])
def test_each_program_copies_correctly_or_reports_errors(
    original: Path, odd: SlowMount, session_scratch: Path, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[str] = []
    for backend in backends_of(row):
        monkeypatch.setattr(command, "backend", backend)
        for cell in cells_of(row, backend):
            wrong += [f"{cell} ({backend}): {line}" for line in run_cell(original, odd, session_scratch, row, cell)]
    assert not wrong, "\n".join(wrong)


def run_cell(original: Path, odd: SlowMount, scratch_place: Path, row: Row, cell: str) -> list[str]:
    area, backing = scratch_place / "quirks", odd.backing
    ranks = 1 + (seed() + crc32(f"{row.quirks}{cell}".encode())) % 2
    area.mkdir()
    try:
        if row.names is not same:
            odd.set_quirks(*row.quirks.split(","))
        place = backing if row.names is same else odd.path
        world = World(original, backing, odd.path, area, place, ranks, row.names, row.change)
        clone(original, place / "tree")
        world = world._replace(start=lambda: odd.set_quirks(*filter(None, row.quirks.split(","))))
        outcome = CELLS[cell](world)
        found = list(judged(world, outcome, expected(row, cell)))
        return [*found, f"with {ranks} ranks: {show(outcome.run)}"] if found else []
    finally:
        odd.set_quirks()
        remove(area)
        for path in backing.iterdir():
            remove(path)
