"""Every pair of an operation and an error, injected into runs of the command: the outcome is the one in the table.

In each run found = copied + skipped + failed, failures are reported with path, operation and errno, the other items are
copied correctly, no regular file is partly written and no temporary file is left.
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
"""Number of errors that are tested per row each day, out of nine."""

CONCURRENT_RUNS = 5
"""Number of concurrent runs: those that wait for a retry use no processor time."""


@pytest.fixture(scope="module")
def sources() -> Iterator[Path]:
    """The sources of all worlds; no run may change them."""
    require_root("give xattrs of all kinds")
    with scratch("pcopy-faults-") as place:
        for name, world in WORLDS.items():
            world.build(place / name / "source")
        yield place


def observe(sources: Path, cases: Sequence[tuple[Row, str, str]]) -> list[str]:
    """Return the outcome of each (row, error, when): a letter of the table, or an error message."""

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
    with ThreadPoolExecutor(CONCURRENT_RUNS) as pool:
        return list(pool.map(one, cases))


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_permanent_error_has_the_outcome_in_the_table(sources: Path, row: Row) -> None:
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
def test_transient_read_error_is_retried_with_success(sources: Path, row: Row) -> None:
    errors = in_turn(PASSING, 1, row)
    found = observe(sources, [(row, error, row.when.rstrip("+")) for error in errors])
    assert found == ["-"] * len(errors)


def test_fault_table_lists_every_operation_with_every_error() -> None:
    """Each operation is listed, with each error."""
    reported = {call for row in TABLE for call in row.calls.split()} | set(NEVER_CALLED)
    wanted = """read pread64 preadv write pwrite64 copy_file_range getdents64 statx newfstatat openat mkdirat mknodat
        symlinkat linkat renameat fchmod fchown utimensat fsetxattr setxattr fsync syncfs close ftruncate ioctl"""
    assert reported >= set(wanted.split())
    assert all(len(row.outcomes) == len(ERRORS) for row in TABLE)
    assert len(set(TABLE)) == len(TABLE)


def test_calls_in_never_called_are_not_made(sources: Path, area: Path) -> None:
    log = area / "log"
    wrap = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={','.join(NEVER_CALLED)},fdatasync,syncfs"]
    require_strace()
    succeed("-T", sources / "replaced/source", area / "copy", ranks=1, wrap=wrap)
    assert re.findall(r"\b(fsync|fdatasync|syncfs)\(", log.read_text()) == ["syncfs"]


def test_owner_that_an_ordinary_user_may_not_set_is_excused(sources: Path, area: Path) -> None:
    source, into = sources / "small/source", area / "into"
    into.mkdir()
    os.chown(into, NOBODY, NOBODY)
    fault = Fault(area / "trace", ("fchown",), into / "copy/room" / VICTIM, "EPERM")
    (area / "trace").touch()
    run = succeed("--json", "-T", source, into / "copy", ranks=1, user=NOBODY, wrap=fault.wrap())
    fault.check()
    assert summary(run)["excused"], show(run)
    assert differences(source, into / "copy", ownership=False) == []
