"""Every pair of an operation and an error, injected into whole runs of the command: the outcome is the table's.

In each of them found = copied + skipped + failed, failures are told with path, operation and errno, the rest of the
tree is faithful, no regular file is partly written and no temporary file is left.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.injection import Case, Row
from tests.faults.table import ERRORS, NEVER_CALLED, PASSING, READING, TABLE
from tests.faults.worlds import VICTIM, WORLDS
from tests.support.command import runs_in_c, show, succeed, summary
from tests.support.extent import in_turn
from tests.support.faults import Fault, require_strace
from tests.support.filesystems import scratch
from tests.support.oracle import changes, differences, snapshot
from tests.support.users import NOBODY, require_root

AT_LEAST = 3
"""Errors of the nine that a row meets each day."""

AT_ONCE = 5
"""Runs beside one another: those that wait for an error to pass cost nothing but time."""


@pytest.fixture(scope="module")
def sources() -> Iterator[Path]:
    """The source of each world; no run may change it."""
    require_root("give xattrs of all kinds")
    with scratch("pcopy-faults-") as place:
        for name, world in WORLDS.items():
            world.build(place / name / "source")
        yield place


def observe(sources: Path, cases: Sequence[tuple[Row, str, str]]) -> list[str]:
    """What came of each (row, error, when), in a word of the table or in words."""

    def one(case: tuple[Row, str, str]) -> str:
        row, error, when = case
        place = Path(tempfile.mkdtemp(dir=sources))
        try:
            return Case(row, error, sources / row.world / "source", place, when).observe()
        except AssertionError as failure:
            return f"{error}: {failure}"
        finally:
            shutil.rmtree(place)

    require_strace()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, cases))


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_an_error_that_stays(sources: Path, row: Row) -> None:
    before = snapshot(sources / row.world / "source")
    letters = row.outcomes.replace("e", "F" if runs_in_c() else "E").replace("r", "-" if runs_in_c() else "F")
    outcomes = dict(zip(ERRORS, letters, strict=True))
    wanted = {error: outcomes[error] for error in in_turn(ERRORS, AT_LEAST, row)}
    words = observe(sources, [(row, error, "") for error in wanted])
    found = dict(zip(wanted, words, strict=True))
    assert {error: "s" if wanted[error] == "s" and word in "FS" else word for error, word in found.items()} == wanted
    after = snapshot(sources / row.world / "source")
    assert [line for line in changes(before, after) if not line.startswith("atime")] == []  # this test itself reads


@pytest.mark.parametrize("row", READING, ids=str)
def test_a_read_error_that_passes(sources: Path, row: Row) -> None:
    errors = in_turn(PASSING, 1, row)
    found = observe(sources, [(row, error, row.when.rstrip("+")) for error in errors])
    assert found == ["-"] * len(errors)


def test_the_table_is_complete() -> None:
    """Each operation is in it, with each error."""
    reported = {call for row in TABLE for call in row.calls.split()} | set(NEVER_CALLED)
    wanted = """read pread64 preadv write pwrite64 copy_file_range getdents64 statx newfstatat openat mkdirat mknodat
        symlinkat linkat renameat fchmod fchown utimensat fsetxattr setxattr fsync syncfs close ftruncate ioctl"""
    assert reported >= set(wanted.split())
    assert all(len(row.outcomes) == len(ERRORS) for row in TABLE)
    assert len(set(TABLE)) == len(TABLE)


def test_what_is_never_called(sources: Path, area: Path) -> None:
    log = area / "log"
    wrap = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={','.join(NEVER_CALLED)},fdatasync,syncfs"]
    require_strace()
    succeed("-T", sources / "replaced/source", area / "copy", ranks=1, wrap=wrap)
    assert re.findall(r"\b(fsync|fdatasync|syncfs)\(", log.read_text()) == ["syncfs"]


def test_an_owner_that_an_ordinary_user_may_not_give_is_excused(sources: Path, area: Path) -> None:
    source, into = sources / "small/source", area / "into"
    into.mkdir()
    os.chown(into, NOBODY, NOBODY)
    fault = Fault(area / "trace", ("fchown",), into / "copy/room" / VICTIM, "EPERM")
    (area / "trace").touch()
    run = succeed("--json", "-T", source, into / "copy", ranks=1, user=NOBODY, wrap=fault.wrap())
    fault.check()
    assert summary(run)["excused"], show(run)
    assert differences(source, into / "copy", ownership=False) == []
