"""The runs behind the matrix: create sources, copy them with each tool as root and as an ordinary user, judge the rows.

The key of a row is the name of its item, so that messages about the item contain the key: a reported loss is
distinguished from a silent one.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fidelity import existing, items, metadata
from tests.fidelity.rows import GROUP, UMASK, Row
from tests.support.command import pcopy
from tests.support.filesystems import Place, remove
from tests.support.users import NOBODY, as_user

YES = "yes"
NO = "**no**"
FAILS = "fails"
HANGS = "hangs"
EXCUSED = "excused"
NOTHING = "n/a"

SECONDS = 60
PATIENCE = 2
"""Seconds after which cp, which waits for the other end of a FIFO, is considered to hang."""


class Column(NamedTuple):
    """A tool and its user."""

    tool: str
    root: bool


PCOPY, CP, RSYNC = "pcopy", "cp -a", "rsync -aHAXS"
COLUMNS = tuple(Column(tool, root) for tool in (PCOPY, CP, RSYNC) for root in (True, False))

FILE_SYSTEMS = {"xfs": ("xfs", "xfs"), "tmpfs": ("tmpfs", "tmpfs"), "narrow": ("xfs", "ext4")}
"""File systems of source and destination; all other runs use ext4."""


@functools.cache
def all_rows() -> tuple[Row, ...]:
    rows = (*items.all_rows(), *metadata.all_rows(), *existing.all_rows())
    keys = [row.key for row in rows]
    assert len(set(keys)) == len(keys), "two rows have the same key"
    return rows


class Outcome(NamedTuple):
    """The outcome of a tool; ``status`` is None if it had to be killed."""

    status: int | None
    errors: str
    excused: int = 0


def judged(column: Column, on: Place) -> dict[str, str]:
    """Return the cells of one column, by the keys of the rows."""
    cells: dict[str, str] = {}
    for run in dict.fromkeys(row.run for row in all_rows()):
        rows = [row for row in all_rows() if row.run == run]
        cells.update({row.key: NOTHING for row in rows if row.root_only and not column.root})
        cells.update(_run(column, on, run, [row for row in rows if row.key not in cells]))
    return cells


def _run(column: Column, on: Place, run: str, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    kinds = FILE_SYSTEMS.get(run, ("ext4", "ext4"))
    here, there = on(kinds[0]), on(kinds[1])
    uid = 0 if column.root else NOBODY
    for place in (here, there):
        os.chown(place, uid, uid)
    source = Path("/proc/version") if run == "proc" else here / run
    copy = there / source.name
    try:
        if run != "proc":
            _make(column, here, rows, run)
            _prepare(column, there, [row for row in rows if row.prepare], run)
        if run == "into":  # the future copy passes on its group and ACL
            copy.mkdir(exist_ok=True)
            os.chown(copy, uid, uid)
            metadata.make_inheritable(copy)
        outcome = _copy(column, source, there, PATIENCE if run == "waiting" and column.tool == CP else SECONDS)
        yield from [(row.key, _cell(column, row, copy, source, outcome, run)) for row in rows]
        _check_excused(column, run, rows, copy, source, outcome)
    finally:
        remove(here)
        remove(there)


def _owned(action: Callable[[], object], column: Column) -> None:
    if column.root:
        action()
    else:
        as_user(action, groups=[GROUP])


def _make(column: Column, here: Path, rows: Sequence[Row], run: str) -> None:
    def make(by_root: bool) -> None:
        (here / run).mkdir(exist_ok=True)
        for row in rows:
            if row.by_root == by_root:
                row.make(here / run / row.key)

    _owned(lambda: make(False), column)
    make(True)


def _prepare(column: Column, there: Path, rows: Sequence[Row], run: str) -> None:
    def prepare(by_root: bool) -> None:
        (there / run).mkdir(exist_ok=True)
        for row in rows:
            if row.prepare_by_root == by_root and row.prepare:
                row.prepare(there / run / row.key)

    if rows:
        _owned(lambda: prepare(False), column)
        prepare(True)


def _copy(column: Column, source: Path, into: Path, seconds: float) -> Outcome:
    if column.tool == PCOPY:
        who = {} if column.root else {"user": NOBODY, "groups": [GROUP]}
        done = pcopy("--json", "--progress", "none", source, into, ranks=2, umask=UMASK, timeout=seconds, **who)  # type: ignore[arg-type]
        reported = json.loads(done.stdout) if done.stdout else {"excused": 0}
        return Outcome(done.returncode, done.stderr.decode(errors="replace"), reported["excused"])
    line: list[str | Path] = [*column.tool.split(), "--", source, into]
    if not column.root:
        line = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={GROUP}", *line]
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    try:
        done = subprocess.run(
            line,
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            umask=UMASK,
            env=environment,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as late:
        return Outcome(None, (late.stderr or b"").decode(errors="replace"))
    return Outcome(done.returncode, done.stderr.decode(errors="replace"))


def _cell(column: Column, row: Row, copy: Path, source: Path, outcome: Outcome, run: str) -> str:
    item, origin = (copy, source) if run == "proc" else (copy / row.key, source / row.key)
    if outcome.status is None:
        return HANGS
    if _arrived(row, item, origin):
        return YES
    if outcome.status and origin.name in outcome.errors:
        return FAILS
    return EXCUSED if column.tool == PCOPY and run == "others" else NO


def _arrived(row: Row, item: Path, origin: Path) -> bool:
    try:
        return row.judge(item, origin)
    except OSError:
        return False


def _check_excused(column: Column, run: str, rows: Sequence[Row], copy: Path, source: Path, outcome: Outcome) -> None:
    """Check that each excused item is counted once in the summary, and nothing failed."""
    if column.tool == PCOPY and run == "others":
        lost = sum(not _arrived(row, copy / row.key, source / row.key) for row in rows)
        assert (outcome.status, outcome.excused) == (0, lost), outcome


def version(tool: str) -> str:
    """Return name and version of the tool, without the copyright."""
    program = tool.split(maxsplit=1)[0]
    if not shutil.which(program):
        return "none"
    reported = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    return " ".join(reported.splitlines()[0].split("protocol")[0].split())
