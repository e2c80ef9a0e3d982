"""The fidelity matrix: the column of pcopy, and the agreement of the page with the measured results."""

from __future__ import annotations

import difflib

import pytest

from tests.fidelity.matrix import PAGE, Cells, measure, page, versions
from tests.fidelity.notes import NOTES, note_for
from tests.fidelity.rows import Row
from tests.fidelity.runs import COLUMNS, EXCUSED, FAILS, NOTHING, PCOPY, YES, Column, all_rows
from tests.support.filesystems import FileSystems
from tests.support.users import require_root

DOES_NOT_FIT = "an attribute too large for the destination (from XFS to ext4)"

NOT_FOR_ROOT = {
    (DOES_NOT_FIT, "files"): FAILS,  # ext4 cannot store it; the failure is reported
    (DOES_NOT_FIT, "directories"): FAILS,
}
NOT_FOR_USERS = {
    **NOT_FOR_ROOT,
    # mknod(2) of devices needs CAP_MKNOD
    ("the item itself", "devices"): FAILS,
    ("the item itself", "block devices"): FAILS,
    # open(2): the owner has no right to read
    ("directories of mode 0000 with content", ""): FAILS,
    ("files of mode 0000", ""): FAILS,
    # chown(2) needs CAP_CHOWN, setting security.capability CAP_SETFCAP
    ("owner and group of others", "files"): EXCUSED,
    ("owner and group of others", "directories"): EXCUSED,
    ("owner and group of others", "symlinks"): EXCUSED,
    ("owner and group of others", "FIFOs"): EXCUSED,
    ("owner and group of others", "sockets"): EXCUSED,
    ("`security.capability`", "files"): EXCUSED,
    ("`security.capability` of files of others", "files"): EXCUSED,
}
"""All cells that are not "yes" in the columns of pcopy; the reasons are limits of the kernel."""


@pytest.fixture(scope="module")
def cells(file_systems: FileSystems) -> Cells:
    require_root("make what the matrix compares")
    return measure(file_systems)


def expected(row: Row, column: Column) -> str:
    if column.root:
        return NOT_FOR_ROOT.get((row.attribute, row.kind), YES)
    return NOTHING if row.root_only else NOT_FOR_USERS.get((row.attribute, row.kind), YES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("root", [True, False], ids=["root", "user"])
def test_pcopy_preserves_everything_that_can_be_preserved(cells: Cells, root: bool) -> None:
    column = Column(PCOPY, root)
    unlike = [
        f"{row.section}: {row.attribute}, {row.kind}: {cells[column][row.key]}, not {expected(row, column)}"
        for row in all_rows()
        if cells[column][row.key] != expected(row, column)
    ]
    assert unlike == []


def test_every_exception_names_an_existing_row() -> None:
    assert NOT_FOR_USERS.keys() <= {(row.attribute, row.kind) for row in all_rows()}


@pytest.mark.timeout(300)
def test_fidelity_page_matches_the_measured_results(cells: Cells) -> None:
    """Other versions of cp and rsync may behave differently: for them only the columns of pcopy are tested (above)."""
    written = PAGE.read_text("utf-8")
    for reported in versions():
        if reported not in written:
            pytest.skip(f"the page is about other versions than {reported}")
    found = page(cells, *versions())
    stale = list(difflib.unified_diff(written.splitlines(), found.splitlines(), "the page", "what was found", n=0))
    assert stale == [], "update the page: python -m tests.fidelity.matrix > docs/operations/fidelity.md"


def test_every_note_is_used(cells: Cells) -> None:
    if any(reported not in PAGE.read_text("utf-8") for reported in versions()):
        pytest.skip("the notes are about other versions of cp and rsync")
    used = {
        note_for(row, column, cells[column][row.key])
        for row in all_rows()
        for column in COLUMNS
        if cells[column][row.key] != YES
    }
    assert {note.text for note in NOTES} <= used
