"""Whether an existing item belongs to the job: the table in ``pcopy.tasks.files.existing``, tested row by row."""

from __future__ import annotations

import os
import stat
from typing import Any

import pytest

from pcopy.fsio.identity import ItemIdentity
from pcopy.tasks.base.job import CopyOptions, Job, Options
from pcopy.tasks.base.rank import CLOCK_GRACE, Rank
from pcopy.tasks.base.values import Place
from pcopy.tasks.files import existing
from pcopy.tasks.files.existing import ExistingItem

BEGAN = 1_700_000_000 * 10**9
TIMES = {"before": BEGAN - 2 * CLOCK_GRACE, "after": BEGAN + 1, "unknown": 0, "-": 0}


def rows() -> list[list[str]]:
    """Return the cells of the table in the docstring of the module."""
    assert existing.__doc__
    lines = [line for line in existing.__doc__.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.parametrize("cells", rows(), ids=" ".join)
def test_ownership_table_matches_the_code(cells: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run, option, changed, born, links, own = cells
    monkeypatch.setattr(existing, "birth_time", lambda directory, name: TIMES[born])
    for keeps in ("newer", "skip", "fail") if option == "keeping" else ("replace", "changed"):
        for number in (1,) if run == "first" else (2, 3):
            for count in (1, 2) if links == "-" else (1,) if links == "1" else (2, 3):
                options = CopyOptions(existing=keeps, inplace=option == "--inplace")

                class Surroundings:
                    job = Job("name", number, (), Options(), options, began=BEGAN)
                    may_be_from_earlier_run = Rank.may_be_from_earlier_run

                surroundings: Any = Surroundings()
                surroundings.copy_options, surroundings.names_late = options, options.keeps_existing
                times = [TIMES[changed] // 10**9] * 3
                fields = [stat.S_IFREG | 0o644, 1, 1, count, 0, 0, 0, *times]
                status = os.stat_result([*fields, *times, *[TIMES[changed]] * 3])
                place = Place(0, b"", ItemIdentity(0, 1), ItemIdentity(0, 2), False, False)
                assert ExistingItem(surroundings, place, -1, b"name", status).is_made_by_job() == (own == "yes")


def test_ownership_table_has_both_answers() -> None:
    assert {cells[-1] for cells in rows()} == {"yes", "no"}
    assert len(rows()) == 8
