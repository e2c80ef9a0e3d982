"""Write docs/operations/fidelity.md: ``python -m tests.fidelity.matrix > docs/operations/fidelity.md``, as root.

The runs take some time, so the page is written to standard output only when it is complete; nothing else is written.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fidelity.notes import note_for
from tests.fidelity.rows import Row
from tests.fidelity.runs import (
    COLUMNS,
    CP,
    EXCUSED,
    FAILS,
    HANGS,
    NO,
    NOTHING,
    RSYNC,
    YES,
    Column,
    all_rows,
    judged,
    version,
)
from tests.support.command import clean_up
from tests.support.filesystems import FileSystems, scratch
from tests.support.users import is_root

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "fidelity.md"

Cells = Mapping[Column, Mapping[str, str]]

INTRODUCTION = f"""\
# Fidelity matrix: data and metadata that a copy keeps

This table compares pcopy with `cp -a` and rsync: which data and metadata of each item are the same in the copy. A test
writes this page. The test creates every item, copies it with each tool, as root and as an ordinary user, and examines
the copy with `stat`, `readlink`, `read` and `getxattr`. The test fails if the page differs from its results.

- `pcopy` stands for `pcopy SRC DST` without options: archive mode is the default.
- `cp -a`: {{cp}}; `rsync -aHAXS`: {{rsync}}. These are the versions of Debian 12.
- Source and destination are ext4, unless a row names XFS or tmpfs. The umask is 077.
- The ordinary user copies the user's own files. A few rows use files of other users that this user may read.

| word | meaning |
|---|---|
| {YES} | the copy has this property |
| {EXCUSED} | the user may not set it; counted in the summary, no failure |
| {FAILS} | the copy does not have it; the tool names the item, and its exit status is not 0 |
| {NO} | the copy does not have it, and the exit status does not show that |
| {HANGS} | the tool never ends |
| {NOTHING} | impossible for any ordinary user with any tool; the same holds for the kinds that are marked "as root" |

No tool can set an inode's number, its change time or its creation time. Some attributes belong to the file system or
the host, and pcopy deliberately does not copy them: `security.ima`, `security.evm`, `lustre.*`, the attributes of
Lustre, GlusterFS and XFS in `trusted.*`, and those that `/etc/xattr.conf` marks `skip`. If an SELinux label may not be
set, pcopy reports that; it is no failure.
"""

END = """
## Updating this page

```sh
python -m tests.fidelity.matrix > docs/operations/fidelity.md
```

Run this command as root, in a checkout with the packages of `bin/install-debian-packages tests`. `tests/fidelity`
contains the rows and their checks, its `notes.py` the footnotes. `tests/fidelity/test_matrix.py` compares the page with
new results.
"""


def page(cells: Cells, cp: str, rsync: str) -> str:
    """Return the page, in Markdown; ``cp`` and ``rsync`` are their versions."""
    notes: dict[str, int] = {}
    parts = [INTRODUCTION.format(cp=cp, rsync=rsync)]
    for section in dict.fromkeys(row.section for row in all_rows()):
        rows = [row for row in all_rows() if row.section == section]
        parts.append(f"\n## {section}\n\n{_head()}\n")
        parts += [line + "\n" for line in _lines(rows, cells, notes)]
    parts.append("\n## Notes\n\n")
    parts += [f"[^{number}]: {text}\n" for text, number in notes.items()]
    parts.append(END)
    return "".join(parts)


def _head() -> str:
    titles = [f"{f'`{tool}`'} {'root' if root else 'user'}" for tool, root in COLUMNS]
    return f"| | {' | '.join(titles)} |\n|---|{'---|' * len(COLUMNS)}"


class Cell(NamedTuple):
    """A result, and the footnote that explains it."""

    word: str
    note: str


def _lines(rows: Sequence[Row], cells: Cells, notes: dict[str, int]) -> list[str]:
    """Return one line for all item types with the same cells of an attribute."""
    lines: dict[tuple[str, tuple[Cell, ...]], list[str]] = {}
    for row in rows:
        found = tuple(_explained(row, column, cells[column][row.key]) for column in COLUMNS)
        kind = row.kind
        like = next((key[1] for key in lines if key[0] == row.attribute and _same_for_root(key[1], found)), found)
        if row.root_only and like != found:
            found, kind = like, f"{kind} (as root)"
        lines.setdefault((row.attribute, found), []).append(kind)
    return [
        f"| {f'{attribute}: ' * any(kinds) or attribute}{', '.join(kinds)} | "
        f"{' | '.join(_shown(cell, notes) for cell in found)} |"
        for (attribute, found), kinds in lines.items()
    ]


def _explained(row: Row, column: Column, word: str) -> Cell:
    return Cell(word, "" if word == YES else note_for(row, column, word))


def _same_for_root(one: Sequence[Cell], other: Sequence[Cell]) -> bool:
    return all(a == b for column, a, b in zip(COLUMNS, one, other, strict=True) if column.root)


def _shown(cell: Cell, notes: dict[str, int]) -> str:
    return f"{cell.word}[^{notes.setdefault(cell.note, len(notes) + 1)}]" if cell.note else cell.word


def versions() -> tuple[str, str]:
    return version(CP), version(RSYNC)


def measure(systems: FileSystems) -> Cells:
    """Return the cells of all columns."""

    def on(kind: str) -> Path:
        path = Path(tempfile.mkdtemp(prefix="matrix-", dir=systems.point(kind)))
        path.chmod(0o755)
        return path

    return {column: judged(column, on) for column in COLUMNS}


def main() -> None:
    if not is_root():
        sys.exit("only root can make what the matrix compares")
    with scratch() as place:
        systems = FileSystems(place)
        try:
            cells = measure(systems)
        finally:
            systems.close()
            clean_up()
    sys.stdout.write(page(cells, *versions()))


if __name__ == "__main__":
    main()
